//! Names of snapshots that a mount has made and not published yet, so that a command need not wait for the store.
//!
//! Invariant: a name means what it would mean once everything was published. What cannot be told without that (moments,
//! names of worktrees, beginnings of ids that may be several) is left to commands that publish first.

use std::collections::HashMap;

use vellum_types::SnapshotId;
use vellum_volume::{Volume, VolumeError};

use super::mounted::MountedWorktree;
use crate::error::Result;
use crate::mounting::control::{ControlRequest, UnpublishedSnapshot};

/// Shortest beginning of an id that may be taken for one.
const ID_MIN: usize = 4;

/// The meaning of a name, as far as it is known.
#[derive(Debug, PartialEq, Eq)]
enum NameMeaning {
    /// A snapshot that is not in the store.
    Unpublished(SnapshotId),
    /// What this expression means in the store, whatever else is published.
    Published(String),
    /// Only the store can decide, with everything in it.
    Unknown,
}

/// The snapshots of a mount that are not in the store, and where it stands.
struct UnpublishedHistory {
    head: Option<SnapshotId>,
    parents: HashMap<SnapshotId, Option<SnapshotId>>,
    tags: HashMap<String, SnapshotId>,
}

impl MountedWorktree {
    /// The snapshot that a name means, if that is known before everything is published.
    pub fn find_unpublished(&self, text: &str) -> Result<Option<SnapshotId>> {
        // The process of the mount knows these snapshots, and the store does not have them yet.
        let answer = self.send_request(&ControlRequest::Unpublished)?;
        let Some(waiting) = answer.unpublished.filter(|waiting| !waiting.is_empty()) else { return Ok(None) };
        let head = answer.head.and_then(|id| id.parse().ok());
        let Some(unpublished) = UnpublishedHistory::new(head, &waiting) else { return Ok(None) };
        match unpublished.resolve_name(text, |name| is_published_name(&self.volume, name))? {
            NameMeaning::Unpublished(id) => Ok(Some(id)),
            NameMeaning::Published(text) => match self.volume.resolve_snapshot(&text) {
                Ok(entry) => Ok(Some(entry.id)),
                // The caller publishes everything, looks again, and reports what is missing then.
                Err(VolumeError::UnknownSnapshot(_) | VolumeError::MissingRecord(_)) => Ok(None),
                Err(error) => Err(error.into()),
            },
            NameMeaning::Unknown => Ok(None),
        }
    }
}

/// Whether the store knows a name as a tag, or as the beginning of an id; None if it is a worktree's, too.
fn is_published_name(volume: &Volume, name: &str) -> Result<Option<bool>> {
    // A worktree's name means where its ref stands after everything was published, which only the store can say then.
    if volume.list_worktrees()?.iter().any(|(worktree, _)| worktree == name) {
        return Ok(None);
    }
    if volume.list_tags()?.iter().any(|(tag, _)| tag == name) {
        return Ok(Some(true));
    }
    // The ids in the store are listed only for a name that can be the beginning of one.
    let begins = |id: &SnapshotId| id.to_string().starts_with(name);
    Ok(Some(is_id_like(name) && volume.catalog.last_listed_ids()?.iter().any(begins)))
}

fn is_id_like(name: &str) -> bool {
    name.len() >= ID_MIN && name.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

impl UnpublishedHistory {
    /// None if something of it is no id.
    fn new(head: Option<SnapshotId>, waiting: &[UnpublishedSnapshot]) -> Option<Self> {
        let mut parents = HashMap::new();
        let mut tags = HashMap::new();
        for snapshot in waiting {
            let id = snapshot.id.parse().ok()?;
            let parent = match &snapshot.parent {
                Some(parent) => Some(parent.parse().ok()?),
                None => None,
            };
            parents.insert(id, parent);
            tags.extend(snapshot.tags.iter().map(|tag| (tag.clone(), id)));
        }
        Some(Self { head, parents, tags })
    }

    fn resolve_name(
        &self,
        text: &str,
        is_published: impl Fn(&str) -> Result<Option<bool>>,
    ) -> Result<NameMeaning> {
        let (base, steps) = match text.rsplit_once('~') {
            None => (text, 0),
            // As in git, 'HEAD~' means 'HEAD~1'.
            Some((base, "")) => (base, 1),
            Some((base, steps)) => match steps.parse() {
                Ok(steps) => (base, steps),
                Err(_) => return Ok(NameMeaning::Unknown),
            },
        };
        if base == "HEAD" {
            return Ok(self.head.map_or(NameMeaning::Unknown, |head| self.resolve_ancestor(head, steps)));
        }
        let mut begun = self.parents.keys().filter(|id| is_id_like(base) && id.to_string().starts_with(base));
        // Two are enough to know that the beginning of the id is ambiguous.
        let one = begun.next();
        let other = begun.next();
        // A name that both sides know is ambiguous, or will be once the mount has published: the store decides then.
        Ok(match (is_published(base)?, one.or(self.tags.get(base))) {
            (Some(true), None) => NameMeaning::Published(text.into()),
            (Some(false), Some(id)) if other.is_none() => self.resolve_ancestor(*id, steps),
            _ => NameMeaning::Unknown,
        })
    }

    fn resolve_ancestor(&self, from: SnapshotId, steps: u64) -> NameMeaning {
        let mut at = from;
        let mut left = steps;
        loop {
            match (self.parents.get(&at), left) {
                (None, 0) => return NameMeaning::Published(at.to_string()),
                // The line goes on in the store, which resolves the rest.
                (None, _) => return NameMeaning::Published(format!("{at}~{left}")),
                (Some(_), 0) => return NameMeaning::Unpublished(at),
                // The line ends before that: the store reports it.
                (Some(None), _) => return NameMeaning::Unknown,
                (Some(Some(parent)), _) => (at, left) = (*parent, left - 1),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> SnapshotId {
        SnapshotId([number; 32])
    }

    /// 1 and 2 are in the store; 3 and 4 were made on 2, and 4 has a tag.
    fn line() -> UnpublishedHistory {
        let waiting = [(3, 2, None), (4, 3, Some("good"))].map(|(own, parent, tag)| UnpublishedSnapshot {
            id: id(own).to_string(),
            parent: Some(id(parent).to_string()),
            tags: tag.map(str::to_owned).into_iter().collect(),
        });
        UnpublishedHistory::new(Some(id(4)), &waiting).expect("valid ids")
    }

    fn meaning(text: &str) -> NameMeaning {
        let published =
            |name: &str| Ok(Some(name == "old" || is_id_like(name) && id(2).to_string().starts_with(name)));
        line().resolve_name(text, published).expect("a meaning")
    }

    #[test]
    fn names_of_unpublished_snapshots_mean_them() {
        assert_eq!(meaning("HEAD"), NameMeaning::Unpublished(id(4)));
        assert_eq!(meaning("HEAD~"), NameMeaning::Unpublished(id(3)));
        assert_eq!(meaning("good~1"), NameMeaning::Unpublished(id(3)));
        assert_eq!(meaning("0303"), NameMeaning::Unpublished(id(3)));
        assert_eq!(meaning(&id(4).to_string()), NameMeaning::Unpublished(id(4)));
    }

    #[test]
    fn what_lies_before_them_is_the_stores_to_tell() {
        assert_eq!(meaning("HEAD~2"), NameMeaning::Published(id(2).to_string()));
        assert_eq!(meaning("0303~2"), NameMeaning::Published(format!("{}~1", id(2))));
        assert_eq!(meaning("old~3"), NameMeaning::Published("old~3".into()));
        assert_eq!(meaning("0202"), NameMeaning::Published("0202".into()));
    }

    #[test]
    fn what_may_change_is_not_guessed() {
        for text in ["@{now}", "main", "latest", "HEAD~x", "030", "~1", ""] {
            assert_eq!(meaning(text), NameMeaning::Unknown, "{text}");
        }
        let line = line();
        for known in [Some(true), None] {
            for text in ["good", "0303"] {
                assert_eq!(
                    line.resolve_name(text, |_| Ok(known)).expect("a meaning"),
                    NameMeaning::Unknown,
                    "{text}"
                );
            }
        }
    }
}
