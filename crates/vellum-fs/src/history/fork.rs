//! Forks: a new live state that shares the content of this worktree, published or not.
//!
//! Invariant: files of the write log to which a fork refers are in its own directory before it can be opened. They
//! are shared by hard links and only appended to, so later changes of one worktree are invisible to the other.

use std::path::Path;

use crate::error::Result;
use crate::fs::LiveFilesystem;
use crate::tree::head::LiveHead;

/// The directories of a live state.
#[derive(Debug, Clone, Copy)]
pub struct LiveStateFolders<'f> {
    /// Metadata.
    pub meta: &'f Path,
    /// The write log.
    pub log: &'f Path,
}

impl LiveFilesystem {
    /// Makes the live state of a fork in new folders. `enter` is called when it is there, with the head that it stands
    /// on, and until it returns nothing goes that the fork needs: to tell the store that it exists.
    pub fn fork_into<T>(
        &self,
        to: LiveStateFolders<'_>,
        enter: impl FnOnce(&LiveHead) -> Result<T>,
    ) -> Result<T> {
        // The epoch first: a restore, and a request that looks a snapshot up, may publish while they are in theirs.
        let _nothing_is_restored = self.epochs().enter_epoch();
        // Segments go when something was published, and trees that nobody names when the ref was changed.
        let _nothing_is_published = self.publisher().pause_publishing();
        // The fork shares whole segments. What this worktree appends from now on goes where the fork does not look.
        self.write_log().rotate_segment();
        self.live_map().live_store().fork_into(to.meta)?;
        // All that was named by then was written before.
        self.write_log().share_segments(to.log)?;
        let head = self.live_map().lock_head().clone();
        enter(&head)
    }
}
