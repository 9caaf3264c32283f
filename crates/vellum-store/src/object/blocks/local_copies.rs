//! What of a store is on this machine, and bringing more of it here.
//!
//! Invariant: what is reported as fetched is in the cache on the disk. A fetch that ends early is continued by the next
//! one, which looks again at what is missing.

use std::collections::HashSet;

use parking_lot::Mutex;
use vellum_host::ProgressMeter;
use vellum_types::PackId;

use super::{BlockStore, PIECE};
use crate::error::StoreError;
use crate::object::pieces::PieceRun;
use crate::object::{PackCache, PieceSet, RequestPurpose};
use crate::pack::pack_key;

/// Most pieces in one request: 8 MiB, so that few requests do, and a stop is not far away.
const RUN_MAX: u32 = 32;

impl BlockStore {
    /// The pieces on the local disk, if there is a place for them.
    #[must_use]
    pub fn pack_cache(&self) -> Option<&PackCache> {
        self.cache.as_ref()
    }

    /// Tells which pieces are going to be read: then they are fetched in few large requests, as they are needed. What was
    /// announced before counts no more.
    pub fn announce_reads(&self, pieces: &PieceSet) {
        self.windows.lock().announce_pieces(pieces);
    }

    /// Tells that a file was read to its end. After several of them, those that were stored beside them are expected to be
    /// read as well, and longer spans are fetched as long as a quarter of these is used.
    pub fn note_whole_file(&self) {
        self.windows.lock().note_whole_file();
    }

    /// Tells that a file was read here and there: then nothing beside it is expected to be read.
    pub fn note_scattered_read(&self) {
        self.windows.lock().note_scattered_read();
    }

    /// Tells which packs hold nodes, instead of those that were told before: the cache keeps them apart from content, and
    /// more of them is fetched at once.
    pub(crate) fn set_node_packs(&self, packs: HashSet<PackId>) {
        self.windows.lock().set_node_packs(&packs);
        if let Some(cache) = &self.cache {
            cache.set_node_packs(packs);
        }
    }

    /// A range of a pack, if all of it is on the local disk.
    #[must_use]
    pub fn read_local_range(&self, pack: &PackId, offset: u32, len: u32) -> Option<Vec<u8>> {
        let end = u64::from(offset) + u64::from(len);
        let cache = self.cache.as_ref().filter(|_| len > 0)?;
        cache.read_range(&pack_key(pack), offset.into()..end)
    }

    /// Fetches pieces into the cache, in large requests, several at once. The meter counts the bytes that are wanted of
    /// them, and can stop it: false if it did.
    pub fn fetch_into_cache(&self, pieces: &PieceSet, meter: &ProgressMeter) -> Result<bool, StoreError> {
        let Some(cache) = &self.cache else { return Ok(true) };
        let runs = pieces.join_neighbours(RUN_MAX);
        let queue = Mutex::new(runs.iter());
        let failure = Mutex::new(None);
        let work = || {
            // After the first failure the other threads finish the request that they are in, and begin no further
            // one.
            while !meter.is_stopped() && failure.lock().is_none() {
                let Some(run) = queue.lock().next() else { return };
                match self.fetch_run(cache, run) {
                    Ok(()) => meter.add_progress(u64::from(run.count), run.wanted),
                    Err(error) => *failure.lock() = Some(error),
                }
            }
        };
        let threads = self.inner.parallel_get_count().min(runs.len()).max(1);
        let purpose = RequestPurpose::current();
        std::thread::scope(|scope| {
            // This thread works too, so one less is started.
            for _ in 1..threads {
                scope.spawn(|| {
                    purpose.set_for_thread();
                    work();
                });
            }
            work();
        });
        failure.into_inner().map_or(Ok(!meter.is_stopped()), Err)
    }

    fn fetch_run(&self, cache: &PackCache, run: &PieceRun) -> Result<(), StoreError> {
        let key = pack_key(&run.pack);
        let first = u64::from(run.first);
        let bytes = self.inner.get_range_up_to(&key, first * PIECE, u64::from(run.count) * PIECE)?;
        let place = || cache.folder().display().to_string();
        match cache.store_wanted_pieces(&run.pack, first, bytes) {
            Ok(true) => Ok(()),
            // An error, because the caller takes for present what this thread has fetched.
            Ok(false) => Err(StoreError::CacheFull { folder: place() }),
            Err(source) => {
                Err(StoreError::Io { place: place(), key: key.to_string(), action: "keep", source })
            }
        }
    }
}
