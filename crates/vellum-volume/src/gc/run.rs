//! Executes a collection.

use std::collections::{HashMap, HashSet};

use vellum_host::ProgressMeter;
use vellum_store::BlobError;
use vellum_types::{BlobId, ErrorKind, PackId};

use super::mark::{LiveBlobs, mark_live_blobs};
use super::plan::{CollectionPlan, PackAction, PackPlan, PlannedCollection, build_collection_plan};
use super::roots::find_live_roots;
use crate::error::Result;
use crate::operations::{OperationEffect, OperationRetention};
use crate::session::{SessionClaim, WaitingSession, end_expired_readers, end_sessions};
use crate::volume::Volume;

/// What a collection did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectionReport {
    /// What was found.
    pub plan: CollectionPlan,
    /// Packs deleted.
    pub deleted: u64,
    /// Packs of which little was alive, and was copied before.
    pub repacked: u64,
    /// Small packs of nodes whose live blobs were copied to larger ones before.
    pub joined: u64,
    /// Bytes given back.
    pub freed: u64,
    /// Old records of operations that were deleted.
    pub operations: u64,
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

/// Plans a collection and executes it, or only the part of it that the request approves. Fails with
/// [`VolumeError::InUse`](crate::VolumeError::InUse) if another process collects.
pub fn run_collection(
    volume: &Volume,
    request: &CollectionRequest<'_>,
    meter: &ProgressMeter,
) -> Result<CollectionReport> {
    volume.state.remove_stale_temp_files();
    // The collector may be what makes room on a full disk, so it may use the reserve.
    volume.release_reserves();
    let collected = execute_collection(volume, request, meter).and_then(|collected| {
        let operations = volume.thin_operations(&OperationRetention::DEFAULT)?;
        Ok(CollectionReport { operations, ..collected })
    });
    // After a failure, too: the next command on a full disk needs the reserve.
    volume.ensure_reserves();
    collected
}

fn execute_collection(
    volume: &Volume,
    request: &CollectionRequest<'_>,
    meter: &ProgressMeter,
) -> Result<CollectionReport> {
    // Sessions that the user declares dead are ended first: one of them may be the collector's.
    end_sessions(volume, request.ended_sessions)?;
    // Held until the end: what another collector would see half done here, it would take for abandoned packs.
    let claim = SessionClaim::claim_as_collector(volume)?;
    // Before the roots are collected: what the session of a dead reader names would stay until the next collection.
    end_expired_readers(volume, &claim)?;
    let PlannedCollection { mut plan, mut live, without, present } =
        build_collection_plan(volume, request.without, meter)?;
    // A plan that the user approved is a limit, not an order: what became alive since is not in the new plan.
    if let Some(approved) = request.approved {
        let named: HashSet<_> = approved.packs.iter().map(|pack| pack.pack.as_str()).collect();
        plan.packs.retain(|pack| named.contains(pack.pack.as_str()));
    }
    let mut packs = select_packs_to_delete(&plan);
    tracing::info!(packs = packs.len(), "collection planned");
    let mut collected = CollectionReport {
        plan,
        deleted: 0,
        repacked: 0,
        joined: 0,
        freed: 0,
        operations: 0,
        writers: Vec::new(),
    };
    if packs.is_empty() {
        return Ok(collected);
    }
    // Condemned before sessions are looked for: a writer that is not found below reads the index later, and does not
    // rely on these packs.
    volume.blobs.condemn_packs(&select_condemnable(&packs))?;
    // A writer puts its session before it reads the list of condemned packs, and the list is durable by now. So a
    // writer that has no session here will read the list, and one that has may rely on what was just condemned.
    collected.writers = list_active_writers(volume, &claim)?;
    // The packs stay condemned. They can be read meanwhile, and the next collection deletes them.
    if !collected.writers.is_empty() {
        tracing::info!(writers = collected.writers.len(), "collection waits for writers");
        return Ok(collected);
    }
    // Whoever ended since the plan was drawn has a snapshot now: what it relied on is alive.
    volume.blobs.refresh_index()?;
    // Of a store with a source everything is marked anew: what was below a node that only the source had was not marked,
    // and a writer may have stored it here since.
    let before = if volume.blobs.has_source() { std::mem::take(&mut live) } else { LiveBlobs::default() };
    mark_live_blobs(volume, find_live_roots(volume, &without)?.all_roots(), &mut live, meter)?;
    live.add_all(before);
    let needed = find_needed_blobs(volume, &mut packs, &live, &present);
    let needed: Vec<_> = needed.into_iter().collect();
    match volume.blobs.repack_blobs(&needed) {
        Ok(_) => {
            let is_joined = |(pack, _): &&(PackId, _)| packs.get(pack) == Some(&PackAction::Join);
            collected.joined = needed.iter().filter(is_joined).count() as u64;
            collected.repacked = needed.len() as u64 - collected.joined;
        }
        // Copying waits until there is room. What is dead as a whole makes some.
        Err(error) if error.kind() == ErrorKind::NoSpace => {
            packs.retain(|pack, _| needed.iter().all(|(kept, _)| kept != pack));
        }
        Err(error) => return Err(error.into()),
    }
    // Asleep meanwhile? Then another collector may have taken the new packs for abandoned ones.
    claim.check_not_lost()?;
    let mut going: Vec<_> = packs.keys().copied().collect();
    going.sort_unstable();
    collected.deleted = delete_recorded_packs(volume, &going, &claim, meter)?;
    let gone = |pack: &&PackPlan| pack.pack.parse().is_ok_and(|id| packs.contains_key(&id));
    collected.freed = collected.plan.packs.iter().filter(gone).map(|pack| pack.dead).sum();
    Ok(collected)
}

/// Deletes packs, and records that: before, so that a kill does not lose the record, if there is room for it.
fn delete_recorded_packs(
    volume: &Volume,
    packs: &[PackId],
    claim: &SessionClaim,
    meter: &ProgressMeter,
) -> Result<u64> {
    let effect = OperationEffect::collected(packs);
    let pending = match volume.refs.begin_recorded(vec![effect.clone()]) {
        // On a full disk there is no room to record what begins. It is recorded at the end, when the deletions have made room.
        Err(error) if error.kind() == ErrorKind::NoSpace => None,
        pending => pending?,
    };
    let deleted = delete_packs(volume, packs, claim, meter)?;
    match pending {
        Some(pending) => volume.refs.finish_operation(pending)?,
        // The deletions made room.
        None => volume.refs.record_operation(vec![effect])?,
    }
    Ok(deleted)
}

/// Makes the index forget packs, and deletes them in this order. Returns how many.
fn delete_packs(
    volume: &Volume,
    packs: &[PackId],
    claim: &SessionClaim,
    meter: &ProgressMeter,
) -> Result<u64> {
    let excluded = packs.iter().copied().collect();
    // Condemned packs may be missing: the index, and a published listing, can forget them when there is room for new ones.
    let is_replaced = check_room(volume.blobs.drop_packs_from_index(&excluded))?;
    let is_unlisted = check_room(volume.blobs.unlist_packs(&excluded))?;
    // After the index has forgotten them: a crash leaves packs that nobody knows, which the next plan finds, and no
    // entry that leads to nothing.
    let mut deleted = 0;
    for pack in packs {
        meter.check_stopped()?;
        // Deleting many packs of a remote store can take longer than a session lasts.
        claim.renew_if_due()?;
        volume.blobs.delete_pack(pack)?;
        deleted += 1;
    }
    // The deletions made room.
    if !is_replaced {
        volume.blobs.drop_packs_from_index(&excluded)?;
    }
    if !is_unlisted {
        volume.blobs.unlist_packs(&excluded)?;
    }
    Ok(deleted)
}

/// Whether something was written; not if there was no room for it.
fn check_room(written: Result<(), BlobError>) -> Result<bool> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NoSpace => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The packs that are to go.
type PacksToDelete = HashMap<PackId, PackAction>;

fn select_packs_to_delete(plan: &CollectionPlan) -> PacksToDelete {
    let parsed = |pack: &PackPlan| pack.pack.parse().ok().map(|id: PackId| (id, pack.action));
    plan.packs.iter().filter_map(parsed).collect()
}

/// What writers must be told not to rely on. Nobody can rely on a pack that the index does not know; to condemn it
/// would spoil it for a writer who is about to tell the index of it.
fn select_condemnable(going: &PacksToDelete) -> Vec<PackId> {
    going.iter().filter(|(_, action)| **action != PackAction::Abandoned).map(|(pack, _)| *pack).collect()
}

/// The living blobs that are only in packs that are to go.
fn find_needed_blobs(
    volume: &Volume,
    going: &mut PacksToDelete,
    live: &LiveBlobs,
    present: &HashSet<PackId>,
) -> HashMap<PackId, HashSet<BlobId>> {
    let mut needed: HashMap<PackId, HashSet<BlobId>> = HashMap::new();
    volume.blobs.for_each_entry(|id, place| {
        let read = || volume.blobs.locate_in_present(id, |pack| present.contains(pack));
        let copied = || read().is_some_and(|read| read.pack != place.pack);
        if going.contains_key(&place.pack) && live.contains_id(id) && !copied() {
            needed.entry(place.pack).or_default().insert(*id);
        }
    });
    // A pack that nobody knew and somebody has indexed meanwhile is somebody's.
    going.retain(|pack, action| !(*action == PackAction::Abandoned && needed.contains_key(pack)));
    needed.retain(|pack, _| going.contains_key(pack));
    needed
}

/// The writers at work; sessions that are over are cleared away.
fn list_active_writers(volume: &Volume, claim: &SessionClaim) -> Result<Vec<WaitingSession>> {
    let mut writers = Vec::new();
    for other in claim.list_other_sessions()? {
        // Removal is a compare-and-swap: a writer that was only slow and renews at this moment keeps its session
        // and counts as active.
        // What readers need is marked: nobody waits for them.
        if !(other.is_session_over() && other.remove_if_unrenewed(&*volume.objects)? || other.is_reader()) {
            writers.push(other.into_waiting_session());
        }
    }
    Ok(writers)
}
