//! The tree of the result: numbers for what is new, and the changes that lead from the base to it.
//!
//! Invariant: new files get numbers in the order of their paths, above all numbers of both sides: the same result has
//! the same tree, whoever made it, and a number of a side never comes to mean another file.

use std::collections::{BTreeMap, HashMap};

use vellum_map::{MapRoot, apply_changes};
use vellum_types::value::SuperBlock;
use vellum_types::{Dentry, Extent, FileKind, Ino, InodeAttr, MapKey};

use super::conflict::MergeConflict;
use super::files::{FileId, FileResult};
use super::links::ResultPaths;
use super::side::{SideName, read_next_number};
use super::work::{ConflictOther, MergeWork};
use crate::error::{Result, VolumeError};
use crate::record::SnapshotStatistics;
use crate::session::NodeBatch;
use crate::tree::InodeRecord;

/// Makes the tree of a merge whose files and names are settled.
pub(super) struct ResultWriter<'w, 'a> {
    work: &'w mut MergeWork<'a>,
    paths: ResultPaths,
    /// Of files that the base does not have.
    numbers: HashMap<FileId, Ino>,
    /// How many more directories there are in each directory than in the base.
    subdirs: HashMap<FileId, i64>,
    /// Changes of the base, by key.
    changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl<'w, 'a> ResultWriter<'w, 'a> {
    pub fn new(work: &'w mut MergeWork<'a>) -> Result<Self> {
        let mut writer = Self {
            work,
            paths: ResultPaths::default(),
            numbers: HashMap::new(),
            subdirs: HashMap::new(),
            changes: BTreeMap::new(),
        };
        writer.count_subdirs();
        writer.number_new_files()?;
        Ok(writer)
    }

    /// Stores the nodes of the tree, and returns its root.
    pub fn store_tree(&mut self) -> Result<MapRoot> {
        // Removed names before added ones: a name that one file loses and another gets has one key.
        self.remove_names();
        for id in self.work.table.ids() {
            self.emit_file(id)?;
        }
        self.add_names()?;
        let base = self.work.table.base.map_view().base;
        let next_ino = Ino(self.first_new_number()?.0.saturating_add(self.numbers.len() as u64));
        // The record with the counter is written only if it changed, or the base, being empty, has none.
        if next_ino != read_next_number(self.work.volume, &self.work.table.base)?
            || base == self.work.volume.empty_root()
        {
            let super_block = SuperBlock { next_ino };
            self.changes.insert(MapKey::for_attr(Ino::SUPER).into_bytes(), Some(super_block.encode()));
        }
        let MergeWork { volume, session, .. } = &self.work;
        let changes = std::mem::take(&mut self.changes);
        let batch = NodeBatch::new(volume, session);
        let root = apply_changes(&*volume.nodes, &batch, volume.map_shape(), &base, changes)?;
        batch.finish()?;
        Ok(root)
    }

    fn count_subdirs(&mut self) {
        let table = &self.work.table;
        for id in table.ids() {
            let file = table.get(id);
            if file.kind == FileKind::Dir && !matches!(file.result, FileResult::Joined(_)) {
                for (dir, _) in &file.outcome.added {
                    *self.subdirs.entry(table.resolve(*dir)).or_default() += 1;
                }
                for (dir, _) in &file.outcome.removed {
                    *self.subdirs.entry(table.resolve(*dir)).or_default() -= 1;
                }
            }
        }
        // A directory that lost as many as it got keeps its link count, and need not be written.
        self.subdirs.retain(|_, count| *count != 0);
    }

    fn number_new_files(&mut self) -> Result<()> {
        let mut new = Vec::new();
        for id in self.work.table.ids() {
            let file = self.work.table.get(id);
            if file.base.is_none() && matches!(file.result, FileResult::Kept(_)) && !file.is_root() {
                let link = self.work.find_main_link(id, &mut self.paths)?;
                new.push((self.work.result_path(&link, &mut self.paths)?, id));
            }
        }
        // By path, which is the same whoever merges: so are the numbers.
        new.sort();
        // Above both sides, not only above the base: a number that a side has given out means a file of that side to
        // everybody who knows it.
        let first = self.first_new_number()?.0;
        self.numbers = (first..).zip(new).map(|(number, (_, id))| (id, Ino(number))).collect();
        Ok(())
    }

    fn first_new_number(&self) -> Result<Ino> {
        let table = &self.work.table;
        let base = read_next_number(self.work.volume, &table.base)?;
        Ok(base.max(table.sides.first.next_ino).max(table.sides.second.next_ino))
    }

    /// The number of a file in the result.
    fn number_of(&self, id: FileId) -> Result<Ino> {
        let id = self.work.table.resolve(id);
        let file = self.work.table.get(id);
        if file.is_root() {
            return Ok(Ino::ROOT);
        }
        let missing = || VolumeError::BadTree("a directory of a merge is missing".into());
        file.base.or_else(|| self.numbers.get(&id).copied()).ok_or_else(missing)
    }

    fn remove_names(&mut self) {
        let table = &self.work.table;
        for id in table.ids() {
            for (dir, name) in &table.get(id).outcome.removed {
                // The tree is written as changes of the base: only names that the base has can be removed.
                if let Some(dir) = table.get(*dir).base {
                    self.changes.insert(MapKey::for_dentry(dir, name).into_bytes(), None);
                }
            }
        }
    }

    fn add_names(&mut self) -> Result<()> {
        for id in self.work.table.ids() {
            let file = self.work.table.get(id);
            if !matches!(file.result, FileResult::Kept(_)) {
                continue;
            }
            let dentry = Dentry { ino: self.number_of(id)?, kind: file.kind };
            for (dir, name) in &self.work.table.get(id).outcome.added {
                let key = MapKey::for_dentry(self.number_of(*dir)?, name);
                self.changes.insert(key.into_bytes(), Some(dentry.encode()));
            }
        }
        Ok(())
    }

    fn emit_file(&mut self, id: FileId) -> Result<()> {
        let file = self.work.table.get(id);
        let is_written = match file.result {
            FileResult::Kept(_) | FileResult::Deleted => true,
            // Its link count changes with the directories in it, though nobody touched the directory itself.
            FileResult::Unchanged => self.subdirs.contains_key(&id),
            FileResult::Joined(_) => false,
        };
        if !is_written {
            return Ok(());
        }
        let base = file.base.map(|base| self.work.table.read_base_inode(base)).transpose()?;
        let record = match &file.result {
            FileResult::Kept(record) => Some(InodeRecord::clone(record)),
            FileResult::Unchanged => base.clone(),
            FileResult::Deleted | FileResult::Joined(_) => None,
        };
        let held = base.as_ref().map(encode_inode_itself).unwrap_or_default();
        let wanted = match record {
            Some(record) => encode_inode_itself(&self.place_record(id, record, base.as_ref())?),
            None => BTreeMap::new(),
        };
        // Values that the base has already are no changes: only nodes that hold a change are read and written anew.
        for key in held.keys().filter(|key| !wanted.contains_key(*key)) {
            self.changes.insert(key.clone(), None);
        }
        let new = wanted.into_iter().filter(|(key, value)| held.get(key) != Some(value));
        self.changes.extend(new.map(|(key, value)| (key, Some(value))));
        Ok(())
    }

    /// An inode with the number, the name and the link count that it has in the result.
    fn place_record(
        &mut self,
        id: FileId,
        mut record: InodeRecord,
        base: Option<&InodeRecord>,
    ) -> Result<InodeRecord> {
        record.ino = self.number_of(id)?;
        let file = self.work.table.get(id);
        // Counted from what the base has: names in unchanged directories are not looked at.
        let links = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let delta = match file.kind {
            FileKind::Dir => self.subdirs.get(&id).copied().unwrap_or(0),
            _ => links(file.outcome.added.len()) - links(file.outcome.removed.len()),
        };
        let before = match (base, file.kind) {
            (Some(base), _) => i64::from(base.attr.nlink),
            // Its own name, and `.` in it. Each subdirectory adds its `..`.
            (None, FileKind::Dir) => 2,
            (None, _) => 0,
        };
        // A tree may contradict itself. A file that stays has a name, whatever the counts of its sides say.
        record.attr.nlink = u32::try_from(before.saturating_add(delta).max(1)).unwrap_or(u32::MAX);
        if !file.is_root() {
            let (dir, name) = self.work.find_main_link(id, &mut self.paths)?;
            record.attr.parent = self.number_of(dir)?;
            record.attr.name = name;
        }
        Ok(record)
    }

    /// Returns the conflicts, sorted by path.
    pub fn list_conflicts(&mut self) -> Result<Vec<MergeConflict>> {
        let mut conflicts = Vec::with_capacity(self.work.conflicts.len());
        for found in std::mem::take(&mut self.work.conflicts) {
            let path = self.path_of(found.file)?;
            let other = match found.other {
                ConflictOther::None => None,
                ConflictOther::File(file) => Some(self.path_of(file)?),
                ConflictOther::Path(path) => Some(path),
            };
            conflicts.push(MergeConflict { path, kind: found.kind, other, file: found.key });
        }
        conflicts.sort();
        Ok(conflicts)
    }

    fn path_of(&mut self, id: FileId) -> Result<Vec<u8>> {
        let id = self.work.table.resolve(id);
        if self.work.table.get(id).is_root() {
            return Ok(Vec::new());
        }
        let link = self.work.find_main_link(id, &mut self.paths)?;
        self.work.result_path(&link, &mut self.paths)
    }

    /// Counts what the result holds, given what one side holds. `changed` counts what differs from that side.
    pub fn count_statistics(
        &self,
        side: SideName,
        of_side: SnapshotStatistics,
    ) -> Result<SnapshotStatistics> {
        // How much is stored is known only when the session has flushed its blobs.
        let mut counted = SnapshotStatistics { changed: 0, stored: 0, ..of_side };
        for id in self.work.table.ids() {
            let file = self.work.table.get(id);
            let ino = *file.sides.get(side);
            let new = match &file.result {
                FileResult::Kept(record) => Some(record.attr.clone()),
                FileResult::Deleted => None,
                FileResult::Unchanged => continue,
                // It is counted with the file that it was joined with.
                FileResult::Joined(_) => continue,
            };
            // From the side whose numbers are given, so that what the result adds to them and takes from them is
            // counted once.
            let old = ino.map(|ino| self.work.table.side_attr(side, ino)).transpose()?.flatten();
            let is_changed = old.is_some() != new.is_some()
                || new.is_some()
                    && (*file.is_touched.get(side.other()) || !file.links.get(side.other()).is_empty());
            add_difference(&mut counted, old.as_ref(), new.as_ref());
            counted.changed += u64::from(is_changed);
        }
        Ok(counted)
    }
}

fn add_difference(counted: &mut SnapshotStatistics, old: Option<&InodeAttr>, new: Option<&InodeAttr>) {
    let count = |attr: &InodeAttr| match attr.kind {
        FileKind::File => SnapshotStatistics { files: 1, bytes: attr.size, ..Default::default() },
        FileKind::Dir => SnapshotStatistics { dirs: 1, ..Default::default() },
        FileKind::Symlink
        | FileKind::Fifo
        | FileKind::Socket
        | FileKind::CharDevice
        | FileKind::BlockDevice => SnapshotStatistics { others: 1, ..Default::default() },
    };
    let old = old.map(count).unwrap_or_default();
    let new = new.map(count).unwrap_or_default();
    // Statistics of a damaged or forged record may be too small for what is taken from them.
    let step = |sum: &mut u64, old: u64, new: u64| *sum = sum.saturating_add(new).saturating_sub(old);
    step(&mut counted.files, old.files, new.files);
    step(&mut counted.dirs, old.dirs, new.dirs);
    step(&mut counted.others, old.others, new.others);
    step(&mut counted.bytes, old.bytes, new.bytes);
}

fn encode_inode_itself(record: &InodeRecord) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let ino = record.ino;
    let attr = std::iter::once((MapKey::for_attr(ino).into_bytes(), record.attr.encode()));
    let xattrs =
        record.xattrs.iter().map(|(name, value)| (MapKey::for_xattr(ino, name).into_bytes(), value.clone()));
    let extents = record
        .extents
        .iter()
        .map(|(offset, extent)| (MapKey::for_extent(ino, *offset).into_bytes(), Extent::encode(extent)));
    attr.chain(xattrs).chain(extents).collect()
}
