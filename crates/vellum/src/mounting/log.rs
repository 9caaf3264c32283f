//! The log of a mount's process: a file in its state directory, a line with time and level for each thing that matters. Where
//! systemd has started the process, they go to its journal as well.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use jiff::Timestamp;
use vellum_library::live;

use crate::error::{CliError, Result};
use crate::ui::journal::{LogLevel, write_to_journal};

/// Above this a log is moved aside when a process begins to write it, bytes.
const ROTATE_AT: u64 = 4 << 20;

/// The log.
#[derive(Debug)]
pub struct MountLog {
    file: File,
}

impl MountLog {
    /// Opens the log of a process to come.
    pub fn open_log(path: &Path) -> Result<Self> {
        let failed = || CliError::io_error("open the log", path.display().to_string());
        if path.metadata().is_ok_and(|found| found.len() > ROTATE_AT) {
            // The rename replaces the log that was moved aside before, so that both together stay bounded.
            std::fs::rename(path, path.with_extension("log.old")).map_err(failed())?;
        }
        // Only for the owner: the log may name files of the worktree.
        let file = File::options().create(true).append(true).mode(0o600).open(path).map_err(failed())?;
        // If root mounts the volume of another user, that user can still read the log, and mount the worktree
        // later.
        live::set_owner_from_ancestor(path).map_err(failed())?;
        Ok(Self { file })
    }

    /// Adds a line about what was done. Its text must be fit to be shown.
    pub fn write_line(&self, text: &str) {
        self.write_at_level(LogLevel::Info, text);
    }

    /// The same, about what went wrong, and is tried again or left out.
    pub fn write_warning(&self, text: &str) {
        self.write_at_level(LogLevel::Warning, text);
    }

    /// The same, about what was lost, or ends the process.
    pub fn write_error(&self, text: &str) {
        self.write_at_level(LogLevel::Error, text);
    }

    fn write_at_level(&self, level: LogLevel, text: &str) {
        let now = Timestamp::now();
        // There is no place to report that the log cannot be written.
        // One write for a whole line: threads that write at the same time do not mix their lines.
        let _ = (&self.file).write_all(format!("{now:.3} {:>5} {text}\n", level.name()).as_bytes());
        write_to_journal(level, text);
    }

    /// From now on what this process prints goes here: it has no terminal any more.
    pub fn redirect_output(&self) -> Result<()> {
        // A panic, and what libraries print, would otherwise go to a pipe that nobody reads any more.
        rustix::stdio::dup2_stdout(&self.file)
            .and_then(|()| rustix::stdio::dup2_stderr(&self.file))
            .map_err(|error| CliError::io_error("redirect the output to", "the log")(error.into()))
    }
}
