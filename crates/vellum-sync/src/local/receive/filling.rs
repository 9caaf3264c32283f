//! Filling a file, with early write-back.
//!
//! When a file replaces another by a rename, ext4 first writes it back (`auto_da_alloc`), so that a crash leaves the
//! old content or the new one. If this starts only at the rename, the disk idles while a large file is copied, and then
//! the rename waits. Invariant: this module requests only what the rename does anyway, earlier. Deliberately absent:
//! waiting for the disk (see `EntryWriter::sync_and_verify`).

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::fstatfs;
use rustix::ioctl::{NoArg, ioctl, opcode};

/// The magic number of ext4, and of ext2 and ext3, which refuse the request.
const EXT4: u64 = 0xef53;
/// `EXT4_IOC_ALLOC_DA_BLKS`: allocates blocks for delayed data, and starts writing them.
const WRITE_BACK: u32 = opcode::none(b'f', 12);
/// Bytes between two requests: enough to keep a disk busy, and few enough to leave little for the rename.
const STEP: u64 = 8 << 20;

/// A file that is being filled, possibly by several threads.
pub(super) struct FileFill<'f> {
    pub file: &'f File,
    /// Held while writing. The kernel, too, lets one thread at a time write to a file, but waiting threads spin on the
    /// inode lock.
    write_lock: Mutex<()>,
    /// Requests are made, and were not refused.
    early: AtomicBool,
    /// Bytes written so far.
    filled: AtomicU64,
}

impl<'f> FileFill<'f> {
    /// A file of this size; it `replaces` another one when it is renamed.
    pub fn new(file: &'f File, size: u64, replaces: bool) -> Self {
        // Only a file that replaces another one is written back by the rename (`auto_da_alloc`), and a short
        // one is written back quickly.
        let early = replaces && size > STEP && fstatfs(file).is_ok_and(|is| is.f_type as u64 == EXT4);
        Self { file, write_lock: Mutex::default(), early: AtomicBool::new(early), filled: AtomicU64::new(0) }
    }

    /// A file with old content, of which differing blocks are written.
    pub fn new_in_place(file: &'f File) -> Self {
        Self::new(file, 0, false)
    }

    /// Takes the lock for writing.
    pub fn lock_writes(&self) -> MutexGuard<'_, ()> {
        self.write_lock.lock()
    }

    /// Counts written bytes, and requests write-back after each step.
    pub fn count_written(&self, bytes: u64) {
        if !self.early.load(Ordering::Relaxed) {
            return;
        }
        let before = self.filled.fetch_add(bytes, Ordering::Relaxed);
        // Only the thread whose bytes exceed the step makes the request.
        if before / STEP == (before + bytes) / STEP {
            return;
        }
        // SAFETY: the request takes no argument, and the descriptor is one of ext4, whose request it is.
        let begun = unsafe { ioctl(self.file, NoArg::<WRITE_BACK>::new()) };
        // ENOTTY on ext2 and ext3, which have the same magic number. It is not tried again.
        if begun.is_err() {
            self.early.store(false, Ordering::Relaxed);
        }
    }
}
