//! Boundaries that volumes in the world depend on: they never change for one key and one set of sizes.

use vellum_chunker::{ChunkSizes, Chunker};

use crate::{lengths, noise, small};

#[test]
fn default_sizes() {
    let all = lengths(&Chunker::new(ChunkSizes::DEFAULT, &[7; 32]), &noise(0, 1 << 20));
    let expected = [
        57254, 69485, 53654, 87619, 55015, 56703, 58553, 61207, 55228, 53890, 81168, 57817, 59658, 104289,
        55042, 63101, 18893,
    ];
    assert_eq!(all, expected);
}

#[test]
fn small_sizes_and_a_key_of_zeros() {
    let all = lengths(&Chunker::new(small(), &[0; 32]), &noise(1, 100_000));
    let expected = [8189, 10963, 14328, 10610, 2633, 2504, 7738, 10272, 6685, 6995, 7789, 8340, 2954];
    assert_eq!(all, expected);
}
