//! The files of a live worktree that are also in a log: which file has which name and number.
//!
//! Invariant: an operation is added to the queue after it was carried out on the local file and before it returns to the
//! caller. The *gate* of a file is held shared by each change of it, and exclusively while a piece of it is copied into a
//! base: so a copied piece is the file as the operations before it in the log made it. Lock order: the names, the gate of
//! a file, the queue.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use vellum_live::folder::{EngineFile, EngineFolder};

use super::operation::{FileNumber, FolderOperation, LoggedFolder, WRITE_MAX};
use super::queue::OperationQueue;

/// A file that is also in the log.
pub(crate) struct LoggedFile {
    pub number: FileNumber,
    pub local: Arc<dyn EngineFile>,
    /// Held by who changes the file, exclusively by who copies of it.
    pub gate: RwLock<()>,
    /// Bytes that a replay gives the file: without the room that is reserved here.
    pub len: AtomicU64,
}

/// A name in one of the folders.
type FolderName = (LoggedFolder, String);

/// All files, and the queue that their changes go to.
pub(crate) struct LoggedFiles {
    pub queue: Arc<OperationQueue>,
    pub metadata: Arc<dyn EngineFolder>,
    pub write_log: Arc<dyn EngineFolder>,
    names: Mutex<FileNames>,
}

#[derive(Default)]
struct FileNames {
    files: BTreeMap<FolderName, Arc<LoggedFile>>,
    next: u64,
}

impl LoggedFile {
    fn new(number: FileNumber, local: Arc<dyn EngineFile>, len: u64) -> Arc<Self> {
        Arc::new(Self { number, local, gate: RwLock::default(), len: AtomicU64::new(len) })
    }
}

impl LoggedFiles {
    pub fn new(
        queue: Arc<OperationQueue>,
        metadata: Arc<dyn EngineFolder>,
        write_log: Arc<dyn EngineFolder>,
    ) -> Self {
        Self { queue, metadata, write_log, names: Mutex::default() }
    }

    pub fn local_folder(&self, folder: LoggedFolder) -> &Arc<dyn EngineFolder> {
        match folder {
            LoggedFolder::Metadata => &self.metadata,
            LoggedFolder::WriteLog => &self.write_log,
        }
    }

    /// Takes over a file that is there. `number`: the one that it has in the log; None: the log does not have it yet.
    pub fn adopt_file(&self, folder: LoggedFolder, name: &str, number: Option<FileNumber>) -> io::Result<()> {
        let local = self.local_folder(folder).open_file(name)?;
        let len = local.size()?;
        let mut names = self.names.lock();
        let number = number.unwrap_or(FileNumber(names.next));
        names.next = names.next.max(number.0 + 1);
        names.files.insert((folder, name.to_owned()), LoggedFile::new(number, local, len));
        Ok(())
    }

    /// Lets new files have numbers from here on.
    pub fn reserve_numbers(&self, next: u64) {
        let mut names = self.names.lock();
        names.next = names.next.max(next);
    }

    /// Bytes of all files.
    pub fn total_len(&self) -> u64 {
        self.names.lock().files.values().map(|file| file.len.load(Ordering::Relaxed)).sum()
    }

    pub fn find_file(&self, folder: LoggedFolder, name: &str) -> io::Result<Arc<LoggedFile>> {
        let names = self.names.lock();
        let found = names.files.get(&(folder, name.to_owned())).cloned();
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub fn create_file(&self, folder: LoggedFolder, name: &str) -> io::Result<Arc<LoggedFile>> {
        // Before the lock of the names: the base that would make room takes it.
        self.queue.wait_for_room()?;
        let mut names = self.names.lock();
        let key = (folder, name.to_owned());
        if let Some(file) = names.files.get(&key).cloned() {
            // It is emptied: what has it open sees the same file.
            self.set_len_with(&file, 0, || self.local_folder(folder).create_file(name).map(drop))?;
            return Ok(file);
        }
        let local = self.local_folder(folder).create_file(name)?;
        let number = FileNumber(names.next);
        names.next += 1;
        let file = LoggedFile::new(number, local, 0);
        names.files.insert(key, file.clone());
        // With the names locked, so that the log has the operations of one name in the order in which they were done here.
        self.queue.add(&[FolderOperation::Name { folder, name, file: number }])?;
        Ok(file)
    }

    /// Changes the length of a file by `change`.
    pub fn set_len_with(
        &self,
        file: &LoggedFile,
        len: u64,
        change: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        // Nobody waits for room here, since `create_file` comes here with the names locked. The operation
        // takes a few bytes.
        let _shared = file.gate.read();
        // First the local file. If that fails, the log has nothing; if the log fails, this process serves nothing more.
        change()?;
        file.len.store(len, Ordering::Relaxed);
        self.queue.add(&[FolderOperation::SetLen { file: file.number, len }])
    }

    /// Writes pieces that follow each other, by `write`.
    pub fn write_with(
        &self,
        file: &LoggedFile,
        offset: u64,
        pieces: &[&[u8]],
        write: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        self.queue.wait_for_room()?;
        let _shared = file.gate.read();
        write()?;
        let mut at = offset;
        for piece in pieces {
            add_write(&self.queue, file.number, at, piece)?;
            at += piece.len() as u64;
        }
        // Relaxed: whoever reads it for a base has the gate for itself.
        file.len.fetch_max(at, Ordering::Relaxed);
        Ok(())
    }

    pub fn rename_file(&self, folder: LoggedFolder, from: &str, to: &str) -> io::Result<()> {
        self.queue.wait_for_room()?;
        let mut names = self.names.lock();
        let key = (folder, from.to_owned());
        let file = names.files.get(&key).cloned().ok_or(io::ErrorKind::NotFound)?;
        self.local_folder(folder).rename_file(from, to)?;
        names.files.remove(&key);
        let number = file.number;
        names.files.insert((folder, to.to_owned()), file);
        self.queue.add(&[FolderOperation::Rename { folder, from, to, file: number }])
    }

    pub fn remove_file(&self, folder: LoggedFolder, name: &str) -> io::Result<()> {
        self.queue.wait_for_room()?;
        let mut names = self.names.lock();
        self.local_folder(folder).remove_file(name)?;
        match names.files.remove(&(folder, name.to_owned())) {
            Some(_) => self.queue.add(&[FolderOperation::Remove { folder, name }]),
            None => Ok(()),
        }
    }

    /// The names and files of this moment.
    pub fn list_files(&self) -> Vec<(FolderName, Arc<LoggedFile>)> {
        self.names.lock().files.iter().map(|(name, file)| (name.clone(), file.clone())).collect()
    }

    /// Puts a file's name and length into the log once more. None: it has no name any more.
    pub fn repeat_name(&self, file: &Arc<LoggedFile>) -> io::Result<Option<u64>> {
        let names = self.names.lock();
        // By the file, since it may have another name by now.
        let found = names.files.iter().find(|(_, named)| Arc::ptr_eq(named, file));
        let Some(((folder, name), _)) = found else { return Ok(None) };
        // The copy stands in the log at one place, and must be the file as it is between the changes before and behind it.
        let _alone = file.gate.write();
        let len = file.len.load(Ordering::Relaxed);
        let named = FolderOperation::Name { folder: *folder, name, file: file.number };
        self.queue.add(&[named, FolderOperation::SetLen { file: file.number, len }])?;
        Ok(Some(len))
    }

    /// Puts a piece of a file into the log once more. Returns how long it was; 0 at the end of the file.
    pub fn repeat_piece(&self, file: &LoggedFile, offset: u64, buffer: &mut [u8]) -> io::Result<u64> {
        self.queue.wait_for_room()?;
        let _alone = file.gate.write();
        // Not beyond what a replay gives it: what is behind is room.
        let left = file.len.load(Ordering::Relaxed).saturating_sub(offset);
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let count = file.local.read_at(buffer.get_mut(..most).unwrap_or_default(), offset)?;
        add_write(&self.queue, file.number, offset, buffer.get(..count).unwrap_or_default())?;
        Ok(count as u64)
    }
}

/// Adds a write to the queue, in pieces that fit into records; zeros without their bytes.
pub(crate) fn add_write(
    queue: &OperationQueue,
    file: FileNumber,
    offset: u64,
    bytes: &[u8],
) -> io::Result<()> {
    let pieces = bytes.chunks(WRITE_MAX).scan(offset, |at, piece| {
        let start = *at;
        *at += piece.len() as u64;
        Some((start, piece))
    });
    let operations: Vec<_> = pieces
        .map(|(offset, bytes)| match bytes.iter().all(|byte| *byte == 0) {
            true => FolderOperation::Zeros { file, offset, len: bytes.len() as u64 },
            false => FolderOperation::Write { file, offset, bytes },
        })
        .collect();
    queue.add(&operations)
}
