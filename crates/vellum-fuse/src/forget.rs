//! What the kernel must forget when the worktree came to stand on another state.
//!
//! A kernel that can does that at once. To an older one, to invalidate an entry of the root is to drop all that is
//! cached below it, however much that is; so only names in the root have to be known. Those that exist can be listed;
//! those that were looked up in vain are remembered here.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fuser::{INodeNo, Notifier};
use rustix::io::Errno;
use vellum_fs::Epoch;
use vellum_types::Ino;

use crate::node::Place;

/// Names remembered at most. A program that looks for more in the root than this is met with what it was told.
const MISSED_MAX: usize = 100_000;

/// Names that were looked up in the root in vain.
#[derive(Debug, Default)]
pub struct Missed {
    names: Mutex<HashSet<Vec<u8>>>,
    /// The kernel forgets all names at once: none has to be remembered.
    needless: AtomicBool,
}

impl Missed {
    /// Notes a name; false if there are too many already, so that the kernel must not remember this one.
    #[must_use]
    pub fn note(&self, name: &[u8]) -> bool {
        if self.needless.load(Ordering::Relaxed) {
            return true;
        }
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.contains(name) || names.len() < MISSED_MAX && names.insert(name.to_vec())
    }

    fn take(&self) -> HashSet<Vec<u8>> {
        std::mem::take(&mut *self.names.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The notification that lets all names that the kernel knows count as forgotten, since Linux 6.16: its number in the
/// kernel's `fuse.h`.
const INC_EPOCH: i32 = 8;

/// Tells the kernel what to forget. Never to be used by a thread that answers requests.
pub struct Forgetter {
    notifier: Notifier,
    missed: Arc<Missed>,
    device: OwnedFd,
    /// Whether the kernel can forget all names at once.
    at_once: bool,
}

impl Forgetter {
    pub(crate) fn new(notifier: Notifier, missed: Arc<Missed>, device: OwnedFd) -> Self {
        let at_once = forget_names(&device).is_ok();
        missed.needless.store(at_once, Ordering::Relaxed);
        Self { notifier, missed, device, at_once }
    }

    /// Whether the names in the root must be told: an older kernel forgets them one by one.
    #[must_use]
    pub fn wants_names(&self) -> bool {
        !self.at_once
    }

    /// Lets the kernel forget what it knows of a name in a directory, and how that lists.
    pub fn forget_name(&self, epoch: Epoch, dir: Ino, name: &[u8]) {
        let Some(node) = Place::Main(epoch, dir).node() else { return };
        let _ = self.notifier.inval_entry(INodeNo(node), OsStr::from_bytes(name));
        let _ = self.notifier.inval_inode(INodeNo(node), 0, 0);
    }

    /// Lets the kernel forget everything that it knows of the worktree, but for what is open: `names` are those that
    /// the root had and has, if they are wanted.
    pub fn forget(&self, names: impl Iterator<Item = Vec<u8>>) {
        let mut all = self.missed.take();
        if self.at_once {
            // It did so when it was mounted.
            let _ = forget_names(&self.device);
        } else {
            all.extend(names);
            for name in all {
                // What the kernel does not know is forgotten already.
                let _ = self.notifier.inval_entry(INodeNo(Ino::ROOT.0), OsStr::from_bytes(&name));
            }
        }
        let _ = self.notifier.inval_inode(INodeNo(Ino::ROOT.0), 0, 0);
    }
}

/// A notification is the head of an answer: its length, what is told, and no request that it would be the answer to.
fn forget_names(device: &OwnedFd) -> Result<(), Errno> {
    let mut head = [0; 16];
    let len = u32::try_from(head.len()).unwrap_or(0);
    for (place, bytes) in head.chunks_exact_mut(4).zip([len.to_ne_bytes(), INC_EPOCH.to_ne_bytes()]) {
        place.copy_from_slice(&bytes);
    }
    rustix::io::write(device, &head).map(|_| ())
}
