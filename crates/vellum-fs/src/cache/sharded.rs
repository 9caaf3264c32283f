//! Entries spread over shards, each with a lock and an epoch of its own.
//!
//! Invariant: an entry is put only while the epoch is that of the miss which asked for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::clock::Clock;

/// Shards of a cache: more than threads that work at once.
const SHARDS: usize = 16;
/// Bits of a hash that choose the shard: not those that choose the place in its table.
const SHARD_SHIFT: u32 = 48;

/// The right to put what was missing, until the shard is changed.
#[derive(Debug, Clone, Copy)]
pub struct Ticket(u64);

/// A cache of one kind of entry.
pub struct Sharded<K, V> {
    shards: [Shard<K, V>; SHARDS],
}

/// On lines of its own, so that shards do not slow each other down.
#[repr(align(128))]
struct Shard<K, V> {
    held: RwLock<Held<K, V>>,
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
}

struct Held<K, V> {
    entries: Clock<K, V>,
    epoch: u64,
}

/// What a cache did and holds.
#[derive(Default)]
pub struct Counts {
    pub hits: u64,
    pub misses: u64,
    pub evictions: u64,
    pub entries: u64,
    pub bytes: u64,
    pub capacity: u64,
}

impl<K: Eq, V: Clone> Sharded<K, V> {
    /// Holds entries up to a weight.
    pub fn new(capacity: usize) -> Self {
        Self { shards: std::array::from_fn(|_| Shard::new(capacity / SHARDS)) }
    }

    /// The value under a key, or the ticket to put it.
    pub fn get(&self, hash: u64, is: impl Fn(&K) -> bool) -> Result<V, Ticket> {
        let shard = self.shard(hash);
        let held = shard.read();
        let found = held.entries.get(hash, is).ok_or(Ticket(held.epoch));
        drop(held);
        let count = if found.is_ok() { &shard.hits } else { &shard.misses };
        count.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Keeps what was read after a miss, unless the shard was changed since.
    pub fn put(&self, hash: u64, key: K, value: V, weight: usize, ticket: Ticket) {
        let shard = self.shard(hash);
        let mut held = shard.write();
        if held.epoch == ticket.0 {
            let gone = held.entries.put(hash, key, value, weight);
            drop(held);
            shard.evictions.fetch_add(gone, Ordering::Relaxed);
        }
    }

    /// Forgets an entry, and makes the shard's tickets worthless.
    pub fn forget(&self, hash: u64, is: impl Fn(&K) -> bool) {
        let mut held = self.shard(hash).write();
        held.epoch += 1;
        held.entries.remove(hash, is);
    }

    /// Forgets everything.
    pub fn clear(&self) {
        for shard in &self.shards {
            let mut held = shard.write();
            held.epoch += 1;
            held.entries.clear();
        }
    }

    /// Changes what the entries may weigh.
    pub fn resize(&self, capacity: usize) {
        for shard in &self.shards {
            let gone = shard.write().entries.resize(capacity / SHARDS);
            shard.evictions.fetch_add(gone, Ordering::Relaxed);
        }
    }

    /// What it did and holds.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for shard in &self.shards {
            let held = shard.read();
            sum.hits += shard.hits.load(Ordering::Relaxed);
            sum.misses += shard.misses.load(Ordering::Relaxed);
            sum.evictions += shard.evictions.load(Ordering::Relaxed);
            sum.entries += held.entries.len() as u64;
            sum.bytes += held.entries.weight() as u64;
            sum.capacity += held.entries.limit() as u64;
        }
        sum
    }

    fn shard(&self, hash: u64) -> &Shard<K, V> {
        &self.shards[(hash >> SHARD_SHIFT) as usize % SHARDS]
    }
}

impl<K: Eq, V: Clone> Shard<K, V> {
    fn new(limit: usize) -> Self {
        Self {
            held: RwLock::new(Held { entries: Clock::new(limit), epoch: 0 }),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Held<K, V>> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Held<K, V>> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }
}
