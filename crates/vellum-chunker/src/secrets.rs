//! The chunker's secrets, derived from its key: the gear table, the candidate test, the key of the decision.
//!
//! Invariant: secrets are wiped on drop and never printed; the derivation never changes, since boundaries of stored
//! files depend on it.

use blake3::Hasher;
use zeroize::Zeroize;

const CONTEXT_SCAN: &str = "vellum 2026-11-21 v1 chunker scan";
const CONTEXT_DECISION: &str = "vellum 2026-11-21 v1 chunker decision";

/// One candidate in 2^11 positions: rare enough that deciding costs a tenth of the scan, and not rarer than the most
/// probable boundaries with the smallest allowed target.
pub(crate) const CANDIDATE_BITS: u32 = 11;
/// A mixed hash below this value is a candidate.
const CANDIDATE_BELOW: u64 = 1 << (64 - CANDIDATE_BITS);

/// The cheap test, which nearly every position fails.
///
/// The gear hash is linear in its table: boundaries that depended on it alone would reveal equations that determine the
/// table. The exclusive-or before the product prevents that.
#[derive(Clone, Copy)]
pub(crate) struct CandidateTest {
    mask: u64,
    // Odd, so that multiplying loses nothing.
    factor: u64,
}

impl CandidateTest {
    #[inline(always)]
    pub(crate) fn accepts_hash(self, hash: u64) -> bool {
        (hash ^ self.mask).wrapping_mul(self.factor) < CANDIDATE_BELOW
    }
}

/// All secrets of one chunker.
pub(crate) struct ChunkerSecrets {
    /// One random word for each byte value.
    pub gear: [u64; 256],
    pub test: CandidateTest,
    decision: [u8; 32],
}

impl ChunkerSecrets {
    pub(crate) fn derive_secrets(key: &[u8; 32]) -> Self {
        let mut stream = Hasher::new_derive_key(CONTEXT_SCAN).update(key).finalize_xof();
        let mut word = || {
            let mut bytes = [0; 8];
            stream.fill(&mut bytes);
            u64::from_le_bytes(bytes)
        };
        Self {
            gear: std::array::from_fn(|_| word()),
            test: CandidateTest { mask: word(), factor: word() | 1 },
            decision: blake3::derive_key(CONTEXT_DECISION, key),
        }
    }

    /// A pseudo-random word for a window's hash, which cannot be predicted without the key.
    pub(crate) fn compute_decision(&self, hash: u64) -> u64 {
        let digest = blake3::keyed_hash(&self.decision, &hash.to_le_bytes());
        let [b0, b1, b2, b3, b4, b5, b6, b7, ..] = *digest.as_bytes();
        u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7])
    }
}

impl Drop for ChunkerSecrets {
    fn drop(&mut self) {
        self.gear.zeroize();
        self.test.mask.zeroize();
        self.test.factor.zeroize();
        self.decision.zeroize();
    }
}
