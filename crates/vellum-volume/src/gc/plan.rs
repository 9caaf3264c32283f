//! The plan of a collection: what it would delete, and why.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde::{Deserialize, Serialize};
use vellum_host::ProgressMeter;
use vellum_types::{BlobKind, PackId, SnapshotId};

use super::mark::{LiveBlobs, mark_live_blobs};
use super::node_packs::find_packs_to_join;
use super::roots::{find_live_roots, resolve_lost_ids};
use crate::error::{Result, VolumeError};
use crate::volume::Volume;

/// Share of dead bytes in the whole store below which nothing is repacked, percent: slack that saves copying.
const SLACK_PERCENT: u64 = 5;

/// What is to happen to a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PackAction {
    /// Nothing in it is needed: it is deleted.
    Delete,
    /// Less than half of it is needed: that is copied to another pack.
    Repack,
    /// It is a small pack of nodes, and a tree needs many such: what is needed of them is copied to larger packs.
    Join,
    /// A writer that was killed left it, and the index never knew it: it is deleted.
    Abandoned,
}

/// One pack that is to go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackPlan {
    /// The pack, in hexadecimal.
    pub pack: String,
    /// What is to happen.
    pub action: PackAction,
    /// Bytes of blobs that something needs.
    pub live: u64,
    /// Bytes of blobs that nothing needs.
    pub dead: u64,
}

/// The plan of a collection: what it would delete, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectionPlan {
    /// Snapshots that were walked.
    pub snapshots: u64,
    /// Blobs that they need.
    pub live_blobs: u64,
    /// Bytes of them, as stored.
    pub live_bytes: u64,
    /// Bytes of blobs that nothing needs, in all packs.
    pub dead_bytes: u64,
    /// The packs to go.
    pub packs: Vec<PackPlan>,
}

impl CollectionPlan {
    /// Returns the bytes that its execution gives back.
    #[must_use]
    pub fn freed_bytes(&self) -> u64 {
        self.packs.iter().map(|pack| pack.dead).sum()
    }
}

/// A plan with what it was drawn from.
pub(super) struct PlannedCollection {
    pub plan: CollectionPlan,
    pub live: LiveBlobs,
    /// Snapshots whose records are lost, and without which the caller goes on.
    pub without: BTreeSet<SnapshotId>,
    /// The packs that the store listed. A copy of a blob in another pack is lost, whatever the index says.
    pub present: HashSet<PackId>,
}

/// Plans a collection, and changes nothing. `without` names snapshots whose records are lost, by the first digits of their
/// ids: what only they need is deleted. Fails with [`VolumeError::RecordsLost`] if another record is lost, and with
/// [`VolumeError::Damaged`] if the index is.
pub fn plan_collection(volume: &Volume, without: &[String], meter: &ProgressMeter) -> Result<CollectionPlan> {
    Ok(build_collection_plan(volume, without, meter)?.plan)
}

pub(super) fn build_collection_plan(
    volume: &Volume,
    without: &[String],
    meter: &ProgressMeter,
) -> Result<PlannedCollection> {
    volume.blobs.refresh_index()?;
    // What only a damaged index object knows would pass for dead: nothing is planned before it is repaired.
    if let Some(problem) = volume.blobs.index_problems().first() {
        return Err(VolumeError::Damaged { object: "index".into(), reason: problem.to_string() });
    }
    // Packs before roots: a pack that is listed here and that a later snapshot needs is found alive below, or its
    // writer is at work still, which a run looks for.
    let packs = volume.blobs.list_packs()?;
    let without = resolve_lost_ids(volume, without)?;
    let kept = find_live_roots(volume, &without)?;
    let roots = kept.all_roots();
    let mut live = LiveBlobs::default();
    mark_live_blobs(volume, roots.iter().copied(), &mut live, meter)?;
    let present: HashSet<PackId> = packs.iter().map(|pack| pack.id).collect();
    let usage = measure_pack_usage(volume, &live, &present);
    let mut plan = CollectionPlan {
        snapshots: kept.snapshots.len() as u64,
        live_blobs: live.len() as u64,
        live_bytes: 0,
        dead_bytes: 0,
        packs: vec![],
    };
    for used in usage.values() {
        plan.live_bytes += used.live;
        plan.dead_bytes += used.dead;
    }
    let joined = find_packs_to_join(volume, &packs, &usage, &roots, meter)?;
    // Over the whole store, not for each pack: a small store with one bad pack is not rewritten all the time.
    let worth_copying = plan.dead_bytes * 100 > (plan.dead_bytes + plan.live_bytes) * SLACK_PERCENT;
    for pack in packs {
        // A writer puts a pack before it tells the index of it. So the writer of this one was killed in between, or
        // is at work: a run looks for its session before it deletes anything.
        let Some(used) = usage.get(&pack.id) else {
            plan.packs.push(PackPlan {
                pack: pack.id.to_string(),
                action: PackAction::Abandoned,
                live: 0,
                dead: pack.size,
            });
            continue;
        };
        let action = match (used.live, used.dead) {
            // Whatever its size: to delete costs one request and no copy.
            (0, _) => PackAction::Delete,
            // Only packs that are mostly dead: each gives back more than is copied.
            (live, dead) if live < dead && worth_copying => PackAction::Repack,
            _ if joined.contains(&pack.id) => PackAction::Join,
            _ => continue,
        };
        let live = used.live;
        let dead = used.dead;
        plan.packs.push(PackPlan { pack: pack.id.to_string(), action, live, dead });
    }
    Ok(PlannedCollection { plan, live, without, present })
}

/// What is in a pack.
#[derive(Debug, Clone, Copy)]
pub(super) struct PackUsage {
    pub kind: BlobKind,
    /// Bytes of blobs that something needs.
    pub live: u64,
    /// Bytes of the others.
    pub dead: u64,
}

/// Live and dead bytes of each pack that the index knows. Of a blob that is stored twice, the copy that is read
/// counts as alive.
fn measure_pack_usage(
    volume: &Volume,
    live: &LiveBlobs,
    present: &HashSet<PackId>,
) -> HashMap<PackId, PackUsage> {
    let mut usage: HashMap<PackId, PackUsage> = HashMap::new();
    volume.blobs.for_each_entry(|id, place| {
        let used = usage.entry(place.pack).or_insert(PackUsage { kind: place.kind, live: 0, dead: 0 });
        let read = || volume.blobs.locate_in_present(id, |pack| present.contains(pack));
        let needed = live.contains_id(id) && read().is_none_or(|read| read.pack == place.pack);
        // A second copy counts as dead, so that packs which an interrupted repacking wrote twice go again.
        *(if needed { &mut used.live } else { &mut used.dead }) += u64::from(place.len);
    });
    usage
}
