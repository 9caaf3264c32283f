//! Entries spread over shards, each with a lock and an epoch of its own.
//!
//! Invariant: an entry is put only while the epoch is that of the miss which asked for it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::clock::ClockCache;

/// Shards of a cache: more than threads that work at once.
const SHARDS: usize = 32;
/// Bits of a hash that choose the shard: not those that choose the place in its table.
const SHARD_SHIFT: u32 = 48;

/// The right to put what was missing, until the shard is changed.
#[derive(Debug, Clone, Copy)]
pub struct InsertTicket(u64);

/// A cache of one kind of entry.
pub struct ShardedCache<K, V> {
    shards: [CacheShard<K, V>; SHARDS],
}

/// On lines of its own, so that shards do not slow each other down. It is held for some nanoseconds, for which a
/// mutex is cheaper than a lock that tells readers from writers. The library's takes 12 ns with all that a hit does, where one
/// of `parking_lot`, as elsewhere, takes 19.
#[repr(align(128))]
struct CacheShard<K, V>(Mutex<CacheShardState<K, V>>);

struct CacheShardState<K, V> {
    entries: ClockCache<K, V>,
    epoch: u64,
    // Counted under the lock that is held in any case.
    hits: u64,
    misses: u64,
    evictions: u64,
}

/// What a cache did and holds.
#[derive(Default)]
pub struct CacheCounts {
    pub hits: u64,
    pub misses: u64,
    pub evictions: u64,
    pub entries: u64,
    pub bytes: u64,
    pub capacity: u64,
}

impl<K: Eq, V: Clone> ShardedCache<K, V> {
    /// Holds entries up to a weight.
    pub fn new(capacity: usize) -> Self {
        Self { shards: std::array::from_fn(|_| CacheShard::new(capacity / SHARDS)) }
    }

    /// The value under a key, or the ticket to put it.
    pub fn get(&self, hash: u64, is: impl Fn(&K) -> bool) -> Result<V, InsertTicket> {
        let mut held = self.find_shard(hash).lock();
        match held.entries.get(hash, is) {
            Some(value) => {
                held.hits += 1;
                Ok(value)
            }
            None => {
                held.misses += 1;
                Err(InsertTicket(held.epoch))
            }
        }
    }

    /// Keeps what was read after a miss, unless the shard was changed since.
    pub fn insert(&self, hash: u64, key: K, value: V, weight: usize, ticket: InsertTicket) {
        let mut held = self.find_shard(hash).lock();
        if held.epoch == ticket.0 {
            held.evictions += held.entries.insert(hash, key, value, weight);
        }
    }

    /// Forgets an entry, and makes the shard's tickets worthless.
    pub fn invalidate_entry(&self, hash: u64, is: impl Fn(&K) -> bool) {
        let mut held = self.find_shard(hash).lock();
        // Whoever missed before may have read the old value. Its ticket has the epoch of that time.
        held.epoch += 1;
        held.entries.remove(hash, is);
    }

    /// Forgets everything.
    pub fn clear_all(&self) {
        for shard in &self.shards {
            let mut held = shard.lock();
            held.epoch += 1;
            held.entries.clear();
        }
    }

    /// Changes what the entries may weigh.
    pub fn set_capacity(&self, capacity: usize) {
        for shard in &self.shards {
            let mut held = shard.lock();
            held.evictions += held.entries.set_max_weight(capacity / SHARDS);
        }
    }

    /// What it did and holds.
    pub fn read_counts(&self) -> CacheCounts {
        let mut sum = CacheCounts::default();
        for shard in &self.shards {
            let held = shard.lock();
            sum.hits += held.hits;
            sum.misses += held.misses;
            sum.evictions += held.evictions;
            sum.entries += held.entries.len() as u64;
            sum.bytes += held.entries.total_weight() as u64;
            sum.capacity += held.entries.max_weight() as u64;
        }
        sum
    }

    fn find_shard(&self, hash: u64) -> &CacheShard<K, V> {
        &self.shards[(hash >> SHARD_SHIFT) as usize % SHARDS]
    }
}

impl<K: Eq, V: Clone> CacheShard<K, V> {
    fn new(limit: usize) -> Self {
        let entries = ClockCache::new(limit);
        Self(Mutex::new(CacheShardState { entries, epoch: 0, hits: 0, misses: 0, evictions: 0 }))
    }

    fn lock(&self) -> MutexGuard<'_, CacheShardState<K, V>> {
        // A panic leaves at worst an entry that is not found: what is in the cache is put there whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
