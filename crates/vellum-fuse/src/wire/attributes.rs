//! Attributes of a node in the form of the protocol, and how long the kernel may cache them.

use std::time::Duration;

use rustix::fs::FileType;
use vellum_types::UnixTime;

use super::buffer::{AnswerBuffer, SmallAnswer};

/// The fields of `struct statx` that are filled in: the basic ones and the creation time
/// (`STATX_BASIC_STATS | STATX_BTIME`).
const STATX_MASK: u32 = 0x7ff | 0x800;

/// Attributes of a node (`fuse_attr`, `fuse_statx`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "they have the names of stat")]
pub struct NodeAttributes {
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub atime: UnixTime,
    pub mtime: UnixTime,
    pub ctime: UnixTime,
    /// Creation time.
    pub btime: UnixTime,
    /// Kind of file and permissions.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Major and minor number, if the node is a device.
    pub device: (u32, u32),
    pub block_size: u32,
}

/// How long the kernel may cache the attributes of a directory.
const DIR_ATTRIBUTE_TIMEOUT: Duration = Duration::from_secs(60);

/// What a name stands for, and how long the kernel may cache that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryAnswer {
    /// The node's attributes.
    pub attr: NodeAttributes,
    /// Distinguishes the node from earlier ones with the same id.
    pub generation: u64,
    /// How long the kernel may cache the name and the attributes.
    pub timeout: Duration,
}

impl NodeAttributes {
    /// The device number in 32 bits (Linux: `new_encode_dev`).
    pub(super) fn pack_device(&self) -> u32 {
        let (major, minor) = self.device;
        (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xfff00) << 12
    }

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

    /// Encodes `fuse_statx`.
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
            // This structure has 16 bits for kind and permissions, which need no more.
            .with_u16((self.mode & 0xffff) as u16)
            .with_u16(0)
            .with_u64(self.ino)
            .with_u64(self.size)
            .with_u64(self.blocks)
            .with_u64(attributes);
        let out = [self.atime, self.btime, self.ctime, self.mtime].into_iter().fold(out, moment);
        // The kernel fills in the device that the node is on by itself.
        out.with_u32(major).with_u32(minor).with_zeros(2 * 4 + 14 * 8)
    }
}

impl EntryAnswer {
    /// How long the kernel may cache the attributes: of a directory, at most a minute. If the names of a directory
    /// change while the kernel waits for its attributes, the kernel caches the old attributes after the change, and
    /// does not notice (for files it does). Until they time out, they would hide the new modification time.
    pub(super) fn attribute_timeout(&self) -> Duration {
        let is_dir = FileType::from_raw_mode(self.attr.mode) == FileType::Directory;
        if is_dir { self.timeout.min(DIR_ATTRIBUTE_TIMEOUT) } else { self.timeout }
    }

    /// Encodes `fuse_entry_out`.
    pub(super) fn encode(&self, out: &mut impl AnswerBuffer) {
        let of_attributes = self.attribute_timeout();
        for number in [self.attr.ino, self.generation, self.timeout.as_secs(), of_attributes.as_secs()] {
            out.append_bytes(&number.to_ne_bytes());
        }
        out.append_bytes(&self.timeout.subsec_nanos().to_ne_bytes());
        out.append_bytes(&of_attributes.subsec_nanos().to_ne_bytes());
        self.attr.encode(out);
    }
}
