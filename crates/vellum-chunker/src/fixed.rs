//! Boundaries at multiples of a fixed block size, for files that are overwritten in place.
//!
//! Invariant: a change of some bytes changes only the blocks that contain them, as long as nothing moves.

use vellum_types::value::FIXED_BLOCK;

/// The length of the first block of `data`, which starts at a multiple of [`FIXED_BLOCK`]: a whole block, or the rest
/// of the file. None if more data is needed, or if there is none.
#[must_use]
pub fn find_block_end(data: &[u8], eof: bool) -> Option<usize> {
    match data.len() {
        len if len >= FIXED_BLOCK => Some(FIXED_BLOCK),
        0 => None,
        len => eof.then_some(len),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole_but_the_last() {
        let data = vec![0; FIXED_BLOCK + 1];
        assert_eq!(find_block_end(&data, false), Some(FIXED_BLOCK));
        assert_eq!(find_block_end(&data[..FIXED_BLOCK], false), Some(FIXED_BLOCK));
        assert_eq!(find_block_end(&data[..7], false), None);
        assert_eq!(find_block_end(&data[..7], true), Some(7));
        assert_eq!(find_block_end(&[], true), None);
    }
}
