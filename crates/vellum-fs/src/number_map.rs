//! Tables by numbers that this process gives out: inode numbers, file handles.
//!
//! Numbers are given out one after the other, here or where a tree was made, so these tables get by with a hash that is
//! one multiplication.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table by numbers that this process gives out: inode numbers, file handles.
pub(crate) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Spreads numbers: 2^64 over the golden ratio.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// The hash of one number: a multiplication.
#[derive(Debug, Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // A folded product: tables take a place from its low bits and a tag from its high ones, and all of them depend
        // on all of the number, so that numbers with equal low bits do not meet.
        let product = u128::from(self.0 ^ number) * u128::from(SPREAD);
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}
