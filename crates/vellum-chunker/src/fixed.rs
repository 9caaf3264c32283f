//! Boundaries at multiples of a fixed block, for files that are overwritten in place.
//!
//! Invariant: a change of some bytes changes only the blocks that hold them, as long as nothing moves.

use vellum_types::value::FIXED_BLOCK;

/// Length of the first block of `data`, which starts at a multiple of [`FIXED_BLOCK`]: a whole block, or what is left
/// at the end of the file. `None` when more data are needed, or when there are none at all.
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
