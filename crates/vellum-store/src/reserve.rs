//! The reserve: disk space for operations that free space. On a full disk, removing a tag and collecting garbage have
//! to write a little before anything is freed.
//!
//! Invariant: nothing depends on the file. A quota that is used up counts as a full disk. Deliberately absent: disks that
//! others fill at the same time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use vellum_host::owner::set_owner_from_dir;

/// Bytes that are kept, and the part of the disk that they may be.
const RESERVE_MAX: u64 = 1 << 20;
const RESERVE_PART: u64 = 64;
/// With fewer bytes free than this, the disk counts as full.
const FULL: u64 = 256 << 10;

/// The reserve in one directory.
pub struct DiskReserve<Dir> {
    dir: Dir,
    name: &'static str,
}

impl<Dir: AsFd> DiskReserve<Dir> {
    /// The reserve that is the file `name` of `dir`, be it there or not.
    pub fn new(dir: Dir, name: &'static str) -> Self {
        Self { dir, name }
    }

    /// Creates the reserve if it does not exist and there is space for several. If this fails, it is tried again next
    /// time.
    pub fn ensure_reserve(&self) {
        let _ = self.try_create_file();
    }

    fn try_create_file(&self) -> io::Result<()> {
        if rustix::fs::statat(&self.dir, self.name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Ok(());
        }
        let disk = rustix::fs::fstatvfs(&self.dir)?;
        let bytes = (disk.f_blocks.saturating_mul(disk.f_frsize) / RESERVE_PART).min(RESERVE_MAX);
        // Only if four times as much is free: making the reserve must not fill the disk.
        if self.free_disk_bytes()? < bytes.saturating_mul(4) {
            return Ok(());
        }
        // If another process creates it at this moment, there is a reserve, and the failure does not matter.
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&self.dir, self.name, flags, Mode::RUSR | Mode::WUSR)?;
        let filled = set_owner_from_dir(&self.dir, &file).and_then(|()| allocate_blocks(&file, bytes));
        if filled.is_err() {
            // A file without its blocks would count as a reserve from then on, since only its existence is looked at.
            self.remove_file();
        }
        filled
    }

    /// Releases the reserve if the disk is full, or the quota of its owner is used up.
    pub fn release_if_full(&self) {
        if self.free_disk_bytes().is_ok_and(|free| free < FULL) || self.is_refused_room() {
            self.remove_file();
        }
    }

    /// Whether a file without a name gets no room: `fstatvfs` does not count quotas. Where there are no such files, the
    /// disk does not count as full.
    fn is_refused_room(&self) -> bool {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let trial = rustix::fs::openat(&self.dir, ".", flags, Mode::RUSR | Mode::WUSR).and_then(|file| {
            // Blocks are charged to the owner of the file. A trial under another owner tells nothing about that
            // quota, so a failure here counts as a disk that is not full.
            set_owner_from_dir(&self.dir, &file).map_err(|_| Errno::OPNOTSUPP)?;
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, FULL)
        });
        matches!(trial, Err(Errno::NOSPC | Errno::DQUOT))
    }

    fn free_disk_bytes(&self) -> io::Result<u64> {
        let disk = rustix::fs::fstatvfs(&self.dir)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    fn remove_file(&self) {
        // Without the file the reserve has been released already. Any other failure shows when the write that needs
        // the room fails.
        let _ = rustix::fs::unlinkat(&self.dir, self.name, AtFlags::empty());
    }
}

/// Allocates blocks for a file. Where `fallocate` is not supported, the file is written instead.
fn allocate_blocks(file: &OwnedFd, bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            // Not zeros, which a filesystem may store as a hole.
            let block = [0xff; 64 << 10];
            let mut written = 0;
            while written < bytes {
                written += rustix::io::pwrite(file, &block, written)? as u64;
            }
            Ok(())
        }
        done => Ok(done?),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs::File;

    use super::*;

    #[test]
    fn a_reserve_takes_blocks_and_stays_while_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        let reserve = DiskReserve::new(File::open(dir.path()).unwrap(), "kept");
        reserve.ensure_reserve();
        reserve.ensure_reserve();
        reserve.release_if_full();
        let kept = std::fs::metadata(dir.path().join("kept")).unwrap();
        assert_eq!(kept.len(), RESERVE_MAX);
        assert!(std::os::unix::fs::MetadataExt::blocks(&kept) * 512 >= RESERVE_MAX, "{kept:?}");
        reserve.remove_file();
        assert!(!dir.path().join("kept").exists());
    }
}
