//! An open file.
//!
//! Invariant: while a file is open its content is kept, even if its last name is removed or the worktree is restored.
//! After a restore, and in a view or a snapshot, it can only be read. Closing waits for a restore in progress, so a
//! thread that blocks a restore must never drop a file.

mod changes;

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use vellum_fs::{Epoch, FsError, LiveFilesystem, StateReader};
use vellum_types::{Dentry, FileKind, Ino, InodeAttr};

use crate::dir::Dir;
use crate::error::{Error, Result};
use crate::metadata::Metadata;
use crate::options::OpenOptions;
use crate::source::ReadSource;
use crate::tree::{allow_missing, path_bytes, sealed::RootedTree};

/// An open file. It can be shared among threads: sequential reads and writes share one position, as after `dup(2)`;
/// the `*_at` methods do not use it.
pub struct File {
    source: ReadSource,
    ino: Ino,
    /// The epoch of the live worktree that it belongs to.
    epoch: Epoch,
    options: OpenOptions,
    position: Mutex<u64>,
}

impl File {
    /// Holds what was just found, if it can be opened so. [`Self::finish_open`] does the rest, when the live worktree may be
    /// restored again: closing waits for that.
    pub(crate) fn hold_open(
        source: &ReadSource,
        at: Dentry,
        options: OpenOptions,
    ) -> vellum_fs::Result<Self> {
        match at.kind {
            FileKind::File => {}
            FileKind::Dir if options.is_writable() => return Err(Errno::ISDIR.into()),
            FileKind::Dir => {}
            // A symlink at the end of a path that was not to be followed, or what only a kernel can open.
            FileKind::Symlink => return Err(Errno::LOOP.into()),
            FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
                return Err(Errno::NXIO.into());
            }
        }
        // Read under the caller's guard, so that the inode number that was looked up belongs to it.
        let epoch = source.current_epoch();
        if let ReadSource::Live(live) = source {
            // From here on the content stays, even if the last name of the file is removed.
            live.fs.epochs().hold_inode(epoch, at.ino)?;
        }
        Ok(Self { source: source.clone(), ino: at.ino, epoch, options, position: Mutex::new(0) })
    }

    /// Returns the file, truncated if the options ask for it. Fails if the file no longer exists.
    pub(crate) fn finish_open(self) -> vellum_fs::Result<Self> {
        let attr = self.attributes()?;
        if self.options.truncate && attr.kind == FileKind::File {
            self.change_file(|fs| fs.content().truncate(self.ino, 0))?;
        }
        Ok(self)
    }

    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }

    /// Returns its attributes.
    pub fn stat(&self) -> Result<Metadata> {
        Ok(Metadata::new(self.ino, self.attributes()?))
    }

    /// Reads from an offset. Returns the number of bytes, which is smaller than requested only at the end of the
    /// file.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let content = self.read_bytes_at(offset, buffer.len())?;
        if let Some(place) = buffer.get_mut(..content.len()) {
            place.copy_from_slice(&content);
        }
        Ok(content.len())
    }

    /// Reads from an offset into new memory. Returns fewer bytes than `len` only at the end of the file.
    pub fn read_bytes_at(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.check_allowed(self.options.read)?;
        Ok(self.read_content(offset, len)?)
    }

    /// Writes at an offset, or at the end if the file was opened for appending. Returns the number of bytes, which is
    /// smaller than requested only at the maximum file size.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        self.check_allowed(self.options.is_writable())?;
        Ok(self.write_unchecked(data, offset)?)
    }

    pub(crate) fn write_unchecked(&self, data: &[u8], offset: u64) -> vellum_fs::Result<usize> {
        self.change_file(|fs| {
            if self.options.append {
                // As with `pwrite(2)` in Linux, a file that was opened for appending ignores the offset.
                fs.content().append_to_file(self.ino, data, false)
            } else {
                fs.content().write(self.ino, offset, data, false)
            }
        })
    }

    /// Sets its size. Content beyond it is removed; added space reads as zeros.
    pub fn truncate(&self, size: u64) -> Result<()> {
        self.check_allowed(self.options.is_writable())?;
        Ok(self.change_file(|fs| fs.content().truncate(self.ino, size))?)
    }

    /// Waits until everything written so far, to this file and before, survives a power cut.
    pub fn sync(&self) -> Result<()> {
        match &self.source {
            ReadSource::Live(live) => Ok(live.fs.content().sync_all()?),
            ReadSource::View(_) | ReadSource::Frozen(_) => Ok(()),
        }
    }

    /// Returns the first offset at or after `offset` that has data, or `None`.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        self.seek_from(offset, vellum_fs::SeekTarget::Data)
    }

    /// Returns the first offset at or after `offset` in a hole, or the end of the file. `None`: `offset` is beyond
    /// the end.
    pub fn next_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.seek_from(offset, vellum_fs::SeekTarget::Hole)
    }

    /// Links the file under a name, which must be free. A file without a name ([`Dir::temp_file`]) is kept from then
    /// on.
    pub fn persist(&self, dir: &Dir, path: impl AsRef<Path>) -> Result<()> {
        let path = path_bytes(&path);
        let failed = Error::for_action("name a file", path);
        // Inode numbers mean nothing in another worktree.
        let same = matches!(&self.source, ReadSource::Live(live) if Arc::ptr_eq(live, dir.live_worktree()));
        let link = || {
            if !same {
                return Err(Errno::XDEV.into());
            }
            self.change_file(|fs| {
                let place = dir.reader().split_parent(path)?.ok_or(Errno::EXIST)?;
                fs.names().link(self.ino, place.dir, place.name).map(drop)
            })
        };
        link().map_err(failed)
    }

    fn seek_from(&self, offset: u64, seek: vellum_fs::SeekTarget) -> Result<Option<u64>> {
        let seek = || self.source.state().seek_data_or_hole(self.ino, offset, seek);
        Ok(allow_missing(self.run_in_epoch(seek), Errno::NXIO)?)
    }

    pub(crate) fn attributes(&self) -> vellum_fs::Result<Arc<InodeAttr>> {
        self.read_state(|state| state.inode_attr(self.ino))
    }

    fn read_content(&self, offset: u64, len: usize) -> vellum_fs::Result<Vec<u8>> {
        self.read_state(|state| state.read(self.ino, offset, len))
    }

    /// Calls a function with the state in which it was opened, which a restore may have replaced.
    fn read_state<T>(
        &self,
        read: impl FnOnce(&dyn StateReader<FsError>) -> vellum_fs::Result<T>,
    ) -> vellum_fs::Result<T> {
        // Views and snapshots never change, so that there is nothing to guard against.
        let ReadSource::Live(live) = &self.source else { return read(self.source.state()) };
        let _entered = live.fs.epochs().enter_epoch();
        // An open file keeps its content over a restore, as an unlinked one does: it is read from the state before.
        if self.epoch == live.fs.epochs().current_epoch() {
            return read(&*live.fs);
        }
        read(&live.fs.open_past_view(self.epoch)?)
    }

    /// Changes it. Fails with a stale handle if the worktree was restored since the file was opened.
    pub(crate) fn change_file<T>(
        &self,
        change: impl FnOnce(&LiveFilesystem) -> vellum_fs::Result<T>,
    ) -> vellum_fs::Result<T> {
        match &self.source {
            ReadSource::Live(live) => self.run_in_epoch(|| change(&live.fs)),
            ReadSource::View(_) | ReadSource::Frozen(_) => Err(Errno::ROFS.into()),
        }
    }

    /// Calls a function with its current state. Fails with a stale handle if the file belongs to an earlier epoch.
    fn run_in_epoch<T>(&self, body: impl FnOnce() -> vellum_fs::Result<T>) -> vellum_fs::Result<T> {
        let _entered = match &self.source {
            ReadSource::Live(live) => Some(live.fs.epochs().enter_epoch()),
            ReadSource::View(_) | ReadSource::Frozen(_) => None,
        };
        // Under the guard, which keeps the epoch from changing between this check and the end of the body.
        self.check_epoch()?;
        body()
    }

    /// Fails with a stale handle if the worktree is in another epoch than the file. The caller must have entered the
    /// epoch.
    pub(crate) fn check_epoch(&self) -> vellum_fs::Result<()> {
        if self.epoch == self.source.current_epoch() { Ok(()) } else { Err(Errno::STALE.into()) }
    }

    fn check_allowed(&self, allowed: bool) -> Result<()> {
        if allowed { Ok(()) } else { Err(FsError::Posix(Errno::BADF).into()) }
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.position.lock()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let ReadSource::Live(live) = &self.source {
            // What it leaves behind is removed when the worktree is opened again.
            let _ = live.fs.epochs().release_inode(self.epoch, self.ino, 1);
        }
    }
}

impl Read for &File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Held during the transfer: two threads that read at once get consecutive parts, not the same one.
        let mut position = self.lock();
        let count = self.read_at(buffer, *position)?;
        *position += count as u64;
        Ok(count)
    }
}

impl Write for &File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let mut position = self.lock();
        let count = self.write_at(data, *position)?;
        // Where appended data went is known only to the append itself. With another writer the end may lie behind
        // them by now.
        *position = if self.options.append { self.stat()?.size() } else { *position + count as u64 };
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        // Nothing is buffered here: each write has reached the worktree when it returns.
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let mut position = self.lock();
        let new = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => position.checked_add_signed(by),
            SeekFrom::End(by) => self.stat()?.size().checked_add_signed(by),
        };
        // Beyond what `off_t` can hold no file can reach, and a sum with a length could overflow.
        *position = new.filter(|new| i64::try_from(*new).is_ok()).ok_or(Errno::INVAL)?;
        Ok(*position)
    }
}

impl Read for File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}
