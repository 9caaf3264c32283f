//! The handshake: features of the kernel, and those that are selected.

use super::answer::SmallAnswer;
use super::fields::{MalformedRequest, RequestFields};

/// The version of the protocol: a kernel that speaks a later one is told to speak this.
pub const MAJOR: u32 = 7;

/// The latest minor version whose requests are known here.
const MINOR: u32 = 45;

/// The first minor version in which the kernel sends a second word of flags.
const MINOR_WITH_MORE_FLAGS: u32 = 36;

/// What the kernel can do, and may be asked to (`FUSE_…`).
#[expect(missing_docs, reason = "they are called what FUSE calls them")]
pub mod flags {
    pub const ASYNC_READ: u64 = 1;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
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
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// What the kernel says of itself (`fuse_init_in`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitRequest {
    /// The version that it speaks.
    pub major: u32,
    /// The minor version.
    pub minor: u32,
    /// How far it would read ahead, bytes.
    pub max_readahead: u32,
    /// What it can do.
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

/// What the kernel is asked to do (`fuse_init_out`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InitAnswer {
    /// How far it may read ahead, bytes.
    pub max_readahead: u32,
    /// What it is to do, of what it can.
    pub flags: u64,
    /// Requests that it may keep going without anybody waiting.
    pub max_background: u16,
    /// From how many of these on it writes no more by itself.
    pub congestion: u16,
    /// Bytes of a request to write at most.
    pub max_write: u32,
    /// Pages of a request at most.
    pub max_pages: u16,
}

impl InitAnswer {
    /// Its bytes.
    #[must_use]
    pub fn encode(self) -> SmallAnswer {
        // Times count in nanoseconds.
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
