//! Directories that were removed while a process has them open or as its working directory.
//!
//! Such a directory is empty and stays empty (the kernel refuses to create anything in it), so only its attributes are
//! kept.
//!
//! Invariant: a directory is kept until the kernel has forgotten it.
//!
//! Deliberately absent: extended attributes, and files, which have content and are kept by the worktree itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use vellum_fs::{AttributeChanges, TimeChange};
use vellum_types::{InodeAttr, UnixTime};

/// The removed directories that the kernel still knows, by node id.
#[derive(Debug, Default)]
pub struct RemovedDirNodes {
    /// How many there are: while there are none, requests take no lock.
    count: AtomicUsize,
    dirs: Mutex<HashMap<u64, InodeAttr>>,
}

impl RemovedDirNodes {
    /// Keeps a directory that was just removed.
    pub fn keep_dir(&self, node: u64, attr: &InodeAttr, now: UnixTime) {
        // As `fstat` shows a removed directory on other filesystems.
        let attr = InodeAttr { nlink: 0, ctime: now, ..attr.clone() };
        let mut dirs = self.dirs.lock();
        dirs.insert(node, attr);
        self.count.store(dirs.len(), Ordering::Release);
    }

    /// Removes a node that the kernel has forgotten.
    pub fn remove_node(&self, node: u64) {
        if self.is_empty() {
            return;
        }
        let mut dirs = self.dirs.lock();
        // After `rm -rf` of a large tree the table would keep its room for the life of the mount.
        if dirs.remove(&node).is_some() && dirs.len() * 4 < dirs.capacity() {
            dirs.shrink_to_fit();
        }
        self.count.store(dirs.len(), Ordering::Release);
    }

    /// The attributes of a removed directory; None if the node is not one.
    pub fn dir_attr(&self, node: u64) -> Option<InodeAttr> {
        if self.is_empty() { None } else { self.dirs.lock().get(&node).cloned() }
    }

    /// Sets attributes of a removed directory, and returns all of them; None if the node is not one.
    pub fn set_attributes(&self, node: u64, set: &AttributeChanges, now: UnixTime) -> Option<InodeAttr> {
        if self.is_empty() {
            return None;
        }
        let time = |set: Option<TimeChange>, held: UnixTime| match set {
            None => held,
            Some(TimeChange::Now) => now,
            Some(TimeChange::At(time)) => time,
        };
        let mut dirs = self.dirs.lock();
        let attr = dirs.get_mut(&node)?;
        attr.mode = set.mode.unwrap_or(attr.mode);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = time(set.atime, attr.atime);
        attr.mtime = time(set.mtime, attr.mtime);
        attr.ctime = set.ctime.unwrap_or(now);
        Some(attr.clone())
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }
}
