//! The different contents that a path had: one row for each, however many snapshots have it.
//!
//! Each snapshot is asked for the path alone: neighbours share nearly all nodes, so that one which changed something else
//! costs its top node and the look-up of the path.

use vellum_types::{BlobId, FileKind, SnapshotId, UnixTime};
use vellum_volume::history::{AncestorWalk, HistoryEntry};
use vellum_volume::tree::InodeRecord;
use vellum_volume::{FsTree, VolumeError};

use crate::content_id::{ContentId, compute_content_id};
use crate::error::Result;
use crate::volume::Volume;

/// A path with everything that a snapshot records about it.
#[derive(Debug, Clone)]
pub struct PathRecord {
    /// The inode.
    pub inode: InodeRecord,
    /// What equal contents have in common.
    pub content: ContentId,
}

/// A content that a path had in consecutive snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathVersion {
    /// The newest of these snapshots.
    pub last: SnapshotId,
    /// The oldest of them: the one that made it so.
    pub first: SnapshotId,
    /// When the oldest was made.
    pub first_time: UnixTime,
    /// When the newest was made.
    pub last_time: UnixTime,
    /// How many they are.
    pub count: u64,
    /// The kind of file.
    pub kind: FileKind,
    /// Bytes of content.
    pub size: u64,
    /// What it contains.
    pub content: ContentId,
}

/// The versions of a path, newest first, found as far as they are asked for.
pub struct PathVersions<'a> {
    volume: &'a Volume,
    path: Vec<u8>,
    entries: AncestorWalk<'a>,
    /// The tree that was looked into last, and what the path was there.
    seen: Option<(BlobId, Option<FoundContent>)>,
    current: Option<PathVersion>,
}

#[derive(Debug, Clone, Copy)]
struct FoundContent {
    kind: FileKind,
    size: u64,
    content: ContentId,
}

impl Volume {
    /// Returns what a snapshot records about a path; no symlink is followed.
    pub fn read_path(&self, snapshot: SnapshotId, path: &[u8]) -> Result<PathRecord> {
        let entry = self.inner().resolve_snapshot(&snapshot.to_string())?;
        let tree = self.inner().open_tree(entry.record.root);
        let (ino, _) = tree.find_path(path, &format!("in {snapshot}"))?;
        let inode = tree.read_inode(ino)?;
        Ok(PathRecord { content: compute_content_id(&self.inner().keys, &inode), inode })
    }

    /// Returns the versions of a path in a snapshot and those before it, newest first. A version ends where the path had
    /// another content, or was not there.
    pub fn path_versions(&self, path: &[u8], newest: SnapshotId) -> Result<PathVersions<'_>> {
        // One that was made since the last listing is listed by this; the walk passes over what is not listed.
        let newest = self.inner().resolve_snapshot(&newest.to_string())?.id;
        let entries = AncestorWalk::from_heads(&self.inner().catalog, [newest])?;
        Ok(PathVersions { volume: self, path: path.into(), entries, seen: None, current: None })
    }

    fn find_content(&self, tree: &FsTree, path: &[u8]) -> Result<Option<FoundContent>> {
        // Without a place, because its message is not shown: here a missing path is an answer.
        let ino = match tree.find_path(path, "") {
            Ok((ino, _)) => ino,
            Err(VolumeError::NoSuchPath { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let inode = tree.read_inode(ino)?;
        let content = compute_content_id(&self.inner().keys, &inode);
        Ok(Some(FoundContent { kind: inode.attr.kind, size: inode.attr.size, content }))
    }
}

impl PathVersions<'_> {
    /// Looks at one more snapshot; returns the version that it ends, if it ends one.
    fn look_at(&mut self, entry: &HistoryEntry) -> Result<Option<PathVersion>> {
        let root = entry.record.root;
        let found = match self.seen {
            // Equal roots are equal trees: the path is looked up only where something has changed.
            Some((seen, found)) if seen == root.0 => found,
            _ => self.volume.find_content(&self.volume.inner().open_tree(root), &self.path)?,
        };
        self.seen = Some((root.0, found));
        // Where the path is missing, a version ends: if the same content comes back later, that is another one.
        let Some(found) = found else { return Ok(self.current.take()) };
        match &mut self.current {
            Some(current) if current.content == found.content => {
                current.first = entry.id;
                current.first_time = entry.record.time;
                current.count += 1;
                Ok(None)
            }
            current => Ok(current.replace(PathVersion {
                last: entry.id,
                first: entry.id,
                first_time: entry.record.time,
                last_time: entry.record.time,
                count: 1,
                kind: found.kind,
                size: found.size,
                content: found.content,
            })),
        }
    }
}

impl Iterator for PathVersions<'_> {
    type Item = Result<PathVersion>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(entry) = self.entries.next() {
            match entry.map_err(Into::into).and_then(|entry| self.look_at(&entry)) {
                Ok(None) => {}
                Ok(Some(version)) => return Some(Ok(version)),
                Err(error) => return Some(Err(error)),
            }
        }
        self.current.take().map(Ok)
    }
}
