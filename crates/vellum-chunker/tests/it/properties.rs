//! What must hold for any content and any way of delivering it.

use std::collections::HashSet;

use proptest::prelude::*;
use vellum_chunker::{ChunkSizes, Chunker};

use crate::{lengths, noise, small};

const KEY: [u8; 32] = [5; 32];

/// Ends of all chunks, counted from the start.
fn ends(lengths: &[usize]) -> Vec<usize> {
    lengths
        .iter()
        .scan(0, |end, len| {
            *end += len;
            Some(*end)
        })
        .collect()
}

/// Feeds a file in pieces of the given sizes, as a reader with a growing buffer does.
fn streamed(chunker: &Chunker, data: &[u8], pieces: &[usize]) -> Vec<usize> {
    let mut all = Vec::new();
    let mut start = 0;
    let mut filled = 0;
    let mut sizes = pieces.iter().cycle();
    loop {
        let eof = filled == data.len();
        if let Some(len) = chunker.find_chunk_end(&data[start..filled], eof) {
            all.push(len);
            start += len;
        } else if eof {
            return all;
        } else {
            filled = data.len().min(filled + sizes.next().expect("there is a piece"));
        }
    }
}

#[test]
fn the_average_is_near_the_target() {
    let data = noise(2, 64 << 20);
    let all = lengths(&Chunker::new(ChunkSizes::DEFAULT, &KEY), &data);
    let average = data.len() / all.len();
    assert!((60_000..70_000).contains(&average), "{average}");
    // Chunks that only the maximum ended do not survive an insertion before them: there must be next to none.
    assert!(all.iter().filter(|len| **len == ChunkSizes::DEFAULT.max_len()).count() <= all.len() / 1000);
}

#[test]
fn other_keys_cut_elsewhere() {
    let data = noise(3, 4 << 20);
    let ends_of = |key| ends(&lengths(&Chunker::new(small(), &key), &data));
    let a = ends_of([1; 32]);
    let b = ends_of([2; 32]);
    let shared = a.iter().collect::<HashSet<_>>().intersection(&b.iter().collect()).count();
    assert!(shared <= 3, "{shared} of {} boundaries are the same", a.len());
}

#[test]
fn the_smallest_inputs() {
    let chunker = Chunker::new(small(), &KEY);
    assert_eq!(chunker.find_chunk_end(&[], true), None);
    assert_eq!(chunker.find_chunk_end(&[], false), None);
    assert_eq!(chunker.find_chunk_end(&[1], true), Some(1));
    assert_eq!(chunker.find_chunk_end(&[1], false), None);
    assert_eq!(chunker.find_chunk_end(&vec![0; small().max_len()], false), Some(small().max_len()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn chunks_are_the_content_and_within_bounds(seed: u64, len in 0_usize..300_000, alphabet in 1_u8..=255) {
        let data: Vec<u8> = noise(seed, len).iter().map(|byte| byte % alphabet).collect();
        let all = lengths(&Chunker::new(small(), &KEY), &data);
        prop_assert_eq!(all.iter().sum::<usize>(), len);
        if let Some((last, others)) = all.split_last() {
            prop_assert!(others.iter().all(|len| (small().min_len()..=small().max_len()).contains(len)));
            prop_assert!((1..=small().max_len()).contains(last));
        }
    }

    #[test]
    fn any_buffering_gives_the_same_cuts(
        seed: u64,
        len in 0_usize..200_000,
        pieces in proptest::collection::vec(1_usize..50_000, 1..6),
    ) {
        let data = noise(seed, len);
        let chunker = Chunker::new(small(), &KEY);
        prop_assert_eq!(streamed(&chunker, &data, &pieces), lengths(&chunker, &data));
    }

    #[test]
    fn an_edit_changes_boundaries_near_it_only(
        seed: u64,
        at in 0_usize..400_000,
        removed in 0_usize..5_000,
        added in 0_usize..5_000,
    ) {
        let before = noise(seed, 1_200_000);
        let after = [&before[..at], &noise(!seed, added), &before[at + removed..]].concat();
        let chunker = Chunker::new(small(), &KEY);
        let old = ends(&lengths(&chunker, &before));
        let new = ends(&lengths(&chunker, &after));
        let untouched = |ends: &[usize]| ends.iter().copied().filter(|end| *end <= at).collect::<Vec<_>>();
        prop_assert_eq!(untouched(&old), untouched(&new));
        // Boundaries meet again within a few chunks; the last 200 kB are some 75 chunks behind any edit.
        let from_end = |ends: &[usize], len: usize, tail: usize| {
            ends.iter().map(|end| len - end).filter(|left| *left < tail).collect::<Vec<_>>()
        };
        let tail = 200_000;
        prop_assert_eq!(from_end(&old, before.len(), tail), from_end(&new, after.len(), tail));
    }
}
