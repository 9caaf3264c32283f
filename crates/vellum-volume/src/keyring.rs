//! The key slots of a volume, which open its store from elsewhere.
//!
//! The object of a slot is the slot, which anybody with its secret can open, and behind it a seal with the volume's
//! key, so that whoever has the volume can tell a damaged slot without its secret.

mod copy;

use vellum_crypto::slots::{KeySlotId, UnlockError};
use vellum_crypto::{
    CreatedSlot, ExchangeSecret, KdfParams, KeyEpoch, KeySlot, KeySlotKind, MasterKey, RecordDomain,
    RecoveryCode, SlotSecret, UnlockedSlot, VolumeKeys,
};
use vellum_store::{ObjectKey, ObjectStore, StoreError, join_requests, map_requests, unlist_objects};
use vellum_types::{DecodeError, ErrorKind, FieldReader, FieldWriter, LookupResult, VolumeId};

pub(crate) use self::copy::{copy_key_slots, copy_sealed_record};
use crate::error::{Result, VolumeError};
use crate::key_epochs::{self, ensure_slot_key, parse_slot_id, put_slot_key};
use crate::operations::{KeyChange, OperationEffect};
use crate::volume::Volume;

/// What the slot of a recovery code is called.
const RECOVERY_LABEL: &str = "recovery code";

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

/// The bytes of a slot's object, or why they cannot be read.
type SlotObject = Result<Vec<u8>, StoreError>;

/// All slots in the store.
pub fn list_key_slots(objects: &dyn ObjectStore) -> Result<Vec<(ObjectKey, KeySlot)>> {
    let mut slots = Vec::new();
    for (key, read) in read_slot_objects(objects)? {
        // It may have been removed since it was listed.
        if let Some(bytes) = read.none_if_missing()? {
            slots.push((key.clone(), decode_slot_object(&key, &bytes)?));
        }
    }
    Ok(slots)
}

/// Reads the objects of all slots, several at once. A service is waited for twice, however many devices a volume has.
fn read_slot_objects(objects: &dyn ObjectStore) -> Result<Vec<(ObjectKey, SlotObject)>> {
    let keys = list_slot_objects(objects)?;
    let read = map_requests(objects, &keys, |key| objects.get_object(key, OBJECT_MAX));
    Ok(keys.into_iter().zip(read).collect())
}

fn list_slot_objects(objects: &dyn ObjectStore) -> Result<Vec<ObjectKey>> {
    let mut keys = objects.list_keys(SLOT_PREFIX)?;
    // Anyone who can write to the store can add objects, and each would cost a run of Argon2.
    keys.truncate(SLOTS_MAX);
    Ok(keys)
}

fn decode_slot_object(key: &ObjectKey, bytes: &[u8]) -> Result<KeySlot> {
    let (slot, _) = split_slot_seal(bytes).map_err(VolumeError::wrap_decode_error(key.to_string()))?;
    KeySlot::decode(slot).map_err(|error| damaged_slot_error(key, error.to_string()))
}

/// The slot and its seal in the object of a slot.
pub fn split_slot_seal(bytes: &[u8]) -> Result<(&[u8], &[u8]), DecodeError> {
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
    // The slot itself is in the clear, and whoever can write to the store can change it.
    if sealed == slot {
        Ok(())
    } else {
        Err(damaged_slot_error(key, "it differs from what its seal says".into()))
    }
}

/// Adds a slot that `secret` opens, and keeps its secret here if no other is: it gives the keys to come.
pub fn add_key_slot(volume: &Volume, secret: SlotSecret<'_>, label: &str) -> Result<KeySlot> {
    let CreatedSlot { slot, exchange } = create_slot(volume, secret, label)?;
    let effect = OperationEffect::key(KeyChange::SlotAdded, &format!("{} {label}", slot.id()));
    volume.record_around(effect, || store_held_slot(volume, &slot, &exchange))?;
    Ok(slot)
}

/// As [`add_key_slot`], as a part of the operation that makes the worktree.
fn add_first_slot(volume: &Volume, secret: SlotSecret<'_>, label: &str) -> Result<KeySlot> {
    let CreatedSlot { slot, exchange } = create_slot(volume, secret, label)?;
    store_held_slot(volume, &slot, &exchange)?;
    Ok(slot)
}

/// Stores a slot, and keeps its secret here if no other is.
fn store_held_slot(volume: &Volume, slot: &KeySlot, exchange: &ExchangeSecret) -> Result<()> {
    store_new_slot(volume, slot, exchange)?;
    // One slot is enough to be given later keys, so that the one that is held already stays.
    match volume.state.read_held_slot()? {
        None => volume.state.write_held_slot(slot.id(), exchange),
        Some(_) => Ok(()),
    }
}

/// Makes a slot with the volume's first key: later ones are wrapped for its public key.
pub(crate) fn create_slot(volume: &Volume, secret: SlotSecret<'_>, label: &str) -> Result<CreatedSlot> {
    let master = volume.state.read_master_key()?.ok_or(VolumeError::Locked)?;
    // The public key of the slot is sealed with the newest key that is known here, and does not count if there is a newer one.
    volume.epochs.refresh_keys()?;
    Ok(KeySlot::create(secret, &master, volume.config.volume, label, KdfParams::DEFAULT)?)
}

/// Stores a slot with its public key. If the key is changed at the same time, it may not be given the new one: then it is
/// withdrawn.
pub(crate) fn store_new_slot(volume: &Volume, slot: &KeySlot, exchange: &ExchangeSecret) -> Result<()> {
    let epoch = volume.keys.newest_epoch();
    // The public key first: a slot without one stops the next rotation.
    put_slot_key(volume, slot.id(), &exchange.public_key())?;
    put_key_slot(&*volume.objects, slot, &volume.keys)?;
    let refreshed = volume.epochs.refresh_keys();
    if refreshed.is_ok() && volume.keys.newest_epoch() == epoch {
        return Ok(());
    }
    // The rotation that ran meanwhile may have listed the slots before this one was there: it would open the volume
    // without the key that is used now.
    remove_slot_object(volume, &slot_object_key(slot.id())?)?;
    refreshed.and(Err(VolumeError::Raced("the volume's key".into())))
}

/// Keeps the secret of the slot that opened the volume. One that was made by an early version has no public key yet: then
/// it gets one, if this machine may write.
pub(crate) fn hold_slot(volume: &Volume, slot: KeySlotId, exchange: &ExchangeSecret) -> Result<()> {
    volume.state.write_held_slot(slot, exchange)?;
    if volume.keys.newest_epoch() != KeyEpoch::FIRST {
        return Ok(());
    }
    // To open a volume must also work where this machine may only read. The next one that may write adds the key.
    match ensure_slot_key(volume, slot, &exchange.public_key()) {
        Err(error)
            if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unsupported | ErrorKind::Conflict) =>
        {
            Ok(())
        }
        outcome => outcome,
    }
}

/// Opens the volume of a worktree anew with a secret: it is given the keys that it lacks, and those to come.
pub fn open_with_secret(volume: &Volume, typed: &[u8]) -> Result<KeySlotId> {
    let UnlockedKey { master, slot, exchange, .. } =
        unlock_master_key(&*volume.objects, typed, volume.config.volume)?;
    if !volume.keys.is_first_master(&master) {
        return Err(damaged_slot_error(&slot, "it holds the key of another volume".into()));
    }
    if is_slot_removed(&*volume.objects, &volume.keys, &slot)? {
        return Err(VolumeError::RemovedSlot);
    }
    let id = parse_slot_id(&slot)
        .ok_or_else(|| damaged_slot_error(&slot, "its name is not that of a key slot".into()))?;
    // Before the keys are refreshed: new ones are unwrapped with the secret that is kept here.
    volume.state.write_held_slot(id, &exchange)?;
    volume.epochs.refresh_keys()?;
    hold_slot(volume, id, &exchange)?;
    Ok(id)
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
pub fn add_recovery_slot(volume: &Volume) -> Result<RecoveryCode> {
    let code = RecoveryCode::generate();
    add_key_slot(volume, SlotSecret::Recovery(&code), RECOVERY_LABEL)?;
    Ok(code)
}

/// As [`add_recovery_slot`], as a part of the operation that makes the worktree.
pub(crate) fn add_first_recovery_slot(volume: &Volume) -> Result<RecoveryCode> {
    let code = RecoveryCode::generate();
    add_first_slot(volume, SlotSecret::Recovery(&code), RECOVERY_LABEL)?;
    Ok(code)
}

/// Removes the slot whose id begins with `prefix`, damaged or not; gives its id. An object stays that says so: else
/// others would take it for lost.
pub fn remove_key_slot(volume: &Volume, prefix: &str) -> Result<String> {
    let objects = &*volume.objects;
    // All of them, and not only those that are tried: one that is beyond the limit must be removable, too.
    let keys = objects.list_keys(SLOT_PREFIX)?;
    let matching: Vec<_> = keys.iter().filter(|key| key.name().starts_with(prefix)).collect();
    match matching.as_slice() {
        [] => Err(VolumeError::NoSuchRef { kind: "key slot", name: prefix.into() }),
        [key] => {
            let effect = OperationEffect::key(KeyChange::SlotRemoved, key.name());
            volume.record_around(effect, || remove_slot_object(volume, key))?;
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
    // After a rotation elsewhere, a note under the old key could be written by devices that were revoked.
    volume.epochs.refresh_keys()?;
    let mut sealed = Vec::new();
    volume.keys.seal_record(RecordDomain::Config, note.as_str().as_bytes(), &[], &mut sealed);
    // The note before the deletion: killed in between, the slot counts as removed, and its object does no harm.
    put_unless_there(&*volume.objects, &note, &sealed)?;
    // Whoever puts the slot back and removes the note must not be given a new key from here.
    volume.refs.record_seen_object(&note)?;
    delete_slot_object(&*volume.objects, key)
}

/// Readers of a published store are told before.
fn delete_slot_object(objects: &dyn ObjectStore, key: &ObjectKey) -> Result<()> {
    unlist_objects(objects, &|listed| listed == key)?;
    Ok(objects.delete_object(key)?)
}

fn put_unless_there(objects: &dyn ObjectStore, key: &ObjectKey, bytes: &[u8]) -> Result<()> {
    match objects.put_object(key, bytes) {
        Ok(()) | Err(StoreError::Exists { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether a change of keys of which a record tells can be seen: `subject` is what the record says of it.
pub(crate) fn is_key_change_seen(
    objects: &dyn ObjectStore,
    change: KeyChange,
    subject: &str,
) -> Result<bool> {
    let is_there =
        |key: ObjectKey| Ok::<_, VolumeError>(objects.object_size(&key).none_if_missing()?.is_some());
    // The id of a slot, which its label or the name of its device may follow.
    let first = subject.split(' ').next().unwrap_or_default();
    match change {
        KeyChange::SlotAdded | KeyChange::SlotRemoved => {
            let slot = ObjectKey::new(format!("{SLOT_PREFIX}{first}"))?;
            let is_removed = is_there(removal_note_key(&slot)?)?;
            // One that was removed since had been added.
            Ok(is_removed || change == KeyChange::SlotAdded && is_there(slot)?)
        }
        KeyChange::Rotated => {
            let epoch = subject.rsplit(' ').next().and_then(|number| number.parse().ok());
            epoch.map_or(Ok(false), |epoch| is_there(key_epochs::finished_epoch_key(epoch)?))
        }
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
        // A note that does not open was not written by a holder of the key. If it counted, anyone who can write to
        // the store could lock all others out.
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The object that says that a slot was removed.
pub(crate) fn removal_note_key(key: &ObjectKey) -> Result<ObjectKey> {
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

/// Remembers in the state directory which slots there are, so that a verification misses them when they are lost.
pub fn record_seen_slots(volume: &Volume) -> Result<()> {
    let list = |folder| volume.objects.list_keys(folder);
    let (slots, publics) =
        join_requests(&*volume.objects, || list(SLOT_PREFIX), || list(key_epochs::SLOT_KEY_PREFIX));
    record_slot_objects(volume, &slots?, &publics?)
}

/// As [`record_seen_slots`], with the slots as they were listed a moment ago.
pub(crate) fn record_listed_slots(volume: &Volume, slots: &[ObjectKey]) -> Result<()> {
    record_slot_objects(volume, slots, &volume.objects.list_keys(key_epochs::SLOT_KEY_PREFIX)?)
}

fn record_slot_objects(volume: &Volume, slots: &[ObjectKey], publics: &[ObjectKey]) -> Result<()> {
    slots.iter().chain(publics).try_for_each(|key| volume.refs.record_seen_object(key))
}

/// The objects of a folder, that of slots or that of their public keys, that were seen here, are gone, and were not removed
/// by a holder of the volume's key. Notices those that are there: `present`, as listed.
pub(crate) fn find_lost_slots(
    volume: &Volume,
    folder: &str,
    present: &[ObjectKey],
) -> Result<Vec<ObjectKey>> {
    // What cannot be remembered is not missed the next time.
    let _ = present.iter().try_for_each(|key| volume.refs.record_seen_object(key));
    let mut lost = Vec::new();
    for key in volume.refs.seen_objects(folder)?.into_iter().filter(|key| !present.contains(key)) {
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
    // A carriage return counts only together with a newline: alone it may be part of a passphrase.
    if line.len() < secret.len() { line.strip_suffix(b"\r").unwrap_or(line) } else { line }
}

/// What a secret opened.
#[derive(Debug)]
pub struct UnlockedKey {
    /// The volume's master key.
    pub master: MasterKey,
    /// The object of the slot that the secret opens.
    pub slot: ObjectKey,
    /// Unwraps later master keys.
    pub exchange: ExchangeSecret,
    /// The objects of all slots.
    pub listed: Vec<ObjectKey>,
}

/// Tries what the user gave on every slot: as a recovery code if it reads as one, else as a passphrase or as the
/// content of a key file. One newline at its end does not count. Damaged slots are passed over; if none opens, one of
/// them is the error.
pub fn unlock_master_key(objects: &dyn ObjectStore, typed: &[u8], volume: VolumeId) -> Result<UnlockedKey> {
    let given = strip_newline(typed);
    let code = std::str::from_utf8(given).ok().and_then(|text| RecoveryCode::parse(text).ok());
    let mut damage = None;
    let slots = read_slot_objects(objects)?;
    let listed = slots.iter().map(|(key, _)| key.clone()).collect();
    for (key, read) in slots {
        let slot = match read.map_err(VolumeError::from).and_then(|bytes| decode_slot_object(&key, &bytes)) {
            Ok(slot) => slot,
            // One damaged slot must not lock out whoever has the secret of another.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                damage = Some(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        let secret = match (slot.kind(), &code) {
            (KeySlotKind::Recovery, Some(code)) => SlotSecret::Recovery(code),
            (KeySlotKind::Recovery, None) => continue,
            // Also if it reads as a recovery code: a passphrase may look like one.
            (KeySlotKind::Passphrase, _) => SlotSecret::Passphrase(given),
            (KeySlotKind::KeyFile, _) => SlotSecret::KeyFile(given),
        };
        let opened = match slot.unlock_slot(secret, volume) {
            // Slots of early versions were made with the newline.
            Err(UnlockError::Wrong(_))
                if slot.kind() == KeySlotKind::KeyFile && given.len() < typed.len() =>
            {
                slot.unlock_slot(SlotSecret::KeyFile(typed), volume)
            }
            opened => opened,
        };
        match opened {
            Ok(UnlockedSlot { master, exchange }) => {
                return Ok(UnlockedKey { master, slot: key, exchange, listed });
            }
            // Another slot may be the one: nothing in a slot says whose secret opens it.
            Err(UnlockError::Wrong(_)) => {}
            Err(error) => damage = Some(damaged_slot_error(&key, error.to_string())),
        }
    }
    Err(damage.unwrap_or(VolumeError::WrongSecret))
}
