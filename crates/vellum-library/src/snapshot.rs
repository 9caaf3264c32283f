//! Immutable trees: snapshots and views.

use std::sync::Arc;
use std::time::SystemTime;

use vellum_fs::history::pending::PendingSnapshot;
use vellum_types::{Dentry, Ino, SnapshotId};
use vellum_volume::{SnapshotRecord, SnapshotStatistics};

use crate::error::Error;
use crate::inodes::TreeInodes;
use crate::metadata::{Metadata, to_system_time};
use crate::paths::PathReader;
use crate::source::{OpenLiveWorktree, OpenedView, ReadSource};
use crate::tree::{Tree, sealed::RootedTree};

/// A view: the worktree as it was when [`crate::Worktree::open_view`] was called. It exists in memory only and ends
/// when it is dropped, or with the process.
///
/// The worktree keeps what a view shows. Garbage collection by another process does not know of views: to protect a
/// state beyond the process, take a snapshot.
#[derive(Clone)]
pub struct WorktreeView {
    reader: PathReader,
}

/// A snapshot, opened for reading.
#[derive(Clone)]
pub struct Snapshot {
    reader: PathReader,
    info: Arc<SnapshotInfo>,
}

/// The record of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its id.
    pub id: SnapshotId,
    /// Its note.
    pub note: String,
    /// Its tags.
    pub tags: Vec<String>,
    /// When it was created.
    pub time: SystemTime,
    /// The worktree from which it was made.
    pub worktree: String,
    /// Its author.
    pub author: String,
    /// The host on which it was made.
    pub host: String,
    /// Numbers of its content. `None`: it is durable, but not published yet, so they are not known.
    pub statistics: Option<SnapshotStatistics>,
}

impl WorktreeView {
    pub(crate) fn new(view: vellum_fs::LiveView, live: &Arc<OpenLiveWorktree>) -> Self {
        Self { reader: PathReader::new(ReadSource::View(OpenedView::new(view, live))) }
    }
}

impl RootedTree for WorktreeView {
    fn reader(&self) -> &PathReader {
        &self.reader
    }

    fn with_root(&self, root: Dentry) -> Self {
        Self { reader: self.reader.with_root(root) }
    }
}

impl Tree for WorktreeView {}

impl Snapshot {
    pub(crate) fn new(reader: PathReader, info: SnapshotInfo) -> Self {
        Self { reader, info: Arc::new(info) }
    }

    /// Opens a snapshot that is in the store. It is read from the store alone, so that no lock and no lease is needed.
    pub(crate) fn open_published(volume: &vellum_volume::Volume, text: &str) -> crate::Result<Self> {
        let entry = volume.resolve_snapshot(text)?;
        let info = SnapshotInfo::from_published(entry.id, &entry.record, &volume.list_tags()?);
        let source = ReadSource::Frozen(Arc::new(volume.open_tree(entry.record.root)));
        Ok(Self::new(PathReader::new(source), info))
    }

    /// Returns its record.
    #[must_use]
    pub fn info(&self) -> &SnapshotInfo {
        &self.info
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> SnapshotId {
        self.info.id
    }

    /// Returns its inodes, by number. They are those of the whole snapshot, also if this is rooted at a directory of it.
    #[must_use]
    pub fn inodes(&self) -> TreeInodes {
        TreeInodes::new(self.reader.source.clone())
    }

    /// Returns the attributes of an entry by the inode number that a listing of this snapshot had for it, without looking up
    /// its path again. Does not follow a symlink. The number may be that of an entry outside of the directory at which this
    /// is rooted, so it has to come from a listing. Fails if the snapshot has no such inode.
    pub fn stat_inode(&self, ino: u64) -> crate::Result<Metadata> {
        let at = Ino(ino);
        let found = self.reader.source.state().inode_attr(at);
        found
            .map(|attr| Metadata::new(at, attr))
            .map_err(Error::for_action("stat the inode", ino.to_string().as_bytes()))
    }
}

impl RootedTree for Snapshot {
    fn reader(&self) -> &PathReader {
        &self.reader
    }

    fn with_root(&self, root: Dentry) -> Self {
        Self { reader: self.reader.with_root(root), info: self.info.clone() }
    }
}

impl Tree for Snapshot {}

impl SnapshotInfo {
    /// For a published snapshot; its tags are searched in `tags`.
    pub(crate) fn from_published(
        id: SnapshotId,
        record: &SnapshotRecord,
        tags: &[(String, SnapshotId)],
    ) -> Self {
        let tags = tags.iter().filter(|(_, target)| *target == id).map(|(name, _)| name.clone());
        // Only a published record has them: they are counted while the content is written to the store.
        Self { statistics: Some(record.statistics), ..Self::from_record(id, record, tags.collect()) }
    }

    /// For a snapshot that is not published yet.
    pub(crate) fn from_pending(pending: &PendingSnapshot) -> Self {
        Self::from_record(pending.id, &pending.record, pending.tags.clone())
    }

    fn from_record(id: SnapshotId, record: &SnapshotRecord, tags: Vec<String>) -> Self {
        Self {
            id,
            note: record.note.clone(),
            tags,
            time: to_system_time(record.time),
            worktree: record.worktree.clone(),
            author: record.author.clone(),
            host: record.host.clone(),
            statistics: None,
        }
    }
}
