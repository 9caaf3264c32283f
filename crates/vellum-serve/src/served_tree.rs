//! What a gateway serves: a snapshot, or a live worktree that this process has open.

use std::path::Path;
use std::time::UNIX_EPOCH;

use vellum_library::{
    DirEntry, DirPage, Error, File, Metadata, OpenError, Snapshot, SnapshotId, Tree as _, TreeHold,
    TreeInodes, Volume, Worktree,
};

use crate::error::{Result, ServeError};

/// A tree of files.
#[derive(Clone)]
pub enum ServedTree {
    /// It never changes.
    Snapshot(Snapshot),
    /// Only this process changes it.
    Live(Worktree),
}

/// A tree that was opened by its name.
pub struct NamedTree {
    /// The worktree.
    pub worktree: String,
    /// What is in it.
    pub tree: ServedTree,
    /// Keeps a snapshot's content until the end, whoever forgets it.
    _hold: Option<TreeHold>,
}

impl NamedTree {
    /// Opens `WORKTREE`, or `WORKTREE@SNAPSHOT`; without a worktree, it is the one of the volume's directory. What the name of
    /// the snapshot stands for is looked up once. Of a worktree that is checked out, the newest snapshot is opened: its files
    /// are not this process's. What a snapshot has stays in the store until the result is dropped.
    pub fn open(volume: &Volume, name: &str) -> Result<Self> {
        let (worktree, snapshot) = match name.split_once('@') {
            Some((worktree, snapshot)) => (worktree, Some(snapshot)),
            None => (name, None),
        };
        let facts = volume.facts()?;
        let worktree = if worktree.is_empty() { facts.worktree.clone() } else { worktree.to_owned() };
        let Some(found) = facts.worktrees.iter().find(|found| found.name == worktree) else {
            let known: Vec<_> = facts.worktrees.iter().map(|known| known.name.as_str()).collect();
            return Err(ServeError::NoWorktree { name: worktree, known: known.join(", ") });
        };
        let tree = match snapshot {
            Some(text) => ServedTree::Snapshot(volume.open_snapshot(&name_in_worktree(&worktree, text))?),
            None => open_worktree(volume, &worktree, found.head)?,
        };
        let hold = match tree.snapshot_id() {
            Some(id) => Some(volume.hold_snapshot(id, |warning| eprintln!("warning: {warning}"))?),
            None => None,
        };
        Ok(Self { worktree, tree, _hold: hold })
    }
}

/// `HEAD` of another worktree than that of the volume's directory is named by the worktree.
fn name_in_worktree(worktree: &str, text: &str) -> String {
    match text.strip_prefix("HEAD") {
        Some(steps) if steps.is_empty() || steps.starts_with(['~', '^']) => format!("{worktree}{steps}"),
        Some(_) | None => text.to_owned(),
    }
}

fn open_worktree(volume: &Volume, name: &str, head: Option<SnapshotId>) -> Result<ServedTree> {
    match volume.open_worktree(name) {
        Ok(live) => Ok(ServedTree::Live(live)),
        Err(Error::Open(OpenError::CheckedOut { .. })) => {
            let head = head.ok_or_else(|| ServeError::NoSnapshot(name.to_owned()))?;
            Ok(ServedTree::Snapshot(volume.open_snapshot(&head.to_string())?))
        }
        Err(Error::Open(source @ OpenError::Held { .. })) => {
            Err(ServeError::WorktreeHeld { name: name.to_owned(), source: Box::new(source) })
        }
        Err(error) => Err(error.into()),
    }
}

/// The tag of an entry of this snapshot, or of a live worktree.
pub(crate) fn entity_tag(snapshot: Option<SnapshotId>, metadata: &Metadata) -> String {
    let ino = metadata.ino();
    match snapshot {
        Some(snapshot) => format!("{}-{ino:x}", snapshot.to_string().get(..24).unwrap_or_default()),
        None => {
            let changed = metadata.changed().duration_since(UNIX_EPOCH).unwrap_or_default();
            format!("{ino:x}-{:x}", changed.as_nanos())
        }
    }
}

impl ServedTree {
    /// The end of the year 9999, in seconds: dates of HTTP have four digits for the year.
    pub const LAST_DATE: u64 = 253_402_300_799;

    /// The worktree, if it can be written.
    #[must_use]
    pub fn worktree(&self) -> Option<&Worktree> {
        match self {
            Self::Snapshot(_) => None,
            Self::Live(worktree) => Some(worktree),
        }
    }

    /// The snapshot, if it is one.
    #[must_use]
    pub fn snapshot_id(&self) -> Option<SnapshotId> {
        match self {
            Self::Snapshot(snapshot) => Some(snapshot.id()),
            Self::Live(_) => None,
        }
    }

    /// Its inodes, by number.
    #[must_use]
    pub fn inodes(&self) -> TreeInodes {
        match self {
            Self::Snapshot(snapshot) => snapshot.inodes(),
            Self::Live(worktree) => worktree.inodes(),
        }
    }

    /// The attributes of what is at a path. Symlinks are followed within the tree.
    pub fn stat(&self, path: &Path) -> vellum_library::Result<Metadata> {
        match self {
            Self::Snapshot(snapshot) => snapshot.stat(path),
            Self::Live(worktree) => worktree.stat(path),
        }
    }

    /// The attributes of what is at a path, also of a symlink.
    pub fn lstat(&self, path: &Path) -> vellum_library::Result<Metadata> {
        match self {
            Self::Snapshot(snapshot) => snapshot.lstat(path),
            Self::Live(worktree) => worktree.lstat(path),
        }
    }

    /// At most `limit` entries of a directory, those after a name.
    pub fn read_dir_page(
        &self,
        path: &Path,
        after: Option<&[u8]>,
        limit: usize,
    ) -> vellum_library::Result<DirPage> {
        match self {
            Self::Snapshot(snapshot) => snapshot.read_dir_page(path, after, limit),
            Self::Live(worktree) => worktree.read_dir_page(path, after, limit),
        }
    }

    /// The entries of a directory, by name.
    pub fn read_dir(&self, path: &Path) -> vellum_library::Result<Vec<DirEntry>> {
        match self {
            Self::Snapshot(snapshot) => snapshot.read_dir(path),
            Self::Live(worktree) => worktree.read_dir(path),
        }
    }

    /// What changes with each change of an entry's content: an upload makes a new file, with a number of its own.
    #[must_use]
    pub fn entity_tag(&self, metadata: &Metadata) -> String {
        entity_tag(self.snapshot_id(), metadata)
    }

    /// Opens a file for reading. Symlinks are followed within the tree.
    pub fn open(&self, path: &Path) -> vellum_library::Result<File> {
        match self {
            Self::Snapshot(snapshot) => snapshot.open(path),
            Self::Live(worktree) => worktree.open(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::name_in_worktree;

    #[test]
    fn the_head_is_that_of_the_worktree() {
        for (text, expected) in [
            ("HEAD", "other"),
            ("HEAD~2", "other~2"),
            ("HEAD^2", "other^2"),
            ("HEADER", "HEADER"),
            ("v1.0", "v1.0"),
            ("@{yesterday}", "@{yesterday}"),
        ] {
            assert_eq!(name_in_worktree("other", text), expected);
        }
    }
}
