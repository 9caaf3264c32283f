//! Where nodes end: the rule that makes equal maps have equal roots.
//!
//! Invariant: whether a node ends after an entry depends on nothing but the seed, the level, the entry's key and
//! size, and how many bytes the node holds by then. So boundaries are a function of the sequence of entries, and
//! two sequences that agree from some common boundary on have the same nodes from there on.
//!
//! The chance to end grows in proportion to the bytes past the minimum (a Rayleigh distribution). Compared with a
//! constant chance (an exponential one) sizes vary less, and a scattered change rewrites a quarter fewer bytes.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A node below this many bytes never ends (but where the sequence does): smaller ones cost more in ids than they
/// save in rewriting.
const NODE_MIN: u32 = 4 << 10;
/// Mean size of a node, bytes: one page group; halves the rewriting of 32 KiB, compresses 15 % worse.
const NODE_TARGET: u32 = 16 << 10;
/// A node of this many bytes ends: bounds what one lookup reads, also when keys are chosen by an adversary.
const NODE_FULL: u32 = 64 << 10;
/// An inner node holds at least this many children, so that each level is smaller than the one below.
const CHILDREN_MIN: u32 = 2;

/// The boundary parameters of one volume's maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapShape {
    seed: u64,
    min: u32,
    full: u32,
    spread: u64,
}

impl MapShape {
    /// The standard sizes with a volume's own seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self::with_sizes(seed, NODE_MIN, NODE_TARGET, NODE_FULL)
    }

    /// Other sizes (bytes: minimum, mean, maximum), for tests that want deep trees of few entries. Volumes have
    /// the standard sizes; nodes of any size can be read.
    #[must_use]
    pub const fn with_sizes(seed: u64, min: u32, target: u32, full: u32) -> Self {
        assert!(min < target && target < full && full <= NODE_FULL, "node sizes out of order");
        // A Rayleigh variable's hazard is x/s² and its mean s·√(π/2): s² = mean²·2/π, and 7/11 is 2/π to 0.04 %.
        let mean = (target - min) as u64;
        let spread = mean * mean * 7 / 11;
        Self { seed, min, full, spread: if spread == 0 { 1 } else { spread } }
    }

    /// Whether a node of `level` ends after the entry with this key and encoded size, when it holds `count`
    /// entries of `size` bytes with it.
    pub(crate) fn should_end_node(&self, level: u8, key: &[u8], entry: u32, fill: NodeFill) -> bool {
        // A node with one child on each level would make the tree infinitely high.
        if level > 0 && fill.count < CHILDREN_MIN {
            return false;
        }
        if fill.size >= self.full {
            return true;
        }
        // This also keeps the subtraction below from going under zero.
        if fill.size < self.min {
            return false;
        }
        let hazard = u64::from(entry) * u64::from(fill.size - self.min);
        // A single entry may exceed the whole spread. The product below would overflow for it.
        if hazard >= self.spread {
            return true;
        }
        // Each level has hashes of its own: a key that ends a leaf is likely to be low, and must not be so above.
        let seed = self.seed ^ u64::from(level).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = xxh3_64_with_seed(key, seed) >> 32;
        // Neither side overflows: the spread is below 2^32 since nodes are below 2^16, the hazard is below it.
        hash * self.spread < hazard << 32
    }
}

/// How full a node is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NodeFill {
    pub count: u32,
    pub size: u32,
}
