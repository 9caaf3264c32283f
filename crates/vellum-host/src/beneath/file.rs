//! Opening regular files, and only those, for their content.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use vellum_types::FileKind;

use super::BeneathError;
use super::dir::{HeldDir, stat_fd};
use crate::metadata::FileStat;

/// A file and its attributes at the time when it was opened.
#[derive(Debug)]
pub struct OpenedFile {
    /// Open for reading (or for reading and writing, as asked).
    pub file: File,
    /// From the descriptor, so that it is this file's.
    pub stat: FileStat,
}

/// Never waits for the other end of a pipe, never takes over a terminal.
pub(super) const GUARDED: OFlags =
    OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

impl HeldDir {
    /// Opens a regular file for reading, without touching its access time where that is allowed. To notice changes
    /// during the reading, compare the returned attributes with [`stat_file`] afterwards ([`FileStat::is_same_state`]).
    pub fn open_file(&self, name: &[u8]) -> Result<OpenedFile, BeneathError> {
        expect_regular_file(self.open_file_unchecked(name)?, name)
    }

    /// The same, without a look at what was opened: for who reads at once what was listed as a regular file, and looks
    /// afterwards. Another kind that has taken its place meanwhile does not wait, and what it gave does not count.
    pub fn open_file_unchecked(&self, name: &[u8]) -> Result<File, BeneathError> {
        // O_NONBLOCK keeps the call from waiting for the other end of a fifo, and O_NOCTTY from taking over a
        // terminal: the name can lead to anything by now.
        let open = |flags| fs::openat(self, name, GUARDED | flags, Mode::empty());
        let fd = self.call_on_name("open", name, || match open(OFlags::RDONLY | OFlags::NOATIME) {
            // Only the owner may leave the access time alone.
            Err(Errno::PERM) => open(OFlags::RDONLY),
            other => other,
        })?;
        Ok(File::from(fd))
    }

    /// Opens an existing regular file for reading and writing in place.
    pub fn open_file_to_update(&self, name: &[u8]) -> Result<OpenedFile, BeneathError> {
        let fd = self
            .call_on_name("open", name, || fs::openat(self, name, GUARDED | OFlags::RDWR, Mode::empty()))?;
        expect_regular_file(File::from(fd), name)
    }

    /// Makes a file that must not exist yet. Whoever is killed while writing it leaves a torn file; where that
    /// matters use [`HeldDir::stage_file`].
    pub fn create_file(&self, name: &[u8], mode: u32) -> Result<File, BeneathError> {
        let flags = GUARDED | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::from_raw_mode(mode & 0o7777);
        self.call_on_name("create", name, || fs::openat(self, name, flags, mode)).map(File::from)
    }

    /// Opens for appending, or makes, a file of the program's own (a lock, a log).
    pub fn open_or_create_file(&self, name: &[u8], mode: u32) -> Result<OpenedFile, BeneathError> {
        let flags = GUARDED | OFlags::RDWR | OFlags::CREATE;
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let fd = self.call_on_name("open", name, || fs::openat(self, name, flags, mode))?;
        expect_regular_file(File::from(fd), name)
    }
}

/// Refuses what is no regular file. A fifo was opened without waiting, and is closed again without being read.
pub(super) fn expect_regular_file(file: File, name: &[u8]) -> Result<OpenedFile, BeneathError> {
    let stat = stat_fd(file.as_fd())?;
    match stat.kind {
        FileKind::File => Ok(OpenedFile { file, stat }),
        _ => Err(BeneathError::NotRegular(name.into())),
    }
}

/// Attributes of an open file now.
pub fn stat_file(file: &File) -> Result<FileStat, BeneathError> {
    stat_fd(file.as_fd())
}
