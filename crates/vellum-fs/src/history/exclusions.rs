//! What snapshots of a worktree leave out: which entries that is, and what the last snapshot of everything left out.
//!
//! Invariant: what is left out is kept in the live store in the transaction that lets the worktree stand on the snapshot, so
//! that both are there after a crash, or neither. Ignore files have no say: a mount has no scan. Deliberately absent: what is
//! done with the entries ([`super::visible`], [`super::carried`]).

use std::collections::HashSet;
use std::sync::Arc;

use vellum_host::exclusions::{CACHE_SIGNATURE, CACHE_TAG, parse_exclude_patterns};
use vellum_host::ignore_files::IgnorePatterns;
use vellum_live::StoreTransaction;
use vellum_types::{ErrorKind, FileKind, Ino};
use vellum_volume::diff::is_path_within;
use vellum_volume::exclusions::SnapshotExclusions;
use vellum_volume::tree::{DirectoryEntry, StateReader, path_components};

use crate::error::{FsError, Result};
use crate::fs::LiveFilesystem;
use crate::history::partial::allow_not_found;
use crate::tree::head::EXCLUSIONS_KEY;
use crate::tree::wrap_decode_error;

/// What a snapshot leaves out.
#[derive(Debug, Clone, Copy)]
pub enum ExclusionChoice<'e> {
    /// What the last snapshot of everything left out.
    Kept,
    /// This. A snapshot of everything decides what is left out from then on.
    Given(&'e SnapshotExclusions),
}

/// Exclusions, ready to be applied.
pub(crate) struct ExclusionRules {
    patterns: Option<Arc<IgnorePatterns>>,
    caches: bool,
}

/// The outermost entry of something that is left out.
#[derive(Debug, Clone)]
pub(crate) struct ExcludedEntry {
    /// Its path from the root.
    pub path: Vec<u8>,
    /// The directory that it is in.
    pub dir: Ino,
    /// The entry.
    pub entry: DirectoryEntry,
}

impl ExclusionRules {
    /// Fails with [`FsError::BadPattern`] if a pattern is none. What is mounted on a directory of the worktree is not the
    /// worktree's anyway.
    pub fn parse(exclusions: &SnapshotExclusions) -> Result<Self> {
        let patterns = parse_exclude_patterns(&exclusions.patterns).map_err(FsError::BadPattern)?;
        Ok(Self { patterns, caches: exclusions.caches })
    }

    /// The outermost entries that are left out of a state, by path. All directories of which nothing is left out are listed.
    pub fn find_excluded(&self, state: &dyn StateReader<FsError>) -> Result<Vec<ExcludedEntry>> {
        let mut found = Vec::new();
        let mut waiting = vec![(Ino::ROOT, Vec::new())];
        let mut seen = HashSet::new();
        while let Some((dir, above)) = waiting.pop() {
            // A hostile tree may hold a circle.
            if !seen.insert(dir) {
                return Err(FsError::BadTree(format!("the directory {dir} has two names")));
            }
            let entries = state.list_entries(dir)?;
            let is_cache = self.caches && dir != Ino::ROOT && is_cache_dir(state, &entries)?;
            for entry in entries {
                let path = join_path(&above, &entry.name);
                let is_dir = entry.kind == FileKind::Dir;
                if is_cache && entry.name != CACHE_TAG || self.matches(&path, is_dir) {
                    found.push(ExcludedEntry { path, dir, entry });
                } else if is_dir {
                    waiting.push((entry.ino, path));
                }
            }
        }
        found.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        Ok(found)
    }

    fn matches(&self, path: &[u8], is_dir: bool) -> bool {
        self.patterns.as_ref().is_some_and(|patterns| patterns.is_ignored(path, is_dir))
    }
}

impl ExcludedEntry {
    /// Whether it is the entry at a path, or below it.
    pub fn is_within(&self, path: &[u8]) -> bool {
        is_path_within(&self.path, path)
    }

    /// Whether a path is its own, or below it.
    pub fn contains(&self, path: &[u8]) -> bool {
        is_path_within(path, &self.path)
    }

    /// Whether it is below a path, or a path below it.
    pub fn concerns(&self, path: &[u8]) -> bool {
        self.is_within(path) || self.contains(path)
    }

    /// Whether a state has something in its place: at its path, or where a directory on the way to it would be.
    pub fn is_taken_in(&self, state: &dyn StateReader<FsError>) -> Result<bool> {
        let mut dir = Ino::ROOT;
        let count = path_components(&self.path).count();
        for (at, name) in path_components(&self.path).enumerate() {
            match allow_not_found(state.find_dentry(dir, name))? {
                None => return Ok(false),
                Some(there) if there.kind == FileKind::Dir && at + 1 < count => dir = there.ino,
                Some(_) => return Ok(true),
            }
        }
        Ok(true)
    }
}

impl LiveFilesystem {
    /// What the last snapshot of everything left out. It is left out until the next one, of all that compares, saves and
    /// restores.
    pub fn kept_exclusions(&self) -> Result<SnapshotExclusions> {
        let Some(bytes) = self.live_map().live_store().get(EXCLUSIONS_KEY)? else {
            return Ok(SnapshotExclusions::default());
        };
        SnapshotExclusions::decode(&bytes).map_err(wrap_decode_error("what the last snapshot left out"))
    }

    /// What a snapshot with this choice leaves out.
    pub fn resolve_exclusions(&self, choice: ExclusionChoice<'_>) -> Result<SnapshotExclusions> {
        match choice {
            ExclusionChoice::Kept => self.kept_exclusions(),
            ExclusionChoice::Given(exclusions) => Ok(exclusions.clone()),
        }
    }
}

/// Keeps what the snapshot leaves out on which the worktree stands after this transaction.
pub(crate) fn keep_exclusions(txn: &mut dyn StoreTransaction, exclusions: &SnapshotExclusions) -> Result<()> {
    if !exclusions.is_empty() {
        txn.set_key(EXCLUSIONS_KEY, exclusions.encode().into());
    } else if txn.get(EXCLUSIONS_KEY)?.is_some() {
        txn.delete_key(EXCLUSIONS_KEY);
    }
    Ok(())
}

/// Fails if something else is left out by now than was looked for.
pub(crate) fn check_exclusions_kept(
    txn: &dyn StoreTransaction,
    exclusions: &SnapshotExclusions,
) -> Result<()> {
    let kept =
        txn.get(EXCLUSIONS_KEY)?.map_or_else(|| SnapshotExclusions::default().encode(), |it| it.to_vec());
    if kept == exclusions.encode() { Ok(()) } else { Err(FsError::ChangedMeanwhile) }
}

fn is_cache_dir(state: &dyn StateReader<FsError>, entries: &[DirectoryEntry]) -> Result<bool> {
    let tag = entries.iter().find(|entry| entry.name == CACHE_TAG && entry.kind == FileKind::File);
    let Some(tag) = tag else { return Ok(false) };
    match state.read(tag.ino, 0, CACHE_SIGNATURE.len()) {
        Ok(start) => Ok(start == CACHE_SIGNATURE),
        // As in a checked-out directory, one whose mark is damaged is none: its content is recorded then.
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

fn join_path(above: &[u8], name: &[u8]) -> Vec<u8> {
    if above.is_empty() { name.to_vec() } else { [above, b"/", name].concat() }
}
