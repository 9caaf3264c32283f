//! Finding a key in a node, and an entry by its position.
//!
//! A lookup in a large map costs what it waits for memory, and waiting for loads that depend on each other is what
//! takes long. So a node, once loaded, has beside its page eight bytes of each key (its *head*: those after the
//! prefix that all keys of the node share; nearly always they differ between keys) in blocks of sixteen, and samples
//! of these within the `MapNode` itself. A search waits for memory three times: the node, one block, the entry.

use std::hint::black_box;

use super::MapNode;

/// Entries in a block: their heads fill two cache lines, their starts one.
const BLOCK: usize = 16;
/// Samples: one per block for nodes of up to 512 entries, twice as many as a usual node has.
const SAMPLES: usize = 32;

/// What is known of a node's entries beside its bytes.
#[derive(Debug)]
pub(super) struct EntryIndex {
    len: usize,
    /// Length of the prefix that all keys share.
    prefix: usize,
    /// Blocks from one sample to the next.
    step: usize,
    /// The first head of every `step`th block; past the last, the greatest number.
    samples: [u64; SAMPLES],
    blocks: Box<[EntryBlock]>,
}

/// Sixteen entries; in the last block, less.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct EntryBlock {
    /// Eight bytes of each key, big endian, so that they compare as keys do; zeros stand for bytes past its end.
    heads: [u64; BLOCK],
    /// Where entries start in the page.
    starts: [u32; BLOCK],
}

impl EntryIndex {
    /// Indexes the entries that start at `starts`; `key` returns the key at one of these.
    pub(super) fn new<'a>(starts: &[u32], key: impl Fn(u32) -> &'a [u8]) -> Self {
        let (first, last) = match starts {
            [] => (&[][..], &[][..]),
            [only] => (key(*only), &[][..]),
            [first, .., last] => (key(*first), key(*last)),
        };
        // Keys are sorted, so what the first and the last share is shared by all.
        let prefix = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        let blocks: Box<[EntryBlock]> = starts
            .chunks(BLOCK)
            .map(|starts| EntryBlock::new(starts, |start| compute_head(key(start), prefix)))
            .collect();
        let step = blocks.len().div_ceil(SAMPLES).max(1);
        // Samples that are not used are never below a key, so that the search does not count them.
        let mut samples = [u64::MAX; SAMPLES];
        samples.iter_mut().zip(blocks.iter().step_by(step)).for_each(|(to, block)| *to = block.heads[0]);
        Self { len: starts.len(), prefix, step, samples, blocks }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn memory_size(&self) -> usize {
        size_of_val(&*self.blocks)
    }

    /// Where the entry at a position starts.
    pub(super) fn entry_start(&self, position: usize) -> Option<u32> {
        if position >= self.len {
            return None;
        }
        self.blocks.get(position / BLOCK).map(|block| block.starts[position % BLOCK])
    }

    /// The positions whose heads equal that of `key`; if there are none, the place where they would be.
    fn find_candidates(&self, key: &[u8]) -> (usize, usize) {
        let wanted = compute_head(key, self.prefix);
        // The first head that is not below stands in the block of the last sample that is below, or right after.
        let below = self.samples.iter().filter(|sample| **sample < wanted).count();
        // Blocks between two samples are searched by their first heads. Only large nodes have several.
        let mut at = below.saturating_sub(1) * self.step;
        if self.step > 1 {
            let rest = self.blocks.get(at + 1..self.blocks.len().min(at + self.step)).unwrap_or_default();
            at += rest.partition_point(|block| block.heads[0] < wanted);
        }
        let Some(block) = self.blocks.get(at) else { return (0, 0) };
        // Asked for now, the starts come along with the heads; the entry's place is needed next.
        black_box(block.starts[0]);
        let start = at * BLOCK + block.heads.iter().filter(|head| **head < wanted).count();
        let mut end = start;
        // Equal heads may continue in the next block.
        while self.entry_head(end) == Some(wanted) {
            end += 1;
        }
        (start.min(self.len), end.min(self.len))
    }

    fn entry_head(&self, position: usize) -> Option<u64> {
        self.blocks.get(position / BLOCK).map(|block| block.heads[position % BLOCK])
    }
}

impl EntryBlock {
    fn new(starts: &[u32], head: impl Fn(u32) -> u64) -> Self {
        // Missing entries are above all keys; a real head of this value is distinguished from them by the node's
        // length.
        let mut block = Self { heads: [u64::MAX; BLOCK], starts: [0; BLOCK] };
        for ((to_head, to_start), start) in block.heads.iter_mut().zip(&mut block.starts).zip(starts) {
            *to_head = head(*start);
            *to_start = *start;
        }
        block
    }
}

fn compute_head(key: &[u8], prefix: usize) -> u64 {
    let rest = key.get(prefix..).unwrap_or_default();
    if let Some(head) = rest.first_chunk::<8>() {
        return u64::from_be_bytes(*head);
    }
    let mut head = [0; 8];
    head.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    u64::from_be_bytes(head)
}

impl MapNode {
    /// The first position whose key is not below `key`; the length if there is none.
    #[must_use]
    pub fn lower_bound(&self, key: &[u8]) -> usize {
        let prefix = self.index.prefix;
        if prefix > 0
            && let Some(first) = self.key(0)
        {
            // A key without the common prefix is below or above them all. A short key that is a part of the
            // prefix compares below, as it should.
            let shared = first.get(..prefix).unwrap_or_default();
            let own = key.get(..prefix).unwrap_or(key);
            if own != shared {
                return if own < shared { 0 } else { self.len() };
            }
        }
        let (start, end) = self.index.find_candidates(key);
        self.search_keys(key, start, end)
    }

    /// The position of exactly this key.
    #[must_use]
    pub fn find_key(&self, key: &[u8]) -> Option<usize> {
        // A key without the common prefix has a head by chance only. The comparison of whole keys rules it out.
        let (start, end) = self.index.find_candidates(key);
        let position = self.search_keys(key, start, end);
        (position < end && self.key(position)? == key).then_some(position)
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
