//! A live worktree: its files, its snapshots, and what it keeps in memory.

use std::ops::Deref;
use std::sync::Arc;

use vellum_fs::cache::CacheStatistics;
use vellum_fs::pending::PendingSnapshot;
use vellum_fs::snapshot::{LiveSnapshotRequest, UnpublishedChanges};
use vellum_types::SnapshotId;
use vellum_volume::refs::check_ref_name;
use vellum_volume::{SnapshotOrigin, VolumeError};

use crate::dir::Dir;
use crate::error::Result;
use crate::paths::PathReader;
use crate::snapshot::{Snapshot, SnapshotInfo, WorktreeView};
use crate::source::{OpenLiveWorktree, OpenedView, ReadSource};

/// A live worktree. All that a [`Dir`] can do, it does from its root. It can be cloned, and shared among threads.
///
/// It stays open as long as something that was made from it does: a file, a view, a directory. What was written is
/// there when it is opened again, also after the process was killed; it survives a loss of power after
/// [`Worktree::sync`], or when it is some seconds old. A thread publishes it into the store from time to time.
#[derive(Clone)]
pub struct Worktree {
    dir: Dir,
}

impl Deref for Worktree {
    type Target = Dir;

    fn deref(&self) -> &Dir {
        &self.dir
    }
}

impl Worktree {
    pub(crate) fn new(live: Arc<OpenLiveWorktree>) -> Self {
        Self { dir: Dir::from_worktree_root(live) }
    }

    fn live_worktree(&self) -> &Arc<OpenLiveWorktree> {
        self.dir.live_worktree()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.live_worktree().claim.worktree_name()
    }

    /// The whole worktree as a directory.
    #[must_use]
    pub fn root(&self) -> &Dir {
        &self.dir
    }

    /// The worktree as it is now, to be read while it changes. It costs no more than some memory, and no write.
    pub fn open_view(&self) -> Result<WorktreeView> {
        let live = self.live_worktree();
        Ok(WorktreeView::new(live.fs.open_view()?, live))
    }

    /// Makes a snapshot. When this returns, it survives a loss of power; it is published into the store in the
    /// background.
    pub fn create_snapshot(&self, note: &str) -> Result<SnapshotId> {
        self.create_snapshot_with_tags(note, &[])
    }

    /// The same, with tags.
    pub fn create_snapshot_with_tags(&self, note: &str, tags: &[&str]) -> Result<SnapshotId> {
        tags.iter().try_for_each(|tag| check_ref_name(tag))?;
        let tags = tags.iter().map(|tag| (*tag).into()).collect();
        let request = LiveSnapshotRequest { note: note.into(), tags, origin: SnapshotOrigin::User };
        let id = self.live_worktree().fs.create_snapshot(&request)?;
        self.live_worktree().publisher.request_publish();
        Ok(id)
    }

    /// All snapshots of this worktree, the oldest first, those that are not in the store yet among them.
    pub fn list_snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        let fs = &self.live_worktree().fs;
        // These first: what is published in between is then found twice, and not missed.
        let waiting = fs.pending_snapshots()?;
        let tags = fs.volume().list_tags()?;
        let published = fs.volume().catalog.load_all_records()?;
        let mut found: Vec<SnapshotInfo> = published
            .iter()
            .filter(|(_, record)| record.worktree == self.name())
            .map(|(id, record)| SnapshotInfo::from_published(*id, record, &tags))
            .collect();
        for (_, pending) in &waiting {
            if !found.iter().any(|info| info.id == pending.id) {
                found.push(SnapshotInfo::from_pending(pending));
            }
        }
        found.sort_by_key(|info| (info.time, info.id));
        Ok(found)
    }

    /// Opens a snapshot of the volume, whether it is in the store yet or not: an id, the beginning of one, a tag, or
    /// `HEAD`, which is where this worktree stands; each may be followed by `~N`.
    pub fn open_snapshot(&self, text: &str) -> Result<Snapshot> {
        let live = self.live_worktree();
        let info = self.find_snapshot_info(text)?;
        let source = ReadSource::View(OpenedView::new(live.fs.open_snapshot_view(info.id)?, live));
        Ok(Snapshot::new(PathReader::new(source), info))
    }

    /// What a text names, be it in the store or not: `HEAD` is where this worktree stands.
    fn find_snapshot_info(&self, text: &str) -> Result<SnapshotInfo> {
        let fs = &self.live_worktree().fs;
        let (base, steps) = split_steps(text);
        // The head first: what it stands on either waits afterwards, or is in the store.
        let head = fs.live_map().lock_head().snapshot.as_ref().map(|last| last.id);
        let waiting = fs.pending_snapshots()?;
        let named = |pending: &&PendingSnapshot| {
            pending.tags.iter().any(|tag| tag == base)
                || base.len() >= ID_PREFIX_MIN && pending.id.to_string().starts_with(base)
        };
        let begin = match base {
            HEAD => Some(head.ok_or_else(|| unresolved_error(text, "none was made yet"))?),
            _ => waiting.iter().map(|(_, pending)| pending).find(named).map(|pending| pending.id),
        };
        let Some(mut at) = begin else { return self.find_published_snapshot(text) };
        for left in (0..=steps).rev() {
            let Some((_, pending)) = waiting.iter().find(|(_, pending)| pending.id == at) else {
                return self.find_published_snapshot(&format!("{at}~{left}"));
            };
            if left == 0 {
                return Ok(SnapshotInfo::from_pending(pending));
            }
            let parent = pending.record.parents.first();
            at = *parent.ok_or_else(|| unresolved_error(text, "the history is not that long"))?;
        }
        self.find_published_snapshot(text)
    }

    /// What a text names in the store.
    fn find_published_snapshot(&self, text: &str) -> Result<SnapshotInfo> {
        let volume = self.live_worktree().fs.volume();
        let entry = volume.resolve_snapshot(text)?;
        Ok(SnapshotInfo::from_published(entry.id, &entry.record, &volume.list_tags()?))
    }

    /// Lets the worktree be what a snapshot is, at once. What no snapshot holds is saved in one first, which is given.
    /// Views stay as they are; files that are open keep their place, not their content.
    pub fn restore_snapshot(&self, text: &str) -> Result<Option<SnapshotId>> {
        Ok(self.live_worktree().fs.restore_snapshot(self.find_snapshot_info(text)?.id, false)?)
    }

    /// The same, but that what no snapshot holds is lost.
    pub fn restore_discarding_changes(&self, text: &str) -> Result<()> {
        self.live_worktree().fs.restore_snapshot(self.find_snapshot_info(text)?.id, true)?;
        Ok(())
    }

    /// Whether anything was changed since the last snapshot.
    pub fn is_changed(&self) -> Result<bool> {
        Ok(self.live_worktree().fs.is_changed()?)
    }

    /// Waits until everything that was done survives a loss of power of this machine.
    pub fn sync(&self) -> Result<()> {
        Ok(self.live_worktree().fs.sync_all()?)
    }

    /// Waits until everything is in the store, snapshots too.
    pub fn flush(&self) -> Result<()> {
        Ok(self.live_worktree().fs.publish_all()?)
    }

    /// What is not in the store yet.
    pub fn unpublished_changes(&self) -> Result<UnpublishedChanges> {
        Ok(self.live_worktree().fs.unpublished_changes()?)
    }

    /// Why publishing in the background failed the last time; None if it did not.
    #[must_use]
    pub fn publishing_failure(&self) -> Option<String> {
        self.live_worktree().publisher.last_failure()
    }

    /// What the cache of inodes and names did and holds.
    #[must_use]
    pub fn cache_statistics(&self) -> CacheStatistics {
        self.live_worktree().fs.inode_cache().statistics()
    }

    /// Lets the cache of inodes and names hold so many bytes from now on.
    pub fn resize_cache(&self, bytes: usize) {
        self.live_worktree().fs.inode_cache().set_capacity(bytes);
    }

    /// Empties the cache of inodes and names.
    pub fn clear_cache(&self) {
        self.live_worktree().fs.inode_cache().clear_all();
    }
}

/// Fewer characters of an id name a snapshot by chance.
const ID_PREFIX_MIN: usize = 8;

/// The snapshot that the worktree stands on.
const HEAD: &str = "HEAD";

/// The name that a text begins with, and how many snapshots before it are meant.
fn split_steps(text: &str) -> (&str, u64) {
    match text.rsplit_once('~') {
        Some((base, "")) => (base, 1),
        Some((base, steps)) => steps.parse().map_or((text, 0), |steps| (base, steps)),
        None => (text, 0),
    }
}

fn unresolved_error(text: &str, reason: &'static str) -> VolumeError {
    VolumeError::NoSnapshotThere { text: text.into(), reason }
}
