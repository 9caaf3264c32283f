//! A directory or an entry of a snapshot as a source.
//!
//! Invariant: the content is that of the snapshot, authenticated chunk by chunk; it cannot change or vanish meanwhile.
//! Deliberately absent: worktrees, which are directories like any other.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use vellum_host::ProgressMeter;
use vellum_host::beneath::ExtendedAttribute;
use vellum_map::MapRoot;
use vellum_types::{FileKind, Ino};
use vellum_volume::Volume;
use vellum_volume::tree::{ContentPart, FileReader, FsTree, InodeRecord};

use crate::ends::{
    ContentPieces, FilePart, ListingRequest, OldVersion, SourceContent, SourceEnd, SyncEnd, TransferPiece,
};
use crate::error::{Result, SyncError};
use crate::local::receive::RANGE;
use crate::local::scan::{EntryFilter, create_omitted_listing, should_list_named};
use crate::model::listing::{
    ContentDigests, DirectoryBlock, EntryDetail, EntryFlags, ListingEntry, ListingEntryId, NewListingEntry,
    TreeListing,
};
use crate::model::options::ACL_PREFIX;
use crate::rules::{RULE_FILE_MAX, RuleError};

/// A directory of a snapshot, or one entry of it.
pub struct SnapshotEnd {
    volume: Volume,
    tree: FsTree,
    top: Ino,
    /// The entry that is the whole source.
    single: Option<SingleEntry>,
    /// The inode numbers of the last listing.
    inodes: Mutex<HashMap<ListingEntryId, Ino>>,
}

/// A single entry as the whole source.
#[derive(Debug, Clone)]
pub struct SingleEntry {
    /// Its name in the snapshot, which rules match.
    pub name: Vec<u8>,
    /// The name under which it is listed.
    pub shown: Vec<u8>,
}

/// A listed entry, by its position among those of its directory.
struct SnapshotDirEntry {
    place: u32,
    ino: Ino,
    /// The name of a directory that is entered.
    enters: Option<Vec<u8>>,
}

/// The numbers of link groups, in the order in which their files are found. Inode numbers can be larger than the
/// numbers of groups.
#[derive(Default)]
struct LinkGroups(HashMap<Ino, u32>);

impl LinkGroups {
    fn group_of(&mut self, ino: Ino) -> u32 {
        // A listing has fewer entries than there are numbers.
        let next = u32::try_from(self.0.len()).unwrap_or(u32::MAX).saturating_add(1);
        *self.0.entry(ino).or_insert(next)
    }
}

/// A directory that is to be listed.
struct ListingTask {
    id: ListingEntryId,
    ino: Ino,
    name: Vec<u8>,
    judge: Arc<dyn EntryFilter>,
}

impl SnapshotEnd {
    /// The subtree at `top` in the tree of this root; with `single`, that entry alone.
    #[must_use]
    pub fn new(volume: Volume, root: MapRoot, top: Ino, single: Option<SingleEntry>) -> Self {
        let tree = volume.open_tree(root);
        Self { volume, tree, top, single, inodes: Mutex::default() }
    }

    fn describe_inode(inode: &InodeRecord, flags: EntryFlags) -> NewListingEntry {
        let attr = &inode.attr;
        let kind = attr.kind;
        let mode = attr.mode;
        let uid = attr.uid;
        let gid = attr.gid;
        NewListingEntry { kind, mode, uid, gid, size: attr.size, mtime: attr.mtime, flags }
    }

    fn read_detail(
        inode: &InodeRecord,
        wish: &ListingRequest,
        judge: &dyn EntryFilter,
        groups: &mut LinkGroups,
    ) -> Option<EntryDetail> {
        let preserve = &wish.options.preserve;
        let attr = &inode.attr;
        let takes = |name: &[u8]| match name.starts_with(ACL_PREFIX) {
            true => preserve.acls,
            false => preserve.xattrs && judge.should_transfer_xattr(name),
        };
        let xattrs = inode.xattrs.iter().filter(|(name, _)| takes(name));
        let mut xattrs: Vec<ExtendedAttribute> = xattrs
            .map(|(name, value)| ExtendedAttribute { name: name.clone(), value: value.clone() })
            .collect();
        xattrs.sort_unstable();
        let linked = preserve.hard_links && attr.nlink > 1 && attr.kind != FileKind::Dir;
        let is_device = matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice);
        let any =
            !xattrs.is_empty() || linked || is_device || attr.kind == FileKind::Symlink || preserve.atimes;
        any.then(|| EntryDetail {
            target: attr.target.clone().into(),
            rdev: attr.rdev,
            group: if linked { groups.group_of(inode.ino) } else { 0 },
            xattrs: xattrs.into(),
            atime: preserve.atimes.then_some(attr.atime),
        })
    }

    /// Lists the entries of a directory; returns its subdirectories, too.
    fn list_dir(
        &self,
        task: &ListingTask,
        wish: &ListingRequest,
        files: &mut u64,
        groups: &mut LinkGroups,
    ) -> Result<(DirectoryBlock, Vec<SnapshotDirEntry>, bool)> {
        let entries = self.tree.list_entries(task.ino)?;
        let mut block = DirectoryBlock::with_capacity(entries.len());
        let mut inodes = Vec::with_capacity(entries.len());
        let mut keeps = false;
        for (name, dentry) in entries {
            let is_dir = dentry.kind == FileKind::Dir;
            let verdict = task.judge.evaluate_entry(&name, is_dir);
            // Entries below an excluded one are not examined either.
            if !verdict.transfer {
                keeps = true;
                continue;
            }
            let inode = self.tree.read_inode(dentry.ino)?;
            let is_file = inode.attr.kind == FileKind::File;
            let withheld = is_file && !task.judge.should_transfer_file(inode.attr.size, inode.attr.mtime);
            let is_bare = is_dir && wish.options.preserve.bare_way && verdict.is_between;
            let flags = EntryFlags::default()
                .union_if(EntryFlags::WITHHELD, withheld)
                .union_if(EntryFlags::IMPLIED, is_bare);
            let place = block.len() as u32;
            block.push(
                &name,
                &Self::describe_inode(&inode, flags),
                Self::read_detail(&inode, wish, &*task.judge, groups),
            )?;
            *files += u64::from(is_file);
            let enters = is_dir && (verdict.is_way || wish.options.preserve.recursive);
            inodes.push(SnapshotDirEntry { place, ino: dentry.ino, enters: enters.then_some(name) });
        }
        Ok((block, inodes, keeps))
    }

    fn list_single_entry(&self, single: &SingleEntry, wish: &ListingRequest) -> Result<TreeListing> {
        if !should_list_named(wish, &single.name, false)? {
            return Ok(create_omitted_listing());
        }
        let mut listing = TreeListing::new(
            &NewListingEntry { flags: EntryFlags::IMPLIED, ..NewListingEntry::unknown_dir() },
            None,
        );
        let inode = self.tree.read_inode(self.top)?;
        let is_withheld = inode.attr.kind == FileKind::File
            && !wish.rules.should_transfer_file(inode.attr.size, inode.attr.mtime);
        let flags = EntryFlags::default().union_if(EntryFlags::WITHHELD, is_withheld);
        let mut block = DirectoryBlock::default();
        block.push(
            &single.shown,
            &Self::describe_inode(&inode, flags),
            Self::read_detail(&inode, wish, &*wish.rules, &mut LinkGroups::default()),
        )?;
        let id = listing.attach_block(ListingEntryId::ROOT, &mut block)?;
        self.store_inodes(HashMap::from([(id, self.top)]));
        Ok(listing)
    }

    fn store_inodes(&self, inodes: HashMap<ListingEntryId, Ino>) {
        *self.inodes.lock() = inodes;
    }

    fn open_pieces(&self, id: ListingEntryId) -> Result<SnapshotPieces> {
        // Entries are known by number, so a file is found without walking its path again.
        let known = self.inodes.lock().get(&id).copied();
        let inode = self.tree.read_inode(known.ok_or(SyncError::Vanished)?)?;
        Ok(SnapshotPieces(FileReader::new(&self.volume, &inode)?))
    }
}

impl SyncEnd for SnapshotEnd {
    fn list_entries(&self, wish: &ListingRequest, meter: &ProgressMeter) -> Result<TreeListing> {
        if let Some(single) = &self.single {
            return self.list_single_entry(single, wish);
        }
        if !wish.top.is_empty() && !should_list_named(wish, &wish.top, true)? {
            return Ok(create_omitted_listing());
        }
        let inode = self.tree.read_inode(self.top)?;
        let flags = EntryFlags::default().union_if(EntryFlags::IMPLIED, wish.is_root_implied());
        let mut groups = LinkGroups::default();
        let mut listing = TreeListing::new(
            &Self::describe_inode(&inode, flags),
            Self::read_detail(&inode, wish, &*wish.rules, &mut groups),
        );
        let judge = match wish.top.is_empty() {
            true => None,
            false => wish.rules.enter_dir(b"", &|_| Ok(None))?,
        };
        let judge = judge.unwrap_or_else(|| wish.rules.clone());
        let mut tasks =
            vec![ListingTask { id: ListingEntryId::ROOT, ino: self.top, name: wish.top.clone(), judge }];
        let mut inodes = HashMap::new();
        while let Some(mut task) = tasks.pop() {
            meter.check_stopped()?;
            let read = |name: &[u8]| self.read_rule_file(task.ino, name);
            if let Some(judge) = task.judge.enter_dir(&task.name, &read)? {
                task.judge = judge;
            }
            let mut files = 0;
            let (mut block, found, keeps) = self.list_dir(&task, wish, &mut files, &mut groups)?;
            let first = listing.attach_block(task.id, &mut block)?;
            if keeps {
                listing.add_flags(task.id, EntryFlags::KEEPS);
            }
            meter.add_progress(files, 0);
            for SnapshotDirEntry { place, ino, enters } in found {
                let id = first.offset_by(place);
                inodes.insert(id, ino);
                if let Some(name) = enters {
                    tasks.push(ListingTask { id, ino, name, judge: task.judge.clone() });
                }
            }
        }
        self.store_inodes(inodes);
        Ok(listing)
    }

    fn hash_files(
        &self,
        _: &TreeListing,
        files: &[ListingEntryId],
        meter: &ProgressMeter,
    ) -> Result<ContentDigests> {
        let hash = |id: &ListingEntryId| {
            let mut pieces = self.open_pieces(*id).ok()?;
            let mut hasher = blake3::Hasher::new();
            loop {
                // The result is dropped below.
                if meter.is_stopped() {
                    return None;
                }
                match pieces.next_piece().ok()? {
                    None => return Some(*hasher.finalize().as_bytes()),
                    Some(TransferPiece::Data(bytes)) => {
                        hasher.update(bytes);
                    }
                    Some(TransferPiece::Hole(len)) => crate::local::receive::hash_zeros(&mut hasher, len),
                    Some(TransferPiece::Old { .. }) => return None,
                }
            }
        };
        files
            .iter()
            .map(|id| {
                let digest = hash(id);
                meter.check_stopped()?;
                Ok(digest)
            })
            .collect()
    }
}

impl SnapshotEnd {
    fn read_rule_file(&self, dir: Ino, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(dentry) = self.tree.lookup_dentry(dir, name)?.filter(|dentry| dentry.kind == FileKind::File)
        else {
            return Ok(None);
        };
        // One byte more than the limit shows that the file is too long.
        let text = self.tree.read_content(dentry.ino, 0, RULE_FILE_MAX as usize + 1)?;
        RuleError::check_file_len(name, text.len() as u64)?;
        Ok(Some(text))
    }
}

impl SourceEnd for SnapshotEnd {
    fn open_content(&self, file: ListingEntry<'_>, _old: Option<OldVersion<'_>>) -> Result<SourceContent> {
        Ok(SourceContent::Pieces(Box::new(self.open_pieces(file.id())?)))
    }

    fn needs_old_version(&self) -> bool {
        false
    }
}

/// The content of a file, or a part of it.
struct SnapshotPieces(FileReader);

impl ContentPieces for SnapshotPieces {
    fn next_piece(&mut self) -> Result<Option<TransferPiece<'_>>> {
        Ok(self.0.next_part()?.map(|part| match part {
            ContentPart::Data(bytes) => TransferPiece::Data(bytes),
            ContentPart::Hole(len) => TransferPiece::Hole(len),
        }))
    }

    fn split_parts(&self) -> Option<Vec<FilePart>> {
        let parts = self.0.split_ranges(RANGE).into_iter();
        let new_part = |reader: FileReader| {
            let range = reader.remaining_range();
            FilePart { start: range.start, end: range.end, pieces: Box::new(SnapshotPieces(reader)) }
        };
        let parts: Vec<_> = parts.map(new_part).collect();
        (parts.len() > 1).then_some(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files with such numbers lost their links.
    #[test]
    fn link_groups_have_numbers_for_all_inodes() {
        let mut groups = LinkGroups::default();
        let large = Ino(1 << 40);
        assert_eq!(groups.group_of(large), 1);
        assert_eq!(groups.group_of(Ino(7)), 2);
        assert_eq!(groups.group_of(large), 1);
    }
}
