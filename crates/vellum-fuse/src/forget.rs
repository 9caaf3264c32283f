//! The names and attributes that the kernel must drop when the worktree gets another state.
//!
//! A kernel that can does that at once. To an older one, to invalidate an entry of the root is to drop all that is
//! cached below it, however much that is; so only names in the root have to be known. Those that exist can be listed;
//! those that were looked up in vain are remembered here. Names lead to a directory no more, but who stands in it or has
//! it open goes on asking it: so the kernel is also told to forget how each directory lists that it may remember.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use vellum_fs::Epoch;
use vellum_types::Ino;

use crate::connection::KernelNotifier;
use crate::dirs::KernelCachedNodes;
use crate::node::NodePlace;
use crate::wire::Invalidation;

/// Names remembered at most. A program that looks for more in the root than this is met with what it was told.
const MISSED_MAX: usize = 100_000;

/// Names that were looked up in the root in vain.
#[derive(Debug, Default)]
pub struct NegativeLookups {
    names: Mutex<HashSet<Vec<u8>>>,
    /// The kernel forgets all names at once: none has to be remembered.
    needless: AtomicBool,
}

impl NegativeLookups {
    /// Notes a name; false if there are too many already, so that the kernel must not remember this one.
    #[must_use]
    pub fn record_name(&self, name: &[u8]) -> bool {
        if self.needless.load(Ordering::Relaxed) {
            return true;
        }
        let mut names = self.names.lock();
        names.contains(name) || names.len() < MISSED_MAX && names.insert(name.to_vec())
    }

    fn take_names(&self) -> HashSet<Vec<u8>> {
        std::mem::take(&mut *self.names.lock())
    }
}

/// What the kernel may know.
pub(crate) struct KernelKnowledge {
    pub negative_lookups: Arc<NegativeLookups>,
    pub cached_listings: Arc<KernelCachedNodes>,
}

/// Tells the kernel what to forget. Never to be used by a thread that answers requests.
pub struct CacheInvalidator {
    notifier: KernelNotifier,
    known: KernelKnowledge,
    /// Whether the kernel can forget all names at once.
    at_once: bool,
}

impl CacheInvalidator {
    pub(crate) fn new(notifier: KernelNotifier, known: KernelKnowledge) -> Self {
        let at_once = notifier.send_notice(Invalidation::Names).is_ok();
        known.negative_lookups.needless.store(at_once, Ordering::Relaxed);
        Self { notifier, known, at_once }
    }

    /// Whether the names in the root must be told: an older kernel forgets them one by one.
    #[must_use]
    pub fn needs_root_names(&self) -> bool {
        !self.at_once
    }

    /// Lets the kernel forget what it knows of a name in a directory, and how that lists.
    pub fn invalidate_name(&self, epoch: Epoch, dir: Ino, name: &[u8]) {
        let Some(node) = NodePlace::Main(epoch, dir).to_node() else { return };
        let _ = self.notifier.send_notice(Invalidation::Name { dir: node, name });
        let _ = self.notifier.send_notice(Invalidation::Inode(node));
    }

    /// Lets the kernel forget everything that it knows of the worktree, but for what is open: `names` are those that
    /// the root had and has, if they are wanted.
    pub fn invalidate_worktree(&self, names: impl Iterator<Item = Vec<u8>>) {
        let mut all = self.known.negative_lookups.take_names();
        if self.at_once {
            // It did so when it was mounted.
            let _ = self.notifier.send_notice(Invalidation::Names);
        } else {
            all.extend(names);
            for name in all {
                // What the kernel does not know is forgotten already.
                let _ = self.notifier.send_notice(Invalidation::Name { dir: Ino::ROOT.0, name: &name });
            }
        }
        for dir in self.known.cached_listings.take_all_nodes().chain([Ino::ROOT.0]) {
            let _ = self.notifier.send_notice(Invalidation::Inode(dir));
        }
    }
}
