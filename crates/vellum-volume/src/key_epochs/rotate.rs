//! A rotation: a new master key, given to the slots that remain.
//!
//! The object of the new epoch is the commit point. Then all refs are sealed anew, and an object says that this is done, and
//! how the records of snapshots were. Invariant: killed at any point, the next rotation finishes this one; the new key is
//! kept here before its epoch begins. Deliberately absent: a rotation that leaves a slot out. One that was not removed gets
//! the key, or is named.

use std::collections::BTreeMap;

use vellum_crypto::{EpochKeys, KeyEpoch, MasterKey, RecordDomain, WrappedMaster};
use vellum_host::ProgressMeter;
use vellum_store::{ObjectKey, StoreError, map_requests};
use vellum_types::{ErrorKind, SnapshotId};

use super::kept::EpochMaster;
use super::record::{
    EPOCH_OBJECT_MAX, EpochRecipient, EpochRecord, EpochSecret, KnownRecordHash, RotationEnd,
    build_wrapping_data, end_object_key, epoch_object_key,
};
use super::slot_key::{ActiveSlot, list_active_slots};
use super::source::{EpochSource, build_epoch_data};
use crate::error::{Result, VolumeError};
use crate::operations::{KeyChange, OperationEffect};
use crate::refs::ResealedRefs;
use crate::session::current_time;
use crate::volume::Volume;

/// How often a rotation begins anew because a slot was removed meanwhile: each time, somebody removed one.
const ATTEMPTS: usize = 10;

/// What a rotation did, or would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RotationReport {
    /// Number of the key epoch that the store is in, or would be.
    pub epoch: u32,
    /// The slots that have the new key, as messages call them.
    pub recipients: Vec<String>,
    /// Slots that were added at the same time, and do not have it.
    pub left_out: Vec<String>,
    /// Refs that were sealed anew.
    pub refs: u64,
    /// Refs that cannot be read, and stay as they are.
    pub damaged: Vec<ObjectKey>,
    /// Whether a rotation was finished that had been interrupted.
    pub is_resumed: bool,
}

/// What [`rotate_key`] would do. Fails as that would.
pub fn preview_rotation(volume: &Volume) -> Result<RotationReport> {
    volume.epochs.refresh_keys()?;
    let newest = volume.keys.newest_epoch();
    let is_resumed = !is_finished(volume, newest)?;
    let next = if is_resumed { newest } else { next_epoch(newest)? };
    let slots = require_public_keys(list_active_slots(volume)?)?;
    Ok(RotationReport { epoch: next.number(), is_resumed, ..RotationReport::new(&slots) })
}

impl RotationReport {
    fn new(slots: &[ActiveSlot]) -> Self {
        let is_left_out = |slot: &&ActiveSlot| slot.public.is_none();
        let titles = |slots: Vec<&ActiveSlot>| slots.into_iter().map(|slot| slot.title.clone()).collect();
        Self {
            epoch: 0,
            recipients: titles(slots.iter().filter(|slot| !is_left_out(slot)).collect()),
            left_out: titles(slots.iter().filter(is_left_out).collect()),
            refs: 0,
            damaged: Vec::new(),
            is_resumed: false,
        }
    }
}

/// Changes the key of a store: what is sealed from then on, only the slots that remain open. An interrupted rotation is
/// finished; if it gave the key to a slot that was removed since, another follows.
pub fn rotate_key(volume: &Volume, meter: &ProgressMeter) -> Result<RotationReport> {
    volume.epochs.refresh_keys()?;
    let mut resealed = ResealedRefs::default();
    let mut is_resumed = false;
    if !is_finished(volume, volume.keys.newest_epoch())? {
        is_resumed = true;
        resealed = finish_rotation(volume, meter)?;
        // A slot that was removed since the interrupted rotation began was given its key: then another rotation must follow.
        if let Some(slots) = list_slots_if_all_count(volume)? {
            return Ok(report_rotation(volume, &slots, resealed, is_resumed));
        }
    }
    for _ in 0..ATTEMPTS {
        begin_epoch(volume)?;
        let more = finish_rotation(volume, meter)?;
        // Each run looks at all refs, so that only what the last one could not read is damaged.
        resealed = ResealedRefs { count: resealed.count + more.count, damaged: more.damaged };
        if let Some(slots) = list_slots_if_all_count(volume)? {
            return Ok(report_rotation(volume, &slots, resealed, is_resumed));
        }
    }
    Err(VolumeError::Raced("the list of key slots".into()))
}

fn report_rotation(
    volume: &Volume,
    slots: &[ActiveSlot],
    resealed: ResealedRefs,
    is_resumed: bool,
) -> RotationReport {
    let epoch = volume.keys.newest_epoch().number();
    let ResealedRefs { count, damaged } = resealed;
    tracing::info!(epoch, refs = count, "the volume's key was changed");
    RotationReport { epoch, refs: count, damaged, is_resumed, ..RotationReport::new(slots) }
}

fn is_finished(volume: &Volume, epoch: KeyEpoch) -> Result<bool> {
    Ok(epoch == KeyEpoch::FIRST || volume.epochs.find_end(epoch)?.is_some())
}

fn next_epoch(newest: KeyEpoch) -> Result<KeyEpoch> {
    newest.next().ok_or_else(|| VolumeError::TooLong {
        what: "the number of the next key epoch".into(),
        len: newest.number() as usize + 1,
        max: KeyEpoch::LAST.number() as usize,
    })
}

/// The slots that were not removed, unless one has the newest key that was removed since.
fn list_slots_if_all_count(volume: &Volume) -> Result<Option<Vec<ActiveSlot>>> {
    let active = list_active_slots(volume)?;
    let recipients = volume.epochs.read_recipients()?;
    let counts = |id| active.iter().any(|slot| slot.slot == id);
    let all_count = recipients.iter().all(|recipient| counts(recipient.slot));
    Ok(all_count.then_some(active))
}

fn require_public_keys(slots: Vec<ActiveSlot>) -> Result<Vec<ActiveSlot>> {
    let lacking: Vec<_> =
        slots.iter().filter(|slot| slot.public.is_none()).map(|slot| slot.title.clone()).collect();
    if !lacking.is_empty() {
        return Err(VolumeError::SlotsWithoutKey(lacking));
    }
    if slots.is_empty() { Err(VolumeError::NoKeySlots) } else { Ok(slots) }
}

/// Begins the next epoch. If another machine does so at the same time, one of the two fails.
fn begin_epoch(volume: &Volume) -> Result<()> {
    let Some(source) = volume.epochs.source.as_ref() else { return Err(VolumeError::Locked) };
    let newest = volume.keys.newest_epoch();
    let next = next_epoch(newest)?;
    let slots = require_public_keys(list_active_slots(volume)?)?;
    // In the first epoch, no master key is kept but that of the worktree.
    let previous = match volume.epochs.read_newest_master()? {
        Some(kept) => kept.master,
        None => source.home.worktree.read_master_key()?.ok_or(VolumeError::Locked)?,
    };
    let master = MasterKey::generate();
    let record = build_epoch_record(source, next, previous, &slots, &master)?;
    let pending = EpochMaster { epoch: next, master };
    // Kept before the epoch begins: if this process is killed right after the put, the new key is in the wrapped
    // copies only, and this machine may have no slot that opens one.
    source.home.store.write_pending_master(source.volume, pending)?;
    let key = epoch_object_key(next)?;
    let bytes = record.encode();
    match volume.objects.put_object(&key, &bytes) {
        Ok(()) => volume.epochs.refresh_keys(),
        // This one, if the answer to an attempt was lost.
        Err(StoreError::Exists { .. }) if volume.objects.get_object(&key, EPOCH_OBJECT_MAX)? == bytes => {
            volume.epochs.refresh_keys()
        }
        Err(StoreError::Exists { .. }) => {
            // Another machine began the epoch first. Its key counts, and the one made here was never used.
            source.home.store.remove_pending_master()?;
            volume.epochs.refresh_keys()?;
            Err(VolumeError::Raced("the volume's key".into()))
        }
        Err(error) => Err(error.into()),
    }
}

/// The object of an epoch with the new key `master`.
fn build_epoch_record(
    source: &EpochSource,
    epoch: KeyEpoch,
    previous: MasterKey,
    slots: &[ActiveSlot],
    master: &MasterKey,
) -> Result<EpochRecord> {
    let mut recipients = Vec::with_capacity(slots.len());
    let mut publics = Vec::with_capacity(slots.len());
    for slot in slots {
        let lacking = || VolumeError::SlotsWithoutKey(vec![slot.title.clone()]);
        let public = slot.public.ok_or_else(lacking)?;
        let data = build_wrapping_data(source.volume, epoch, slot.slot);
        let wrapped: WrappedMaster = public.wrap_master_key(master, &data).ok_or_else(lacking)?;
        recipients.push(EpochRecipient { slot: slot.slot, wrapped });
        publics.push(public);
    }
    let time = current_time();
    let mut record = EpochRecord { volume: source.volume, epoch, time, recipients, seal: Vec::new() };
    let secret = EpochSecret { previous, publics };
    let mut seal = Vec::new();
    // The key before is sealed with the new one: whoever is given the newest key can read everything older, and
    // whoever made it must have had the one before.
    EpochKeys::derive(master, source.volume, epoch).seal_record(
        RecordDomain::Config,
        &build_epoch_data(&epoch_object_key(epoch)?, &record),
        &secret.encode(),
        &mut seal,
    );
    record.seal = seal;
    Ok(record)
}

/// Seals all refs with the newest key, and says so. It is recorded under that key: whoever is revoked does not read it.
fn finish_rotation(volume: &Volume, meter: &ProgressMeter) -> Result<ResealedRefs> {
    let epoch = volume.keys.newest_epoch();
    let effect = OperationEffect::key(KeyChange::Rotated, &format!("epoch {}", epoch.number()));
    volume.record_around(effect, || reseal_all_refs(volume, epoch, meter))
}

fn reseal_all_refs(volume: &Volume, epoch: KeyEpoch, meter: &ProgressMeter) -> Result<ResealedRefs> {
    let resealed = volume.refs.reseal_refs(meter)?;
    // Listed after the new epoch has begun: whoever stores a record from then on finds the new key before anything
    // names the record, and seals it anew.
    let end = RotationEnd { records: hash_records(volume, meter)? };
    let key = end_object_key(epoch)?;
    let mut sealed = Vec::new();
    volume.keys.seal_record(RecordDomain::Config, key.as_str().as_bytes(), &end.encode(), &mut sealed);
    match volume.objects.put_object(&key, &sealed) {
        // Another machine finishes it at the same time.
        Ok(()) | Err(StoreError::Exists { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    // Read back, also if another machine put it: from here on, this one refuses refs that are sealed with earlier
    // keys.
    volume.epochs.find_end(epoch)?;
    spread_keys(volume);
    Ok(resealed)
}

/// The records of all snapshots, forgotten ones too, by id. Those that cannot be read are left out.
fn hash_records(volume: &Volume, meter: &ProgressMeter) -> Result<Vec<KnownRecordHash>> {
    let hash = |plain: &[u8]| *blake3::hash(plain).as_bytes();
    let mut records: BTreeMap<SnapshotId, [u8; 32]> = BTreeMap::new();
    // Damaged records are left out: there is no content that the end could vouch for.
    for (id, record) in volume.catalog.read_all_records()?.sound {
        records.insert(id, hash(&record.encode()));
    }
    meter.check_stopped()?;
    let forgotten = volume.catalog.list_forgotten_ids()?;
    let found = map_requests(&*volume.objects, &forgotten, |id| volume.catalog.get_record(id));
    for (id, found) in forgotten.iter().zip(found) {
        match found {
            Ok(record) => records.insert(*id, hash(&record.encode())),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::NotFound
                ) =>
            {
                None
            }
            Err(error) => return Err(error),
        };
    }
    Ok(records.into_iter().map(|(id, hash)| KnownRecordHash { id, hash }).collect())
}

/// Gives the new key to the other worktrees on this machine that were made where no secret was needed. Those that have the
/// secret of a slot are given it by that, unless it was removed.
fn spread_keys(volume: &Volume) {
    let Some(source) = volume.epochs.source.as_ref() else { return };
    // The rotation is done. A worktree that is not reached here asks for a secret when it is opened.
    let Ok((worktrees, _)) = volume.list_readable_worktrees() else { return };
    for (name, head) in worktrees {
        let Ok(Some(state)) = volume.find_worktree_state(&name, &head) else { continue };
        let has_slot = state.read_held_slot().is_ok_and(|held| held.is_some());
        // Whoever has a slot is given the key by that, and another store has epochs of its own.
        if has_slot || state.path() == volume.state.path() || !volume.has_same_store(&state) {
            continue;
        }
        // One that cannot be written to asks for a secret.
        let spread = source
            .home
            .store
            .read_epoch_masters(source.volume)
            .and_then(|masters| state.write_epoch_masters(source.volume, &masters));
        if let Err(error) = spread {
            tracing::warn!(worktree = name, %error, "the new key was not given to a worktree on this machine");
        }
    }
}
