//! Attributes as the kernel wants them, and back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};
use rustix::fs::{major, makedev, minor};
use vellum_types::{Attr, FileKind, Time};

/// What `stat` reports as the size for efficient input and output: as other Linux filesystems do.
pub const BLOCK_SIZE: u32 = 4096;

/// Bytes of what `stat` calls a block.
const STAT_BLOCK: u64 = 512;

/// The kernel's name for a kind of file.
#[must_use]
pub fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Dir => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// The kind of file in the upper bits of a mode, as `mknod` gives them; none for directories, symlinks and nonsense.
#[must_use]
pub fn kind_of_mode(mode: u32) -> Option<FileKind> {
    match rustix::fs::FileType::from_raw_mode(mode) {
        rustix::fs::FileType::RegularFile => Some(FileKind::File),
        rustix::fs::FileType::Fifo => Some(FileKind::Fifo),
        rustix::fs::FileType::Socket => Some(FileKind::Socket),
        rustix::fs::FileType::CharacterDevice => Some(FileKind::CharDevice),
        rustix::fs::FileType::BlockDevice => Some(FileKind::BlockDevice),
        _ => None,
    }
}

/// Attributes of a node for the kernel.
#[must_use]
pub fn file_attr(node: u64, attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(node),
        size: attr.size,
        blocks: attr.size.div_ceil(STAT_BLOCK),
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: file_type(attr.kind),
        perm: u16::try_from(attr.mode).unwrap_or(0),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: kernel_device(attr.rdev),
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

/// A device number as FUSE packs it into 32 bits (Linux: `new_encode_dev`).
fn kernel_device(device: u64) -> u32 {
    let (major, minor) = (major(device), minor(device));
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xfff00) << 12
}

/// The device number that FUSE packed into 32 bits.
#[must_use]
pub fn device(packed: u32) -> u64 {
    makedev(packed >> 8 & 0xfff, packed & 0xff | packed >> 12 & 0xfff00)
}

fn system_time(time: Time) -> SystemTime {
    let whole = Duration::from_secs(time.secs.unsigned_abs());
    let second = if time.secs < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    second
        .and_then(|second| second.checked_add(Duration::from_nanos(u64::from(time.nanos))))
        .unwrap_or(UNIX_EPOCH)
}

/// A time that the kernel asks to be set. Before 1970 fuser takes the nanoseconds away from the whole seconds where
/// the kernel meant them to be added; that is taken back here.
#[must_use]
pub fn time(asked: SystemTime) -> Time {
    match asked.duration_since(UNIX_EPOCH) {
        Ok(since) => {
            Time { secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
        }
        Err(error) => {
            let before = error.duration();
            Time { secs: 0i64.saturating_sub_unsigned(before.as_secs()), nanos: before.subsec_nanos() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn devices_survive(major in 0..4096u32, minor in 0..1u32 << 20) {
            let number = makedev(major, minor);
            prop_assert_eq!(device(kernel_device(number)), number);
        }

        #[test]
        fn times_survive_as_fuser_reads_them(secs in -1i64 << 40..1 << 40, nanos in 0..1_000_000_000u32) {
            let read = if secs >= 0 {
                UNIX_EPOCH + Duration::new(secs.unsigned_abs(), nanos)
            } else {
                UNIX_EPOCH - Duration::new(secs.unsigned_abs(), nanos)
            };
            prop_assert_eq!(time(read), Time { secs, nanos });
        }

        #[test]
        fn the_kernel_gets_every_time(secs in -1i64 << 40..1 << 40, nanos in 0..1_000_000_000u32) {
            let told = system_time(Time { secs, nanos });
            let expected = i128::from(secs) * 1_000_000_000 + i128::from(nanos);
            let found = match told.duration_since(UNIX_EPOCH) {
                Ok(since) => since.as_nanos().cast_signed(),
                Err(error) => -error.duration().as_nanos().cast_signed(),
            };
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn modes_of_directories_and_symlinks_are_no_nodes() {
        assert_eq!(kind_of_mode(0o040_755), None);
        assert_eq!(kind_of_mode(0o120_777), None);
        assert_eq!(kind_of_mode(0o010_644), Some(FileKind::Fifo));
    }
}
