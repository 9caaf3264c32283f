//! The result of a scan: directories in pre-order, each with its entries sorted by name.
//!
//! Memory: 120 bytes and the name for each entry, about 100 more for each directory.

use vellum_host::metadata::FileStat;
use vellum_types::FileKind;

use super::ScanProblem;
use crate::statcache::{CachedDir, CachedEntry, StatCache};

/// The number that means "no directory" or "no cached entry".
pub(super) const NONE: u32 = u32::MAX;
/// It equals its cached entry, which is not racy.
pub(super) const UNCHANGED: u8 = 1;
/// It vanished before it could be visited; such entries are not part of a finished tree.
pub(super) const GONE: u8 = 2;

/// One entry, as compact as its attributes allow.
#[derive(Debug, Clone)]
pub(super) struct ScanEntry {
    pub stat: FileStat,
    pub name_start: u32,
    /// The number of the node during the scan, and of the directory afterwards.
    pub child: u32,
    /// Position in the cached block of its directory.
    pub cached: u32,
    pub name_len: u8,
    pub flags: u8,
}

/// Which entries of a directory are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DirCoverage {
    /// All entries.
    Whole,
    /// Entries with these names only, sorted.
    Names(Box<[Box<[u8]>]>),
    /// None.
    Unread,
}

#[derive(Debug)]
pub(super) struct ScanDirRecord {
    pub parent: u32,
    /// Position among the entries of its parent.
    pub entry: u32,
    pub entries: Box<[ScanEntry]>,
    pub names: Box<[u8]>,
    pub coverage: DirCoverage,
    pub cached: Option<CachedDir>,
    pub left_out: u32,
}

/// A directory of the tree: its number in pre-order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScanDirIndex(pub(super) u32);

impl ScanDirIndex {
    /// The root of the scan.
    pub const ROOT: Self = Self(0);

    /// Its number in pre-order, from 0.
    #[must_use]
    pub fn as_usize(self) -> usize {
        self.0 as usize
    }
}

/// An entry of the tree: its directory and its position there. Ids of one directory are ordered by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScanEntryId {
    /// The directory.
    pub dir: ScanDirIndex,
    /// The position by name, from 0.
    pub place: u32,
}

/// A scanned tree.
#[derive(Debug)]
pub struct ScanTree {
    pub(super) root_stat: FileStat,
    pub(super) dirs: Vec<ScanDirRecord>,
    pub(super) cache: Option<StatCache>,
    pub(super) problems: Vec<ScanProblem>,
}

impl ScanTree {
    /// The attributes of the root.
    #[must_use]
    pub fn root_stat(&self) -> &FileStat {
        &self.root_stat
    }

    /// The cached entry of the root directory itself, and whether it is unchanged.
    #[must_use]
    pub fn cached_root(&self) -> Option<(CachedEntry<'_>, bool)> {
        let cached = self.cache.as_ref()?.root_entry()?;
        Some((cached, cached.is_unchanged(&self.root_stat)))
    }

    /// The cache that the entries were matched with.
    #[must_use]
    pub fn cache(&self) -> Option<&StatCache> {
        self.cache.as_ref()
    }

    /// Drops the cache, which is large: comparing the tree afterwards does not need it.
    pub fn release_cache(&mut self) {
        self.cache = None;
    }

    /// The problems, by path.
    #[must_use]
    pub fn problems(&self) -> &[ScanProblem] {
        &self.problems
    }

    /// Whether no entry is missing because it could not be read.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self.problems.iter().any(ScanProblem::can_hide_entries)
    }

    /// The number of directories, including the root.
    #[must_use]
    pub fn dir_count(&self) -> usize {
        self.dirs.len()
    }

    /// The number of entries, without the root.
    #[must_use]
    pub fn entry_count(&self) -> u64 {
        self.dirs.iter().map(|dir| dir.entries.len() as u64).sum()
    }

    /// One directory.
    #[must_use]
    pub fn dir(&self, index: ScanDirIndex) -> ScanDir<'_> {
        ScanDir { tree: self, index, record: &self.dirs[index.as_usize()] }
    }

    /// All directories in pre-order.
    pub fn dirs(&self) -> impl ExactSizeIterator<Item = ScanDir<'_>> {
        // There are fewer than 2^32 directories: their numbers are of that type.
        (0..self.dirs.len()).map(|index| self.dir(ScanDirIndex(index as u32)))
    }

    /// One entry.
    #[must_use]
    pub fn entry(&self, id: ScanEntryId) -> ScanEntryRef<'_> {
        let entry = &self.dirs[id.dir.as_usize()].entries[id.place as usize];
        ScanEntryRef { tree: self, id, entry }
    }

    /// The entry at a path from the root; None if the scan has none.
    #[must_use]
    pub fn find_entry_at(&self, path: &[u8]) -> Option<ScanEntryRef<'_>> {
        let mut found: Option<ScanEntryRef<'_>> = None;
        for name in path.split(|byte| *byte == b'/') {
            let dir = match found {
                None => self.dir(ScanDirIndex::ROOT),
                Some(entry) => entry.scanned_dir()?,
            };
            found = Some(dir.find_entry(name)?);
        }
        found
    }

    /// All entries in pre-order: each directory is followed by its entries.
    #[must_use]
    pub fn walk_entries(&self) -> ScanTreeWalk<'_> {
        ScanTreeWalk { tree: self, stack: vec![(ScanDirIndex::ROOT, 0)] }
    }

    /// Memory of the tree without its cache, bytes.
    #[must_use]
    pub fn memory_size(&self) -> usize {
        let of_dir = |dir: &ScanDirRecord| {
            dir.entries.len() * size_of::<ScanEntry>() + dir.names.len() + size_of::<ScanDirRecord>()
        };
        self.dirs.iter().map(of_dir).sum()
    }
}

/// A directory of a tree.
#[derive(Debug, Clone, Copy)]
pub struct ScanDir<'t> {
    tree: &'t ScanTree,
    index: ScanDirIndex,
    record: &'t ScanDirRecord,
}

impl<'t> ScanDir<'t> {
    /// Its number.
    #[must_use]
    pub fn index(&self) -> ScanDirIndex {
        self.index
    }

    /// Its entry in its parent; None for the root.
    #[must_use]
    pub fn own_entry(&self) -> Option<ScanEntryRef<'t>> {
        let id = ScanEntryId { dir: ScanDirIndex(self.record.parent), place: self.record.entry };
        (self.index != ScanDirIndex::ROOT).then(|| self.tree.entry(id))
    }

    /// Its own attributes.
    #[must_use]
    pub fn stat(&self) -> &'t FileStat {
        self.own_entry().map_or(&self.tree.root_stat, |entry| &entry.entry.stat)
    }

    /// Its path from the root, without leading and trailing slashes; empty for the root.
    #[must_use]
    pub fn path(&self) -> Vec<u8> {
        self.own_entry().map(|entry| entry.path()).unwrap_or_default()
    }

    /// Its entries by name.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = ScanEntryRef<'t>> + use<'t> {
        let tree = self.tree;
        let dir = self.index;
        let numbered = self.record.entries.iter().enumerate();
        numbered.map(move |(place, entry)| ScanEntryRef {
            tree,
            id: ScanEntryId { dir, place: place as u32 },
            entry,
        })
    }

    /// The entry with a name.
    #[must_use]
    pub fn find_entry(&self, name: &[u8]) -> Option<ScanEntryRef<'t>> {
        let place =
            self.record.entries.binary_search_by(|entry| self.record.name_of_entry(entry).cmp(name)).ok()?;
        Some(self.tree.entry(ScanEntryId { dir: self.index, place: place as u32 }))
    }

    /// Whether its entries could be read at all.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.record.coverage != DirCoverage::Unread
    }

    /// Whether all of its entries were examined.
    #[must_use]
    pub fn is_fully_scanned(&self) -> bool {
        self.record.coverage == DirCoverage::Whole
    }

    /// Whether the scan examined this name: only then does its absence mean that there is no such entry.
    #[must_use]
    pub fn has_examined(&self, name: &[u8]) -> bool {
        match &self.record.coverage {
            DirCoverage::Whole => true,
            DirCoverage::Names(names) => names.binary_search_by(|known| (**known).cmp(name)).is_ok(),
            DirCoverage::Unread => false,
        }
    }

    /// How many entries were excluded by rules (and because of Vellum's own names).
    #[must_use]
    pub fn ignored_count(&self) -> u32 {
        self.record.left_out
    }

    /// Its block in the cache.
    #[must_use]
    pub fn cached_dir(&self) -> Option<CachedDir> {
        self.record.cached
    }

    /// The cached entries that do not exist any more (or are excluded now), by name.
    pub fn missing_entries(&self) -> impl Iterator<Item = CachedEntry<'t>> + use<'t> {
        let view = *self;
        let cached = self.tree.cache().zip(self.record.cached);
        let entries = cached.into_iter().flat_map(|(cache, dir)| cache.entries(dir));
        // Both lists are ordered by name, so that one pass over both is enough.
        let mut here = self.entries().peekable();
        entries.filter(move |cached| {
            while here.next_if(|entry| entry.name() < cached.name).is_some() {}
            view.has_examined(cached.name) && here.peek().is_none_or(|entry| entry.name() != cached.name)
        })
    }
}

impl ScanDirRecord {
    pub(super) fn name_of_entry(&self, entry: &ScanEntry) -> &[u8] {
        entry_name_in(&self.names, entry)
    }
}

pub(super) fn entry_name_in<'n>(names: &'n [u8], entry: &ScanEntry) -> &'n [u8] {
    let start = entry.name_start as usize;
    &names[start..start + usize::from(entry.name_len)]
}

/// An entry of a tree.
#[derive(Debug, Clone, Copy)]
pub struct ScanEntryRef<'t> {
    tree: &'t ScanTree,
    id: ScanEntryId,
    entry: &'t ScanEntry,
}

impl<'t> ScanEntryRef<'t> {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> ScanEntryId {
        self.id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'t [u8] {
        self.tree.dirs[self.id.dir.as_usize()].name_of_entry(self.entry)
    }

    /// Its attributes.
    #[must_use]
    pub fn stat(&self) -> &'t FileStat {
        &self.entry.stat
    }

    /// Its file type.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.entry.stat.kind
    }

    /// The number of this directory; None for other types.
    #[must_use]
    pub fn child_index(&self) -> Option<ScanDirIndex> {
        (self.entry.child != NONE).then_some(ScanDirIndex(self.entry.child))
    }

    /// The scan of this directory; None for other types.
    #[must_use]
    pub fn scanned_dir(&self) -> Option<ScanDir<'t>> {
        self.child_index().map(|child| self.tree.dir(child))
    }

    /// The directory that contains it.
    #[must_use]
    pub fn containing_dir(&self) -> ScanDir<'t> {
        self.tree.dir(self.id.dir)
    }

    /// Whether it equals its cached entry in all attributes, and that entry is not racy: then it need not be read.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.entry.flags & UNCHANGED != 0
    }

    /// The cached entry with its name.
    #[must_use]
    pub fn cached_entry(&self) -> Option<CachedEntry<'t>> {
        if self.entry.cached == NONE {
            return None;
        }
        let block = self.tree.dirs[self.id.dir.as_usize()].cached?;
        self.tree.cache.as_ref()?.entry_at(block, self.entry.cached)
    }

    /// Its path from the root.
    #[must_use]
    pub fn path(&self) -> Vec<u8> {
        let mut names = vec![self.name()];
        let mut dir = self.containing_dir();
        while let Some(entry) = dir.own_entry() {
            names.push(entry.name());
            dir = entry.containing_dir();
        }
        names.reverse();
        names.join(&b'/')
    }
}

/// All entries of a tree in pre-order.
#[derive(Debug)]
pub struct ScanTreeWalk<'t> {
    tree: &'t ScanTree,
    stack: Vec<(ScanDirIndex, u32)>,
}

impl<'t> Iterator for ScanTreeWalk<'t> {
    type Item = ScanEntryRef<'t>;

    fn next(&mut self) -> Option<ScanEntryRef<'t>> {
        loop {
            let (dir, place) = self.stack.last_mut()?;
            if *place as usize >= self.tree.dirs[dir.as_usize()].entries.len() {
                self.stack.pop();
                continue;
            }
            let entry = self.tree.entry(ScanEntryId { dir: *dir, place: *place });
            *place += 1;
            if let Some(child) = entry.child_index() {
                self.stack.push((child, 0));
            }
            return Some(entry);
        }
    }
}
