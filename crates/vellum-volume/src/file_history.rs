//! Follows a file through a history: the snapshots in which its content, mode or place changed.
//!
//! Snapshots are looked at from the newest on. Each is compared with those before it, at the file alone, as
//! [`crate::versions`] does. Where one of two neighbours lacks the path, the file is looked for by its number: it was renamed,
//! or a directory above it was, and has another path from there on.
//!
//! Invariant: a snapshot is a version if it has the file otherwise than each of the snapshots before it. A merge that took the
//! file over as one side had it is none. Times alone make no version. Deliberately absent: files that were copied and removed
//! instead of renamed ([`crate::diff`] pairs these by content, for which it compares whole trees).

use std::collections::HashMap;

use vellum_map::MapRoot;
use vellum_types::{FileKind, Ino, InodeAttr, SnapshotId};

use crate::diff::{ChangeAspects, compare_inodes};
use crate::error::Result;
use crate::history::{HistoryEntry, find_nearest_ancestors};
use crate::tree::FsTree;
use crate::versions::{find_path_inode, is_same_inode};
use crate::volume::Volume;

/// What a snapshot did to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionChange {
    /// It was not there before.
    Added,
    /// It is not there any more.
    Deleted,
    /// It had another path, and may differ too.
    Renamed {
        /// The path that it had.
        from: Vec<u8>,
        /// How it differs.
        aspects: ChangeAspects,
    },
    /// It differs.
    Modified(ChangeAspects),
}

/// A file as a snapshot has it.
#[derive(Debug, Clone)]
pub struct FileVersion {
    /// The snapshot.
    pub entry: HistoryEntry,
    /// The path there; that of before, if the file was deleted.
    pub path: Vec<u8>,
    /// What it did.
    pub change: VersionChange,
    /// What the file is; None: it was deleted.
    pub attr: Option<InodeAttr>,
}

/// A file of a tree.
#[derive(Clone)]
struct FoundFile {
    ino: Ino,
    attr: InodeAttr,
}

/// What a file is called in a snapshot, and what it is there.
#[derive(Clone)]
struct FollowedFile {
    path: Vec<u8>,
    /// None: it is not there.
    found: Option<FoundFile>,
}

/// What was found when a snapshot was compared with one before it.
struct ComparedFile {
    /// The file there.
    before: FollowedFile,
    /// The path in the snapshot, and what differs; None: nothing.
    change: Option<(Vec<u8>, VersionChange)>,
}

/// Two trees in which a file is compared.
struct TreePair {
    old: FsTree,
    new: FsTree,
}

/// The versions of a file among `entries`, in their order.
pub struct FileHistory<'a, I> {
    volume: &'a Volume,
    /// The path in snapshots that nothing descends from.
    path: Vec<u8>,
    /// All snapshots that are there, in ascending order.
    ids: &'a [SnapshotId],
    entries: I,
    /// The file in snapshots before those that were looked at.
    followed: HashMap<SnapshotId, FollowedFile>,
    was_found: bool,
}

impl<'a, I: Iterator<Item = Result<HistoryEntry>>> FileHistory<'a, I> {
    /// Follows the file that is called `path`, relative to the root, in the newest of `entries`; children come before their
    /// parents among these. `ids` are all snapshots that are there, in ascending order.
    pub fn new(volume: &'a Volume, path: Vec<u8>, ids: &'a [SnapshotId], entries: I) -> Self {
        Self { volume, path, ids, entries, followed: HashMap::new(), was_found: false }
    }

    /// Returns whether any of the snapshots that were looked at has the file, or one before them.
    #[must_use]
    pub fn was_found(&self) -> bool {
        self.was_found
    }

    fn follow_file(&mut self, entry: HistoryEntry) -> Result<Option<FileVersion>> {
        let root = entry.record.root;
        let tree = self.volume.open_tree(root);
        // Each snapshot is met once, so that what was noted for it can go.
        let file = match self.followed.remove(&entry.id) {
            Some(file) => file,
            // Nothing newer descends from it: only the name that was typed says which file is meant.
            None => FollowedFile { found: find_file(&tree, &self.path)?, path: self.path.clone() },
        };
        self.was_found |= file.found.is_some();
        let parents = find_nearest_ancestors(&self.volume.catalog, self.ids, &entry)?;
        let is_first = parents.is_empty();
        let mut changes = Vec::with_capacity(parents.len());
        for parent in parents {
            let before = self.volume.catalog.get_record(&parent)?.root;
            let compared = self.compare_file(&file, before, root)?;
            self.was_found |= compared.before.found.is_some();
            changes.push(compared.change);
            // Of several snapshots that come after one, the newest says what the file is called there.
            self.followed.entry(parent).or_insert(compared.before);
        }
        let change = if is_first {
            file.found.map(|_| (file.path, VersionChange::Added))
        } else if changes.iter().all(Option::is_some) {
            // A merge that differs from each parent is one version, described by how it differs from its first parent.
            changes.into_iter().flatten().next()
        } else {
            // One before it has the file as it is here.
            None
        };
        let Some((path, change)) = change else { return Ok(None) };
        let attr = match &change {
            VersionChange::Deleted => None,
            VersionChange::Added | VersionChange::Renamed { .. } | VersionChange::Modified(_) => {
                // Looked up again: if a rename was found in the parent's tree, the path here is not the one that was followed.
                find_file(&tree, &path)?.map(|file| file.attr)
            }
        };
        Ok(Some(FileVersion { entry, path, change, attr }))
    }

    fn compare_file(&self, file: &FollowedFile, before: MapRoot, after: MapRoot) -> Result<ComparedFile> {
        // Equal roots are equal trees: most snapshots of a quiet worktree differ in nothing.
        if before == after {
            return Ok(ComparedFile { before: file.clone(), change: None });
        }
        let trees = TreePair { old: self.volume.open_tree(before), new: self.volume.open_tree(after) };
        let path = file.path.clone();
        match (find_file(&trees.old, &path)?, &file.found) {
            (None, None) => Ok(ComparedFile { before: FollowedFile { path, found: None }, change: None }),
            (Some(old), Some(new)) => {
                let aspects = self.compare_at_path(&path, &trees, &old, new)?;
                let change = is_version(aspects).then(|| (path.clone(), VersionChange::Modified(aspects)));
                Ok(ComparedFile { before: FollowedFile { path, found: Some(old) }, change })
            }
            (None, Some(new)) => {
                let Some(old) = find_moved_file(&trees.new, new, &trees.old)? else {
                    let before = FollowedFile { path: path.clone(), found: None };
                    return Ok(ComparedFile { before, change: Some((path, VersionChange::Added)) });
                };
                let aspects = trees.compare_numbers(old.found.ino, new.ino)?;
                let change = VersionChange::Renamed { from: old.path.clone(), aspects };
                // From here back, the file is followed under the name that it had.
                let before = FollowedFile { path: old.path, found: Some(old.found) };
                Ok(ComparedFile { before, change: Some((path, change)) })
            }
            (Some(old), None) => {
                // It is not deleted if it goes on under another name.
                let change = match find_moved_file(&trees.old, &old, &trees.new)? {
                    Some(new) => {
                        let aspects = trees.compare_numbers(old.ino, new.found.ino)?;
                        (new.path, VersionChange::Renamed { from: path.clone(), aspects })
                    }
                    None => (path.clone(), VersionChange::Deleted),
                };
                Ok(ComparedFile { before: FollowedFile { path, found: Some(old) }, change: Some(change) })
            }
        }
    }

    /// How two files of one path differ.
    fn compare_at_path(
        &self,
        path: &[u8],
        trees: &TreePair,
        old: &FoundFile,
        new: &FoundFile,
    ) -> Result<ChangeAspects> {
        let before = trees.old.map_view().base;
        let after = trees.new.map_view().base;
        if old.attr.kind == FileKind::Dir && new.attr.kind == FileKind::Dir {
            // What is in a directory is its content.
            let is_changed = self.volume.is_path_changed(path, Some(before), after)?;
            let own = trees.compare_numbers(old.ino, new.ino)?;
            // A directory that differs itself counts as changed for that alone: then nothing is known of what is in it.
            return Ok(ChangeAspects { content: is_changed && !own.has_change(), ..own });
        }
        if old.ino == new.ino && is_same_inode(&trees.old, before, after, old.ino)? {
            return Ok(ChangeAspects::default());
        }
        trees.compare_numbers(old.ino, new.ino)
    }
}

impl TreePair {
    /// How two inodes differ, whatever is in them if they are directories.
    fn compare_numbers(&self, old: Ino, new: Ino) -> Result<ChangeAspects> {
        Ok(compare_inodes(&self.old.read_inode(old)?, &self.new.read_inode(new)?))
    }
}

impl<I: Iterator<Item = Result<HistoryEntry>>> Iterator for FileHistory<'_, I> {
    type Item = Result<FileVersion>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let entry = self.entries.next()?;
            match entry.and_then(|entry| self.follow_file(entry)) {
                Ok(None) => {}
                Ok(Some(version)) => return Some(Ok(version)),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Whether more differs than the time.
fn is_version(aspects: ChangeAspects) -> bool {
    ChangeAspects { time: false, ..aspects }.has_change()
}

fn find_file(tree: &FsTree, path: &[u8]) -> Result<Option<FoundFile>> {
    Ok(find_path_inode(tree, path)?.map(|(ino, attr)| FoundFile { ino, attr }))
}

/// A file at another path.
struct MovedFile {
    path: Vec<u8>,
    found: FoundFile,
}

/// Returns where a file of one tree is in another one that does not have it at its path; None if that has it under no name that
/// the first one lacks.
fn find_moved_file(tree: &FsTree, file: &FoundFile, other: &FsTree) -> Result<Option<MovedFile>> {
    // Worktrees that were forked number what they make alike: the generation tells their files apart.
    let is_same =
        |found: &InodeAttr| found.kind == file.attr.kind && found.generation == file.attr.generation;
    let Some(attr) = other.inode_attr(file.ino)?.filter(is_same) else { return Ok(None) };
    let path = other.entry_path(attr.parent, &attr.name)?;
    let has_name = |tree: &FsTree| -> Result<bool> {
        Ok(find_path_inode(tree, &path)?.is_some_and(|(ino, _)| ino == file.ino))
    };
    // Where both have the name, the file has only got, or lost, another one.
    let is_moved = has_name(other)? && !has_name(tree)?;
    Ok(is_moved.then_some(MovedFile { path, found: FoundFile { ino: file.ino, attr } }))
}
