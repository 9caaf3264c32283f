//! A file being filled, and written back while it is.
//!
//! Before ext4 lets a file take another's name it has all of it written back, so that a crash leaves the old content or
//! the new one. Begun only then, the disk idles while a large file is copied, and the copy waits while the disk works.
//! Invariant: what is asked for here is what the rename asks for, only earlier. Deliberately absent: waiting for the
//! disk (see `Receiver::settle`).

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::fstatfs;
use rustix::ioctl::{NoArg, ioctl, opcode};

/// What `fstatfs` calls ext4, and its elders, which know nothing of the request and refuse it.
const EXT4: u64 = 0xef53;
/// `EXT4_IOC_ALLOC_DA_BLKS`: blocks for what is in memory alone are chosen, and begin to be written.
const WRITE_BACK: u32 = opcode::none(b'f', 12);
/// Bytes between two requests: enough to keep a disk busy, few enough to leave nothing for the rename.
const STEP: u64 = 8 << 20;

/// A file being filled, by several threads maybe.
pub(super) struct FileFill<'f> {
    pub file: &'f File,
    /// Who writes holds it. The kernel lets one thread at a time write to a file, too, but those that wait for it keep
    /// their processors busy meanwhile.
    write_lock: Mutex<()>,
    /// Requests are made, and were not refused.
    early: AtomicBool,
    /// Bytes so far.
    filled: AtomicU64,
}

impl<'f> FileFill<'f> {
    /// A file of so many bytes, which takes another's name if it `replaces`.
    pub fn new(file: &'f File, size: u64, replaces: bool) -> Self {
        // Only a file that replaces another one is written back by the rename (`auto_da_alloc`), and a short
        // one is written back quickly.
        let early = replaces && size > STEP && fstatfs(file).is_ok_and(|is| is.f_type as u64 == EXT4);
        Self { file, write_lock: Mutex::default(), early: AtomicBool::new(early), filled: AtomicU64::new(0) }
    }

    /// A file with other content, which is changed where it differs.
    pub fn new_in_place(file: &'f File) -> Self {
        Self::new(file, 0, false)
    }

    /// Held while it is written to.
    pub fn lock_writes(&self) -> MutexGuard<'_, ()> {
        self.write_lock.lock()
    }

    /// Counts bytes that were written to it.
    pub fn count_written(&self, bytes: u64) {
        if !self.early.load(Ordering::Relaxed) {
            return;
        }
        let before = self.filled.fetch_add(bytes, Ordering::Relaxed);
        // Who comes past the step asks, and nobody else does.
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
