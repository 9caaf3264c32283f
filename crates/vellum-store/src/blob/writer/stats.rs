//! Statistics of a writer.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a writer has stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteStats {
    /// Blobs that were stored.
    pub blobs_new: u64,
    /// Blobs that were there already, in the store or earlier in this writer.
    pub blobs_duplicate: u64,
    /// Bytes of content that were given, new and duplicate.
    pub bytes_given: u64,
    /// Bytes of content that were new.
    pub bytes_new: u64,
    /// Bytes that the new content has after compression.
    pub bytes_compressed: u64,
    /// Bytes put into the store: packs and index.
    pub bytes_stored: u64,
    /// Packs put into the store.
    pub packs: u64,
    /// Blobs among the new ones that the store should have had, and whose copies there are missing or damaged.
    pub blobs_renewed: u64,
}

#[derive(Default)]
pub(super) struct WriterCounters {
    blobs_new: AtomicU64,
    blobs_duplicate: AtomicU64,
    bytes_given: AtomicU64,
    bytes_new: AtomicU64,
    bytes_compressed: AtomicU64,
    bytes_stored: AtomicU64,
    packs: AtomicU64,
    blobs_renewed: AtomicU64,
}

fn add_to_counter(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

impl WriterCounters {
    pub(super) fn count_duplicate(&self, len: usize) {
        add_to_counter(&self.blobs_duplicate, 1);
        add_to_counter(&self.bytes_given, len);
    }

    pub(super) fn count_new_blob(&self, len: usize, body_len: usize) {
        add_to_counter(&self.blobs_new, 1);
        add_to_counter(&self.bytes_given, len);
        add_to_counter(&self.bytes_new, len);
        add_to_counter(&self.bytes_compressed, body_len);
    }

    pub(super) fn count_renewed_blob(&self) {
        add_to_counter(&self.blobs_renewed, 1);
    }

    pub(super) fn count_pack(&self, len: usize) {
        add_to_counter(&self.packs, 1);
        add_to_counter(&self.bytes_stored, len);
    }

    pub(super) fn count_index(&self, len: u64) {
        self.bytes_stored.fetch_add(len, Ordering::Relaxed);
    }

    pub(super) fn read_stats(&self) -> WriteStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WriteStats {
            blobs_new: read(&self.blobs_new),
            blobs_duplicate: read(&self.blobs_duplicate),
            bytes_given: read(&self.bytes_given),
            bytes_new: read(&self.bytes_new),
            bytes_compressed: read(&self.bytes_compressed),
            bytes_stored: read(&self.bytes_stored),
            packs: read(&self.packs),
            blobs_renewed: read(&self.blobs_renewed),
        }
    }
}
