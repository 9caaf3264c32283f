//! Content-defined boundaries: a gear hash over 64 bytes finds candidates, and a keyed hash decides.
//!
//! Invariant: whether a chunk ends at a position depends on the 64 bytes before it, on the distance from the chunk's
//! start, and on the key, so lengths cannot be computed from content without the key. Deliberately absent: a defence
//! against an attacker who can have chosen content stored and observe its lengths; docs/format.md describes what
//! remains.

use std::fmt;
use std::sync::Arc;

use crate::params::ChunkSizes;
use crate::secrets::{CANDIDATE_BITS, ChunkerSecrets};

/// Bytes that the rolling hash covers: each step shifts a 64-bit word by one.
const WINDOW: usize = 64;

/// Factor by which a late boundary is more likely than an early one: lengths concentrate around the target.
const NORMALISATION: usize = 4;

/// Cuts content into chunks. It is cheap to clone and has no state: one serves any number of files and threads.
#[derive(Clone)]
pub struct Chunker {
    params: ChunkSizes,
    secrets: Arc<ChunkerSecrets>,
    // The length from which boundaries become likelier: where the average comes out at the target.
    switch: usize,
    early: u64,
    late: u64,
}

impl Chunker {
    /// A chunker for a volume's parameters and chunker key.
    #[must_use]
    pub fn new(params: ChunkSizes, key: &[u8; 32]) -> Self {
        Self {
            params,
            secrets: Arc::new(ChunkerSecrets::derive_secrets(key)),
            switch: params.target_len() / 16 * 13,
            early: compute_threshold(params.target_len() * NORMALISATION),
            late: compute_threshold(params.target_len() / NORMALISATION),
        }
    }

    /// Returns its parameters.
    #[must_use]
    pub fn params(&self) -> ChunkSizes {
        self.params
    }

    /// The length of the first chunk of `data`, which starts at a boundary. None if more data is needed to determine it
    /// (only below the greatest length, and only before the end of the file), or if there is no data.
    #[must_use]
    pub fn find_chunk_end(&self, data: &[u8], eof: bool) -> Option<usize> {
        let max = self.params.max_len();
        // What lies behind the greatest length cannot matter, so the answer does not depend on how much was
        // read.
        let reach = data.get(..max).unwrap_or(data);
        self.search_boundary(reach)
            .or_else(|| (reach.len() == max || eof && !data.is_empty()).then_some(reach.len()))
    }

    // The first content-defined boundary in at most `max` bytes.
    fn search_boundary(&self, reach: &[u8]) -> Option<usize> {
        let min = self.params.min_len();
        // The window of the first possible boundary; before it, nothing needs to be looked at.
        let warm = reach.get(min - WINDOW..min)?;
        let hash = warm.iter().fold(0, |hash, byte| update_hash(&self.secrets.gear, hash, *byte));
        let mut scan = ChunkScan { chunker: self, hash, decided: None };
        if self.secrets.test.accepts_hash(hash) && scan.decide_candidate(hash, self.early) {
            return Some(min);
        }
        // Two thresholds: boundaries before the switch are rare and after it frequent, which makes very short
        // and very long chunks rare.
        let switch = self.switch.min(reach.len());
        let early = reach.get(min..switch).and_then(|bytes| scan.scan_bytes(bytes, self.early));
        let found = early.map(|at| min + at);
        found.or_else(|| {
            reach.get(switch..).and_then(|bytes| scan.scan_bytes(bytes, self.late)).map(|at| switch + at)
        })
    }
}

#[inline(always)]
fn update_hash(gear: &[u64; 256], hash: u64, byte: u8) -> u64 {
    (hash << 1).wrapping_add(gear[usize::from(byte)])
}

impl fmt::Debug for Chunker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunker").field("params", &self.params).finish_non_exhaustive()
    }
}

/// One pass over a chunk.
struct ChunkScan<'a> {
    chunker: &'a Chunker,
    hash: u64,
    // The last decision: in runs of one byte every position has the same hash, and deciding each anew would be slow.
    decided: Option<(u64, u64)>,
}

impl ChunkScan<'_> {
    // Length of the shortest prefix of `bytes` after which there is a boundary.
    fn scan_bytes(&mut self, bytes: &[u8], threshold: u64) -> Option<usize> {
        // Locals, so that the loop keeps them in registers, and blocks of known length, so that it is unrolled: it
        // runs at half the speed otherwise.
        let ChunkerSecrets { gear, test, .. } = &*self.chunker.secrets;
        let test = *test;
        let mut hash = self.hash;
        let (blocks, rest) = bytes.as_chunks::<8>();
        for (index, block) in blocks.iter().enumerate() {
            for (place, byte) in block.iter().enumerate() {
                hash = update_hash(gear, hash, *byte);
                if test.accepts_hash(hash) && self.decide_candidate(hash, threshold) {
                    return Some(8 * index + place + 1);
                }
            }
        }
        for (place, byte) in rest.iter().enumerate() {
            hash = update_hash(gear, hash, *byte);
            if test.accepts_hash(hash) && self.decide_candidate(hash, threshold) {
                return Some(8 * blocks.len() + place + 1);
            }
        }
        self.hash = hash;
        None
    }

    #[cold]
    #[inline(never)]
    fn decide_candidate(&mut self, now: u64, threshold: u64) -> bool {
        let decision = match self.decided {
            Some((hash, decision)) if hash == now => decision,
            _ => self.chunker.secrets.compute_decision(now),
        };
        // The decision is kept and not the answer, because the threshold changes at the switch.
        self.decided = Some((now, decision));
        decision < threshold
    }
}

// The threshold of a decision for one boundary in `spacing` positions, given that one position in
// 2^CANDIDATE_BITS is a candidate: 2^64 · 2^CANDIDATE_BITS / spacing.
fn compute_threshold(spacing: usize) -> u64 {
    let wide = (1_u128 << (64 + CANDIDATE_BITS)) / (spacing as u128);
    u64::try_from(wide).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
