//! What one side of a merge changed, as the two trees say it: inodes, names and content, under the numbers of each.
//!
//! Equal subtrees are not read. Nothing here decides anything.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};

use vellum_map::{KeySpan, MapRoot, diff_maps_in_span};
use vellum_store::join_work;
use vellum_types::value::SuperBlock;
use vellum_types::{Dentry, Ino, InodeAttr, MapKeyRef, SnapshotId};

use super::MergeSide;
use crate::error::{Result, VolumeError};
use crate::tree::{FsTree, InodeRecord};
use crate::volume::Volume;

/// Changed inodes of a side that are kept in memory before they are asked for, a count: some tens of MiB.
const INODES_READ_MAX: usize = 1 << 16;
/// Extended attributes and extents of one of them, a count: larger ones are read when they are asked for.
const PARTS_READ_MAX: usize = 8;
/// Spans of keys that two threads share, a count: one that has finished early does not wait for long.
const SPANS_MAX: usize = 16;

/// The two sides of a merge. The first is the one with the lower snapshot id, so that nothing depends on who merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SideName {
    /// The side with the lower id.
    First,
    /// The other one.
    Second,
}

impl SideName {
    /// Both sides.
    pub const BOTH: [Self; 2] = [Self::First, Self::Second];

    /// The other side.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// A value for each side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PerSide<T> {
    /// Of the first.
    pub first: T,
    /// Of the second.
    pub second: T,
}

impl<T> PerSide<T> {
    /// The value of a side.
    pub fn get(&self, side: SideName) -> &T {
        match side {
            SideName::First => &self.first,
            SideName::Second => &self.second,
        }
    }

    /// The value of a side, to be changed.
    pub fn get_mut(&mut self, side: SideName) -> &mut T {
        match side {
            SideName::First => &mut self.first,
            SideName::Second => &mut self.second,
        }
    }
}

/// A name in a directory of one tree, and what it stands for.
pub(super) struct NamedInode {
    pub dir: Ino,
    pub name: Vec<u8>,
    pub dentry: Dentry,
}

/// The attributes of an inode that are not the same in the base and on a side.
pub(super) struct ChangedAttr {
    pub before: Option<InodeAttr>,
    pub after: Option<InodeAttr>,
}

/// Changed inodes that were read on the walk that met them, while the nodes that hold them were in memory. A merge that looks at
/// them later would read these nodes once more if they are more than the cache holds.
#[derive(Default)]
pub(super) struct ReadInodes {
    /// As the base has them.
    pub before: HashMap<Ino, InodeRecord>,
    /// As the side has them.
    pub after: HashMap<Ino, InodeRecord>,
}

/// One side, and how it differs from the base.
pub(super) struct SideChanges {
    pub id: SnapshotId,
    pub tree: FsTree,
    pub next_ino: Ino,
    pub keys: ChangedKeys,
}

/// The keys under which a side has something else than the base, and what.
#[derive(Default)]
pub(super) struct ChangedKeys {
    pub attrs: BTreeMap<Ino, ChangedAttr>,
    pub read: ReadInodes,
    /// Inodes whose extended attributes or extents differ.
    pub contents: BTreeSet<Ino>,
    pub removed: Vec<NamedInode>,
    pub added: Vec<NamedInode>,
}

/// Compares both sides with the base, in two threads. These share the keys, not the sides: what both sides have to be compared
/// with is then read by one thread, and the other does not wait for it.
pub(super) fn collect_changes(
    volume: &Volume,
    base: &MapRoot,
    sides: &PerSide<MergeSide>,
) -> Result<PerSide<SideChanges>> {
    let spans = KeySpan::split_map(&*volume.nodes, base, SPANS_MAX)?;
    let base = volume.open_tree(*base);
    let first = SideWalk::new(volume, &base, sides.first);
    let second = SideWalk::new(volume, &base, sides.second);
    let next = AtomicUsize::new(0);
    let walk = || {
        let mut done = Vec::new();
        let take_span = || {
            let number = next.fetch_add(1, Ordering::Relaxed);
            spans.get(number).map(|span| (number, span.clone()))
        };
        while let Some((number, span)) = take_span() {
            done.push((number, first.collect_span(span.clone())?, second.collect_span(span)?));
        }
        Ok::<_, VolumeError>(done)
    };
    let (one, other) = join_work(walk, walk);
    let mut done = one?;
    done.extend(other?);
    // In the order of the keys, as one walk would have found them.
    done.sort_unstable_by_key(|(number, ..)| *number);
    let mut changes = PerSide { first: SideChanges::new(&first)?, second: SideChanges::new(&second)? };
    for (_, of_first, of_second) in done {
        changes.first.keys.append(of_first);
        changes.second.keys.append(of_second);
    }
    Ok(changes)
}

/// The walk over what differs between the base and a side.
struct SideWalk<'a> {
    volume: &'a Volume,
    base: &'a FsTree,
    side: MergeSide,
    tree: FsTree,
    /// How many more inodes are read before they are asked for.
    reads_left: AtomicUsize,
}

impl<'a> SideWalk<'a> {
    fn new(volume: &'a Volume, base: &'a FsTree, side: MergeSide) -> Self {
        let tree = volume.open_tree(side.root);
        Self { volume, base, side, tree, reads_left: AtomicUsize::new(INODES_READ_MAX) }
    }

    /// What differs in a span of keys.
    fn collect_span(&self, span: KeySpan) -> Result<ChangedKeys> {
        let mut changes = ChangedKeys::default();
        let base = &self.base.map_view().base;
        for change in diff_maps_in_span(&*self.volume.nodes, base, &self.side.root, span) {
            let change = change?;
            let before = change.before.as_deref();
            let after = change.after.as_deref();
            let key = MapKeyRef::parse(&change.key);
            let key = key.map_err(VolumeError::wrap_decode_error("a changed part of the tree"))?;
            changes
                .record_change(key, before, after)
                .map_err(VolumeError::wrap_decode_error("a changed part of the tree"))?;
            if let MapKeyRef::Attr(ino) = key {
                self.read_changed_inode(&mut changes, ino)?;
            }
        }
        Ok(changes)
    }

    /// Keeps both versions of an inode whose attributes were just found to differ.
    fn read_changed_inode(&self, changes: &mut ChangedKeys, ino: Ino) -> Result<()> {
        let Some(changed) = changes.attrs.get(&ino) else { return Ok(()) };
        let take = |left: usize| left.checked_sub(1);
        if self.reads_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            return Ok(());
        }
        let ReadInodes { before, after } = &mut changes.read;
        if let Some(attr) = &changed.before {
            before.extend(read_small_inode(self.base, ino, attr)?.map(|record| (ino, record)));
        }
        if let Some(attr) = &changed.after {
            after.extend(read_small_inode(&self.tree, ino, attr)?.map(|record| (ino, record)));
        }
        Ok(())
    }
}

impl SideChanges {
    fn new(walk: &SideWalk<'_>) -> Result<Self> {
        let tree = walk.volume.open_tree(walk.side.root);
        // Kept for the result, whose new files are numbered above those of both sides.
        let next_ino = read_next_number(walk.volume, &tree)?;
        Ok(Self { id: walk.side.id, tree, next_ino, keys: ChangedKeys::default() })
    }
}

impl ChangedKeys {
    /// Adds those of the next span.
    fn append(&mut self, mut next: Self) {
        self.attrs.append(&mut next.attrs);
        self.read.before.extend(next.read.before);
        self.read.after.extend(next.read.after);
        self.contents.append(&mut next.contents);
        self.removed.append(&mut next.removed);
        self.added.append(&mut next.added);
    }

    fn record_change(
        &mut self,
        key: MapKeyRef<'_>,
        before: Option<&[u8]>,
        after: Option<&[u8]>,
    ) -> std::result::Result<(), vellum_types::DecodeError> {
        match key {
            MapKeyRef::Attr(Ino::SUPER) => {
                // The counters of both sides are read for themselves. Here it only has to decode.
                before.or(after).map(SuperBlock::decode).transpose()?;
            }
            MapKeyRef::Attr(ino) => {
                let before = before.map(InodeAttr::decode_published).transpose()?;
                let after = after.map(InodeAttr::decode_published).transpose()?;
                self.attrs.insert(ino, ChangedAttr { before, after });
            }
            MapKeyRef::Dentry(dir, name) => {
                for (value, list) in [(before, &mut self.removed), (after, &mut self.added)] {
                    if let Some(value) = value {
                        let dentry = Dentry::decode(value)?;
                        list.push(NamedInode { dir, name: name.to_vec(), dentry });
                    }
                }
            }
            MapKeyRef::Xattr(ino, _) | MapKeyRef::Extent(ino, _) => {
                // Only that something differs is kept: the versions are read when they are merged.
                self.contents.insert(ino);
            }
        }
        Ok(())
    }
}

/// The first number that a tree did not give out; the empty map has given out that of the root.
pub(super) fn read_next_number(volume: &Volume, tree: &FsTree) -> Result<Ino> {
    if tree.map_view().base == volume.empty_root() {
        return Ok(Ino(Ino::ROOT.0 + 1));
    }
    Ok(tree.read_super_block()?.next_ino)
}

/// An inode without its directory entries, which may be many.
pub(super) fn read_inode_itself(tree: &FsTree, ino: Ino) -> Result<InodeRecord> {
    let attr = tree.expect_inode_attr(ino)?;
    Ok(tree.read_inode_parts(ino, attr, |_| true)?.0)
}

/// The same, given its attributes; None if it has many extended attributes and extents.
fn read_small_inode(tree: &FsTree, ino: Ino, attr: &InodeAttr) -> Result<Option<InodeRecord>> {
    let is_small = |read: &InodeRecord| read.xattrs.len() + read.extents.len() < PARTS_READ_MAX;
    let (record, is_whole) = tree.read_inode_parts(ino, attr.clone(), is_small)?;
    Ok(is_whole.then_some(record))
}
