//! A file that a process of its own holds open.
//!
//! Invariant: the test process never holds a file of a shared worktree's client. Each child that any of its threads starts
//! would inherit the file until it executes its program, and would then wait for a server that is away, as closing a file
//! does; until then it holds what it inherited of other tests, whose readers wait for it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Opens a file, and then does what each line of its input says; answers with a line: `ok` and bytes, or an error's number.
const PROGRAM: &str = "import fcntl, os, sys
file = os.open(sys.argv[1], int(sys.argv[2]) | os.O_CLOEXEC)
def carry_out(what, argument):
    if what == 'read':
        return os.pread(file, int(argument), 0).hex()
    if what == 'write':
        os.pwrite(file, bytes.fromhex(argument), 0)
    if what == 'append':
        os.pwrite(file, bytes.fromhex(argument), os.fstat(file).st_size)
    if what == 'sync':
        os.fsync(file)
    if what == 'close':
        os.close(file)
    if what == 'lock':
        fcntl.flock(file, fcntl.LOCK_EX)
    return ''
print('ok', flush=True)
for line in sys.stdin:
    try:
        print('ok', carry_out(*line.split()), flush=True)
    except OSError as error:
        print(error.errno, flush=True)
";

/// The file. It is closed when it is dropped.
pub struct OpenFile {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl OpenFile {
    /// Opens a file for reading and writing.
    pub fn open(path: &Path) -> Self {
        Self::open_with(path, OFlags::RDWR)
    }

    /// Opens a file for reading.
    pub fn open_to_read(path: &Path) -> Self {
        Self::open_with(path, OFlags::RDONLY)
    }

    fn open_with(path: &Path, flags: OFlags) -> Self {
        let mut process = Command::new("python3")
            .args(["-c", PROGRAM])
            .arg(path)
            .arg(flags.bits().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut file = Self { process, input, output };
        assert_eq!(file.next_answer().unwrap(), "", "{}", path.display());
        file
    }

    /// Its first bytes.
    pub fn read(&mut self, max: usize) -> Result<Vec<u8>, Errno> {
        let hex = self.ask("read", &max.to_string())?;
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        Ok((0..hex.len()).step_by(2).map(byte).collect())
    }

    /// Overwrites its beginning.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.ask("write", &to_hex(bytes)).map(drop)
    }

    /// Writes behind its end, if nobody else does.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.ask("append", &to_hex(bytes)).map(drop)
    }

    /// Makes it durable.
    pub fn sync(&mut self) -> Result<(), Errno> {
        self.ask("sync", "-").map(drop)
    }

    /// Closes it; nothing else can be done with it afterwards.
    pub fn close(mut self) -> Result<(), Errno> {
        self.ask("close", "-").map(drop)
    }

    /// Locks it by `flock`, for itself alone.
    pub fn lock(&mut self) -> Result<(), Errno> {
        self.ask("lock", "-").map(drop)
    }

    fn ask(&mut self, what: &str, argument: &str) -> Result<String, Errno> {
        writeln!(self.input.as_mut().unwrap(), "{what} {argument}").unwrap();
        self.next_answer()
    }

    fn next_answer(&mut self) -> Result<String, Errno> {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        match line.trim_end().strip_prefix("ok") {
            Some(bytes) => Ok(bytes.trim_start().to_owned()),
            None => Err(Errno::from_raw_os_error(line.trim().parse().expect("an answer"))),
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.process.wait();
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
