//! The algorithm once more, as docs/format.md tells it: slow, position by position, with no cleverness.

use proptest::prelude::*;
use vellum_chunker::{ChunkSizes, Chunker};

use crate::{lengths, noise, small};

struct Reference {
    params: ChunkSizes,
    gear: Vec<u64>,
    mask: u64,
    factor: u64,
    decision_key: [u8; 32],
}

impl Reference {
    fn new(params: ChunkSizes, key: &[u8; 32]) -> Self {
        let mut stream = vec![0; 258 * 8];
        let mut hasher = blake3::Hasher::new_derive_key("vellum 2026-11-21 v1 chunker scan");
        hasher.update(key).finalize_xof().fill(&mut stream);
        let (words, _) = stream.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let decision_key = blake3::derive_key("vellum 2026-11-21 v1 chunker decision", key);
        Self { params, gear: words[..256].to_vec(), mask: words[256], factor: words[257] | 1, decision_key }
    }

    fn first_chunk(&self, data: &[u8]) -> usize {
        let end = data.len().min(self.params.max_len());
        (self.params.min_len()..=end).find(|&len| self.is_boundary(&data[..len])).unwrap_or(end)
    }

    // Whether a chunk that starts where `chunk` does may end where it ends.
    fn is_boundary(&self, chunk: &[u8]) -> bool {
        let window = &chunk[chunk.len() - 64..];
        let hash = window
            .iter()
            .zip((0..64).rev())
            .fold(0_u64, |sum, (byte, shift)| sum.wrapping_add(self.gear[usize::from(*byte)] << shift));
        if (hash ^ self.mask).wrapping_mul(self.factor) >> 53 != 0 {
            return false;
        }
        let digest = blake3::keyed_hash(&self.decision_key, &hash.to_le_bytes());
        let decision = u64::from_le_bytes(digest.as_bytes()[..8].try_into().expect("eight bytes"));
        let target = self.params.target_len();
        let spacing = if chunk.len() <= target / 16 * 13 { 4 * target } else { target / 4 };
        u128::from(decision) < ((1_u128 << 75) / spacing as u128).min(u128::from(u64::MAX))
    }

    fn lengths(&self, mut data: &[u8]) -> Vec<usize> {
        let mut all = Vec::new();
        while !data.is_empty() {
            let len = self.first_chunk(data);
            all.push(len);
            data = &data[len..];
        }
        all
    }
}

#[test]
fn default_sizes_cut_as_the_reference_does() {
    let data = noise(1, 1 << 20);
    let key = [1; 32];
    let expected = Reference::new(ChunkSizes::DEFAULT, &key).lengths(&data);
    assert_eq!(lengths(&Chunker::new(ChunkSizes::DEFAULT, &key), &data), expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn small_sizes_cut_as_the_reference_does(key: [u8; 32], seed: u64, len in 0_usize..100_000, alphabet in 1_u8..=255) {
        let data: Vec<u8> = noise(seed, len).iter().map(|byte| byte % alphabet).collect();
        let expected = Reference::new(small(), &key).lengths(&data);
        prop_assert_eq!(lengths(&Chunker::new(small(), &key), &data), expected);
    }
}
