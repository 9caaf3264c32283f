//! Finds the snapshots of a history that changed a path.
//!
//! Each snapshot is compared with the one before it, and only at the path: of two trees the nodes are read that hold the
//! entries on the way to it and its own keys. Neighbours share nearly all nodes, so that a snapshot which changed
//! something else costs its top node.
//!
//! Invariant: a snapshot counts if, and only if, other names lie at or under the path than before, or a name there has
//! another kind, content, mode, owner, time or extended attribute. Deliberately absent: how the versions differ
//! ([`crate::diff`] says that).

use std::collections::{HashSet, VecDeque};

use rayon::prelude::*;
use vellum_host::parallel::run_parallel;
use vellum_map::{KeySpan, MapRoot, diff_maps_in_span};
use vellum_types::{FileKind, Ino, InodeAttr, MapKey};

use crate::diff::{StateComparison, compare_inodes};
use crate::error::{Result, VolumeError};
use crate::history::HistoryEntry;
use crate::tree::FsTree;
use crate::volume::Volume;

/// Snapshots that are compared together at first: a page is often there soon.
const WINDOW_MIN: usize = 16;
/// Snapshots that are compared together at most: enough for all threads.
const WINDOW_MAX: usize = 512;

/// A snapshot and what its history had before it.
#[derive(Debug, Clone)]
pub struct HistoryStep {
    /// The snapshot.
    pub entry: HistoryEntry,
    /// The tree of the snapshot before it; None: it is the first one.
    pub before: Option<MapRoot>,
}

/// The snapshots among `steps` that changed something at or under a path, in their order.
pub struct PathHistory<'a, I> {
    volume: &'a Volume,
    path: &'a [u8],
    steps: I,
    /// The steps that are compared next.
    window: Vec<Result<HistoryStep>>,
    found: VecDeque<Result<HistoryEntry>>,
}

impl<'a, I: Iterator<Item = Result<HistoryStep>> + Send> PathHistory<'a, I> {
    /// Compares `steps` as far as they are asked for, and reads a window ahead. `path` is relative to the root.
    pub fn new(volume: &'a Volume, path: &'a [u8], mut steps: I) -> Self {
        let window = steps.by_ref().take(WINDOW_MIN).collect();
        Self { volume, path, steps, window, found: VecDeque::new() }
    }

    /// Compares the next steps, by all threads; false if there are none.
    fn compare_next_steps(&mut self) -> bool {
        let window = std::mem::take(&mut self.window);
        if window.is_empty() {
            return false;
        }
        // Growing: whoever asks for a page does not wait for more, and whoever asks for all keeps all threads busy.
        let next_len = (window.len() * 3 / 2).min(WINDOW_MAX);
        // Only one thread can walk the history: the others compare meanwhile, instead of waiting for it.
        let compare = || compare_steps(self.volume, self.path, window);
        let read_next = || self.steps.by_ref().take(next_len).collect();
        let (changed, next) = run_parallel(|| rayon::join(compare, read_next));
        self.window = next;
        self.found.extend(changed.into_iter().filter_map(Result::transpose));
        true
    }
}

/// Which of some steps changed the path; None for each that did not.
fn compare_steps(
    volume: &Volume,
    path: &[u8],
    steps: Vec<Result<HistoryStep>>,
) -> Vec<Result<Option<HistoryEntry>>> {
    let compare = |step: Result<HistoryStep>| {
        let HistoryStep { entry, before } = step?;
        Ok(volume.is_path_changed(path, before, entry.record.root)?.then_some(entry))
    };
    steps.into_par_iter().map(compare).collect()
}

impl<I: Iterator<Item = Result<HistoryStep>> + Send> Iterator for PathHistory<'_, I> {
    type Item = Result<HistoryEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.found.is_empty() && self.compare_next_steps() {}
        self.found.pop_front()
    }
}

impl Volume {
    /// Returns whether anything at or under a path differs between two trees; without a tree before, whether the path is
    /// there. Fails if a node of one of them cannot be read.
    pub fn is_path_changed(&self, path: &[u8], before: Option<MapRoot>, after: MapRoot) -> Result<bool> {
        // Snapshots that changed nothing are common, and need no look into the tree.
        if before == Some(after) {
            return Ok(false);
        }
        let to = self.open_tree(after);
        let there = find_path_inode(&to, path)?;
        let Some(before) = before else { return Ok(there.is_some()) };
        let from = self.open_tree(before);
        let states = StateComparison { from: &from, to: &to };
        let ((old, old_attr), (new, new_attr)) = match (find_path_inode(&from, path)?, there) {
            (None, None) => return Ok(false),
            (Some(old), Some(new)) => (old, new),
            (None, Some(_)) | (Some(_), None) => return Ok(true),
        };
        // Files are compared by the keys of their inode first, which are neighbours in the map: two equal nodes are an answer.
        match (old_attr.kind == FileKind::Dir, new_attr.kind == FileKind::Dir) {
            (true, true) => DirectoryComparison::new(&states)?.has_dir_change(old, new),
            (false, false) if old == new && is_same_inode(&from, before, after, old)? => Ok(false),
            (false, false) => Ok(compare_inodes(&from.read_inode(old)?, &to.read_inode(new)?).has_change()),
            _ => Ok(true),
        }
    }
}

/// Returns the inode at a path, if there is one.
pub(crate) fn find_path_inode(tree: &FsTree, path: &[u8]) -> Result<Option<(Ino, InodeAttr)>> {
    // Without a place, because its message is not shown: here a missing path is an answer.
    match tree.find_path(path, "") {
        Ok(found) => Ok(Some(found)),
        Err(VolumeError::NoSuchPath { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether two trees hold the same of an inode.
pub(crate) fn is_same_inode(tree: &FsTree, before: MapRoot, after: MapRoot, ino: Ino) -> Result<bool> {
    let span = KeySpan::from_bounds(
        MapKey::for_attr(ino).as_bytes(),
        MapKey::for_attr(Ino(ino.0.saturating_add(1))).as_bytes(),
    );
    Ok(diff_maps_in_span(tree.nodes(), &before, &after, span).next().transpose()?.is_none())
}

/// Directories of two trees, compared by names. What has the same number in both, and was not touched, is not looked at.
struct DirectoryComparison<'a> {
    states: &'a StateComparison<'a>,
    /// What differs, and all directories above it in either tree; None: it may have names elsewhere, too.
    touched: Option<HashSet<Ino>>,
}

impl<'a> DirectoryComparison<'a> {
    fn new(states: &'a StateComparison<'a>) -> Result<Self> {
        let (changed, has_other_names) = states.find_touched_inodes()?;
        // A changed file may have a name in a directory that did not change. As nothing lists its names, no directory
        // can be passed over.
        if has_other_names {
            return Ok(Self { states, touched: None });
        }
        let mut touched = HashSet::new();
        for tree in [states.from, states.to] {
            // Of each tree by itself: what was passed in one may lie in other directories in the other one.
            let mut passed = HashSet::new();
            for ino in &changed {
                let mut at = *ino;
                // Each is passed once, so that a circle of directories ends.
                while passed.insert(at) && at != Ino::ROOT {
                    match tree.inode_attr(at)? {
                        Some(attr) => at = attr.parent,
                        None => break,
                    }
                }
            }
            touched.extend(passed);
        }
        Ok(Self { states, touched: Some(touched) })
    }

    fn may_dirs_differ(&self, old: Ino, new: Ino) -> bool {
        old != new || self.touched.as_ref().is_none_or(|touched| touched.contains(&old))
    }

    /// Whether anything differs of two directories or in them.
    fn has_dir_change(&self, old: Ino, new: Ino) -> Result<bool> {
        let mut waiting = vec![(old, new)];
        let mut met = HashSet::new();
        while let Some((old, new)) = waiting.pop() {
            if !self.may_dirs_differ(old, new) || !met.insert((old, new)) {
                continue;
            }
            let old = self.states.from.read_inode(old)?;
            let new = self.states.to.read_inode(new)?;
            if compare_inodes(&old, &new).has_change() || old.entries.len() != new.entries.len() {
                return Ok(true);
            }
            // Both lists are in the order of names: the first names that differ show that one side lacks an entry.
            for ((old_name, old), (new_name, new)) in old.entries.iter().zip(&new.entries) {
                if old_name != new_name || old.kind != new.kind {
                    return Ok(true);
                }
                if old.kind == FileKind::Dir {
                    waiting.push((old.ino, new.ino));
                } else if self.may_dirs_differ(old.ino, new.ino)
                    && compare_inodes(
                        &self.states.from.read_inode(old.ino)?,
                        &self.states.to.read_inode(new.ino)?,
                    )
                    .has_change()
                {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
