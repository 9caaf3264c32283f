//! Partial checkouts: the list of paths that the last snapshot has and the directory does not, on purpose.
//!
//! A path stands for all that is below it. What is in the directory counts as present, whatever the list says; of a
//! directory that stands in the place of an absent one, the names that are not there are absent.
//!
//! Invariant: the list may name too much, never too little: it grows, durably, before a file is removed, and shrinks when
//! its files are there and durable. So a command that is killed leaves nothing that counts as deleted by mistake.
//! Deliberately absent: a list of the paths that are present. New files elsewhere would be left out of snapshots.

mod evict;
mod format;
mod hydrate;
mod names;
mod revise;

use std::cmp::Ordering;
use std::collections::BTreeSet;

use vellum_host::escape::format_path;
use vellum_types::FileKind;
use vellum_volume::diff::is_path_within;
use vellum_volume::history::HistoryEntry;
use vellum_volume::{FsTree, StateDir};

pub use evict::EvictReport;
pub use format::AbsentListError;
pub use hydrate::HydrateReport;
pub(crate) use names::{AbsentNames, ShadowedDirs};
use revise::revise_after_snapshot;

use crate::capture::CaptureResult;
use crate::error::{CheckoutError, Result};
use crate::scan::{ScanEntryRef, ScanTree};
use crate::worktree::{CapturedDirectory, CheckoutWorktree};

/// Name of the list in the state directory.
const ABSENT_FILE: &str = "absent";

/// A path from the root, ordered so that what is below a path follows it at once.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TreePath(Vec<u8>);

impl Ord for TreePath {
    fn cmp(&self, other: &Self) -> Ordering {
        let shared = self.0.iter().zip(&other.0).take_while(|(a, b)| a == b).count();
        // No name has a byte below that which ends it.
        let ranked = |path: &Self| path.0.get(shared).map(|byte| if *byte == b'/' { 0 } else { *byte });
        ranked(self).cmp(&ranked(other))
    }
}

impl PartialOrd for TreePath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Paths that are absent. None lies below another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AbsentPaths {
    paths: BTreeSet<TreePath>,
}

impl AbsentPaths {
    /// Whether nothing is absent: the checkout is whole.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// How many paths there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// The paths: each is followed by what would be below it.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.paths.iter().map(|path| path.0.as_slice())
    }

    /// Whether this very path is named.
    #[must_use]
    pub fn contains(&self, path: &[u8]) -> bool {
        self.paths.contains(&TreePath(path.to_vec()))
    }

    /// The named path that this path is, or lies below.
    #[must_use]
    pub fn find_covering(&self, path: &[u8]) -> Option<&[u8]> {
        // None lies below another, so only the last one before it can cover it.
        let before = self.paths.range(..=TreePath(path.to_vec())).next_back()?;
        is_path_within(path, &before.0).then_some(before.0.as_slice())
    }

    /// The named paths at or below a path; all below the empty one.
    pub fn list_within<'p>(&'p self, path: &'p [u8]) -> impl Iterator<Item = &'p [u8]> {
        let from = self.paths.range(TreePath(path.to_vec())..);
        from.map(|found| found.0.as_slice()).take_while(move |found| is_path_within(found, path))
    }

    /// Whether a path is absent, lies below one, or has one below it.
    #[must_use]
    pub fn is_concerned(&self, path: &[u8]) -> bool {
        self.find_covering(path).is_some() || self.list_within(path).next().is_some()
    }

    /// Adds a path, which stands for all that is below it.
    pub fn add_path(&mut self, path: &[u8]) {
        // The root cannot be absent: it is the directory itself.
        if path.is_empty() || self.find_covering(path).is_some() {
            return;
        }
        let path = TreePath(path.to_vec());
        // Paths are mostly added in their order. Then nothing can lie below the new one, and nothing is looked for.
        if self.paths.last().is_some_and(|last| *last > path) {
            self.remove_within(&path.0);
        }
        self.paths.insert(path);
    }

    /// Takes out this very path.
    pub fn remove_path(&mut self, path: &[u8]) {
        self.paths.remove(&TreePath(path.to_vec()));
    }

    /// Takes out a path and those below it.
    pub fn remove_within(&mut self, path: &[u8]) {
        let going: Vec<_> = self.list_within(path).map(<[u8]>::to_vec).collect();
        for path in going {
            self.remove_path(&path);
        }
    }

    /// Takes a path out, with all below it. If it lies below an absent directory of `base`, its neighbours on the way to it
    /// become paths of the list.
    fn split_off(&mut self, path: &[u8], base: &FsTree) -> Result<()> {
        self.remove_within(path);
        let Some(above) = self.find_covering(path).map(<[u8]>::to_vec) else { return Ok(()) };
        self.remove_path(&above);
        let mut here = above;
        while here.len() < path.len() {
            let dir = base.find_path(&here, "the last snapshot")?.0;
            let rest = path.get(here.len() + 1..).unwrap_or_default();
            let next = rest.split(|byte| *byte == b'/').next().unwrap_or_default();
            // The path above stood for all of these. Each that stays absent has to be named itself now.
            for (name, _) in base.list_entries(dir)? {
                if name != next {
                    self.add_path(&join_name(&here, &name));
                }
            }
            here = join_name(&here, next);
        }
        Ok(())
    }

    /// The paths of two lists.
    #[must_use]
    pub fn join_with(&self, other: &Self) -> Self {
        let mut joined = self.clone();
        other.iter().for_each(|path| joined.add_path(path));
        joined
    }
}

/// The paths that are absent from the directory of a worktree. A list that cannot be read is an error: without it all would
/// count as deleted.
pub fn read_absent_paths(state: &StateDir) -> Result<AbsentPaths> {
    read_list_file(state, ABSENT_FILE)
}

/// The list in a file of a state directory; empty if there is none.
fn read_list_file(state: &StateDir, name: &str) -> Result<AbsentPaths> {
    let Some(bytes) = state.read_file(name)? else { return Ok(AbsentPaths::default()) };
    let path = || format_path(state.join(name).as_os_str().as_encoded_bytes());
    AbsentPaths::decode(&bytes).map_err(|source| CheckoutError::AbsentList { path: path(), source })
}

/// The path of a name in a directory.
fn join_name(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// What the list is to be after a snapshot.
pub(crate) struct AbsentRevision {
    revised: AbsentPaths,
}

/// How a restore changes the list.
#[derive(Debug, Default)]
pub(crate) struct AbsentChange {
    /// Paths that become absent.
    pub left_out: Vec<Vec<u8>>,
    /// Paths at which there is a file.
    pub found: Vec<Vec<u8>>,
    /// Paths of which nothing is absent.
    pub only: Vec<Vec<u8>>,
}

impl AbsentChange {
    fn apply_to(&self, mut absent: AbsentPaths) -> AbsentPaths {
        self.found.iter().for_each(|path| absent.remove_path(path));
        for path in &self.only {
            absent.remove_within(path);
            // What else is below it is among what is left out.
            if let Some(above) = absent.find_covering(path).map(<[u8]>::to_vec) {
                absent.remove_path(&above);
            }
        }
        self.left_out.iter().for_each(|path| absent.add_path(path));
        absent
    }
}

/// How much is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbsentSummary {
    /// Paths on the list; each stands for all below it.
    pub paths: u64,
    /// What these hold, if the whole directory was looked at.
    pub content: Option<AbsentContent>,
}

/// Files that are absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbsentContent {
    /// Files of every kind but directories.
    pub files: u64,
    /// Bytes of the regular ones.
    pub bytes: u64,
}

impl AbsentSummary {
    /// The state has what is absent, and the scan has not: no tree need be walked for the difference.
    pub(crate) fn summarize(looked: &CapturedDirectory, is_whole: bool) -> Self {
        let CapturedDirectory { tree, captured, absent, .. } = looked;
        let count = || {
            let mut content = AbsentContent {
                files: captured.statistics.files + captured.statistics.others,
                bytes: captured.statistics.bytes,
            };
            let is_file = |entry: &ScanEntryRef<'_>| entry.kind() != FileKind::Dir;
            for entry in
                // The statistics, too, count a file with several names once.
                tree.walk_entries().filter(is_file).filter(|entry| captured.is_first_name(entry.id()))
            {
                content.files = content.files.saturating_sub(1);
                if entry.kind() == FileKind::File {
                    content.bytes = content.bytes.saturating_sub(entry.stat().size);
                }
            }
            content
        };
        Self { paths: absent.len() as u64, content: is_whole.then(count) }
    }
}

impl CheckoutWorktree {
    /// The paths that are absent.
    pub fn read_absent_paths(&self) -> Result<AbsentPaths> {
        if self.is_outside() {
            return Ok(AbsentPaths::default());
        }
        read_absent_paths(&self.volume.state)
    }

    /// Replaces the list, durably.
    pub(crate) fn write_absent_paths(&self, absent: &AbsentPaths) -> Result<()> {
        self.write_list_file(ABSENT_FILE, absent)
    }

    /// Replaces a list of the state directory, durably; an empty one has no file.
    fn write_list_file(&self, name: &str, list: &AbsentPaths) -> Result<()> {
        let state = &self.volume.state;
        if list.is_empty() {
            // Removing waits for the disk, and most worktrees never have the file.
            if state.read_file(name)?.is_some() {
                state.remove_file(name)?;
            }
            return Ok(());
        }
        let path = || format_path(state.join(name).as_os_str().as_encoded_bytes());
        let bytes = list.encode().map_err(|source| CheckoutError::AbsentList { path: path(), source })?;
        Ok(state.write_file(name, &bytes)?)
    }

    /// Makes the files of the directory durable.
    pub(crate) fn sync_files(&self) -> Result<()> {
        rustix::io::retry_on_intr(|| rustix::fs::syncfs(&self.root))
            .map_err(|errno| CheckoutError::path_error("sync", b".")(errno.into()))
    }

    /// Before a snapshot: lets the list name what is absent of the last snapshot and of the new one.
    pub(crate) fn begin_absent_revision(
        &self,
        absent: &AbsentPaths,
        base: Option<&FsTree>,
        tree: &ScanTree,
        captured: &CaptureResult,
    ) -> Result<Option<AbsentRevision>> {
        let Some(base) = base.filter(|_| !absent.is_empty()) else { return Ok(None) };
        let mut revised = revise_after_snapshot(absent, base, tree, captured)?;
        // A hydration was interrupted: until it is finished, the list must not get shorter.
        if !self.read_hydrating_paths()?.is_empty() {
            revised = absent.join_with(&revised);
        }
        if revised == *absent {
            return Ok(None);
        }
        let joined = absent.join_with(&revised);
        // Both before the snapshot is made: killed before or after, the list covers what is absent of the one that
        // counts.
        if joined != *absent {
            self.write_absent_paths(&joined)?;
        }
        Ok(Some(AbsentRevision { revised }))
    }

    /// After it: the list names what is absent of the new one only. What fails leaves a list that names too much.
    pub(crate) fn end_absent_revision(&self, revision: Option<AbsentRevision>) {
        if let Some(AbsentRevision { revised }) = revision {
            let _ = self.write_absent_paths(&revised);
        }
    }

    /// Before files are removed: lets the list name what is absent and what is to be. Returns what it is to name at last.
    pub(crate) fn begin_absent_change(&self, change: AbsentChange) -> Result<AbsentPaths> {
        let absent = self.read_absent_paths()?;
        let last = change.apply_to(absent.clone());
        let joined = absent.join_with(&last);
        if joined != absent {
            self.write_absent_paths(&joined)?;
        }
        Ok(last)
    }

    /// When the files are as they are to be: lets the list name what is absent, and no more. Files that it named before are
    /// durable first.
    pub(crate) fn end_absent_change(&self, last: AbsentPaths) -> Result<()> {
        if self.read_absent_paths()? == last {
            return Ok(());
        }
        // A power cut that loses the files must find them on the list still, or they would count as deleted.
        self.sync_files()?;
        self.write_absent_paths(&last)
    }

    /// The absent paths as names of the snapshot that the worktree stands on. Fails if there is none, since what is absent
    /// would be nowhere.
    pub(crate) fn resolve_absent_names(
        &self,
        absent: &AbsentPaths,
        head: Option<&HistoryEntry>,
    ) -> Result<AbsentNames> {
        match head {
            Some(head) => AbsentNames::resolve(absent, &self.volume.open_tree(head.record.root)),
            None => Ok(AbsentNames::default()),
        }
    }
}

#[cfg(test)]
mod tests;
