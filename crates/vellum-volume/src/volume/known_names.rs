//! The names that lead to snapshots, as far as they are known without a request to a service.

use vellum_types::SnapshotId;

use crate::error::Result;
use crate::refs::RefKind;
use crate::volume::{Volume, decode_tag_target, decode_worktree_head};

/// What a name belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameKind {
    /// A tag.
    Tag,
    /// A worktree of this store.
    Worktree,
    /// A worktree or tag of a remote.
    Remote,
}

/// A name that leads to a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownName {
    /// As it is typed.
    pub name: String,
    /// What it belongs to.
    pub kind: NameKind,
    /// The snapshot; none if it is a worktree without one.
    pub target: Option<SnapshotId>,
}

impl Volume {
    /// Lists tags, worktrees, and those of remotes. What a service has is listed as it was seen last.
    pub fn list_known_names(&self) -> Result<Vec<KnownName>> {
        let mut names = Vec::new();
        for found in self.refs.list_known_refs(RefKind::Tag)? {
            if let Ok(target) = decode_tag_target(&found) {
                names.push(KnownName { name: found.name, kind: NameKind::Tag, target: Some(target) });
            }
        }
        for found in self.refs.list_known_refs(RefKind::Worktree)? {
            if let Ok(head) = decode_worktree_head(&found) {
                names.push(KnownName { name: found.name, kind: NameKind::Worktree, target: head.head });
            }
        }
        for remote in self.list_remotes()? {
            let refs = self.read_remote_refs(&remote.name)?;
            for (name, target) in refs.worktrees.iter().chain(&refs.tags) {
                let name = format!("{}/{name}", remote.name);
                names.push(KnownName { name, kind: NameKind::Remote, target: Some(*target) });
            }
        }
        Ok(names)
    }
}
