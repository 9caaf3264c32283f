//! The key slots of a volume, which open its store from elsewhere.
//!
//! The object of a slot is the slot, which anybody with its secret can open, and behind it a seal with the volume's
//! key, so that whoever has the volume can tell a damaged slot without its secret.

use vellum_crypto::slots::{KeySlotId, UnlockError};
use vellum_crypto::{
    KdfParams, KeySlot, KeySlotKind, MasterKey, RecordDomain, RecoveryCode, SlotSecret, VolumeKeys,
};
use vellum_store::{ObjectKey, ObjectStore, StoreError};
use vellum_types::{DecodeError, ErrorKind, FieldReader, FieldWriter, VolumeId};

use crate::device;
use crate::error::{Result, VolumeError};
use crate::volume::Volume;

/// Where slots are kept.
pub(crate) const SLOT_PREFIX: &str = "keys/";
/// Where objects are that say which slots were removed.
pub(crate) const REMOVED_PREFIX: &str = "removed-keys/";
/// More slots than anyone has; caps how often Argon2 runs for one passphrase.
pub(crate) const SLOTS_MAX: usize = 64;
/// Longest slot and longest seal that are read, bytes: both are far shorter.
const PART_MAX: usize = 4096;
/// Longest object of a slot, bytes: both parts with their lengths.
const OBJECT_MAX: u64 = 2 * (PART_MAX as u64 + 2);

/// All slots in the store.
pub fn list_key_slots(objects: &dyn ObjectStore) -> Result<Vec<(ObjectKey, KeySlot)>> {
    let read = |key: ObjectKey| {
        let slot = decode_slot_object(&key, &objects.get_object(&key, OBJECT_MAX)?)?;
        Ok((key, slot))
    };
    list_slot_objects(objects)?.into_iter().map(read).collect()
}

fn list_slot_objects(objects: &dyn ObjectStore) -> Result<Vec<ObjectKey>> {
    let mut keys = objects.list_keys(SLOT_PREFIX)?;
    keys.truncate(SLOTS_MAX);
    Ok(keys)
}

fn decode_slot_object(key: &ObjectKey, bytes: &[u8]) -> Result<KeySlot> {
    let (slot, _) = split_slot_seal(bytes).map_err(VolumeError::wrap_decode_error(key.to_string()))?;
    KeySlot::decode(slot).map_err(|error| damaged_slot_error(key, error.to_string()))
}

/// The slot and its seal in the object of a slot.
pub fn split_slot_seal(bytes: &[u8]) -> std::result::Result<(&[u8], &[u8]), DecodeError> {
    let mut reader = FieldReader::new(bytes);
    let slot = reader.read_bytes(PART_MAX)?;
    let seal = reader.read_bytes(PART_MAX)?;
    reader.expect_end()?;
    Ok((slot, seal))
}

fn damaged_slot_error(key: &ObjectKey, reason: String) -> VolumeError {
    VolumeError::Damaged { object: key.to_string(), reason }
}

/// Checks that a slot is as a holder of the volume's key made it.
pub fn check_key_slot(objects: &dyn ObjectStore, key: &ObjectKey, keys: &VolumeKeys) -> Result<()> {
    let bytes = objects.get_object(key, OBJECT_MAX)?;
    let (slot, seal) = split_slot_seal(&bytes).map_err(VolumeError::wrap_decode_error(key.to_string()))?;
    KeySlot::decode(slot).map_err(|error| damaged_slot_error(key, error.to_string()))?;
    let mut sealed = Vec::new();
    keys.open_record(RecordDomain::Config, key.as_str().as_bytes(), seal, &mut sealed)
        .map_err(|error| damaged_slot_error(key, error.to_string()))?;
    if sealed == slot {
        Ok(())
    } else {
        Err(damaged_slot_error(key, "it differs from what its seal says".into()))
    }
}

/// Adds a slot that `secret` opens.
pub fn add_key_slot(
    objects: &dyn ObjectStore,
    secret: SlotSecret<'_>,
    label: &str,
    master: &MasterKey,
    volume: VolumeId,
) -> Result<KeySlot> {
    let slot = KeySlot::create(secret, master, volume, label, KdfParams::DEFAULT)?;
    put_key_slot(objects, &slot, &VolumeKeys::for_encrypted(master, volume))?;
    Ok(slot)
}

/// Stores a slot that was made.
pub(crate) fn put_key_slot(objects: &dyn ObjectStore, slot: &KeySlot, keys: &VolumeKeys) -> Result<()> {
    let key = slot_object_key(slot.id())?;
    let encoded = slot.encode();
    let mut seal = Vec::new();
    keys.seal_record(RecordDomain::Config, key.as_str().as_bytes(), &encoded, &mut seal);
    let mut writer = FieldWriter::new();
    writer.write_bytes(&encoded).write_bytes(&seal);
    Ok(objects.put_object(&key, writer.as_slice())?)
}

/// The object of a slot.
pub(crate) fn slot_object_key(slot: KeySlotId) -> Result<ObjectKey> {
    Ok(ObjectKey::new(format!("{SLOT_PREFIX}{slot}"))?)
}

/// Adds a slot for a new recovery code, and gives the code.
pub fn add_recovery_slot(
    objects: &dyn ObjectStore,
    master: &MasterKey,
    volume: VolumeId,
) -> Result<RecoveryCode> {
    let code = RecoveryCode::generate();
    add_key_slot(objects, SlotSecret::Recovery(&code), "recovery code", master, volume)?;
    Ok(code)
}

/// Removes the slot whose id begins with `prefix`, damaged or not; gives its id. An object stays that says so: else
/// others would take it for lost.
pub fn remove_key_slot(volume: &Volume, prefix: &str) -> Result<String> {
    let objects = &*volume.objects;
    let keys = objects.list_keys(SLOT_PREFIX)?;
    let matching: Vec<_> = keys.iter().filter(|key| key.name().starts_with(prefix)).collect();
    match matching.as_slice() {
        [] => Err(VolumeError::NoSuchRef { kind: "key slot", name: prefix.into() }),
        [key] => {
            remove_slot_object(volume, key)?;
            Ok(key.name().into())
        }
        _ => Err(VolumeError::Ambiguous {
            prefix: prefix.into(),
            matches: matching.iter().map(|key| key.name().into()).collect(),
        }),
    }
}

/// Removes a slot, whether it is there or lost.
pub(crate) fn remove_slot_object(volume: &Volume, key: &ObjectKey) -> Result<()> {
    let note = removal_note_key(key)?;
    let mut sealed = Vec::new();
    volume.keys.seal_record(RecordDomain::Config, note.as_str().as_bytes(), &[], &mut sealed);
    put_unless_there(&*volume.objects, &note, &sealed)?;
    Ok(volume.objects.delete_object(key)?)
}

fn put_unless_there(objects: &dyn ObjectStore, key: &ObjectKey, bytes: &[u8]) -> Result<()> {
    match objects.put_object(key, bytes) {
        Ok(()) | Err(StoreError::Exists { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether a holder of the volume's key removed a slot, also if its object is still there or is there again.
pub(crate) fn is_slot_removed(
    objects: &dyn ObjectStore,
    keys: &VolumeKeys,
    slot: &ObjectKey,
) -> Result<bool> {
    match open_removal_note(objects, keys, &removal_note_key(slot)?) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The object that says that a slot was removed.
fn removal_note_key(key: &ObjectKey) -> Result<ObjectKey> {
    Ok(ObjectKey::new(format!("{REMOVED_PREFIX}{}", key.name()))?)
}

/// Checks that an object that says that a slot was removed was written by a holder of the volume's key.
pub(crate) fn check_removal_note(volume: &Volume, note: &ObjectKey) -> Result<()> {
    open_removal_note(&*volume.objects, &volume.keys, note)
}

fn open_removal_note(objects: &dyn ObjectStore, keys: &VolumeKeys, note: &ObjectKey) -> Result<()> {
    let sealed = objects.get_object(note, OBJECT_MAX)?;
    let mut plain = Vec::new();
    let opened = keys.open_record(RecordDomain::Config, note.as_str().as_bytes(), &sealed, &mut plain);
    opened.map_err(|error| damaged_slot_error(note, error.to_string()))
}

/// Brings the slots of another store of the volume up to date: adds what it lacks, and removes what was removed here. A
/// slot that was removed there stays removed. The records of devices come before the slots.
pub(crate) fn copy_key_slots(from: &Volume, to: &Volume) -> Result<()> {
    if !from.config.encrypted {
        return Ok(());
    }
    device::copy_device_records(from, to)?;
    let there = to.objects.list_keys(SLOT_PREFIX)?;
    let removed_there = to.objects.list_keys(REMOVED_PREFIX)?;
    for key in from.objects.list_keys(SLOT_PREFIX)? {
        if there.contains(&key) || removed_there.contains(&removal_note_key(&key)?) {
            continue;
        }
        check_key_slot(&*from.objects, &key, &from.keys)?;
        put_unless_there(&*to.objects, &key, &from.objects.get_object(&key, OBJECT_MAX)?)?;
    }
    for key in there {
        let note = removal_note_key(&key)?;
        let sealed = match from.objects.get_object(&note, OBJECT_MAX) {
            Ok(sealed) => sealed,
            Err(StoreError::NotFound { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        check_removal_note(from, &note)?;
        put_unless_there(&*to.objects, &note, &sealed)?;
        to.objects.delete_object(&key)?;
    }
    Ok(())
}

/// Remembers in the state directory which slots there are, so that a verification misses them when they are lost.
pub fn record_seen_slots(volume: &Volume) -> Result<()> {
    volume.objects.list_keys(SLOT_PREFIX)?.iter().try_for_each(|key| volume.refs.record_seen_object(key))
}

/// The slots that were seen here, are gone, and were not removed by a holder of the volume's key. Notices those that
/// are there.
pub(crate) fn find_lost_slots(volume: &Volume) -> Result<Vec<ObjectKey>> {
    // What cannot be remembered is not missed the next time.
    let _ = record_seen_slots(volume);
    let present = volume.objects.list_keys(SLOT_PREFIX)?;
    let mut lost = Vec::new();
    for key in volume.refs.seen_objects(SLOT_PREFIX)? {
        if present.contains(&key) {
            continue;
        }
        if !is_slot_removed(&*volume.objects, &volume.keys, &key)? {
            lost.push(key);
        }
    }
    Ok(lost)
}

/// A secret as it counts: without one newline at its end, which editors and `echo` add to files.
#[must_use]
pub fn strip_newline(secret: &[u8]) -> &[u8] {
    let line = secret.strip_suffix(b"\n").unwrap_or(secret);
    if line.len() < secret.len() { line.strip_suffix(b"\r").unwrap_or(line) } else { line }
}

/// What a secret opened.
#[derive(Debug)]
pub struct UnlockedKey {
    /// The volume's master key.
    pub master: MasterKey,
    /// The object of the slot that the secret opens.
    pub slot: ObjectKey,
}

/// Tries what the user gave on every slot: as a recovery code if it reads as one, else as a passphrase or as the
/// content of a key file. One newline at its end does not count. Damaged slots are passed over; if none opens, one of
/// them is the error.
pub fn unlock_master_key(objects: &dyn ObjectStore, typed: &[u8], volume: VolumeId) -> Result<UnlockedKey> {
    let given = strip_newline(typed);
    let code = std::str::from_utf8(given).ok().and_then(|text| RecoveryCode::parse(text).ok());
    let mut damage = None;
    for key in list_slot_objects(objects)? {
        let read = objects.get_object(&key, OBJECT_MAX).map_err(VolumeError::from);
        let slot = match read.and_then(|bytes| decode_slot_object(&key, &bytes)) {
            Ok(slot) => slot,
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                damage = Some(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        let secret = match (slot.kind(), &code) {
            (KeySlotKind::Recovery, Some(code)) => SlotSecret::Recovery(code),
            (KeySlotKind::Recovery, None) => continue,
            (KeySlotKind::Passphrase, _) => SlotSecret::Passphrase(given),
            (KeySlotKind::KeyFile, _) => SlotSecret::KeyFile(given),
        };
        let opened = match slot.unlock_master_key(secret, volume) {
            // Slots of early versions were made with the newline.
            Err(UnlockError::Wrong(_))
                if slot.kind() == KeySlotKind::KeyFile && given.len() < typed.len() =>
            {
                slot.unlock_master_key(SlotSecret::KeyFile(typed), volume)
            }
            opened => opened,
        };
        match opened {
            Ok(master) => return Ok(UnlockedKey { master, slot: key }),
            Err(UnlockError::Wrong(_)) => {}
            Err(error) => damage = Some(damaged_slot_error(&key, error.to_string())),
        }
    }
    Err(damage.unwrap_or(VolumeError::WrongSecret))
}
