//! Bytes and numbers to work on: the same in every run.

/// Numbers that look random (SplitMix64).
#[derive(Debug, Clone)]
pub struct RandomData(pub u64);

impl RandomData {
    /// The next number.
    pub fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next number below a limit, which is not 0.
    pub fn next_below(&mut self, limit: u64) -> u64 {
        // Not quite even, which no bench can notice.
        self.next_number() % limit
    }
}

/// Bytes that no compressor makes smaller.
#[must_use]
pub fn random_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut random = RandomData(seed);
    let mut bytes = vec![0; len];
    for part in bytes.chunks_mut(8) {
        part.copy_from_slice(&random.next_number().to_le_bytes()[..part.len()]);
    }
    bytes
}

/// Lines that compress about as well as source text.
#[must_use]
pub fn generate_text(len: usize) -> Vec<u8> {
    let lines = (0_u64..).map(|i| format!("{:x} lorem {} ipsum\n", i * 7919, i % 97));
    lines.flat_map(String::into_bytes).take(len).collect()
}
