//! Sessions of processes that read a snapshot for long: what they read stays, whatever is forgotten meanwhile.
//!
//! Protocol: a reader puts its session, which names the tree, and then looks whether the snapshot is still there. The
//! collector lists the records of snapshots, and then the sessions. So the record is listed; or the snapshot was forgotten
//! before, and then the session is listed, or the reader notices that the snapshot is gone.

use std::collections::HashSet;

use vellum_host::escape::EscapedPath;
use vellum_host::process::process_scope;
use vellum_map::MapRoot;
use vellum_types::SnapshotId;

use super::others::{list_sessions, read_session};
use super::{PREFIX, SessionClaim, SessionObject};
use crate::error::{Result, VolumeError};
use crate::history::list_history;
use crate::volume::Volume;

/// A process that reads a tree, as its session says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeReader {
    /// The tree.
    pub root: MapRoot,
    /// The machine that it runs on.
    pub host: String,
    /// Its number there.
    pub pid: u32,
    /// Whether that is this machine, and the number means something here.
    pub is_here: bool,
}

impl std::fmt::Display for TreeReader {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.is_here {
            true => write!(formatter, "process {}", self.pid),
            // What another machine wrote there is shown to somebody.
            false => write!(formatter, "process {} on {}", self.pid, EscapedPath(self.host.as_bytes())),
        }
    }
}

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

impl Volume {
    /// Returns the processes that read a tree: of snapshots that are viewed or mounted, and of worktrees that are followed.
    /// Those of other machines count, too, until they end or were not renewed for [`super::LEASE`].
    pub fn list_tree_readers(&self) -> Result<Vec<TreeReader>> {
        let sessions =
            list_sessions(&*self.objects, &self.keys)?.into_iter().filter_map(|other| other.session.ok());
        let living = sessions.filter(|session| !session.is_process_dead() && !session.is_expired());
        let reader = |session: SessionObject| {
            let is_here = session.scope == process_scope();
            let root = session.reading?;
            Some(TreeReader { root, host: session.host, pid: session.pid, is_here })
        };
        Ok(living.filter_map(reader).collect())
    }

    /// Returns a snapshot of these whose tree somebody reads, and no snapshot besides these has. With it gone, what is read
    /// would be in no history any more.
    pub fn find_read_snapshot(&self, ids: &[SnapshotId]) -> Result<Option<(SnapshotId, TreeReader)>> {
        let readers = self.list_tree_readers()?;
        // Nearly always nobody reads anything, and no record is looked at.
        if readers.is_empty() {
            return Ok(None);
        }
        let staying: HashSet<MapRoot> = list_history(&self.catalog)?
            .into_iter()
            .filter(|entry| !ids.contains(&entry.id))
            .map(|entry| entry.record.root)
            .collect();
        for id in ids {
            let root = self.catalog.get_record(id)?.root;
            let reader = readers.iter().find(|reader| reader.root == root && !staying.contains(&root));
            if let Some(reader) = reader {
                return Ok(Some((*id, reader.clone())));
            }
        }
        Ok(None)
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
