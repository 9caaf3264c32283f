//! Key runs: many keys in ascending order, without an allocation for each.
//!
//! Invariant: the keys ascend strictly, and `ends` holds the end of each within `bytes`. A key is only ever added at
//! the end; nothing is removed.

/// Keys in ascending order, one after the other in one buffer: 4 bytes each beside the key itself.
#[derive(Debug, Default, Clone)]
pub struct KeyRun {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl KeyRun {
    /// Adds a key and returns true. Returns false, without a change, if it is not greater than the last one or if
    /// the buffer is full.
    pub fn try_push(&mut self, key: &[u8]) -> bool {
        let is_in_order = self.ends.len().checked_sub(1).is_none_or(|last| self.key_at(last) < key);
        // Offsets have 32 bits. A run that is full refuses further keys, which then go into the tree of the layer.
        let Ok(end) = u32::try_from(self.bytes.len() + key.len()) else { return false };
        if is_in_order {
            self.bytes.extend_from_slice(key);
            self.ends.push(end);
        }
        is_in_order
    }

    /// Whether it has a key.
    #[inline]
    pub fn contains(&self, key: &[u8]) -> bool {
        // Most layers remove nothing, and each key that is set anew is looked for.
        !self.is_empty() && self.finds(key)
    }

    fn finds(&self, key: &[u8]) -> bool {
        let index = self.lower_bound(key);
        index < self.ends.len() && self.key_at(index) == key
    }

    /// The keys from `start` on, before `end` if there is one.
    pub fn keys_in_range<'a>(
        &'a self,
        start: &[u8],
        end: Option<&[u8]>,
    ) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        // If the end lies before the start, the range of indices is empty.
        let end = end.map_or(self.ends.len(), |end| self.lower_bound(end));
        (self.lower_bound(start)..end).map(|index| self.key_at(index))
    }

    /// Whether it has no key.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of memory that the keys take.
    pub fn memory_size(&self) -> usize {
        self.bytes.len() + self.ends.len() * size_of::<u32>()
    }

    /// Index of the first key that is not less than `key`.
    fn lower_bound(&self, key: &[u8]) -> usize {
        let mut low = 0;
        let mut high = self.ends.len();
        while low < high {
            let middle = low.midpoint(high);
            if self.key_at(middle) < key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn key_at(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..self.ends[index] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_of(keys: &[&str]) -> KeyRun {
        let mut run = KeyRun::default();
        assert!(keys.iter().all(|key| run.try_push(key.as_bytes())));
        run
    }

    #[test]
    fn only_ascending_keys_are_added() {
        let mut run = run_of(&["", "a", "ab", "b"]);
        assert!(!run.try_push(b"b"));
        assert!(!run.try_push(b"az"));
        assert!(run.try_push(b"c"));
        assert_eq!(run.len(), 5);
        assert!(["", "a", "ab", "b", "c"].iter().all(|key| run.contains(key.as_bytes())));
        assert!(["az", "0", "d", "aa"].iter().all(|key| !run.contains(key.as_bytes())));
    }

    #[test]
    fn a_range_has_its_start_and_not_its_end() {
        let run = run_of(&["a", "b", "d"]);
        let range = |start: &str, end: Option<&str>| {
            run.keys_in_range(start.as_bytes(), end.map(str::as_bytes)).collect::<Vec<_>>()
        };
        assert_eq!(range("b", Some("d")), [b"b"]);
        assert_eq!(range("c", None), [b"d"]);
        assert_eq!(range("a", Some("z")), [b"a", b"b", b"d"]);
        assert_eq!(range("d", Some("a")), [b""; 0]);
        assert_eq!(KeyRun::default().keys_in_range(b"", None).count(), 0);
    }
}
