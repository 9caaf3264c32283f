//! The objects of key epochs, and those with the public keys of slots. docs/format.md draws them.
//!
//! Invariant: what decodes encodes to the same bytes again. What is not sealed tells who was given a key, and when, and
//! is authenticated together with what is.

use vellum_crypto::slots::KeySlotId;
use vellum_crypto::{ExchangePublic, KeyEpoch, MasterKey, WrappedMaster, Zeroizing};
use vellum_store::ObjectKey;
use vellum_types::{DecodeError, FieldReader, FieldWriter, SnapshotId, UnixTime, VolumeId};

use crate::error::Result;
use crate::keyring::SLOTS_MAX;

/// Where the key epochs are.
pub(crate) const EPOCH_PREFIX: &str = "key-epochs/";
/// Where the public keys of slots are.
pub(crate) const SLOT_KEY_PREFIX: &str = "slot-keys/";
/// How the object ends that says that a rotation is finished.
const END_SUFFIX: &str = ".finished";

const MAGIC: &[u8; 8] = b"VLMEPOCH";
const VERSION: u32 = 1;
const END_VERSION: u8 = 1;
const SLOT_KEY_VERSION: u8 = 1;
/// Longest seal of an epoch, bytes: a master key and 64 public keys.
const SEAL_MAX: usize = 4096;
/// Longest object of an epoch, bytes: 64 recipients of 120 bytes, the seal, and what stands before them.
pub(crate) const EPOCH_OBJECT_MAX: u64 = 16 << 10;
/// Longest object of a slot's public key, bytes: it has less than 300.
pub(crate) const SLOT_KEY_OBJECT_MAX: u64 = 1024;
const SLOT_KEY_PART_MAX: usize = 256;
/// Most snapshots that the end of a rotation lists, a count; each has 64 bytes.
const RECORDS_MAX: usize = 4 << 20;
/// Longest object of a rotation's end, bytes: as any object at most.
pub(crate) const END_OBJECT_MAX: u64 = 256 << 20;

/// The object of a key epoch.
pub(crate) fn epoch_object_key(epoch: KeyEpoch) -> Result<ObjectKey> {
    // Padded with zeros, so that a listing, which is sorted by name, has the epochs in their order.
    Ok(ObjectKey::new(format!("{EPOCH_PREFIX}{:08x}", epoch.number()))?)
}

/// The object that says that the rotation to an epoch is finished.
pub(crate) fn end_object_key(epoch: KeyEpoch) -> Result<ObjectKey> {
    finished_epoch_key(epoch.number())
}

/// The object that says that the rotation to the epoch of this number is finished.
pub(crate) fn finished_epoch_key(number: u32) -> Result<ObjectKey> {
    Ok(ObjectKey::new(format!("{EPOCH_PREFIX}{number:08x}{END_SUFFIX}"))?)
}

/// The epoch of an object, and whether it is that of a rotation's end.
pub(crate) fn parse_epoch_key(key: &ObjectKey) -> Option<(KeyEpoch, bool)> {
    let name = key.as_str().strip_prefix(EPOCH_PREFIX)?;
    let (number, is_end) = match name.strip_suffix(END_SUFFIX) {
        Some(number) => (number, true),
        None => (name, false),
    };
    let epoch = KeyEpoch::from_number(u32::from_str_radix(number, 16).ok()?)?;
    let expected = if is_end { end_object_key(epoch) } else { epoch_object_key(epoch) };
    // Only the name that an epoch is given counts: otherwise `1` and `00000001` would be two objects of one epoch.
    expected.is_ok_and(|expected| expected == *key).then_some((epoch, is_end))
}

/// A slot for which the master key of an epoch is wrapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochRecipient {
    /// The slot.
    pub slot: KeySlotId,
    /// The master key.
    pub wrapped: WrappedMaster,
}

/// The object of a key epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochRecord {
    /// The volume.
    pub volume: VolumeId,
    /// The epoch.
    pub epoch: KeyEpoch,
    /// When the key was changed, by the clock of the machine that did.
    pub time: UnixTime,
    /// The slots whose secrets give the new key.
    pub recipients: Vec<EpochRecipient>,
    /// [`EpochSecret`], sealed with the new key.
    pub seal: Vec<u8>,
}

impl EpochRecord {
    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::from_vec(self.encode_head());
        writer.write_bytes(&self.seal);
        writer.into_vec()
    }

    /// All that stands before the seal, and is authenticated with it.
    pub(crate) fn encode_head(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        // In the clear, since nobody can open the seal who has not found his wrapped key first.
        writer.write_raw(MAGIC).write_u32(VERSION).write_raw(self.volume.as_bytes());
        writer.write_u32(self.epoch.number());
        self.time.encode(&mut writer);
        writer.write_varint(self.recipients.len() as u64);
        for recipient in &self.recipients {
            writer.write_raw(&recipient.slot.0).write_raw(&recipient.wrapped.0);
        }
        writer.into_vec()
    }

    /// Reads the stored form, which may be hostile.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        if reader.read_array()? != *MAGIC {
            return Err(DecodeError::Magic);
        }
        let version = reader.read_u32()?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let volume = VolumeId(reader.read_array()?);
        // The first epoch has no object: its key is the volume's.
        let epoch = KeyEpoch::from_number(reader.read_u32()?).filter(|epoch| *epoch != KeyEpoch::FIRST);
        let epoch = epoch.ok_or(DecodeError::Invalid("key epoch"))?;
        let time = UnixTime::decode(&mut reader)?;
        let count = reader.read_count(SLOTS_MAX)?;
        let mut recipients = Vec::with_capacity(count);
        for _ in 0..count {
            let slot = KeySlotId(reader.read_array()?);
            recipients.push(EpochRecipient { slot, wrapped: WrappedMaster(reader.read_array()?) });
        }
        let seal = reader.read_bytes(SEAL_MAX)?.to_vec();
        reader.expect_end()?;
        Ok(Self { volume, epoch, time, recipients, seal })
    }
}

/// What is sealed in the object of a key epoch.
#[derive(Debug)]
pub struct EpochSecret {
    /// The master key of the epoch before.
    pub previous: MasterKey,
    /// The public keys of the recipients, in their order.
    pub publics: Vec<ExchangePublic>,
}

impl EpochSecret {
    /// The plaintext of the seal.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let len = MasterKey::LEN + self.publics.len() * ExchangePublic::LEN;
        // Reserved whole: growing would leave copies of the key in freed memory.
        let mut bytes = Zeroizing::new(Vec::with_capacity(len));
        bytes.extend_from_slice(self.previous.as_bytes());
        self.publics.iter().for_each(|public| bytes.extend_from_slice(&public.0));
        bytes
    }

    /// Reads the plaintext of the seal, for as many recipients.
    pub fn decode(bytes: &[u8], recipients: usize) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        let previous = MasterKey::from_bytes(reader.read_array()?);
        let mut publics = Vec::with_capacity(recipients.min(SLOTS_MAX));
        for _ in 0..recipients {
            publics.push(ExchangePublic(reader.read_array()?));
        }
        reader.expect_end()?;
        Ok(Self { previous, publics })
    }
}

/// What a wrapped master key is bound to.
pub(crate) fn build_wrapping_data(volume: VolumeId, epoch: KeyEpoch, slot: KeySlotId) -> Vec<u8> {
    let mut writer = FieldWriter::new();
    writer.write_raw(volume.as_bytes()).write_u32(epoch.number()).write_raw(&slot.0);
    writer.into_vec()
}

/// The record of a snapshot, as it was when a rotation was finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KnownRecordHash {
    /// The snapshot.
    pub id: SnapshotId,
    /// BLAKE3, without a key, of its record.
    pub hash: [u8; 32],
}

/// What is sealed in the object that says that a rotation is finished: the snapshots that there were. Their records are
/// sealed with earlier keys, and count only as they were.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct RotationEnd {
    /// By id.
    pub records: Vec<KnownRecordHash>,
}

impl RotationEnd {
    /// The plaintext.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        writer.write_u8(END_VERSION).write_varint(self.records.len() as u64);
        for record in &self.records {
            writer.write_raw(record.id.as_bytes()).write_raw(&record.hash);
        }
        writer.into_vec()
    }

    /// Reads the plaintext. The ids of what decodes are in order, each of them once.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        reader.expect_version(END_VERSION)?;
        let count = reader.read_count(RECORDS_MAX)?;
        // The count is whatever the writer said: memory is reserved only for what the bytes can hold.
        let mut records: Vec<KnownRecordHash> = Vec::with_capacity(count.min(reader.remaining() / 64));
        for _ in 0..count {
            let id = SnapshotId(reader.read_array()?);
            // One order, so that equal lists have equal bytes, and a search by halves finds each record.
            if records.last().is_some_and(|last| last.id >= id) {
                return Err(DecodeError::Invalid("order of snapshots"));
            }
            records.push(KnownRecordHash { id, hash: reader.read_array()? });
        }
        reader.expect_end()?;
        Ok(Self { records })
    }

    /// Whether the record of a snapshot is as it was.
    #[must_use]
    pub fn knows_record(&self, id: &SnapshotId, plain: &[u8]) -> bool {
        let found = self.records.binary_search_by(|record| record.id.cmp(id));
        let known = found.ok().and_then(|place| self.records.get(place));
        known.is_some_and(|known| known.hash == *blake3::hash(plain).as_bytes())
    }
}

/// The master key of an epoch, wrapped for a slot that was made in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotGrant {
    /// The epoch.
    pub epoch: KeyEpoch,
    /// Its master key.
    pub wrapped: WrappedMaster,
}

/// The object with the public key of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotKeyRecord {
    /// None if the slot was made in the first epoch.
    pub grant: Option<SlotGrant>,
    /// The public key, sealed.
    pub seal: Vec<u8>,
}

impl SlotKeyRecord {
    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        writer.write_bytes(&encode_grant(self.grant.as_ref())).write_bytes(&self.seal);
        writer.into_vec()
    }

    /// Reads the stored form, which may be hostile.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        let grant = decode_grant(reader.read_bytes(SLOT_KEY_PART_MAX)?)?;
        let seal = reader.read_bytes(SLOT_KEY_PART_MAX)?.to_vec();
        reader.expect_end()?;
        Ok(Self { grant, seal })
    }
}

/// What the public key of a slot is sealed with.
pub(crate) fn build_slot_key_data(key: &ObjectKey, grant: Option<&SlotGrant>) -> Vec<u8> {
    let mut data = key.as_str().as_bytes().to_vec();
    // No key of an object has a zero byte, so that the two parts cannot be confused.
    data.push(0);
    data.extend_from_slice(&encode_grant(grant));
    data
}

/// What is sealed in the object of a slot's public key.
#[must_use]
pub fn encode_slot_public(public: &ExchangePublic) -> Vec<u8> {
    let mut writer = FieldWriter::new();
    writer.write_u8(SLOT_KEY_VERSION).write_raw(&public.0);
    writer.into_vec()
}

/// The public key of a slot, from what is sealed in its object.
pub fn decode_slot_public(plain: &[u8]) -> Result<ExchangePublic, DecodeError> {
    let mut reader = FieldReader::new(plain);
    reader.expect_version(SLOT_KEY_VERSION)?;
    let public = ExchangePublic(reader.read_array()?);
    reader.expect_end()?;
    Ok(public)
}

fn encode_grant(grant: Option<&SlotGrant>) -> Vec<u8> {
    let mut writer = FieldWriter::new();
    if let Some(grant) = grant {
        writer.write_u32(grant.epoch.number()).write_raw(&grant.wrapped.0);
    }
    writer.into_vec()
}

fn decode_grant(bytes: &[u8]) -> Result<Option<SlotGrant>, DecodeError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut reader = FieldReader::new(bytes);
    let epoch = KeyEpoch::from_number(reader.read_u32()?).filter(|epoch| *epoch != KeyEpoch::FIRST);
    let epoch = epoch.ok_or(DecodeError::Invalid("key epoch"))?;
    let wrapped = WrappedMaster(reader.read_array()?);
    reader.expect_end()?;
    Ok(Some(SlotGrant { epoch, wrapped }))
}

#[cfg(test)]
mod tests;
