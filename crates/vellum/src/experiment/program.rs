//! The command of a try, as the process outside sees it.

use std::ffi::OsString;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::Pid;
use vellum_types::ErrorKind;

use super::StartReport;
use super::namespace::{ENTER_WORD, wait_for_child};
use super::signals::ReceivedSignals;
use crate::error::{CliError, CommandOutcome, Result};
use crate::mounting::MountingError;

/// A command, and where it runs.
pub struct TryProgram<'a> {
    /// The try.
    pub name: &'a str,
    /// How the fork covers the worktree; None: the command runs in a copy.
    pub cover: Option<WorktreeCover<'a>>,
    /// Where the command stands.
    pub directory: &'a Path,
    /// Whether what it leaves running is waited for.
    pub wait: bool,
    /// Whether it gets open files of the caller beside the standard ones.
    pub keeps_descriptors: bool,
    /// The command.
    pub command: &'a [OsString],
}

/// A fork that is mounted over the worktree.
pub struct WorktreeCover<'a> {
    /// Where it is mounted.
    pub mount: PathBuf,
    /// The worktree.
    pub worktree: &'a Path,
    /// The state directory of the volume, and where it is shown, if the fork covers it.
    pub state: Option<(&'a Path, PathBuf)>,
    /// What is mounted in the worktree and is shown in the try.
    pub mounts: Vec<PathBuf>,
    /// Whether a user namespace is used even by root.
    pub strict: bool,
}

impl WorktreeCover<'_> {
    fn add_arguments(&self, command: &mut Command) {
        command.arg("--mount").arg(&self.mount).arg("--cover").arg(self.worktree);
        if let Some((state, view)) = &self.state {
            command.arg("--state").arg(state).arg("--state-view").arg(view);
        }
        for place in &self.mounts {
            command.arg("--with-mount").arg(place);
        }
        if self.strict {
            command.arg("--strict");
        }
    }
}

/// How a command ended.
pub struct ProgramEnd {
    /// Its exit status; a shell's, if it was killed or cannot be executed.
    pub status: u8,
    /// Why it cannot be executed.
    pub problem: Option<String>,
}

impl TryProgram<'_> {
    /// Runs the command, and waits for it.
    pub fn run(&self) -> Result<ProgramEnd> {
        let failed = || CliError::io_error("start", "the try");
        // Before the child exists, whose end could otherwise come before anybody listens for it.
        let mut signals = ReceivedSignals::begin()?;
        let (mut reader, writer) = std::io::pipe().map_err(failed())?;
        // The child gets it by its number.
        fcntl_setfd(&writer, FdFlags::empty()).map_err(|error| failed()(error.into()))?;
        // Not by its path, where another program may be by now.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("vellum").args([ENTER_WORD, "--report", &writer.as_raw_fd().to_string()]);
        command.args(["--parent", &std::process::id().to_string(), "--name", self.name]);
        command.arg("--directory").arg(self.directory);
        if let Some(cover) = &self.cover {
            cover.add_arguments(&mut command);
        }
        let flags = [(self.wait, "--wait"), (self.keeps_descriptors, "--keep-fds")];
        command.args(flags.into_iter().filter(|(set, _)| *set).map(|(_, name)| name));
        let child = command.arg("--").args(self.command).spawn().map_err(failed())?;
        // Otherwise the end of the pipe would never come: this process would have a writer itself.
        drop(writer);
        let outcome = wait_for_child(child_id(&child)?, &mut signals)?;
        // Both processes that had the other end are gone by now, or hold nothing more to say.
        let mut text = Vec::new();
        reader.read_to_end(&mut text).map_err(failed())?;
        let report = serde_json::Deserializer::from_slice(&text).into_iter().next();
        let status = match outcome {
            CommandOutcome::Program(status) => status,
            other => other.exit_code(),
        };
        match report {
            Some(Ok(StartReport::Running)) => Ok(ProgramEnd { status, problem: None }),
            Some(Ok(StartReport::NotExecuted(problem))) => Ok(ProgramEnd { status, problem: Some(problem) }),
            Some(Ok(StartReport::Failed { message, hint })) => {
                Err(MountingError::Daemon { kind: ErrorKind::Unsupported, message, hint }.into())
            }
            // It died before it could report, as by SIGKILL: its exit status would be taken for that of the command.
            Some(Err(_)) | None => {
                let message = "the try was killed before the command started".into();
                Err(MountingError::Daemon { kind: ErrorKind::Io, message, hint: None }.into())
            }
        }
    }
}

fn child_id(child: &Child) -> Result<Pid> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| CliError::io_error("wait for", "the command")(std::io::ErrorKind::InvalidData.into()))
}
