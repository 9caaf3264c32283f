//! Unsaved changes: files that a restore overwrites or removes and that no snapshot holds as they are.

use std::collections::HashSet;

use vellum_host::beneath::HeldDir;
use vellum_host::escape::format_path;
use vellum_map::KeySpan;
use vellum_types::{FileKind, Ino, MapKeyRef};
use vellum_volume::diff::compare_inodes;
use vellum_volume::tree::InodeRecord;
use vellum_volume::tree::PathBudget;
use vellum_volume::{FsTree, VolumeError};

use crate::error::Result;
use crate::plan::{PlanSteps, TargetEntry};
use crate::scan::{ScanEntryId, ScanTree};
use crate::worktree::CapturedDirectory;

/// Paths in the way that a message names.
const SHOWN: usize = 10;

/// What would be lost.
#[derive(Debug, Default)]
pub struct UnsavedFiles {
    /// Paths that a snapshot can save.
    pub unsaved: Vec<Vec<u8>>,
    /// Paths, escaped, that none can: they are ignored or cannot be read.
    pub in_the_way: Vec<String>,
}

/// What snapshots hold.
pub struct SnapshottedState {
    /// The state of the last snapshot; None before the first.
    pub head: Option<FsTree>,
    /// What a restore that was interrupted saved, and what it was to bring back.
    pub saved: Vec<FsTree>,
    /// Whether there was one: directories may stand as it left them.
    pub was_interrupted: bool,
}

/// Looks for what a plan would lose.
pub struct UnsavedSearch<'a> {
    /// The directory.
    pub root: &'a HeldDir,
    /// The state to be reached.
    pub target: &'a FsTree,
    /// The directory as it is.
    pub looked: &'a CapturedDirectory,
    /// What is safe.
    pub known: &'a SnapshottedState,
}

impl UnsavedSearch<'_> {
    /// Finds what the steps would lose.
    pub fn find_unsaved(&self, steps: &PlanSteps) -> Result<UnsavedFiles> {
        let looked = self.looked;
        let dirty = collect_changed_inodes(&looked.state)?;
        let mut found = UnsavedFiles::default();
        let mut budget = PathBudget::default();
        let replaced = steps.writes.iter().filter_map(|write| write.replaces);
        let relinked = steps.links.iter().filter_map(|link| link.replaces);
        let changed = steps.metas.iter().map(|(_, id)| *id);
        for id in steps.deletes.iter().copied().chain(replaced).chain(relinked).chain(changed) {
            let entry = looked.tree.entry(id);
            let ino = looked.captured.number_of_entry(id);
            // Nothing is known of the content of this file, so no snapshot can be said to hold it.
            if looked.captured.recorded_state(entry).is_none() {
                found.in_the_way.push(format_path(entry.path()));
            } else if dirty.contains(&ino) && !self.is_saved(id)? {
                let path = entry.path();
                budget.charge_path(&path)?;
                found.unsaved.push(path);
            }
        }
        for ino in &steps.dirs {
            let path = self.target.inode_path(*ino)?;
            if self.would_lose_dir(*ino, &path, &dirty)? {
                budget.charge_path(&path)?;
                found.unsaved.push(path);
            }
        }
        find_obstacles(self.root, self.target, &looked.tree, steps, &mut found.in_the_way)?;
        found.in_the_way.truncate(SHOWN);
        Ok(found)
    }

    fn is_saved(&self, id: ScanEntryId) -> Result<bool> {
        let entry = self.looked.tree.entry(id);
        // The interrupted run may have changed modes and times of directories that it had not finished. These
        // are not the user's changes, and taking them for such would demand a new safety snapshot after each
        // interruption.
        if entry.kind() == FileKind::Dir && self.known.was_interrupted {
            return Ok(true);
        }
        self.is_saved_at(&entry.path(), self.looked.captured.number_of_entry(id))
    }

    fn is_saved_at(&self, path: &[u8], ino: Ino) -> Result<bool> {
        let here = self.looked.state.read_inode(ino)?;
        for saved in &self.known.saved {
            if contains_same_inode(saved, path, &here)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether permissions, owner or extended attributes of a directory would be lost.
    fn would_lose_dir(&self, ino: Ino, path: &[u8], dirty: &HashSet<Ino>) -> Result<bool> {
        // A directory that is not there has nothing to lose.
        let Ok((now, attr)) = self.looked.state.find_path(path, "") else { return Ok(false) };
        if attr.kind != FileKind::Dir || !dirty.contains(&now) || self.known.was_interrupted {
            return Ok(false);
        }
        let here = self.looked.state.read_inode(now)?;
        if !compare_inodes(&here, &self.target.read_inode(ino)?).has_change() {
            return Ok(false);
        }
        match &self.known.head {
            Some(head) => Ok(!contains_same_inode(head, path, &here)?),
            // Before the first snapshot, nothing is held by any.
            None => Ok(true),
        }
    }
}

/// Whether a state has this at the same path.
fn contains_same_inode(state: &FsTree, path: &[u8], here: &InodeRecord) -> Result<bool> {
    let Ok((there, _)) = state.find_path(path, "") else { return Ok(false) };
    Ok(!compare_inodes(here, &state.read_inode(there)?).has_change())
}

/// With `--discard`, what the scan left out may be overwritten.
pub fn allow_overwriting(steps: &mut PlanSteps) {
    for write in &mut steps.writes {
        write.overwrites = true;
    }
    for link in &mut steps.links {
        link.overwrites = true;
    }
}

/// Inodes of which the directory's state differs from the last snapshot's.
pub(crate) fn collect_changed_inodes(state: &FsTree) -> Result<HashSet<Ino>> {
    let changes = state.map_view().changes_in_span(&KeySpan::all_keys());
    let parse = |key: &[u8]| MapKeyRef::parse(key).map(|key| key.ino());
    Ok(changes
        .map(|(key, _)| parse(key.bytes).map_err(VolumeError::wrap_decode_error("a change")))
        .collect::<Result<_, _>>()?)
}

/// Finds what stands where something is to be made, though the scan did not list it.
fn find_obstacles(
    root: &HeldDir,
    target: &FsTree,
    tree: &ScanTree,
    steps: &PlanSteps,
    found: &mut Vec<String>,
) -> Result<()> {
    // A scan that listed everything has no hidden obstacles, which saves a `statx` for each entry that is
    // created.
    if tree.dirs().all(|dir| dir.ignored_count() == 0) {
        return Ok(());
    }
    let mut missing: HashSet<Ino> = HashSet::new();
    let made = steps.writes.iter().filter(|write| write.replaces.is_none()).map(|write| &write.place);
    let linked = steps.links.iter().filter(|link| link.replaces.is_none()).map(|link| &link.place);
    // By number: the paths of a deep tree would take memory with the square of its depth.
    let going: HashSet<ScanEntryId> = steps.deletes.iter().copied().collect();
    let goes = |path: &[u8]| tree.find_entry_at(path).is_some_and(|entry| going.contains(&entry.id()));
    find_blocked_deletes(steps, tree, &going, target, found)?;
    for place in steps.make_dirs.iter().chain(made).chain(linked) {
        // Nothing can be below a directory that does not exist or is removed first. Directories come before
        // their entries in `make_dirs`.
        if missing.contains(&place.dir) {
            missing.insert(place.ino);
            continue;
        }
        let path = target.entry_path(place.dir, &place.name)?;
        match file_kind_at(root, &path) {
            None => {
                missing.insert(place.ino);
            }
            // What is there and listed goes before this is made.
            Some(_) if goes(&path) => {
                missing.insert(place.ino);
            }
            Some(kind) if is_existing_dir(place, kind) => {}
            Some(_) => found.push(format_path(&path)),
        }
    }
    Ok(())
}

fn is_existing_dir(place: &TargetEntry, there: FileKind) -> bool {
    place.kind == FileKind::Dir && there == FileKind::Dir
}

fn file_kind_at(root: &HeldDir, path: &[u8]) -> Option<FileKind> {
    let (dir, name) = root.resolve_parent(path).ok()?;
    dir.stat(name).ok().map(|stat| stat.kind)
}

/// A directory that makes room for something else cannot go if the scan left something in it out.
fn find_blocked_deletes(
    steps: &PlanSteps,
    tree: &ScanTree,
    going: &HashSet<ScanEntryId>,
    target: &FsTree,
    found: &mut Vec<String>,
) -> Result<()> {
    let mut kept = HashSet::new();
    for id in &steps.deletes {
        let Some(dir) = tree.entry(*id).child_index().map(|child| tree.dir(child)) else { continue };
        if dir.ignored_count() > 0 || !dir.is_readable() {
            // With the directories on the way to it, up to one that was met before.
            let mut at = dir.own_entry();
            while let Some(entry) = at {
                at = if kept.insert(entry.id()) { entry.containing_dir().own_entry() } else { None };
            }
        }
    }
    if kept.is_empty() {
        return Ok(());
    }
    for write in &steps.writes {
        let path = target.entry_path(write.place.dir, &write.place.name)?;
        if tree
            .find_entry_at(&path)
            .is_some_and(|entry| kept.contains(&entry.id()) && going.contains(&entry.id()))
        {
            found.push(format_path(&path));
        }
    }
    Ok(())
}
