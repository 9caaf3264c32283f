//! What one side of a merge changed, as the two trees say it: inodes, names and content, under the numbers of each.
//!
//! Equal subtrees are not read. Nothing here decides anything.

use std::collections::{BTreeMap, BTreeSet};

use vellum_map::{KeySpan, MapRoot, diff_maps};
use vellum_types::value::SuperBlock;
use vellum_types::{Dentry, Extent, Ino, InodeAttr, MapKey, MapKeyRef, MapKeyTag, SnapshotId};

use crate::error::{Result, VolumeError};
use crate::tree::{FsTree, InodeRecord};
use crate::volume::Volume;

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

/// One side, and how it differs from the base.
pub(super) struct SideChanges {
    pub id: SnapshotId,
    pub tree: FsTree,
    pub next_ino: Ino,
    pub attrs: BTreeMap<Ino, ChangedAttr>,
    /// Inodes whose extended attributes or extents differ.
    pub contents: BTreeSet<Ino>,
    pub removed: Vec<NamedInode>,
    pub added: Vec<NamedInode>,
}

impl SideChanges {
    /// Compares a side with the base.
    pub fn collect(volume: &Volume, base: &MapRoot, side: super::MergeSide) -> Result<Self> {
        let tree = volume.open_tree(side.root);
        // Kept for the result, whose new files are numbered above those of both sides.
        let next_ino = read_next_number(volume, &tree)?;
        let mut changes = Self {
            id: side.id,
            tree,
            next_ino,
            attrs: BTreeMap::new(),
            contents: BTreeSet::new(),
            removed: Vec::new(),
            added: Vec::new(),
        };
        for change in diff_maps(&*volume.nodes, base, &side.root) {
            let change = change?;
            let before = change.before.as_deref();
            let after = change.after.as_deref();
            MapKeyRef::parse(&change.key)
                .and_then(|key| changes.record_change(key, before, after))
                .map_err(VolumeError::wrap_decode_error("a changed part of the tree"))?;
        }
        Ok(changes)
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
    let mut record = InodeRecord { ino, attr, entries: Vec::new(), xattrs: Vec::new(), extents: Vec::new() };
    // Of an inode's keys, the entries come first after the attributes: the scan begins behind them.
    let start = MapKey::first_for_tag(ino, MapKeyTag::Xattr);
    let end = MapKey::first_for_tag(Ino(ino.0.saturating_add(1)), MapKeyTag::Attr);
    let span = KeySpan::from_bounds(start.as_bytes(), end.as_bytes());
    for entry in tree.map_view().read_range(tree.nodes(), span)? {
        let entry = entry?;
        let key = MapKeyRef::parse(&entry.key);
        match key.map_err(VolumeError::wrap_decode_error("an inode of the tree"))? {
            MapKeyRef::Xattr(_, name) => record.xattrs.push((name.to_vec(), entry.value.to_vec())),
            MapKeyRef::Extent(_, offset) => {
                let extent = Extent::decode(&entry.value)
                    .map_err(VolumeError::wrap_decode_error("an extent of the tree"))?;
                record.extents.push((offset, extent));
            }
            MapKeyRef::Attr(_) | MapKeyRef::Dentry(..) => {}
        }
    }
    Ok(record)
}
