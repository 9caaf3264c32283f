//! What snapshots, worktrees and paths take of a store, and what would be freed if snapshots were forgotten.
//!
//! The trees of all snapshots are walked as by a collection. For each blob it is noted which groups need it, which need it
//! besides others, and which would not free it; a node is entered again only if it is reached by a group in a new role.
//!
//! Invariant: the figures follow from the map and the index alone. A blob that is stored twice counts with the copy that is
//! read, as in a collection; what only the source of a store has takes nothing.

mod path;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::Serialize;
use vellum_host::ProgressMeter;
use vellum_map::MapRoot;
use vellum_types::{BlobId, Ino, PackId, SnapshotId};

use self::path::{PathContent, read_path_content};
use crate::error::{Result, VolumeError};
use crate::gc::{LiveRoots, find_live_roots, low_half_bits, mark_reached_blobs};
use crate::history::HistoryEntry;
use crate::volume::Volume;

/// Groups that one walk tells apart, a count: the bits of a [`BlobRoles`].
const GROUPS_AT_ONCE: usize = 64;

/// What is measured together.
#[derive(Debug, Clone)]
pub enum UsageGroup {
    /// One snapshot or several.
    Snapshots(Vec<SnapshotId>),
    /// All snapshots that a worktree made, what it stands on, and what a mount of it has published since.
    Worktree(String),
    /// What mounts and views read, on whatever machine: trees of snapshots, whether they are listed still or not.
    Readers,
    /// A path in a snapshot.
    Path {
        /// The snapshot.
        snapshot: HistoryEntry,
        /// The inode at the path.
        ino: Ino,
    },
}

/// What a group takes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct GroupUsage {
    /// Snapshots of the group; of a path, the one that it is in.
    pub snapshots: u64,
    /// Bytes of all files, as if each snapshot were a copy.
    pub logical: u64,
    /// Bytes in the store that the group needs.
    pub stored: u64,
    /// Of these, bytes that nothing else needs.
    pub unique: u64,
    /// Of these, bytes that something else needs too.
    pub shared: u64,
    /// What the next collection could free if the snapshots were forgotten; none for a path and for readers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freed: Option<FreedBytes>,
}

/// What forgetting snapshots would free.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FreedBytes {
    /// Bytes in packs of which nothing would be needed any more.
    pub at_once: u64,
    /// Bytes in packs that have something else as well: they are freed when their packs are repacked.
    pub after_repacking: u64,
    /// Snapshots that cannot be forgotten, because a worktree stands on them. They are taken to stay.
    pub held: u64,
}

/// What groups take, and what the whole store has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct UsageReport {
    /// The groups, in the order asked for.
    pub groups: Vec<GroupUsage>,
    /// All snapshots and worktrees of the groups together; none if there is only one group of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub together: Option<GroupUsage>,
    /// Bytes of blobs that something needs.
    pub needed: u64,
    /// Bytes of blobs that nothing needs: 'gc' frees them.
    pub unneeded: u64,
}

/// Measures what groups take of the store. Fails as a collection does if records are lost or nodes are damaged.
pub fn measure_usage(volume: &Volume, groups: &[UsageGroup], meter: &ProgressMeter) -> Result<UsageReport> {
    volume.blobs.refresh_index()?;
    // With a part of the index missing, what it names would count as nothing.
    if let Some(problem) = volume.blobs.index_problems().first() {
        return Err(VolumeError::Damaged { object: "index".into(), reason: problem.to_string() });
    }
    let present: HashSet<PackId> = volume.blobs.list_packs()?.into_iter().map(|pack| pack.id).collect();
    let state = VolumeState { volume, roots: find_live_roots(volume, &BTreeSet::new())?, present };
    let mut members =
        groups.iter().map(|group| state.collect_members(group)).collect::<Result<Vec<GroupMembers>>>()?;
    let forgettable: Vec<_> = members.iter().filter(|group| group.is_forgettable()).collect();
    let is_joined = forgettable.len() > 1;
    if is_joined {
        let all = GroupMembers::join_groups(&forgettable);
        members.push(all);
    }
    let mut report = UsageReport::default();
    // Also without a group: what the store has is counted by the walk.
    for first in (0..members.len().max(1)).step_by(GROUPS_AT_ONCE) {
        let part = members.get(first..members.len().min(first + GROUPS_AT_ONCE)).unwrap_or_default();
        let walked = state.walk_groups(part, meter)?;
        report.needed = walked.needed;
        report.unneeded = walked.unneeded;
        report.groups.extend(walked.groups);
    }
    report.together = if is_joined { report.groups.pop() } else { None };
    Ok(report)
}

/// The volume as it is at the moment.
struct VolumeState<'a> {
    volume: &'a Volume,
    roots: LiveRoots,
    present: HashSet<PackId>,
}

/// What belongs to a group.
#[derive(Default)]
struct GroupMembers {
    snapshots: HashSet<SnapshotId>,
    worktrees: HashSet<String>,
    path: Option<PathContent>,
    /// Whether what is read belongs to it.
    has_readers: bool,
}

impl GroupMembers {
    /// Only whole snapshots can be forgotten: a path by itself frees nothing, nor does what somebody reads.
    fn is_forgettable(&self) -> bool {
        self.path.is_none() && !self.has_readers
    }

    fn join_groups(groups: &[&Self]) -> Self {
        let mut all = Self::default();
        for group in groups {
            all.snapshots.extend(&group.snapshots);
            all.worktrees.extend(group.worktrees.iter().cloned());
        }
        all
    }
}

/// What a blob is to groups, a bit for each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct BlobRoles {
    /// The group needs it.
    inside: u64,
    /// Something else than the group needs it.
    outside: u64,
    /// It stays if the snapshots of the group are forgotten.
    kept: u64,
}

impl BlobRoles {
    /// Adds roles; returns whether one of them is new.
    fn add_roles(&mut self, other: Self) -> bool {
        let before = *self;
        self.inside |= other.inside;
        self.outside |= other.outside;
        self.kept |= other.kept;
        *self != before
    }
}

/// What is needed of a pack, and what each group would free of it.
#[derive(Default)]
struct PackShare {
    needed: u64,
    freed: BTreeMap<usize, u64>,
}

impl VolumeState<'_> {
    fn collect_members(&self, group: &UsageGroup) -> Result<GroupMembers> {
        let mut members = GroupMembers::default();
        match group {
            UsageGroup::Snapshots(ids) => members.snapshots.extend(ids),
            UsageGroup::Worktree(name) => {
                members.worktrees.insert(name.clone());
                for snapshot in &self.roots.snapshots {
                    if self.volume.catalog.get_record(&snapshot.id)?.worktree == *name {
                        members.snapshots.insert(snapshot.id);
                    }
                }
            }
            UsageGroup::Readers => members.has_readers = true,
            UsageGroup::Path { snapshot, ino } => {
                members.snapshots.insert(snapshot.id);
                members.path = Some(read_path_content(self.volume, snapshot.record.root, *ino)?);
            }
        }
        Ok(members)
    }

    /// Bytes of the files of snapshots, as their records say.
    fn sum_logical_bytes(&self, snapshots: &HashSet<SnapshotId>) -> Result<u64> {
        let sizes = snapshots.iter().map(|id| Ok(self.volume.catalog.get_record(id)?.statistics.bytes));
        sizes.sum()
    }

    /// How many of these snapshots worktrees stand on.
    fn count_held(&self, snapshots: &HashSet<SnapshotId>) -> u64 {
        let heads: HashSet<_> = self.roots.held.iter().filter_map(|held| held.head).collect();
        snapshots.intersection(&heads).count() as u64
    }

    /// The roles that each tree gives to what it needs.
    fn assign_roles(&self, groups: &[GroupMembers]) -> HashMap<MapRoot, BlobRoles> {
        let mut roles: HashMap<MapRoot, BlobRoles> = HashMap::new();
        for snapshot in &self.roots.snapshots {
            let mut role = BlobRoles::default();
            for (number, group) in groups.iter().enumerate() {
                if group.snapshots.contains(&snapshot.id) {
                    role.inside |= 1 << number;
                } else {
                    role.outside |= 1 << number;
                    role.kept |= 1 << number;
                }
            }
            roles.entry(snapshot.root).or_default().add_roles(role);
        }
        for held in &self.roots.held {
            // What worktrees hold stays, whatever is forgotten.
            let mut role = BlobRoles { kept: u64::MAX, ..BlobRoles::default() };
            for (number, group) in groups.iter().enumerate() {
                match &held.worktree {
                    _ if group.has_readers && held.is_read => role.inside |= 1 << number,
                    Some(worktree) if group.worktrees.contains(worktree) => role.inside |= 1 << number,
                    Some(_) if held.head.is_none_or(|head| !group.snapshots.contains(&head)) => {
                        role.outside |= 1 << number;
                    }
                    // That a worktree stands on a snapshot of the group, or somebody reads it, does not make it less its
                    // own.
                    Some(_) | None => {}
                }
            }
            roles.entry(held.root).or_default().add_roles(role);
        }
        roles
    }

    fn walk_groups(&self, groups: &[GroupMembers], meter: &ProgressMeter) -> Result<UsageReport> {
        // Trees with the same roles are walked together, each node of them once.
        let mut classes: HashMap<BlobRoles, Vec<MapRoot>> = HashMap::new();
        for (root, role) in self.assign_roles(groups) {
            classes.entry(role).or_default().push(root);
        }
        // Half an id is enough to tell blobs apart, and this has an entry for each blob of the store.
        let mut blobs: HashMap<u128, BlobRoles> = HashMap::new();
        for (role, roots) in classes {
            let reach = |id: &BlobId| blobs.entry(low_half_bits(id)).or_default().add_roles(role);
            mark_reached_blobs(self.volume, roots, reach, meter)?;
        }
        self.sum_up(groups, &blobs)
    }

    fn sum_up(&self, groups: &[GroupMembers], blobs: &HashMap<u128, BlobRoles>) -> Result<UsageReport> {
        let mut report = UsageReport::default();
        let mut usages = vec![GroupUsage::default(); groups.len()];
        let mut packs: HashMap<PackId, PackShare> = HashMap::new();
        self.volume.blobs.for_each_entry(|id, place| {
            let len = u64::from(place.len);
            let read = || self.volume.blobs.locate_in_present(id, |pack| self.present.contains(pack));
            let roles = blobs.get(&low_half_bits(id));
            // Of several copies, the one that is read counts. The others are unneeded, as for a collection.
            let roles = roles.filter(|_| read().is_none_or(|read| read.pack == place.pack));
            let Some(roles) = roles else {
                report.unneeded += len;
                return;
            };
            report.needed += len;
            let share = packs.entry(place.pack).or_default();
            share.needed += len;
            for (number, (group, usage)) in groups.iter().zip(&mut usages).enumerate() {
                let bit = 1 << number;
                let path = group.path.as_ref();
                if roles.inside & bit == 0 || path.is_some_and(|path| !path.chunks.contains(id)) {
                    continue;
                }
                usage.stored += len;
                if roles.outside & bit == 0 && path.is_none_or(|path| !path.elsewhere.contains(id)) {
                    usage.unique += len;
                }
                if roles.kept & bit == 0 && group.is_forgettable() {
                    *share.freed.entry(number).or_default() += len;
                }
            }
        });
        for (number, (group, usage)) in groups.iter().zip(&mut usages).enumerate() {
            usage.shared = usage.stored - usage.unique;
            usage.snapshots = group.snapshots.len() as u64;
            match &group.path {
                Some(path) => usage.logical = path.logical,
                None => {
                    usage.logical = self.sum_logical_bytes(&group.snapshots)?;
                    let held = self.count_held(&group.snapshots);
                    let freed = || sum_freed_bytes(&packs, number, held);
                    usage.freed = group.is_forgettable().then(freed);
                }
            }
        }
        report.groups = usages;
        Ok(report)
    }
}

fn sum_freed_bytes(packs: &HashMap<PackId, PackShare>, group: usize, held: u64) -> FreedBytes {
    let mut freed = FreedBytes { held, ..FreedBytes::default() };
    for share in packs.values() {
        let bytes = share.freed.get(&group).copied().unwrap_or_default();
        // What nothing needs already does not keep a pack.
        let sum = if bytes == share.needed { &mut freed.at_once } else { &mut freed.after_repacking };
        *sum += bytes;
    }
    freed
}
