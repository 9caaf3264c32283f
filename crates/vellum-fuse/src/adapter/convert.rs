//! Conversion of attributes to the kernel's form and back.

use rustix::fs::{FileType, major, makedev, minor};
use vellum_types::{FileKind, InodeAttr};

use crate::wire::NodeAttributes;

/// What `stat` reports as the size for efficient input and output: as other Linux filesystems do.
pub const BLOCK_SIZE: u32 = 4096;

/// Bytes of what `stat` calls a block.
const STAT_BLOCK: u64 = 512;

/// The kind of file as a mode has it, in its upper bits.
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

/// The kind of file in the upper bits of a mode, as `mknod` gives them; none for directories, symlinks and nonsense.
#[must_use]
pub fn file_kind_from_mode(mode: u32) -> Option<FileKind> {
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Some(FileKind::File),
        FileType::Fifo => Some(FileKind::Fifo),
        FileType::Socket => Some(FileKind::Socket),
        FileType::CharacterDevice => Some(FileKind::CharDevice),
        FileType::BlockDevice => Some(FileKind::BlockDevice),
        _ => None,
    }
}

/// Attributes of a node for the kernel, of whose content so many bytes are stored.
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

/// The device number that FUSE packed into 32 bits.
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
