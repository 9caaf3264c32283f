//! The place of archives: a directory of the user, with one archive and one lock file for each pair.
//!
//! Invariant: the holder of a [`LockedArchive`] is the only run of its pair on this host; an archive is replaced as a
//! whole or not at all, also at a power failure. Deliberately absent: the choice of the directory, which the command
//! line makes.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use vellum_host::beneath::{BeneathError, HeldDir};
use vellum_host::escape::EscapedPath;

use vellum_types::{ErrorKind, LookupResult};

use crate::error::SyncError;

use super::TwoWayPair;
use super::archive::TwoWayArchive;
use super::codec::ArchiveError;

/// Largest archive that is read, bytes: enough for a hundred million entries.
const ARCHIVE_MAX: u64 = 8 << 30;
/// Permissions of the directories and files: other users may not learn the names in a tree.
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Why the place of an archive cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveStoreError {
    /// Another run of the same pair holds the lock.
    #[error("another run of this pair is in progress: wait until it ends")]
    Busy,
    /// The directory cannot be opened or made.
    #[error("the archives of two-way runs cannot be kept in '{}'", EscapedPath(.path.as_os_str().as_encoded_bytes()))]
    Place {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: BeneathError,
    },
    /// An operation on a file in it failed.
    #[error("cannot {action} the archive in '{}'", EscapedPath(.path.as_os_str().as_encoded_bytes()))]
    Io {
        /// The operation, a verb.
        action: &'static str,
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

impl ArchiveStoreError {
    /// The error's kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Busy => ErrorKind::Conflict,
            Self::Place { source, .. } => source.kind(),
            Self::Io { source, .. } => ErrorKind::from_io_error(source),
        }
    }
}

/// The result of reading an archive.
#[derive(Debug)]
pub enum FoundArchive {
    /// An archive.
    Archive(Box<TwoWayArchive>),
    /// There is none: this is the pair's first run, or its archive was removed.
    Nothing,
    /// The file is not an archive of this pair; it is ignored.
    Unusable(ArchiveError),
}

/// The place of one pair's archive, locked.
#[derive(Debug)]
pub struct LockedArchive {
    path: PathBuf,
    dir: HeldDir,
    pair: TwoWayPair,
    _lock: File,
}

impl LockedArchive {
    /// Opens and locks a pair's place in a directory, which is made if it is missing.
    pub fn open(path: &Path, pair: TwoWayPair) -> Result<Self, SyncError> {
        let place = |source| ArchiveStoreError::Place { path: path.to_owned(), source };
        let dir = open_or_create_dir(path).map_err(place)?;
        // The lock is a file of its own that is never removed or replaced. The archive is replaced by a
        // rename, and a lock on it would be a lock on a file without a name.
        let name = format!("{}.lock", pair.archive_name());
        let lock = dir.open_or_create_file(name.as_bytes(), FILE_MODE).map_err(place)?.file;
        // The kernel releases the lock when the process ends, however it ends, so a killed run leaves no
        // stale lock.
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path: path.to_owned(), dir, pair, _lock: lock }),
            Err(Errno::WOULDBLOCK) => Err(ArchiveStoreError::Busy.into()),
            Err(errno) => Err(Self::wrap_io_error(path, "lock")(errno.into()).into()),
        }
    }

    fn wrap_io_error(path: &Path, action: &'static str) -> impl Fn(std::io::Error) -> ArchiveStoreError {
        move |source| ArchiveStoreError::Io { action, path: path.to_owned(), source }
    }

    fn file_name(&self) -> Vec<u8> {
        format!("{}.archive", self.pair.archive_name()).into_bytes()
    }

    fn new_file_name(&self) -> Vec<u8> {
        format!("{}.new", self.pair.archive_name()).into_bytes()
    }

    /// Reads the archive.
    pub fn load_archive(&self) -> Result<FoundArchive, SyncError> {
        let opened = match self.dir.open_file(&self.file_name()) {
            Ok(opened) => opened,
            Err(error) if error.is_not_found() => return Ok(FoundArchive::Nothing),
            Err(source) => return Err(ArchiveStoreError::Place { path: self.path.clone(), source }.into()),
        };
        let mut bytes = Vec::new();
        let mut limited = opened.file.take(ARCHIVE_MAX);
        limited.read_to_end(&mut bytes).map_err(Self::wrap_io_error(&self.path, "read"))?;
        Ok(match TwoWayArchive::decode(&bytes, self.pair) {
            Ok(archive) => FoundArchive::Archive(Box::new(archive)),
            // A damaged archive is not an error: the run is a first run then, which deletes nothing. The
            // caller reports it.
            Err(error) => FoundArchive::Unusable(error),
        })
    }

    /// Replaces the archive, durably.
    pub fn save_archive(&self, archive: &TwoWayArchive) -> Result<(), SyncError> {
        let place = |source| ArchiveStoreError::Place { path: self.path.clone(), source };
        // The holder of the lock is the only one that writes a file of this name, so one that is there is what a killed
        // run left.
        let new = self.new_file_name();
        self.dir.unlink(&new).ignore_missing().map_err(place)?;
        let mut file = self.dir.create_file(&new, FILE_MODE).map_err(place)?;
        // The content is durable before it gets the name, and the name before this returns. After a power cut
        // there is the old archive or the new one; an old one makes the next run look at the same changes
        // again.
        let written = file.write_all(&archive.encode()).and_then(|()| file.sync_all());
        written.map_err(Self::wrap_io_error(&self.path, "write"))?;
        self.dir.rename(&new, &self.dir, &self.file_name()).map_err(place)?;
        self.dir.sync_names().map_err(place)?;
        Ok(())
    }
}

/// Opens a directory; it and missing directories above it are made.
fn open_or_create_dir(path: &Path) -> Result<HeldDir, BeneathError> {
    match (HeldDir::open_root(path), path.parent(), path.file_name()) {
        (Err(error), Some(parent), Some(name)) if error.is_not_found() => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            // Missing directories are created from the top. `$XDG_STATE_HOME` often does not exist on a new
            // account.
            match open_or_create_dir(parent)?.create_dir(name.as_encoded_bytes(), DIR_MODE) {
                // Another run makes it at the same time.
                Err(error) if error.errno() != Some(Errno::EXIST) => Err(error),
                _ => HeldDir::open_root(path),
            }
        }
        (opened, _, _) => opened,
    }
}
