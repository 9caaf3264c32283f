//! Limits of content that processes set for as long as they have the cache open: of all of these, and of the one that the
//! cache keeps, the smallest counts.
//!
//! A file for each process, with the most bytes of content (u64, little endian), locked as long as the process lives. Invariant: a
//! limit counts for all processes from when it was set until its process has ended, however that ended. A limit that cannot be
//! read counts for nothing.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use vellum_host::private_dir::create_private_dir;

/// The folder of these files within the cache.
const LIMITS_FOLDER: &str = "process-limits";
/// One number.
const LEN: usize = 8;

/// The limit of this process in one cache.
#[derive(Default)]
pub(super) struct OwnLimit {
    state: Mutex<Option<SetLimit>>,
}

struct SetLimit {
    bytes: u64,
    file: ProcessLimitFile,
}

/// The file with a process's limit. Its removal when it is dropped uses the disk.
pub(super) struct ProcessLimitFile {
    file: File,
    path: PathBuf,
}

impl OwnLimit {
    /// Sets the limit, in place of one that was set before. Called with the lock of the cache.
    pub fn set(&self, cache: &Path, bytes: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        remove_ended(cache);
        // The old one counts until the new one does.
        *state = Some(SetLimit { bytes, file: ProcessLimitFile::create(cache, bytes)? });
        Ok(())
    }

    /// Sets the limit again if the folder was removed meanwhile. Called with the lock of the cache.
    pub fn renew(&self, cache: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        if let Some(set) = state.as_mut().filter(|set| !set.file.has_name()) {
            set.file = ProcessLimitFile::create(cache, set.bytes)?;
        }
        Ok(())
    }

    /// Takes the file away, with which the limit ends.
    pub fn take_file(&self) -> Option<ProcessLimitFile> {
        self.state.lock().take().map(|set| set.file)
    }
}

impl ProcessLimitFile {
    fn create(cache: &Path, bytes: u64) -> io::Result<Self> {
        let folder = cache.join(LIMITS_FOLDER);
        create_private_dir(&folder)?;
        let path = folder.join(format!("{:016x}", getrandom::u64().map_err(io::Error::other)?));
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        // Waits for readers, who hold it for microseconds. Nobody removes it meanwhile: for that the cache is locked.
        flock(&file, FlockOperation::LockExclusive)?;
        file.write_all_at(&bytes.to_le_bytes(), 0)?;
        Ok(Self { file, path })
    }

    fn has_name(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
    }
}

impl Drop for ProcessLimitFile {
    fn drop(&mut self) {
        // One that stays has no lock any more, and does not count.
        let _ = fs::remove_file(&self.path);
    }
}

/// The smallest limit of a living process, bytes.
pub(super) fn find_smallest_limit(cache: &Path) -> Option<u64> {
    list_files(cache).filter_map(|path| read_limit(&path)).min()
}

/// Removes the files of processes that were killed. Called with the lock of the cache.
fn remove_ended(cache: &Path) {
    for path in list_files(cache) {
        if File::open(&path).is_ok_and(|file| is_ended(&file)) {
            let _ = fs::remove_file(path);
        }
    }
}

fn list_files(cache: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(cache.join(LIMITS_FOLDER)).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Whether the process that locked a file has ended.
fn is_ended(file: &File) -> bool {
    // Shared, so that those who look at the same moment do not take each other for that process.
    flock(file, FlockOperation::NonBlockingLockShared).is_ok()
}

fn read_limit(path: &Path) -> Option<u64> {
    let file = File::open(path).ok().filter(|file| !is_ended(file))?;
    let mut bytes = [0; LEN];
    file.read_exact_at(&mut bytes, 0).ok()?;
    Some(u64::from_le_bytes(bytes))
}
