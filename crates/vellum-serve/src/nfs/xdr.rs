//! Values as XDR has them (RFC 4506): big endian, in units of four bytes.

/// Bytes that are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XdrFault;

/// Reads values one after another.
#[derive(Debug, Clone)]
pub struct XdrReader<'a> {
    rest: &'a [u8],
}

/// Writes values one after another.
#[derive(Debug, Default)]
pub struct XdrWriter {
    bytes: Vec<u8>,
}

/// Zeros behind bytes whose number is no multiple of four.
#[must_use]
pub fn padding_len(len: usize) -> usize {
    len.wrapping_neg() % 4
}

impl<'a> XdrReader<'a> {
    /// Of all these bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What was not read yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// A number of 32 bits.
    pub fn read_u32(&mut self) -> Result<u32, XdrFault> {
        self.read_fixed().map(u32::from_be_bytes)
    }

    /// A number of 64 bits.
    pub fn read_u64(&mut self) -> Result<u64, XdrFault> {
        self.read_fixed().map(u64::from_be_bytes)
    }

    /// A truth value. Anything but 0 and 1 is a fault.
    pub fn read_bool(&mut self) -> Result<bool, XdrFault> {
        match self.read_u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(XdrFault),
        }
    }

    /// What may be there or not, with the word that says so.
    pub fn read_optional<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, XdrFault>,
    ) -> Result<Option<T>, XdrFault> {
        if self.read_bool()? { read(self).map(Some) } else { Ok(None) }
    }

    /// So many bytes, a multiple of four.
    pub fn read_fixed<const LEN: usize>(&mut self) -> Result<[u8; LEN], XdrFault> {
        let split = self.rest.split_first_chunk().ok_or(XdrFault)?;
        self.rest = split.1;
        Ok(*split.0)
    }

    /// Bytes with their length in front, at most `max`.
    pub fn read_opaque(&mut self, max: usize) -> Result<&'a [u8], XdrFault> {
        let len = usize::try_from(self.read_u32()?).map_err(|_| XdrFault)?;
        if len > max {
            return Err(XdrFault);
        }
        let split = self.rest.split_at_checked(len).ok_or(XdrFault)?;
        // What is in the padding means nothing.
        self.rest = split.1.get(padding_len(len)..).ok_or(XdrFault)?;
        Ok(split.0)
    }
}

impl XdrWriter {
    /// With room for so many bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes) }
    }

    /// How many bytes were written.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Takes back what was written behind the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// Everything that was written.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// A number of 32 bits.
    pub fn put_u32(&mut self, number: u32) {
        self.bytes.extend_from_slice(&number.to_be_bytes());
    }

    /// A number of 64 bits.
    pub fn put_u64(&mut self, number: u64) {
        self.bytes.extend_from_slice(&number.to_be_bytes());
    }

    /// A truth value.
    pub fn put_bool(&mut self, value: bool) {
        self.put_u32(u32::from(value));
    }

    /// Bytes whose number is known to the reader, a multiple of four.
    pub fn put_fixed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes with their length in front.
    pub fn put_opaque(&mut self, bytes: &[u8]) {
        // Nothing that is written has 4 GiB.
        self.put_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(&[0; 3][..padding_len(bytes.len())]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let mut writer = XdrWriter::default();
        writer.put_u32(7);
        writer.put_u64(1 << 40);
        writer.put_bool(true);
        for len in 0..9 {
            writer.put_opaque(&vec![1; len]);
        }
        let bytes = writer.into_bytes();
        assert_eq!(bytes.len() % 4, 0);
        let mut reader = XdrReader::new(&bytes);
        assert_eq!(
            (reader.read_u32(), reader.read_u64(), reader.read_bool()),
            (Ok(7), Ok(1 << 40), Ok(true))
        );
        for len in 0..9 {
            assert_eq!(reader.read_opaque(8), Ok(vec![1; len].as_slice()));
        }
        assert_eq!(reader.read_u32(), Err(XdrFault));
    }

    #[test]
    fn no_length_is_believed() {
        for bytes in [
            [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
            [0, 0, 0, 5, 0, 0, 0, 0],
            // Longer than it may be, although it is there.
            [0, 0, 0, 4, 0, 0, 0, 0],
        ] {
            assert_eq!(XdrReader::new(&bytes).read_opaque(3), Err(XdrFault));
        }
        assert_eq!(XdrReader::new(&[0, 0, 0, 1, 9]).read_opaque(8), Err(XdrFault), "without its padding");
        assert_eq!(XdrReader::new(&[0, 0, 0, 2]).read_bool(), Err(XdrFault));
    }
}
