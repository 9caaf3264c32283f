//! Answers: a head and the result.
//!
//! Invariant: an answer of a fixed size is encoded without an allocation.

use std::sync::Arc;

use rustix::io::Errno;

use super::attributes::{EntryAnswer, NodeAttributes};

/// Bytes of the head of an answer (`fuse_out_header`).
pub const HEAD_LEN: usize = 16;

/// Bytes of the largest answer of a fixed size: `fuse_statx_out`.
const SMALL_MAX: usize = 288;

/// Bytes of `fuse_kstatfs` that are reserved.
const STATFS_SPARE: usize = 7 * 4;

/// The head of an answer or of a notification: `len` is its length without the head, `code` the negative errno (or the
/// number of the notification), and `unique` the number of the request that is answered.
#[must_use]
pub fn encode_answer_head(len: usize, code: i32, unique: u64) -> [u8; HEAD_LEN] {
    let mut head = [0; HEAD_LEN];
    let len = u32::try_from(HEAD_LEN + len).unwrap_or(u32::MAX);
    let (first, last) = head.split_at_mut(HEAD_LEN / 2);
    first[..4].copy_from_slice(&len.to_ne_bytes());
    first[4..].copy_from_slice(&code.to_ne_bytes());
    last.copy_from_slice(&unique.to_ne_bytes());
    head
}

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

/// A buffer for parts of an answer.
pub(super) trait AnswerBuffer {
    fn append_bytes(&mut self, bytes: &[u8]);
}

impl AnswerBuffer for Vec<u8> {
    fn append_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// An answer of a fixed size, with room for the head in front of it, so that both are written in one piece.
#[derive(Debug, Clone, Copy)]
pub struct SmallAnswer {
    bytes: [u8; HEAD_LEN + SMALL_MAX],
    len: usize,
}

impl Default for SmallAnswer {
    fn default() -> Self {
        Self { bytes: [0; HEAD_LEN + SMALL_MAX], len: HEAD_LEN }
    }
}

impl AnswerBuffer for SmallAnswer {
    fn append_bytes(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        debug_assert!(end <= self.bytes.len(), "an answer of a fixed size is larger than any");
        if let Some(place) = self.bytes.get_mut(self.len..end) {
            place.copy_from_slice(bytes);
            self.len = end;
        }
    }
}

impl SmallAnswer {
    pub(super) fn with_u16(mut self, value: u16) -> Self {
        self.append_bytes(&value.to_ne_bytes());
        self
    }

    pub(super) fn with_u32(mut self, value: u32) -> Self {
        self.append_bytes(&value.to_ne_bytes());
        self
    }

    pub(super) fn with_u64(mut self, value: u64) -> Self {
        self.append_bytes(&value.to_ne_bytes());
        self
    }

    pub(super) fn with_zeros(mut self, len: usize) -> Self {
        // The buffer is zeroed.
        self.len = (self.len + len).min(self.bytes.len());
        self
    }

    /// The whole answer to a request.
    pub fn finish_answer(&mut self, unique: u64) -> &[u8] {
        let head = encode_answer_head(self.len - HEAD_LEN, 0, unique);
        self.bytes[..HEAD_LEN].copy_from_slice(&head);
        &self.bytes[..self.len]
    }

    /// The answer without its head.
    #[must_use]
    pub fn answer_body(&self) -> &[u8] {
        &self.bytes[HEAD_LEN..self.len]
    }

    /// The entry of a name that was found or created (`fuse_entry_out`).
    #[must_use]
    pub fn for_entry(entry: &EntryAnswer) -> Self {
        let mut small = Self::default();
        entry.encode(&mut small);
        small
    }

    /// The entry of a file that was created and opened (`fuse_open_out`). The kernel keeps its pages.
    #[must_use]
    pub fn for_created_file(entry: &EntryAnswer) -> Self {
        let handle = 0;
        Self::for_entry(entry).with_u64(handle).with_u32(OPEN_KEEP_CACHE).with_u32(0)
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
            .with_u32(fs.block_size)
            .with_zeros(STATFS_SPARE)
    }
}

/// The kernel keeps the pages that it has cached of the file (`FOPEN_KEEP_CACHE`).
const OPEN_KEEP_CACHE: u32 = 1 << 1;

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

impl NodeAttributes {
    /// Encodes `fuse_attr`.
    pub(super) fn encode(&self, out: &mut impl AnswerBuffer) {
        for number in [self.ino, self.size, self.blocks] {
            out.append_bytes(&number.to_ne_bytes());
        }
        let times = [self.atime, self.mtime, self.ctime];
        times.iter().for_each(|time| out.append_bytes(&time.secs.to_ne_bytes()));
        times.iter().for_each(|time| out.append_bytes(&time.nanos.to_ne_bytes()));
        let flags = 0;
        for number in [self.mode, self.nlink, self.uid, self.gid, self.pack_device(), self.block_size, flags]
        {
            out.append_bytes(&number.to_ne_bytes());
        }
    }
}
