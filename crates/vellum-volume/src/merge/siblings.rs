//! Worktrees that other machines keep under the name of one here: what `merge --all` and a following mount take over.
//!
//! `laptop.photos` of the device `laptop`, `photos` of a machine that is no device, and both of these as a remote had
//! them when it was seen last are siblings. Deliberately absent: forks and other worktrees, which somebody keeps apart
//! on purpose.

use std::collections::BTreeSet;

use vellum_types::SnapshotId;

use crate::device::{Device, list_devices};
use crate::error::{Result, VolumeError};
use crate::history::HistoryEntry;
use crate::volume::Volume;

/// A worktree of another machine that has the same name as one here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiblingWorktree {
    /// What the snapshot it stands on can be called: `laptop.photos`, or `origin/photos`.
    pub name: String,
    /// The snapshot that it stands on.
    pub head: SnapshotId,
}

impl Volume {
    /// The siblings of a worktree that stand on a snapshot, those in the store first, then those of remotes as they were
    /// seen last. Of several on one snapshot, the first is returned.
    pub fn list_siblings(&self, worktree: &str) -> Result<Vec<SiblingWorktree>> {
        SiblingFinder::new(worktree).find_siblings(self)
    }
}

impl Volume {
    /// A snapshot; of the unfinished result of a merge with conflicts, the snapshot on which that worktree stood before.
    /// An unfinished result has conflict markers in its files, and is forgotten when the merge ends: nothing may
    /// descend from it.
    pub fn find_finished_snapshot(&self, id: SnapshotId) -> Result<HistoryEntry> {
        let mut entry = HistoryEntry { id, record: self.catalog.get_record(&id)? };
        // Each parent is older, so that this ends.
        while let Some(ours) = entry.record.parents.first().filter(|_| entry.record.is_unfinished_merge()) {
            entry = HistoryEntry { id: *ours, record: self.catalog.get_record(ours)? };
        }
        Ok(entry)
    }
}

/// Finds the siblings of a worktree again and again. The devices are read only if worktrees have other names than
/// before, so that a look usually takes one listing and a request for each worktree.
pub struct SiblingFinder {
    worktree: String,
    known: Option<KnownNames>,
}

/// The names of worktrees, and what tells siblings among them.
struct KnownNames {
    all: BTreeSet<String>,
    siblings: SiblingNames,
}

impl SiblingFinder {
    /// Finds the siblings of this worktree.
    #[must_use]
    pub fn new(worktree: &str) -> Self {
        Self { worktree: worktree.to_owned(), known: None }
    }

    /// Like [`Volume::list_siblings`].
    pub fn find_siblings(&mut self, volume: &Volume) -> Result<Vec<SiblingWorktree>> {
        let stored = volume.list_worktrees()?;
        let mut elsewhere = Vec::new();
        for remote in volume.list_remotes()? {
            for (name, head) in volume.read_remote_refs(&remote.name)?.worktrees {
                elsewhere.push((format!("{}/{name}", remote.name), name, head));
            }
        }
        let stored_names = stored.iter().map(|(name, _)| name.clone());
        let all = stored_names.chain(elsewhere.iter().map(|(_, name, _)| name.clone())).collect();
        let siblings = self.read_names(volume, all)?;
        let mut found = Vec::new();
        for (name, head) in stored {
            if name != self.worktree && siblings.includes(&name) {
                found.extend(head.head.map(|head| SiblingWorktree { name, head }));
            }
        }
        // Here the worktree's own name counts, too: under it, a remote has what some machine pushed.
        for (shown, name, head) in elsewhere {
            if siblings.includes(&name) {
                found.push(SiblingWorktree { name: shown, head });
            }
        }
        self.known = Some(siblings);
        // What a sibling had before a merge that waits there for decisions.
        for sibling in &mut found {
            match volume.find_finished_snapshot(sibling.head) {
                Ok(finished) => sibling.head = finished.id,
                // A remote may name what was not pulled: whoever merges it learns of that.
                Err(VolumeError::MissingRecord(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let mut heads = BTreeSet::new();
        // Two names of one snapshot would be merged twice, the second time for nothing.
        found.retain(|sibling| heads.insert(sibling.head));
        Ok(found)
    }

    /// What is known, or what the devices say now if there are other names than those that it is known for: a device has
    /// siblings only as long as there are worktrees.
    fn read_names(&mut self, volume: &Volume, all: BTreeSet<String>) -> Result<KnownNames> {
        match self.known.take() {
            Some(known) if known.all == all => Ok(known),
            _ => Ok(KnownNames { siblings: SiblingNames::read(volume, &self.worktree)?, all }),
        }
    }
}

impl KnownNames {
    fn includes(&self, name: &str) -> bool {
        self.siblings.includes(name)
    }
}

/// Tells the names of a worktree's siblings from others.
struct SiblingNames {
    devices: Vec<Device>,
    /// The name without that of a device.
    own: String,
}

impl SiblingNames {
    fn read(volume: &Volume, worktree: &str) -> Result<Self> {
        // What a dot separates is only known to those who know the devices: `v1.2` is no worktree of a device `v1`.
        let devices = list_devices(volume)?.devices;
        let own = strip_device(&devices, worktree).to_owned();
        Ok(Self { devices, own })
    }

    fn includes(&self, name: &str) -> bool {
        strip_device(&self.devices, name) == self.own
    }
}

fn strip_device<'n>(devices: &[Device], worktree: &'n str) -> &'n str {
    devices.iter().find_map(|device| device.strip_name(worktree)).unwrap_or(worktree)
}
