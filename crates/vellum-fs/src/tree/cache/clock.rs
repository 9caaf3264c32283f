//! One shard's entries, bounded by weight. What was not asked for since the hand last came by goes first (CLOCK): a
//! hit costs a mark, and no list has to be kept in order.

use hashbrown::HashTable;

/// Entries by key. Hashes come from the caller, so that a key need not be built to ask for it.
pub struct ClockCache<K, V> {
    entries: HashTable<ClockEntry<K, V>>,
    /// The bucket of the table that is looked at next for something to remove.
    hand: usize,
    weight: usize,
    limit: usize,
}

struct ClockEntry<K, V> {
    // Kept, since the table asks for it again when it grows.
    hash: u64,
    key: K,
    value: V,
    // With 32 bits it shares 8 bytes with the mark.
    weight: u32,
    used: bool,
}

impl<K: Eq, V: Clone> ClockCache<K, V> {
    /// Holds entries up to a weight.
    pub fn new(limit: usize) -> Self {
        Self { entries: HashTable::new(), hand: 0, weight: 0, limit }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// What they weigh.
    pub fn total_weight(&self) -> usize {
        self.weight
    }

    /// What they may weigh.
    pub fn max_weight(&self) -> usize {
        self.limit
    }

    /// The value under a key.
    pub fn get(&mut self, hash: u64, is: impl Fn(&K) -> bool) -> Option<V> {
        let entry = self.entries.find_mut(hash, |entry| entry.hash == hash && is(&entry.key))?;
        entry.used = true;
        Some(entry.value.clone())
    }

    /// Keeps a value; returns how many others had to go.
    pub fn insert(&mut self, hash: u64, key: K, value: V, weight: usize) -> u64 {
        self.remove(hash, |held| *held == key);
        let Ok(stored) = u32::try_from(weight) else { return 0 };
        // It would drive out everything else, and then have to go itself.
        if weight > self.limit {
            return 0;
        }
        self.weight += weight;
        // Room is made first, so that the newcomer is not what has to go.
        let gone = self.evict_excess();
        let entry = ClockEntry { hash, key, value, weight: stored, used: false };
        self.entries.insert_unique(hash, entry, |entry| entry.hash);
        gone
    }

    /// Removes an entry.
    pub fn remove(&mut self, hash: u64, is: impl Fn(&K) -> bool) {
        if let Ok(found) = self.entries.find_entry(hash, |entry| entry.hash == hash && is(&entry.key)) {
            let (entry, _) = found.remove();
            self.weight -= entry.weight as usize;
        }
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        *self = Self::new(self.limit);
    }

    /// Changes what the entries may weigh; returns how many had to go.
    pub fn set_max_weight(&mut self, limit: usize) -> u64 {
        self.limit = limit;
        self.evict_excess()
    }

    fn evict_excess(&mut self) -> u64 {
        let mut gone = 0;
        // This ends in the second round at the latest: the first one takes all marks away.
        while self.weight > self.limit && !self.entries.is_empty() {
            if self.hand >= self.entries.num_buckets() {
                self.hand = 0;
            }
            if let Ok(mut bucket) = self.entries.get_bucket_entry(self.hand)
                && !std::mem::take(&mut bucket.get_mut().used)
            {
                let (entry, _) = bucket.remove();
                self.weight -= entry.weight as usize;
                gone += 1;
            }
            self.hand += 1;
        }
        gone
    }
}
