//! What becomes of each file: whether it stays, its attributes, its content, and the names that its sides gave it.
//!
//! Each fact is merged by itself: what one side changed is taken from that side; what both changed differently is a
//! conflict. Names that collide are left to [`super::names`].

use std::collections::BTreeMap;

use vellum_types::limits::INLINE_MAX;
use vellum_types::{BlobKind, Extent, ExtentSource, FileKind, InodeAttr};

use super::conflict::{ConflictKind, ConflictPolicy};
use super::files::{FileId, FileLink, FileResult, LinkChanges};
use super::side::{PerSide, SideName};
use super::text::{TEXT_MAX, TextVersion, is_text, merge_texts};
use super::work::{ConflictOther, MergeWork, VersionCopy};
use crate::diff::compare_inodes;
use crate::error::Result;
use crate::tree::{FileReader, FsTree, InodeRecord};

/// The three versions of a file. What both sides made has no base.
struct FileVersions {
    base: Option<InodeRecord>,
    first: InodeRecord,
    second: InodeRecord,
}

/// Extended attributes, by name.
type NamedValues = Vec<(Vec<u8>, Vec<u8>)>;

/// A fact of which both sides have something else than the base.
struct FactConflict;

/// One fact, merged; the preferred side's if it conflicts.
fn merge_fact<T: PartialEq>(
    base: Option<T>,
    first: T,
    second: T,
    preferred: SideName,
) -> (T, Option<FactConflict>) {
    let is_base = |value: &T| base.as_ref() == Some(value);
    // Equal changes of both sides are no conflict, whether they know of each other or not.
    if first == second || is_base(&second) {
        return (first, None);
    }
    if is_base(&first) {
        return (second, None);
    }
    let value = match preferred {
        SideName::First => first,
        SideName::Second => second,
    };
    (value, Some(FactConflict))
}

impl MergeWork<'_> {
    /// Decides on every file by itself.
    pub fn decide_files(&mut self) -> Result<()> {
        for id in self.table.ids() {
            let file = self.table.get(id);
            match (file.base, file.sides.first, file.sides.second) {
                (Some(_), Some(_), Some(_)) => self.decide_shared(id)?,
                (Some(_), Some(_), None) => self.decide_deleted(id, SideName::Second)?,
                (Some(_), None, Some(_)) => self.decide_deleted(id, SideName::First)?,
                // Both deleted it: they agree, whatever else they did with it before.
                (Some(_), None, None) => self.delete_file(id),
                (None, Some(_), Some(_)) => self.decide_new_dir(id)?,
                (None, _, _) => self.decide_new(id)?,
            }
        }
        Ok(())
    }

    pub fn side_tree(&self, side: SideName) -> &FsTree {
        &self.table.sides.get(side).tree
    }

    /// A file as a side has it; as the base has it, if the side did not touch it.
    pub fn read_version(&self, id: FileId, side: SideName) -> Result<InodeRecord> {
        let file = self.table.get(id);
        let missing = || crate::VolumeError::BadTree("a file vanished while it was merged".into());
        match (file.base, file.sides.get(side)) {
            (Some(base), Some(_)) if !file.is_touched.get(side) => self.table.read_base_inode(base),
            (_, Some(ino)) => self.table.read_side_inode(side, *ino),
            (_, None) => Err(missing()),
        }
    }

    fn decide_new(&mut self, id: FileId) -> Result<()> {
        let file = self.table.get(id);
        let side = if file.sides.first.is_some() { SideName::First } else { SideName::Second };
        let record = self.read_version(id, side)?;
        let file = self.table.get_mut(id);
        file.outcome.added = file.links.get(side).added.clone();
        file.result = FileResult::Kept(Box::new(record));
        Ok(())
    }

    /// A directory that both sides made in one place; the root, if the base is the empty tree.
    fn decide_new_dir(&mut self, id: FileId) -> Result<()> {
        let first = self.read_version(id, SideName::First)?;
        let second = self.read_version(id, SideName::Second)?;
        let record = self.merge_versions(id, FileVersions { base: None, first, second })?;
        let file = self.table.get_mut(id);
        file.outcome.added = file.links.first.added.union(&file.links.second.added).cloned().collect();
        file.result = FileResult::Kept(Box::new(record));
        Ok(())
    }

    fn decide_shared(&mut self, id: FileId) -> Result<()> {
        let file = self.table.get(id);
        // In the table only because something else referred to it, as to a directory above a changed file.
        let is_touched = file.is_touched;
        if is_touched == PerSide::default() && file.links.first.is_empty() && file.links.second.is_empty() {
            return Ok(());
        }
        let record = match (is_touched.first, is_touched.second) {
            (true, true) => {
                let base = file.base.map(|base| self.table.read_base_inode(base)).transpose()?;
                let first = self.read_version(id, SideName::First)?;
                let second = self.read_version(id, SideName::Second)?;
                self.merge_versions(id, FileVersions { base, first, second })?
            }
            (false, true) => self.read_version(id, SideName::Second)?,
            // If neither side touched it, only its names changed, and either version is that of the base.
            (_, false) => self.read_version(id, SideName::First)?,
        };
        let outcome = self.merge_links(id)?;
        let file = self.table.get_mut(id);
        file.result = FileResult::Kept(Box::new(record));
        file.outcome = outcome;
        Ok(())
    }

    /// Deletes a file; names that one side gave it are gone with it.
    fn delete_file(&mut self, id: FileId) {
        let file = self.table.get_mut(id);
        let removed = file.links.first.removed.union(&file.links.second.removed).cloned().collect();
        file.outcome = LinkChanges { removed, ..LinkChanges::default() };
        file.result = FileResult::Deleted;
    }

    /// One side deleted a file of the base; the other side may have done something with it.
    fn decide_deleted(&mut self, id: FileId, deleter: SideName) -> Result<()> {
        let keeper = deleter.other();
        let file = self.table.get(id);
        let links = file.links.get(keeper).clone();
        // The names that the deleter knew. It cannot have meant those that the other side gave the file since.
        let gone = file.links.get(deleter).removed.clone();
        let is_edited = *file.is_touched.get(keeper) && self.is_edited(id, keeper)?;
        let is_renamed = !links.removed.is_empty() && !links.added.is_empty();
        let is_linked = links.removed.is_empty() && !links.added.is_empty();
        // Asked last, since it reads the directories above the file.
        let is_in_renamed = !is_edited && !is_renamed && self.lies_in_renamed_dir(id, deleter)?;
        // The other side did nothing with it that the deleter has not seen.
        if !is_edited && !is_renamed && !is_linked && !is_in_renamed {
            self.delete_file(id);
            return Ok(());
        }
        // The names that the deleter knew go, and those that it did not know stay: no conflict.
        if !is_edited && is_linked && !is_in_renamed {
            let record = self.read_version(id, keeper)?;
            let file = self.table.get_mut(id);
            file.outcome = LinkChanges { removed: gone, added: links.added };
            file.result = FileResult::Kept(Box::new(record));
            return Ok(());
        }
        // Somebody has decided for the side that deleted it.
        if self.is_preferred(id, deleter) {
            self.delete_file(id);
            return Ok(());
        }
        let record = self.read_version(id, keeper)?;
        let file = self.table.get_mut(id);
        // It keeps the names that the deleter removed and the keeper did not, or it would have none.
        file.retained = gone.difference(&links.removed).cloned().collect();
        file.outcome = links;
        file.result = FileResult::Kept(Box::new(record));
        if is_edited {
            self.report_conflict(ConflictKind::EditDelete, id, ConflictOther::None);
        } else if is_renamed {
            self.report_conflict(ConflictKind::RenameDelete, id, ConflictOther::None);
        }
        Ok(())
    }

    /// Whether a side changed more than times.
    fn is_edited(&self, id: FileId, side: SideName) -> Result<bool> {
        let Some(base) = self.table.get(id).base else { return Ok(true) };
        let base = self.table.read_base_inode(base)?;
        let aspects = compare_inodes(&base, &self.read_version(id, side)?);
        Ok(aspects.content || aspects.mode || aspects.owner || aspects.xattr)
    }

    /// Whether a file lies in a directory that one side deleted and the other renamed: it stays with that.
    fn lies_in_renamed_dir(&mut self, id: FileId, deleter: SideName) -> Result<bool> {
        let mut at = id;
        let mut passed = 0;
        // Bounded, because a damaged tree may say that a directory lies in itself.
        while let Some(ino) = self.table.get(at).base
            && passed < crate::tree::DEPTH_MAX
        {
            let Some(attr) = self.table.base.inode_attr(ino)?.filter(|attr| !attr.name.is_empty()) else {
                break;
            };
            at = self.table.find_base_file(attr.parent, FileKind::Dir);
            let dir = self.table.get(at);
            if dir.sides.get(deleter).is_some() {
                break;
            }
            if dir.links.get(deleter.other()).new_place().is_some() {
                return Ok(!self.is_preferred(at, deleter));
            }
            passed += 1;
        }
        Ok(false)
    }

    /// What becomes of the names of a file that both sides have.
    fn merge_links(&mut self, id: FileId) -> Result<LinkChanges> {
        let file = self.table.get(id);
        let PerSide { first, second } = file.links.clone();
        if second.is_empty() || first == second {
            return Ok(first);
        }
        if first.is_empty() {
            return Ok(second);
        }
        let base = file.base.map(|ino| self.table.base.expect_inode_attr(ino)).transpose()?;
        // The link count of a directory counts its subdirectories; it has one name.
        let nlink = base.map_or(1, |attr| if attr.kind == FileKind::Dir { 1 } else { attr.nlink });
        if let (1, Some(a), Some(b)) = (nlink, first.new_place(), second.new_place()) {
            return self.choose_place(id, PerSide { first: a.clone(), second: b.clone() });
        }
        let added: std::collections::BTreeSet<_> = first.added.union(&second.added).cloned().collect();
        // A name that one side removed and the other gave it again stays.
        let removed = first.removed.union(&second.removed).filter(|link| !added.contains(*link));
        let merged = LinkChanges { removed: removed.cloned().collect(), added };
        if merged.added.is_empty() && merged.removed.len() >= usize::try_from(nlink).unwrap_or(usize::MAX) {
            // Each side left it another name: nobody deleted it.
            self.report_conflict(ConflictKind::EditDelete, id, ConflictOther::None);
            return Ok(first);
        }
        Ok(merged)
    }

    /// Both sides renamed a file that has one name: the path that sorts first is kept.
    fn choose_place(&mut self, id: FileId, places: PerSide<FileLink>) -> Result<LinkChanges> {
        let paths = PerSide {
            first: self.side_path(SideName::First, &places.first)?,
            second: self.side_path(SideName::Second, &places.second)?,
        };
        let side = match self.preferred_side(id) {
            Some(side) => side,
            None if paths.first <= paths.second => SideName::First,
            None => SideName::Second,
        };
        let other = ConflictOther::Path(paths.get(side.other()).clone());
        self.report_conflict(ConflictKind::RenameRename, id, other);
        Ok(self.table.get(id).links.get(side).clone())
    }

    /// The path of a name on a side that has it.
    pub fn side_path(&self, side: SideName, (dir, name): &FileLink) -> Result<Vec<u8>> {
        match self.table.get(*dir).sides.get(side) {
            Some(dir) => self.side_tree(side).entry_path(*dir, name),
            // The side does not have the directory, so that only the name is left to be compared.
            None => Ok(name.clone()),
        }
    }

    /// Joins two files that both sides made: they are the same one, or directories.
    pub fn join_new_files(&mut self, id: FileId, other: FileId) -> Result<()> {
        let first = self.read_version(id, SideName::First)?;
        let second = self.read_version(other, SideName::Second)?;
        let added: Vec<_> = self.table.get(other).outcome.added.iter().cloned().collect();
        let second_ino = self.table.get(other).sides.second;
        let links = self.table.get(other).links.second.clone();
        let file = self.table.get_mut(id);
        file.sides.second = second_ino;
        file.links.second = links;
        file.outcome.added.extend(added);
        let joined = self.table.get_mut(other);
        joined.result = FileResult::Joined(id);
        joined.outcome = LinkChanges::default();
        // After the two have become one file: a conflict names it by its numbers on both sides.
        let record = self.merge_versions(id, FileVersions { base: None, first, second })?;
        self.table.get_mut(id).result = FileResult::Kept(Box::new(record));
        Ok(())
    }

    /// Merges attributes and content of two versions.
    fn merge_versions(&mut self, id: FileId, versions: FileVersions) -> Result<InodeRecord> {
        let preferred = self.preferred_side(id).unwrap_or(SideName::First);
        let FileVersions { base, first, second } = &versions;
        let base_attr = base.as_ref().map(|base| &base.attr);
        let fact = |get: fn(&InodeAttr) -> u32| {
            merge_fact(base_attr.map(get), get(&first.attr), get(&second.attr), preferred)
        };
        let (mode, mode_conflict) = fact(|attr| attr.mode);
        let (uid, uid_conflict) = fact(|attr| attr.uid);
        let (gid, gid_conflict) = fact(|attr| attr.gid);
        let (xattrs, xattr_conflict) = merge_xattrs(&versions, preferred);
        if [mode_conflict, uid_conflict, gid_conflict, xattr_conflict].iter().any(Option::is_some) {
            self.report_conflict(ConflictKind::Attribute, id, ConflictOther::None);
        }
        let mut attr = InodeAttr { mode, uid, gid, ..first.attr.clone() };
        merge_times(&mut attr, base_attr, &first.attr, &second.attr);
        let mut record = InodeRecord { attr, xattrs, ..first.clone() };
        // Content is one fact with size, chunking and extents: versions of it are never mixed.
        let differs = |a: &InodeRecord, b: &InodeRecord| compare_inodes(a, b).content;
        if !differs(first, second) || base.as_ref().is_some_and(|base| !differs(base, second)) {
            // The first's content is taken already.
        } else if base.as_ref().is_some_and(|base| !differs(base, first)) {
            take_content(&mut record, second);
        } else {
            self.merge_content(id, &versions, &mut record)?;
        }
        Ok(record)
    }

    /// Both sides changed the content of a file differently.
    fn merge_content(&mut self, id: FileId, versions: &FileVersions, record: &mut InodeRecord) -> Result<()> {
        let FileVersions { second, .. } = versions;
        if let Some(merged) = self.try_merge_text(versions)? {
            if merged.conflicts == 0 {
                return self.store_text(record, &merged.bytes);
            }
            if self.policies.policy_for(self.table.get(id).key()) == ConflictPolicy::Report {
                self.report_conflict(ConflictKind::Content, id, ConflictOther::None);
                return self.store_text(record, &merged.bytes);
            }
        }
        // Markers are of no use to whoever wants both versions, or one of them.
        match self.preferred_side(id) {
            Some(SideName::First) => {}
            Some(SideName::Second) => take_content(record, second),
            None => {
                let copy = self.table.add_file(second.attr.kind, super::MergedFileKey::default());
                let mut version = second.clone();
                // It has only the name that it gets beside the original.
                version.attr.nlink = 1;
                self.table.get_mut(copy).result = FileResult::Kept(Box::new(version));
                self.copies.push(VersionCopy { original: id, copy, side: SideName::Second });
                self.report_conflict(ConflictKind::Content, id, ConflictOther::File(copy));
            }
        }
        Ok(())
    }

    /// A text that both sides changed, if all three versions are text.
    fn try_merge_text(&self, versions: &FileVersions) -> Result<Option<super::text::MergedText>> {
        let FileVersions { base: Some(base), first, second } = versions else { return Ok(None) };
        let is_small =
            |record: &InodeRecord| record.attr.kind == FileKind::File && record.attr.size <= TEXT_MAX;
        // All three are held in memory.
        if ![base, first, second].into_iter().all(is_small) {
            return Ok(None);
        }
        let base = FileReader::new(self.volume, base)?.read_to_end()?;
        let first = FileReader::new(self.volume, first)?.read_to_end()?;
        let second = FileReader::new(self.volume, second)?.read_to_end()?;
        if ![&base, &first, &second].into_iter().all(|bytes| is_text(bytes)) {
            return Ok(None);
        }
        let labels =
            PerSide { first: self.short_id(SideName::First), second: self.short_id(SideName::Second) };
        Ok(Some(merge_texts(
            &base,
            TextVersion { bytes: &first, label: &labels.first },
            TextVersion { bytes: &second, label: &labels.second },
        )))
    }

    /// Stores a merged text as a snapshot of it would.
    fn store_text(&self, record: &mut InodeRecord, bytes: &[u8]) -> Result<()> {
        record.attr.size = bytes.len() as u64;
        record.extents.clear();
        record.attr.inline = (bytes.len() <= INLINE_MAX).then(|| bytes.to_vec());
        if record.attr.inline.is_some() {
            return Ok(());
        }
        // As a snapshot of a directory stores it: equal text that somebody else writes then has equal chunks.
        record.attr.chunking = vellum_types::ChunkingMode::Content;
        let mut rest = bytes;
        let mut offset = 0;
        while let Some(len) = self.chunker.find_chunk_end(rest, true).filter(|_| !rest.is_empty()) {
            let (chunk, tail) = rest.split_at_checked(len).unwrap_or((rest, &[]));
            let id = self.session.put_blob(BlobKind::Chunk, chunk)?;
            let len = chunk.len() as u64;
            record.extents.push((offset, Extent { len, source: ExtentSource::Chunk { id, skip: 0 } }));
            offset += len;
            rest = tail;
        }
        Ok(())
    }
}

fn take_content(record: &mut InodeRecord, from: &InodeRecord) {
    let attr = &mut record.attr;
    attr.size = from.attr.size;
    attr.inline = from.attr.inline.clone();
    attr.target = from.attr.target.clone();
    attr.rdev = from.attr.rdev;
    attr.chunking = from.attr.chunking;
    record.extents = from.extents.clone();
}

/// Of a time that both sides changed, the later one counts; of the time of creation the earlier one.
fn merge_times(attr: &mut InodeAttr, base: Option<&InodeAttr>, first: &InodeAttr, second: &InodeAttr) {
    let merge = |get: fn(&InodeAttr) -> vellum_types::UnixTime, preferred: SideName| {
        merge_fact(base.map(get), get(first), get(second), preferred).0
    };
    let later = |get: fn(&InodeAttr) -> vellum_types::UnixTime| {
        merge(get, if get(first) >= get(second) { SideName::First } else { SideName::Second })
    };
    attr.mtime = later(|attr| attr.mtime);
    attr.ctime = later(|attr| attr.ctime);
    attr.atime = later(|attr| attr.atime);
    let earlier = if first.btime <= second.btime { SideName::First } else { SideName::Second };
    attr.btime = merge(|attr| attr.btime, earlier);
}

fn merge_xattrs(versions: &FileVersions, preferred: SideName) -> (NamedValues, Option<FactConflict>) {
    let collect = |record: &InodeRecord| record.xattrs.iter().cloned().collect::<BTreeMap<_, _>>();
    let base = versions.base.as_ref().map(collect).unwrap_or_default();
    let first = collect(&versions.first);
    let second = collect(&versions.second);
    let names: std::collections::BTreeSet<_> = first.keys().chain(second.keys()).cloned().collect();
    let mut merged = Vec::new();
    let mut conflict = None;
    for name in names {
        let (value, problem) =
            // Absence is a value, too: what one side removed and the other left alone is removed.
            merge_fact(Some(base.get(&name)), first.get(&name), second.get(&name), preferred);
        conflict = conflict.or(problem);
        merged.extend(value.map(|value| (name, value.clone())));
    }
    (merged, conflict)
}
