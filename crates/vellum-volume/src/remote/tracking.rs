//! What the refs of a remote said when they were seen last: kept here, and asked without the network.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vellum_types::SnapshotId;

use super::Remote;
use crate::error::{Result, VolumeError};
use crate::refs::check_ref_name;
use crate::session::current_time;
use crate::state::StateDir;
use crate::volume::Volume;

const REFS_FILE: &str = "refs.json";

/// The refs of a remote as they were when they were seen last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteRefs {
    /// The snapshots on which its worktrees stood, by name.
    pub worktrees: BTreeMap<String, SnapshotId>,
    /// The snapshots that its tags named.
    pub tags: BTreeMap<String, SnapshotId>,
    /// When it was asked, seconds since 1970; none if that never succeeded.
    pub seen: Option<i64>,
}

/// [`RemoteRefs`] as a file: ids in hexadecimal.
#[derive(Default, Serialize, Deserialize)]
struct RemoteRefsFile {
    worktrees: BTreeMap<String, String>,
    tags: BTreeMap<String, String>,
    seen: Option<i64>,
}

impl RemoteRefs {
    /// The snapshot that a worktree stood on, or that a tag named.
    #[must_use]
    pub fn find_ref(&self, name: &str) -> Option<SnapshotId> {
        self.worktrees.get(name).or_else(|| self.tags.get(name)).copied()
    }

    /// What the refs of an open remote say now.
    pub fn read_from(remote: &Volume) -> Result<Self> {
        let heads = remote.list_worktrees()?.into_iter();
        let worktrees = heads.filter_map(|(name, head)| Some((name, head.head?))).collect();
        let tags = remote.list_tags()?.into_iter().collect();
        Ok(Self { worktrees, tags, seen: Some(current_time().secs) })
    }
}

impl RemoteRefs {
    /// These refs as far as their snapshots are known here; of the others, what they said before. What a name of a remote
    /// names is here.
    pub(super) fn limit_to_known(mut self, before: &Self, known: &[SnapshotId]) -> Self {
        limit_ids(&mut self.worktrees, &before.worktrees, known);
        limit_ids(&mut self.tags, &before.tags, known);
        self
    }
}

/// `known` is sorted.
fn limit_ids(
    found: &mut BTreeMap<String, SnapshotId>,
    before: &BTreeMap<String, SnapshotId>,
    known: &[SnapshotId],
) {
    // A pull that was interrupted has the refs and not all snapshots. A name that leads nowhere would be of no use.
    found.retain(|name, id| {
        if known.binary_search(id).is_ok() {
            return true;
        }
        let Some(old) = before.get(name) else { return false };
        *id = *old;
        true
    });
}

fn format_ids(ids: &BTreeMap<String, SnapshotId>) -> BTreeMap<String, String> {
    ids.iter().map(|(name, id)| (name.clone(), id.to_string())).collect()
}

/// Entries that are no ids are left out: the file is a note of what was seen, and is written again by the next pull.
fn parse_ids(ids: BTreeMap<String, String>) -> BTreeMap<String, SnapshotId> {
    ids.into_iter().filter_map(|(name, id)| Some((name, id.parse().ok()?))).collect()
}

impl StateDir {
    /// What a remote's refs said last; nothing if that is not known.
    pub(super) fn read_remote_refs(&self) -> Result<RemoteRefs> {
        let text = self.read_file(REFS_FILE)?;
        // A note of what was seen: one that cannot be read counts as none, and the next pull writes it anew.
        let file: RemoteRefsFile =
            text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        Ok(RemoteRefs { worktrees: parse_ids(file.worktrees), tags: parse_ids(file.tags), seen: file.seen })
    }

    pub(super) fn write_remote_refs(&self, refs: &RemoteRefs) -> Result<()> {
        let file = RemoteRefsFile {
            worktrees: format_ids(&refs.worktrees),
            tags: format_ids(&refs.tags),
            seen: refs.seen,
        };
        self.write_json_file(REFS_FILE, &file)
    }
}

impl Volume {
    /// What the refs of a remote said when they were seen last, without asking it.
    pub fn read_remote_refs(&self, name: &str) -> Result<RemoteRefs> {
        self.remote_state(name).read_remote_refs()
    }

    /// Remembers what the refs of a remote say.
    pub(super) fn note_remote_refs(&self, remote: &Remote, refs: &RemoteRefs) -> Result<()> {
        self.remote_state(&remote.name).write_remote_refs(refs)
    }

    /// The snapshot that `REMOTE/NAME` names: where a worktree of the remote stood when it was seen last, or what a tag
    /// named.
    pub(crate) fn find_remote_ref(&self, text: &str) -> Result<Option<SnapshotId>> {
        let Some((remote, name)) = text.split_once('/') else { return Ok(None) };
        // No ref has a slash. What names no remote is left to the caller, who reports that nothing has this name.
        if check_ref_name(remote).is_err() || !self.list_remotes()?.iter().any(|known| known.name == remote) {
            return Ok(None);
        }
        match self.read_remote_refs(remote)?.find_ref(name) {
            Some(id) => Ok(Some(id)),
            None => Err(VolumeError::NoSnapshotThere {
                text: vellum_host::escape::format_path(text),
                reason: "that remote had no worktree or tag of this name when it was seen last",
            }),
        }
    }
}
