//! Sessions of processes that read a snapshot for long: what they read stays, whatever is forgotten meanwhile.
//!
//! Protocol: a reader puts its session, which names the tree, and then looks whether the snapshot is still there. The
//! collector lists the records of snapshots, and then the sessions. So the record is listed; or the snapshot was forgotten
//! before, and then the session is listed, or the reader notices that the snapshot is gone.

use vellum_map::MapRoot;
use vellum_types::SnapshotId;

use super::others::read_session;
use super::{PREFIX, SessionClaim};
use crate::error::{Result, VolumeError};
use crate::volume::Volume;

/// Keeps the tree of a snapshot from being collected until it is dropped.
pub struct ReadSession {
    claim: SessionClaim,
}

impl ReadSession {
    /// Renews the session if it is due; to be called regularly. Fails with [`VolumeError::SessionLost`] if another process
    /// ended it.
    pub fn renew_if_due(&self) -> Result<()> {
        self.claim.renew_if_due()
    }
}

impl Volume {
    /// Begins to read a snapshot. Fails with [`VolumeError::MissingRecord`] if it was forgotten.
    pub fn begin_read_session(&self, id: SnapshotId) -> Result<ReadSession> {
        let root = self.catalog.get_record(&id)?.root;
        let claim = SessionClaim::claim_as_reader(self, root)?;
        // The record that was read above may be this machine's copy.
        if self.catalog.has_snapshot(&id)? {
            Ok(ReadSession { claim })
        } else {
            Err(VolumeError::MissingRecord(id))
        }
    }
}

impl Volume {
    /// Returns the top node of what a worktree has in the store now; None: nothing was published yet. Fails with
    /// [`VolumeError::NoSuchRef`] if there is no such worktree.
    pub fn read_published_root(&self, worktree: &str) -> Result<Option<MapRoot>> {
        let head = self.read_worktree_head(worktree)?;
        let head = head.ok_or_else(|| VolumeError::no_worktree(worktree))?;
        Ok(match (head.live, head.head) {
            (Some(live), _) => Some(live.root),
            (None, Some(snapshot)) => Some(self.catalog.get_record(&snapshot)?.root),
            (None, None) => None,
        })
    }

    /// Begins to read what a worktree has in the store. Returns no session if that is another tree by now than `root`,
    /// which was read before: the collector may have missed the session.
    pub fn begin_published_session(&self, worktree: &str, root: MapRoot) -> Result<Option<ReadSession>> {
        let claim = SessionClaim::claim_as_reader(self, root)?;
        // The collector reads the refs, and then the sessions: if the ref has the tree after the session was put, either of
        // both is found.
        let is_current = self.read_published_root(worktree)? == Some(root);
        Ok(is_current.then_some(ReadSession { claim }))
    }
}

/// Returns the trees that processes read. A session that cannot be read counts as a writer's, and names no tree.
pub(crate) fn list_read_trees(volume: &Volume) -> Result<Vec<MapRoot>> {
    let mut trees = Vec::new();
    for key in volume.objects.list_keys(PREFIX)? {
        // One that cannot be read names no tree. It counts as that of a writer, for which a collection waits.
        let found = read_session(&*volume.objects, &volume.keys, key)?.and_then(|found| found.session.ok());
        trees.extend(found.filter(|session| !session.is_process_dead()).and_then(|session| session.reading));
    }
    Ok(trees)
}

/// Ends the sessions of readers that are over: of those that died elsewhere, nobody else does.
pub(crate) fn end_expired_readers(volume: &Volume, own: &SessionClaim) -> Result<()> {
    // Most stores have no other session, and need not be asked for times.
    if volume.objects.list_keys(PREFIX)?.len() < 2 {
        return Ok(());
    }
    for other in own.list_other_sessions()? {
        if other.is_reader() && other.is_session_over() {
            // One that is renewed at this moment stays.
            other.remove_if_unrenewed(&*volume.objects)?;
        }
    }
    Ok(())
}
