//! Finds names in a history: which snapshots have a name, from when and until when, and with which content.
//!
//! A snapshot without an ancestor among those that are searched is read as a whole, and of each other one what differs from
//! its first parent, so that the work grows with what changed. All threads compare.
//!
//! Invariant: a name counts as there in a snapshot if the directory has an entry of that name, whichever file it is: a file
//! that was replaced by another one of its name was there all the time, with another content. A branch begins with what its
//! origin had, and a merge goes on with what either side had.

mod periods;

use std::collections::HashMap;
use std::hash::RandomState;

use rayon::prelude::*;
use vellum_host::parallel::run_parallel;
use vellum_map::{KeySpan, MapChange, MapRoot, diff_maps, read_range};
use vellum_types::{DecodeError, Dentry, FileKind, Ino, InodeAttr, MapKeyRef};

use self::periods::{LinkPeriod, SearchedHistory};
use crate::diff::{DirectoryLink, hash_content};
use crate::error::{Result, VolumeError};
use crate::history::HistoryEntry;
use crate::tree::FsTree;
use crate::volume::Volume;

/// What ends the period of a name, beside its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeriodSplit {
    /// Nothing: whatever content the name has, it is there.
    ByPresence,
    /// Another content, or kind of file.
    ByContent,
}

/// A time in which a name was there without a break.
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
    /// No snapshot that was searched descends from the last that has it.
    pub is_current: bool,
    /// Before or after it, without a break, the name had another content. Only if periods are split by that.
    pub has_other_content: bool,
}

/// The file that a name stands for.
#[derive(Debug, Clone, Copy)]
struct NamedFile {
    ino: Ino,
    /// Equal for equal contents; 0 where contents are not compared.
    content: u64,
}

/// A name that is there, or goes, from one snapshot to the next.
struct LinkChange {
    link: DirectoryLink,
    /// The file that it stands for from then on, which may be the one before; None: it goes.
    file: Option<NamedFile>,
}

/// What differs between two snapshots.
#[derive(Default)]
struct SnapshotChanges {
    links: Vec<LinkChange>,
    /// Contents of files that may have changed, and of which not all names are known.
    several_names: HashMap<Ino, u64>,
}

/// What is looked for.
struct NameSearch<'a, F> {
    volume: &'a Volume,
    is_wanted: F,
    split: PeriodSplit,
    /// New for each search, so that no tree can be made in which two contents count as equal.
    hasher: RandomState,
}

impl Volume {
    /// Returns the names that `is_wanted` accepts in some snapshots, sorted by path and time. Fails if a node of a tree cannot
    /// be read, and with [`VolumeError::BadTree`] if a tree contradicts itself.
    pub fn find_names(
        &self,
        snapshots: &[HistoryEntry],
        split: PeriodSplit,
        is_wanted: impl Fn(&[u8]) -> bool + Sync,
    ) -> Result<Vec<NamePeriod>> {
        let history = SearchedHistory::new(self, snapshots)?;
        let search = NameSearch { volume: self, is_wanted, split, hasher: RandomState::new() };
        let root = |place: usize| history.entries[place].record.root;
        // Each is compared with its first parent alone, so that all can be compared at once.
        let compare = |place: usize| match history.parents[place].first() {
            Some(parent) => search.compare_names(root(*parent), root(place)),
            None => search.list_names(root(place)),
        };
        let places = (0..history.entries.len()).into_par_iter();
        let changes = run_parallel(|| places.map(compare).collect::<Result<_>>())?;
        let periods = history.trace_periods(changes).into_par_iter();
        let resolve = |period| self.resolve_period(&history.entries, period);
        let mut found: Vec<_> = run_parallel(|| periods.map(resolve).collect::<Result<_>>())?;
        // Of periods that count as one below, the one with the latest end comes first, and stays.
        found.sort_by(|a, b| {
            a.path.cmp(&b.path).then_with(|| a.first.cmp(&b.first)).then_with(|| b.last.cmp(&a.last))
        });
        // Branches have in common what was there where they began.
        found.dedup_by(|a, b| {
            let is_same_end = a.last == b.last || (a.is_current && b.is_current);
            a.path == b.path && a.first == b.first && is_same_end
        });
        Ok(found)
    }

    fn resolve_period(&self, entries: &[HistoryEntry], period: LinkPeriod) -> Result<NamePeriod> {
        let LinkPeriod { link: (dir, name), first, last, is_current, has_other_content } = period;
        let tree = self.open_tree(entries[last].record.root);
        let missing = || VolumeError::BadTree(format!("directory {} has lost an entry", dir.0));
        let dentry = tree.lookup_dentry(dir, &name)?.ok_or_else(missing)?;
        Ok(NamePeriod {
            path: tree.entry_path(dir, &name)?,
            attr: tree.expect_inode_attr(dentry.ino)?,
            first: entries[first].clone(),
            last: entries[last].clone(),
            is_current,
            has_other_content,
        })
    }
}

impl<F: Fn(&[u8]) -> bool> NameSearch<'_, F> {
    /// Returns the wanted names of a tree.
    fn list_names(&self, root: MapRoot) -> Result<SnapshotChanges> {
        let tree = self.volume.open_tree(root);
        let mut range = read_range(tree.nodes(), &root, KeySpan::all_keys())?;
        let mut found = SnapshotChanges::default();
        while let Some((key, value)) = range.next_entry()? {
            if let MapKeyRef::Dentry(dir, name) = parse_key(key)?
                && (self.is_wanted)(name)
            {
                let file = Some(self.read_named_file(&tree, value)?);
                found.links.push(LinkChange { link: (dir, name.to_vec()), file });
            }
        }
        Ok(found)
    }

    /// Returns the wanted names that only one of two trees has, and, if periods are split by content, those of which the
    /// content may differ.
    fn compare_names(&self, before: MapRoot, after: MapRoot) -> Result<SnapshotChanges> {
        let tree = self.volume.open_tree(after);
        let mut found = SnapshotChanges::default();
        // The keys of an inode follow each other: it is looked at once.
        let mut seen = None;
        for change in diff_maps(tree.nodes(), &before, &after) {
            let MapChange { key, before, after } = change?;
            match (parse_key(&key)?, self.split) {
                // The entry of a file that was replaced by another one stays.
                (MapKeyRef::Dentry(..), PeriodSplit::ByPresence) if before.is_some() == after.is_some() => {}
                (MapKeyRef::Dentry(dir, name), _) if (self.is_wanted)(name) => {
                    let file = after.map(|value| self.read_named_file(&tree, &value)).transpose()?;
                    found.links.push(LinkChange { link: (dir, name.to_vec()), file });
                }
                (MapKeyRef::Attr(ino) | MapKeyRef::Extent(ino, _), PeriodSplit::ByContent)
                    if ino != Ino::SUPER && seen != Some(ino) =>
                {
                    seen = Some(ino);
                    self.compare_content(&tree, ino, &mut found)?;
                }
                (
                    MapKeyRef::Attr(_) | MapKeyRef::Dentry(..) | MapKeyRef::Xattr(..) | MapKeyRef::Extent(..),
                    _,
                ) => {}
            }
        }
        Ok(found)
    }

    /// Notes the content that a changed file has now, if one of its names may be wanted.
    fn compare_content(&self, tree: &FsTree, ino: Ino, found: &mut SnapshotChanges) -> Result<()> {
        // The content of a directory is its entries, which are compared by their own keys.
        let Some(attr) = tree.inode_attr(ino)?.filter(|attr| attr.kind != FileKind::Dir) else {
            return Ok(());
        };
        let has_one_name = attr.nlink <= 1;
        if has_one_name && !(self.is_wanted)(&attr.name) {
            return Ok(());
        }
        let file = self.read_content(tree, ino)?;
        // What an inode says of its name is believed if the directory says the same.
        let entry = if has_one_name { tree.lookup_dentry_unchecked(attr.parent, &attr.name)? } else { None };
        if entry.is_some_and(|entry| entry.ino == ino) {
            found.links.push(LinkChange { link: (attr.parent, attr.name), file: Some(file) });
        } else {
            found.several_names.insert(ino, file.content);
        }
        Ok(())
    }

    /// Returns the file that the value of an entry names.
    fn read_named_file(&self, tree: &FsTree, entry: &[u8]) -> Result<NamedFile> {
        let wrong = VolumeError::wrap_decode_error("an entry of a directory");
        let entry = Dentry::decode(entry).map_err(wrong)?;
        match (self.split, entry.kind) {
            (PeriodSplit::ByPresence, _) => Ok(NamedFile { ino: entry.ino, content: 0 }),
            // What is in a directory is no content of its own. A number that files cannot have tells it from them.
            (PeriodSplit::ByContent, FileKind::Dir) => Ok(NamedFile { ino: entry.ino, content: 0 }),
            (PeriodSplit::ByContent, _) => self.read_content(tree, entry.ino),
        }
    }

    fn read_content(&self, tree: &FsTree, ino: Ino) -> Result<NamedFile> {
        // Odd, so that it is never that of a directory.
        let content = hash_content(&tree.read_inode(ino)?, &self.hasher) | 1;
        Ok(NamedFile { ino, content })
    }
}

fn parse_key(key: &[u8]) -> Result<MapKeyRef<'_>> {
    MapKeyRef::parse(key)
        .map_err(|error: DecodeError| VolumeError::BadTree(format!("a key of the map: {error}")))
}
