//! The slots of a volume in another store of it.

use vellum_crypto::{ExchangePublic, KeyEpoch, KeySlot, RecordDomain};
use vellum_store::{ObjectKey, StoreError};
use vellum_types::LookupResult;

use super::{
    OBJECT_MAX, REMOVED_PREFIX, SLOT_PREFIX, check_key_slot, damaged_slot_error, decode_slot_object,
    delete_slot_object, put_key_slot, put_unless_there, removal_note_key,
};
use crate::device;
use crate::error::{Result, VolumeError};
use crate::key_epochs::{self, parse_slot_id, put_slot_key};
use crate::operations::{KeyChange, OperationEffect};
use crate::volume::Volume;

/// Copies a sealed record into another store of the volume: as it is if both stores have the first key only, else sealed
/// anew with the key of that store.
pub(crate) fn copy_sealed_record(from: &Volume, to: &Volume, key: &ObjectKey, sealed: &[u8]) -> Result<()> {
    let aad = key.as_str().as_bytes();
    let mut plain = Vec::new();
    let epoch = from
        .keys
        .open_record_in_epoch(RecordDomain::Config, aad, sealed, &mut plain)
        .map_err(|error| damaged_slot_error(key, error.to_string()))?;
    // The first key is that of the volume, which all its stores share. Later ones are those of a single store.
    if epoch == KeyEpoch::FIRST && to.keys.newest_epoch() == KeyEpoch::FIRST {
        return put_unless_there(&*to.objects, key, sealed);
    }
    let mut anew = Vec::new();
    to.keys.seal_record(RecordDomain::Config, aad, &plain, &mut anew);
    put_unless_there(&*to.objects, key, &anew)
}

/// A slot that another store of the volume lacks.
struct MissingSlot {
    key: ObjectKey,
    bytes: Vec<u8>,
    slot: KeySlot,
    public: Option<ExchangePublic>,
}

/// A slot that another store of the volume still has, with the sealed note that it was removed here.
struct RemovedSlot {
    key: ObjectKey,
    note: ObjectKey,
    sealed: Vec<u8>,
}

/// Brings the slots of another store of the volume up to date: adds what it lacks, and removes what was removed here. A
/// slot that was removed there stays removed. The records of devices come before the slots. What changes is recorded there as an
/// operation.
pub(crate) fn copy_key_slots(from: &Volume, to: &Volume) -> Result<()> {
    if !from.config.encrypted {
        return Ok(());
    }
    // Before the slots, as in `add_device`: a slot must not open the volume before it belongs to a device.
    device::copy_device_records(from, to)?;
    let there = to.objects.list_keys(SLOT_PREFIX)?;
    let missing = find_missing_slots(from, to, &there)?;
    let removed = find_removed_slots(from, there)?;
    if missing.is_empty() && removed.is_empty() {
        return Ok(());
    }
    let subject = |slot: &KeySlot| format!("{} {}", slot.id(), slot.label());
    let added = missing.iter().map(|it| OperationEffect::key(KeyChange::SlotAdded, &subject(&it.slot)));
    let gone = removed.iter().map(|it| OperationEffect::key(KeyChange::SlotRemoved, it.key.name()));
    to.record_effects_around(added.chain(gone).collect(), || {
        missing.iter().try_for_each(|slot| copy_slot(from, to, slot))?;
        removed.iter().try_for_each(|slot| remove_copied_slot(from, to, slot))
    })
}

fn find_missing_slots(from: &Volume, to: &Volume, there: &[ObjectKey]) -> Result<Vec<MissingSlot>> {
    let removed_there = to.objects.list_keys(REMOVED_PREFIX)?;
    let is_missing = |key: &ObjectKey| -> Result<bool> {
        Ok(!there.contains(key) && !removed_there.contains(&removal_note_key(key)?))
    };
    let mut keys = Vec::new();
    for key in from.objects.list_keys(SLOT_PREFIX)? {
        if is_missing(&key)? {
            keys.push(key);
        }
    }
    // Most often nothing is missing: then no slot is read.
    let active = if keys.is_empty() { Vec::new() } else { key_epochs::list_active_slots(from)? };
    let mut missing = Vec::new();
    for key in keys {
        let known = active.iter().find(|slot| parse_slot_id(&key) == Some(slot.slot));
        let public = known.and_then(|slot| slot.public);
        // In a store whose key was changed, one without a public key that counts may have been put by a revoked device.
        if public.is_some() || known.is_some() && from.keys.newest_epoch() == KeyEpoch::FIRST {
            // A forged slot must not get this far: `to` would seal it with its own key, and so vouch for it.
            check_key_slot(&*from.objects, &key, &from.keys)?;
            let bytes = from.objects.get_object(&key, OBJECT_MAX)?;
            let slot = decode_slot_object(&key, &bytes)?;
            missing.push(MissingSlot { key, bytes, slot, public });
        }
    }
    Ok(missing)
}

fn find_removed_slots(from: &Volume, there: Vec<ObjectKey>) -> Result<Vec<RemovedSlot>> {
    let mut removed = Vec::new();
    for key in there {
        let note = removal_note_key(&key)?;
        if let Some(sealed) = from.objects.get_object(&note, OBJECT_MAX).none_if_missing()? {
            removed.push(RemovedSlot { key, note, sealed });
        }
    }
    Ok(removed)
}

/// Copies a slot with its public key into another store of the volume, which wraps its own key for it.
fn copy_slot(from: &Volume, to: &Volume, missing: &MissingSlot) -> Result<()> {
    let MissingSlot { key, bytes, slot, public } = missing;
    if let Some(public) = public {
        // Before the slot: without a public key, it would stop the next rotation there.
        put_slot_key(to, slot.id(), public)?;
    }
    // With the same key on both sides, the bytes are valid there as they are.
    let is_first = |volume: &Volume| volume.keys.newest_epoch() == KeyEpoch::FIRST;
    if is_first(from) && is_first(to) {
        return put_unless_there(&*to.objects, key, bytes);
    }
    match put_key_slot(&*to.objects, slot, &to.keys) {
        Err(VolumeError::Store(StoreError::Exists { .. })) => Ok(()),
        outcome => outcome,
    }
}

fn remove_copied_slot(from: &Volume, to: &Volume, removed: &RemovedSlot) -> Result<()> {
    copy_sealed_record(from, to, &removed.note, &removed.sealed)?;
    // After the note, here too: without one, a verification of that store would report the slot as lost.
    delete_slot_object(&*to.objects, &removed.key)
}
