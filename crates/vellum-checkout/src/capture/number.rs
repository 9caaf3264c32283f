//! Assigns inode numbers of the map to scanned entries.
//!
//! Numbers are stable: a file keeps its number under any name, and a file that replaced another one keeps the number
//! of that name, if the other file no longer exists. New numbers are given out directory by directory, so that files
//! used together are stored together.

use std::collections::{HashMap, HashSet};

use vellum_host::metadata::FileStat;
use vellum_types::value::SuperBlock;
use vellum_types::{FileKind, Ino};
use vellum_volume::FsTree;

use super::CaptureRequest;
use crate::absent::AbsentNames;
use crate::error::{CheckoutError, Result};
use crate::scan::{ScanDir, ScanDirIndex, ScanEntryId, ScanEntryRef, ScanTree};
use crate::statcache::{CachedDir, CachedEntry, StatCache};

/// Numbers of all entries of a tree.
pub struct InodeNumbers {
    /// Where each directory's entries begin in `inos`.
    starts: Vec<usize>,
    inos: Vec<Ino>,
    links: HashMap<Ino, HardLinkNames>,
    next: Ino,
    base_next: Ino,
    /// A cached entry was too young to be trusted.
    pub was_racy: bool,
}

/// The names of a file that has several.
#[derive(Debug, Clone, Copy)]
pub struct HardLinkNames {
    /// How many there are in the tree.
    pub count: u32,
    /// The first in the order of the walk.
    pub first: ScanEntryId,
}

impl InodeNumbers {
    /// Numbers the entries of a scan, whose cache describes the base.
    pub fn assign_numbers(capture: &CaptureRequest<'_>) -> Result<Self> {
        let next = capture.base.map(FsTree::read_super_block).transpose()?;
        let base_next = next.map_or(capture.first_number, |record| record.next_ino);
        let mut work = NumberAssignment::new(capture, base_next);
        // The order decides who gets a number: a file that is provably the same one keeps its number first, a
        // replaced file takes the number of its name only if it is still free, and the rest get new numbers.
        work.match_cached_files()?;
        work.match_replaced_files()?;
        work.assign_remaining()?;
        Ok(Self {
            starts: work.starts,
            inos: work.inos,
            links: work.links,
            next: work.next,
            base_next,
            was_racy: work.was_racy,
        })
    }

    /// The number of an entry.
    #[must_use]
    pub fn number_of_entry(&self, id: ScanEntryId) -> Ino {
        let start = self.starts.get(id.dir.as_usize()).copied().unwrap_or(0);
        self.inos.get(start + id.place as usize).copied().unwrap_or(Ino::SUPER)
    }

    /// The number of a directory.
    #[must_use]
    pub fn number_of_dir(&self, dir: &ScanDir<'_>) -> Ino {
        dir.own_entry().map_or(Ino::ROOT, |entry| self.number_of_entry(entry.id()))
    }

    /// The names of a file that has several.
    #[must_use]
    pub fn links_of_inode(&self, ino: Ino) -> Option<HardLinkNames> {
        self.links.get(&ino).copied()
    }

    /// Whether the base may hold this inode.
    #[must_use]
    pub fn is_from_base(&self, ino: Ino) -> bool {
        ino < self.base_next
    }

    /// The set of numbers in use.
    #[must_use]
    pub fn collect_used_numbers(&self) -> InoSet {
        let mut set = InoSet::default();
        set.insert(Ino::ROOT);
        self.inos.iter().for_each(|ino| {
            set.insert(*ino);
        });
        set
    }

    /// The filesystem's own record.
    #[must_use]
    pub fn super_block(&self) -> SuperBlock {
        SuperBlock { next_ino: self.next }
    }

    /// Whether that record differs from the base's.
    pub fn is_super_record_changed(&self, base: Option<&FsTree>) -> bool {
        base.is_none() || self.next != self.base_next
    }
}

/// Numbers below this one have a bit each in an [`InoSet`]: 128 MiB for a thousand million files. Numbers are given out
/// from 1 on, so only a damaged or hostile volume has much higher ones.
const DENSE_MAX: u64 = 1 << 30;

/// A set of inode numbers: a bit for each number given out, and high numbers one by one, so that a single one takes no
/// memory for all below it.
#[derive(Debug, Default)]
pub struct InoSet {
    words: Vec<u64>,
    high: HashSet<Ino>,
}

impl InoSet {
    /// Adds a number; false if it was there.
    pub fn insert(&mut self, ino: Ino) -> bool {
        if ino.0 >= DENSE_MAX {
            return self.high.insert(ino);
        }
        let word = usize::try_from(ino.0 / 64).unwrap_or(usize::MAX);
        let bit = 1 << (ino.0 % 64);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let Some(held) = self.words.get_mut(word) else { return false };
        let new = *held & bit == 0;
        *held |= bit;
        new
    }

    /// Whether a number is there.
    #[must_use]
    pub fn contains(&self, ino: Ino) -> bool {
        if ino.0 >= DENSE_MAX {
            return self.high.contains(&ino);
        }
        let word = usize::try_from(ino.0 / 64).ok().and_then(|word| self.words.get(word));
        word.is_some_and(|held| held & (1 << (ino.0 % 64)) != 0)
    }
}

/// A file of the host.
type HostFile = (u64, u64);

struct NumberAssignment<'a> {
    tree: &'a ScanTree,
    base: Option<&'a FsTree>,
    /// Names may stand where the scan did not look: a number must not be taken from a file that keeps one there.
    partial: bool,
    absent: &'a AbsentNames,
    starts: Vec<usize>,
    /// [`Ino::SUPER`] stands for none yet.
    inos: Vec<Ino>,
    claimed: InoSet,
    /// Numbers of files that have several names.
    linked: HashMap<HostFile, Ino>,
    links: HashMap<Ino, HardLinkNames>,
    next: Ino,
    was_racy: bool,
}

impl<'a> NumberAssignment<'a> {
    fn new(capture: &CaptureRequest<'a>, next: Ino) -> Self {
        let &CaptureRequest { tree, base, absent, .. } = capture;
        let partial = capture.partial || !tree.is_complete();
        let mut starts = Vec::with_capacity(tree.dir_count());
        let mut count = 0;
        for dir in tree.dirs() {
            starts.push(count);
            count += dir.entries().len();
        }
        let inos = vec![Ino::SUPER; count];
        let (claimed, linked, links) = Default::default();
        Self { tree, base, partial, absent, starts, inos, claimed, linked, links, next, was_racy: false }
    }

    /// The same file of the host as was remembered, under its name or another.
    fn match_cached_files(&mut self) -> Result<()> {
        let Some(cache) = self.tree.cache() else { return Ok(()) };
        let mut blocks: Vec<Option<CachedDir>> = self.tree.dirs().map(|dir| dir.cached_dir()).collect();
        for dir in self.tree.dirs() {
            let block = blocks.get(dir.index().as_usize()).copied().flatten();
            for entry in dir.entries() {
                let cached = match (entry.cached_entry(), block) {
                    (Some(cached), _) => Some(cached),
                    // The scan matched names by path. Below a directory that was renamed, it had no block to
                    // match with; the block is known here, because the directory itself was found by its
                    // inode number.
                    (None, Some(block)) if dir.cached_dir() != Some(block) => {
                        cache.find_entry(block, entry.name())
                    }
                    (None, _) => None,
                };
                self.was_racy |= cached.is_some_and(|cached| cached.racy);
                let found = cached
                    .filter(|cached| cached.stat.is_same_file(entry.stat()))
                    // If the number of links changed, some other name came or went, perhaps where a partial
                    // scan does not look. Then the file is treated as new, so that the names that were not
                    // seen keep the old inode.
                    .filter(|cached| !self.partial || cached.stat.nlink == entry.stat().nlink);
                let found = match found {
                    Some(found) => Some(found),
                    None => self.find_renamed_file(cache, &entry)?,
                };
                if let Some(found) = found {
                    self.claim_number(&entry, found.ino);
                    if let (Some(child), Some(old)) = (entry.child_index(), found.child) {
                        // Directories are visited in pre-order, so the block is set before the child's
                        // entries are matched.
                        set_dir_value(&mut blocks, child, Some(old));
                    }
                }
            }
        }
        Ok(())
    }

    /// A remembered file that now has another name. In a partial scan its old name may still stand, unseen. What is absent
    /// was removed: a file with its number on a filesystem that gives numbers out again, and no creation times, is another.
    fn find_renamed_file<'c>(
        &self,
        cache: &'c StatCache,
        entry: &ScanEntryRef<'_>,
    ) -> Result<Option<CachedEntry<'c>>> {
        let stat = entry.stat();
        if self.partial {
            return Ok(None);
        }
        let mut known = cache.find_by_host_inode(stat.dev, stat.ino);
        let Some(found) = known.find(|cached| cached.stat.is_same_file(stat)) else { return Ok(None) };
        match self.base.filter(|_| !self.absent.is_empty()) {
            // A file with several names can be here under one of them, although another is absent.
            Some(base) if found.stat.nlink <= 1 || stat.kind == FileKind::Dir => {
                Ok((!self.absent.is_place_absent(base, found.ino)?).then_some(found))
            }
            Some(_) | None => Ok(Some(found)),
        }
    }

    /// What took the place of another file that is gone.
    fn match_replaced_files(&mut self) -> Result<()> {
        let Some(base) = self.base else { return Ok(()) };
        for dir in self.tree.dirs() {
            let dir_ino = self.number_of_dir(&dir);
            // A directory without a number is new, and the base has no names in it.
            if dir_ino == Ino::SUPER {
                continue;
            }
            for entry in dir.entries() {
                if self.assigned_number(entry.id()) != Ino::SUPER {
                    continue;
                }
                if self.find_host_link(&entry).is_some() {
                    // It gets the number of its other name; this one stands for none of its own.
                    self.claim_number(&entry, Ino::SUPER);
                    continue;
                }
                let old = base.lookup_dentry(dir_ino, entry.name())?.filter(|old| old.kind == entry.kind());
                if let Some(old) = old
                    // The other name of the old file may be outside the selected paths, or absent, and would
                    // change its content with this one.
                    && !self.may_belong_elsewhere(base, old.ino, entry.stat())?
                {
                    self.claim_number(&entry, old.ino);
                }
            }
        }
        Ok(())
    }

    /// Whether a number may belong to a file under another name, which the scan did not see. If that name is absent, a file
    /// that looks as the base has it is the one with that name.
    fn may_belong_elsewhere(&self, base: &FsTree, ino: Ino, stat: &FileStat) -> Result<bool> {
        if !self.partial && self.absent.is_empty() || !has_multiple_names(base, ino)? {
            return Ok(false);
        }
        let attr = base.expect_inode_attr(ino)?;
        let looks_same = (attr.size, attr.mtime, attr.mode, attr.uid, attr.gid)
            == (stat.size, stat.mtime, stat.mode, stat.uid, stat.gid);
        Ok(self.partial || !looks_same)
    }

    fn assign_remaining(&mut self) -> Result<()> {
        for dir in self.tree.dirs() {
            for entry in dir.entries() {
                if self.assigned_number(entry.id()) == Ino::SUPER {
                    // Another name of the same file may have been given a number a moment ago.
                    let ino = self.find_host_link(&entry).unwrap_or(self.next);
                    if ino == self.next {
                        // The number comes from the store, where another machine may have written anything.
                        self.next = Ino(ino.0.checked_add(1).ok_or(CheckoutError::NumbersUsedUp)?);
                    }
                    self.set_number(entry.id(), ino);
                    self.record_link(&entry, ino);
                } else {
                    self.count_link_name(&entry);
                }
            }
        }
        Ok(())
    }

    /// Gives `ino` to an entry, unless another file has it. Names of one file share its number.
    fn claim_number(&mut self, entry: &ScanEntryRef<'_>, ino: Ino) {
        let ino = match self.find_host_link(entry) {
            Some(shared) => shared,
            // Two files can claim one number if a file was moved away and another was created under its old
            // name. The first one keeps it.
            None if ino == Ino::SUPER || !self.claimed.insert(ino) => return,
            None => ino,
        };
        self.set_number(entry.id(), ino);
        if let Some(file) = linked_host_file(entry) {
            self.linked.insert(file, ino);
        }
    }

    fn record_link(&mut self, entry: &ScanEntryRef<'_>, ino: Ino) {
        if let Some(file) = linked_host_file(entry) {
            self.linked.insert(file, ino);
            self.count_link_name(entry);
        }
    }

    fn count_link_name(&mut self, entry: &ScanEntryRef<'_>) {
        if linked_host_file(entry).is_some() {
            let first = HardLinkNames { count: 0, first: entry.id() };
            self.links.entry(self.assigned_number(entry.id())).or_insert(first).count += 1;
        }
    }

    fn find_host_link(&self, entry: &ScanEntryRef<'_>) -> Option<Ino> {
        linked_host_file(entry).and_then(|file| self.linked.get(&file).copied())
    }

    fn number_of_dir(&self, dir: &ScanDir<'_>) -> Ino {
        dir.own_entry().map_or(Ino::ROOT, |entry| self.assigned_number(entry.id()))
    }

    fn entry_position(&self, id: ScanEntryId) -> usize {
        self.starts.get(id.dir.as_usize()).copied().unwrap_or(0) + id.place as usize
    }

    fn assigned_number(&self, id: ScanEntryId) -> Ino {
        self.inos.get(self.entry_position(id)).copied().unwrap_or(Ino::SUPER)
    }

    fn set_number(&mut self, id: ScanEntryId, ino: Ino) {
        let place = self.entry_position(id);
        if let Some(held) = self.inos.get_mut(place) {
            *held = ino;
        }
    }
}

/// Whether a file has several names in a state.
fn has_multiple_names(state: &FsTree, ino: Ino) -> Result<bool> {
    Ok(state.inode_attr(ino)?.is_some_and(|attr| attr.kind != FileKind::Dir && attr.nlink > 1))
}

fn set_dir_value<T>(list: &mut [T], index: ScanDirIndex, value: T) {
    if let Some(held) = list.get_mut(index.as_usize()) {
        *held = value;
    }
}

fn linked_host_file(entry: &ScanEntryRef<'_>) -> Option<HostFile> {
    let stat = entry.stat();
    // Only files with several links need an entry in the table, which keeps it small. The link count of a
    // directory counts its subdirectories.
    (stat.nlink > 1 && stat.kind != FileKind::Dir).then_some((stat.dev, stat.ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The process was aborted when there was no memory for all numbers below.
    #[test]
    fn a_high_number_takes_no_memory_for_those_below_it() {
        let mut set = InoSet::default();
        for number in [1, 64, DENSE_MAX, 1 << 60, u64::MAX] {
            assert!(!set.contains(Ino(number)), "{number}");
            assert!(set.insert(Ino(number)) && !set.insert(Ino(number)), "{number}");
            assert!(set.contains(Ino(number)), "{number}");
        }
        assert!(set.words.len() <= 2 && !set.contains(Ino(2)));
    }
}
