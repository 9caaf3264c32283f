//! A request: its head and its body.
//!
//! Invariant: the stated length of a request is the length that was read.

use super::fields::{MalformedRequest, RequestFields};
use super::operation::FuseOperation;

/// Bytes of the head of a request (`fuse_in_header`).
pub const REQUEST_HEAD_LEN: usize = 40;

/// The head of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// The number of the operation; see [`super::Opcode`].
    pub opcode: u32,
    /// The number of the request, by which it is answered.
    pub unique: u64,
    /// The node that the request is about.
    pub node: u64,
    /// The user of the calling process.
    pub uid: u32,
    /// The group of the calling process.
    pub gid: u32,
    /// The calling thread; 0 if the kernel sends the request by itself.
    pub pid: u32,
}

/// A request whose head was decoded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FuseRequest<'a> {
    /// The head.
    pub header: RequestHeader,
    body: &'a [u8],
}

impl<'a> FuseRequest<'a> {
    /// Decodes the head of a request. `bytes` are what one read of the device returned.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, MalformedRequest> {
        let mut fields = RequestFields(bytes);
        let len: u32 = fields.read_number()?;
        // Of a part of a request, or of two in one piece, the fields would be decoded wrongly.
        if usize::try_from(len) != Ok(bytes.len()) {
            return Err(MalformedRequest::Length { stated: len, found: bytes.len() });
        }
        let header = RequestHeader {
            opcode: fields.read_number()?,
            unique: fields.read_number()?,
            node: fields.read_number()?,
            uid: fields.read_number()?,
            gid: fields.read_number()?,
            pid: fields.read_number()?,
        };
        // The length of extensions, which follow everything else, and padding. The handshake selects no extension.
        fields.skip_bytes(4)?;
        Ok(Self { header, body: fields.0 })
    }

    /// A request of which the head was decoded elsewhere.
    #[must_use]
    pub fn from_parts(header: RequestHeader, body: &'a [u8]) -> Self {
        Self { header, body }
    }

    /// What follows the head.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Decodes the operation.
    pub fn decode_operation(&self) -> Result<FuseOperation<'a>, MalformedRequest> {
        FuseOperation::decode(self.header.opcode, self.body)
    }
}
