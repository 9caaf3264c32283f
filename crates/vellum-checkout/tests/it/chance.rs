//! Random numbers from a seed that is printed, so that a failure can be had again.

/// A generator (SplitMix64).
pub struct Chance(u64);

impl Chance {
    /// Seeded by `VELLUM_SEED` if that is set, else by the number given. Prints the seed, which a failed test shows.
    pub fn new(seed: u64) -> Self {
        let seed = std::env::var("VELLUM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(seed);
        println!("VELLUM_SEED={seed}");
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        step(&mut self.0)
    }

    /// Below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn pick<'l, T>(&mut self, list: &'l [T]) -> Option<&'l T> {
        if list.is_empty() { None } else { list.get(self.below(list.len())) }
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

/// The next number after `state`.
pub fn step(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
