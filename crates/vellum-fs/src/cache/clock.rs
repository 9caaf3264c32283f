//! One shard's entries, bounded by weight. What was not asked for since the hand last came by goes first (CLOCK):
//! unlike an order of use this lets readers share a lock.

use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashTable;

/// Entries by key. Hashes come from the caller, so that a key need not be built to ask for it.
pub struct Clock<K, V> {
    places: HashTable<u32>,
    slots: Vec<Option<Slot<K, V>>>,
    free: Vec<u32>,
    hand: usize,
    weight: usize,
    limit: usize,
}

struct Slot<K, V> {
    hash: u64,
    key: K,
    value: V,
    weight: usize,
    used: AtomicBool,
}

impl<K: Eq, V: Clone> Clock<K, V> {
    /// Holds entries up to a weight.
    pub fn new(limit: usize) -> Self {
        Self { places: HashTable::new(), slots: Vec::new(), free: Vec::new(), hand: 0, weight: 0, limit }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// What they weigh.
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// What they may weigh.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The value under a key.
    pub fn get(&self, hash: u64, is: impl Fn(&K) -> bool) -> Option<V> {
        let place = self.places.find(hash, |place| self.slot(*place).is_some_and(|slot| is(&slot.key)))?;
        let slot = self.slot(*place)?;
        // Most entries that are asked for are marked: reading leaves the line shared.
        if !slot.used.load(Ordering::Relaxed) {
            slot.used.store(true, Ordering::Relaxed);
        }
        Some(slot.value.clone())
    }

    /// Keeps a value; returns how many others had to go.
    pub fn put(&mut self, hash: u64, key: K, value: V, weight: usize) -> u64 {
        self.remove(hash, |held| *held == key);
        if weight > self.limit {
            return 0;
        }
        let slot = Slot { hash, key, value, weight, used: AtomicBool::new(false) };
        let place = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let Some(held) = self.slots.get_mut(place as usize) else { return 0 };
        *held = Some(slot);
        self.weight += weight;
        let slots = &self.slots;
        self.places.insert_unique(hash, place, |place| hash_at(slots, *place));
        self.shrink()
    }

    /// Removes an entry.
    pub fn remove(&mut self, hash: u64, is: impl Fn(&K) -> bool) {
        let slots = &self.slots;
        let at = |place: u32| slots.get(place as usize).and_then(Option::as_ref);
        let found = self.places.find_entry(hash, |place| at(*place).is_some_and(|slot| is(&slot.key)));
        if let Ok(found) = found {
            let (place, _) = found.remove();
            self.empty(place);
        }
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        *self = Self::new(self.limit);
    }

    /// Changes what the entries may weigh; returns how many had to go.
    pub fn resize(&mut self, limit: usize) -> u64 {
        self.limit = limit;
        self.shrink()
    }

    fn shrink(&mut self) -> u64 {
        let mut gone = 0;
        while self.weight > self.limit {
            if self.hand >= self.slots.len() {
                self.hand = 0;
            }
            let place = self.hand;
            self.hand += 1;
            let Some(Some(slot)) = self.slots.get_mut(place) else { continue };
            if !std::mem::take(slot.used.get_mut()) {
                self.evict(place);
                gone += 1;
            }
        }
        gone
    }

    fn evict(&mut self, place: usize) {
        let Ok(place) = u32::try_from(place) else { return };
        let hash = hash_at(&self.slots, place);
        if let Ok(found) = self.places.find_entry(hash, |held| *held == place) {
            found.remove();
            self.empty(place);
        }
    }

    fn empty(&mut self, place: u32) {
        if let Some(slot) = self.slots.get_mut(place as usize).and_then(Option::take) {
            self.weight -= slot.weight;
            self.free.push(place);
        }
    }

    fn slot(&self, place: u32) -> Option<&Slot<K, V>> {
        self.slots.get(place as usize)?.as_ref()
    }
}

fn hash_at<K, V>(slots: &[Option<Slot<K, V>>], place: u32) -> u64 {
    slots.get(place as usize).and_then(Option::as_ref).map_or(0, |slot| slot.hash)
}
