//! Every object of the store, one kind after the other.

use std::collections::HashSet;

use rayon::prelude::*;
use vellum_map::Root;
use vellum_store::{BlobStore, Options, StoreError};
use vellum_types::{BlobKind, ErrorKind, PackId, SnapshotId};

use super::Damage;
use crate::config::{CONFIG_OBJECT, Config};
use crate::error::{Result, VolumeError};
use crate::progress::Meter;
use crate::refs::RefKind;
use crate::session;
use crate::volume::Volume;
use crate::{keyring, volume};

/// Packs that are checked side by side: each is in memory while it is.
const PACKS_AT_ONCE: usize = 4;

/// Local folder for an index that is read anew from the store.
const FRESH_INDEX: &str = "verify-index";

/// Checks all objects; gives the snapshots whose records are sound.
pub fn all(
    volume: &Volume,
    metadata_only: bool,
    damage: &mut Damage,
    meter: &Meter,
) -> Result<Vec<(SnapshotId, Root)>> {
    config(volume, damage)?;
    for key in volume.objects.list_names("keys/")? {
        note(damage, key.as_str(), keyring::check(&*volume.objects, &key, &volume.keys))?;
    }
    for kind in [RefKind::Worktree, RefKind::Tag] {
        for key in volume.refs.keys(kind)? {
            note(damage, key.as_str(), volume.refs.check(kind, &key))?;
        }
    }
    for key in volume.objects.list_names("sessions/")? {
        note(damage, key.as_str(), session::check(&*volume.objects, &volume.keys, &key))?;
    }
    packs(volume, metadata_only, damage, meter)?;
    let mut sound = Vec::new();
    for id in volume.catalog.ids()? {
        sound.extend(record(volume, &id, damage)?);
    }
    for id in volume.catalog.forgotten_ids()? {
        record(volume, &id, damage)?;
    }
    Ok(sound)
}

/// Checks the record of one snapshot; gives it if it is sound.
pub fn record(volume: &Volume, id: &SnapshotId, damage: &mut Damage) -> Result<Option<(SnapshotId, Root)>> {
    match volume.catalog.fetch(id) {
        Ok(record) => Ok(Some((*id, record.root))),
        Err(VolumeError::MissingRecord(_)) => {
            damage.object(format!("snapshots/{id}"), "it is missing");
            Ok(None)
        }
        Err(error) => note(damage, &format!("snapshots/{id}"), Err(error)).map(|()| None),
    }
}

fn config(volume: &Volume, damage: &mut Damage) -> Result<()> {
    let bytes = volume.objects.get(&volume::config_key()?)?;
    let checked = Config::decode(&bytes)
        .map_err(VolumeError::decoding(CONFIG_OBJECT))
        .and_then(|config| config.authenticate(&bytes, &volume.keys));
    note(damage, CONFIG_OBJECT, checked)
}

/// Damage goes into the report; any other error ends the verification.
fn note(damage: &mut Damage, object: &str, outcome: Result<()>) -> Result<()> {
    match outcome {
        Ok(()) => Ok(()),
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
            let reason = match &error {
                VolumeError::Damaged { reason, .. } => reason.clone(),
                VolumeError::Decode { source, .. } => source.to_string(),
                other => other.to_string(),
            };
            damage.object(object, reason);
            Ok(())
        }
        Err(VolumeError::Store(StoreError::NotFound { .. })) => Ok(()),
        Err(error) => Err(error),
    }
}

fn packs(volume: &Volume, metadata_only: bool, damage: &mut Damage, meter: &Meter) -> Result<()> {
    let fresh = fresh_index(volume)?;
    for problem in fresh.index_problems() {
        damage.object(index_object(&problem), problem.to_string());
    }
    let listed = fresh.list_packs()?;
    let (mut wanted, mut known) = (HashSet::new(), HashSet::new());
    fresh.for_each_entry(|_, place| {
        known.insert(place.pack);
        if !metadata_only || place.kind == BlobKind::Node {
            wanted.insert(place.pack);
        }
    });
    let present: HashSet<PackId> = listed.iter().map(|pack| pack.id).collect();
    let lost: HashSet<PackId> =
        known.iter().filter(|pack| !present.contains(*pack) && wanted.contains(*pack)).copied().collect();
    let checked: Vec<_> =
        listed.iter().filter(|pack| wanted.contains(&pack.id) || !known.contains(&pack.id)).collect();
    meter.expect(checked.len() as u64, checked.iter().map(|pack| pack.size).sum());
    for batch in checked.chunks(PACKS_AT_ONCE) {
        meter.check()?;
        let results: Vec<_> = batch
            .par_iter()
            .map(|pack| {
                let findings = fresh.check_pack(&pack.id);
                meter.add(1, pack.size);
                findings
            })
            .collect();
        for (pack, findings) in batch.iter().zip(results) {
            damage.read_bytes += pack.size;
            for finding in findings? {
                let object = format!("packs/{}", finding.pack);
                match finding.blob {
                    Some((kind, id)) => damage.blob_in(kind, id, object, finding.flaw.to_string()),
                    None => damage.object(object, finding.flaw.to_string()),
                }
            }
        }
    }
    for pack in &lost {
        damage.object(format!("packs/{pack}"), "it is missing");
    }
    fresh.for_each_entry(|id, place| {
        damage.read_blobs += u64::from(wanted.contains(&place.pack));
        if lost.contains(&place.pack) && !elsewhere(&fresh, id, &lost) {
            let problem = format!("its pack {} is missing", place.pack);
            damage.blob_in(place.kind, *id, format!("packs/{}", place.pack), problem);
        }
    });
    remove_fresh_index(volume)
}

fn elsewhere(fresh: &BlobStore, id: &vellum_types::BlobId, lost: &HashSet<PackId>) -> bool {
    fresh.locate(id).is_some_and(|place| !lost.contains(&place.pack))
}

/// The index as the store has it, not as it was copied once.
fn fresh_index(volume: &Volume) -> Result<BlobStore> {
    remove_fresh_index(volume)?;
    let local = volume.state.join(FRESH_INDEX);
    Ok(BlobStore::open(volume.objects.clone(), volume.keys.clone(), &local, Options::default())?)
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
