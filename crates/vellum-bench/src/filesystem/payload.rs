//! Bytes to write: no compressor makes them smaller, and no two pages are equal, so that a filesystem that shares equal
//! content or compresses is not fast by it. What is read back is looked at, so that none is fast by being wrong.

use crate::error::{BenchError, Result};

/// Every page of this many bytes begins with a stamp: the smallest unit that filesystems share, and fio's.
const PAGE: usize = 4096;

/// Bytes of a stamp: which run and thread, and which page.
const STAMP: usize = 16;

/// One thread's bytes.
pub struct ThreadPayload {
    bytes: Vec<u8>,
    series: u64,
}

impl ThreadPayload {
    /// Bytes of blocks of this length; those of other series differ in every page.
    pub fn new(len: usize, series: u64) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15 ^ series.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        let mut bytes = vec![0; len];
        for eight in bytes.chunks_mut(8) {
            // xorshift64*, Marsaglia and Vigna.
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            let word = state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes();
            eight.copy_from_slice(word.get(..eight.len()).unwrap_or_default());
        }
        Self { bytes, series }
    }

    /// The first `len` bytes of block `number`.
    pub fn fill_block(&mut self, number: u64, len: usize) -> &[u8] {
        // Only the stamps are new. To make other random bytes for each block would be measured with the
        // writing.
        let series = self.series;
        // What is left behind the last whole page is too short to be shared.
        for (page, bytes) in self.bytes.chunks_exact_mut(PAGE).enumerate() {
            if let Some(place) = bytes.first_chunk_mut::<STAMP>() {
                *place = page_stamp(series, number, page);
            }
        }
        // A block that is shorter than a page has as much of a stamp as fits.
        if self.bytes.len() < PAGE {
            let stamp = page_stamp(series, number, 0);
            self.bytes.iter_mut().zip(stamp).for_each(|(byte, stamp)| *byte = stamp);
        }
        self.bytes.get(..len).unwrap_or(&self.bytes)
    }
}

/// Whether bytes that were read are those of block `number`; `name` is of the file, for the message.
pub fn verify_block(read: &[u8], series: u64, number: u64, name: &str) -> Result<()> {
    // The first stamp shows whether it is another block. To compare all bytes would be measured with the
    // reading.
    let expected = page_stamp(series, number, 0);
    let same = read.iter().zip(expected).all(|(read, expected)| *read == expected);
    if same { Ok(()) } else { Err(BenchError::Content(name.into())) }
}

fn page_stamp(series: u64, block: u64, page: usize) -> [u8; STAMP] {
    let mut stamp = [0; STAMP];
    let (which, place) = stamp.split_at_mut(STAMP / 2);
    which.copy_from_slice(&series.to_le_bytes());
    // A block has fewer pages than 2^20: 4 GiB.
    place.copy_from_slice(&(block << 20 | page as u64).to_le_bytes());
    stamp
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_pages_are_equal_and_blocks_are_known_again() {
        let mut payload = ThreadPayload::new(3 * PAGE, 7);
        let first = payload.fill_block(0, 3 * PAGE).to_vec();
        let second = payload.fill_block(1, 3 * PAGE).to_vec();
        let other = ThreadPayload::new(3 * PAGE, 8).fill_block(0, 3 * PAGE).to_vec();
        let pages: std::collections::HashSet<_> =
            [&first, &second, &other].into_iter().flat_map(|bytes| bytes.chunks(PAGE)).collect();
        assert_eq!(pages.len(), 9);
        verify_block(&second, 7, 1, "x").unwrap();
        assert!(verify_block(&second, 7, 0, "x").is_err());
        assert!(verify_block(&other, 7, 0, "x").is_err());
    }

    #[test]
    fn short_blocks_have_a_stamp_too() {
        let mut payload = ThreadPayload::new(5, 7);
        let block = payload.fill_block(3, 9).to_vec();
        assert_eq!(block.len(), 5);
        verify_block(&block, 7, 3, "x").unwrap();
    }
}
