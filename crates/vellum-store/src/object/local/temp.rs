//! Unfinished files: written under a random name, made durable, then named.
//!
//! Invariant: a `TempFile` that is dropped unpublished leaves no file behind.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, flock};
use rustix::io::Errno;

use vellum_host::owner::set_owner_from_dir;

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
        // Reading is enough for a lock, and is allowed for what is there. `NONBLOCK` is for a pipe that stands at the
        // name, which is refused below.
        let flags = OFlags::CREATE | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let claimed = match rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(claimed) => claimed,
            // A link or a directory.
            Err(Errno::LOOP | Errno::ISDIR) => return Err(Errno::EXIST.into()),
            Err(errno) => return Err(errno.into()),
        };
        // An empty file is also that of a writer that is between the two at this moment. It holds the lock until the
        // name has its bytes; the lock of one that died is free.
        match flock(&claimed, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(Errno::EXIST.into()),
            Err(errno) => return Err(errno.into()),
        }
        // Under the lock: whoever had it before may have replaced the file that was opened.
        let ours = rustix::fs::fstat(&claimed)?;
        let there = match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Err(Errno::EXIST.into()),
            there => there?,
        };
        let is_empty_file = FileType::from_raw_mode(there.st_mode).is_file() && there.st_size == 0;
        if !is_empty_file || there.st_ino != ours.st_ino || there.st_dev != ours.st_dev {
            return Err(Errno::EXIST.into());
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Many writers where names can neither be linked nor kept.
    #[test]
    fn of_writers_that_claim_one_name_at_once_one_wins() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let open = || rustix::fs::open(dir.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        let temporary = Arc::new(open()?);
        let folder = open()?;
        for round in 0..50 {
            let name = format!("name-{round}");
            // Every other round begins with what a killed writer leaves.
            if round % 2 == 1 {
                std::fs::write(dir.path().join(&name), b"")?;
            }
            let write = |bytes: &'static [u8]| {
                let mut temp = TempFile::create(temporary.clone(), Mode::RUSR | Mode::WUSR, bytes)?;
                temp.claim_and_replace(&folder, &name)
            };
            let write = &write;
            let won = std::thread::scope(|scope| {
                let threads =
                    [b"1", b"2", b"3", b"4"].map(|bytes| scope.spawn(move || (bytes, write(bytes))));
                let ended = threads.into_iter().filter_map(|thread| thread.join().ok());
                ended.filter(|(_, outcome)| outcome.is_ok()).map(|(bytes, _)| bytes).collect::<Vec<_>>()
            });
            assert_eq!(won.len(), 1, "of round {round}");
            assert_eq!(won.first().map(|bytes| bytes.to_vec()), Some(std::fs::read(dir.path().join(&name))?));
        }
        Ok(())
    }
}
