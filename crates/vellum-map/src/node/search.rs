//! Finding a key in a node.
//!
//! Comparing whole keys would touch a cache line of the page per step. So a node, once loaded, keeps beside the
//! page eight bytes of each key: those after the prefix that all keys of the node share. They stand together, and
//! nearly always tell keys apart.

use super::Node;

/// Eight bytes of each key, big endian, so that they compare as the keys do; zeros stand for bytes past the end.
#[derive(Debug, Default)]
pub(super) struct Heads {
    /// Length of the prefix that all keys share.
    prefix: usize,
    heads: Box<[u64]>,
}

impl Heads {
    pub(super) fn of(node: &Node) -> Self {
        let (Some(first), Some(last)) = (node.key(0), node.last_key()) else { return Self::default() };
        let prefix = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        let heads = (0..node.len()).map(|index| head(node.key(index).unwrap_or_default(), prefix)).collect();
        Self { prefix, heads }
    }

    pub(super) fn weight(&self) -> usize {
        self.heads.len() * size_of::<u64>()
    }

    /// The positions whose heads equal that of `key`.
    fn candidates(&self, key: &[u8]) -> (usize, usize) {
        let wanted = head(key, self.prefix);
        let start = self.heads.partition_point(|head| *head < wanted);
        let run =
            self.heads.get(start..).unwrap_or_default().iter().take_while(|head| **head == wanted).count();
        (start, start + run)
    }
}

fn head(key: &[u8], prefix: usize) -> u64 {
    let rest = key.get(prefix..).unwrap_or_default();
    if let Some(head) = rest.first_chunk::<8>() {
        return u64::from_be_bytes(*head);
    }
    let mut head = [0; 8];
    head.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    u64::from_be_bytes(head)
}

impl Node {
    /// The first position whose key is not below `key`; the length if there is none.
    #[must_use]
    pub fn lower_bound(&self, key: &[u8]) -> usize {
        let prefix = self.heads.prefix;
        if let Some(first) = self.key(0)
            && prefix > 0
        {
            // A key without the common prefix is below or above them all. A short key that is a part of the
            // prefix compares below, as it should.
            let shared = first.get(..prefix).unwrap_or_default();
            let own = key.get(..prefix).unwrap_or(key);
            if own != shared {
                return if own < shared { 0 } else { self.len() };
            }
        }
        let (start, end) = self.heads.candidates(key);
        self.search_keys(key, start, end)
    }

    /// The position of exactly this key.
    #[must_use]
    pub fn find(&self, key: &[u8]) -> Option<usize> {
        let (start, end) = self.heads.candidates(key);
        let index = self.search_keys(key, start, end);
        (self.key(index)? == key).then_some(index)
    }

    /// The first position in `start..end` whose whole key is not below `key`, else `end`.
    fn search_keys(&self, key: &[u8], mut start: usize, mut end: usize) -> usize {
        while start < end {
            let middle = start.midpoint(end);
            if self.key(middle).unwrap_or_default() < key {
                start = middle + 1;
            } else {
                end = middle;
            }
        }
        start
    }
}
