//! Key epochs: the master keys of a store. A rotation makes a new one, with which everything is sealed from then on, and
//! gives it to the slots that remain. Whoever has an earlier key only reads nothing that is sealed later.
//!
//! Each store of a volume has epochs of its own; all begin with the first master key, from which ids, names and boundaries
//! come for ever. Invariants: an epoch begins when its object is put, which only one can do; refs and records of snapshots
//! that are sealed with an earlier key count only until the rotation is finished, or if that knew them. Deliberately
//! absent: sealing old blobs anew. Who had the key could read them.

mod kept;
mod record;
mod rotate;
mod slot_key;
mod source;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vellum_crypto::slots::KeySlotId;
use vellum_crypto::{EpochKeys, ExchangePublic, KeyEpoch, MasterKey, RecordDomain, UnsealError, VolumeKeys};
use vellum_store::{ObjectKey, ObjectStore, StoreError};
use vellum_types::{SnapshotId, UnixTime, VolumeId};

use self::kept::EpochMaster;
pub use self::kept::HeldSlot;
pub(crate) use self::kept::{EPOCHS_FILE, GivenKeys};
use self::record::{END_OBJECT_MAX, end_object_key, epoch_object_key, parse_epoch_key};
pub(crate) use self::record::{EPOCH_PREFIX, SLOT_KEY_PREFIX, finished_epoch_key};
pub use self::record::{
    EpochRecipient, EpochRecord, EpochSecret, KnownRecordHash, RotationEnd, SlotGrant, SlotKeyRecord,
    decode_slot_public, encode_slot_public,
};
pub use self::rotate::{RotationReport, preview_rotation, rotate_key};
pub use self::slot_key::bring_slots_up_to_date;
pub(crate) use self::slot_key::{
    check_slot_key, ensure_slot_key, list_active_slots, parse_slot_id, put_slot_key,
};
pub(crate) use self::source::KeyHome;
use self::source::{EpochSource, open_epoch_secret};
use crate::error::{Result, VolumeError, is_data_loss};
use crate::state::StateDir;

/// How often a process looks for a newer key. What it stores meanwhile, the old key opens.
const REFRESH_INTERVAL: Duration = Duration::from_secs(60);
/// For how long a look for newer keys counts as one that was taken now, if the store is a service. As for refs, most commands
/// take less.
const RECENT: Duration = Duration::from_secs(2);

/// The keys of a store, in all its epochs.
pub struct KeyEpochs {
    objects: Arc<dyn ObjectStore>,
    keys: Arc<VolumeKeys>,
    /// None for plain volumes, which have no keys.
    source: Option<Arc<EpochSource>>,
    /// The state directory of the store, which remembers what was seen of it.
    state: StateDir,
    end: Mutex<Option<KnownEnd>>,
    /// When a newer key was last looked for, if it was.
    refreshed: Mutex<Option<Instant>>,
}

/// The end of a rotation that was read.
#[derive(Clone)]
struct KnownEnd {
    epoch: KeyEpoch,
    end: Arc<RotationEnd>,
}

/// A slot that was given the newest key when its epoch began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KnownRecipient {
    pub(crate) slot: KeySlotId,
    pub(crate) public: ExchangePublic,
}

/// The newest key epoch of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochStatus {
    /// Its number; 0 if the key was never changed.
    pub number: u32,
    /// When it began.
    pub begun: Option<UnixTime>,
    /// Whether the rotation to it is finished.
    pub is_finished: bool,
}

impl KeyEpochs {
    /// The keys of a plain volume, which do not change.
    #[must_use]
    pub fn for_plain(objects: Arc<dyn ObjectStore>, volume: VolumeId, state: StateDir) -> Self {
        Self::assemble(objects, VolumeKeys::for_plain(volume), None, state)
    }

    /// The keys of an encrypted volume, as far as they are known here. `given` is the slot with which it is being opened.
    pub(crate) fn for_encrypted(
        objects: Arc<dyn ObjectStore>,
        volume: VolumeId,
        master: &MasterKey,
        home: KeyHome,
        given: Option<HeldSlot>,
    ) -> Result<Self> {
        let keys = VolumeKeys::for_encrypted(master, volume);
        let state = home.store.clone();
        let source = Arc::new(EpochSource::new(objects.clone(), volume, home, given));
        // What this machine was given before is in its state directory: no request is needed to open what later
        // epochs sealed.
        source.add_kept_keys(&keys)?;
        keys.set_newer_key_source(source.clone());
        Ok(Self::assemble(objects, keys, Some(source), state))
    }

    fn assemble(
        objects: Arc<dyn ObjectStore>,
        keys: VolumeKeys,
        source: Option<Arc<EpochSource>>,
        state: StateDir,
    ) -> Self {
        let end = Mutex::new(None);
        Self { objects, keys: Arc::new(keys), source, state, end, refreshed: Mutex::new(None) }
    }

    /// The state directory of the worktree that has the first master key; none for plain volumes.
    pub(crate) fn home_worktree(&self) -> Option<&StateDir> {
        self.source.as_ref().map(|source| &source.home.worktree)
    }

    /// The keys.
    #[must_use]
    pub fn volume_keys(&self) -> &Arc<VolumeKeys> {
        &self.keys
    }

    /// Takes over a newer key, if there is one: what is sealed from now on is sealed with it. Fails if this machine is not
    /// given it.
    pub fn refresh_keys(&self) -> Result<()> {
        self.look_for_keys(&mut self.refreshed.lock())
    }

    /// As [`Self::refresh_keys`], unless that was done a moment ago: for long work, and before refs and records are read. A
    /// machine that does not know of a rotation would take what is sealed with the old key for genuine.
    pub(crate) fn refresh_keys_if_due(&self) -> Result<()> {
        // Others wait for the one that asks.
        let mut refreshed = self.refreshed.lock();
        match *refreshed {
            Some(last) if last.elapsed() < REFRESH_INTERVAL => Ok(()),
            Some(_) | None => self.look_for_keys(&mut refreshed),
        }
    }

    /// As [`Self::refresh_keys`], but a look that this process took at a service at most [`RECENT`] ago counts: a command that
    /// read a ref just now need not ask again before it writes.
    pub(crate) fn refresh_recent_keys(&self) -> Result<()> {
        let mut refreshed = self.refreshed.lock();
        match *refreshed {
            Some(last) if self.objects.is_remote() && last.elapsed() < RECENT => Ok(()),
            Some(_) | None => self.look_for_keys(&mut refreshed),
        }
    }

    /// Whether a newer key was not looked for a moment ago. Does not wait for whoever looks at this moment: that is to be
    /// waited for by [`Self::refresh_keys_if_due`], while something else is read.
    pub(crate) fn is_refresh_due(&self) -> bool {
        let is_old = |last: &Option<Instant>| last.is_none_or(|last| last.elapsed() >= REFRESH_INTERVAL);
        self.source.is_some() && self.refreshed.try_lock().is_none_or(|last| is_old(&last))
    }

    fn look_for_keys(&self, refreshed: &mut Option<Instant>) -> Result<()> {
        // A volume without encryption has no keys that could change.
        let Some(source) = &self.source else { return Ok(()) };
        source.adopt_newer_keys(&self.keys)?;
        // Only after success: who asks next tries again after a failure.
        *refreshed = Some(Instant::now());
        Ok(())
    }

    /// What to report of an object that cannot be opened.
    pub(crate) fn explain_unseal_error(&self, object: &ObjectKey, error: UnsealError) -> VolumeError {
        let damaged = VolumeError::Damaged { object: object.to_string(), reason: error.to_string() };
        match error {
            // A newer key was looked for when the object was to be opened. To ask again tells why it is not to be
            // had.
            UnsealError::NewerKey { .. } => self.refresh_keys().err().unwrap_or(damaged),
            UnsealError::Short { .. } | UnsealError::Forged => damaged,
        }
    }

    /// An error if a ref is sealed with a key that was changed since: then somebody wrote it who was not given the new one.
    pub(crate) fn require_current_seal(&self, object: &ObjectKey, epoch: KeyEpoch) -> Result<()> {
        if epoch == self.keys.newest_epoch() {
            return Ok(());
        }
        match self.find_last_end()? {
            // Until the rotation is finished, refs that are sealed with the key before may be genuine ones that wait
            // to be sealed anew.
            Some(last) if epoch < last.epoch => Err(old_key_error(object, epoch)),
            Some(_) | None => Ok(()),
        }
    }

    /// An error if the record of a snapshot is sealed with a key that was changed since, and is not as it was then.
    pub(crate) fn require_known_record(
        &self,
        object: &ObjectKey,
        id: &SnapshotId,
        epoch: KeyEpoch,
        plain: &[u8],
    ) -> Result<()> {
        if epoch == self.keys.newest_epoch() {
            return Ok(());
        }
        match self.find_last_end()? {
            // Unlike refs, records are not sealed anew, since they never change: the end lists those that were
            // genuine.
            Some(last) if epoch < last.epoch && !last.end.knows_record(id, plain) => {
                Err(old_key_error(object, epoch))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The end of the last rotation that is finished.
    fn find_last_end(&self) -> Result<Option<KnownEnd>> {
        let newest = self.keys.newest_epoch();
        if newest == KeyEpoch::FIRST {
            return Ok(None);
        }
        if let Some(end) = self.find_end(newest)? {
            return Ok(Some(end));
        }
        // A rotation begins when the one before it is finished.
        match newest.previous().filter(|previous| *previous != KeyEpoch::FIRST) {
            Some(previous) => match self.find_end(previous)? {
                Some(end) => Ok(Some(end)),
                None => Err(missing_end_error(previous)),
            },
            None => Ok(None),
        }
    }

    /// The end of the rotation to an epoch, if it is finished.
    fn find_end(&self, epoch: KeyEpoch) -> Result<Option<KnownEnd>> {
        // Once it is there it never changes, so that a process asks the store once.
        if let Some(known) = self.end.lock().as_ref().filter(|known| known.epoch == epoch) {
            return Ok(Some(known.clone()));
        }
        let key = end_object_key(epoch)?;
        let sealed = match self.objects.get_object(&key, END_OBJECT_MAX) {
            Ok(sealed) => sealed,
            // Whoever can write to the store could remove it, so that refs sealed with the old key count again.
            Err(StoreError::NotFound { .. }) if self.has_seen(&key)? => return Err(missing_end_error(epoch)),
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let end = Arc::new(self.open_end(epoch, &sealed)?);
        // Only after the seal was checked: a forged end must not become one that is missed.
        self.note_seen(&key)?;
        let known = KnownEnd { epoch, end };
        *self.end.lock() = Some(known.clone());
        Ok(Some(known))
    }

    fn open_end(&self, epoch: KeyEpoch, sealed: &[u8]) -> Result<RotationEnd> {
        let key = end_object_key(epoch)?;
        let mut plain = Vec::new();
        let found = self
            .keys
            .open_record_in_epoch(RecordDomain::Config, key.as_str().as_bytes(), sealed, &mut plain)
            .map_err(|error| VolumeError::Damaged { object: key.to_string(), reason: error.to_string() })?;
        // A revoked device has the key before, with which it could finish the rotation and list records of its own.
        if found != epoch {
            return Err(old_key_error(&key, found));
        }
        RotationEnd::decode(&plain).map_err(VolumeError::wrap_decode_error(key.to_string()))
    }

    fn has_seen(&self, key: &ObjectKey) -> Result<bool> {
        Ok(self.state.read_seen_counters()?.contains_key(key.as_str()))
    }

    /// Remembers that an object is there, so that it is missed if it is removed.
    fn note_seen(&self, key: &ObjectKey) -> Result<()> {
        // The file is replaced and synced for each note, and most commands find nothing new.
        if self.has_seen(key)? {
            return Ok(());
        }
        self.state.merge_seen_counters(&mut [(key.to_string(), 1)].into())
    }

    /// The master key of the newest epoch; none in the first.
    pub(crate) fn read_newest_master(&self) -> Result<Option<EpochMaster>> {
        let Some(source) = &self.source else { return Ok(None) };
        let newest = self.keys.newest_epoch();
        let kept = source.home.store.read_epoch_masters(source.volume)?;
        match kept.into_iter().find(|kept| kept.epoch == newest) {
            None if newest != KeyEpoch::FIRST => Err(VolumeError::Locked),
            found => Ok(found),
        }
    }

    /// The slots that were given the newest key when its epoch began; none in the first.
    pub(crate) fn read_recipients(&self) -> Result<Vec<KnownRecipient>> {
        let Some((record, secret)) = self.read_newest_epoch()? else { return Ok(Vec::new()) };
        let slots = record.recipients.iter().map(|recipient| recipient.slot);
        Ok(slots.zip(secret.publics).map(|(slot, public)| KnownRecipient { slot, public }).collect())
    }

    fn read_newest_epoch(&self) -> Result<Option<(EpochRecord, EpochSecret)>> {
        let Some(source) = &self.source else { return Ok(None) };
        let Some(EpochMaster { epoch, master }) = self.read_newest_master()? else { return Ok(None) };
        let key = epoch_object_key(epoch)?;
        let missing = || VolumeError::Damaged { object: key.to_string(), reason: "it is missing".into() };
        let record = source.read_epoch_record(epoch)?.ok_or_else(missing)?;
        let secret = open_epoch_secret(&record, &EpochKeys::derive(&master, source.volume, epoch))?;
        Ok(Some((record, secret)))
    }

    /// The newest epoch of the store.
    pub fn read_status(&self) -> Result<EpochStatus> {
        self.refresh_keys()?;
        let number = self.keys.newest_epoch().number();
        let Some((record, _)) = self.read_newest_epoch()? else {
            return Ok(EpochStatus { number, begun: None, is_finished: true });
        };
        let is_finished = self.find_end(record.epoch)?.is_some();
        Ok(EpochStatus { number, begun: Some(record.time), is_finished })
    }

    /// Forgets the keys of the store's epochs unless the store has the newest of them: it may be another store of the volume.
    /// Tells whether it did; then the volume must be opened anew.
    pub(crate) fn forget_keys_of_other_store(&self) -> Result<bool> {
        let Some(source) = &self.source else { return Ok(false) };
        match self.read_newest_epoch() {
            // Only if the store answered: one that cannot be reached may be the right one.
            Err(error) if is_data_loss(&error) => source.home.store.remove_epoch_masters().map(|()| true),
            outcome => outcome.map(|_| false),
        }
    }

    /// The objects of the key epochs that there must be, by what is known here.
    pub(crate) fn list_expected_objects(&self) -> Result<Vec<ObjectKey>> {
        let newest = self.keys.newest_epoch();
        let mut expected = Vec::new();
        // Epoch 0 has no objects: its key is the first one of the volume.
        for epoch in (1..=newest.number()).filter_map(KeyEpoch::from_number) {
            expected.push(epoch_object_key(epoch)?);
            let end = end_object_key(epoch)?;
            // A rotation begins only when the one before it is finished, so that every epoch but the newest has an
            // end.
            if epoch < newest || self.has_seen(&end)? {
                expected.push(end);
            }
        }
        Ok(expected)
    }

    /// Checks that an object of the key epochs is as a holder of its key made it.
    pub(crate) fn check_epoch_object(&self, key: &ObjectKey) -> Result<()> {
        let foreign = || VolumeError::Damaged {
            object: key.to_string(),
            reason: "its name is not that of a key epoch".into(),
        };
        let (epoch, is_end) = parse_epoch_key(key).ok_or_else(foreign)?;
        let Some(source) = &self.source else { return Err(foreign()) };
        if is_end {
            return self.open_end(epoch, &self.objects.get_object(key, END_OBJECT_MAX)?).map(|_| ());
        }
        let kept = source.home.store.read_epoch_masters(source.volume)?;
        let unknown =
            || VolumeError::Damaged { object: key.to_string(), reason: "its key is not known here".into() };
        let known = kept.into_iter().find(|kept| kept.epoch == epoch).ok_or_else(unknown)?;
        let record = source.read_epoch_record(epoch)?.ok_or_else(foreign)?;
        open_epoch_secret(&record, &EpochKeys::derive(&known.master, source.volume, epoch)).map(|_| ())
    }
}

fn old_key_error(object: &ObjectKey, epoch: KeyEpoch) -> VolumeError {
    VolumeError::Damaged {
        object: object.to_string(),
        reason: format!(
            "it is sealed with the key of key epoch {epoch}, which was changed since: a device that was revoked, or a \
             writer that was interrupted, put it there"
        ),
    }
}

fn missing_end_error(epoch: KeyEpoch) -> VolumeError {
    VolumeError::Damaged {
        object: format!("{EPOCH_PREFIX}{:08x}.finished", epoch.number()),
        reason: "it is missing: the rotation was finished".into(),
    }
}
