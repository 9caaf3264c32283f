//! Finds the master keys of later epochs: in the state directory, or in the store with the secret of a slot.
//!
//! Invariant: a key is taken only if the one before it, which its object seals, is the key that is known here. So whoever
//! does not have the newest key cannot make another one.

use std::sync::Arc;

use parking_lot::Mutex;
use vellum_crypto::{EpochKeys, KeyEpoch, MasterKey, NewerKeySource, RecordDomain, VolumeKeys};
use vellum_store::{ObjectKey, ObjectStore};
use vellum_types::{LookupResult, VolumeId};

use super::kept::{EpochMaster, HeldSlot};
use super::record::{
    EPOCH_OBJECT_MAX, EpochRecord, EpochSecret, SLOT_KEY_OBJECT_MAX, SlotKeyRecord, build_wrapping_data,
    epoch_object_key,
};
use super::slot_key::slot_key_object;
use crate::error::{Result, VolumeError};
use crate::keyring;
use crate::state::StateDir;

/// Where keys are kept on this machine.
#[derive(Debug, Clone)]
pub(crate) struct KeyHome {
    /// The state directory of the worktree: it has the first master key, and the secret of a slot.
    pub(crate) worktree: StateDir,
    /// That of the store, which has the keys of its epochs: for a remote it is another one.
    pub(crate) store: StateDir,
}

/// Finds keys for one store.
pub(crate) struct EpochSource {
    pub(super) objects: Arc<dyn ObjectStore>,
    pub(super) volume: VolumeId,
    pub(super) home: KeyHome,
    /// The slot with which the volume is being opened, before anything is kept.
    given: Option<HeldSlot>,
    /// One thread asks, the others wait for what it finds.
    busy: Mutex<()>,
}

impl EpochSource {
    pub(super) fn new(
        objects: Arc<dyn ObjectStore>,
        volume: VolumeId,
        home: KeyHome,
        given: Option<HeldSlot>,
    ) -> Self {
        Self { objects, volume, home, given, busy: Mutex::new(()) }
    }

    /// Adds the keys of all epochs that there are. Fails if there are later ones whose keys are not to be had.
    pub(super) fn adopt_newer_keys(&self, keys: &VolumeKeys) -> Result<()> {
        let _busy = self.busy.lock();
        self.add_kept_keys(keys)?;
        let mut records = Vec::new();
        let mut next = keys.newest_epoch().next();
        // Asked for by name: epochs have no gaps, so that usually one request finds that there is no newer one.
        while let Some(epoch) = next
            && let Some(record) = self.read_epoch_record(epoch)?
        {
            records.push(record);
            next = epoch.next();
        }
        let mut locked = None;
        // The newest key gives those before it. A device that was revoked has those up to then.
        while let Some(newest) = records.last() {
            if let Some(master) = self.unwrap_master(newest)? {
                self.adopt_epochs(&records, master, keys)?;
                break;
            }
            locked = locked.or(records.pop());
        }
        match locked {
            Some(record) => Err(self.locked_error(&record)?),
            None => Ok(()),
        }
    }

    pub(super) fn add_kept_keys(&self, keys: &VolumeKeys) -> Result<()> {
        for EpochMaster { epoch, master } in self.home.store.read_epoch_masters(self.volume)? {
            if epoch > keys.newest_epoch() {
                keys.add_epoch(EpochKeys::derive(&master, self.volume, epoch));
            }
        }
        Ok(())
    }

    /// The object of an epoch, if it has begun.
    pub(super) fn read_epoch_record(&self, epoch: KeyEpoch) -> Result<Option<EpochRecord>> {
        let key = epoch_object_key(epoch)?;
        let Some(bytes) = self.objects.get_object(&key, EPOCH_OBJECT_MAX).none_if_missing()? else {
            return Ok(None);
        };
        let record = EpochRecord::decode(&bytes).map_err(VolumeError::wrap_decode_error(key.to_string()))?;
        // Before its seal is looked at: an object that was copied to this name is refused, whatever key it gives.
        if record.epoch == epoch && record.volume == self.volume {
            Ok(Some(record))
        } else {
            Err(damaged_epoch_error(&key, "it is that of another key epoch, or of another volume"))
        }
    }

    /// Keeps and adds the keys of these epochs, the newest of which has this master key.
    fn adopt_epochs(&self, records: &[EpochRecord], newest: MasterKey, keys: &VolumeKeys) -> Result<()> {
        let mut masters = Vec::with_capacity(records.len());
        let mut master = newest;
        for record in records.iter().rev() {
            let epoch = record.epoch;
            let sealing = EpochKeys::derive(&master, self.volume, epoch);
            let previous = open_epoch_secret(record, &sealing)?.previous;
            masters.push(EpochMaster { epoch, master });
            master = previous;
        }
        let known = keys.newest_epoch();
        let follows = match known {
            KeyEpoch::FIRST => keys.is_first_master(&master),
            later => keys.has_epoch_keys(&EpochKeys::derive(&master, self.volume, later)),
        };
        // The chain of sealed keys must end at the key that is known here: nobody can forge a later epoch without
        // that key.
        if !follows {
            let first = records.first().map_or(known, |record| record.epoch);
            return Err(damaged_epoch_error(
                &epoch_object_key(first)?,
                "it does not follow the key that is known here: whoever made it did not have that key, or this is \
                 another store",
            ));
        }
        masters.reverse();
        // Kept before anything is sealed with them.
        self.keep_masters(known, &masters)?;
        for EpochMaster { epoch, master } in masters {
            keys.add_epoch(EpochKeys::derive(&master, self.volume, epoch));
        }
        Ok(())
    }

    /// Keeps these keys beside those up to `known`.
    fn keep_masters(&self, known: KeyEpoch, masters: &[EpochMaster]) -> Result<()> {
        // Another process may have kept the same later keys meanwhile: each is to be in the list once.
        let mut all = self.home.store.read_epoch_masters(self.volume)?;
        all.retain(|kept| kept.epoch <= known);
        all.extend(masters.iter().map(EpochMaster::duplicate));
        let written = self.home.store.write_epoch_masters(self.volume, &all);
        if self.home.store.read_pending_master(self.volume)?.is_some() {
            // The pending file may be the only copy of the key: it goes when the list that has it is on disk.
            written?;
            self.home.store.remove_pending_master()?;
        }
        // Else the slot gives them again: who may not write there may still read.
        Ok(())
    }

    /// The master key of an epoch: the one that this machine made itself, or that its slot gives.
    fn unwrap_master(&self, record: &EpochRecord) -> Result<Option<MasterKey>> {
        // Another machine may have begun the same epoch first: the pending key counts only if it opens this object.
        if let Some(pending) = self.home.store.read_pending_master(self.volume)?
            && pending.epoch == record.epoch
            && open_epoch_secret(record, &EpochKeys::derive(&pending.master, self.volume, pending.epoch))
                .is_ok()
        {
            return Ok(Some(pending.master));
        }
        self.with_held_slot(|held| {
            let data = build_wrapping_data(self.volume, record.epoch, held.slot);
            if let Some(own) = record.recipients.iter().find(|recipient| recipient.slot == held.slot) {
                return Ok(held.exchange.unwrap_master_key(&own.wrapped, &data));
            }
            let key = slot_key_object(held.slot)?;
            let Some(bytes) = self.objects.get_object(&key, SLOT_KEY_OBJECT_MAX).none_if_missing()? else {
                return Ok(None);
            };
            let read =
                SlotKeyRecord::decode(&bytes).map_err(VolumeError::wrap_decode_error(key.to_string()))?;
            let grant = read.grant.filter(|grant| grant.epoch == record.epoch);
            Ok(grant.and_then(|grant| held.exchange.unwrap_master_key(&grant.wrapped, &data)))
        })
        .map(Option::flatten)
    }

    /// Calls `act` with the slot with which the worktree was opened, if that is known.
    fn with_held_slot<T>(&self, act: impl FnOnce(&HeldSlot) -> Result<T>) -> Result<Option<T>> {
        // While a volume is being opened, nothing is kept yet.
        if let Some(given) = &self.given {
            return act(given).map(Some);
        }
        self.home.worktree.read_held_slot()?.map(|kept| act(&kept)).transpose()
    }

    /// Why the key of an epoch is not to be had. Whether a note of the removal is genuine does not matter here.
    fn locked_error(&self, record: &EpochRecord) -> Result<VolumeError> {
        let is_revoked = self.with_held_slot(|held| {
            let note = keyring::removal_note_key(&keyring::slot_object_key(held.slot)?)?;
            // The note may be sealed with a key that this machine was not given: all that can be seen is whether it is there.
            Ok(self.objects.object_size(&note).is_ok())
        })?;
        Ok(match is_revoked {
            Some(true) => VolumeError::Revoked { time: record.time },
            Some(false) | None => VolumeError::KeyChanged { epoch: record.epoch.number(), time: record.time },
        })
    }
}

impl NewerKeySource for EpochSource {
    fn find_newer_keys(&self, keys: &VolumeKeys) {
        // Whoever asked reports that it cannot be opened.
        if let Err(error) = self.adopt_newer_keys(keys) {
            tracing::debug!(%error, "newer keys of the volume cannot be had");
        }
    }
}

/// What is sealed in the object of an epoch.
pub(super) fn open_epoch_secret(record: &EpochRecord, keys: &EpochKeys) -> Result<EpochSecret> {
    let key = epoch_object_key(record.epoch)?;
    // Reserved whole: growing would leave copies of the keys in freed memory.
    let mut plain = vellum_crypto::Zeroizing::new(Vec::with_capacity(record.seal.len()));
    keys.open_record(RecordDomain::Config, &build_epoch_data(&key, record), &record.seal, &mut plain)
        .map_err(|error| damaged_epoch_error(&key, &error.to_string()))?;
    EpochSecret::decode(&plain, record.recipients.len())
        .map_err(VolumeError::wrap_decode_error(key.to_string()))
}

/// What the secret of an epoch is sealed with.
pub(super) fn build_epoch_data(key: &ObjectKey, record: &EpochRecord) -> Vec<u8> {
    [key.as_str().as_bytes(), &[0], &record.encode_head()].concat()
}

pub(super) fn damaged_epoch_error(key: &ObjectKey, reason: &str) -> VolumeError {
    VolumeError::Damaged { object: key.to_string(), reason: reason.into() }
}
