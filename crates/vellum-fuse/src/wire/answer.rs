//! Answers: a header and the result.

use std::sync::Arc;

use rustix::io::Errno;

use super::attributes::{EntryAnswer, NodeAttributes};

/// Bytes of the head of an answer (`fuse_out_header`).
pub const HEAD_LEN: usize = 16;

/// Bytes of the largest answer of a fixed size: `fuse_statx_out`.
const SMALL_MAX: usize = 288;

/// Bytes of `fuse_kstatfs` that mean nothing.
const STATFS_SPARE: usize = 7 * 4;

/// The head of an answer or of a notice: its length without the head, what went wrong (or what is told), and the
/// request that is answered.
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

/// What is answered.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is on the stack for a moment: small answers allocate nothing"
)]
pub enum FuseAnswer {
    /// Nothing: the request wants no answer.
    None,
    /// Nothing yet: another thread answers.
    Later,
    /// It failed.
    Failed(Errno),
    /// It is done.
    Done,
    /// Something of a fixed size.
    Small(SmallAnswer),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Bytes that somebody else has, too.
    Shared(Arc<[u8]>),
}

/// What a part of an answer is written to.
pub(super) trait AnswerBuffer {
    fn append_bytes(&mut self, bytes: &[u8]);
}

impl AnswerBuffer for Vec<u8> {
    fn append_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// An answer of a fixed size, with room for the head in front, so that both go in one piece.
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
        // They are zeros already.
        self.len = (self.len + len).min(self.bytes.len());
        self
    }

    /// The whole answer to a request.
    pub fn finish_answer(&mut self, unique: u64) -> &[u8] {
        let head = encode_answer_head(self.len - HEAD_LEN, 0, unique);
        self.bytes[..HEAD_LEN].copy_from_slice(&head);
        &self.bytes[..self.len]
    }

    /// What stands behind the head.
    #[must_use]
    pub fn answer_body(&self) -> &[u8] {
        &self.bytes[HEAD_LEN..self.len]
    }

    /// A name was found, or made (`fuse_entry_out`).
    #[must_use]
    pub fn for_entry(entry: &EntryAnswer) -> Self {
        let mut small = Self::default();
        entry.encode(&mut small);
        small
    }

    /// A file was made and opened (`fuse_open_out`). The kernel keeps its pages.
    #[must_use]
    pub fn for_created_file(entry: &EntryAnswer) -> Self {
        let handle = 0;
        Self::for_entry(entry).with_u64(handle).with_u32(OPEN_KEEP_CACHE).with_u32(0)
    }

    /// Attributes (`fuse_attr_out`).
    #[must_use]
    pub fn for_attributes(entry: &EntryAnswer) -> Self {
        let patience = entry.attribute_timeout();
        let mut small =
            Self::default().with_u64(patience.as_secs()).with_u32(patience.subsec_nanos()).with_u32(0);
        entry.attr.encode(&mut small);
        small
    }

    /// Attributes, and when the inode was made (`fuse_statx_out`).
    #[must_use]
    pub fn for_statx(entry: &EntryAnswer) -> Self {
        let patience = entry.attribute_timeout();
        let head = Self::default()
            .with_u64(patience.as_secs())
            .with_u32(patience.subsec_nanos())
            .with_u32(0)
            .with_zeros(2 * 8);
        entry.attr.encode_statx(head)
    }

    /// So many bytes: what was written, or what an extended attribute takes (`fuse_write_out`,
    /// `fuse_getxattr_out`).
    #[must_use]
    pub fn for_byte_count(bytes: u32) -> Self {
        Self::default().with_u32(bytes).with_u32(0)
    }

    /// A place in a file, or more bytes than 32 bits can count (`fuse_lseek_out`, `fuse_copy_file_range_out`).
    #[must_use]
    pub fn for_offset(offset: u64) -> Self {
        Self::default().with_u64(offset)
    }

    /// What an operation of a file's own kind gives (`fuse_ioctl_out`): `words` zeros of 32 bits.
    #[must_use]
    pub fn for_ioctl(words: usize) -> Self {
        let result = 0;
        let flags = 0;
        let parts = 0;
        Self::default().with_u32(result).with_u32(flags).with_u32(parts).with_u32(parts).with_zeros(4 * words)
    }

    /// How full the filesystem is (`fuse_statfs_out`).
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

/// The kernel keeps the pages that it has.
const OPEN_KEEP_CACHE: u32 = 1 << 1;

impl FuseAnswer {
    /// An answer of a fixed size, or the failure.
    pub fn from_result<T>(done: Result<T, Errno>, small: impl FnOnce(&T) -> SmallAnswer) -> Self {
        match done {
            Ok(value) => Self::Small(small(&value)),
            Err(error) => Self::Failed(error),
        }
    }

    /// That it is done, or the failure.
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
    /// `fuse_attr`.
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
