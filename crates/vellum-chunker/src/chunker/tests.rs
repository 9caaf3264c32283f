//! Small facts about the scan that cannot be seen from outside.

use super::*;

const KEY: [u8; 32] = [9; 32];

#[test]
fn thresholds_give_the_wanted_spacing() {
    let candidates = 1_usize << CANDIDATE_BITS;
    assert_eq!(compute_threshold(candidates * 2), 1 << 63);
    assert_eq!(compute_threshold(candidates * 256), 1 << 56);
    assert_eq!(compute_threshold(candidates), u64::MAX);
    assert_eq!(compute_threshold(1), u64::MAX);
}

// A key under which a run of zeros is a candidate everywhere: every position would pay for a decision.
#[test]
fn a_run_that_is_a_candidate_everywhere_is_decided_once() {
    let hash_of_zeros =
        |chunker: &Chunker| (0..WINDOW).fold(0, |hash, _| update_hash(&chunker.secrets.gear, hash, 0));
    let chunker = (0_u64..)
        .map(|seed| Chunker::new(ChunkSizes::DEFAULT, blake3::hash(&seed.to_le_bytes()).as_bytes()))
        .find(|chunker| chunker.secrets.test.accepts_hash(hash_of_zeros(chunker)))
        .expect("one key in 2048 is such");
    let mut scan = ChunkScan { chunker: &chunker, hash: hash_of_zeros(&chunker), decided: None };
    let decision = chunker.secrets.compute_decision(scan.hash);
    assert_eq!(scan.scan_bytes(&[0; 1000], 0), None);
    assert_eq!(scan.decided, Some((hash_of_zeros(&chunker), decision)));
    // A remembered decision is used: with another one in its place the outcome follows it.
    scan.decided = Some((hash_of_zeros(&chunker), 0));
    assert_eq!(scan.scan_bytes(&[0; 10], 1), Some(1));
}

#[test]
fn debug_shows_no_secret() {
    let shown = format!("{:?}", Chunker::new(ChunkSizes::DEFAULT, &KEY));
    assert_eq!(shown, "Chunker { params: ChunkSizes { min: 16384, target: 65536, max: 262144 }, .. }");
}
