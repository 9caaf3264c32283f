//! Pseudo-random numbers from a seed, which failures print.

/// The seed: from the variable `VELLUM_SEED`, or a new one; it is printed, so that a failure can be repeated.
///
/// # Panics
/// Panics if the variable is not a number.
#[must_use]
pub fn choose_seed() -> u64 {
    let clock = || std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970").as_nanos() as u64;
    let seed = std::env::var("VELLUM_SEED")
        .map_or_else(|_| clock(), |text| text.parse().expect("VELLUM_SEED is a number"));
    // The output of a test is shown only if it fails.
    println!("VELLUM_SEED={seed}");
    seed
}

/// The number of repetitions: this many, scaled by the ratio of `PROPTEST_CASES` to its default of 256.
///
/// # Panics
/// Panics if the variable is not a number.
#[must_use]
pub fn scale_rounds(usual: usize) -> usize {
    let cases =
        std::env::var("PROPTEST_CASES").map_or(256, |text| text.parse().expect("PROPTEST_CASES is a number"));
    // Rounded up, so that few cases still give a round.
    (usual * cases).div_ceil(256)
}

/// splitmix64.
#[derive(Debug)]
pub struct TestRandom(u64);

impl TestRandom {
    /// The generator for `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which may not be 0.
    pub fn next_below(&mut self, end: u64) -> u64 {
        // The bias of a remainder does not matter in tests.
        self.next_number() % end
    }

    /// True once in this many times on average.
    pub fn is_one_in(&mut self, count: u64) -> bool {
        self.next_below(count) == 0
    }

    /// An element of `list`, which may not be empty.
    pub fn pick_item<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.next_below(list.len() as u64) as usize]
    }
}
