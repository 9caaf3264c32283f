//! Every object of the store, one kind after the other.

use std::collections::{BTreeSet, HashMap, HashSet};

use rayon::prelude::*;
use vellum_map::MapRoot;
use vellum_store::pack::{PackFlaw, pack_key};
use vellum_store::{BlobOptions, BlobStore, PackFinding, PackInfo, StoreError};
use vellum_types::{BlobKind, ErrorKind, PackId, SnapshotId};

use super::{CheckedAmount, FoundDamage};
use crate::config::{self, CONFIG_OBJECT, VolumeConfig};
use crate::error::{Result, VolumeError};
use crate::progress::ProgressMeter;
use crate::record::SnapshotRecord;
use crate::refs::RefKind;
use crate::session;
use crate::volume::Volume;
use crate::{keyring, volume};

/// Packs that are checked side by side: each is in memory while it is.
const PACKS_AT_ONCE: usize = 4;

/// Local folder for an index that is read anew from the store.
const FRESH_INDEX: &str = "verify-index";

/// Checks all objects; gives the snapshots whose records are sound, and what was read in packs.
pub fn all(
    volume: &Volume,
    metadata_only: bool,
    damage: &mut FoundDamage,
    meter: &ProgressMeter,
) -> Result<(Vec<(SnapshotId, MapRoot)>, CheckedAmount)> {
    config(volume, damage)?;
    for key in volume.objects.list_names("keys/")? {
        note(damage, key.as_str(), keyring::check(&*volume.objects, &key, &volume.keys))?;
    }
    for key in volume.objects.list_names(keyring::REMOVED_PREFIX)? {
        note(damage, key.as_str(), keyring::check_removal(volume, &key))?;
    }
    for key in keyring::find_lost(volume)? {
        damage.object(key.as_str(), "it is missing: it was seen here before, and nobody removed it");
    }
    let mut needed = refs(volume, damage)?;
    for key in volume.objects.list_names("sessions/")? {
        note(damage, key.as_str(), session::check(&*volume.objects, &volume.keys, &key))?;
    }
    let read = packs(volume, metadata_only, damage, meter)?;
    for key in volume.catalog.strangers()? {
        damage.object(key.as_str(), "its name is not that of a snapshot's record");
    }
    let mut sound = Vec::new();
    for id in volume.catalog.ids()? {
        if let Some(record) = checked_record(&id, volume.catalog.fetch(&id), damage)? {
            sound.push((id, record.root));
            needed.extend(record.parents);
        }
    }
    for id in volume.catalog.forgotten_ids()? {
        let fetched = volume.catalog.fetch_forgotten(&id);
        if let Some(record) = note_error(damage, &format!("forgotten/{id}"), fetched)? {
            needed.extend(record.parents);
        }
    }
    // What something stands on, descends from, or was seen here before must be there.
    needed.extend(volume.catalog.known_ids());
    for id in needed {
        if let Err(VolumeError::MissingRecord(_)) = volume.catalog.fetch(&id) {
            damage.object(format!("snapshots/{id}"), "it is missing");
        }
    }
    Ok((sound, read))
}

/// Checks the refs; gives the snapshots that they name.
fn refs(volume: &Volume, damage: &mut FoundDamage) -> Result<BTreeSet<SnapshotId>> {
    let mut named = BTreeSet::new();
    for kind in [RefKind::Worktree, RefKind::Tag] {
        for key in volume.refs.keys(kind)? {
            let target = volume.refs.check(kind, &key).and_then(|found| match (found, kind) {
                (None, _) => Ok(None),
                (Some(head), RefKind::Worktree) => Ok(volume::decode_head(&head)?.head),
                (Some(tag), RefKind::Tag) => volume::decode_tag(&tag).map(Some),
            });
            named.extend(note_error(damage, key.as_str(), target)?.flatten());
        }
    }
    Ok(named)
}

/// Checks the record of one snapshot; gives it if it is sound.
pub fn record(
    volume: &Volume,
    id: &SnapshotId,
    damage: &mut FoundDamage,
) -> Result<Option<(SnapshotId, MapRoot)>> {
    let record = checked_record(id, volume.catalog.fetch(id), damage)?;
    Ok(record.map(|record| (*id, record.root)))
}

fn checked_record(
    id: &SnapshotId,
    fetched: Result<SnapshotRecord>,
    damage: &mut FoundDamage,
) -> Result<Option<SnapshotRecord>> {
    let object = format!("snapshots/{id}");
    if let Err(VolumeError::MissingRecord(_)) = fetched {
        damage.object(object, "it is missing");
        return Ok(None);
    }
    note_error(damage, &object, fetched)
}

fn config(volume: &Volume, damage: &mut FoundDamage) -> Result<()> {
    let read = volume.objects.get(&volume::config_key()?, config::OBJECT_MAX);
    if let Err(StoreError::NotFound { .. }) = read {
        damage.object(CONFIG_OBJECT, "it is missing");
        return Ok(());
    }
    let checked = read.map_err(VolumeError::from).and_then(|bytes| {
        let config = VolumeConfig::decode(&bytes).map_err(VolumeError::decoding(CONFIG_OBJECT))?;
        config.authenticate(&bytes, &volume.keys)
    });
    note(damage, CONFIG_OBJECT, checked)
}

fn note(damage: &mut FoundDamage, object: &str, outcome: Result<()>) -> Result<()> {
    note_error(damage, object, outcome).map(|_| ())
}

/// Damage goes into the report; any other error ends the verification. What is gone since it was listed is neither.
fn note_error<T>(damage: &mut FoundDamage, object: &str, outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
            let reason = match &error {
                VolumeError::Damaged { reason, .. } => reason.clone(),
                VolumeError::Decode { source, .. } => source.to_string(),
                other => other.to_string(),
            };
            damage.object(object, reason);
            Ok(None)
        }
        Err(VolumeError::Store(StoreError::NotFound { .. }) | VolumeError::MissingRecord(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn packs(
    volume: &Volume,
    metadata_only: bool,
    damage: &mut FoundDamage,
    meter: &ProgressMeter,
) -> Result<CheckedAmount> {
    let fresh = fresh_index(volume)?;
    for problem in fresh.index_problems() {
        damage.object(index_object(&problem), problem.to_string());
    }
    let listed = fresh.list_packs()?;
    let known = indexed(&fresh);
    let wanted = |pack: &PackId| match known.get(pack) {
        Some(kind) => !metadata_only || *kind == BlobKind::Node,
        None => true,
    };
    let checked: Vec<_> = listed.iter().filter(|pack| wanted(&pack.id)).collect();
    meter.expect(checked.len() as u64, checked.iter().map(|pack| pack.size).sum());
    let mut flawed = HashSet::new();
    for batch in checked.chunks(PACKS_AT_ONCE) {
        meter.check()?;
        let check = |pack: &&PackInfo| {
            let findings = fresh.check_pack(&pack.id);
            meter.add(1, pack.size);
            findings
        };
        let results: Vec<_> = batch.par_iter().map(check).collect();
        for findings in results {
            for finding in findings? {
                flawed.insert(finding.pack);
                note_pack(damage, finding);
            }
        }
    }
    let present: HashSet<PackId> = listed.iter().map(|pack| pack.id).collect();
    missing(&fresh, |pack| !present.contains(pack) && wanted(pack), &mut flawed, damage)?;
    look_closer(&fresh, &flawed, damage)?;
    let mut read = CheckedAmount::default();
    fresh.for_each_entry(|_, place| {
        if wanted(&place.pack) {
            read.add_stored(place.len);
        }
    });
    remove_fresh_index(volume)?;
    Ok(read)
}

/// The packs that the index knows, and what is in them.
fn indexed(fresh: &BlobStore) -> HashMap<PackId, BlobKind> {
    let mut known = HashMap::new();
    fresh.for_each_entry(|_, place| {
        known.insert(place.pack, place.kind);
    });
    known
}

fn note_pack(damage: &mut FoundDamage, finding: PackFinding) {
    let object = format!("packs/{}", finding.pack);
    match (finding.blob, finding.flaw) {
        (Some((kind, id)), flaw) => damage.blob_in(kind, id, object, flaw.to_string()),
        // Since it was listed; whether that is damage is looked at with the packs that were not.
        (None, PackFlaw::Missing) => {}
        (None, flaw) => damage.object(object, flaw.to_string()),
    }
}

/// Names the packs that are missing, unless a collector just took them away, as the index then says.
fn missing(
    fresh: &BlobStore,
    is_absent: impl Fn(&PackId) -> bool,
    flawed: &mut HashSet<PackId>,
    damage: &mut FoundDamage,
) -> Result<()> {
    fresh.refresh()?;
    let condemned = fresh.condemned();
    for pack in indexed(fresh).keys() {
        if !is_absent(pack) && !flawed.contains(pack) {
            continue;
        }
        match fresh.objects().size(&pack_key(pack)) {
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
            damage.object(format!("packs/{pack}"), "it is missing");
        }
    }
    Ok(())
}

/// Reads, one by one and wherever they are, the blobs that should be in packs that are not as they should be.
fn look_closer(fresh: &BlobStore, flawed: &HashSet<PackId>, damage: &mut FoundDamage) -> Result<()> {
    let mut suspects = Vec::new();
    fresh.for_each_entry(|id, place| {
        if flawed.contains(&place.pack) {
            suspects.push((place.kind, *id, place.pack));
        }
    });
    let condemned = fresh.condemned();
    for (kind, id, pack) in suspects {
        match fresh.read(kind, &id) {
            Ok(_) => {}
            Err(error) if !matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
                return Err(error.into());
            }
            Err(_) if condemned.contains_key(&pack) => damage.unneeded(kind, id),
            Err(error) => damage.blob_in(kind, id, format!("packs/{pack}"), error.to_string()),
        }
    }
    Ok(())
}

/// The index as the store has it, not as it was copied once.
fn fresh_index(volume: &Volume) -> Result<BlobStore> {
    remove_fresh_index(volume)?;
    let local = volume.state.join(FRESH_INDEX);
    Ok(BlobStore::open(volume.objects.clone(), volume.keys.clone(), &local, BlobOptions::default())?)
}

fn remove_fresh_index(volume: &Volume) -> Result<()> {
    let local = volume.state.join(FRESH_INDEX);
    match std::fs::remove_dir_all(&local) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(VolumeError::local(local)(error)),
        _ => Ok(()),
    }
}

fn index_object(problem: &vellum_store::BlobError) -> String {
    match problem {
        vellum_store::BlobError::Index { name, .. } => format!("index/{name}"),
        _ => "index".into(),
    }
}
