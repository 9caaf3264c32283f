//! How two inodes differ, and what files of equal content have in common. Nothing here reads a tree.

use std::hash::BuildHasher;

use vellum_types::{Extent, FileKind};

use super::ChangeAspects;
use crate::tree::InodeRecord;

/// Returns in which respects two inodes differ. A directory's modification time follows from its entries, and is not
/// compared.
#[must_use]
pub fn compare_inodes(old: &InodeRecord, new: &InodeRecord) -> ChangeAspects {
    let a = &old.attr;
    let b = &new.attr;
    let is_dir = a.kind == FileKind::Dir && b.kind == FileKind::Dir;
    let extents_differ = !is_dir && !has_same_content(old, new);
    ChangeAspects {
        content: extents_differ || a.target != b.target || a.rdev != b.rdev,
        kind: a.kind != b.kind,
        mode: a.mode != b.mode,
        owner: (a.uid, a.gid) != (b.uid, b.gid),
        time: !is_dir && a.mtime != b.mtime,
        xattr: old.xattrs != new.xattrs,
    }
}

fn has_same_content(old: &InodeRecord, new: &InodeRecord) -> bool {
    old.attr.size == new.attr.size && old.attr.inline == new.attr.inline && old.extents == new.extents
}

/// Returns a number that is equal for files of equal kind and content, as [`compare_inodes`] compares them.
pub(crate) fn hash_content(inode: &InodeRecord, hasher: &impl BuildHasher) -> u64 {
    let attr = &inode.attr;
    hasher.hash_one((attr.kind, attr.size, &attr.inline, &attr.target, attr.rdev, &inode.extents))
}

/// What equal content has in common; None for empty files, which all have.
pub(super) fn content_signature(inode: &InodeRecord) -> Option<Vec<u8>> {
    if inode.attr.size == 0 {
        return None;
    }
    // The size is a part of it: files that end in holes of different lengths can have equal extents.
    let mut signature = inode.attr.size.to_le_bytes().to_vec();
    match &inode.attr.inline {
        Some(content) => signature.extend_from_slice(content),
        None => {
            for (offset, extent) in &inode.extents {
                signature.extend_from_slice(&offset.to_le_bytes());
                signature.extend_from_slice(&Extent::encode(extent));
            }
        }
    }
    Some(signature)
}
