//! The fields of frames: little-endian numbers, and bytes behind their length.
//!
//! Invariant: reading takes nothing but bytes that are there, and a length above its limit is an error.

use crate::error::{ClusterError, Result};

/// The bytes of a frame that were not read yet.
#[derive(Debug, Clone, Copy)]
pub struct FrameFields<'a>(&'a [u8]);

impl<'a> FrameFields<'a> {
    /// All bytes of a frame.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next `N` bytes.
    pub fn read_array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>().ok_or(ClusterError::Malformed("too short"))?;
        self.0 = rest;
        Ok(*field)
    }

    /// The next byte.
    pub fn read_u8(&mut self) -> Result<u8> {
        self.read_array().map(u8::from_le_bytes)
    }

    /// The next number of 16 bits.
    pub fn read_u16(&mut self) -> Result<u16> {
        self.read_array().map(u16::from_le_bytes)
    }

    /// The next number of 32 bits.
    pub fn read_u32(&mut self) -> Result<u32> {
        self.read_array().map(u32::from_le_bytes)
    }

    /// The next number of 64 bits.
    pub fn read_u64(&mut self) -> Result<u64> {
        self.read_array().map(u64::from_le_bytes)
    }

    /// Bytes behind their length, of which there are at most `max`.
    pub fn read_bytes(&mut self, max: usize) -> Result<&'a [u8]> {
        let len = usize::from(self.read_u16()?);
        if len > max {
            return Err(ClusterError::Malformed("a field is too long"));
        }
        let (field, rest) = self.0.split_at_checked(len).ok_or(ClusterError::Malformed("too short"))?;
        self.0 = rest;
        Ok(field)
    }

    /// A text behind its length in bytes, which is at most `max`.
    pub fn read_text(&mut self, max: usize) -> Result<&'a str> {
        std::str::from_utf8(self.read_bytes(max)?).map_err(|_| ClusterError::Malformed("a text is not UTF-8"))
    }

    /// All that is left.
    pub fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Fails if something is left.
    pub fn expect_end(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(ClusterError::Malformed("too long")) }
    }
}

/// Appends bytes behind their length. What is longer than a length can say is cut.
pub fn append_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    out.extend(len.to_le_bytes());
    out.extend(bytes.iter().take(usize::from(len)));
}
