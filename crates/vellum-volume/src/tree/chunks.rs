//! A bounded cache of decoded chunks, and threads for readahead.
//!
//! Invariant: a chunk is fetched by one thread at a time; a second one waits for the first. A thread never waits for
//! a chunk while others wait for a chunk that it has to fetch itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::{Cache, GuardResult, PlaceholderGuard};
use vellum_store::{BlobError, BlobStore, FetchPolicy, RequestPurpose};
use vellum_types::{BlobId, BlobKind};

use super::read_streams::{PrefetchLimits, ReadPattern};

/// A chunk is about this long: what the cache sizes its tables by.
const CHUNK_WEIGHT: u64 = 64 << 10;
/// From so many chunks on a request is shared with the threads that fetch ahead: waking one takes longer than to decode
/// one.
const SHARED_MIN: usize = 6;
/// Of what is shared, in how many parts.
const SHARES: usize = 4;
/// What may wait to be fetched ahead; beyond that the readers themselves will do.
const QUEUE: usize = 64;

type DecodedChunk = Arc<Vec<u8>>;
type ChunkGuard<'c> = PlaceholderGuard<
    'c,
    BlobId,
    DecodedChunk,
    ChunkWeighter,
    quick_cache::DefaultHashBuilder,
    ChunkLifecycle,
>;
type ChunkLifecycle = quick_cache::sync::DefaultLifecycle<BlobId, DecodedChunk>;

/// The cache.
pub struct ChunkCache {
    shared: Arc<ChunkCacheState>,
    limits: PrefetchLimits,
    /// Started when something is to be fetched ahead: most commands read too little for that.
    workers: OnceLock<PrefetchWorkers>,
}

/// What a cache of chunks did and holds. Evictions are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkStatistics {
    /// Chunks that were asked for.
    pub lookups: u64,
    /// Those of them that were not there.
    pub misses: u64,
    /// Chunks that it holds.
    pub entries: u64,
    /// Bytes that these take.
    pub bytes: u64,
    /// Bytes that they may take.
    pub capacity: u64,
}

/// What is to be fetched ahead.
struct PrefetchJob {
    ids: Vec<BlobId>,
    /// That of who will read it.
    policy: FetchPolicy,
}

/// The threads that fetch ahead.
struct PrefetchWorkers {
    queue: Option<SyncSender<PrefetchJob>>,
    threads: Vec<JoinHandle<()>>,
}

struct ChunkCacheState {
    blobs: Arc<BlobStore>,
    cache: Cache<BlobId, DecodedChunk, ChunkWeighter>,
    lookups: AtomicU64,
    missed: AtomicU64,
}

#[derive(Clone)]
struct ChunkWeighter;

impl Weighter<BlobId, DecodedChunk> for ChunkWeighter {
    fn weight(&self, _id: &BlobId, chunk: &DecodedChunk) -> u64 {
        chunk.len() as u64
    }
}

impl ChunkCache {
    /// Caches up to `capacity` bytes of decoded chunks, and fetches ahead within limits.
    #[must_use]
    pub fn new(blobs: Arc<BlobStore>, capacity: u64, limits: PrefetchLimits) -> Self {
        // At least a few entries, so that a cache of little memory still works.
        let items = usize::try_from(capacity / CHUNK_WEIGHT).unwrap_or(usize::MAX).max(16);
        let shared = Arc::new(ChunkCacheState {
            blobs,
            cache: Cache::with_weighter(items, capacity, ChunkWeighter),
            lookups: AtomicU64::new(0),
            missed: AtomicU64::new(0),
        });
        Self { shared, limits, workers: OnceLock::new() }
    }

    /// Returns some chunks, in the order asked for. Fails if one of them is missing or damaged. If many of them are missing, the threads that fetch ahead begin with the
    /// second half while this one is at the first.
    pub fn get_chunks(&self, ids: &[BlobId]) -> Result<Vec<DecodedChunk>, BlobError> {
        let middle = ids.len() / 2;
        let (first, second) = ids.split_at(middle);
        // If few are missing, this thread has done all of them before another one is awake.
        if ids.len() < SHARED_MIN || self.enqueue_missing(second, middle.div_ceil(SHARES)) < SHARED_MIN / 2 {
            return self.shared.get_chunks(ids);
        }
        let mut chunks = self.shared.get_chunks(first)?;
        // One at a time: what another thread is at is waited for, and what none has begun is done here.
        for id in second {
            chunks.extend(self.shared.get_chunks(&[*id])?);
        }
        Ok(chunks)
    }

    /// Returns whether a chunk is in the cache.
    #[must_use]
    pub fn contains_chunk(&self, id: &BlobId) -> bool {
        self.shared.cache.contains_key(id)
    }

    /// Keeps up to `capacity` bytes from now on.
    pub fn set_capacity(&self, capacity: u64) {
        self.shared.cache.set_capacity(capacity);
    }

    /// Forgets everything.
    pub fn clear_all(&self) {
        self.shared.cache.clear();
    }

    /// Returns what it did and holds.
    #[must_use]
    pub fn statistics(&self) -> ChunkStatistics {
        let ChunkCacheState { cache, lookups, missed, .. } = &*self.shared;
        ChunkStatistics {
            lookups: lookups.load(Ordering::Relaxed),
            misses: missed.load(Ordering::Relaxed),
            entries: cache.len() as u64,
            bytes: cache.weight(),
            capacity: cache.capacity(),
        }
    }

    /// Fetches chunks in the background that will be asked for soon, in this order. Failures are not reported: whoever asks
    /// for a chunk learns of them.
    pub fn prefetch_chunks(&self, ids: impl Iterator<Item = BlobId>) {
        let ids: Vec<BlobId> = ids.collect();
        self.enqueue_missing(&ids, self.limits.batch);
    }

    /// Tells a store that is far away how a file is read, before the content is read.
    pub fn note_file_read(&self, pattern: ReadPattern) {
        let Some(copies) = self.shared.blobs.local_copies() else { return };
        match pattern {
            ReadPattern::InOrder => {}
            ReadPattern::ToEnd => copies.note_whole_file(),
            ReadPattern::Scattered => copies.note_scattered_read(),
        }
    }

    /// Asks the threads for those that are missing, so many at a time. Says how many that are.
    fn enqueue_missing(&self, ids: &[BlobId], batch: usize) -> usize {
        let policy = FetchPolicy::current();
        // The reader decodes what is here by itself.
        if policy == FetchPolicy::Refuse {
            return 0;
        }
        let is_missing = |id: &&BlobId| !self.shared.cache.contains_key(*id);
        let missing: Vec<BlobId> = ids.iter().filter(is_missing).copied().collect();
        if missing.is_empty() {
            return 0;
        }
        let workers = self.workers.get_or_init(|| PrefetchWorkers::start(&self.shared, self.limits.threads));
        let Some(queue) = &workers.queue else { return 0 };
        // Never waits: who reads must not stand behind what might be wanted later.
        // In equal parts: a short one at the end would be a request of its own, too.
        let parts = missing.len().div_ceil(batch.max(1));
        for batch in missing.chunks(missing.len().div_ceil(parts)) {
            if queue.try_send(PrefetchJob { ids: batch.to_vec(), policy }).is_err() {
                break;
            }
        }
        missing.len()
    }
}

impl PrefetchWorkers {
    fn start(shared: &Arc<ChunkCacheState>, count: usize) -> Self {
        let (queue, jobs) = sync_channel(QUEUE);
        let jobs = Arc::new(Mutex::new(jobs));
        let start = |number| {
            let shared = shared.clone();
            let jobs = jobs.clone();
            std::thread::Builder::new()
                .name(format!("vellum-ahead-{number}"))
                .spawn(move || {
                    RequestPurpose::ReadAhead.set_for_thread();
                    shared.run_prefetch_worker(&jobs);
                })
                .ok()
        };
        let threads: Vec<_> = (0..count).filter_map(start).collect();
        // Without threads nothing is fetched ahead.
        Self { queue: (!threads.is_empty()).then_some(queue), threads }
    }
}

impl Drop for PrefetchWorkers {
    fn drop(&mut self) {
        // Closing the channel is what ends the threads; those at work finish their batch first.
        self.queue = None;
        for thread in self.threads.drain(..) {
            // A panic was reported when it happened, and nothing waits for what that thread was to fetch.
            let _ = thread.join();
        }
    }
}

impl ChunkCacheState {
    fn run_prefetch_worker(&self, jobs: &Mutex<Receiver<PrefetchJob>>) {
        loop {
            // The other threads wait for the lock meanwhile. It is free again before the chunks are fetched.
            let job = jobs.lock().recv();
            let Ok(PrefetchJob { ids, policy }) = job else { return };
            let _policy = policy.enter();
            // Whoever really needs the chunk learns what is the matter with it.
            let _ = self.fetch_missing_chunks(&ids);
        }
    }

    fn get_chunks(&self, ids: &[BlobId]) -> Result<Vec<DecodedChunk>, BlobError> {
        self.lookups.fetch_add(ids.len() as u64, Ordering::Relaxed);
        let absent = ids.iter().filter(|id| !self.cache.contains_key(*id)).count();
        self.missed.fetch_add(absent as u64, Ordering::Relaxed);
        // A single chunk is fetched below, where a second thread waits for the first instead of fetching it, too.
        let fetched = if let [_] = ids { vec![None] } else { self.fetch_missing_chunks(ids)? };
        let one = |(id, fetched): (&BlobId, Option<DecodedChunk>)| match fetched {
            Some(chunk) => Ok(chunk),
            None => {
                self.cache.get_or_insert_with(id, || self.blobs.read_blob(BlobKind::Chunk, id).map(Arc::new))
            }
        };
        ids.iter().zip(fetched).map(one).collect()
    }

    /// Fetches those that nobody has fetched or is fetching, all together; gives those and the ones that are there.
    fn fetch_missing_chunks(&self, ids: &[BlobId]) -> Result<Vec<Option<DecodedChunk>>, BlobError> {
        let mut found: Vec<Option<DecodedChunk>> = Vec::with_capacity(ids.len());
        let mut missing: Vec<(usize, ChunkGuard<'_>)> = Vec::new();
        for (position, id) in ids.iter().enumerate() {
            // No waiting here: this thread may hold the guards of chunks that the other one waits for. What another
            // thread is at is left open, and waited for when these are done.
            found.push(match self.cache.get_value_or_guard(id, Some(Duration::ZERO)) {
                GuardResult::Value(chunk) => Some(chunk),
                GuardResult::Guard(guard) => {
                    missing.push((position, guard));
                    None
                }
                GuardResult::Timeout => None,
            });
        }
        if missing.is_empty() {
            return Ok(found);
        }
        let wanted: Vec<_> = missing
            .iter()
            .filter_map(|(position, _)| Some((BlobKind::Chunk, *ids.get(*position)?)))
            .collect();
        let fetched = self.blobs.fetch_blobs(&wanted)?;
        for (number, (position, guard)) in missing.into_iter().enumerate() {
            let chunk = Arc::new(fetched.open_blob(number)?);
            // It may be too long for the cache, or be thrown out at once: then it is held here alone.
            let _ = guard.insert(chunk.clone());
            if let Some(found) = found.get_mut(position) {
                *found = Some(chunk);
            }
        }
        Ok(found)
    }
}
