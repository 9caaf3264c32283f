//! The filter in front of a run: answers "certainly not here" for all but about one in a hundred absent ids.
//!
//! A blocked Bloom filter: an id sets `PROBES` bits of one block of 64 bytes, so that a question touches one cache
//! line. Ids are keyed hashes: their own bytes are the hash functions.

use vellum_types::BlobId;

/// Bytes of a block: a cache line.
pub(super) const BLOCK_LEN: usize = 64;
/// Ids per block, a count: 512 bits at about ten bits per id.
const IDS_PER_BLOCK: usize = 50;
/// Bits set per id, a count: near the best for ten bits per id, and seven times nine bits fit a u64.
const PROBES: u32 = 7;

/// How many blocks a filter for `ids` ids has.
pub(super) fn count_blocks(ids: usize) -> usize {
    ids.div_ceil(IDS_PER_BLOCK).max(1)
}

/// The number in the `N` bytes at `at`; ids are long enough for every use here.
fn read_word(id: &BlobId, at: usize) -> u64 {
    let bytes = id.as_bytes().get(at..at + 8).and_then(|bytes| bytes.first_chunk::<8>());
    u64::from_le_bytes(*bytes.unwrap_or(&[0; 8]))
}

fn choose_block(id: &BlobId, blocks: usize) -> usize {
    // Scales the hash to the number of blocks without a division.
    ((u128::from(read_word(id, 8)) * blocks as u128) >> 64) as usize
}

fn probe_bits(id: &BlobId) -> impl Iterator<Item = (usize, u8)> {
    // Bytes 0 to 3 choose the slot of the fan-out table and bytes 8 to 15 the block. Others choose the bits, so that
    // the bits do not depend on the block.
    let hash = read_word(id, 16);
    (0..PROBES).map(move |i| {
        // 9 bits choose one of the 512 bits of a block.
        let bit = (hash >> (9 * i)) as usize & 511;
        (bit / 8, 1 << (bit % 8))
    })
}

pub(super) fn insert_id(filter: &mut [u8], id: &BlobId) {
    let start = choose_block(id, filter.len() / BLOCK_LEN) * BLOCK_LEN;
    for (byte, bit) in probe_bits(id) {
        if let Some(byte) = filter.get_mut(start + byte) {
            *byte |= bit;
        }
    }
}

pub(super) fn may_contain_id(filter: &[u8], id: &BlobId) -> bool {
    let start = choose_block(id, filter.len() / BLOCK_LEN) * BLOCK_LEN;
    let block = filter.get(start..start + BLOCK_LEN).and_then(|block| block.first_chunk::<BLOCK_LEN>());
    block.is_some_and(|block| probe_bits(id).all(|(byte, bit)| block[byte] & bit != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> BlobId {
        BlobId(blake3::hash(&number.to_le_bytes()).into())
    }

    #[test]
    fn it_forgets_nothing_and_is_rarely_wrong() {
        let count = 20_000;
        let mut filter = vec![0; count_blocks(count as usize) * BLOCK_LEN];
        (0..count).for_each(|i| insert_id(&mut filter, &id(i)));
        assert!((0..count).all(|i| may_contain_id(&filter, &id(i))));
        let wrong = (count..2 * count).filter(|i| may_contain_id(&filter, &id(*i))).count();
        assert!(wrong < count as usize / 40, "{wrong} false positives");
    }
}
