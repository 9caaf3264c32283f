//! A rolling hash: moving its window by one byte costs a few additions.
//!
//! Two sums as in Fletcher's checksum, modulo 2^32, of random numbers assigned to the byte values, since sums of plain
//! text would collide often. The numbers are not secret: constructed collisions make transfers longer, and results stay
//! correct.

/// The numbers of the byte values, by the SplitMix64 generator from a fixed seed.
const NUMBERS: [u32; 256] = generate_byte_numbers();

/// Bytes that are summed in one block.
const STEP: usize = 8;

const fn generate_byte_numbers() -> [u32; 256] {
    let mut numbers = [0; 256];
    let mut state: u64 = 0x5665_6c6c_756d_2e73;
    let mut at = 0;
    while at < numbers.len() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        numbers[at] = (mixed >> 32) as u32;
        at += 1;
    }
    numbers
}

/// The sums over a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RollingSum {
    plain: u32,
    weighted: u32,
    len: u32,
}

impl RollingSum {
    /// Computes the sums over `window`, which is shorter than 4 GiB.
    pub(super) fn from_window(window: &[u8]) -> Self {
        let mut plain = 0_u32;
        let mut weighted = 0_u32;
        // Some bytes at a time: their sums do not wait for each other, as those of one after the other would.
        let (steps, rest) = window.as_chunks::<STEP>();
        for step in steps {
            let mut sum = 0_u32;
            let mut rising = 0_u32;
            for (place, byte) in step.iter().enumerate() {
                let number = NUMBERS[usize::from(*byte)];
                sum = sum.wrapping_add(number);
                rising = rising.wrapping_add(number.wrapping_mul((STEP - place) as u32));
            }
            weighted = weighted.wrapping_add(plain.wrapping_mul(STEP as u32)).wrapping_add(rising);
            plain = plain.wrapping_add(sum);
        }
        for byte in rest {
            plain = plain.wrapping_add(NUMBERS[usize::from(*byte)]);
            weighted = weighted.wrapping_add(plain);
        }
        Self { plain, weighted, len: window.len() as u32 }
    }

    /// Moves the window by one byte: `old` leaves it, `new` enters it.
    #[inline(always)]
    pub(super) fn roll_byte(&mut self, old: u8, new: u8) {
        let old = NUMBERS[usize::from(old)];
        let new = NUMBERS[usize::from(new)];
        self.plain = self.plain.wrapping_sub(old).wrapping_add(new);
        self.weighted = self.weighted.wrapping_sub(old.wrapping_mul(self.len)).wrapping_add(self.plain);
    }

    /// The hash.
    #[inline(always)]
    pub(super) fn hash_value(self) -> u32 {
        self.weighted ^ self.plain.rotate_left(15)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rolling_is_as_good_as_starting_anew() {
        let bytes: Vec<u8> = (0..1000_u32).map(|at| ((at * at) >> 3) as u8).collect();
        let mut rolling = RollingSum::from_window(&bytes[..100]);
        for start in 1..900 {
            rolling.roll_byte(bytes[start - 1], bytes[start + 99]);
            assert_eq!(rolling, RollingSum::from_window(&bytes[start..start + 100]));
        }
    }
}
