//! What the kernel must forget when the worktree came to stand on another state.
//!
//! To invalidate an entry of the root is to drop all that is cached below it, however much that is; so only names in
//! the root have to be known. Those that exist can be listed; those that were looked up in vain are remembered here.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, PoisonError};

use fuser::{INodeNo, Notifier};
use vellum_types::Ino;

/// Names remembered at most. A program that looks for more in the root than this is met with what it was told.
const MISSED_MAX: usize = 100_000;

/// Names that were looked up in the root in vain.
#[derive(Debug, Default)]
pub struct Missed(Mutex<HashSet<Vec<u8>>>);

impl Missed {
    /// Notes a name; false if there are too many already, so that the kernel must not remember this one.
    #[must_use]
    pub fn note(&self, name: &[u8]) -> bool {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.contains(name) || names.len() < MISSED_MAX && names.insert(name.to_vec())
    }

    fn take(&self) -> HashSet<Vec<u8>> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Tells the kernel what to forget. Never to be used by a thread that answers requests.
pub struct Forgetter {
    pub(crate) notifier: Notifier,
    pub(crate) missed: Arc<Missed>,
}

impl Forgetter {
    /// Lets the kernel forget everything that it knows of the worktree, but for what is open: `names` are those that
    /// the root had and has.
    pub fn forget(&self, names: impl Iterator<Item = Vec<u8>>) {
        let mut all = self.missed.take();
        all.extend(names);
        for name in all {
            // What the kernel does not know is forgotten already.
            let _ = self.notifier.inval_entry(INodeNo(Ino::ROOT.0), OsStr::from_bytes(&name));
        }
        let _ = self.notifier.inval_inode(INodeNo(Ino::ROOT.0), 0, 0);
    }
}
