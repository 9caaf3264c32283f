//! The first request and its answer: the features of the kernel, and those that are selected.

use super::buffer::SmallAnswer;
use super::fields::{MalformedRequest, RequestFields};

/// The major version of the protocol. A kernel with a later one falls back to this.
pub const MAJOR: u32 = 7;

/// The latest minor version that is supported.
const MINOR: u32 = 45;

/// The first minor version in which the kernel sends a second word of flags.
const MINOR_WITH_MORE_FLAGS: u32 = 36;

/// Features that the kernel can offer (`FUSE_…`).
#[expect(missing_docs, reason = "they have the names of FUSE")]
pub mod flags {
    pub const ASYNC_READ: u64 = 1;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Version and features of the kernel (`fuse_init_in`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitRequest {
    /// The major version.
    pub major: u32,
    /// The minor version.
    pub minor: u32,
    /// How far the kernel would read ahead, bytes.
    pub max_readahead: u32,
    /// The features that it offers.
    pub flags: u64,
}

impl InitRequest {
    pub(super) fn decode(fields: &mut RequestFields<'_>) -> Result<Self, MalformedRequest> {
        let major = fields.read_number()?;
        let minor = fields.read_number()?;
        // Another major version may lay out the rest differently.
        let is_known = major == MAJOR;
        let max_readahead = if is_known { fields.read_number()? } else { 0 };
        let low: u32 = if is_known { fields.read_number()? } else { 0 };
        let has_more = minor >= MINOR_WITH_MORE_FLAGS && u64::from(low) & flags::INIT_EXT != 0;
        let high: u32 = if has_more { fields.read_number()? } else { 0 };
        Ok(Self { major, minor, max_readahead, flags: u64::from(high) << 32 | u64::from(low) })
    }
}

/// What is selected (`fuse_init_out`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InitAnswer {
    /// How far the kernel may read ahead, bytes.
    pub max_readahead: u32,
    /// The selected features.
    pub flags: u64,
    /// Requests that the kernel may have in progress while no process waits for them.
    pub max_background: u16,
    /// From this number of them on, the kernel starts no further write-back.
    pub congestion: u16,
    /// Bytes that a write request may carry.
    pub max_write: u32,
    /// Pages that a request may carry.
    pub max_pages: u16,
}

impl InitAnswer {
    /// Encodes the answer.
    #[must_use]
    pub fn encode(self) -> SmallAnswer {
        // The unit of times is one nanosecond.
        let granularity = 1;
        let low = (self.flags & u64::from(u32::MAX)) as u32;
        let high = (self.flags >> 32) as u32;
        SmallAnswer::default()
            .with_u32(MAJOR)
            .with_u32(MINOR)
            .with_u32(self.max_readahead)
            .with_u32(low)
            .with_u16(self.max_background)
            .with_u16(self.congestion)
            .with_u32(self.max_write)
            .with_u32(granularity)
            .with_u16(self.max_pages)
            .with_u16(0)
            .with_u32(high)
            .with_zeros(7 * 4)
    }
}
