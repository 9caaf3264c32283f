//! Devices: machines that open the volume with a secret of their own, each with worktrees of its own.
//!
//! The record of a device names it beside the number of its key slot. It is put before the slot, so that no slot of a
//! device is without its name, and stays when the device is revoked. Invariant: a device is revoked if its slot was
//! removed by a holder of the volume's key, whatever objects are there. Deliberately absent: a new master key. Whoever
//! opened the volume has its key, also when the slot is gone, until a rotation changes it (`key_epochs`).

use vellum_crypto::{CreatedSlot, KeySlot, RecordDomain, SlotSecret, VolumeKeys};
use vellum_store::{ObjectKey, ObjectStore, map_requests};
use vellum_types::{DecodeError, FieldReader, FieldWriter, LookupResult, UnixTime};

use crate::error::{Result, VolumeError, is_data_loss};
use crate::keyring::{self, SLOT_PREFIX, SLOTS_MAX};
use crate::operations::{KeyChange, OperationEffect};
use crate::refs::{WorktreeHead, check_ref_name};
use crate::session::current_time;
use crate::volume::Volume;

/// Where the records are.
pub(crate) const PREFIX: &str = "devices/";
/// Version of a record.
const VERSION: u8 = 1;
/// Longest name, bytes: the names of worktrees begin with it.
pub const DEVICE_NAME_MAX: usize = 64;
/// Longest object, bytes: a record has less than 100, and what seals it 40.
const OBJECT_MAX: u64 = 1024;
/// What stands between the name of a device and that of its worktree. Slashes are for remotes.
const SEPARATOR: char = '.';
/// What the slot of a device is called. Everyone who can read the store can read it, so it does not name the device.
const SLOT_LABEL: &str = "device";

/// What the store says of a device, behind its seal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRecord {
    /// What it is called.
    pub name: String,
    /// When it was added, by the clock of the machine that did.
    pub added: UnixTime,
}

impl DeviceRecord {
    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        writer.write_u8(VERSION).write_bytes(self.name.as_bytes());
        self.added.encode(&mut writer);
        writer.into_vec()
    }

    /// Reads the stored form. What decodes has a legal name, and encodes to the same bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        reader.expect_version(VERSION)?;
        let name = reader.read_string(DEVICE_NAME_MAX)?.to_owned();
        // A holder of the key may have written any name, and messages show it.
        check_device_name(&name).map_err(|_| DecodeError::Invalid("device name"))?;
        let added = UnixTime::decode(&mut reader)?;
        reader.expect_end()?;
        Ok(Self { name, added })
    }
}

/// Whether the secret of a device opens the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceState {
    /// It does.
    Active,
    /// The device was revoked.
    Revoked,
    /// Its slot was seen here, and is gone, though nobody removed it.
    Lost,
}

/// A device of the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// What it is called.
    pub name: String,
    /// When it was added.
    pub added: UnixTime,
    /// The object of its slot.
    pub slot: ObjectKey,
    /// Whether its secret opens the volume.
    pub state: DeviceState,
}

impl Device {
    /// Whether a worktree of this name is one of the device's.
    #[must_use]
    pub fn has_worktree(&self, worktree: &str) -> bool {
        self.strip_name(worktree).is_some()
    }

    /// What one of the device's worktrees is called without the name of the device; None if it is not the device's.
    #[must_use]
    pub fn strip_name<'n>(&self, worktree: &'n str) -> Option<&'n str> {
        strip_device_name(&self.name, worktree)
    }
}

/// The devices of a volume.
#[derive(Debug, Default)]
pub struct DeviceListing {
    /// By name; of one name, the oldest first.
    pub devices: Vec<Device>,
    /// The records that cannot be read.
    pub damaged: Vec<(ObjectKey, VolumeError)>,
}

/// What became of a device that was to be revoked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevokedDevice {
    /// The device, as it was.
    pub device: Device,
    /// Its worktrees, which stay.
    pub worktrees: Vec<(String, WorktreeHead)>,
}

/// Refuses names that cannot begin the name of a worktree, or that could not be told from it.
pub fn check_device_name(name: &str) -> Result<()> {
    check_ref_name(name)?;
    let bad = |reason| Err(VolumeError::BadName { name: name.into(), reason });
    if name.len() > DEVICE_NAME_MAX {
        bad("the name of a device has at most 64 bytes")
    } else if name.contains(SEPARATOR) {
        bad("it has a dot, which separates a device from its worktrees")
    } else {
        Ok(())
    }
}

/// What the worktree `own` of a device is called.
#[must_use]
pub fn join_line_name(device: &str, own: &str) -> String {
    format!("{device}{SEPARATOR}{own}")
}

/// What the names of the forks of 'vellum try' begin with.
const TRY_PREFIX: &str = "try-";
/// How many digits follow.
const TRY_DIGITS: usize = 8;

/// The name of a fork of 'vellum try', without the name of its device.
#[must_use]
pub fn new_try_name(number: u32) -> String {
    format!("{TRY_PREFIX}{number:0TRY_DIGITS$x}")
}

/// Whether a worktree is a fork of 'vellum try', by its name.
#[must_use]
pub fn is_try_name(worktree: &str) -> bool {
    let own = worktree.rsplit_once(SEPARATOR).map_or(worktree, |(_, own)| own);
    own.strip_prefix(TRY_PREFIX).is_some_and(|digits| {
        digits.len() == TRY_DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    })
}

fn strip_device_name<'n>(device: &str, worktree: &'n str) -> Option<&'n str> {
    worktree.strip_prefix(device)?.strip_prefix(SEPARATOR)
}

/// The devices of the volume, revoked ones too.
pub fn list_devices(volume: &Volume) -> Result<DeviceListing> {
    let objects = &*volume.objects;
    let keys = list_device_records(objects)?;
    let slots = objects.list_keys(SLOT_PREFIX)?;
    let seen = volume.refs.seen_objects(SLOT_PREFIX)?;
    let read = |key: &ObjectKey| -> Result<Option<Device>> {
        let Some(record) = read_device_record(objects, &volume.keys, key)? else { return Ok(None) };
        let slot = slot_of_record(key)?;
        // The removal counts before the object of the slot: anyone who can write to the store can put the old object
        // back, but only a holder of the volume's key can write the note of a removal.
        let state = if keyring::is_slot_removed(objects, &volume.keys, &slot)? {
            DeviceState::Revoked
        } else if slots.contains(&slot) {
            DeviceState::Active
        } else if seen.contains(&slot) {
            DeviceState::Lost
        } else {
            // Adding it was interrupted, and nobody has its secret.
            return Ok(None);
        };
        Ok(Some(Device { name: record.name, added: record.added, slot, state }))
    };
    let mut listing = DeviceListing::default();
    let found = map_requests(objects, &keys, read);
    for (key, found) in keys.into_iter().zip(found) {
        match found {
            Ok(found) => listing.devices.extend(found),
            // A damaged record must not hide the devices that can be read: one of them may have to be revoked.
            Err(error) if is_data_loss(&error) => listing.damaged.push((key, error)),
            Err(error) => return Err(error),
        }
    }
    // The slot decides between equal names and times, so that each listing has the same order.
    listing.devices.sort_by(|a, b| {
        a.name.cmp(&b.name).then(a.added.cmp(&b.added)).then_with(|| a.slot.as_str().cmp(b.slot.as_str()))
    });
    Ok(listing)
}

/// Adds a device that opens the volume with `secret`. Its name must not be in use, also not by worktrees.
pub fn add_device(volume: &Volume, name: &str, secret: SlotSecret<'_>) -> Result<KeySlot> {
    check_device_name(name)?;
    let objects = &*volume.objects;
    let known = list_devices(volume)?.devices;
    let same_name = || known.iter().filter(|device| device.name == name);
    if same_name().any(|device| device.state != DeviceState::Revoked) {
        return Err(VolumeError::Exists { kind: "device", name: name.into() });
    }
    // Those of a revoked device are taken over by the new one of its name.
    if same_name().next().is_none()
        && let Some((taken, _)) = volume
            .list_readable_worktrees()?
            .0
            .into_iter()
            .find(|(worktree, _)| strip_device_name(name, worktree).is_some())
    {
        return Err(VolumeError::Exists { kind: "worktree", name: taken });
    }
    // Slots beyond the limit are never tried: the new device would be locked out.
    let slots = objects.list_keys(SLOT_PREFIX)?.len();
    if slots >= SLOTS_MAX {
        return Err(VolumeError::TooManySlots(slots));
    }
    let CreatedSlot { slot, exchange } = keyring::create_slot(volume, secret, SLOT_LABEL)?;
    let record = DeviceRecord { name: name.into(), added: current_time() };
    let key = ObjectKey::new(format!("{PREFIX}{}", slot.id()))?;
    let mut sealed = Vec::new();
    volume.keys.seal_record(RecordDomain::Config, key.as_str().as_bytes(), &record.encode(), &mut sealed);
    let subject = format!("{} device {name}", slot.id());
    volume.record_around(OperationEffect::key(KeyChange::SlotAdded, &subject), || {
        // The record before the slot: killed in between, this leaves a record without a slot, which listings skip. The
        // other order would leave a slot that opens the volume and belongs to no device.
        objects.put_object(&key, &sealed)?;
        keyring::store_new_slot(volume, &slot, &exchange)
    })?;
    let slot_key = keyring::slot_object_key(slot.id())?;
    // Two that are added at once may both not have seen the other. Then both withdraw, at worst.
    let is_same = |device: &Device| device.name == name && device.state == DeviceState::Active;
    if list_devices(volume)?.devices.iter().any(|device| is_same(device) && device.slot != slot_key) {
        remove_device_slot(volume, name, &slot_key)?;
        return Err(VolumeError::Raced(format!("the device '{name}'")));
    }
    // From here on, this machine notices if the record or the slot disappears from the store.
    record_seen_devices(volume)?;
    keyring::record_seen_slots(volume)?;
    Ok(slot)
}

/// Revokes a device: its secret does not open the volume any more. One that was revoked before stays so. Refused for
/// the device that this worktree belongs to, and for the last slot, unless `is_forced`.
pub fn revoke_device(volume: &Volume, name: &str, is_forced: bool) -> Result<RevokedDevice> {
    let missing = || VolumeError::NoSuchRef { kind: "device", name: name.into() };
    let mut found: Vec<_> = list_devices(volume)?.devices;
    found.retain(|device| device.name == name);
    // The newest of this name: those before it were revoked when it was added, unless two were added at once.
    found.sort_by_key(|device| device.state == DeviceState::Revoked);
    let device = found.into_iter().next().ok_or_else(missing)?;
    if device.state != DeviceState::Revoked && !is_forced {
        let needed = |reason| Err(VolumeError::DeviceNeeded { name: name.into(), reason });
        // After the next rotation, this worktree would have no key.
        if volume.worktree.device.as_deref() == Some(name) {
            return needed("this worktree belongs to it");
        }
        let slots = volume.objects.list_keys(SLOT_PREFIX)?;
        if slots.iter().all(|slot| *slot == device.slot) {
            return needed("its key slot is the last one: then only the keys in worktrees open the volume");
        }
    }
    // Also if it was revoked: that may have been interrupted.
    remove_device_slot(volume, name, &device.slot)?;
    let mut worktrees = volume.list_readable_worktrees()?.0;
    worktrees.retain(|(worktree, _)| device.has_worktree(worktree));
    Ok(RevokedDevice { device, worktrees })
}

fn remove_device_slot(volume: &Volume, name: &str, slot: &ObjectKey) -> Result<()> {
    let effect = OperationEffect::key(KeyChange::SlotRemoved, &format!("{} device {name}", slot.name()));
    volume.record_around(effect, || keyring::remove_slot_object(volume, slot))
}

/// The device whose slot this is, if it is one's.
pub fn find_device_of_slot(
    objects: &dyn ObjectStore,
    keys: &VolumeKeys,
    slot: &ObjectKey,
) -> Result<Option<String>> {
    let record = read_device_record(objects, keys, &record_of_slot(slot)?)?;
    Ok(record.map(|record| record.name))
}

fn record_of_slot(slot: &ObjectKey) -> Result<ObjectKey> {
    Ok(ObjectKey::new(format!("{PREFIX}{}", slot.name()))?)
}

fn slot_of_record(record: &ObjectKey) -> Result<ObjectKey> {
    Ok(ObjectKey::new(format!("{SLOT_PREFIX}{}", record.name()))?)
}

/// The record in an object, if the object is there.
fn read_device_record(
    objects: &dyn ObjectStore,
    keys: &VolumeKeys,
    key: &ObjectKey,
) -> Result<Option<DeviceRecord>> {
    let sealed = objects.get_object(key, OBJECT_MAX).none_if_missing()?;
    sealed.map(|sealed| open_device_record(keys, key, &sealed)).transpose()
}

fn open_device_record(keys: &VolumeKeys, key: &ObjectKey, sealed: &[u8]) -> Result<DeviceRecord> {
    let mut plain = Vec::new();
    // Sealed together with its name: a record that was copied to the name of another device does not open.
    keys.open_record(RecordDomain::Config, key.as_str().as_bytes(), sealed, &mut plain)
        .map_err(|error| VolumeError::Damaged { object: key.to_string(), reason: error.to_string() })?;
    DeviceRecord::decode(&plain).map_err(VolumeError::wrap_decode_error(key.to_string()))
}

/// The objects of all records.
pub(crate) fn list_device_records(objects: &dyn ObjectStore) -> Result<Vec<ObjectKey>> {
    Ok(objects.list_keys(PREFIX)?)
}

/// Checks that a record is as a holder of the volume's key made it.
pub(crate) fn check_device_record(volume: &Volume, key: &ObjectKey) -> Result<()> {
    read_device_record(&*volume.objects, &volume.keys, key).map(|_| ())
}

/// Remembers in the state directory which records there are, so that a verification misses them when they are lost.
fn record_seen_devices(volume: &Volume) -> Result<()> {
    list_device_records(&*volume.objects)?.iter().try_for_each(|key| volume.refs.record_seen_object(key))
}

/// The records that were seen here and are gone. Nothing removes a record. Notices those that are there.
pub(crate) fn find_lost_records(volume: &Volume, present: &[ObjectKey]) -> Result<Vec<ObjectKey>> {
    // What cannot be remembered is not missed the next time.
    let _ = present.iter().try_for_each(|key| volume.refs.record_seen_object(key));
    let mut seen = volume.refs.seen_objects(PREFIX)?;
    seen.retain(|key| !present.contains(key));
    Ok(seen)
}

/// Adds the records that another store of the volume lacks.
pub(crate) fn copy_device_records(from: &Volume, to: &Volume) -> Result<()> {
    let records = list_device_records(&*from.objects)?;
    // A volume without devices asks the other store for nothing.
    if records.is_empty() {
        return Ok(());
    }
    let there = list_device_records(&*to.objects)?;
    for key in records.iter().filter(|key| !there.contains(key)) {
        let sealed = from.objects.get_object(key, OBJECT_MAX)?;
        // What does not decode is not passed on: to copy it is to seal it anew, which would vouch for it.
        open_device_record(&from.keys, key, &sealed)?;
        keyring::copy_sealed_record(from, to, key, &sealed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_is_part_of_a_worktree_s_name() {
        for good in ["laptop", "büro-2", "a"] {
            assert!(check_device_name(good).is_ok(), "{good:?}");
        }
        let long = "x".repeat(DEVICE_NAME_MAX + 1);
        for bad in ["", "a.b", ".", "a/b", "two words", "-a", "HEAD", "a\u{202e}b", "a\nb", &long] {
            assert!(check_device_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_worktrees_below_the_name_are_of_the_device() {
        for (worktree, expected) in [("a.main", true), ("a.b.c", true), ("a", false), ("ab.main", false)] {
            assert_eq!(strip_device_name("a", worktree).is_some(), expected, "{worktree}");
        }
    }

    proptest! {
        #[test]
        fn records_are_read_as_they_were_written(name in "[a-zäöü_-]{1,12}", secs: i64, nanos in 0..1_000_000_000_u32) {
            prop_assume!(check_device_name(&name).is_ok());
            let record = DeviceRecord { name, added: UnixTime { secs, nanos } };
            let bytes = record.encode();
            prop_assert_eq!(DeviceRecord::decode(&bytes), Ok(record));
            for cut in 0..bytes.len() {
                prop_assert!(DeviceRecord::decode(&bytes[..cut]).is_err());
            }
            prop_assert!(DeviceRecord::decode(&[&bytes[..], b"x"].concat()).is_err());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            if let Ok(record) = DeviceRecord::decode(&bytes) {
                prop_assert_eq!(record.encode(), bytes);
            }
        }
    }
}
