//! Executing a collection.

use std::collections::{HashMap, HashSet};

use vellum_types::{BlobId, PackId};

use super::mark::{Live, mark};
use super::plan::{Action, Drawn, PackPlan, Plan, draw, roots};
use crate::error::Result;
use crate::progress::Meter;
use crate::session::{AtWork, Claim};
use crate::volume::Volume;

/// What a collection did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collected {
    /// What was found.
    pub plan: Plan,
    /// Packs deleted.
    pub deleted: u64,
    /// Packs whose live blobs were copied before.
    pub repacked: u64,
    /// Bytes given back.
    pub freed: u64,
    /// Writers at work, because of whom packs were condemned but not deleted; run again when they are done.
    pub writers: Vec<AtWork>,
}

/// Draws a plan and executes it, or only the part of it that `approved` names.
pub fn run(volume: &Volume, approved: Option<&Plan>, meter: &Meter) -> Result<Collected> {
    let claim = Claim::of_collector(volume)?;
    let Drawn { mut plan, mut live } = draw(volume, meter)?;
    if let Some(approved) = approved {
        let named: HashSet<_> = approved.packs.iter().map(|pack| pack.pack.as_str()).collect();
        plan.packs.retain(|pack| named.contains(pack.pack.as_str()));
    }
    let mut packs = going(&plan);
    let mut collected = Collected { plan, deleted: 0, repacked: 0, freed: 0, writers: Vec::new() };
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
    mark(volume, roots(volume)?.1, &mut live, meter)?;
    let needed = needed(volume, &mut packs, &live);
    collected.repacked = needed.len() as u64;
    volume.blobs.repack(&needed.into_iter().collect::<Vec<_>>())?;
    // Asleep meanwhile? Then another collector may have taken the new packs for abandoned ones.
    claim.check()?;
    volume.blobs.replace_index(&packs.keys().copied().collect())?;
    for pack in packs.keys() {
        meter.check()?;
        claim.keep_alive()?;
        volume.blobs.delete_pack(pack)?;
        collected.deleted += 1;
    }
    let gone = |pack: &&PackPlan| pack.pack.parse().is_ok_and(|id| packs.contains_key(&id));
    collected.freed = collected.plan.packs.iter().filter(gone).map(|pack| pack.dead).sum();
    Ok(collected)
}

/// The packs that are to go.
type Going = HashMap<PackId, Action>;

fn going(plan: &Plan) -> Going {
    let parsed = |pack: &PackPlan| pack.pack.parse().ok().map(|id: PackId| (id, pack.action));
    plan.packs.iter().filter_map(parsed).collect()
}

/// What writers must be told not to rely on. Nobody can rely on a pack that the index does not know; to condemn it
/// would spoil it for a writer who is about to tell the index of it.
fn condemnable(going: &Going) -> Vec<PackId> {
    going.iter().filter(|(_, action)| **action != Action::Abandoned).map(|(pack, _)| *pack).collect()
}

/// The living blobs that are only in packs that are to go.
fn needed(volume: &Volume, going: &mut Going, live: &Live) -> HashMap<PackId, HashSet<BlobId>> {
    let mut needed: HashMap<PackId, HashSet<BlobId>> = HashMap::new();
    volume.blobs.for_each_entry(|id, place| {
        let copied = || volume.blobs.locate(id).is_some_and(|read| read.pack != place.pack);
        if going.contains_key(&place.pack) && live.contains(id) && !copied() {
            needed.entry(place.pack).or_default().insert(*id);
        }
    });
    // A pack that nobody knew and somebody has indexed meanwhile is somebody's.
    going.retain(|pack, action| !(*action == Action::Abandoned && needed.contains_key(pack)));
    needed.retain(|pack, _| going.contains_key(pack));
    needed
}

/// The writers at work; sessions that are over are cleared away.
fn writers(volume: &Volume, claim: &Claim) -> Result<Vec<AtWork>> {
    let mut writers = Vec::new();
    for other in claim.others()? {
        if !(other.is_over() && other.clear(&*volume.objects)?) {
            writers.push(other.into_at_work());
        }
    }
    Ok(writers)
}
