//! Ranges of snapshots: `A..B`.

use std::collections::HashSet;

use vellum_types::SnapshotId;

use crate::error::{Result, VolumeError};
use crate::history::{AncestorWalk, HistoryEntry};
use crate::volume::Volume;

/// The snapshots that lead to one, without those that lead to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RevisionRange {
    /// Where it begins; none: at the first snapshot.
    pub first: Option<SnapshotId>,
    /// Where it ends; none: nowhere, because there is no snapshot yet.
    pub last: Option<SnapshotId>,
}

/// Whether a range has the snapshot at which it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeStart {
    /// As where something is looked for in it.
    Included,
    /// As where what came after it is listed.
    Excluded,
}

impl Volume {
    /// Resolves `A..B`, `A..` (to where the worktree stands) and `..B` (from the beginning). Fails with
    /// [`VolumeError::BadExpression`] if it is none of these, and as [`Self::resolve_snapshot`] does.
    pub fn resolve_range(&self, text: &str) -> Result<RevisionRange> {
        let bad = || VolumeError::BadExpression {
            text: text.into(),
            reason: "a range is typed like v1..v2, v1.. or ..v2".into(),
        };
        let (first, last) = text.split_once("..").ok_or_else(bad)?;
        if first.is_empty() && last.is_empty() {
            return Err(bad());
        }
        let first = if first.is_empty() { None } else { Some(self.resolve_snapshot(first)?.id) };
        let last = if last.is_empty() { self.read_head()? } else { Some(self.resolve_snapshot(last)?.id) };
        Ok(RevisionRange { first, last })
    }

    /// Walks through a range, newest first. Fails if the ancestors of its beginning cannot be read.
    pub fn walk_range(
        &self,
        range: RevisionRange,
        start: RangeStart,
    ) -> Result<impl Iterator<Item = Result<HistoryEntry>> + Send> {
        let first = range.first;
        let is_left_out = |id: &SnapshotId| start == RangeStart::Excluded || Some(*id) != first;
        // All of them, however long the history is: a merge within the range may lead to any of them.
        let before: HashSet<_> = AncestorWalk::from_heads(&self.catalog, first)?
            .map(|entry| entry.map(|entry| entry.id))
            .filter(|id| id.as_ref().map_or(true, is_left_out))
            .collect::<Result<_>>()?;
        let entries = AncestorWalk::from_heads(&self.catalog, range.last)?;
        // An error passes, so that it is reported.
        Ok(entries.filter(move |entry| entry.as_ref().map_or(true, |entry| !before.contains(&entry.id))))
    }
}
