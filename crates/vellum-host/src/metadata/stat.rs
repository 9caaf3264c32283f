//! The attributes of a file that the operating system reports.

use rustix::fs::{FileType, Statx, StatxAttributes, StatxFlags, StatxTimestamp, makedev};
use vellum_types::{FileKind, UnixTime};

/// The attributes of a file that the operating system reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileStat {
    /// File type.
    pub kind: FileKind,
    /// Fewer bytes are allocated than its size: it may have holes.
    pub may_have_holes: bool,
    /// It is a mount point.
    pub is_mount_root: bool,
    /// The lowest twelve mode bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Size in bytes; of directories and special files as the filesystem reports it.
    pub size: u64,
    /// The filesystem's inode number.
    pub ino: u64,
    /// Device of the filesystem, encoded like `st_dev`.
    pub dev: u64,
    /// The number of a device node, encoded like `st_rdev`.
    pub rdev: u64,
    /// Modification time.
    pub mtime: UnixTime,
    /// Change time.
    pub ctime: UnixTime,
    /// Birth time; zero if the filesystem does not store it.
    pub btime: UnixTime,
}

/// Unit of the block count in `statx`, bytes.
const BLOCK: u64 = 512;

impl FileStat {
    /// None if the mode has an unknown type.
    pub(crate) fn from_statx(statx: &Statx) -> Option<Self> {
        let raw_mode = u32::from(statx.stx_mode);
        let kind = file_kind_from_type(FileType::from_raw_mode(raw_mode))?;
        let has_btime = statx.stx_mask & StatxFlags::BTIME.bits() != 0;
        let device = |major, minor| makedev(major, minor);
        Some(Self {
            kind,
            // A compressed file also has fewer blocks than bytes. It is then asked for holes and has none.
            may_have_holes: kind == FileKind::File && statx.stx_blocks.saturating_mul(BLOCK) < statx.stx_size,
            is_mount_root: statx.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
            mode: raw_mode & 0o7777,
            uid: statx.stx_uid,
            gid: statx.stx_gid,
            nlink: statx.stx_nlink,
            size: statx.stx_size,
            ino: statx.stx_ino,
            dev: device(statx.stx_dev_major, statx.stx_dev_minor),
            rdev: device(statx.stx_rdev_major, statx.stx_rdev_minor),
            mtime: time_from_statx(&statx.stx_mtime),
            ctime: time_from_statx(&statx.stx_ctime),
            btime: if has_btime { time_from_statx(&statx.stx_btime) } else { UnixTime::default() },
        })
    }

    /// Whether both are of the same file, as far as the filesystem shows it: a reused inode number has another birth
    /// time.
    #[must_use]
    pub fn is_same_file(&self, other: &Self) -> bool {
        (self.dev, self.ino, self.kind, self.btime) == (other.dev, other.ino, other.kind, other.btime)
    }

    /// Whether the file was neither written to nor otherwise changed between the two.
    #[must_use]
    pub fn is_same_state(&self, other: &Self) -> bool {
        self.is_same_file(other) && self.has_same_attributes(other)
    }

    /// The same with a change time that never matches: for a cache that knows the file and has to treat it as changed.
    #[must_use]
    pub fn with_outdated_ctime(self) -> Self {
        Self { ctime: UnixTime { secs: i64::MIN, nanos: 0 }, ..self }
    }

    /// Whether all attributes are equal that a change would affect; the location of the file is not compared.
    #[must_use]
    pub fn has_same_attributes(&self, other: &Self) -> bool {
        // A change of a directory's size or link count also changes its times.
        let counted = self.kind == FileKind::Dir || (self.size, self.nlink) == (other.size, other.nlink);
        counted
            && (self.mtime, self.ctime, self.btime) == (other.mtime, other.ctime, other.btime)
            && (self.kind, self.mode, self.uid, self.gid) == (other.kind, other.mode, other.uid, other.gid)
            // A file that was replaced by a rename can have the same times and size, but has another inode
            // number.
            && (self.ino, self.rdev) == (other.ino, other.rdev)
    }
}

/// The kind of file of a file type; None if the system does not tell it.
#[must_use]
pub fn file_kind_from_type(kind: FileType) -> Option<FileKind> {
    match kind {
        FileType::RegularFile => Some(FileKind::File),
        FileType::Directory => Some(FileKind::Dir),
        FileType::Symlink => Some(FileKind::Symlink),
        FileType::Fifo => Some(FileKind::Fifo),
        FileType::Socket => Some(FileKind::Socket),
        FileType::CharacterDevice => Some(FileKind::CharDevice),
        FileType::BlockDevice => Some(FileKind::BlockDevice),
        FileType::Unknown => None,
    }
}

fn time_from_statx(time: &StatxTimestamp) -> UnixTime {
    // A moment with more nanoseconds than a second has could be written, and not be read again.
    UnixTime { secs: time.tv_sec, nanos: time.tv_nsec.min(999_999_999) }
}
