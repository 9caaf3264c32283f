//! The sizes of content-defined chunks, as a volume stores them.
//!
//! Invariant: existing parameters are in range and consistent, so that the chunker needs no checks of its own.

use vellum_types::limits::BLOB_MAX;
use vellum_types::{DecodeError, FieldReader, FieldWriter};

/// Least minimum, bytes: much longer than the window of the rolling hash, and a chunk is larger than its index entry.
const MIN_FLOOR: usize = 1 << 10;
/// Least target, bytes: it keeps the probability that a candidate becomes a boundary below one.
const TARGET_FLOOR: usize = 8 << 10;
/// What the average is divided by for the least length, and multiplied by for the greatest.
const SPREAD: usize = 4;
/// The algorithm of this version: keyed gear hash, then a keyed decision.
const ALGORITHM: u8 = 1;

/// The sizes of chunks, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChunkSizes {
    min: usize,
    target: usize,
    max: usize,
}

impl ChunkSizes {
    /// The sizes for new volumes: 16 KiB at least, 64 KiB on average, 256 KiB at most.
    pub const DEFAULT: Self = Self { min: 16 << 10, target: 64 << 10, max: 256 << 10 };

    /// Least average that [`Self::from_target`] takes, bytes.
    pub const TARGET_MIN: usize = TARGET_FLOOR;
    /// Greatest average that [`Self::from_target`] takes, bytes: the longest chunk fits into a blob.
    pub const TARGET_MAX: usize = BLOB_MAX / SPREAD;

    /// These sizes, if they are within the limits: twice the minimum is at most the target, twice the target at most
    /// the maximum, and the maximum fits into a blob.
    pub fn new(min: usize, target: usize, max: usize) -> Result<Self, DecodeError> {
        // Sizes come from the configuration of a volume, so the products can overflow.
        let ordered = min.checked_mul(2).is_some_and(|twice| twice <= target)
            && target.checked_mul(2).is_some_and(|twice| twice <= max);
        if min < MIN_FLOOR || target < TARGET_FLOOR || max > BLOB_MAX || !ordered {
            return Err(DecodeError::Invalid("chunk sizes"));
        }
        Ok(Self { min, target, max })
    }

    /// Sizes around an average, bytes: a quarter of it at least, and four times as much at most. Fails outside of
    /// [`Self::TARGET_MIN`] to [`Self::TARGET_MAX`].
    pub fn from_target(target: usize) -> Result<Self, DecodeError> {
        // So large that the product would overflow, it is out of range in any case.
        Self::new(target / SPREAD, target, target.saturating_mul(SPREAD))
    }

    /// Least length of a chunk that is not the last of its file, bytes.
    #[must_use]
    pub fn min_len(self) -> usize {
        self.min
    }

    /// Average length, bytes.
    #[must_use]
    pub fn target_len(self) -> usize {
        self.target
    }

    /// Greatest length, bytes.
    #[must_use]
    pub fn max_len(self) -> usize {
        self.max
    }

    /// Appends the encoded form: the algorithm's number, then the three sizes.
    pub fn encode(self, writer: &mut FieldWriter) {
        writer.write_u8(ALGORITHM);
        for size in [self.min, self.target, self.max] {
            writer.write_varint(size as u64);
        }
    }

    /// Decodes the encoded form.
    pub fn decode(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let algorithm = reader.read_u8()?;
        if algorithm != ALGORITHM {
            return Err(DecodeError::Version(algorithm.into()));
        }
        let mut size =
            || usize::try_from(reader.read_varint()?).map_err(|_| DecodeError::Invalid("chunk sizes"));
        Self::new(size()?, size()?, size()?)
    }
}

impl Default for ChunkSizes {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_default_is_within_the_limits() {
        let ChunkSizes { min, target, max } = ChunkSizes::DEFAULT;
        assert_eq!(ChunkSizes::new(min, target, max), Ok(ChunkSizes::DEFAULT));
    }

    #[test]
    fn an_average_makes_sizes_within_the_limits_or_is_refused() {
        assert_eq!(ChunkSizes::from_target(64 << 10), Ok(ChunkSizes::DEFAULT));
        let least = ChunkSizes { min: 2 << 10, target: 8 << 10, max: 32 << 10 };
        assert_eq!(ChunkSizes::from_target(ChunkSizes::TARGET_MIN), Ok(least));
        let greatest = ChunkSizes { min: 256 << 10, target: 1 << 20, max: 4 << 20 };
        assert_eq!(ChunkSizes::from_target(ChunkSizes::TARGET_MAX), Ok(greatest));
        for target in [0, 3, ChunkSizes::TARGET_MIN - 1, ChunkSizes::TARGET_MAX + 1, 10 << 30, usize::MAX] {
            assert!(ChunkSizes::from_target(target).is_err(), "{target}");
        }
    }

    #[test]
    fn sizes_out_of_range_or_order_are_refused() {
        let refused = [
            (0, 0, 0),
            (1023, 65_536, 262_144),
            (1024, 4096, 262_144),
            (40_000, 65_536, 262_144),
            (16_384, 65_536, 100_000),
            (16_384, 65_536, BLOB_MAX + 1),
            (usize::MAX, usize::MAX, usize::MAX),
        ];
        for (min, target, max) in refused {
            assert!(ChunkSizes::new(min, target, max).is_err(), "{min} {target} {max}");
        }
    }

    #[test]
    fn the_stored_form_never_changes() {
        let mut writer = FieldWriter::new();
        ChunkSizes::DEFAULT.encode(&mut writer);
        assert_eq!(writer.as_slice(), [1, 0x80, 0x80, 1, 0x80, 0x80, 4, 0x80, 0x80, 0x10]);
        assert_eq!(ChunkSizes::decode(&mut FieldReader::new(writer.as_slice())), Ok(ChunkSizes::DEFAULT));
        assert_eq!(ChunkSizes::decode(&mut FieldReader::new(&[2, 0, 0, 0])), Err(DecodeError::Version(2)));
    }

    proptest! {
        #[test]
        fn every_average_in_range_is_taken(target in ChunkSizes::TARGET_MIN..=ChunkSizes::TARGET_MAX) {
            prop_assert_eq!(ChunkSizes::from_target(target).map(ChunkSizes::target_len), Ok(target));
        }

        #[test]
        fn what_decodes_is_valid_and_encodes_the_same(bytes in proptest::collection::vec(any::<u8>(), 0..24)) {
            let mut reader = FieldReader::new(&bytes);
            if let Ok(params) = ChunkSizes::decode(&mut reader) {
                prop_assert_eq!(ChunkSizes::new(params.min_len(), params.target_len(), params.max_len()), Ok(params));
                let mut writer = FieldWriter::new();
                params.encode(&mut writer);
                prop_assert_eq!(writer.as_slice(), &bytes[..bytes.len() - reader.remaining()]);
            }
        }
    }
}
