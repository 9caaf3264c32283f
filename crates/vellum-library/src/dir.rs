//! A directory of a live worktree, and all operations below it.
//!
//! Deliberately absent: permission checks. A process that holds the volume's key can do everything. New entries belong
//! to the user and group of this process.

mod attributes;
mod content;
mod names;

use std::sync::Arc;

use vellum_fs::{LiveFilesystem, RequestCaller};
use vellum_types::Dentry;

use crate::paths::PathReader;
use crate::source::{OpenLiveWorktree, ReadSource};
use crate::tree::{Tree, sealed::RootedTree};

/// A directory of a live worktree. It can be cloned, and shared among threads.
#[derive(Clone)]
pub struct Dir {
    reader: PathReader,
    live: Arc<OpenLiveWorktree>,
}

impl Dir {
    /// The root directory of the worktree.
    pub(crate) fn from_worktree_root(live: Arc<OpenLiveWorktree>) -> Self {
        Self { reader: PathReader::new(ReadSource::Live(live.clone())), live }
    }

    pub(crate) fn live_worktree(&self) -> &Arc<OpenLiveWorktree> {
        &self.live
    }

    fn filesystem(&self) -> &Arc<LiveFilesystem> {
        &self.live.fs
    }
}

impl RootedTree for Dir {
    fn reader(&self) -> &PathReader {
        &self.reader
    }

    fn with_root(&self, root: Dentry) -> Self {
        Self { reader: self.reader.with_root(root), live: self.live.clone() }
    }
}

impl Tree for Dir {}

/// The user and group of this process, for new entries.
pub(crate) fn caller() -> RequestCaller {
    RequestCaller {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        // The mode of an entry is what the program asked for: `umask(2)` cannot be read without changing it for all
        // threads.
        umask: 0,
    }
}
