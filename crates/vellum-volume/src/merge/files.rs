//! Which inode of one tree is which of the others.
//!
//! A number that a snapshot at the base has means the same file in all three trees, if its kind is the same. Other numbers belong to
//! their side. An inode of the base that is gone, and a new one of the same side, are one file if they were first seen
//! under the same name, or the new one stands where the old one stood: a merge gives new numbers to what its sides made,
//! and editors replace a file in order to save it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use vellum_types::{FileKind, Ino, InodeAttr};

use super::conflict::MergedFileKey;
use super::side::{PerSide, SideChanges, SideName, read_inode_itself};
use crate::error::Result;
use crate::tree::{FsTree, InodeRecord};

/// A file in all three trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FileId(pub usize);

/// A name in a directory.
pub(super) type FileLink = (FileId, Vec<u8>);

/// Names that a file lost and got, compared with the base.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct LinkChanges {
    pub removed: BTreeSet<FileLink>,
    pub added: BTreeSet<FileLink>,
}

impl LinkChanges {
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty()
    }

    /// Names that went and came back are no change.
    fn cancel_common(&mut self) {
        let both: Vec<_> = self.removed.intersection(&self.added).cloned().collect();
        for link in both {
            self.removed.remove(&link);
            self.added.remove(&link);
        }
    }

    /// If the file's only name changed: the new one.
    pub fn new_place(&self) -> Option<&FileLink> {
        // With several names there is no telling which one became which.
        if self.removed.len() == 1 && self.added.len() == 1 { self.added.first() } else { None }
    }
}

/// What becomes of a file.
#[derive(Debug, Clone)]
pub(super) enum FileResult {
    /// It is as in the base, but for the number of directories in it.
    Unchanged,
    /// It has these attributes and this content.
    Kept(Box<InodeRecord>),
    /// It is not in the result.
    Deleted,
    /// It is one with another file.
    Joined(FileId),
}

/// One file, in the base, on both sides, and in the result.
#[derive(Debug, Clone)]
pub(super) struct MergedFile {
    pub kind: FileKind,
    pub base: Option<Ino>,
    pub sides: PerSide<Option<Ino>>,
    /// Whether a side changed attributes or content.
    pub is_touched: PerSide<bool>,
    /// What each side did with its names.
    pub links: PerSide<LinkChanges>,
    pub result: FileResult,
    /// What the result does with its names.
    pub outcome: LinkChanges,
    /// Names that it keeps though one side removed them.
    pub retained: BTreeSet<FileLink>,
}

impl MergedFile {
    pub fn key(&self) -> MergedFileKey {
        MergedFileKey { base: self.base, first: self.sides.first, second: self.sides.second }
    }

    /// Whether it is the root directory, which has no name.
    pub fn is_root(&self) -> bool {
        self.base == Some(Ino::ROOT) || self.base.is_none() && self.sides.first == Some(Ino::ROOT)
    }

    /// Whether it has this name on a side, as far as changes tell.
    pub fn is_link_of(&self, side: SideName, link: &FileLink) -> bool {
        let links = self.links.get(side);
        links.added.contains(link)
            || self.base.is_some() && self.sides.get(side).is_some() && !links.removed.contains(link)
    }
}

/// All files that a merge looks at.
pub(super) struct FileTable {
    pub base: FsTree,
    /// Numbers from it on say nothing of which file of the base they are.
    shared: Ino,
    pub sides: PerSide<SideChanges>,
    files: Vec<MergedFile>,
    by_base: HashMap<Ino, FileId>,
    by_side: PerSide<HashMap<Ino, FileId>>,
    /// Attributes that differ between the base and a side, as the base has them. They are asked for again and again.
    base_attrs: HashMap<Ino, Option<InodeAttr>>,
    /// The same as a side has them.
    side_attrs: PerSide<HashMap<Ino, Option<InodeAttr>>>,
    /// Directories that a side made: those that the other side makes in the same place are the same ones.
    new_dirs: HashMap<FileLink, FileId>,
}

impl FileTable {
    /// Matches the files of the three trees.
    pub fn build(base: FsTree, shared: Ino, sides: PerSide<SideChanges>) -> Result<Self> {
        let mut table = Self {
            base,
            shared,
            sides,
            files: Vec::new(),
            by_base: HashMap::new(),
            by_side: PerSide::default(),
            base_attrs: HashMap::new(),
            side_attrs: PerSide::default(),
            new_dirs: HashMap::new(),
        };
        // Inodes before names: a name leads to a file only when it is known which inode of each tree is which file. The
        // first side before the second: the order of ids must not depend on who merges.
        table.add_root()?;
        SideName::BOTH.into_iter().try_for_each(|side| table.match_side(side))?;
        SideName::BOTH.into_iter().try_for_each(|side| table.collect_links(side))?;
        // Only when both lists are complete: a directory may have one number where a name went and another where it came back.
        table.files.iter_mut().for_each(|file| {
            SideName::BOTH.into_iter().for_each(|side| file.links.get_mut(side).cancel_common());
        });
        Ok(table)
    }

    /// Adds the root directory, which all trees have but the empty one.
    fn add_root(&mut self) -> Result<()> {
        let key = MergedFileKey {
            // Without common history the base is empty, and has no root directory.
            base: self.base.inode_attr(Ino::ROOT)?.map(|_| Ino::ROOT),
            first: Some(Ino::ROOT),
            second: Some(Ino::ROOT),
        };
        let id = self.add_file(FileKind::Dir, key);
        self.by_base.insert(Ino::ROOT, id);
        Ok(())
    }

    pub fn get(&self, id: FileId) -> &MergedFile {
        #[expect(clippy::indexing_slicing, reason = "ids are given out by this table, which drops none")]
        &self.files[id.0]
    }

    pub fn get_mut(&mut self, id: FileId) -> &mut MergedFile {
        #[expect(clippy::indexing_slicing, reason = "ids are given out by this table, which drops none")]
        &mut self.files[id.0]
    }

    pub fn ids(&self) -> impl Iterator<Item = FileId> + use<> {
        (0..self.files.len()).map(FileId)
    }

    /// The file that it was joined with, or itself.
    pub fn resolve(&self, mut id: FileId) -> FileId {
        while let FileResult::Joined(other) = self.get(id).result {
            id = other;
        }
        id
    }

    /// Adds a file that is in no tree yet.
    pub fn add_file(&mut self, kind: FileKind, key: MergedFileKey) -> FileId {
        let id = FileId(self.files.len());
        self.files.push(MergedFile {
            kind,
            base: key.base,
            sides: PerSide { first: key.first, second: key.second },
            is_touched: PerSide::default(),
            links: PerSide::default(),
            result: FileResult::Unchanged,
            outcome: LinkChanges::default(),
            retained: BTreeSet::new(),
        });
        id
    }

    /// The file of an inode of the base.
    pub fn find_base_file(&mut self, ino: Ino, kind: FileKind) -> FileId {
        if let Some(id) = self.by_base.get(&ino) {
            return *id;
        }
        // A number of the base is the same file on both sides, unless a side is found to have changed or removed it.
        let key = MergedFileKey { base: Some(ino), first: Some(ino), second: Some(ino) };
        let id = self.add_file(kind, key);
        self.by_base.insert(ino, id);
        id
    }

    /// The file of an inode of a side.
    pub fn find_side_file(&mut self, side: SideName, ino: Ino, kind: FileKind) -> FileId {
        match self.by_side.get(side).get(&ino) {
            Some(id) => *id,
            // A number that the side did not touch means what it means in the base.
            None => self.find_base_file(ino, kind),
        }
    }

    /// The attributes of an inode of the base.
    pub fn base_attr(&self, ino: Ino) -> Result<Option<InodeAttr>> {
        self.base_attrs.get(&ino).map_or_else(|| self.base.inode_attr(ino), |known| Ok(known.clone()))
    }

    /// The attributes of an inode of a side: where the side has no others, those of the base.
    pub fn side_attr(&self, side: SideName, ino: Ino) -> Result<Option<InodeAttr>> {
        self.side_attrs.get(side).get(&ino).map_or_else(|| self.base_attr(ino), |known| Ok(known.clone()))
    }

    /// An inode of the base without its directory entries.
    pub fn read_base_inode(&self, ino: Ino) -> Result<InodeRecord> {
        let known =
            SideName::BOTH.into_iter().find_map(|side| self.sides.get(side).keys.read.before.get(&ino));
        known.cloned().map_or_else(|| read_inode_itself(&self.base, ino), Ok)
    }

    /// An inode of a side without its directory entries.
    pub fn read_side_inode(&self, side: SideName, ino: Ino) -> Result<InodeRecord> {
        let changes = self.sides.get(side);
        let known = changes.keys.read.after.get(&ino);
        known.cloned().map_or_else(|| read_inode_itself(&changes.tree, ino), Ok)
    }

    fn match_side(&mut self, side: SideName) -> Result<()> {
        let mut gone: BTreeMap<Ino, InodeAttr> = BTreeMap::new();
        let mut new: Vec<(Vec<u8>, Ino, InodeAttr)> = Vec::new();
        let attrs = std::mem::take(&mut self.sides.get_mut(side).keys.attrs);
        for (ino, changed) in attrs {
            self.base_attrs.insert(ino, changed.before.clone());
            self.side_attrs.get_mut(side).insert(ino, changed.after.clone());
            match (changed.before, changed.after) {
                // What became another kind of file under its number counts as another file.
                (Some(before), Some(after)) if before.kind == after.kind && ino < self.shared => {
                    let id = self.find_base_file(ino, after.kind);
                    *self.get_mut(id).is_touched.get_mut(side) = true;
                    self.by_side.get_mut(side).insert(ino, id);
                }
                (before, after) => {
                    gone.extend(before.map(|before| (ino, before)));
                    // The root is one file in all trees already.
                    if let Some(after) = after.filter(|_| ino != Ino::ROOT) {
                        let path = self.sides.get(side).tree.entry_path(after.parent, &after.name)?;
                        new.push((path, ino, after));
                    }
                }
            }
        }
        for ino in std::mem::take(&mut self.sides.get_mut(side).keys.contents) {
            if let Some(id) = self.by_side.get(side).get(&ino).copied() {
                *self.get_mut(id).is_touched.get_mut(side) = true;
            // Only content or extended attributes changed: the attributes are those of the base.
            } else if !gone.contains_key(&ino)
                && let Some(attr) = self.base.inode_attr(ino)?
            {
                let id = self.find_base_file(ino, attr.kind);
                *self.get_mut(id).is_touched.get_mut(side) = true;
            }
        }
        self.pair_replaced(side, new, &mut gone)?;
        for (ino, attr) in gone {
            let id = self.find_base_file(ino, attr.kind);
            *self.get_mut(id).sides.get_mut(side) = None;
        }
        Ok(())
    }

    /// Pairs new inodes of a side with those of the base that it lacks; directories before what is in them.
    fn pair_replaced(
        &mut self,
        side: SideName,
        mut new: Vec<(Vec<u8>, Ino, InodeAttr)>,
        gone: &mut BTreeMap<Ino, InodeAttr>,
    ) -> Result<()> {
        // By path, so that a directory is matched before what is in it asks for its directory.
        new.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut first_seen: HashMap<(FileKind, u64), Vec<Ino>> = HashMap::new();
        for (ino, attr) in gone.iter().filter(|(_, attr)| attr.generation != 0) {
            first_seen.entry((attr.kind, attr.generation)).or_default().push(*ino);
        }
        // In one order on all machines: each pairing takes a file away from those that follow.
        for (_, ino, attr) in new {
            let same_origin = first_seen.get(&(attr.kind, attr.generation)).into_iter().flatten().copied();
            let is_same = |old: &InodeAttr| old.name == attr.name || old.btime == attr.btime;
            // Several files can be first seen under names of one generation, which has 16 bits: name or time of creation must
            // agree, too. Of those left, the number itself if it is among them, else the lowest one: all machines must
            // choose the same.
            let paired = same_origin
                .filter(|old| gone.get(old).is_some_and(is_same))
                .min_by_key(|old| (*old != ino, *old));
            let paired = match paired {
                Some(old) => Some(old),
                None => self.find_replaced(side, &attr, gone)?,
            };
            let id = match paired {
                Some(old) => {
                    gone.remove(&old);
                    self.find_base_file(old, attr.kind)
                }
                None if attr.kind == FileKind::Dir => self.find_new_dir(side, &attr),
                None => self.add_file(attr.kind, MergedFileKey::default()),
            };
            let file = self.get_mut(id);
            *file.sides.get_mut(side) = Some(ino);
            *file.is_touched.get_mut(side) = true;
            self.by_side.get_mut(side).insert(ino, id);
        }
        Ok(())
    }

    fn find_new_dir(&mut self, side: SideName, attr: &InodeAttr) -> FileId {
        let dir = self.find_side_file(side, attr.parent, FileKind::Dir);
        let link = (dir, attr.name.clone());
        // Two directories of one place are one: as two, one of them would have to be renamed with all that is in it.
        if let Some(id) = self.new_dirs.get(&link) {
            return *id;
        }
        let id = self.add_file(FileKind::Dir, MergedFileKey::default());
        self.new_dirs.insert(link, id);
        id
    }

    /// What the base had where a new inode stands, if the side has that no more.
    fn find_replaced(
        &mut self,
        side: SideName,
        attr: &InodeAttr,
        gone: &BTreeMap<Ino, InodeAttr>,
    ) -> Result<Option<Ino>> {
        let dir = self.find_side_file(side, attr.parent, FileKind::Dir);
        let Some(dir) = self.get(dir).base else { return Ok(None) };
        // Unchecked: only the number is asked for, and a directory that contradicts itself is reported where it is
        // read.
        let there = self.base.lookup_dentry_unchecked(dir, &attr.name)?.map(|there| there.ino);
        Ok(there.filter(|old| gone.get(old).is_some_and(|old| old.kind == attr.kind)))
    }

    fn collect_links(&mut self, side: SideName) -> Result<()> {
        // What a side removed was in the base, so that its numbers are those of the base; what it added has its own.
        for removed in std::mem::take(&mut self.sides.get_mut(side).keys.removed) {
            let dir = self.find_base_file(removed.dir, FileKind::Dir);
            let id = self.find_base_file(removed.dentry.ino, removed.dentry.kind);
            self.get_mut(id).links.get_mut(side).removed.insert((dir, removed.name));
        }
        for added in std::mem::take(&mut self.sides.get_mut(side).keys.added) {
            let dir = self.find_side_file(side, added.dir, FileKind::Dir);
            let id = self.find_side_file(side, added.dentry.ino, added.dentry.kind);
            self.get_mut(id).links.get_mut(side).added.insert((dir, added.name));
        }
        Ok(())
    }
}
