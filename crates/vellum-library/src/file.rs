//! An open file.
//!
//! Invariant: while a file is open its content stays, also when its last name is gone, and when the worktree is
//! restored; from then on, and in a view or a snapshot, it can be read only. Closing waits for who restores: a file is
//! never dropped by who keeps a worktree from being restored.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use vellum_fs::{Epoch, FsError, LiveFilesystem};
use vellum_types::{Dentry, FileKind, Ino, InodeAttr};

use crate::dir::Dir;
use crate::error::{Error, Result};
use crate::metadata::Metadata;
use crate::options::OpenOptions;
use crate::source::ReadSource;
use crate::tree::{path_bytes, sealed::RootedTree};

/// An open file. It can be shared among threads: what reads and writes one after the other shares one position, as
/// after `dup(2)`; `*_at` have no part in it.
pub struct File {
    source: ReadSource,
    ino: Ino,
    /// Which state of a live worktree it is of.
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
        let epoch = source.current_epoch();
        if let ReadSource::Live(live) = source {
            live.fs.hold_inode(epoch, at.ino)?;
        }
        Ok(Self { source: source.clone(), ino: at.ino, epoch, options, position: Mutex::new(0) })
    }

    /// The file, which must be there still, emptied if it was opened so.
    pub(crate) fn finish_open(self) -> vellum_fs::Result<Self> {
        let attr = self.attributes()?;
        if self.options.truncate && attr.kind == FileKind::File {
            self.change_file(|fs| fs.truncate(self.ino, 0))?;
        }
        Ok(self)
    }

    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }

    /// Its attributes.
    pub fn stat(&self) -> Result<Metadata> {
        Ok(Metadata::new(self.ino, self.attributes()?))
    }

    /// Reads from an offset on; gives how many bytes, which are fewer than asked for only at the end.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.check_allowed(self.options.read)?;
        let content = self.read_content(offset, buffer.len())?;
        if let Some(place) = buffer.get_mut(..content.len()) {
            place.copy_from_slice(&content);
        }
        Ok(content.len())
    }

    /// Writes at an offset, or at the end if the file was opened to append; gives how many bytes, which are fewer
    /// only at the largest size.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        self.check_allowed(self.options.is_writable())?;
        Ok(self.write_unchecked(data, offset)?)
    }

    pub(crate) fn write_unchecked(&self, data: &[u8], offset: u64) -> vellum_fs::Result<usize> {
        self.change_file(|fs| {
            if self.options.append {
                fs.append_to_file(self.ino, data)
            } else {
                fs.write(self.ino, offset, data, false)
            }
        })
    }

    /// Sets its size: what is beyond goes, what is missing reads as zeros.
    pub fn truncate(&self, size: u64) -> Result<()> {
        self.check_allowed(self.options.is_writable())?;
        Ok(self.change_file(|fs| fs.truncate(self.ino, size))?)
    }

    /// Waits until all that was written, to this file and before, survives a loss of power.
    pub fn sync(&self) -> Result<()> {
        match &self.source {
            ReadSource::Live(live) => Ok(live.fs.fsync(self.ino, false)?),
            ReadSource::View(_) | ReadSource::Frozen(_) => Ok(()),
        }
    }

    /// The first offset from `offset` on where there is data; None: there is none.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        self.seek_from(offset, vellum_fs::SeekTarget::Data)
    }

    /// The first offset from `offset` on where there is a hole, or the end; None: the offset is beyond it.
    pub fn next_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.seek_from(offset, vellum_fs::SeekTarget::Hole)
    }

    /// Gives it a name, which must be free: for a file that has none ([`Dir::temp_file`]) its first, and from then on
    /// it stays.
    pub fn persist(&self, dir: &Dir, path: impl AsRef<Path>) -> Result<()> {
        let path = path_bytes(&path);
        let failed = Error::for_action("name a file", path);
        let same = matches!(&self.source, ReadSource::Live(live) if Arc::ptr_eq(live, dir.live_worktree()));
        let link = || {
            if !same {
                return Err(Errno::XDEV.into());
            }
            self.change_file(|fs| {
                let place = dir.reader().split_parent(path)?.ok_or(Errno::EXIST)?;
                fs.link(self.ino, place.dir, place.name).map(drop)
            })
        };
        link().map_err(failed)
    }

    fn seek_from(&self, offset: u64, seek: vellum_fs::SeekTarget) -> Result<Option<u64>> {
        match self.run_in_epoch(|| self.source.seek_data_or_hole(self.ino, offset, seek)) {
            Ok(found) => Ok(Some(found)),
            Err(FsError::Posix(Errno::NXIO)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn attributes(&self) -> vellum_fs::Result<Arc<InodeAttr>> {
        match &self.source {
            ReadSource::Live(live) => {
                let _entered = live.fs.enter_epoch();
                if self.epoch == live.fs.current_epoch() {
                    self.source.inode_attr(self.ino)
                } else {
                    live.fs.past_inode_attr(self.epoch, self.ino).map(Arc::new)
                }
            }
            ReadSource::View(_) | ReadSource::Frozen(_) => self.source.inode_attr(self.ino),
        }
    }

    fn read_content(&self, offset: u64, len: usize) -> vellum_fs::Result<Vec<u8>> {
        match &self.source {
            ReadSource::Live(live) => {
                let _entered = live.fs.enter_epoch();
                if self.epoch == live.fs.current_epoch() {
                    self.source.read_content(self.ino, offset, len)
                } else {
                    live.fs.read_past_content(self.epoch, self.ino, offset, len)
                }
            }
            ReadSource::View(_) | ReadSource::Frozen(_) => self.source.read_content(self.ino, offset, len),
        }
    }

    /// Changes it; stale if the worktree was restored since it was opened.
    pub(crate) fn change_file<T>(
        &self,
        change: impl FnOnce(&LiveFilesystem) -> vellum_fs::Result<T>,
    ) -> vellum_fs::Result<T> {
        match &self.source {
            ReadSource::Live(live) => self.run_in_epoch(|| change(&live.fs)),
            ReadSource::View(_) | ReadSource::Frozen(_) => Err(Errno::ROFS.into()),
        }
    }

    /// Does something with what it is now; stale if that is another state than it was opened in.
    fn run_in_epoch<T>(&self, body: impl FnOnce() -> vellum_fs::Result<T>) -> vellum_fs::Result<T> {
        let _entered = match &self.source {
            ReadSource::Live(live) => Some(live.fs.enter_epoch()),
            ReadSource::View(_) | ReadSource::Frozen(_) => None,
        };
        self.check_epoch()?;
        body()
    }

    /// Stale if the worktree stands on another state than it was opened in. Who asks must have entered.
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
            let _ = live.fs.release_inode(self.epoch, self.ino, 1);
        }
    }
}

impl Read for &File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
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
        *position = if self.options.append { self.stat()?.size() } else { *position + count as u64 };
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
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
