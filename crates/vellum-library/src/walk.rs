//! Walking over a tree.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::io::Errno;
use vellum_fs::{DirectoryEntry, Epoch, FsError};
use vellum_types::{Dentry, FileKind, Ino};

use crate::error::{Error, Result};
use crate::metadata::WalkEntry;
use crate::paths::PathReader;
use crate::tree::{path_bytes, read_metadata};

/// The iterator that [`crate::Tree::walk`] returns. Entries that vanish meanwhile are skipped. After an error it
/// skips what could not be read and continues. If a live worktree is restored, it ends with an error.
pub struct TreeWalk {
    reader: PathReader,
    /// The start. `None`: the walk has begun.
    start: Option<PathBuf>,
    /// The stack of directories being visited.
    path: Vec<WalkLevel>,
    /// The epoch of the live worktree that it walks over.
    epoch: Epoch,
}

/// A directory whose entries are being visited.
struct WalkLevel {
    ino: Ino,
    path: PathBuf,
    entries: std::vec::IntoIter<DirectoryEntry>,
}

impl TreeWalk {
    pub(crate) fn new(reader: PathReader, start: PathBuf) -> Self {
        Self { reader, start: Some(start), path: Vec::new(), epoch: Epoch::default() }
    }

    fn visit_start(&mut self, start: PathBuf) -> Result<WalkEntry> {
        let path = path_bytes(&start);
        self.epoch = self.reader.source.current_epoch();
        let at = self.reader.resolve_path(path, false).map_err(Error::for_action("walk", path))?;
        self.visit_entry(at, start)
    }

    fn visit_entry(&mut self, at: Dentry, path: PathBuf) -> Result<WalkEntry> {
        // Each entry is read by its number, not by its path: a directory that is renamed meanwhile is walked to its
        // end.
        let metadata =
            read_metadata(&self.reader, at).map_err(Error::for_action("stat", path_bytes(&path)))?;
        if at.kind == FileKind::Dir {
            // A forged tree may contain itself.
            if self.path.iter().any(|level| level.ino == at.ino) {
                let circle = FsError::BadTree(format!("the directory {} lies in itself", at.ino));
                return Err(Error::for_action("walk", path_bytes(&path))(circle));
            }
            let entries = self
                .reader
                .source
                .state()
                .list_entries(at.ino)
                .map_err(Error::for_action("list", path_bytes(&path)))?;
            self.path.push(WalkLevel { ino: at.ino, path: path.clone(), entries: entries.into_iter() });
        }
        Ok(WalkEntry { path, metadata })
    }
}

impl Iterator for TreeWalk {
    type Item = Result<WalkEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        // A clone, because the guard borrows from it while the walk itself changes.
        let reader = self.reader.clone();
        let _entered = reader.enter_epoch();
        if let Some(start) = self.start.take() {
            return Some(self.visit_start(start));
        }
        if self.epoch != reader.source.current_epoch() {
            // What was restored has other numbers: it ends here.
            let there_was_more = !std::mem::take(&mut self.path).is_empty();
            return there_was_more.then(|| Err(FsError::Posix(Errno::STALE).into()));
        }
        loop {
            let level = self.path.last_mut()?;
            let Some(entry) = level.entries.next() else {
                self.path.pop();
                continue;
            };
            let path = level.path.join(OsStr::from_bytes(&entry.name));
            let at = Dentry { ino: entry.ino, kind: entry.kind };
            match self.visit_entry(at, path) {
                // `for_action` makes a vanished inode of this one, too.
                Err(error) if error.posix_errno() == Some(Errno::NOENT) => {}
                visited => return Some(visited),
            }
        }
    }
}
