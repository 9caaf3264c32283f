//! A live worktree with everything that works on it. The operations are in modules of their own, by family.

use std::sync::Arc;

use vellum_types::{Attr, Ino};
use vellum_volume::Volume;

use crate::cache::InodeCache;
use crate::error::Result;
use crate::log::WriteLog;
use crate::opened::Opened;
use crate::tree::{Committed, LiveTree, Txn};

/// Who asks, for the owner of what is made and for what only owners may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits that new files do not get, unless a default ACL decides.
    pub umask: u32,
}

/// An inode with its attributes.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its number.
    pub ino: Ino,
    /// Its attributes; an orphan has no links.
    pub attr: Arc<Attr>,
}

/// A live worktree.
pub struct Fs {
    pub(crate) volume: Arc<Volume>,
    pub(crate) tree: LiveTree,
    pub(crate) log: WriteLog,
    pub(crate) inodes: InodeCache,
    pub(crate) opened: Opened,
}

impl Fs {
    /// Changes the worktree, and lets the caches forget what was changed. The body may run several times.
    pub(crate) fn change<T>(&self, body: impl FnMut(&mut Txn<'_>) -> Result<T>) -> Result<T> {
        let (value, Committed { changed, .. }) = self.tree.transact(body)?;
        self.inodes.forget(&changed);
        Ok(value)
    }
}
