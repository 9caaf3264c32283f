//! What the process that has a live state says of itself, in the lock file.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Who has a live state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The process; None: it has not told yet.
    pub pid: Option<u32>,
    /// Where it mounted the worktree; None: it did not.
    pub mountpoint: Option<String>,
}

impl Holder {
    /// This process.
    pub(super) fn this(mountpoint: Option<&Path>) -> Self {
        let mountpoint = mountpoint.map(|path| path.display().to_string());
        Self { pid: Some(std::process::id()), mountpoint }
    }

    /// What a lock file says. Between the lock and what is written into it is a moment.
    pub(super) fn read(lock: &mut File) -> Self {
        let mut text = String::new();
        let read = lock.read_to_string(&mut text).ok().and_then(|_| serde_json::from_str(&text).ok());
        read.unwrap_or(Self { pid: None, mountpoint: None })
    }

    pub(super) fn write(&self, lock: &mut File) -> io::Result<()> {
        let text = serde_json::to_vec(self)?;
        lock.set_len(0)?;
        lock.rewind()?;
        lock.write_all(&text)
    }
}

/// What it does with the worktree.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.mountpoint, self.pid) {
            (Some(mountpoint), Some(pid)) => write!(f, "mounted on {mountpoint} by process {pid}"),
            (None, Some(pid)) => write!(f, "open in process {pid}"),
            (_, None) => write!(f, "just being opened by another process"),
        }
    }
}
