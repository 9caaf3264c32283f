//! Descriptors of packs, kept open so that a read is one `pread`; and the reading itself.
//!
//! Invariant: at most `HANDLES_MAX` are held. A held descriptor of a deleted pack still gives the right bytes.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use quick_cache::sync::Cache;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;

use super::ObjectKey;

/// Descriptors held, a count: a quarter of the usual limit of 1,024 open files of a process.
const HANDLES_MAX: usize = 256;

pub(super) struct FileHandles {
    held: Cache<ObjectKey, Arc<OwnedFd>>,
}

impl Default for FileHandles {
    fn default() -> Self {
        Self { held: Cache::new(HANDLES_MAX) }
    }
}

impl FileHandles {
    pub(super) fn get(&self, key: &ObjectKey) -> Option<Arc<OwnedFd>> {
        self.held.get(key)
    }

    /// Keeps a descriptor, at the price of one that was used little.
    pub(super) fn insert_handle(&self, key: &ObjectKey, fd: &Arc<OwnedFd>) {
        self.held.insert(key.clone(), fd.clone());
    }

    /// Closes packs that others have deleted: they use disk space as long as they are open.
    pub(super) fn evict_deleted(&self) {
        // A file without links has lost its last name.
        let is_there = |fd: &Arc<OwnedFd>| rustix::fs::fstat(fd).is_ok_and(|stat| stat.st_nlink > 0);
        self.held.retain(|_, fd| is_there(fd));
    }

    pub(super) fn evict_handle(&self, key: &ObjectKey) {
        self.held.remove(key);
    }
}

/// Up to `len` bytes from `offset` on: fewer only at the file's end.
pub(super) fn read_range_at(fd: &OwnedFd, offset: u64, len: u64) -> io::Result<Vec<u8>> {
    let len = usize::try_from(len).map_err(|_| Errno::NOMEM)?;
    let mut bytes = Vec::new();
    // Memory that cannot be had is an error here. `vec!` would abort the process.
    bytes.try_reserve_exact(len).map_err(|_| Errno::NOMEM)?;
    while bytes.len() < len {
        let position = offset.checked_add(bytes.len() as u64).ok_or(Errno::OVERFLOW)?;
        match rustix::io::pread(fd, spare_capacity(&mut bytes), position) {
            // 0 means the end of the file. `EINTR` comes before anything was read.
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    // The allocator may have provided more capacity than requested, and `pread` fills all of it.
    bytes.truncate(len);
    Ok(bytes)
}

/// The length of the file in bytes.
pub(super) fn file_size(fd: &OwnedFd) -> io::Result<u64> {
    Ok(u64::try_from(rustix::fs::fstat(fd)?.st_size).map_err(|_| Errno::OVERFLOW)?)
}
