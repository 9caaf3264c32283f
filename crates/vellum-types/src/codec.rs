//! Bytes in and out of stored formats: varints, byte strings, fixed integers.
//!
//! Invariant: a `FieldReader` never reads past its input, never panics, and never returns a length that its input
//! cannot hold, so that what is allocated is bounded by what was received. Varints have one encoding only.

/// Why bytes could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The input ended within a field.
    #[error("it ends too early")]
    Truncated,
    /// Bytes were left over.
    #[error("bytes are left over at its end")]
    Trailing,
    /// A field has a value outside what the format allows.
    #[error("its field '{0}' is out of range")]
    Invalid(&'static str),
    /// The magic number is not this format's.
    #[error("its magic number is wrong")]
    Magic,
    /// A version that this program does not know.
    #[error("its format version {0} is not supported by this version of vellum")]
    Version(u32),
}

/// A cursor over untrusted bytes.
#[derive(Debug, Clone)]
pub struct FieldReader<'a> {
    rest: &'a [u8],
}

impl<'a> FieldReader<'a> {
    /// Reads from the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// How many bytes are left.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The next `count` bytes.
    pub fn read_raw(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        // The count may come from the input, and be anything.
        let (head, rest) = self.rest.split_at_checked(count).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    /// All bytes that are left.
    pub fn read_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// The next `N` bytes as an array.
    pub fn read_array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    /// One byte.
    pub fn read_u8(&mut self) -> Result<u8, DecodeError> {
        self.read_array::<1>().map(|[byte]| byte)
    }

    /// A little-endian u32.
    pub fn read_u32(&mut self) -> Result<u32, DecodeError> {
        self.read_array().map(u32::from_le_bytes)
    }

    /// A little-endian u64.
    pub fn read_u64(&mut self) -> Result<u64, DecodeError> {
        self.read_array().map(u64::from_le_bytes)
    }

    /// A LEB128 varint of at most 64 bits, in its shortest form only.
    pub fn read_varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.read_u8()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte holds the last bit of 64, and a zero byte at the end would be a second form of the same
            // number.
            if shift == 63 && bits > 1 || byte == 0 && shift > 0 {
                return Err(DecodeError::Invalid("varint"));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        // All ten bytes announce another one, and no number of 64 bits takes more than ten.
        Err(DecodeError::Invalid("varint"))
    }

    /// A varint that must fit in a u32.
    pub fn read_varint_u32(&mut self) -> Result<u32, DecodeError> {
        u32::try_from(self.read_varint()?).map_err(|_| DecodeError::Invalid("varint"))
    }

    /// A zigzag varint.
    pub fn read_signed_varint(&mut self) -> Result<i64, DecodeError> {
        let raw = self.read_varint()?;
        // The lowest bit is the sign, so that negative numbers near zero are short as well.
        Ok((raw >> 1).cast_signed() ^ -((raw & 1).cast_signed()))
    }

    /// A varint count of things of at least one byte each: never more than the bytes left.
    pub fn read_count(&mut self, max: usize) -> Result<usize, DecodeError> {
        // No input can have so many bytes.
        let count = usize::try_from(self.read_varint()?).map_err(|_| DecodeError::Truncated)?;
        if count > max {
            return Err(DecodeError::Invalid("count"));
        }
        // Callers reserve room for as many: a hostile count must not make them take more than the input justifies.
        if count > self.remaining() {
            return Err(DecodeError::Truncated);
        }
        Ok(count)
    }

    /// A byte string: varint length, then that many bytes, `max` at most.
    pub fn read_bytes(&mut self, max: usize) -> Result<&'a [u8], DecodeError> {
        let len = usize::try_from(self.read_varint()?).map_err(|_| DecodeError::Truncated)?;
        if len > max {
            return Err(DecodeError::Invalid("length"));
        }
        self.read_raw(len)
    }

    /// A byte string that must be UTF-8.
    pub fn read_string(&mut self, max: usize) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.read_bytes(max)?).map_err(|_| DecodeError::Invalid("text"))
    }

    /// A version byte; any other than `known` is [`DecodeError::Version`].
    pub fn expect_version(&mut self, known: u8) -> Result<(), DecodeError> {
        let version = self.read_u8()?;
        if version == known { Ok(()) } else { Err(DecodeError::Version(u32::from(version))) }
    }

    /// Ends the reading: nothing may be left.
    pub fn expect_end(self) -> Result<(), DecodeError> {
        // With bytes left over, one value would have several stored forms.
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing) }
    }
}

/// Appends fields to a buffer; the counterpart of [`FieldReader`].
#[derive(Debug, Default, Clone)]
pub struct FieldWriter {
    out: Vec<u8>,
}

impl FieldWriter {
    /// An empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends to `out`.
    #[must_use]
    pub fn from_vec(out: Vec<u8>) -> Self {
        Self { out }
    }

    /// Raw bytes, with no length.
    pub fn write_raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.out.extend_from_slice(bytes);
        self
    }

    /// One byte.
    pub fn write_u8(&mut self, value: u8) -> &mut Self {
        self.out.push(value);
        self
    }

    /// A little-endian u32.
    pub fn write_u32(&mut self, value: u32) -> &mut Self {
        self.write_raw(&value.to_le_bytes())
    }

    /// A little-endian u64.
    pub fn write_u64(&mut self, value: u64) -> &mut Self {
        self.write_raw(&value.to_le_bytes())
    }

    /// A LEB128 varint.
    pub fn write_varint(&mut self, mut value: u64) -> &mut Self {
        while value >= 0x80 {
            self.out.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        // Less than 0x80 is left, so that the cast loses nothing.
        self.write_u8(value as u8)
    }

    /// A zigzag varint.
    pub fn write_signed_varint(&mut self, value: i64) -> &mut Self {
        // The arithmetic shift repeats the sign in all bits, which makes small odd numbers of small negative ones.
        self.write_varint(((value << 1) ^ (value >> 63)).cast_unsigned())
    }

    /// A byte string: varint length, then the bytes.
    pub fn write_bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.write_varint(bytes.len() as u64).write_raw(bytes)
    }

    /// What was written.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        self.out
    }

    /// What was written so far.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_round_trip(value: u64, signed: i64) {
            let mut writer = FieldWriter::new();
            writer.write_varint(value).write_signed_varint(signed);
            let bytes = writer.into_vec();
            let mut reader = FieldReader::new(&bytes);
            prop_assert_eq!(reader.read_varint(), Ok(value));
            prop_assert_eq!(reader.read_signed_varint(), Ok(signed));
            prop_assert_eq!(reader.expect_end(), Ok(()));
        }

        #[test]
        fn a_varint_has_one_encoding(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            let mut reader = FieldReader::new(&bytes);
            if let Ok(value) = reader.read_varint() {
                let mut writer = FieldWriter::new();
                writer.write_varint(value);
                prop_assert_eq!(writer.as_slice(), &bytes[..bytes.len() - reader.remaining()]);
            }
        }
    }

    #[test]
    fn lengths_are_capped_by_limit_and_by_input() {
        assert_eq!(FieldReader::new(&[5, 1, 2]).read_bytes(10), Err(DecodeError::Truncated));
        assert_eq!(FieldReader::new(&[5, 1, 2, 3, 4, 5]).read_bytes(4), Err(DecodeError::Invalid("length")));
        let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(FieldReader::new(&huge).read_count(usize::MAX), Err(DecodeError::Truncated));
    }
}
