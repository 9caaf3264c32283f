//! The public keys of slots, for which the master keys of later epochs are wrapped.
//!
//! Invariant: a public key counts only if it is sealed with the newest key, or the newest epoch was begun with it. One that
//! was put by a device that was revoked since is worth nothing.

use vellum_crypto::slots::KeySlotId;
use vellum_crypto::{ExchangePublic, RecordDomain};
use vellum_store::{ObjectKey, StoreError};
use vellum_types::LookupResult;

use super::record::{
    SLOT_KEY_OBJECT_MAX, SLOT_KEY_PREFIX, SlotGrant, SlotKeyRecord, build_slot_key_data, build_wrapping_data,
    decode_slot_public, encode_slot_public,
};
use crate::error::{Result, VolumeError, is_data_loss};
use crate::volume::Volume;
use crate::{device, keyring};

/// The object with the public key of a slot.
pub(crate) fn slot_key_object(slot: KeySlotId) -> Result<ObjectKey> {
    Ok(ObjectKey::new(format!("{SLOT_KEY_PREFIX}{slot}"))?)
}

/// Stores the public key of a slot, and wraps the newest master key for it, unless that was done.
pub(crate) fn put_slot_key(volume: &Volume, slot: KeySlotId, public: &ExchangePublic) -> Result<()> {
    let key = slot_key_object(slot)?;
    // The slot itself holds the first key only. Without this grant it would not open what was sealed since a
    // rotation.
    let newest = volume.epochs.read_newest_master()?;
    let wrap = |newest: &super::kept::EpochMaster| {
        let data = build_wrapping_data(volume.config.volume, newest.epoch, slot);
        let wrapped = public.wrap_master_key(&newest.master, &data)?;
        Some(SlotGrant { epoch: newest.epoch, wrapped })
    };
    let grant = newest.as_ref().and_then(wrap);
    let mut seal = Vec::new();
    let data = build_slot_key_data(&key, grant.as_ref());
    volume.keys.seal_record(RecordDomain::Config, &data, &encode_slot_public(public), &mut seal);
    let record = SlotKeyRecord { grant, seal }.encode();
    match volume.objects.put_object(&key, &record) {
        // It may be the same key, put by an attempt that was killed before it put the slot.
        Err(StoreError::Exists { .. }) => {}
        other => return Ok(other?),
    }
    match read_slot_public(volume, slot) {
        Ok(Some(there)) if there == *public => return Ok(()),
        Ok(_) => {}
        Err(error) if is_data_loss(&error) => {}
        Err(error) => return Err(error),
    }
    // It is damaged, of an earlier epoch, or somebody else's.
    volume.objects.delete_object(&key)?;
    Ok(volume.objects.put_object(&key, &record)?)
}

/// As [`put_slot_key`], for a slot that most likely has a public key already: looks first.
pub(crate) fn ensure_slot_key(volume: &Volume, slot: KeySlotId, public: &ExchangePublic) -> Result<()> {
    match read_slot_public(volume, slot) {
        Ok(Some(there)) if there == *public => Ok(()),
        Ok(_) => put_slot_key(volume, slot, public),
        Err(error) if is_data_loss(&error) => put_slot_key(volume, slot, public),
        Err(error) => Err(error),
    }
}

/// Brings the slots of another store of the volume up to date before its key is changed: those that were added or removed
/// here are there, and so are the public keys that early versions did not take along.
pub fn bring_slots_up_to_date(from: &Volume, to: &Volume) -> Result<()> {
    // What is copied is opened with the keys of one store and sealed with those of the other: both must be the newest.
    from.epochs.refresh_keys()?;
    to.epochs.refresh_keys()?;
    keyring::copy_key_slots(from, to)?;
    let known = list_active_slots(from)?;
    for slot in list_active_slots(to)?.into_iter().filter(|slot| slot.public.is_none()) {
        let same = known.iter().find(|known| known.slot == slot.slot);
        if let Some(public) = same.and_then(|known| known.public) {
            put_slot_key(to, slot.slot, &public)?;
        }
    }
    Ok(())
}

/// The public key of a slot, if its object is sealed with the newest key.
fn read_slot_public(volume: &Volume, slot: KeySlotId) -> Result<Option<ExchangePublic>> {
    let key = slot_key_object(slot)?;
    let Some(bytes) = volume.objects.get_object(&key, SLOT_KEY_OBJECT_MAX).none_if_missing()? else {
        return Ok(None);
    };
    let record = SlotKeyRecord::decode(&bytes).map_err(VolumeError::wrap_decode_error(key.to_string()))?;
    let mut plain = Vec::new();
    let data = build_slot_key_data(&key, record.grant.as_ref());
    let epoch = volume
        .keys
        .open_record_in_epoch(RecordDomain::Config, &data, &record.seal, &mut plain)
        .map_err(|error| VolumeError::Damaged { object: key.to_string(), reason: error.to_string() })?;
    let public = decode_slot_public(&plain).map_err(VolumeError::wrap_decode_error(key.to_string()))?;
    // A revoked device has the earlier keys, and can put a public key of its own here.
    Ok((epoch == volume.keys.newest_epoch()).then_some(public))
}

/// Checks that the public key of a slot was put by a holder of the volume's key.
pub(crate) fn check_slot_key(volume: &Volume, key: &ObjectKey) -> Result<()> {
    match parse_slot_id(key) {
        Some(slot) => read_slot_public(volume, slot).map(|_| ()),
        None => Err(VolumeError::Damaged {
            object: key.to_string(),
            reason: "its name is not that of a key slot".into(),
        }),
    }
}

/// The slot that an object of slots belongs to.
pub(crate) fn parse_slot_id(key: &ObjectKey) -> Option<KeySlotId> {
    let id: vellum_types::VolumeId = key.name().parse().ok()?;
    Some(KeySlotId(*id.as_bytes()))
}

/// A slot that opens the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ActiveSlot {
    pub(crate) slot: KeySlotId,
    /// What it is called in messages.
    pub(crate) title: String,
    /// None if nobody can wrap a key for it.
    pub(crate) public: Option<ExchangePublic>,
}

/// All slots that were not removed, with the public keys that count.
pub(crate) fn list_active_slots(volume: &Volume) -> Result<Vec<ActiveSlot>> {
    let recipients = volume.epochs.read_recipients()?;
    // Those that were removed from here stay removed, whatever was put back since.
    let removed_here = volume.refs.seen_objects(keyring::REMOVED_PREFIX)?;
    let mut active = Vec::new();
    for (key, slot) in keyring::list_key_slots(&*volume.objects)? {
        let is_removed_here = removed_here.contains(&keyring::removal_note_key(&key)?);
        if is_removed_here || keyring::is_slot_removed(&*volume.objects, &volume.keys, &key)? {
            continue;
        }
        let id = slot.id();
        let title = match device::find_device_of_slot(&*volume.objects, &volume.keys, &key)? {
            Some(name) => format!("device {name}"),
            None if slot.label() == slot.kind().to_string() => format!("{} {id}", slot.kind()),
            None => format!("{} {id} ({})", slot.kind(), slot.label()),
        };
        let public = match recipients.iter().find(|recipient| recipient.slot == id) {
            // It was sealed with the newest key when the epoch began: it counts, whatever the object says now.
            Some(recipient) => Some(recipient.public),
            None => read_slot_public(volume, id)?,
        };
        active.push(ActiveSlot { slot: id, title, public });
    }
    Ok(active)
}
