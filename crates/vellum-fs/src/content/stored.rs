//! How many bytes of a file are stored, for `st_blocks`.
//!
//! The extents of a file are counted. The kernel asks for attributes after each write to a file that it has cached, so
//! counts of files with many extents are kept for a while. Invariant: a count is older than [`VALID`] only by the time
//! that it took, and of the size that the file has now, but for a little that was appended.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vellum_types::{BareInodeAttr, FileKind, Ino, InodeAttr};

use super::LiveContent;
use super::extents::{CountedBytes, count_stored_bytes};
use crate::error::Result;
use crate::number_map::NumberMap;

/// A kept count is believed for so long. Other filesystems, too, learn what a file takes only when they write it back.
const VALID: Duration = Duration::from_secs(1);
/// Files with fewer extents are counted each time.
const EXTENTS_KEPT: usize = 256;
/// Bytes by which a file may have grown since it was counted: they are taken to be stored.
const GROWTH_MAX: u64 = 1 << 20;
/// Most files of which a count is kept.
const FILES_MAX: usize = 1024;

/// A count that is kept.
#[derive(Debug)]
struct KeptCount {
    at: Instant,
    /// The size that the file had.
    size: u64,
    stored: u64,
}

/// Counts of files with many extents.
#[derive(Debug, Default)]
pub(super) struct StoredByteCounts {
    counts: Mutex<NumberMap<Ino, KeptCount>>,
}

impl StoredByteCounts {
    fn find_count(&self, ino: Ino, size: u64) -> Option<u64> {
        let counts = self.counts.lock();
        let kept = counts.get(&ino).filter(|kept| kept.at.elapsed() < VALID)?;
        // A file that shrank lost extents; one that grew by much may have got a hole.
        let growth = size.checked_sub(kept.size).filter(|growth| *growth <= GROWTH_MAX)?;
        Some(kept.stored + growth)
    }

    fn keep_count(&self, ino: Ino, count: KeptCount) {
        let mut counts = self.counts.lock();
        // Outdated counts make room. If there are none this count is not kept, and the only cost is to count
        // again.
        if counts.len() >= FILES_MAX {
            counts.retain(|_, kept| kept.at.elapsed() < VALID);
        }
        if counts.len() < FILES_MAX {
            counts.insert(ino, count);
        }
    }

    /// A file's room was changed without a write.
    pub fn forget_file(&self, ino: Ino) {
        self.counts.lock().remove(&ino);
    }

    /// The worktree has another state.
    pub fn forget_all(&self) {
        self.counts.lock().clear();
    }
}

impl LiveContent {
    /// A file's room was changed without a write: its size was set, or a range was allocated.
    pub(crate) fn forget_count(&self, ino: Ino) {
        self.stored_counts.forget_file(ino);
    }

    /// How many bytes an inode takes: of a file, those that are no holes.
    pub(crate) fn count_live_bytes(&self, ino: Ino, attr: &InodeAttr) -> Result<u64> {
        if attr.inline.is_some() { Ok(attr.size) } else { self.count_extent_bytes(ino, attr) }
    }

    /// The same by attributes without content.
    pub fn stored_bytes_of_bare(&self, ino: Ino, bare: &BareInodeAttr) -> Result<u64> {
        if bare.has_inline { Ok(bare.attr.size) } else { self.count_extent_bytes(ino, &bare.attr) }
    }

    fn count_extent_bytes(&self, ino: Ino, attr: &InodeAttr) -> Result<u64> {
        if attr.kind != FileKind::File || attr.size == 0 {
            return Ok(attr.size);
        }
        if let Some(stored) = self.stored_counts.find_count(ino, attr.size) {
            return Ok(stored);
        }
        // Before the count: its age is that of the oldest extent in it.
        let at = Instant::now();
        let CountedBytes { stored, extents } =
            self.map.read_head_state(|view| count_stored_bytes(view, ino, attr))?;
        if extents >= EXTENTS_KEPT {
            self.stored_counts.keep_count(ino, KeptCount { at, size: attr.size, stored });
        }
        Ok(stored)
    }
}
