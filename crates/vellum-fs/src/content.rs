//! File content: reading, writing, resizing, and the location of the bytes.
//!
//! A file's content is inline in its attributes, or in extents. Invariants: extents do not overlap, lie within the
//! size and are at most [`EXTENT_MAX`](vellum_types::limits::EXTENT_MAX) long; a range that none covers reads as zeros;
//! what an extent in the write log names was written there before. Content of one file is changed by one transaction at
//! a time, whole.

mod ahead;
mod chunk_uploader;
mod copy;
mod durable;
pub(crate) mod extents;
mod hydrations;
pub(crate) mod memory;
pub(crate) mod opened;
mod orphans;
mod read;
mod released;
pub mod residence;
mod resize;
mod seek;
mod source;
mod stored;
pub(crate) mod stored_chunks;
mod write;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::io::Errno;
use vellum_types::{FileKind, Ino, InodeAttr, UnixTime};
use vellum_volume::Volume;
use vellum_volume::tree::{ChunkCache, PrefetchLimits};

use crate::attributes::clock::advance_change_time;
use crate::error::Result;
use crate::fs::LiveBase;
use crate::lease::WorktreeLease;
use crate::log::WriteLog;
use crate::tree::{LiveMap, MapReader};
use hydrations::ActiveHydrations;
use opened::OpenInodes;
use released::ReleasedOrphans;
use stored::StoredByteCounts;
use stored_chunks::UnpublishedChunks;

pub use chunk_uploader::ChunkUploader;
pub(crate) use copy::EXTENTS_MAX;
pub(crate) use orphans::remove_inode;
pub use resize::AllocateMode;
pub(crate) use seek::seek_in_state;
pub(crate) use source::ContentSource;
pub use stored_chunks::{StoredChunk, StoredWriteTarget, names_stored_chunks};

/// Set-user-id.
const SET_UID: u32 = 0o4000;
/// Set-group-id, which counts only on files that the group may execute.
pub(crate) const SET_GID: u32 = 0o2000;
const GROUP_EXEC: u32 = 0o010;

/// The content of a live worktree's files, and who has them open.
pub struct LiveContent {
    volume: Arc<Volume>,
    lease: Arc<WorktreeLease>,
    map: Arc<LiveMap>,
    log: Arc<WriteLog>,
    source: ContentSource,
    opened: OpenInodes,
    released: ReleasedOrphans,
    /// Whether files without a name stay when their last use ends: whoever has them open will use them by another process.
    leaves_orphans: AtomicBool,
    stored_counts: StoredByteCounts,
    hydrations: ActiveHydrations,
    unpublished: UnpublishedChunks,
}

impl LiveContent {
    /// The content that the map names; up to `chunk_cache` bytes of decoded chunks are kept in memory.
    pub(crate) fn new(base: &LiveBase, chunk_cache: u64) -> Self {
        let LiveBase { volume, lease, map, log } = base.clone();
        let limits = PrefetchLimits::for_requests_at_once(volume.blobs.parallel_get_count());
        let source = ContentSource::new(log.clone(), volume.blobs.clone(), chunk_cache, limits);
        let opened = OpenInodes::default();
        let released = ReleasedOrphans::default();
        let stored_counts = StoredByteCounts::default();
        let hydrations = ActiveHydrations::default();
        let unpublished = UnpublishedChunks::new(volume.clone(), &map, lease.worktree_name());
        let leaves_orphans = AtomicBool::new(false);
        Self {
            volume,
            lease,
            map,
            log,
            source,
            opened,
            released,
            leaves_orphans,
            stored_counts,
            hydrations,
            unpublished,
        }
    }

    /// The hydrations under way.
    pub(crate) fn hydrations(&self) -> &ActiveHydrations {
        &self.hydrations
    }

    /// The chunks that are kept in memory.
    #[must_use]
    pub fn chunk_cache(&self) -> &ChunkCache {
        &self.source.chunks
    }

    /// Where the bytes of extents come from.
    pub(crate) fn source(&self) -> &ContentSource {
        &self.source
    }

    /// Which inodes are open or held.
    pub(crate) fn open_inodes(&self) -> &OpenInodes {
        &self.opened
    }

    /// Forgets what is known of files by their numbers, because the worktree has another state. To be called like
    /// [`LiveMap::forget_cached`].
    pub(crate) fn forget_counts(&self) {
        self.stored_counts.forget_all();
    }
}

/// The attributes of an inode that must be a regular file.
fn read_file_attr<R: MapReader + ?Sized>(view: &R, ino: Ino) -> Result<InodeAttr> {
    let attr = view.expect_inode_attr(ino)?;
    match attr.kind {
        FileKind::File => Ok(attr),
        FileKind::Dir => Err(Errno::ISDIR.into()),
        FileKind::Symlink
        | FileKind::Fifo
        | FileKind::Socket
        | FileKind::CharDevice
        | FileKind::BlockDevice => Err(Errno::INVAL.into()),
    }
}

/// Notes that content was changed.
fn update_change_times(attr: &mut InodeAttr, now: UnixTime) {
    attr.mtime = now;
    advance_change_time(attr, now);
}

/// Takes away what lets a program run as somebody else.
pub(crate) fn clear_set_ids(attr: &mut InodeAttr) {
    attr.mode &= !SET_UID;
    // Where the group may not execute, the bit stands for mandatory locking and is no privilege.
    if attr.mode & GROUP_EXEC != 0 {
        attr.mode &= !SET_GID;
    }
}

#[cfg(test)]
mod tests;
