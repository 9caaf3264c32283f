//! A tree that is replaced while it is mounted: what another machine has put into the store of its worktree.
//!
//! Invariant: each request is answered from one tree. Inodes have the same numbers in all trees of a worktree, so what is
//! open goes on in the next tree; what that one lacks fails with `ESTALE`, and the kernel looks its name up again.
//! Deliberately absent: keeping trees for files that are open, and telling the kernel what changed: it caches for at most
//! [`crate::posture::FOLLOWED_TIMEOUT`].

use std::sync::Arc;

use parking_lot::RwLock;
use rustix::io::Errno;
use vellum_fs::Result;
use vellum_types::Ino;
use vellum_volume::FsTree;

/// The tree that a mount shows, and that another thread replaces.
pub struct FollowedTree(RwLock<Arc<FsTree>>);

impl FollowedTree {
    /// Begins with `tree`.
    #[must_use]
    pub fn new(tree: FsTree) -> Self {
        Self(RwLock::new(Arc::new(tree)))
    }

    /// Shows `tree` from the next request on.
    pub fn replace_tree(&self, tree: FsTree) {
        *self.0.write() = Arc::new(tree);
    }

    /// Returns what is shown now.
    #[must_use]
    pub fn current_tree(&self) -> Arc<FsTree> {
        self.0.read().clone()
    }

    /// Returns the tree of now, if it has the inode. Fails with `ESTALE` otherwise: it was removed, or is of a state before
    /// a restore.
    pub(crate) fn tree_with_inode(&self, ino: Ino) -> Result<Arc<FsTree>> {
        let tree = self.current_tree();
        match tree.inode_attr(ino)? {
            Some(_) => Ok(tree),
            None => Err(Errno::STALE.into()),
        }
    }
}
