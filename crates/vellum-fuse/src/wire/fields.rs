//! Reading fields from the bytes of a request, one after the other.

/// Why bytes are no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedRequest {
    /// A field is missing, in whole or in part.
    #[error("a request from the kernel is too short for its opcode")]
    Short,
    /// A name has no end.
    #[error("a name in a request from the kernel is not terminated")]
    Endless,
    /// It says of itself another length than it has.
    #[error("a request from the kernel states {stated} bytes, but has {found}")]
    Length {
        /// What it says.
        stated: u32,
        /// What it has.
        found: usize,
    },
}

/// What is left of a request's bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestFields<'a>(pub &'a [u8]);

impl<'a> RequestFields<'a> {
    fn read_array<const N: usize>(&mut self) -> Result<[u8; N], MalformedRequest> {
        let (field, rest) = self.0.split_first_chunk::<N>().ok_or(MalformedRequest::Short)?;
        self.0 = rest;
        Ok(*field)
    }

    pub fn read_u32(&mut self) -> Result<u32, MalformedRequest> {
        self.read_array().map(u32::from_ne_bytes)
    }

    pub fn read_u64(&mut self) -> Result<u64, MalformedRequest> {
        self.read_array().map(u64::from_ne_bytes)
    }

    /// Passes over fields that mean nothing here.
    pub fn skip_bytes(&mut self, len: usize) -> Result<(), MalformedRequest> {
        self.read_bytes(len).map(|_| ())
    }

    pub fn read_bytes(&mut self, len: usize) -> Result<&'a [u8], MalformedRequest> {
        let (field, rest) = self.0.split_at_checked(len).ok_or(MalformedRequest::Short)?;
        self.0 = rest;
        Ok(field)
    }

    /// A name, which ends with a zero byte.
    pub fn read_name(&mut self) -> Result<&'a [u8], MalformedRequest> {
        let len = self.0.iter().position(|&byte| byte == 0).ok_or(MalformedRequest::Endless)?;
        let name = self.read_bytes(len)?;
        self.skip_bytes(1)?;
        Ok(name)
    }
}
