//! A process that does system calls in mounts, one for each line that it is told; its answers are JSON.
//!
//! Invariant: the test process itself opens no file of a shared worktree's client (see [`crate::open_file`]).

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

/// Does what each line of its input says: a JSON list of a name and arguments.
const PROGRAM: &str = "import json, mmap, os, sys
def stat(path):
    found = os.stat(path)
    return [found.st_size, found.st_mode & 0o7777, found.st_nlink]
def look(path):
    found = stat(path)
    file = os.open(path, os.O_RDONLY)
    try:
        content = os.pread(file, 1 << 16, 0)
        mapped = mmap.mmap(file, 0, prot=mmap.PROT_READ) if os.fstat(file).st_size else b''
        return found + [content.hex(), bytes(mapped).hex()]
    finally:
        os.close(file)
def listed(path):
    return sorted(os.listdir(path))
def create(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
def write(path, offset, byte, count):
    file = os.open(path, os.O_WRONLY)
    os.pwrite(file, bytes([byte]) * count, offset)
    os.close(file)
def truncate(path, length):
    os.truncate(path, length)
def chmod(path, mode):
    os.chmod(path, mode)
def rename(old, new):
    os.rename(old, new)
def unlink(path):
    os.unlink(path)
def link(old, new):
    os.link(old, new)
def stat_often(path, count):
    for _ in range(count):
        found = os.stat(path)
    return found.st_size
def miss_often(path, count):
    return sum(os.path.lexists(path) for _ in range(count))
for line in sys.stdin:
    what, *arguments = json.loads(line)
    try:
        print(json.dumps({'ok': globals()[what](*arguments)}), flush=True)
    except OSError as error:
        print(json.dumps({'errno': error.errno}), flush=True)
";

/// The process. It ends when this is dropped.
pub struct MountWorker {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl MountWorker {
    /// Starts it.
    pub fn start() -> Self {
        let mut process = Command::new("python3")
            .args(["-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, input, output }
    }

    /// Tells it to do something, and does not wait.
    pub fn tell(&mut self, what: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{what}").unwrap();
    }

    /// Waits for the answer: what a call has given, or the number of its error.
    pub fn answer(&mut self) -> Result<Value, i64> {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let mut answer: Value = serde_json::from_str(&line).unwrap();
        match answer["errno"].as_i64() {
            Some(errno) => Err(errno),
            None => Ok(answer["ok"].take()),
        }
    }

    /// Has it do something.
    pub fn ask(&mut self, what: &Value) -> Result<Value, i64> {
        self.tell(what);
        self.answer()
    }
}

impl Drop for MountWorker {
    fn drop(&mut self) {
        // It ends by itself at the end of its input.
        drop(self.input.take());
        let _ = self.process.wait();
    }
}
