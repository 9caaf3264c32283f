//! Reads the fields of a request, one after the other.
//!
//! Invariant: reading takes nothing but bytes that are there; a field that is missing in whole or in part is an error.

/// Why bytes cannot be decoded as a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedRequest {
    /// A field is missing, in whole or in part.
    #[error("a request from the kernel is too short for its opcode")]
    Short,
    /// A name is not terminated.
    #[error("a name in a request from the kernel is not terminated")]
    Endless,
    /// The chunks of a stored write are none, too many, or not those of its length.
    #[error("a stored write does not name the chunks of its length")]
    Chunks,
    /// The stated length differs from the length that was read.
    #[error("a request from the kernel states {stated} bytes, but has {found}")]
    Length {
        /// The length in its head, bytes.
        stated: u32,
        /// The bytes that were read.
        found: usize,
    },
}

/// The bytes of a request that were not read yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestFields<'a>(pub &'a [u8]);

/// A number that a field of a request can hold.
pub(super) trait FieldNumber: Sized {
    /// Reads the number from the beginning of `fields`.
    fn read(fields: &mut RequestFields<'_>) -> Result<Self, MalformedRequest>;
}

macro_rules! impl_field_number {
    ($($number:ty)+) => {
        $(impl FieldNumber for $number {
            fn read(fields: &mut RequestFields<'_>) -> Result<Self, MalformedRequest> {
                fields.read_array().map(Self::from_ne_bytes)
            }
        })+
    };
}

impl_field_number!(u32 u64 i64);

impl<'a> RequestFields<'a> {
    fn read_array<const N: usize>(&mut self) -> Result<[u8; N], MalformedRequest> {
        let (field, rest) = self.0.split_first_chunk::<N>().ok_or(MalformedRequest::Short)?;
        self.0 = rest;
        Ok(*field)
    }

    /// Reads the next number.
    pub fn read_number<N: FieldNumber>(&mut self) -> Result<N, MalformedRequest> {
        N::read(self)
    }

    /// Skips fields that mean nothing here.
    pub fn skip_bytes(&mut self, len: usize) -> Result<(), MalformedRequest> {
        self.read_bytes(len).map(|_| ())
    }

    /// Reads the next `len` bytes.
    pub fn read_bytes(&mut self, len: usize) -> Result<&'a [u8], MalformedRequest> {
        let (field, rest) = self.0.split_at_checked(len).ok_or(MalformedRequest::Short)?;
        self.0 = rest;
        Ok(field)
    }

    /// Reads data whose length another field states.
    pub fn read_data(&mut self, len: u32) -> Result<&'a [u8], MalformedRequest> {
        self.read_bytes(usize::try_from(len).map_err(|_| MalformedRequest::Short)?)
    }

    /// Reads a name, which is terminated by a zero byte, and returns it without that.
    pub fn read_name(&mut self) -> Result<&'a [u8], MalformedRequest> {
        let len = self.0.iter().position(|&byte| byte == 0).ok_or(MalformedRequest::Endless)?;
        let name = self.read_bytes(len)?;
        self.skip_bytes(1)?;
        Ok(name)
    }
}
