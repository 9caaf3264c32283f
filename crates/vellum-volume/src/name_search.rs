//! Finds names in a line of snapshots: which of them have a name, from when and until when.
//!
//! The first tree is read as a whole, and of each other one what differs from the tree before it, so that the work grows
//! with what changed. Neighbours are compared by all threads.
//!
//! Invariant: a name counts as there in a snapshot if the directory has an entry of that name, whichever file it is: a file
//! that was replaced by another one of its name was there all the time.

use std::collections::HashMap;

use rayon::prelude::*;
use vellum_map::{KeySpan, MapChange, MapRoot, diff_maps, read_range};
use vellum_types::{DecodeError, InodeAttr, MapKeyRef};

use crate::diff::DirectoryLink;
use crate::error::{Result, VolumeError};
use crate::history::HistoryEntry;
use crate::volume::Volume;

/// A time in which a line had a name without a break.
#[derive(Debug, Clone)]
pub struct NamePeriod {
    /// Its path from the root, in the last snapshot that has it.
    pub path: Vec<u8>,
    /// The file of that name in the last snapshot that has it.
    pub attr: InodeAttr,
    /// The first snapshot that has it.
    pub first: HistoryEntry,
    /// The last snapshot that has it.
    pub last: HistoryEntry,
    /// No snapshot of the line came after the last that has it.
    pub is_current: bool,
}

/// An entry that appears or goes from one snapshot to the next.
struct LinkChange {
    link: DirectoryLink,
    is_there: bool,
}

/// A period whose path is still to be found: places in the line.
struct LinkPeriod {
    link: DirectoryLink,
    first: usize,
    last: usize,
}

impl Volume {
    /// Returns the names that `is_wanted` accepts, sorted by path and time. `line` begins with the oldest snapshot. Fails if a
    /// node of a tree cannot be read, and with [`VolumeError::BadTree`] if a tree contradicts itself.
    pub fn find_names(
        &self,
        line: &[HistoryEntry],
        is_wanted: impl Fn(&[u8]) -> bool + Sync,
    ) -> Result<Vec<NamePeriod>> {
        let Some(oldest) = line.first() else { return Ok(Vec::new()) };
        let mut present: HashMap<DirectoryLink, usize> = HashMap::new();
        self.list_links(oldest.record.root, &is_wanted, |link| {
            present.insert(link, 0);
        })?;
        let changes: Vec<Vec<LinkChange>> = line
            .par_windows(2)
            .map(|two| self.compare_links(two[0].record.root, two[1].record.root, &is_wanted))
            .collect::<Result<_>>()?;
        let mut periods = Vec::new();
        for (before, changes) in changes.into_iter().enumerate() {
            for LinkChange { link, is_there } in changes {
                if is_there {
                    present.insert(link, before + 1);
                } else if let Some(first) = present.remove(&link) {
                    periods.push(LinkPeriod { link, first, last: before });
                }
            }
        }
        let newest = line.len() - 1;
        periods.extend(present.into_iter().map(|(link, first)| LinkPeriod { link, first, last: newest }));
        let mut found: Vec<_> =
            periods.into_par_iter().map(|period| self.resolve_period(line, period)).collect::<Result<_>>()?;
        found.sort_by(|a, b| {
            let place = |period: &NamePeriod| (period.first.record.counter, period.first.record.time);
            a.path.cmp(&b.path).then_with(|| place(a).cmp(&place(b)))
        });
        Ok(found)
    }

    /// Calls `add` for each wanted name of a tree.
    fn list_links(
        &self,
        root: MapRoot,
        is_wanted: &impl Fn(&[u8]) -> bool,
        mut add: impl FnMut(DirectoryLink),
    ) -> Result<()> {
        let tree = self.open_tree(root);
        let mut range = read_range(tree.nodes(), &root, KeySpan::all_keys())?;
        while let Some((key, _)) = range.next_entry()? {
            if let Some(link) = wanted_link(key, is_wanted)? {
                add(link);
            }
        }
        Ok(())
    }

    /// Returns the wanted names that only one of two trees has.
    fn compare_links(
        &self,
        before: MapRoot,
        after: MapRoot,
        is_wanted: &impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<LinkChange>> {
        let tree = self.open_tree(after);
        let mut changes = Vec::new();
        for change in diff_maps(tree.nodes(), &before, &after) {
            let MapChange { key, before, after } = change?;
            // The entry of a file that was replaced by another one stays.
            if before.is_some() == after.is_some() {
                continue;
            }
            if let Some(link) = wanted_link(key.as_bytes(), is_wanted)? {
                changes.push(LinkChange { link, is_there: after.is_some() });
            }
        }
        Ok(changes)
    }

    fn resolve_period(&self, line: &[HistoryEntry], period: LinkPeriod) -> Result<NamePeriod> {
        let LinkPeriod { link: (dir, name), first, last } = period;
        let tree = self.open_tree(line[last].record.root);
        let missing = || VolumeError::BadTree(format!("directory {} has lost an entry", dir.0));
        let dentry = tree.lookup_dentry(dir, &name)?.ok_or_else(missing)?;
        Ok(NamePeriod {
            path: tree.entry_path(dir, &name)?,
            attr: tree.expect_inode_attr(dentry.ino)?,
            first: line[first].clone(),
            last: line[last].clone(),
            is_current: last + 1 == line.len(),
        })
    }
}

/// The name that a key stands for, if it is an entry of a directory, and wanted.
fn wanted_link(key: &[u8], is_wanted: &impl Fn(&[u8]) -> bool) -> Result<Option<DirectoryLink>> {
    let wrong = |error: DecodeError| VolumeError::BadTree(format!("a key of the map: {error}"));
    match MapKeyRef::parse(key).map_err(wrong)? {
        MapKeyRef::Dentry(dir, name) if is_wanted(name) => Ok(Some((dir, name.to_vec()))),
        MapKeyRef::Dentry(..) | MapKeyRef::Attr(_) | MapKeyRef::Xattr(..) | MapKeyRef::Extent(..) => Ok(None),
    }
}
