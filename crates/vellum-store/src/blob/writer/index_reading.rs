//! When a writer reads the index of its store: before it relies on a stored copy for the first time.
//!
//! Invariant: a writer relies on no copy before the index was read for it. Until then it stores what it is given, which is
//! always sound: a content that is stored twice takes room, and is lost by nobody.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use vellum_types::BlobId;

use crate::blob::{BlobError, BlobStore};

/// Most content that is stored without asking what others have stored since, bytes. To send it takes about as long as the
/// answer: 30 ms at 10 MB/s.
const UNASKED_MAX: u64 = 256 << 10;

/// Whether the index was read for a writer, and what it was given before.
pub(super) struct IndexReading {
    is_done: AtomicBool,
    /// Held while the index is read.
    reading: Mutex<()>,
    /// Content of which no copy was known, bytes.
    unknown: AtomicU64,
}

impl IndexReading {
    /// The caller has read the index.
    pub(super) fn done() -> Self {
        Self { is_done: true.into(), reading: Mutex::default(), unknown: 0.into() }
    }

    /// The index is read when it is needed.
    pub(super) fn deferred() -> Self {
        Self { is_done: false.into(), ..Self::done() }
    }

    /// Whether a content is to be stored without a look at the index, which is read if that is not so. An answer of true is
    /// final: what another thread comes to know of meanwhile may be older than the writer's session, and must not be relied on.
    pub(super) fn may_store_unasked(
        &self,
        store: &BlobStore,
        id: &BlobId,
        len: usize,
    ) -> Result<bool, BlobError> {
        if self.is_done.load(Ordering::Acquire) {
            return Ok(false);
        }
        // Of what is known to be there, only a listing that was made in the session tells whether it is about to be deleted.
        if !store.contains(id) {
            let len = len as u64;
            if self.unknown.fetch_add(len, Ordering::Relaxed).saturating_add(len) <= UNASKED_MAX {
                return Ok(true);
            }
        }
        // Threads that need it at the same time wait for one listing.
        let _reading = self.reading.lock();
        if !self.is_done.load(Ordering::Acquire) {
            store.refresh_index()?;
            self.is_done.store(true, Ordering::Release);
        }
        Ok(false)
    }
}
