//! Descriptors of packs, kept open so that a read is one `pread`; and the reading itself.
//!
//! Invariant: at most `HANDLES_MAX` are held. A held descriptor of a deleted pack still gives the right bytes.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;

use super::ObjectKey;

/// Descriptors held, a count: a quarter of the usual limit of 1,024 open files of a process.
const HANDLES_MAX: usize = 256;

struct HeldHandle {
    fd: Arc<OwnedFd>,
    used: AtomicU64,
}

#[derive(Default)]
pub(super) struct FileHandles {
    held: RwLock<HashMap<ObjectKey, HeldHandle>>,
    clock: AtomicU64,
}

impl FileHandles {
    pub(super) fn get(&self, key: &ObjectKey) -> Option<Arc<OwnedFd>> {
        let held = self.held.read();
        let entry = held.get(key)?;
        entry.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(entry.fd.clone())
    }

    /// Keeps a descriptor, at the price of the one unused for longest.
    pub(super) fn insert_handle(&self, key: &ObjectKey, fd: &Arc<OwnedFd>) {
        let used = AtomicU64::new(self.clock.fetch_add(1, Ordering::Relaxed));
        let mut held = self.held.write();
        if held.len() >= HANDLES_MAX {
            let oldest = held.iter().min_by_key(|(_, entry)| entry.used.load(Ordering::Relaxed));
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                held.remove(&oldest);
            }
        }
        held.insert(key.clone(), HeldHandle { fd: fd.clone(), used });
    }

    /// Closes packs that others have deleted: they use disk space as long as they are open.
    pub(super) fn evict_deleted(&self) {
        let is_there = |held: &HeldHandle| rustix::fs::fstat(&held.fd).is_ok_and(|stat| stat.st_nlink > 0);
        self.held.write().retain(|_, held| is_there(held));
    }

    pub(super) fn evict_handle(&self, key: &ObjectKey) {
        self.held.write().remove(key);
    }
}

/// Up to `len` bytes from `offset` on: fewer only at the file's end.
pub(super) fn read_range_at(fd: &OwnedFd, offset: u64, len: u64) -> io::Result<Vec<u8>> {
    let len = usize::try_from(len).map_err(|_| Errno::NOMEM)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| Errno::NOMEM)?;
    while bytes.len() < len {
        let position = offset.checked_add(bytes.len() as u64).ok_or(Errno::OVERFLOW)?;
        match rustix::io::pread(fd, spare_capacity(&mut bytes), position) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    // The allocator may have given more room than was asked for, and `pread` fills what there is.
    bytes.truncate(len);
    Ok(bytes)
}

/// The length of the file in bytes.
pub(super) fn file_size(fd: &OwnedFd) -> io::Result<u64> {
    Ok(u64::try_from(rustix::fs::fstat(fd)?.st_size).map_err(|_| Errno::OVERFLOW)?)
}
