//! Worktrees that other machines keep under the name of one here: what `merge --all` and a following mount take over.
//!
//! `laptop.photos` of the device `laptop`, `photos` of a machine that is no device, and both of these as a remote had
//! them when it was seen last are siblings. Deliberately absent: forks and other worktrees, which somebody keeps apart
//! on purpose.

use std::collections::BTreeSet;

use vellum_types::SnapshotId;

use crate::device::{Device, list_devices};
use crate::error::Result;
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
        let mut found = Vec::new();
        let names = SiblingNames::read(self, worktree)?;
        for (name, head) in self.list_worktrees()? {
            if name != worktree && names.includes(&name) {
                found.extend(head.head.map(|head| SiblingWorktree { name, head }));
            }
        }
        for remote in self.list_remotes()? {
            for (name, head) in self.read_remote_refs(&remote.name)?.worktrees {
                if names.includes(&name) {
                    found.push(SiblingWorktree { name: format!("{}/{name}", remote.name), head });
                }
            }
        }
        let mut heads = BTreeSet::new();
        // Two names of one snapshot would be merged twice, the second time for nothing.
        found.retain(|sibling| heads.insert(sibling.head));
        Ok(found)
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
