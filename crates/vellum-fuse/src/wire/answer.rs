//! Answers, and the results of a fixed size that they can have.
//!
//! Invariant: an answer of a fixed size has the length that the kernel expects of it.

use std::sync::Arc;

use rustix::io::Errno;

use super::attributes::EntryAnswer;
use super::buffer::SmallAnswer;
use super::operation::FileLock;

/// Bytes of `fuse_kstatfs` that are reserved.
const STATFS_SPARE: usize = 7 * 4;

/// An answer to a request.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is on the stack for a moment, so that small answers need no allocation"
)]
pub enum FuseAnswer {
    /// None: the request wants no answer.
    None,
    /// None yet: another thread answers.
    Later,
    /// The request failed.
    Failed(Errno),
    /// The request succeeded, and has no result.
    Done,
    /// A result of a fixed size.
    Small(SmallAnswer),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Bytes that are also used elsewhere.
    Shared(Arc<[u8]>),
}

impl SmallAnswer {
    /// The entry of a name that was found or created (`fuse_entry_out`).
    #[must_use]
    pub fn for_entry(entry: &EntryAnswer) -> Self {
        let mut small = Self::default();
        entry.encode(&mut small);
        small
    }

    /// The entry of a file that was created and opened (`fuse_entry_out`, `fuse_open_out`).
    #[must_use]
    pub fn for_created_file(entry: &EntryAnswer, open: OpenFileAnswer) -> Self {
        Self::for_entry(entry).with_open_file(open)
    }

    /// An open file or directory (`fuse_open_out`).
    #[must_use]
    pub fn for_open_file(open: OpenFileAnswer) -> Self {
        Self::default().with_open_file(open)
    }

    fn with_open_file(self, open: OpenFileAnswer) -> Self {
        self.with_u64(open.handle).with_u32(open.flags).with_u32(0)
    }

    /// A lock that prevents another one (`fuse_lk_out`).
    #[must_use]
    pub fn for_lock(lock: &FileLock) -> Self {
        Self::default().with_u64(lock.start).with_u64(lock.end).with_u32(lock.kind).with_u32(lock.pid)
    }

    /// Attributes (`fuse_attr_out`).
    #[must_use]
    pub fn for_attributes(entry: &EntryAnswer) -> Self {
        let timeout = entry.attribute_timeout();
        let mut small =
            Self::default().with_u64(timeout.as_secs()).with_u32(timeout.subsec_nanos()).with_u32(0);
        entry.attr.encode(&mut small);
        small
    }

    /// Attributes with the creation time (`fuse_statx_out`).
    #[must_use]
    pub fn for_statx(entry: &EntryAnswer) -> Self {
        let timeout = entry.attribute_timeout();
        let head = Self::default()
            .with_u64(timeout.as_secs())
            .with_u32(timeout.subsec_nanos())
            .with_u32(0)
            .with_zeros(2 * 8);
        entry.attr.encode_statx(head)
    }

    /// A number of bytes: how many were written, or the length of an extended attribute (`fuse_write_out`,
    /// `fuse_getxattr_out`).
    #[must_use]
    pub fn for_byte_count(bytes: u32) -> Self {
        Self::default().with_u32(bytes).with_u32(0)
    }

    /// A position in a file, or a number of bytes in 64 bits (`fuse_lseek_out`, `fuse_copy_file_range_out`).
    #[must_use]
    pub fn for_offset(offset: u64) -> Self {
        Self::default().with_u64(offset)
    }

    /// The output of an `ioctl` (`fuse_ioctl_out`): `words` zeros of 32 bits.
    #[must_use]
    pub fn for_ioctl(words: usize) -> Self {
        let result = 0;
        let flags = 0;
        let parts = 0;
        Self::default().with_u32(result).with_u32(flags).with_u32(parts).with_u32(parts).with_zeros(4 * words)
    }

    /// The capacity of the filesystem (`fuse_statfs_out`).
    #[must_use]
    pub fn for_statfs(fs: &vellum_fs::FilesystemStatistics) -> Self {
        Self::default()
            .with_u64(fs.blocks)
            .with_u64(fs.blocks_free)
            .with_u64(fs.blocks_available)
            .with_u64(fs.files)
            .with_u64(fs.files_free)
            .with_u32(fs.block_size)
            .with_u32(fs.name_max)
            // The fragment size, in which the kernel counts blocks.
            .with_u32(fs.block_size)
            .with_zeros(STATFS_SPARE)
    }
}

/// An open file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFileAnswer {
    /// Its number in later requests; 0 if it needs none.
    pub handle: u64,
    /// How the kernel treats it: [`open_flags`].
    pub flags: u32,
}

/// How the kernel treats an open file (`FOPEN_…`).
pub mod open_flags {
    /// Reads and writes bypass the kernel's pages.
    pub const DIRECT_IO: u32 = 1;
    /// The kernel keeps the pages that it has cached of the file.
    pub const KEEP_CACHE: u32 = 1 << 1;
}

impl FuseAnswer {
    /// An answer of a fixed size, encoded by `small`, or the failure.
    pub fn from_result<T>(done: Result<T, Errno>, small: impl FnOnce(&T) -> SmallAnswer) -> Self {
        match done {
            Ok(value) => Self::Small(small(&value)),
            Err(error) => Self::Failed(error),
        }
    }

    /// Success, or the failure.
    #[must_use]
    pub fn from_unit_result(done: Result<(), Errno>) -> Self {
        done.map_or_else(Self::Failed, |()| Self::Done)
    }

    /// Bytes, or the failure.
    #[must_use]
    pub fn from_bytes_result(done: Result<Vec<u8>, Errno>) -> Self {
        done.map_or_else(Self::Failed, Self::Bytes)
    }
}
