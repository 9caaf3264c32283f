//! Attributes and entries of files.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use vellum_types::{FileKind, Ino, InodeAttr, UnixTime};

/// Attributes of a file, a directory or anything else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    ino: Ino,
    attr: Arc<InodeAttr>,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// Its name.
    pub name: OsString,
    /// Its kind.
    pub kind: FileKind,
    /// Its inode number.
    pub ino: u64,
}

/// A part of a directory, ordered by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirPage {
    /// Its entries.
    pub entries: Vec<PageEntry>,
    /// How many entries the directory has.
    pub total: usize,
    /// Whether others follow.
    pub more: bool,
}

/// An entry of a directory with its attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageEntry {
    /// Its name.
    pub name: OsString,
    /// Its attributes; symlinks are not followed.
    pub metadata: Metadata,
}

/// An entry of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkEntry {
    /// The path: that with which the walk began, and the names below it.
    pub path: PathBuf,
    /// Its attributes; symlinks are not followed.
    pub metadata: Metadata,
}

impl Metadata {
    pub(crate) fn new(ino: Ino, attr: Arc<InodeAttr>) -> Self {
        Self { ino, attr }
    }

    /// Returns all attributes as they are stored.
    #[must_use]
    pub fn attributes(&self) -> &InodeAttr {
        &self.attr
    }

    /// Returns the inode number. Names with the same inode number are links to one file.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.ino.0
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.attr.kind
    }

    /// Returns whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.attr.kind == FileKind::Dir
    }

    /// Returns whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.attr.kind == FileKind::File
    }

    /// Returns whether it is a symlink.
    #[must_use]
    pub fn is_symlink(&self) -> bool {
        self.attr.kind == FileKind::Symlink
    }

    /// Returns the size of its content in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.attr.size
    }

    /// Returns the permission bits, set-id bits and the sticky bit.
    #[must_use]
    pub fn mode(&self) -> u32 {
        self.attr.mode
    }

    /// Returns the owner.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.attr.uid
    }

    /// Returns the group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.attr.gid
    }

    /// Returns the number of its names; for a directory, 2 plus the number of its subdirectories.
    #[must_use]
    pub fn links(&self) -> u32 {
        self.attr.nlink
    }

    /// Returns the device number of a device.
    #[must_use]
    pub fn rdev(&self) -> u64 {
        self.attr.rdev
    }

    /// Returns the time of the last change of content.
    #[must_use]
    pub fn modified(&self) -> SystemTime {
        to_system_time(self.attr.mtime)
    }

    /// Returns the time of the last recorded access. Reading through this crate does not record any.
    #[must_use]
    pub fn accessed(&self) -> SystemTime {
        to_system_time(self.attr.atime)
    }

    /// Returns the time of the last change of attributes.
    #[must_use]
    pub fn changed(&self) -> SystemTime {
        to_system_time(self.attr.ctime)
    }

    /// Returns the creation time.
    #[must_use]
    pub fn created(&self) -> SystemTime {
        to_system_time(self.attr.btime)
    }
}

impl From<vellum_fs::DirectoryEntry> for DirEntry {
    fn from(entry: vellum_fs::DirectoryEntry) -> Self {
        Self { name: OsString::from_vec(entry.name), kind: entry.kind, ino: entry.ino.0 }
    }
}

/// Converts to a time of the standard library, or the nearest one that it can represent.
pub(crate) fn to_system_time(time: UnixTime) -> SystemTime {
    let whole = Duration::from_secs(time.secs.unsigned_abs());
    let epoch = SystemTime::UNIX_EPOCH;
    let second = if time.secs < 0 { epoch.checked_sub(whole) } else { epoch.checked_add(whole) };
    second.and_then(|second| second.checked_add(Duration::from_nanos(time.nanos.into()))).unwrap_or(epoch)
}

/// Converts to a time of a volume.
pub(crate) fn from_system_time(moment: SystemTime) -> UnixTime {
    match moment.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => UnixTime { secs: since.as_secs().cast_signed(), nanos: since.subsec_nanos() },
        Err(error) => {
            let before = error.duration();
            let secs = before.as_secs().cast_signed().saturating_neg();
            // Nanoseconds always count forwards: a fraction before 1970 belongs to the second before it.
            match before.subsec_nanos() {
                0 => UnixTime { secs, nanos: 0 },
                nanos => UnixTime { secs: secs.saturating_sub(1), nanos: 1_000_000_000 - nanos },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_are_kept() {
        for (secs, nanos) in [(0, 0), (5, 1), (-1, 999_999_999), (-7, 0), (1_700_000_000, 5)] {
            let moment = UnixTime { secs, nanos };
            assert_eq!(from_system_time(to_system_time(moment)), moment);
        }
    }
}
