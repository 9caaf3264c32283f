//! Processes on hosts.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// How often to look whether a process has ended.
const POLL: Duration = Duration::from_millis(10);

/// A process on a host, with those that it starts and that do not leave its group. It is killed when it is dropped.
pub struct HostProcess {
    child: Child,
}

impl HostProcess {
    pub(super) fn start(command: &mut Command) -> Self {
        // What enters the host waits for what runs there: signals must reach both.
        let child = command.process_group(0).spawn();
        Self { child: child.unwrap_or_else(|error| panic!("cannot start {command:?}: {error}")) }
    }

    /// The child as the standard library has it, for its input and output.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Sends a signal to the process and to those that it started.
    ///
    /// # Panics
    /// Panics if it has ended.
    pub fn signal(&self, signal: Signal) {
        let group = Pid::from_raw(self.child.id().cast_signed()).expect("a process number");
        kill_process_group(group, signal).expect("a process that runs");
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// Panics if this process may not wait for it.
    pub fn wait(&mut self) -> ExitStatus {
        loop {
            if let Some(status) = self.child.try_wait().expect("the state of a child") {
                return status;
            }
            // What entered the host stops when it sees that what runs there is stopped, perhaps after that continued.
            let entered = Pid::from_raw(self.child.id().cast_signed()).expect("a process number");
            kill_process(entered, Signal::CONT).expect("a child that is not reaped");
            std::thread::sleep(POLL);
        }
    }

    /// Whether it has ended.
    ///
    /// # Panics
    /// Panics if this process may not wait for it.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("the state of a child").is_some()
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        if !self.has_ended() {
            // Also what is stopped ends by this signal.
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Runs a command and returns what it prints.
///
/// # Panics
/// Panics if it fails.
pub fn run_command(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{printed}{errors}", output.status);
    printed
}
