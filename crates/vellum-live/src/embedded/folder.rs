//! The directory and files that the engine and the write log use.
//!
//! A trait: tests use a directory that records every operation and produces what a crash leaves. The real one holds
//! the directory open and never follows a path out of it.

use std::fs::File as StdFile;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, fallocate, flock, linkat, open, openat, renameat,
    unlinkat,
};
use vellum_host::owner::set_owner_from_dir;
use vellum_host::private_dir::create_private_dir;

use crate::error::LiveError;

/// Name of the file that is locked while a process has the directory open.
const LOCK: &str = "lock";
/// Files and directories are their owner's alone.
const FILE_MODE: Mode = Mode::from_raw_mode(0o600);

/// A directory with files, and no directories, in it.
pub trait EngineFolder: Send + Sync {
    /// Creates an empty file; a file that has the name is emptied.
    fn create_file(&self, name: &str) -> io::Result<Arc<dyn EngineFile>>;
    /// Opens an existing file for reading and writing.
    fn open_file(&self, name: &str) -> io::Result<Arc<dyn EngineFile>>;
    /// Renames a file; it replaces a file that has the new name.
    fn rename_file(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file. Succeeds if there is none.
    fn remove_file(&self, name: &str) -> io::Result<()>;
    /// Returns the names of all files, in no particular order.
    fn list_files(&self) -> io::Result<Vec<String>>;
    /// Makes all creations, renamings and removals so far durable.
    fn sync_folder(&self) -> io::Result<()>;
    /// Returns the name of a file as messages show it.
    fn describe_file(&self, name: &str) -> String;
    /// Returns the directory, if it is one of the operating system: files can then be linked from it, and into it if
    /// [`Self::takes_links`].
    fn dir_fd(&self) -> Option<BorrowedFd<'_>>;
    /// Whether files may be linked into the directory: not if it keeps a record of all changes elsewhere.
    fn takes_links(&self) -> bool {
        true
    }
}

/// A sync that was given up after waiting for something else than a local disk. Nothing is lost: it may be tried again.
/// Other failures of a sync leave it unknown what is on the disk.
#[derive(Debug, thiserror::Error)]
#[error("it is not durable yet: {0}")]
pub struct SyncDelayed(pub String);

impl From<SyncDelayed> for io::Error {
    fn from(delayed: SyncDelayed) -> Self {
        Self::new(io::ErrorKind::TimedOut, delayed)
    }
}

impl SyncDelayed {
    /// Whether an error is one of these.
    #[must_use]
    pub fn is_cause(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

/// A file, used by several threads.
pub trait EngineFile: Send + Sync {
    /// Reads up to `buffer.len()` bytes; fewer only at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `bytes`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Writes two pieces, the second behind the first, with one call if possible.
    fn write_both_at(&self, first: &[u8], second: &[u8], offset: u64) -> io::Result<()>;
    /// Makes content and length durable.
    fn sync_file(&self) -> io::Result<()>;
    /// Extends the file if that is cheap, so that later writes within its length change nothing but its content, and a
    /// sync is one write to the disk. Returns the new length.
    fn reserve_len(&self, len: u64) -> io::Result<u64>;
    /// Sets the length of the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Its length in bytes.
    fn size(&self) -> io::Result<u64>;
}

/// A directory of the operating system's.
pub struct LocalFolder {
    path: PathBuf,
    directory: OwnedFd,
    lock: Option<OwnedFd>,
}

impl Drop for LocalFolder {
    /// Unlocks the file, which closing it may not do: a process that was just forked may still have it open.
    fn drop(&mut self) {
        if let Some(lock) = &self.lock {
            let _ = flock(lock, FlockOperation::Unlock);
        }
    }
}

impl LocalFolder {
    /// Opens a directory and locks it; creates it if it does not exist. Returns None if another process has locked it.
    pub fn open_locked(path: &Path) -> io::Result<Option<Self>> {
        let mut folder = Self::open(path)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = openat(&folder.directory, LOCK, flags, FILE_MODE)?;
        set_owner_from_dir(&folder.directory, &lock)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                folder.lock = Some(lock);
                Ok(Some(folder))
            }
            // Another process holds the lock.
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a directory without locking it, because another lock protects it; creates it if it does not exist.
    pub fn open(path: &Path) -> io::Result<Self> {
        if !path.exists() {
            create_private_dir(path)?;
            // The name of a new directory is durable only with the directory that it stands in.
            if let Some(parent) = path.canonicalize()?.parent() {
                let parent = StdFile::open(parent)?;
                set_owner_from_dir(&parent, StdFile::open(path)?)?;
                parent.sync_all()?;
            }
        }
        // Opened once and kept: a directory that is moved or replaced meanwhile stays the one that is locked.
        let directory = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { path: path.to_owned(), directory, lock: None })
    }

    fn open_file_with(&self, name: &str, flags: OFlags) -> io::Result<Arc<dyn EngineFile>> {
        let flags = flags | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.directory, name, flags, FILE_MODE)?;
        if flags.contains(OFlags::CREATE) {
            set_owner_from_dir(&self.directory, &file)?;
        }
        Ok(Arc::new(LocalFile(StdFile::from(file))))
    }
}

impl EngineFolder for LocalFolder {
    fn create_file(&self, name: &str) -> io::Result<Arc<dyn EngineFile>> {
        // An attempt that failed may have left a file of this name.
        self.open_file_with(name, OFlags::CREATE | OFlags::TRUNC)
    }

    fn open_file(&self, name: &str) -> io::Result<Arc<dyn EngineFile>> {
        self.open_file_with(name, OFlags::empty())
    }

    fn rename_file(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.directory, from, &self.directory, to)?)
    }

    fn remove_file(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.directory, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn list_files(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.directory)? {
            let entry = entry?;
            match entry.file_name().to_str() {
                // Names that are not UTF-8 are none of ours.
                Ok("." | ".." | LOCK) | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
        }
        Ok(names)
    }

    fn sync_folder(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.directory)?)
    }

    fn describe_file(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    fn dir_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.directory.as_fd())
    }
}

struct LocalFile(StdFile);

impl EngineFile for LocalFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.0.read_at(rest, offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn write_both_at(&self, first: &[u8], second: &[u8], offset: u64) -> io::Result<()> {
        let done = loop {
            match rustix::io::pwritev(&self.0, &[IoSlice::new(first), IoSlice::new(second)], offset) {
                Err(rustix::io::Errno::INTR) => {}
                done => break done?,
            }
        };
        // A disk that is nearly full takes a part.
        let middle = offset + first.len() as u64;
        let rest = |piece: &[u8], before: usize, start: u64| {
            let taken = done.saturating_sub(before).min(piece.len());
            self.0.write_all_at(piece.get(taken..).unwrap_or_default(), start + taken as u64)
        };
        rest(first, 0, offset)?;
        rest(second, first.len(), middle)
    }

    fn sync_file(&self) -> io::Result<()> {
        // `fdatasync`: it includes the length, and leaves out the times, which would be a transaction of the
        // filesystem's for each sync.
        self.0.sync_data()
    }

    fn reserve_len(&self, len: u64) -> io::Result<u64> {
        // Lengthens the file without writing it: what was never written reads as zeros, which replay takes for the
        // end.
        // It fails on filesystems without `fallocate`, where the file grows with each record.
        fallocate(&self.0, FallocateFlags::empty(), 0, len)?;
        Ok(len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

/// Returns a function that wraps a failed `action` on a file.
pub(crate) fn wrap_io_error(
    folder: &dyn EngineFolder,
    action: &'static str,
    name: &str,
) -> impl Fn(io::Error) -> LiveError + use<> {
    let path = folder.describe_file(name);
    move |source| LiveError::Io { action, path: path.clone(), source }
}

/// Links a file into another folder, or copies it if that is not possible. The result is durable after the other folder
/// was synced.
pub fn link_or_copy_file(from: &dyn EngineFolder, name: &str, to: &dyn EngineFolder) -> io::Result<()> {
    // Hard links are not possible between filesystems, and on some filesystems not at all.
    if let (Some(old), Some(new)) = (from.dir_fd(), to.dir_fd())
        && to.takes_links()
        && linkat(old, name, new, name, AtFlags::empty()).is_ok()
    {
        return Ok(());
    }
    copy_file(&*from.open_file(name)?, &*to.create_file(name)?)
}

/// Bytes that a copy moves at once.
const COPY_PORTION: usize = 1 << 20;

fn copy_file(from: &dyn EngineFile, to: &dyn EngineFile) -> io::Result<()> {
    let mut buffer = vec![0; COPY_PORTION];
    let mut offset = 0;
    loop {
        let count = from.read_at(&mut buffer, offset)?;
        match buffer.get(..count) {
            // Synced here, because the caller syncs the folder only.
            Some([]) | None => return to.sync_file(),
            Some(bytes) => to.write_at(bytes, offset)?,
        }
        offset += count as u64;
    }
}
