//! The changes that one inode makes in the tree.

use std::collections::{BTreeMap, BTreeSet};

use vellum_chunker::Chunker;
use vellum_map::read_range;
use vellum_types::{BlobId, FileKind, Ino, InodeAttr, MapKey, MapKeyRef};
use vellum_volume::{SnapshotStatistics, WriteSession};

use super::amend::extent_span;
use super::content::{PublishedContent, read_named_chunks, rechunk_file};
use super::run::{PublishJob, inode_tree_span};
use crate::content::ContentSource;
use crate::error::Result;
use crate::tree::head::LayeredState;
use crate::tree::{LiveMap, wrap_decode_error};

/// Sorted changes to the tree; None removes.
type TreeChanges = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// What is being published, and where to.
pub(super) struct Publication<'a> {
    pub map: &'a LiveMap,
    pub source: &'a ContentSource,
    pub state: &'a LayeredState,
    pub session: &'a WriteSession,
    pub chunker: &'a Chunker,
}

/// How the inode that the tree gets differs from that of the layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PublishedInode {
    /// It does not.
    AsItIs,
    /// Its extents are others, or its content is inline.
    Recut,
    /// It has no name, and is not there.
    Nameless,
}

/// What one inode changes in the tree.
pub(super) struct InodePublication {
    pub ino: Ino,
    pub changes: TreeChanges,
    /// How the tree's inode differs from that of the layers.
    pub result: PublishedInode,
    /// Chunks that the layers' inode names and the tree's does not.
    pub replaced_chunks: BTreeSet<BlobId>,
    before: Option<(FileKind, u64)>,
    after: Option<(FileKind, u64)>,
}

impl InodePublication {
    /// Adds what it changes in the statistics.
    pub fn add_to_statistics(&self, counted: &mut SnapshotStatistics) {
        // The filesystem's own record is no inode that anybody counts.
        if self.ino == Ino::SUPER {
            return;
        }
        counted.changed += 1;
        for (side, add) in [(self.before, false), (self.after, true)] {
            let Some((kind, size)) = side else { continue };
            let change = |number: &mut u64, by: u64| {
                *number = if add { number.saturating_add(by) } else { number.saturating_sub(by) };
            };
            match kind {
                FileKind::File => {
                    change(&mut counted.files, 1);
                    change(&mut counted.bytes, size);
                }
                FileKind::Dir => change(&mut counted.dirs, 1),
                _ => change(&mut counted.others, 1),
            }
        }
    }
}

impl Publication<'_> {
    /// Works out the changes of one inode, and stores its new chunks.
    pub fn publish_inode(&self, job: PublishJob) -> Result<InodePublication> {
        let ino = job.ino;
        let before = self.read_base_attr(ino)?;
        let outcome = |changes, result, after: Option<&InodeAttr>| InodePublication {
            ino,
            changes,
            result,
            replaced_chunks: BTreeSet::new(),
            before: before.as_ref().map(|attr| (attr.kind, attr.size)),
            after: after.map(|attr| (attr.kind, attr.size)),
        };
        if ino == Ino::SUPER {
            return Ok(outcome(select_plain_changes(&job, |_| true), PublishedInode::AsItIs, None));
        }
        // Not from the job: if only other keys changed, the attributes are in the base.
        let after = self.map.read_sealed_state(self.state, |view| view.inode_attr(ino))?;
        // What has no name is in no snapshot, though it may still be open.
        let Some(mut attr) = after else {
            return Ok(outcome(self.plan_removal(ino)?, PublishedInode::AsItIs, None));
        };
        if attr.nlink == 0 {
            let replaced_chunks =
                self.map.read_sealed_state(self.state, |view| read_named_chunks(view, ino))?;
            let removal = outcome(self.plan_removal(ino)?, PublishedInode::Nameless, None);
            return Ok(InodePublication { replaced_chunks, ..removal });
        }
        let is_extent = |key: &[u8]| matches!(MapKeyRef::parse(key), Ok(MapKeyRef::Extent(..)));
        let is_attr = |key: &[u8]| matches!(MapKeyRef::parse(key), Ok(MapKeyRef::Attr(..)));
        // A file of which only attributes changed keeps its extents as the base has them.
        let touched = job.changes.iter().any(|(key, _)| is_extent(key));
        let content = if touched && attr.kind == FileKind::File && attr.inline.is_none() {
            Some(self.map.read_sealed_state(self.state, |view| rechunk_file(self, view, ino, &attr))?)
        } else {
            None
        };
        let mut changes = select_plain_changes(&job, |key| !is_extent(key) && !is_attr(key));
        let mut extents: TreeChanges = Vec::new();
        let mut replaced_chunks = BTreeSet::new();
        if let Some(PublishedContent { inline, extents: new, chunking, replaced_chunks: replaced }) = content
        {
            replaced_chunks = replaced;
            (attr.inline, attr.chunking) = (inline, chunking);
            extents = self.compute_extent_changes(ino, new)?;
        } else if attr.inline.is_some() || attr.size == 0 {
            // Content that is inline, or empty, has no extents in the tree.
            extents = self.compute_extent_changes(ino, BTreeMap::new())?;
        }
        // At its place in the order of keys: attributes first, extents last.
        changes.insert(0, (MapKey::for_attr(ino).into_bytes(), Some(attr.encode())));
        changes.extend(extents);
        let result = if touched { PublishedInode::Recut } else { PublishedInode::AsItIs };
        Ok(InodePublication { replaced_chunks, ..outcome(changes, result, Some(&attr)) })
    }

    fn read_base_attr(&self, ino: Ino) -> Result<Option<InodeAttr>> {
        // What stands under this key are no attributes, and could not be decoded as such.
        if ino == Ino::SUPER {
            return Ok(None);
        }
        let value = vellum_map::get_value(
            &**self.map.node_provider(),
            &self.state.base,
            MapKey::for_attr(ino).as_bytes(),
        )?;
        value.map(|value| InodeAttr::decode(&value).map_err(wrap_decode_error("an inode"))).transpose()
    }

    /// Everything that the base has of an inode goes.
    fn plan_removal(&self, ino: Ino) -> Result<TreeChanges> {
        let mut changes = Vec::new();
        // Not what the layers say: they may have more of the inode than the base, and need not have all of it.
        for entry in read_range(&**self.map.node_provider(), &self.state.base, inode_tree_span(ino))? {
            changes.push((entry?.key.to_vec(), None));
        }
        Ok(changes)
    }

    /// From the extents that the base has to the new ones.
    fn compute_extent_changes(&self, ino: Ino, new: BTreeMap<Vec<u8>, Vec<u8>>) -> Result<TreeChanges> {
        let mut changes: BTreeMap<Vec<u8>, Option<Vec<u8>>> =
            new.into_iter().map(|(key, value)| (key, Some(value))).collect();
        for entry in read_range(&**self.map.node_provider(), &self.state.base, extent_span(ino))? {
            // If both have an extent at an offset, the new one counts.
            changes.entry(entry?.key.to_vec()).or_insert(None);
        }
        Ok(changes.into_iter().collect())
    }
}

/// The changes of a job as they are, of the keys that `wanted` takes.
fn select_plain_changes(job: &PublishJob, wanted: impl Fn(&[u8]) -> bool) -> TreeChanges {
    let changes = job.changes.iter().filter(|(key, _)| wanted(key));
    changes.map(|(key, value)| (key.clone(), value.as_ref().map(|value| value.to_vec()))).collect()
}
