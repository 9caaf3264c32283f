//! Free space and quota, for `statfs`.

use vellum_types::limits::NAME_MAX;
use vellum_volume::refs::WorktreeQuota;

use super::LiveAttributes;
use crate::error::{FsError, Result};

/// Space and limits, as `statvfs(3)` reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilesystemStatistics {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks that are free.
    pub blocks_free: u64,
    /// Blocks that are free for users without privileges.
    pub blocks_available: u64,
    /// Inodes, used and free.
    pub files: u64,
    /// Inodes that are free.
    pub files_free: u64,
    /// Longest name, bytes.
    pub name_max: u32,
}

/// Free inodes, as far as anybody asks: numbers do not run out.
const FILES_FREE: u64 = 1 << 40;

impl LiveAttributes {
    /// Returns the space on the disk of the state directory, where new data is written first, limited by the worktree's
    /// quota.
    pub fn statfs(&self) -> Result<FilesystemStatistics> {
        let disk = rustix::fs::statvfs(self.volume.state.path()).map_err(FsError::Posix)?;
        let given_out = self.map.read_head_state(|view| view.read_super_block())?.next_ino.0;
        let mut room = FilesystemStatistics {
            block_size: u32::try_from(disk.f_frsize).unwrap_or(u32::MAX),
            blocks: disk.f_blocks,
            blocks_free: disk.f_bfree,
            blocks_available: disk.f_bavail,
            files: given_out.saturating_add(FILES_FREE),
            files_free: FILES_FREE,
            name_max: NAME_MAX as u32,
        };
        let used = self.map.worktree_usage().used_amount();
        let quota = self.map.worktree_usage().quota();
        let [bytes, inodes] = [used.bytes, used.inodes].map(|used| u64::try_from(used).unwrap_or(0));
        if let Some(most) = quota.bytes {
            let size = u64::from(room.block_size).max(1);
            // The quota is shown as the size of the filesystem, so that `df` tells how much of it is left.
            room.blocks = most.div_ceil(size);
            room.blocks_free = room.blocks_free.min(most.saturating_sub(bytes) / size);
            room.blocks_available = room.blocks_available.min(room.blocks_free);
        }
        if let Some(most) = quota.inodes {
            (room.files, room.files_free) = (most, most.saturating_sub(inodes));
        }
        Ok(room)
    }

    /// Sets the quota of the worktree. Existing content stays, even if it exceeds the quota.
    pub fn set_worktree_quota(&self, quota: WorktreeQuota) -> Result<()> {
        // The ref first: if it cannot be written, this process keeps the quota that everybody else reads
        // there.
        self.lease.update_ref_for(&["worktree", "quota"], |head| head.quota = quota)?;
        self.map.worktree_usage().set_quota(quota);
        Ok(())
    }
}
