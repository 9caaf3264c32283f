//! Converts attributes to the kernel's form, and modes and device numbers back.

use rustix::fs::{FileType, major, makedev, minor};
use vellum_host::metadata::file_kind_from_type;
use vellum_types::{FileKind, InodeAttr};

use crate::wire::NodeAttributes;

/// The preferred size of reads and writes that `stat` reports, bytes: that of most Linux filesystems.
pub const BLOCK_SIZE: u32 = 4096;

/// Bytes of the blocks in which `stat` counts.
const STAT_BLOCK: u64 = 512;

/// The bits of a mode that contain the kind of file.
#[must_use]
pub fn file_kind_bits(kind: FileKind) -> u32 {
    let kind = match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Dir => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    };
    kind.as_raw_mode()
}

/// The kind of file in a mode of `mknod`; None if it is a directory, a symlink or no kind at all.
#[must_use]
pub fn file_kind_from_mode(mode: u32) -> Option<FileKind> {
    let kind = file_kind_from_type(FileType::from_raw_mode(mode));
    kind.filter(|kind| !matches!(kind, FileKind::Dir | FileKind::Symlink))
}

/// The attributes of a node, of whose content `stored` bytes are stored.
#[must_use]
pub fn to_node_attributes(node: u64, attr: &InodeAttr, stored: u64) -> NodeAttributes {
    NodeAttributes {
        ino: node,
        size: attr.size,
        blocks: stored.div_ceil(STAT_BLOCK),
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        btime: attr.btime,
        mode: file_kind_bits(attr.kind) | attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        device: (major(attr.rdev), minor(attr.rdev)),
        block_size: BLOCK_SIZE,
    }
}

/// The device number that the kernel has packed into 32 bits (Linux: `new_decode_dev`).
#[must_use]
pub fn unpack_device(packed: u32) -> u64 {
    makedev(packed >> 8 & 0xfff, packed & 0xff | packed >> 12 & 0xfff00)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_directories_and_symlinks_are_no_nodes() {
        assert_eq!(file_kind_from_mode(0o040_755), None);
        assert_eq!(file_kind_from_mode(0o120_777), None);
        assert_eq!(file_kind_from_mode(0o010_644), Some(FileKind::Fifo));
    }
}
