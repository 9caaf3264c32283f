//! The filter in front of a run: answers "certainly not here" for all but about one in a hundred absent keys.
//!
//! A blocked Bloom filter: a key sets `PROBES` bits of one block of 64 bytes, so that a question touches one cache
//! line. Of the key's hash (XXH3, 128 bits) the upper half, scaled, chooses the block; each 9 bits of the lower half
//! choose one of its bits.

use vellum_types::DecodeError;
use xxhash_rust::xxh3::xxh3_128;

/// Bytes of a block: a cache line.
const BLOCK_LEN: usize = 64;
/// Keys per block, a count: 512 bits at about ten bits per key.
const KEYS_PER_BLOCK: usize = 50;
/// Bits set per key, a count: near the best for ten bits per key, and seven times nine bits fit a u64.
const PROBES: u32 = 7;

/// Bits of keys.
pub(super) struct RunFilter(Vec<u8>);

/// What a key's bits are computed from.
pub(super) type KeyHash = u128;

pub(super) fn hash_key(key: &[u8]) -> KeyHash {
    xxh3_128(key)
}

impl RunFilter {
    /// The filter of some keys.
    pub(super) fn from_hashes(hashes: &[KeyHash]) -> Self {
        let mut filter = Self(vec![0; hashes.len().div_ceil(KEYS_PER_BLOCK).max(1) * BLOCK_LEN]);
        for hash in hashes {
            let start = filter.block_start(*hash);
            for (byte, bit) in probe_bits(*hash) {
                if let Some(byte) = filter.0.get_mut(start + byte) {
                    *byte |= bit;
                }
            }
        }
        filter
    }

    /// The filter that was stored.
    pub(super) fn from_bytes(bytes: Vec<u8>) -> Result<Self, DecodeError> {
        let is_whole = !bytes.is_empty() && bytes.len().is_multiple_of(BLOCK_LEN);
        if is_whole { Ok(Self(bytes)) } else { Err(DecodeError::Invalid("filter")) }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn may_contain(&self, key: &[u8]) -> bool {
        let hash = hash_key(key);
        let start = self.block_start(hash);
        let block = self.0.get(start..start + BLOCK_LEN).unwrap_or_default();
        probe_bits(hash).all(|(byte, bit)| block.get(byte).is_some_and(|byte| byte & bit != 0))
    }

    /// Scales the hash to the number of blocks without a division.
    fn block_start(&self, hash: KeyHash) -> usize {
        let blocks = (self.0.len() / BLOCK_LEN) as u128;
        (((hash >> 64) * blocks) >> 64) as usize * BLOCK_LEN
    }
}

fn probe_bits(hash: KeyHash) -> impl Iterator<Item = (usize, u8)> {
    let low = hash as u64;
    (0..PROBES).map(move |i| {
        let bit = (low >> (9 * i)) as usize & 511;
        (bit / 8, 1 << (bit % 8))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_its_keys_and_few_others() {
        let key = |number: u32| number.to_be_bytes();
        let hashes: Vec<_> = (0..10_000).map(|number| hash_key(&key(number))).collect();
        let filter = RunFilter::from_hashes(&hashes);
        assert!((0..10_000).all(|number| filter.may_contain(&key(number))));
        let wrong = (10_000..110_000).filter(|number| filter.may_contain(&key(*number))).count();
        assert!(wrong < 2_000, "{wrong} of 100000 absent keys");
    }
}
