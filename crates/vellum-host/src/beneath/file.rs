//! Opening the content of files, restricted to regular files.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use vellum_types::FileKind;

use super::BeneathError;
use super::dir::{HeldDir, stat_fd};
use crate::metadata::FileStat;

/// An open file with its attributes at the time of opening.
#[derive(Debug)]
pub struct OpenedFile {
    /// Open for reading (or for reading and writing).
    pub file: File,
    /// The attributes, read from the descriptor.
    pub stat: FileStat,
}

/// Flags that exclude waiting for the other end of a pipe, and taking over a terminal.
pub(super) const GUARDED: OFlags =
    OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

impl HeldDir {
    /// Opens a regular file for reading, without changing its access time where the kernel permits that. A caller
    /// notices changes during reading if it compares the returned attributes with [`stat_file`] afterwards
    /// ([`FileStat::is_same_state`]).
    pub fn open_file(&self, name: &[u8]) -> Result<OpenedFile, BeneathError> {
        expect_regular_file(self.open_file_unchecked(name)?, name)
    }

    /// The same without reading the attributes, for callers that read a listed regular file at once and check it
    /// afterwards. If another type has replaced it, opening does not wait, and the caller's check fails.
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

    /// Opens an existing regular file for reading and writing.
    pub fn open_file_to_update(&self, name: &[u8]) -> Result<OpenedFile, BeneathError> {
        let fd = self
            .call_on_name("open", name, || fs::openat(self, name, GUARDED | OFlags::RDWR, Mode::empty()))?;
        expect_regular_file(File::from(fd), name)
    }

    /// Creates a file that may not exist yet. A killed process leaves a partial file; [`HeldDir::stage_file`] avoids
    /// that.
    pub fn create_file(&self, name: &[u8], mode: u32) -> Result<File, BeneathError> {
        let flags = GUARDED | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::from_raw_mode(mode & 0o7777);
        self.call_on_name("create", name, || fs::openat(self, name, flags, mode)).map(File::from)
    }

    /// Opens a file of the program itself (a lock, a log) for appending, and creates it if it is missing.
    pub fn open_or_create_file(&self, name: &[u8], mode: u32) -> Result<OpenedFile, BeneathError> {
        let flags = GUARDED | OFlags::RDWR | OFlags::CREATE;
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let fd = self.call_on_name("open", name, || fs::openat(self, name, flags, mode))?;
        expect_regular_file(File::from(fd), name)
    }
}

/// Fails for an entry that is not a regular file. A fifo was opened without waiting, and is closed without being read.
pub(super) fn expect_regular_file(file: File, name: &[u8]) -> Result<OpenedFile, BeneathError> {
    let stat = stat_fd(file.as_fd())?;
    match stat.kind {
        FileKind::File => Ok(OpenedFile { file, stat }),
        _ => Err(BeneathError::NotRegular(name.into())),
    }
}

/// The present attributes of an open file.
pub fn stat_file(file: &File) -> Result<FileStat, BeneathError> {
    stat_fd(file.as_fd())
}
