//! What the kernel must drop from its caches when a restore replaces the state of the worktree.
//!
//! A recent kernel drops all names of a mount at once. For an older one, names of the root are invalidated one by one;
//! each invalidation covers everything below the name. Names that exist can be listed. Names that do not exist, which
//! the kernel may have cached too, are recorded here.
//!
//! A process that has a directory open, or as its working directory, uses it without its name. So the kernel must also
//! drop each directory listing that it may have cached.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use vellum_fs::Epoch;
use vellum_types::Ino;

use super::cached_nodes::KernelCachedNodes;
use crate::node::NodePlace;
use crate::transport::KernelNotifier;
use crate::wire::Invalidation;

/// Names that are recorded at most, some MiB. Further names are looked up again each time that a program asks for them.
const NEGATIVE_NAMES_MAX: usize = 100_000;

/// What the kernel may have cached of the live worktree.
#[derive(Debug, Default)]
pub(crate) struct KernelCacheTracker {
    /// Names that do not exist in the root.
    negative_names: Mutex<HashSet<Vec<u8>>>,
    /// Whether the kernel can drop all names at once, so that none has to be recorded.
    drops_all_names: AtomicBool,
    /// Directories of which the kernel may have cached the listing.
    pub listings: KernelCachedNodes,
}

impl KernelCacheTracker {
    /// Records a name that does not exist in the root. Returns false if there are too many already, so that the kernel
    /// must not cache this one.
    #[must_use]
    pub fn record_negative_name(&self, name: &[u8]) -> bool {
        if self.drops_all_names.load(Ordering::Relaxed) {
            return true;
        }
        let mut names = self.negative_names.lock();
        names.contains(name) || names.len() < NEGATIVE_NAMES_MAX && names.insert(name.to_vec())
    }
}

/// Tells the kernel what to drop from its caches. A thread that answers requests must not use it: the kernel may have
/// to wait for an answer of the same thread before it can do so.
pub struct CacheInvalidator {
    notifier: KernelNotifier,
    tracker: Arc<KernelCacheTracker>,
    drops_all_names: bool,
}

impl CacheInvalidator {
    /// Finds out by trying whether the kernel can drop all names at once.
    pub(crate) fn new(notifier: KernelNotifier, tracker: Arc<KernelCacheTracker>) -> Self {
        // A kernel that does not know the notification answers `EINVAL` (before Linux 6.16). It costs nothing to try:
        // the mount is new, and nothing is cached.
        let drops_all_names = notifier.send_notice(Invalidation::Names).is_ok();
        tracker.drops_all_names.store(drops_all_names, Ordering::Relaxed);
        Self { notifier, tracker, drops_all_names }
    }

    /// Whether [`CacheInvalidator::invalidate_worktree`] needs the names of the root.
    #[must_use]
    pub fn needs_root_names(&self) -> bool {
        !self.drops_all_names
    }

    /// Drops a name in a directory, and the listing of the directory.
    pub fn invalidate_name(&self, epoch: Epoch, dir: Ino, name: &[u8]) {
        let Some(node) = NodePlace::Main(epoch, dir).to_node() else { return };
        self.send_notice(Invalidation::Name { dir: node, name });
        // The kernel may also have cached the listing, which still has the name.
        self.send_notice(Invalidation::Inode(node));
    }

    /// Drops everything that the kernel has cached of the worktree. `names` are those that the root had before and has
    /// now; they are used only if [`CacheInvalidator::needs_root_names`].
    pub fn invalidate_worktree(&self, names: impl Iterator<Item = Vec<u8>>) {
        // Taken first: names that are recorded from now on belong to the new state.
        let negative_names = std::mem::take(&mut *self.tracker.negative_names.lock());
        if self.drops_all_names {
            self.send_notice(Invalidation::Names);
        } else {
            for name in negative_names.into_iter().chain(names) {
                self.send_notice(Invalidation::Name { dir: Ino::ROOT.0, name: &name });
            }
        }
        // The root keeps its number in all epochs, so its attributes and its listing go even if no listing was
        // recorded.
        for dir in self.tracker.listings.take_all_nodes().chain([Ino::ROOT.0]) {
            self.send_notice(Invalidation::Inode(dir));
        }
    }

    /// Whether [`CacheInvalidator::invalidate_all_names`] drops anything (since Linux 6.16).
    #[must_use]
    pub fn can_invalidate_all_names(&self) -> bool {
        self.drops_all_names
    }

    /// Drops all names of the mount, also those whose lookups are under way. Waits for nothing.
    pub fn invalidate_all_names(&self) {
        self.send_notice(Invalidation::Names);
    }

    /// Drops the attributes of a node, also those that it was answered and has not noted yet.
    pub fn invalidate_attributes(&self, node: u64) {
        self.send_notice(Invalidation::Attributes(node));
    }

    fn send_notice(&self, notice: Invalidation<'_>) {
        // The kernel returns an error if it has cached nothing of this: then there is nothing to drop.
        let _ = self.notifier.send_notice(notice);
    }
}
