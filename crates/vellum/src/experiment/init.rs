//! The first process of a try's PID namespace: it starts the command, collects what ends, and ends with the command's exit
//! status. When it ends, the kernel kills whatever is left. For a try in a copy there is no namespace: the process adopts
//! what the command leaves running (it is its subreaper), and kills that itself.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use rustix::io::{Errno, FdFlags, fcntl_setfd, retry_on_intr};
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, wait};

use super::signals::{ReceivedSignals, WaitEvent};
use super::{StartReport, TRY_STATE_VARIABLE, TRY_VARIABLE, close_descriptors_at_exec};
use crate::error::{CliError, CommandOutcome, Result};

/// Exit status of a command that does not exist, as shells have it.
const NOT_FOUND: u8 = 127;
/// Exit status of a command that cannot be executed.
const NOT_EXECUTABLE: u8 = 126;
/// What shells add to the number of the signal that ended a command.
const BY_SIGNAL: i32 = 128;

/// A command that is to be started in the namespaces of a try, or in a copy.
pub struct FirstProcess<'a> {
    /// The try.
    pub name: &'a str,
    /// The directory in the copy of the worktree that the command runs in; None: it runs in namespaces.
    pub copy: Option<&'a Path>,
    /// Where the state directory of the volume is shown, if the fork covers it.
    pub state_view: Option<&'a Path>,
    /// Whether what the command leaves running is waited for.
    pub wait: bool,
    /// Whether the command gets open files of the caller beside the standard ones.
    pub keeps_descriptors: bool,
    /// The command and its arguments.
    pub command: &'a [OsString],
}

impl FirstProcess<'_> {
    /// Runs the command. `signals` are those of the process that this one was forked from.
    pub fn run(&self, report: File, signals: ReceivedSignals) -> Result<CommandOutcome> {
        // Whoever kills `vellum try` ends the try with it.
        // The kernel clears this in the child of a fork, so that it is asked for again.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        // The end of the report must not wait for what the command leaves running.
        let _ = fcntl_setfd(&report, FdFlags::CLOEXEC);
        if !self.keeps_descriptors {
            close_descriptors_at_exec();
        }
        let mut signals = signals.begin_in_fork()?;
        if self.copy.is_none() {
            // A container may forbid it: then programs in the try see the processes of the container, and nothing else
            // changes.
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            let _ = mount("proc", "/proc", "proc", flags, None);
        }
        let child = match self.start_command() {
            Ok(child) => {
                // Sent only now: whoever waits for it may rely on it that the command exists and runs.
                send_report(&report, &StartReport::Running);
                child
            }
            Err(error) => {
                let status = status_of_start_failure(&error);
                let message = format!("cannot run {}: {error}", self.program().display());
                send_report(&report, &StartReport::NotExecuted(message));
                // The caller gets the exit status that a shell would give, and the message through the report.
                return Ok(CommandOutcome::Program(status));
            }
        };
        drop(report);
        let outcome = wait_for_command(&child, &mut signals, self.wait)?;
        // In a namespace, the end of this process is enough.
        if self.copy.is_some() {
            kill_adopted_processes()?;
        }
        Ok(outcome)
    }

    fn program(&self) -> &OsStr {
        self.command.first().map(OsString::as_os_str).unwrap_or_default()
    }

    fn start_command(&self) -> std::io::Result<Child> {
        let mut command = Command::new(self.program());
        command.args(self.command.iter().skip(1)).env(TRY_VARIABLE, self.name);
        if let Some(view) = self.state_view {
            command.env(TRY_STATE_VARIABLE, view);
        }
        if let Some(directory) = self.copy {
            // What it inherits names the directory in the worktree.
            command.env("PWD", directory);
            kill_with_parent(&mut command);
        }
        command.spawn()
    }
}

/// Lets a command that is about to be started die with this process, as it does in a PID namespace.
fn kill_with_parent(command: &mut Command) {
    let prepare = || set_parent_process_death_signal(Some(Signal::KILL)).map_err(std::io::Error::from);
    #[expect(unsafe_code, reason = "no safe call runs code between fork and exec")]
    // SAFETY: it only makes a system call, and allocates nothing.
    unsafe {
        command.pre_exec(prepare);
    }
}

/// Kills all that the command left running. What a killed process leaves is adopted, and killed in the next round.
fn kill_adopted_processes() -> Result<()> {
    while !collect_children(|_, _| ())? {
        for child in list_children()? {
            // It may have ended a moment ago, and is collected below.
            let _ = kill_process(child, Signal::KILL);
        }
        // No child is left that was not killed: this does not wait for long.
        retry_on_intr(|| wait(WaitOptions::empty()))
            .map_err(|error| CliError::io_error("wait for", "what the command left running")(error.into()))?;
    }
    Ok(())
}

/// The children of this process, which has one thread.
fn list_children() -> Result<Vec<Pid>> {
    // The kernel lists children by the thread that has them.
    let path = "/proc/thread-self/children";
    let text = std::fs::read_to_string(path)
        .map_err(CliError::io_error("find what the command left running, in", path))?;
    let numbers = text.split_ascii_whitespace().filter_map(|number| number.parse().ok());
    Ok(numbers.filter_map(Pid::from_raw).collect())
}

/// The exit status for a command that cannot be started.
fn status_of_start_failure(error: &std::io::Error) -> u8 {
    match error.kind() {
        std::io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    }
}

/// Tells the process outside. It may be gone: then this one is killed, too.
pub fn send_report(mut pipe: &File, report: &StartReport) {
    let line = serde_json::to_vec(report).unwrap_or_default();
    let _ = pipe.write_all(&line);
}

fn wait_for_command(
    command: &Child,
    signals: &mut ReceivedSignals,
    waits_for_all: bool,
) -> Result<CommandOutcome> {
    let command = i32::try_from(command.id()).ok().and_then(Pid::from_raw);
    let mut status = None;
    loop {
        match signals.wait()? {
            WaitEvent::ChildChanged => {}
            WaitEvent::PassOn(signal) => match (command, status) {
                (Some(command), None) => drop(kill_process(command, signal)),
                // Only what it left is running: that ends with this process.
                (_, Some(status)) => return Ok(CommandOutcome::Program(status)),
                (None, None) => {}
            },
        }
        let is_alone = collect_children(|ended, code| {
            if Some(ended) == command {
                status = Some(code);
            }
        })?;
        if let Some(status) = status.filter(|_| is_alone || !waits_for_all) {
            return Ok(CommandOutcome::Program(status));
        }
    }
}

/// Collects all children that have ended, and hands each over with its exit status. Returns whether none is left.
fn collect_children(mut ended: impl FnMut(Pid, u8)) -> Result<bool> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => ended(pid, exit_code(ExitStatus::from_raw(status.as_raw()))),
            Ok(None) => return Ok(false),
            Err(Errno::CHILD) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(error) => return Err(CliError::io_error("wait for", "the command")(error.into())),
        }
    }
}

/// The exit code that a shell would give.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| BY_SIGNAL + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}
