//! What is read and does not change: snapshots, and views of the moment.

use std::sync::Arc;
use std::time::SystemTime;

use vellum_fs::pending::PendingSnapshot;
use vellum_types::{Dentry, SnapshotId};
use vellum_volume::{SnapshotRecord, SnapshotStatistics};

use crate::metadata::to_system_time;
use crate::paths::PathReader;
use crate::source::{OpenLiveWorktree, OpenedView, ReadSource};
use crate::tree::{Tree, sealed::RootedTree};

/// The worktree as it was when [`crate::Worktree::open_view`] was called. It is in memory alone: it ends when it is
/// dropped, and with the process.
///
/// What a view shows is kept by the worktree. A collection of garbage by another process does not know of views: what
/// must outlast one is for a snapshot.
#[derive(Clone)]
pub struct WorktreeView {
    reader: PathReader,
}

/// A snapshot, open to be read.
#[derive(Clone)]
pub struct Snapshot {
    reader: PathReader,
    info: Arc<SnapshotInfo>,
}

/// What is known of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its id.
    pub id: SnapshotId,
    /// What was said of it.
    pub note: String,
    /// Its tags.
    pub tags: Vec<String>,
    /// When it was made.
    pub time: SystemTime,
    /// The worktree that it is of.
    pub worktree: String,
    /// Who made it.
    pub author: String,
    /// Where.
    pub host: String,
    /// What it holds; None: it is durable, but not in the store yet, and not counted.
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

    /// What is known of it.
    #[must_use]
    pub fn info(&self) -> &SnapshotInfo {
        &self.info
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> SnapshotId {
        self.info.id
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
    /// Of one in the store, of which the tags are among all tags.
    pub(crate) fn from_published(
        id: SnapshotId,
        record: &SnapshotRecord,
        tags: &[(String, SnapshotId)],
    ) -> Self {
        let tags = tags.iter().filter(|(_, target)| *target == id).map(|(name, _)| name.clone());
        Self { statistics: Some(record.statistics), ..Self::from_record(id, record, tags.collect()) }
    }

    /// Of one that is not in the store yet.
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
