//! A request: its header and its operation.

use super::fields::{MalformedRequest, RequestFields};
use super::operation::FuseOperation;

/// Bytes of the head of a request (`fuse_in_header`).
pub const REQUEST_HEAD_LEN: usize = 40;

/// The head of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// What is asked for, as the kernel numbers it.
    pub opcode: u32,
    /// The request's own number, by which it is answered.
    pub unique: u64,
    /// The node that it is about.
    pub node: u64,
    /// User who asks.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Process.
    pub pid: u32,
}

/// A request of the kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FuseRequest<'a> {
    /// Its head.
    pub header: RequestHeader,
    body: &'a [u8],
}

impl<'a> FuseRequest<'a> {
    /// Decodes the head of what was read from the device at once.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, MalformedRequest> {
        let mut fields = RequestFields(bytes);
        let len: u32 = fields.read_number()?;
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
        // Length of extensions, which stand behind everything else, and padding. None is ever asked for.
        fields.skip_bytes(4)?;
        Ok(Self { header, body: fields.0 })
    }

    /// Decodes what it asks for.
    pub fn decode_operation(&self) -> Result<FuseOperation<'a>, MalformedRequest> {
        FuseOperation::decode(self.header.opcode, self.body)
    }
}
