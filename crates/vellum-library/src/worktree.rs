//! A live worktree: its files, its snapshots, and its cache.

use std::ops::Deref;
use std::sync::Arc;

use vellum_fs::history::pending::PendingSnapshot;
use vellum_fs::history::snapshot::{LiveSnapshotRequest, UnpublishedChanges};
use vellum_fs::tree::cache::CacheStatistics;
use vellum_types::SnapshotId;
use vellum_volume::history::list_history;
use vellum_volume::refs::check_ref_name;
use vellum_volume::{SnapshotOrigin, VolumeError};

use crate::dir::Dir;
use crate::error::Result;
use crate::inodes::TreeInodes;
use crate::live::remove_live_state_dir;
use crate::paths::PathReader;
use crate::snapshot::{Snapshot, SnapshotInfo, WorktreeView};
use crate::source::{OpenLiveWorktree, OpenedView, ReadSource};

/// A live worktree. It has all operations of a [`Dir`], relative to its root. It can be cloned, and shared among
/// threads.
///
/// It stays open as long as a file, a view or a directory of it exists. Everything that was written is there when it
/// is opened again, even after the process was killed. It survives a power cut after [`Worktree::sync`], or when it
/// is a few seconds old. A background thread publishes it to the store.
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

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.live_worktree().claim.worktree_name()
    }

    /// Returns the root directory of the worktree.
    #[must_use]
    pub fn root(&self) -> &Dir {
        &self.dir
    }

    /// Returns its inodes, by number.
    #[must_use]
    pub fn inodes(&self) -> TreeInodes {
        TreeInodes::new(ReadSource::Live(self.live_worktree().clone()))
    }

    /// Opens a view: the worktree as it is now, readable while the worktree changes. This costs some memory and no
    /// write.
    pub fn open_view(&self) -> Result<WorktreeView> {
        let live = self.live_worktree();
        Ok(WorktreeView::new(live.fs.open_view()?, live))
    }

    /// Makes a snapshot. When this returns, the snapshot survives a power cut; it is published to the store in the
    /// background.
    pub fn create_snapshot(&self, note: &str) -> Result<SnapshotId> {
        self.create_snapshot_with_tags(note, &[])
    }

    /// Like [`Worktree::create_snapshot`], with tags.
    pub fn create_snapshot_with_tags(&self, note: &str, tags: &[&str]) -> Result<SnapshotId> {
        // Checked first: once the snapshot exists, a tag that is refused could only be dropped.
        tags.iter().try_for_each(|tag| check_ref_name(tag))?;
        let tags = tags.iter().map(|tag| (*tag).into()).collect();
        let request = LiveSnapshotRequest { note: note.into(), tags, origin: SnapshotOrigin::User };
        let id = self.live_worktree().fs.create_snapshot(&request)?;
        self.live_worktree().publisher.request_publish();
        Ok(id)
    }

    /// Lists all snapshots of this worktree, oldest first, including those that are not published yet.
    pub fn list_snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        let fs = &self.live_worktree().fs;
        // These first: what is published in between is then found twice, and not missed.
        let waiting = fs.live_map().pending_snapshots()?;
        let tags = fs.volume().list_tags()?;
        let published = list_history(&fs.volume().catalog)?;
        let mut found: Vec<SnapshotInfo> = published
            .iter()
            .rev()
            .filter(|entry| entry.record.worktree == self.name())
            .map(|entry| SnapshotInfo::from_published(entry.id, &entry.record, &tags))
            .collect();
        // They come after all that are published, in this order.
        for (_, pending) in &waiting {
            if !found.iter().any(|info| info.id == pending.id) {
                found.push(SnapshotInfo::from_pending(pending));
            }
        }
        Ok(found)
    }

    /// Opens a snapshot of the volume, published or not. It is given by its id, leading digits of it, a tag, or
    /// `HEAD`, the current snapshot of this worktree; each can be followed by `~N`.
    pub fn open_snapshot(&self, text: &str) -> Result<Snapshot> {
        let live = self.live_worktree();
        let info = self.find_snapshot_info(text)?;
        let source = ReadSource::View(OpenedView::new(live.fs.open_snapshot_view(info.id)?, live));
        Ok(Snapshot::new(PathReader::new(source), info))
    }

    /// Resolves the name of a snapshot, published or not. `HEAD` is the current snapshot of this worktree.
    fn find_snapshot_info(&self, text: &str) -> Result<SnapshotInfo> {
        let fs = &self.live_worktree().fs;
        let (base, steps) = split_steps(text);
        // The head first: what it stands on either waits afterwards, or is in the store.
        let head = fs.live_map().lock_head().snapshot.as_ref().map(|last| last.id);
        let waiting = fs.live_map().pending_snapshots()?;
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
        // Not reached: the last round returns in either way.
        self.find_published_snapshot(text)
    }

    /// Resolves the name of a published snapshot.
    fn find_published_snapshot(&self, text: &str) -> Result<SnapshotInfo> {
        let volume = self.live_worktree().fs.volume();
        let entry = volume.resolve_snapshot(text)?;
        Ok(SnapshotInfo::from_published(entry.id, &entry.record, &volume.list_tags()?))
    }

    /// Restores a snapshot, at once. Changes that no snapshot holds are saved in a safety snapshot first, whose id is
    /// returned. Views do not change. Open files keep their position, not their content.
    pub fn restore_snapshot(&self, text: &str) -> Result<Option<SnapshotId>> {
        Ok(self.live_worktree().fs.restore_snapshot(self.find_snapshot_info(text)?.id, false)?)
    }

    /// Like [`Worktree::restore_snapshot`], but discards changes that no snapshot holds.
    pub fn restore_discarding_changes(&self, text: &str) -> Result<()> {
        self.live_worktree().fs.restore_snapshot(self.find_snapshot_info(text)?.id, true)?;
        Ok(())
    }

    /// Returns whether anything was changed since the last snapshot.
    pub fn is_changed(&self) -> Result<bool> {
        Ok(self.live_worktree().fs.is_changed()?)
    }

    /// Waits until all changes survive a power cut of this machine.
    pub fn sync(&self) -> Result<()> {
        Ok(self.live_worktree().fs.content().sync_all()?)
    }

    /// Waits until everything is published, including snapshots.
    pub fn flush(&self) -> Result<()> {
        Ok(self.live_worktree().fs.publisher().publish_all()?)
    }

    /// Removes the worktree with what it has on this machine, and gives up what is not published; published snapshots stay.
    /// Whatever is open in it fails from then on.
    pub fn discard(&self) -> Result<()> {
        let live = self.live_worktree();
        // The ref first: from then on nothing of it is published, and a process that is killed here leaves a directory that
        // no worktree names.
        live.leaving.tenure.remove_worktree()?;
        Ok(remove_live_state_dir(live.claim.dir())?)
    }

    /// Returns what is not published yet.
    pub fn unpublished_changes(&self) -> Result<UnpublishedChanges> {
        Ok(self.live_worktree().fs.unpublished_changes()?)
    }

    /// Returns why the last background publishing failed; `None` if it did not.
    #[must_use]
    pub fn publishing_failure(&self) -> Option<String> {
        self.live_worktree().publisher.last_failure()
    }

    /// Returns statistics of the cache of inodes and names.
    #[must_use]
    pub fn cache_statistics(&self) -> CacheStatistics {
        self.live_worktree().fs.live_map().inode_cache().statistics()
    }

    /// Sets the size of the cache of inodes and names, in bytes.
    pub fn resize_cache(&self, bytes: usize) {
        self.live_worktree().fs.live_map().inode_cache().set_capacity(bytes);
    }

    /// Empties the cache of inodes and names.
    pub fn clear_cache(&self) {
        self.live_worktree().fs.live_map().inode_cache().clear_all();
    }
}

/// Minimum number of digits of an id: fewer could name a snapshot by chance.
const ID_PREFIX_MIN: usize = 8;

/// The name of the current snapshot of the worktree.
const HEAD: &str = "HEAD";

/// Splits a text into the name that it begins with and the number of ancestors to go back.
fn split_steps(text: &str) -> (&str, u64) {
    match text.rsplit_once('~') {
        Some((base, "")) => (base, 1),
        // What is no number is reported where the whole text is resolved.
        Some((base, steps)) => steps.parse().map_or((text, 0), |steps| (base, steps)),
        None => (text, 0),
    }
}

fn unresolved_error(text: &str, reason: &'static str) -> VolumeError {
    VolumeError::NoSnapshotThere { text: text.into(), reason }
}
