//! The blocks of a signature, found by their weak hash.
//!
//! Invariant: a lookup examines at most [`CHAIN_MAX`] blocks, however many have the same weak hash.

use std::collections::HashSet;

use super::signature::{FileSignature, StrongHash};

/// Most blocks with one weak hash that are examined. Honest files have one or two; equal blocks are stored once.
const CHAIN_MAX: usize = 8;
/// No block.
const NONE: u32 = u32::MAX;

/// Blocks by weak hash.
#[derive(Debug)]
pub(super) struct BlockTable {
    /// A bit for each weak hash that may exist: it rules out most windows without a cache miss.
    filter: Vec<u64>,
    filter_shift: u32,
    heads: Vec<u32>,
    heads_shift: u32,
    /// For each block the next one in the same chain of `heads`.
    next: Vec<u32>,
}

impl BlockTable {
    /// Builds the table of all full blocks of `signature`.
    pub(super) fn new(signature: &FileSignature) -> Self {
        let full = (signature.len / u64::from(signature.block)) as usize;
        // Twice as many slots as blocks: chains are short, and 2¹⁸ blocks need 19 bits, which leaves enough
        // of a hash of 32 bits.
        let head_bits = full.next_power_of_two().ilog2() + 1;
        let filter_bits = (head_bits + 3).max(16);
        let mut table = Self {
            filter: vec![0; 1 << (filter_bits - 6)],
            filter_shift: 32 - filter_bits,
            heads: vec![NONE; 1 << head_bits],
            heads_shift: 32 - head_bits,
            next: vec![NONE; full],
        };
        let mut seen = HashSet::with_capacity(full);
        // From the end, so that of equal weak hashes the earlier blocks are found first.
        for (number, (weak, strong)) in signature.hashes.iter().enumerate().take(full).rev() {
            let bit = spread_bits(*weak) >> table.filter_shift;
            if let Some(word) = table.filter.get_mut((bit >> 6) as usize) {
                *word |= 1 << (bit & 63);
            }
            let slot = (spread_bits(*weak) >> table.heads_shift) as usize;
            if let (Some(head), Some(next)) = (table.heads.get_mut(slot), table.next.get_mut(number))
                // A file of zeros has one block many times. Without this all of them would be in one chain,
                // and the limit of its length would hide other blocks.
                && seen.insert((*weak, *strong))
            {
                *next = *head;
                *head = number as u32;
            }
        }
        table
    }

    /// Whether a block may have this weak hash.
    #[inline(always)]
    pub(super) fn may_contain_weak(&self, weak: u32) -> bool {
        let bit = spread_bits(weak) >> self.filter_shift;
        self.filter.get((bit >> 6) as usize).is_some_and(|word| word >> (bit & 63) & 1 == 1)
    }

    /// Whether a block has this weak hash.
    pub(super) fn contains_weak(&self, signature: &FileSignature, weak: u32) -> bool {
        self.candidate_blocks(weak)
            .any(|number| signature.hashes.get(number as usize).is_some_and(|(known, _)| *known == weak))
    }

    /// The block with these hashes; `expected`, if it has them.
    pub(super) fn find_block(
        &self,
        signature: &FileSignature,
        weak: u32,
        strong: StrongHash,
        expected: u32,
    ) -> Option<u32> {
        let is = |number: u32| signature.hashes.get(number as usize) == Some(&(weak, strong));
        // The expected block is tried first and without the chain, which may have been cut before it.
        let is_full = (expected as usize) < self.next.len();
        if is_full && is(expected) {
            return Some(expected);
        }
        self.candidate_blocks(weak).find(|number| is(*number))
    }

    fn candidate_blocks(&self, weak: u32) -> impl Iterator<Item = u32> {
        let first = self.heads.get((spread_bits(weak) >> self.heads_shift) as usize).copied();
        let known = |number: u32| Some(number).filter(|number| *number != NONE);
        std::iter::successors(first.and_then(known), move |number| {
            self.next.get(*number as usize).copied().and_then(known)
        })
        .take(CHAIN_MAX)
    }
}

/// Mixes the differences of two hashes into their upper bits.
#[inline(always)]
fn spread_bits(weak: u32) -> u32 {
    weak.wrapping_mul(0x9e37_79b1)
}
