//! Unfinished files: written under a random name, made durable, then named.
//!
//! Invariant: a `TempFile` that is dropped unpublished leaves no file behind.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::owner::set_owner_from_dir;

/// Files of writers that died are removed when they are this old: longer than any write takes, also on a
/// machine that slept.
const LEFTOVER_AGE: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) struct TempFile {
    folder: Arc<OwnedFd>,
    name: String,
    fd: OwnedFd,
    published: bool,
}

impl TempFile {
    pub(super) fn create(folder: Arc<OwnedFd>, mode: Mode, bytes: &[u8]) -> io::Result<Self> {
        // Random, so that threads and processes need no common counter. `O_EXCL` would show a collision.
        let name = format!("{:016x}", getrandom::u64().map_err(io::Error::other)?);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(&*folder, name.as_str(), flags, mode)?;
        // From here on, `Drop` removes the file if a step fails.
        let temp = Self { folder, name, fd, published: false };
        set_owner_from_dir(&*temp.folder, &temp.fd)?;
        write_all_bytes(&temp.fd, bytes)?;
        Ok(temp)
    }

    pub(super) fn sync_file(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.fd)?)
    }

    /// Names the file; fails with `EEXIST` if the name is taken.
    pub(super) fn publish_new(&mut self, folder: &OwnedFd, name: &str) -> io::Result<()> {
        let from = self.name.as_str();
        // `RENAME_NOREPLACE` checks that the name is free and takes it in one step.
        match rustix::fs::renameat_with(&*self.folder, from, folder, name, RenameFlags::NOREPLACE) {
            Ok(()) => self.published = true,
            // Filesystems that cannot rename this way can link; the first name then goes with `self`.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                match rustix::fs::linkat(&*self.folder, from, folder, name, AtFlags::empty()) {
                    // `EPERM`: the filesystem has no hard links (FAT, exFAT).
                    Err(Errno::PERM | Errno::NOSYS | Errno::NOTSUP) => {
                        self.claim_and_replace(folder, name)?
                    }
                    linked => linked?,
                }
            }
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    }

    /// Names the file where neither is known (exFAT): an empty file takes the name first. A process that is killed
    /// between the two leaves the empty file, and the next writer replaces it: no object is empty.
    fn claim_and_replace(&mut self, folder: &OwnedFd, name: &str) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(_) => {}
            Err(Errno::EXIST) => {
                let there = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
                let is_left_over = FileType::from_raw_mode(there.st_mode).is_file() && there.st_size == 0;
                if !is_left_over {
                    return Err(Errno::EXIST.into());
                }
            }
            Err(errno) => return Err(errno.into()),
        }
        self.publish_replacing(folder, name)
    }

    /// Names the file, in place of whatever has the name.
    pub(super) fn publish_replacing(&mut self, folder: &OwnedFd, name: &str) -> io::Result<()> {
        rustix::fs::renameat(&*self.folder, self.name.as_str(), folder, name)?;
        self.published = true;
        Ok(())
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.published {
            // A file that cannot be removed now is swept later.
            let _ = rustix::fs::unlinkat(&*self.folder, self.name.as_str(), AtFlags::empty());
        }
    }
}

fn write_all_bytes(fd: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Removes leftovers. Failures are left for the next time: nothing depends on it.
pub(super) fn remove_leftovers(folder: &OwnedFd) {
    let Ok(entries) = rustix::fs::Dir::read_from(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Ok(stat) = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let written = u64::try_from(stat.st_mtime).unwrap_or(0);
        let age = SystemTime::now().duration_since(UNIX_EPOCH + Duration::from_secs(written));
        // A file that seems to be written in the future stays: a clock is wrong, and the file may be in use.
        if age.is_ok_and(|age| age > LEFTOVER_AGE) {
            let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
        }
    }
}
