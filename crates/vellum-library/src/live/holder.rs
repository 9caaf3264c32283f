//! The lock file: what the process that holds a live state records about itself.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use vellum_host::mount_table::read_process_mounts;
use vellum_host::process::ProcessStat;

/// The process that holds a live state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateHolder {
    /// Its process id. `None`: it is not recorded yet.
    pub pid: Option<u32>,
    /// Its mountpoint. `None`: it is not a mount.
    pub mountpoint: Option<String>,
    /// What it does with the worktree.
    #[serde(default)]
    pub stage: HolderStage,
}

/// What the process does with the live state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HolderStage {
    /// It serves the worktree, or is about to.
    #[default]
    Serving,
    /// It serves only the processes that still use the mount; no other process finds it.
    Detached,
    /// It publishes the rest, and ends.
    Ending,
}

impl StateHolder {
    /// This process.
    pub(super) fn current_process(mountpoint: Option<&Path>) -> Self {
        let mountpoint = mountpoint.map(|path| path.display().to_string());
        Self { pid: Some(std::process::id()), mountpoint, stage: HolderStage::Serving }
    }

    /// Reads a lock file. It is empty for a moment after the lock was taken.
    pub(super) fn read_from(lock: &mut File) -> io::Result<Self> {
        let mut text = String::new();
        lock.rewind()?;
        lock.read_to_string(&mut text)?;
        // The text is only for messages and for waiting: the lock itself decides, so that a text that cannot be read
        // is no error.
        let unknown = Self { pid: None, mountpoint: None, stage: HolderStage::Serving };
        // What follows is left of a longer text that is being replaced.
        let first = serde_json::Deserializer::from_str(&text).into_iter().next();
        Ok(first.and_then(Result::ok).unwrap_or(unknown))
    }

    /// Returns whether the process was killed or is exiting: the kernel then releases its lock, after some time.
    pub(super) fn is_ending(&self) -> bool {
        // Without a process there is nothing to look at; the caller gives it a moment to write its text.
        let Some(pid) = self.pid else { return false };
        // It publishes, which may take long, but it will end by itself.
        if self.stage == HolderStage::Ending {
            return true;
        }
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        // The process is gone. The next try decides: it finds the lock free, or the text of another holder.
        let (Ok(stat), Ok(status)) = (ProcessStat::read(pid), status) else { return true };
        stat.is_exiting() || is_process_killed(&status)
    }

    /// Returns whether the process claims to serve a mount that its mount namespace does not have: it was just ended,
    /// or is about to be made.
    pub(super) fn is_unmounted(&self) -> bool {
        let (Some(pid), Some(mountpoint), HolderStage::Serving) = (self.pid, &self.mountpoint, self.stage)
        else {
            return false;
        };
        let mountpoint = Path::new(mountpoint);
        // That process's own list: it may live in another mount namespace, where this one sees no mount at all.
        read_process_mounts(pid)
            .is_ok_and(|mounts| !mounts.iter().any(|mount| mount.mountpoint == mountpoint))
    }

    /// A concurrent reader finds either the old or the new text complete at the front.
    pub(super) fn write_to(&self, lock: &File) -> io::Result<()> {
        // Written over the old text before the length is set: emptied first, the file would show nobody for a moment.
        let text = serde_json::to_vec(self)?;
        lock.write_all_at(&text, 0)?;
        lock.set_len(text.len() as u64)
    }
}

/// What it does with the worktree.
impl fmt::Display for StateHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.mountpoint, self.pid) {
            (Some(mountpoint), Some(pid)) => match self.stage {
                HolderStage::Serving => write!(f, "mounted on {mountpoint} by process {pid}"),
                HolderStage::Detached => write!(
                    f,
                    "still used by programs that work in what was mounted on {mountpoint}, served by process {pid}"
                ),
                HolderStage::Ending => {
                    write!(
                        f,
                        "being put into the store by process {pid}, which had it mounted on {mountpoint}"
                    )
                }
            },
            (None, Some(pid)) => write!(f, "open in process {pid}"),
            (_, None) => write!(f, "just being opened by another process"),
        }
    }
}

/// Returns whether SIGKILL is pending for the process, from `/proc/PID/status`.
fn is_process_killed(status: &str) -> bool {
    // The kernel shows a set of signals as a hexadecimal mask, in which signal n has bit n - 1.
    const KILL: u64 = 1 << (9 - 1);
    let pending =
        status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")));
    pending.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).any(|mask| mask & KILL != 0)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::process::Command;

    use super::*;

    fn holder(pid: u32) -> StateHolder {
        StateHolder { pid: Some(pid), mountpoint: None, stage: HolderStage::Serving }
    }

    #[test]
    fn who_was_killed_is_at_its_end_from_that_moment_on() {
        assert!(!holder(std::process::id()).is_ending());
        for _ in 0..20 {
            let mut child = Command::new("sleep").arg("600").spawn().unwrap();
            assert!(!holder(child.id()).is_ending());
            child.kill().unwrap();
            // Between the signal that was taken and the end that has begun is a moment in which neither is seen.
            assert!(holder(child.id()).is_ending() || holder(child.id()).is_ending());
            child.wait().unwrap();
            assert!(holder(child.id()).is_ending());
        }
    }

    #[test]
    fn a_kill_that_waits_is_an_end() {
        assert!(is_process_killed("Name:\tx\nSigPnd:\t0000000000000100\n"));
        assert!(!is_process_killed("Name:\tx\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000200\n"));
    }
}
