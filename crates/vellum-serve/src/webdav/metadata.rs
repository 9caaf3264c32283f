//! Attributes and errors as WebDAV has them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dav_server::fs::{DavMetaData, FsError, FsResult};
use rustix::io::Errno;
use vellum_library::{FileKind, Metadata, SnapshotId};
use vellum_types::ErrorKind;

use crate::served_tree::{ServedTree, entity_tag};

/// Attributes of a file or a directory.
#[derive(Debug, Clone)]
pub struct EntryMetadata {
    metadata: Metadata,
    snapshot: Option<SnapshotId>,
}

impl EntryMetadata {
    /// Of an entry of this snapshot, or of a live worktree.
    #[must_use]
    pub fn new(metadata: Metadata, snapshot: Option<SnapshotId>) -> Self {
        Self { metadata, snapshot }
    }
}

impl DavMetaData for EntryMetadata {
    fn len(&self) -> u64 {
        self.metadata.size()
    }

    fn modified(&self) -> FsResult<SystemTime> {
        // Outside of these, formatting the date would panic.
        let last = UNIX_EPOCH + Duration::from_secs(ServedTree::LAST_DATE);
        Ok(self.metadata.modified().clamp(UNIX_EPOCH, last))
    }

    fn is_dir(&self) -> bool {
        self.metadata.is_dir()
    }

    fn is_file(&self) -> bool {
        self.metadata.is_file()
    }

    /// Also what WebDAV has no word for: listings leave it out, and removing a directory removes it.
    fn is_symlink(&self) -> bool {
        match self.metadata.kind() {
            FileKind::File | FileKind::Dir => false,
            FileKind::Symlink
            | FileKind::Fifo
            | FileKind::Socket
            | FileKind::CharDevice
            | FileKind::BlockDevice => true,
        }
    }

    fn etag(&self) -> Option<String> {
        Some(entity_tag(self.snapshot, &self.metadata))
    }
}

/// The error of WebDAV that an error of the library is.
#[must_use]
pub fn dav_error(error: &vellum_library::Error) -> FsError {
    match error.errno().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT | Errno::NOTDIR) => return FsError::NotFound,
        Some(Errno::EXIST | Errno::NOTEMPTY) => return FsError::Exists,
        Some(Errno::NOSPC | Errno::DQUOT) => return FsError::InsufficientStorage,
        Some(Errno::LOOP) => return FsError::LoopDetected,
        Some(Errno::NAMETOOLONG) => return FsError::PathTooLong,
        Some(Errno::FBIG) => return FsError::TooLarge,
        Some(Errno::ISDIR | Errno::NXIO | Errno::INVAL | Errno::BUSY | Errno::ROFS | Errno::PERM) => {
            return FsError::Forbidden;
        }
        Some(_) | None => {}
    }
    match error.kind() {
        ErrorKind::NotFound => FsError::NotFound,
        ErrorKind::Conflict => FsError::Exists,
        ErrorKind::Denied | ErrorKind::Usage | ErrorKind::Unsupported => FsError::Forbidden,
        ErrorKind::NoSpace => FsError::InsufficientStorage,
        ErrorKind::Corrupt | ErrorKind::Interrupted | ErrorKind::Io => FsError::GeneralFailure,
    }
}
