//! A server that a test starts, kills and starts again.
//!
//! Invariant: it ends when it is dropped.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// Timeout of a start: the machine may be busy.
const START_MAX: Duration = Duration::from_secs(120);
/// Timeout of an answer of a server that may not be ready.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Between two looks whether a server is ready, which none of them announces.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// A running server.
pub(crate) struct ServerProcess {
    child: Child,
    log: PathBuf,
}

impl ServerProcess {
    /// Starts a program, whose output goes to the file `log`.
    ///
    /// # Panics
    /// Panics if it cannot be started: `make tools` installs it.
    pub fn start(mut command: Command, log: &Path) -> Self {
        // Appended: a server that is started again after a crash goes on with the same log.
        let output = File::options().create(true).append(true).open(log).expect("the server's log");
        let errors = output.try_clone().expect("the server's log");
        // A process group of its own: Ctrl-C in the terminal of a test does not reach the server.
        command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        let child = command.spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("cannot start {}: {error}: run 'make tools'", command.get_program().display())
        });
        Self { child, log: log.to_owned() }
    }

    /// Waits until the server is ready. Returns false if it ends before.
    ///
    /// # Panics
    /// Panics if it takes too long.
    pub fn wait_until(&mut self, is_ready: impl Fn() -> bool) -> bool {
        let start = Instant::now();
        while !is_ready() {
            if self.child.try_wait().expect("the state of the server").is_some() {
                return false;
            }
            assert!(start.elapsed() < START_MAX, "the server does not start: {}", self.read_log());
            std::thread::sleep(LOOK_PERIOD);
        }
        true
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What the server wrote.
    pub fn read_log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Kills it, and waits until it is gone.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        // It has been killed, so its exit code says nothing.
        let _ = self.child.wait();
    }

    /// Stops or continues it: while stopped it keeps its connections and does not answer.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // One that has ended cannot be signalled.
        let _ = pid.map(|pid| rustix::process::kill_process_group(pid, signal));
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a server of this machine answers to a text; empty if it does not.
pub(crate) fn ask_server(port: u16, question: &str) -> String {
    let ask = || -> std::io::Result<String> {
        let mut connection = TcpStream::connect(("127.0.0.1", port))?;
        connection.set_read_timeout(Some(ANSWER_MAX))?;
        connection.write_all(question.as_bytes())?;
        let mut answer = [0; 1024];
        // One read is enough, since all that is asked for has short answers.
        let len = connection.read(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..len]).into_owned())
    };
    ask().unwrap_or_default()
}
