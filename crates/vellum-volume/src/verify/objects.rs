//! Every object of the store: first the small ones, then packs and the records of snapshots.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use rayon::prelude::*;
use vellum_host::ProgressMeter;
use vellum_host::parallel::run_parallel;
use vellum_store::pack::{PackFlaw, pack_key};
use vellum_store::{BlobOptions, BlobStore, PackFinding, PackRangeCheck, StoreError, map_requests};
use vellum_types::{BlobKind, ErrorKind, LookupResult, PackId, SnapshotId};

use super::small_objects::{self, NamedByRefs};
use super::verified_packs::{IdSlice, PackPart, PackReading, PartReport, VerifiedPacks};
use super::{CheckedAmount, FoundDamage, TreeOwner, VerifiedTree};
use crate::error::{Result, VolumeError};
use crate::record::SnapshotRecord;
use crate::refs::WorktreeHead;
use crate::volume::Volume;

/// Packs of a service that are checked side by side: each is in memory while it is.
const PACKS_AT_ONCE: usize = 4;
/// The same of a directory. All processors check the blobs of one pack, so a second one is only read meanwhile; the memory of
/// more has to be given by the kernel first.
const LOCAL_PACKS_AT_ONCE: usize = 2;

/// Records of snapshots that are read together, and are in memory at once.
pub const RECORDS_AT_ONCE: usize = 1024;

/// Local folder for an index that is read anew from the store.
pub const FRESH_INDEX_FOLDER: &str = "verify-index";

/// What the objects of a store have.
pub struct CheckedObjects {
    /// The trees of snapshots whose records are sound.
    pub snapshots: Vec<VerifiedTree>,
    /// The trees that refs alone name.
    pub unsnapshotted: Vec<VerifiedTree>,
    /// How much was read in packs.
    pub read: CheckedAmount,
}

/// Checks all objects of the store.
pub fn check_all_objects(
    volume: &Volume,
    metadata_only: bool,
    damage: &mut FoundDamage,
    meter: &ProgressMeter,
) -> Result<CheckedObjects> {
    // Refs before records, as a writer puts its record first: what a ref names is there when records are listed.
    let NamedByRefs { snapshots: needed, unsnapshotted } = small_objects::check_all(volume, damage)?;
    let choice = PackChoice { metadata_only, part: None };
    let read = check_packs(volume, &choice, damage, meter)?.read;
    let snapshots = check_records(volume, needed, damage, meter)?;
    Ok(CheckedObjects { snapshots, unsnapshotted, read })
}

/// The trees of all snapshots whose records can be read, and of what refs alone name.
pub fn list_readable_trees(volume: &Volume) -> Result<Vec<VerifiedTree>> {
    let sound = volume.catalog.read_all_records()?.sound;
    let mut trees: Vec<_> = sound.iter().map(|(id, record)| VerifiedTree::of_snapshot(id, record)).collect();
    trees.extend(list_unsnapshotted_trees(volume)?);
    Ok(trees)
}

/// Which packs are read.
pub struct PackChoice {
    /// Those with nodes only.
    pub metadata_only: bool,
    /// Only these; none: all.
    pub part: Option<PackPart>,
}

/// Packs that were looked at.
pub struct CheckedPacks {
    pub read: CheckedAmount,
    pub part: Option<PartReport>,
    /// Those that were read.
    pub packs: HashSet<PackId>,
    /// The records that a sample looks at.
    pub(super) slice: Option<IdSlice>,
}

/// Checks the records of all snapshots; those of `needed` must be there. Returns the trees of those that are sound.
fn check_records(
    volume: &Volume,
    mut needed: BTreeSet<SnapshotId>,
    damage: &mut FoundDamage,
    meter: &ProgressMeter,
) -> Result<Vec<VerifiedTree>> {
    let mut sound = Vec::new();
    let live = volume.catalog.list_ids()?;
    let mut met: BTreeSet<SnapshotId> = live.iter().copied().collect();
    for ids in live.chunks(RECORDS_AT_ONCE) {
        meter.check_stopped()?;
        let fetched = map_requests(&*volume.objects, ids, |id| volume.catalog.fetch_record(id));
        for (id, fetched) in ids.iter().zip(fetched) {
            if let Some(record) = accept_record(id, fetched, damage)? {
                sound.push(VerifiedTree::of_snapshot(id, &record));
                needed.extend(record.parents);
            }
        }
    }
    for ids in volume.catalog.list_forgotten_ids()?.chunks(RECORDS_AT_ONCE) {
        meter.check_stopped()?;
        let fetched = map_requests(&*volume.objects, ids, |id| volume.catalog.fetch_forgotten_record(id));
        for (id, fetched) in ids.iter().zip(fetched) {
            // Its tree may be gone: a forgotten snapshot only leads to its parents.
            if let Some(record) = record_if_damage(damage, &format!("forgotten/{id}"), fetched)? {
                met.insert(*id);
                needed.extend(record.parents);
            }
        }
    }
    // A record that was seen here must still be there, even if nothing in the store names it any more.
    needed.extend(volume.catalog.known_ids());
    check_needed_records(volume, &needed, &met, damage);
    Ok(sound)
}

/// Names the records that are missing: what something stands on, descends from, or was seen here before must be there. `met`
/// are those that are listed.
pub fn check_needed_records(
    volume: &Volume,
    needed: &BTreeSet<SnapshotId>,
    met: &BTreeSet<SnapshotId>,
    damage: &mut FoundDamage,
) {
    for id in needed.difference(met) {
        // Whatever else may be wrong with it was reported above, with the records that are listed.
        if let Err(VolumeError::MissingRecord(_)) = volume.catalog.fetch_record(id) {
            damage.add_object(format!("snapshots/{id}"), "it is missing");
        }
    }
}

/// The trees that a worktree's ref alone names.
pub fn list_trees_of_head(name: &str, head: &WorktreeHead) -> Vec<VerifiedTree> {
    let live =
        head.live.map(|tree| VerifiedTree { owner: TreeOwner::Worktree(name.into()), root: tree.root });
    let trash = head.trash.tree;
    let trash = trash.map(|tree| VerifiedTree { owner: TreeOwner::Trash(name.into()), root: tree.root });
    live.into_iter().chain(trash).collect()
}

/// Returns the trees that refs alone name at this moment.
pub fn list_unsnapshotted_trees(volume: &Volume) -> Result<Vec<VerifiedTree>> {
    let (heads, _) = volume.list_readable_worktrees()?;
    Ok(heads.iter().flat_map(|(name, head)| list_trees_of_head(name, head)).collect())
}

/// Checks the record of one snapshot. Returns the snapshot with its tree if the record is sound.
pub fn check_record(
    volume: &Volume,
    id: &SnapshotId,
    damage: &mut FoundDamage,
) -> Result<Option<VerifiedTree>> {
    let record = accept_record(id, volume.catalog.fetch_record(id), damage)?;
    Ok(record.map(|record| VerifiedTree::of_snapshot(id, &record)))
}

impl VerifiedTree {
    pub fn of_snapshot(id: &SnapshotId, record: &SnapshotRecord) -> Self {
        Self { owner: TreeOwner::Snapshot(id.to_string()), root: record.root }
    }
}

pub fn accept_record(
    id: &SnapshotId,
    fetched: Result<SnapshotRecord>,
    damage: &mut FoundDamage,
) -> Result<Option<SnapshotRecord>> {
    let object = format!("snapshots/{id}");
    // A record that is forgotten meanwhile is still found. One that is in neither folder is lost.
    if let Err(VolumeError::MissingRecord(_)) = fetched {
        damage.add_object(object, "it is missing");
        return Ok(None);
    }
    record_if_damage(damage, &object, fetched)
}

pub fn record_outcome(damage: &mut FoundDamage, object: &str, outcome: Result<()>) -> Result<()> {
    record_if_damage(damage, object, outcome).map(|_| ())
}

/// Damage goes into the report; any other error ends the verification. What is gone since it was listed is neither.
pub fn record_if_damage<T>(damage: &mut FoundDamage, object: &str, outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
            let reason = match &error {
                VolumeError::Damaged { reason, .. } => reason.clone(),
                VolumeError::Decode { source, .. } => source.to_string(),
                other => other.to_string(),
            };
            damage.add_object(object, reason);
            Ok(None)
        }
        Err(VolumeError::Store(StoreError::NotFound { .. }) | VolumeError::MissingRecord(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

pub fn check_packs(
    volume: &Volume,
    choice: &PackChoice,
    damage: &mut FoundDamage,
    meter: &ProgressMeter,
) -> Result<CheckedPacks> {
    // Not the index at hand, which may still have what the store has lost.
    let fresh = open_fresh_index(volume)?;
    for problem in fresh.index_problems() {
        damage.index_gaps += 1;
        damage.add_object(index_object_name(&problem), problem.to_string());
    }
    // The index before the packs: what is put in between is listed and not known, and is checked all the same.
    let mut listed = fresh.list_packs()?;
    let present: HashSet<PackId> = listed.iter().map(|pack| pack.id).collect();
    let known = fresh.indexed_packs();
    // A repair or a collection has let the index forget these: nothing is read from them, and the collector deletes them.
    let condemned = fresh.condemned_packs();
    listed.retain(|pack| known.contains_key(&pack.id) || !condemned.contains_key(&pack.id));
    damage.index_gaps += listed.iter().filter(|pack| !known.contains_key(&pack.id)).count();
    let wanted = |pack: &PackId| match known.get(pack) {
        Some(kind) => !choice.metadata_only || *kind == BlobKind::Node,
        // A pack that the index does not know may hold anything.
        None => true,
    };
    let mut verified = VerifiedPacks::read_from_state(&volume.state);
    verified.retain_listed(&listed);
    let checked = match choice.part {
        Some(part) => verified.select_packs(part, &listed),
        None => listed.iter().filter(|pack| wanted(&pack.id)).copied().map(PackReading::whole).collect(),
    };
    let outcome = read_packs(&fresh, &checked, &mut verified, damage, meter);
    // Of a run that was stopped, the next one looks at the same records.
    let slice = match choice.part {
        Some(PackPart::Sample(percent)) if outcome.is_ok() => Some(verified.take_slice(percent)),
        Some(PackPart::Sample(_) | PackPart::SinceLast) | None => None,
    };
    // Also what was read before the run was stopped.
    let noted = verified.write_to_state(&volume.state);
    let ReadPacks { mut flawed, ranges } = outcome?;
    forget_replaced_packs(&fresh, &known, &flawed, damage);
    check_missing_packs(&fresh, |pack| !present.contains(pack) && wanted(pack), &mut flawed, damage)?;
    check_flawed_blobs(&fresh, &flawed, damage)?;
    forget_replaced_blobs(&fresh, damage)?;
    let mut read = CheckedAmount::default();
    // Of all packs also those count that are missing: their blobs were looked for.
    let is_counted = |pack: &PackId| wanted(pack) && (choice.part.is_none() || ranges.contains_key(pack));
    fresh.for_each_entry_in(is_counted, |_, place| {
        let is_read =
            || ranges.get(&place.pack).is_some_and(|range| range.contains(&u64::from(place.offset)));
        if choice.part.is_none() || is_read() {
            read.add_stored_bytes(place.len);
        }
    });
    remove_fresh_index(volume)?;
    let part = choice.part.map(|part| PartReport {
        packs: checked.len() as u64,
        of: listed.len() as u64,
        left: verified.list_left(part, &listed).len() as u64,
        not_noted: noted.err().map(|error| error.to_string()),
    });
    Ok(CheckedPacks { read, part, packs: ranges.into_keys().collect(), slice })
}

/// Packs that were read.
#[derive(Default)]
struct ReadPacks {
    /// Those that are not intact.
    flawed: HashSet<PackId>,
    /// Which bytes of each.
    ranges: HashMap<PackId, Range<u64>>,
}

/// Reads packs, and notes those that are intact.
fn read_packs(
    fresh: &BlobStore,
    checked: &[PackReading],
    verified: &mut VerifiedPacks,
    damage: &mut FoundDamage,
    meter: &ProgressMeter,
) -> Result<ReadPacks> {
    meter.set_expected_total(checked.len() as u64, checked.iter().map(PackReading::count_bytes).sum());
    let mut read = ReadPacks::default();
    let objects = fresh.object_store();
    let is_local = objects.parallel_get_count() <= 1;
    let at_once = if is_local { LOCAL_PACKS_AT_ONCE } else { PACKS_AT_ONCE };
    for batch in checked.chunks(at_once) {
        meter.check_stopped()?;
        let check = |reading: &PackReading| {
            let found = match reading.range {
                Some(range) => fresh.check_pack_range(&reading.pack.id, range),
                None => {
                    fresh.check_pack(&reading.pack.id).map(|findings| PackRangeCheck { findings, next: None })
                }
            };
            meter.add_progress(1, reading.count_bytes());
            found
        };
        // Of a service, what takes the time is the answers, not the processors.
        let results: Vec<_> = match is_local {
            true => run_parallel(|| batch.par_iter().map(check).collect()),
            false => map_requests(&**objects, batch, check),
        };
        for (reading, found) in batch.iter().zip(results) {
            let PackRangeCheck { findings, next } = found?;
            let pack = &reading.pack.id;
            let from = reading.range.map_or(0, |range| range.from);
            // Without a next place, the pack was read to its end.
            read.ranges.insert(*pack, from..next.unwrap_or(u64::MAX));
            match (findings.is_empty(), next) {
                (true, Some(next)) => verified.note_begun(pack, next),
                (true, None) => verified.note_intact(pack),
                (false, _) => verified.note_damaged(pack),
            }
            for finding in findings {
                read.flawed.insert(finding.pack);
                record_pack_finding(damage, finding);
            }
        }
    }
    Ok(read)
}

fn record_pack_finding(damage: &mut FoundDamage, finding: PackFinding) {
    let object = format!("packs/{}", finding.pack);
    match (finding.blob, finding.flaw) {
        (Some((kind, id)), flaw) => damage.add_blob_in_pack(kind, id, object, flaw.to_string()),
        // Since it was listed; whether that is damage is looked at with the packs that were not.
        (None, PackFlaw::Missing) => {}
        (None, flaw) => damage.add_object(object, flaw.to_string()),
    }
}

/// Takes off the damage what nothing is read from any more: packs that the index does not know, if it has all their blobs
/// elsewhere. A repair leaves such packs to the collector.
fn forget_replaced_packs(
    fresh: &BlobStore,
    known: &HashMap<PackId, BlobKind>,
    flawed: &HashSet<PackId>,
    damage: &mut FoundDamage,
) {
    for pack in flawed.iter().filter(|pack| !known.contains_key(pack)) {
        let object = format!("packs/{pack}");
        let hit = damage.packs.iter().filter(|(_, packs)| packs.contains(&object));
        let blobs: Vec<_> = hit.map(|(id, _)| *id).collect();
        // The index does not know this pack, so that a place which it has for a blob is in another one.
        if blobs.is_empty() || !blobs.iter().all(|id| fresh.locate_blob(id).is_some()) {
            continue;
        }
        damage.objects.remove(&object);
        for id in blobs {
            let others = damage.packs.get_mut(&id).map_or(0, |packs| {
                packs.remove(&object);
                packs.len()
            });
            if others == 0 {
                damage.packs.remove(&id);
                damage.blobs.remove(&id);
            }
        }
    }
}

/// Takes off the damage the blobs of damaged packs of which there is a copy elsewhere that can be read. The packs stay in the
/// report as long as the index names them.
fn forget_replaced_blobs(fresh: &BlobStore, damage: &mut FoundDamage) -> Result<()> {
    let FoundDamage { blobs, packs, .. } = damage;
    let mut replaced = Vec::new();
    for id in packs.keys() {
        let Some((kind, _)) = blobs.get(id) else { continue };
        // Read, and not only looked up: a verification of a part has not read the other packs.
        match fresh.read_blob(*kind, id) {
            Ok(_) => replaced.push(*id),
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for id in replaced {
        blobs.remove(&id);
        packs.remove(&id);
    }
    Ok(())
}

/// Names the packs that are missing, unless a collector just took them away, as the index then says.
fn check_missing_packs(
    fresh: &BlobStore,
    is_absent: impl Fn(&PackId) -> bool,
    flawed: &mut HashSet<PackId>,
    damage: &mut FoundDamage,
) -> Result<()> {
    // Read again after the packs: a collector lets the index forget a pack before it deletes it, so that what the
    // index knows now and the store does not have is lost.
    fresh.refresh_index()?;
    let condemned = fresh.condemned_packs();
    for pack in fresh.indexed_packs().keys() {
        if !is_absent(pack) && !flawed.contains(pack) {
            continue;
        }
        match fresh.object_store().object_size(&pack_key(pack)) {
            Ok(_) => continue,
            Err(StoreError::NotFound { .. }) => flawed.insert(*pack),
            // It was named with the packs that are listed.
            Err(StoreError::NotAFile { .. }) => {
                flawed.insert(*pack);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        // A client that slept may have brought back what the index said of a pack that was deleted since.
        if !condemned.contains_key(pack) {
            damage.add_object(format!("packs/{pack}"), "it is missing");
        }
    }
    Ok(())
}

/// Reads, one by one and wherever they are, the blobs that should be in packs that are not as they should be.
fn check_flawed_blobs(fresh: &BlobStore, flawed: &HashSet<PackId>, damage: &mut FoundDamage) -> Result<()> {
    if flawed.is_empty() {
        return Ok(());
    }
    let mut suspects = Vec::new();
    fresh.for_each_entry_in(
        |pack| flawed.contains(pack),
        |id, place| suspects.push((place.kind, *id, place.pack)),
    );
    let condemned = fresh.condemned_packs();
    for (kind, id, pack) in suspects {
        // There may be a sound copy in another pack: then nothing is lost.
        match fresh.read_blob(kind, &id) {
            Ok(_) => {}
            Err(error) if !matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
                return Err(error.into());
            }
            Err(_) if condemned.contains_key(&pack) => damage.add_unneeded_blob(kind, id),
            Err(error) => damage.add_blob_in_pack(kind, id, format!("packs/{pack}"), error.to_string()),
        }
    }
    Ok(())
}

/// The index as the store has it, not as it was copied once.
fn open_fresh_index(volume: &Volume) -> Result<BlobStore> {
    // A killed verification may have left one, which is as old as that.
    remove_fresh_index(volume)?;
    let local = volume.state.join(FRESH_INDEX_FOLDER);
    Ok(BlobStore::open(volume.objects.clone(), volume.keys.clone(), &local, BlobOptions::default())?)
}

fn remove_fresh_index(volume: &Volume) -> Result<()> {
    let local = volume.state.join(FRESH_INDEX_FOLDER);
    std::fs::remove_dir_all(&local).ignore_missing().map_err(VolumeError::wrap_local_error(local))
}

fn index_object_name(problem: &vellum_store::BlobError) -> String {
    match problem {
        vellum_store::BlobError::Index { name, .. } => format!("index/{name}"),
        _ => "index".into(),
    }
}
