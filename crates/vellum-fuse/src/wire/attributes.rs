//! Attributes of a node as the protocol has them.

use std::time::Duration;

use rustix::fs::FileType;
use vellum_types::UnixTime;

use super::answer::{AnswerBuffer, SmallAnswer};

/// Which fields of `struct statx` are told: all that any filesystem has, and the time of creation
/// (`STATX_BASIC_STATS | STATX_BTIME`).
const STATX_MASK: u32 = 0x7ff | 0x800;

/// Attributes of a node (`fuse_attr`, `fuse_statx`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are called what stat calls them")]
pub struct NodeAttributes {
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub atime: UnixTime,
    pub mtime: UnixTime,
    pub ctime: UnixTime,
    /// When it was made.
    pub btime: UnixTime,
    /// Kind and permissions.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Major and minor number of the device that it is.
    pub device: (u32, u32),
    pub block_size: u32,
}

/// How long the kernel may believe the attributes of a directory.
const DIR_ATTRIBUTE_PATIENCE: Duration = Duration::from_secs(60);

/// What a name stands for, and how long the kernel may believe it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryAnswer {
    /// The node's attributes.
    pub attr: NodeAttributes,
    /// Tells it from earlier nodes of the same number.
    pub generation: u64,
    /// How long that may be believed.
    pub patience: Duration,
}

impl NodeAttributes {
    /// The device number in 32 bits (Linux: `new_encode_dev`).
    pub(super) fn pack_device(&self) -> u32 {
        let (major, minor) = self.device;
        (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xfff00) << 12
    }

    /// `fuse_statx`.
    pub(super) fn encode_statx(&self, out: SmallAnswer) -> SmallAnswer {
        let moment = |out: SmallAnswer, time: UnixTime| {
            out.with_u64(time.secs.cast_unsigned()).with_u32(time.nanos).with_u32(0)
        };
        let (major, minor) = self.device;
        let attributes = 0;
        let out = out
            .with_u32(STATX_MASK)
            .with_u32(self.block_size)
            .with_u64(attributes)
            .with_u32(self.nlink)
            .with_u32(self.uid)
            .with_u32(self.gid)
            .with_u16((self.mode & 0xffff) as u16)
            .with_u16(0)
            .with_u64(self.ino)
            .with_u64(self.size)
            .with_u64(self.blocks)
            .with_u64(attributes);
        let out = [self.atime, self.btime, self.ctime, self.mtime].into_iter().fold(out, moment);
        // The device that it is on is the kernel's own affair.
        out.with_u32(major).with_u32(minor).with_zeros(2 * 4 + 14 * 8)
    }
}

impl EntryAnswer {
    /// How long the kernel may believe the attributes. Those of a directory for a minute at most: an answer about it that
    /// crosses a change of its names is put into the kernel's cache after the change (for files the kernel notices that),
    /// and would hide the directory's new modification time for as long as it is believed.
    pub(super) fn attribute_timeout(&self) -> Duration {
        let is_dir = FileType::from_raw_mode(self.attr.mode) == FileType::Directory;
        if is_dir { self.patience.min(DIR_ATTRIBUTE_PATIENCE) } else { self.patience }
    }

    /// `fuse_entry_out`.
    pub(super) fn encode(&self, out: &mut impl AnswerBuffer) {
        let of_attributes = self.attribute_timeout();
        for number in [self.attr.ino, self.generation, self.patience.as_secs(), of_attributes.as_secs()] {
            out.append_bytes(&number.to_ne_bytes());
        }
        out.append_bytes(&self.patience.subsec_nanos().to_ne_bytes());
        out.append_bytes(&of_attributes.subsec_nanos().to_ne_bytes());
        self.attr.encode(out);
    }
}
