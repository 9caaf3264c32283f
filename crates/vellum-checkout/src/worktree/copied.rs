//! A directory that was copied from a worktree's: it becomes a worktree of its own.

use vellum_types::SnapshotId;
use vellum_volume::history::AncestorWalk;

use super::{CheckoutWorktree, STATCACHE_FILE};
use crate::error::Result;
use crate::statcache::StatCache;

impl CheckoutWorktree {
    /// Makes a directory that is a copy of another worktree's one of its own, called `name`. It stands on the snapshot that
    /// was the copied directory's last when it was copied, as far as that can be told. Returns that snapshot.
    pub fn adopt_copy(&self, name: &str, waiting: impl FnOnce()) -> Result<Option<SnapshotId>> {
        let _lock = self.volume.state.lock_worktree(waiting)?;
        let base = self.find_copied_snapshot()?;
        self.volume.adopt_dir(name, base)?;
        Ok(base)
    }

    /// The newest snapshot of this worktree that has the tree of which the stat cache was made; else its last.
    fn find_copied_snapshot(&self) -> Result<Option<SnapshotId>> {
        let Some(head) = self.volume.read_head()? else { return Ok(None) };
        let state = self.open_state_dir()?;
        let Ok(cache) = StatCache::load(&state, STATCACHE_FILE) else { return Ok(Some(head)) };
        // The original worktree may have taken snapshots since it was copied. The stat cache was copied with
        // the files and names the tree that they had then.
        for entry in AncestorWalk::from_heads(&self.volume.catalog, [head])? {
            let entry = entry?;
            if entry.record.root.0 == cache.base_root() {
                return Ok(Some(entry.id));
            }
        }
        Ok(Some(head))
    }
}
