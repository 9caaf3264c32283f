//! Executing a collection.

use std::collections::{HashMap, HashSet};

use vellum_types::{BlobId, ErrorKind, PackId};

use super::mark::{LiveBlobs, mark};
use super::plan::{CollectionPlan, PackAction, PackPlan, PlannedCollection, draw};
use super::roots::find_roots;
use crate::error::Result;
use crate::progress::ProgressMeter;
use crate::session::{SessionClaim, WaitingSession, end_sessions};
use crate::volume::Volume;

/// What a collection did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectionReport {
    /// What was found.
    pub plan: CollectionPlan,
    /// Packs deleted.
    pub deleted: u64,
    /// Packs whose live blobs were copied before.
    pub repacked: u64,
    /// Bytes given back.
    pub freed: u64,
    /// Writers at work, because of whom packs were condemned but not deleted; run again when they are done.
    pub writers: Vec<WaitingSession>,
}

/// What a collection is asked to do.
#[derive(Debug, Clone, Copy, Default)]
pub struct CollectionRequest<'a> {
    /// Do only what this plan names.
    pub approved: Option<&'a CollectionPlan>,
    /// Snapshots whose records are lost, by the first digits of their ids: what only they need goes, too.
    pub without: &'a [String],
    /// Sessions whose writers the caller knows to be gone, by name: they are ended.
    pub ended_sessions: &'a [String],
}

/// Draws a plan and executes it, or only the part of it that the request approves.
pub fn run(
    volume: &Volume,
    request: &CollectionRequest<'_>,
    meter: &ProgressMeter,
) -> Result<CollectionReport> {
    volume.state.sweep();
    volume.release_reserves();
    let collected = collect(volume, request, meter);
    volume.keep_reserves();
    collected
}

fn collect(
    volume: &Volume,
    request: &CollectionRequest<'_>,
    meter: &ProgressMeter,
) -> Result<CollectionReport> {
    end_sessions(volume, request.ended_sessions)?;
    let claim = SessionClaim::of_collector(volume)?;
    let PlannedCollection { mut plan, mut live, without, present } = draw(volume, request.without, meter)?;
    if let Some(approved) = request.approved {
        let named: HashSet<_> = approved.packs.iter().map(|pack| pack.pack.as_str()).collect();
        plan.packs.retain(|pack| named.contains(pack.pack.as_str()));
    }
    let mut packs = going(&plan);
    let mut collected = CollectionReport { plan, deleted: 0, repacked: 0, freed: 0, writers: Vec::new() };
    if packs.is_empty() {
        return Ok(collected);
    }
    volume.blobs.condemn(&condemnable(&packs))?;
    collected.writers = writers(volume, &claim)?;
    if !collected.writers.is_empty() {
        return Ok(collected);
    }
    // Whoever ended since the plan was drawn has a snapshot now: what it relied on is alive.
    volume.blobs.refresh()?;
    mark(volume, find_roots(volume, &without)?.roots, &mut live, meter)?;
    let needed = needed(volume, &mut packs, &live, &present);
    let needed: Vec<_> = needed.into_iter().collect();
    match volume.blobs.repack(&needed) {
        Ok(_) => collected.repacked = needed.len() as u64,
        // Copying waits until there is room. What is dead as a whole makes some.
        Err(error) if error.kind() == ErrorKind::NoSpace => {
            packs.retain(|pack, _| needed.iter().all(|(kept, _)| kept != pack));
        }
        Err(error) => return Err(error.into()),
    }
    // Asleep meanwhile? Then another collector may have taken the new packs for abandoned ones.
    claim.check()?;
    let excluded = packs.keys().copied().collect();
    let is_replaced = match volume.blobs.replace_index(&excluded) {
        Ok(()) => true,
        // Condemned packs may be missing: the index can forget them when there is room for a new one.
        Err(error) if error.kind() == ErrorKind::NoSpace => false,
        Err(error) => return Err(error.into()),
    };
    for pack in packs.keys() {
        meter.check()?;
        claim.keep_alive()?;
        volume.blobs.delete_pack(pack)?;
        collected.deleted += 1;
    }
    if !is_replaced {
        volume.blobs.replace_index(&excluded)?;
    }
    let gone = |pack: &&PackPlan| pack.pack.parse().is_ok_and(|id| packs.contains_key(&id));
    collected.freed = collected.plan.packs.iter().filter(gone).map(|pack| pack.dead).sum();
    Ok(collected)
}

/// The packs that are to go.
type PacksToDelete = HashMap<PackId, PackAction>;

fn going(plan: &CollectionPlan) -> PacksToDelete {
    let parsed = |pack: &PackPlan| pack.pack.parse().ok().map(|id: PackId| (id, pack.action));
    plan.packs.iter().filter_map(parsed).collect()
}

/// What writers must be told not to rely on. Nobody can rely on a pack that the index does not know; to condemn it
/// would spoil it for a writer who is about to tell the index of it.
fn condemnable(going: &PacksToDelete) -> Vec<PackId> {
    going.iter().filter(|(_, action)| **action != PackAction::Abandoned).map(|(pack, _)| *pack).collect()
}

/// The living blobs that are only in packs that are to go.
fn needed(
    volume: &Volume,
    going: &mut PacksToDelete,
    live: &LiveBlobs,
    present: &HashSet<PackId>,
) -> HashMap<PackId, HashSet<BlobId>> {
    let mut needed: HashMap<PackId, HashSet<BlobId>> = HashMap::new();
    volume.blobs.for_each_entry(|id, place| {
        let read = || volume.blobs.locate_present(id, |pack| present.contains(pack));
        let copied = || read().is_some_and(|read| read.pack != place.pack);
        if going.contains_key(&place.pack) && live.contains(id) && !copied() {
            needed.entry(place.pack).or_default().insert(*id);
        }
    });
    // A pack that nobody knew and somebody has indexed meanwhile is somebody's.
    going.retain(|pack, action| !(*action == PackAction::Abandoned && needed.contains_key(pack)));
    needed.retain(|pack, _| going.contains_key(pack));
    needed
}

/// The writers at work; sessions that are over are cleared away.
fn writers(volume: &Volume, claim: &SessionClaim) -> Result<Vec<WaitingSession>> {
    let mut writers = Vec::new();
    for other in claim.others()? {
        if !(other.is_over() && other.clear(&*volume.objects)?) {
            writers.push(other.into_at_work());
        }
    }
    Ok(writers)
}
