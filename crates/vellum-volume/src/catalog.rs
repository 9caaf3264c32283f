//! Snapshot records: writing and reading them in the store, with a local catalog, so that a history of thousands
//! is one file read.
//!
//! Invariant: a record's name is the hash of its content, so a cached record can be missing but never wrong: each
//! is checked against its id when the catalog is loaded.

mod file;
mod forgotten;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use vellum_crypto::{RecordDomain, VolumeKeys};
use vellum_host::parallel::run_parallel;
use vellum_store::{ObjectKey, ObjectStore, RequestPurpose, StoreError, join_requests, map_requests};
use vellum_types::{ErrorKind, FieldReader, LookupResult, SnapshotId};

use crate::error::{Result, VolumeError};
use crate::key_epochs::KeyEpochs;
use crate::operations::{PutOperation, SealedOperation};
use crate::record::{OBJECT_MAX, RECORD_MAX, RecordSummary, SnapshotRecord};
use crate::state::StateDir;

/// Where the records of snapshots are; each of them keeps its tree alive.
const LIVE: &str = "snapshots/";
/// Where records go when their snapshot is forgotten.
const FORGOTTEN: &str = "forgotten/";
/// Records that are fetched in order to be counted: a request each. Whoever attaches to a volume with a million snapshots
/// does not wait for all of them.
const COUNT_FETCH_MAX: usize = 1000;
const CATALOG_FILE: &str = "catalog";
/// First bytes of the catalog file; the last is its version.
const MAGIC: &[u8; 8] = b"VLMCATA\x01";

/// All snapshot records that were met, by id.
pub struct SnapshotCatalog {
    objects: Arc<dyn ObjectStore>,
    keys: Arc<VolumeKeys>,
    epochs: Arc<KeyEpochs>,
    state: StateDir,
    known: Mutex<KnownRecords>,
}

/// The records that the store lists.
#[derive(Debug, Default)]
pub struct ListedRecords {
    /// Snapshots with their records, in no particular order.
    pub sound: Vec<(SnapshotId, Arc<SnapshotRecord>)>,
    /// Snapshots whose records cannot be read, each with the reason.
    pub damaged: Vec<(SnapshotId, VolumeError)>,
}

#[derive(Default)]
struct KnownRecords {
    loaded: bool,
    /// Whether the file has bytes that cannot be read: what is appended after them would never be found.
    damaged: bool,
    /// The file, and where in it each record stands: of thousands, a command looks at a few.
    file: Vec<u8>,
    places: HashMap<SnapshotId, Range<usize>>,
    records: HashMap<SnapshotId, Arc<SnapshotRecord>>,
    /// The snapshots that the store listed last.
    listed: Option<Arc<[SnapshotId]>>,
}

impl KnownRecords {
    fn contains_record(&self, id: &SnapshotId) -> bool {
        self.records.contains_key(id) || self.places.contains_key(id)
    }

    /// When and where a snapshot was made, as its record says, which may not have been checked yet.
    fn summarize_record(&self, id: &SnapshotId) -> Option<RecordSummary<'_>> {
        match self.records.get(id) {
            Some(record) => Some(record.summarize()),
            None => RecordSummary::decode(self.file.get(self.places.get(id)?.clone())?).ok(),
        }
    }
}

/// Stores the bytes of an object.
type PutObject<'p> = dyn FnMut(&ObjectKey, &[u8]) -> Result<(), StoreError> + 'p;

impl SnapshotCatalog {
    /// Opens a catalog. Its file is read when it is first needed.
    #[must_use]
    pub fn open(objects: Arc<dyn ObjectStore>, epochs: Arc<KeyEpochs>, state: StateDir) -> Self {
        let keys = epochs.volume_keys().clone();
        Self { objects, keys, epochs, state, known: Mutex::default() }
    }

    /// Stores a new record durably, and returns its id. A record that the store has already counts as stored. Fails if the
    /// store refuses it, or if what it has under the id cannot be read.
    pub fn store_record(&self, record: &SnapshotRecord) -> Result<SnapshotId> {
        self.store_record_in(LIVE, record)
    }

    /// Stores the record of a snapshot that was forgotten, so that the history can be followed across it. Fails as
    /// [`Self::store_record`] does.
    pub fn store_forgotten_record(&self, record: &SnapshotRecord) -> Result<SnapshotId> {
        self.store_record_in(FORGOTTEN, record)
    }

    /// Puts a record and that of an operation at the same time. Says what became of the latter.
    fn put_record_with(
        &self,
        record: &SnapshotRecord,
        operation: &SealedOperation,
    ) -> Result<Result<(), StoreError>> {
        let mut other = Ok(());
        self.put_record(LIVE, record, &mut |key, sealed| {
            let SealedOperation { key: beside, bytes, .. } = operation;
            // A service has no request for two objects: `put_objects` would send one after the other.
            if self.objects.is_remote() {
                let (own, done) = join_requests(
                    &*self.objects,
                    || self.objects.put_object(key, sealed),
                    || self.objects.put_object(beside, bytes),
                );
                other = done;
                return own;
            }
            // Both share the waits for a disk.
            match self.objects.put_objects(&[(key.clone(), sealed), (beside.clone(), bytes)]) {
                // Which of them was there already?
                Err(StoreError::Exists { .. }) => {
                    let own = self.objects.put_object(key, sealed);
                    other = self.objects.put_object(beside, bytes);
                    own
                }
                done => done,
            }
        })?;
        Ok(other)
    }

    /// Calls `change`, which changes a ref that is there, with what puts the first record of an operation together with that
    /// of a snapshot, and later ones by themselves. If nothing was to be recorded, the snapshot's record is stored afterwards:
    /// then the ref named it before.
    ///
    /// Nobody asks for a newer key after the record was put: a rotation seals the ref anew before it lists the records. So
    /// either the swap of the ref comes first, and the rotation finds the record; or the swap fails, whoever repeats it
    /// reads the ref, which only the newer key opens, and the record is sealed with that.
    pub(crate) fn store_record_during(
        &self,
        record: &SnapshotRecord,
        change: impl FnOnce(&mut PutOperation<'_>) -> Result<()>,
    ) -> Result<()> {
        // The key epoch in which the record was put, if it was.
        let mut put_in = None;
        let changed = change(&mut |sealed| {
            // Before the record is sealed: if a newer key comes in between, the record is sealed once more for nothing.
            let epoch = self.keys.newest_epoch();
            let Some(before) = put_in.replace(epoch) else {
                return Ok(self.put_record_with(record, sealed)??);
            };
            if before < epoch {
                self.replace_record(LIVE, record)?;
            }
            Ok(self.objects.put_object(&sealed.key, &sealed.bytes)?)
        });
        match (changed, put_in) {
            (Ok(()), Some(_)) => {
                self.cache_records(&[(record.compute_id(&self.keys), record.clone())]);
                Ok(())
            }
            (Ok(()), None) => self.store_record(record).map(drop),
            (Err(error @ (VolumeError::Revoked { .. } | VolumeError::KeyChanged { .. })), Some(_)) => {
                // If this fails, no name leads to the record, and it is refused when the rotation is finished.
                let _ = self.objects.delete_object(&record_key(LIVE, &record.compute_id(&self.keys))?);
                Err(error)
            }
            (Err(error), _) => Err(error),
        }
    }

    fn store_record_in(&self, folder: &str, record: &SnapshotRecord) -> Result<SnapshotId> {
        let epoch = self.keys.newest_epoch();
        let id = self.put_record(folder, record, &mut |key, sealed| self.objects.put_object(key, sealed))?;
        // A rotation that began meanwhile may not have seen it. Nothing names it yet, so that it can be replaced.
        match self.epochs.refresh_keys() {
            Ok(()) if epoch < self.keys.newest_epoch() => self.replace_record(folder, record)?,
            Ok(()) => {}
            Err(error) => {
                // If this fails, no name leads to the record, and it is refused when the rotation is finished.
                let _ = self.objects.delete_object(&record_key(folder, &id)?);
                return Err(error);
            }
        }
        self.cache_records(&[(id, record.clone())]);
        Ok(id)
    }

    /// Puts a record; one that the store has already counts, if it can be read.
    fn put_record(
        &self,
        folder: &str,
        record: &SnapshotRecord,
        put: &mut PutObject<'_>,
    ) -> Result<SnapshotId> {
        let id = record.compute_id(&self.keys);
        match put(&record_key(folder, &id)?, &self.seal_snapshot(&id, record)) {
            // The same record was put before, by an attempt whose answer was lost.
            Err(StoreError::Exists { .. }) => self.fetch_record_from(folder, &id).map(|_| ())?,
            other => other?,
        }
        Ok(id)
    }

    /// Seals a record that nothing names yet with the newest key.
    fn replace_record(&self, folder: &str, record: &SnapshotRecord) -> Result<()> {
        let id = record.compute_id(&self.keys);
        let key = record_key(folder, &id)?;
        self.objects.delete_object(&key)?;
        Ok(self.objects.put_object(&key, &self.seal_snapshot(&id, record))?)
    }

    fn seal_snapshot(&self, id: &SnapshotId, record: &SnapshotRecord) -> Vec<u8> {
        let mut sealed = Vec::new();
        self.keys.seal_record(RecordDomain::Snapshot, id.as_bytes(), &record.encode(), &mut sealed);
        sealed
    }

    /// Returns the record of a snapshot, which may be a forgotten one: from the catalog, or else from the store. Fails with
    /// [`VolumeError::MissingRecord`] if neither has it, and with [`VolumeError::Damaged`] if it is not authentic.
    pub fn get_record(&self, id: &SnapshotId) -> Result<Arc<SnapshotRecord>> {
        if let Some(record) = self.with_known_records(|known| self.find_record(known, id)) {
            return Ok(record);
        }
        // Two threads may fetch one record at once: both get the same, and the file has it twice.
        let record = self.fetch_record(id)?;
        self.cache_records(&[(*id, record.clone())]);
        Ok(Arc::new(record))
    }

    /// Counts the wanted snapshots among those that the store listed last. Damaged records are left out, and so are those
    /// that this machine has not seen if they are very many.
    pub fn count_listed(&self, is_wanted: impl Fn(&SnapshotId, &RecordSummary<'_>) -> bool) -> Result<usize> {
        let ids = self.last_listed_ids()?;
        // Those that this machine has not seen are fetched together, and not one by one below.
        let unknown: Vec<_> = self.with_known_records(|known| {
            ids.iter().filter(|id| !known.contains_record(id)).copied().collect()
        });
        if unknown.len() <= COUNT_FETCH_MAX {
            self.fetch_records(unknown)?;
        }
        let may_count = |known: &KnownRecords, id: &SnapshotId| {
            known.summarize_record(id).is_some_and(|summary| is_wanted(id, &summary))
        };
        Ok(self.with_known_records(|known| {
            // Of thousands few are wanted: only these are decoded whole and checked against their ids.
            let candidates = ids.iter().filter(|id| may_count(known, id)).copied().collect::<Vec<_>>();
            let sound = candidates.iter().filter_map(|id| Some((id, self.find_record(known, id)?)));
            sound.filter(|(id, record)| is_wanted(id, &record.summarize())).count()
        }))
    }

    /// Returns the record of a snapshot as the store has it now, authenticated. Fails as [`Self::get_record`] does.
    pub fn fetch_record(&self, id: &SnapshotId) -> Result<SnapshotRecord> {
        match self.fetch_record_from(LIVE, id) {
            // In this order: whoever forgets a snapshot copies its record before the original is deleted.
            Err(VolumeError::MissingRecord(_)) => self.fetch_record_from(FORGOTTEN, id),
            other => other,
        }
    }

    /// Returns whether the store has a snapshot now that was not forgotten.
    pub fn has_snapshot(&self, id: &SnapshotId) -> Result<bool> {
        Ok(self.objects.get_object(&record_key(LIVE, id)?, OBJECT_MAX).none_if_missing()?.is_some())
    }

    /// Returns the record of a forgotten snapshot as the store has it now, authenticated. Fails with
    /// [`VolumeError::MissingRecord`] if the snapshot was not forgotten.
    pub fn fetch_forgotten_record(&self, id: &SnapshotId) -> Result<SnapshotRecord> {
        self.fetch_record_from(FORGOTTEN, id)
    }

    fn fetch_record_from(&self, folder: &str, id: &SnapshotId) -> Result<SnapshotRecord> {
        let key = record_key(folder, id)?;
        // Before the object is read: a machine that has not heard of a rotation would accept a record that a revoked
        // device sealed with the old key.
        self.epochs.refresh_keys_if_due()?;
        let Some(sealed) = self.objects.get_object(&key, OBJECT_MAX).none_if_missing()? else {
            return Err(VolumeError::MissingRecord(*id));
        };
        let damaged = |reason: String| VolumeError::Damaged { object: key.to_string(), reason };
        let mut plain = Vec::new();
        let epoch = self
            .keys
            .open_record_in_epoch(RecordDomain::Snapshot, id.as_bytes(), &sealed, &mut plain)
            .map_err(|error| self.epochs.explain_unseal_error(&key, error))?;
        // The seal proves only that the writer had some key of this volume. A key that was changed since proves
        // nothing, unless the end of that rotation lists this very record.
        self.epochs.require_known_record(&key, id, epoch, &plain)?;
        self.verify_record(id, &plain).map_err(|error| match error {
            VolumeError::Decode { .. } => error,
            other => damaged(other.to_string()),
        })
    }

    fn verify_record(&self, id: &SnapshotId, plain: &[u8]) -> Result<SnapshotRecord> {
        let record = SnapshotRecord::decode(plain)
            .map_err(VolumeError::wrap_decode_error(format!("snapshot {id}")))?;
        // An object is bound to its name by its seal. Entries of the local file have no seal: there, this hash is all
        // that tells a damaged one.
        if record.compute_id(&self.keys) != *id {
            let reason = "its content does not have the hash that it is named by".into();
            return Err(VolumeError::Damaged { object: format!("snapshots/{id}"), reason });
        }
        Ok(record)
    }

    /// Returns the ids of all snapshots in the store, in ascending order.
    pub fn list_ids(&self) -> Result<Vec<SnapshotId>> {
        self.list_folder_ids(LIVE)
    }

    /// Returns the ids of all snapshots that the store had when it was asked last, in ascending order. So all names that one
    /// command resolves refer to one list.
    pub fn last_listed_ids(&self) -> Result<Arc<[SnapshotId]>> {
        if let Some(listed) = &self.known.lock().listed {
            return Ok(listed.clone());
        }
        self.list_ids_anew()
    }

    /// Asks the store, and returns the ids of all snapshots, in ascending order: [`Self::last_listed_ids`] from now on, too.
    /// For who keeps a volume open, while others make snapshots and forget some.
    pub fn list_ids_anew(&self) -> Result<Arc<[SnapshotId]>> {
        // Whoever needs the list needs the records next: their file is read meanwhile.
        let purpose = RequestPurpose::current();
        let list = || {
            let _scope = purpose.enter();
            self.list_ids()
        };
        let ((), listed) = run_parallel(|| rayon::join(|| self.with_known_records(|_| ()), list));
        let listed: Arc<[SnapshotId]> = listed?.into();
        self.with_known_records(|known| known.listed = Some(listed.clone()));
        Ok(listed)
    }

    /// Returns the ids of the snapshots that were forgotten, in ascending order.
    pub fn list_forgotten_ids(&self) -> Result<Vec<SnapshotId>> {
        self.list_folder_ids(FORGOTTEN)
    }

    fn list_folder_ids(&self, folder: &str) -> Result<Vec<SnapshotId>> {
        // What is called otherwise is not a snapshot; a verification tells of it.
        let listed = self.objects.select_objects(folder, is_record_key)?.objects;
        let mut ids: Vec<_> = listed.iter().filter_map(|info| parse_record_key(folder, &info.key)).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Returns the ids of all snapshots whose records the catalog holds undamaged, in no particular order. The store is not
    /// asked.
    pub fn known_ids(&self) -> Vec<SnapshotId> {
        self.with_known_records(|known| {
            // Only what is whole counts: the ids in a damaged file name nothing.
            let unread: Vec<_> = known.places.keys().copied().collect();
            unread.iter().for_each(|id| drop(self.find_record(known, id)));
            known.records.keys().copied().collect()
        })
    }

    /// Returns the ids in the catalog, in ascending order, whether their records are damaged or not: enough to tell short ids
    /// apart.
    pub fn cached_ids(&self) -> Arc<[SnapshotId]> {
        self.with_known_records(|known| {
            let mut ids: Vec<_> = known.records.keys().chain(known.places.keys()).copied().collect();
            ids.sort_unstable();
            ids.dedup();
            ids.into()
        })
    }

    /// Returns the ids of all snapshots that are known here, in ascending order: what the store listed last, or else what the
    /// catalog has. Enough to shorten an id that is shown.
    pub fn ids_for_display(&self) -> Arc<[SnapshotId]> {
        let listed = self.known.lock().listed.clone();
        listed.unwrap_or_else(|| self.cached_ids())
    }

    /// Returns the record of a snapshot as the store has it now, authenticated; None if it was forgotten or is missing.
    pub fn try_fetch_record(&self, id: &SnapshotId) -> Result<Option<SnapshotRecord>> {
        match self.fetch_record_from(LIVE, id) {
            Ok(record) => Ok(Some(record)),
            Err(VolumeError::MissingRecord(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns all snapshots in the store with their records, in no particular order. Fails if one of them is damaged.
    pub fn load_all_records(&self) -> Result<Vec<(SnapshotId, Arc<SnapshotRecord>)>> {
        let ListedRecords { sound, damaged } = self.read_all_records()?;
        match damaged.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(sound),
        }
    }

    /// Returns all snapshots in the store: those whose records can be read, and those whose records are damaged.
    pub fn read_all_records(&self) -> Result<ListedRecords> {
        let ids = self.list_ids()?;
        let missing: Vec<_> = self.with_known_records(|known| {
            ids.iter().filter(|id| self.find_record(known, id).is_none()).copied().collect()
        });
        // Outside of the lock: other threads look records up meanwhile.
        let damaged = self.fetch_records(missing)?;
        let sound = self.with_known_records(|known| {
            ids.iter().filter_map(|id| known.records.get(id).map(|record| (*id, record.clone()))).collect()
        });
        Ok(ListedRecords { sound, damaged })
    }

    /// Brings records from the store into the catalog, all at once. Returns those that are damaged.
    fn fetch_records(&self, ids: Vec<SnapshotId>) -> Result<Vec<(SnapshotId, VolumeError)>> {
        let mut fetched = Vec::with_capacity(ids.len());
        let mut damaged = Vec::new();
        let found = map_requests(&*self.objects, &ids, |id| self.fetch_record(id));
        for (id, found) in ids.into_iter().zip(found) {
            match found {
                Ok(record) => fetched.push((id, record)),
                // Gone since it was listed.
                Err(VolumeError::MissingRecord(_)) => {}
                Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                    damaged.push((id, error));
                }
                // A store that does not answer says nothing about a record: it may be sound.
                Err(error) => return Err(error),
            }
        }
        self.cache_records(&fetched);
        Ok(damaged)
    }

    fn with_known_records<T>(&self, act: impl FnOnce(&mut KnownRecords) -> T) -> T {
        let mut known = self.known.lock();
        if !known.loaded {
            self.load_catalog_file(&mut known);
        }
        act(&mut known)
    }

    /// Reads the catalog file. A torn or damaged tail is left out: it is a cache.
    fn load_catalog_file(&self, known: &mut KnownRecords) {
        // Set before the file is read: one that cannot be read is not tried again for each record.
        known.loaded = true;
        known.file = std::fs::read(self.state.join(CATALOG_FILE)).unwrap_or_default();
        let Some(body) = known.file.strip_prefix(MAGIC) else {
            // A file of another version is replaced as a whole. One that does not exist is begun by the next append.
            known.damaged = !known.file.is_empty();
            return;
        };
        let mut reader = FieldReader::new(body);
        while reader.remaining() > 0 {
            let read =
                reader.read_array().map(SnapshotId).and_then(|id| Ok((id, reader.read_bytes(RECORD_MAX)?)));
            let Ok((id, plain)) = read else {
                known.damaged = true;
                return;
            };
            let end = known.file.len() - reader.remaining();
            known.places.insert(id, end - plain.len()..end);
        }
    }

    /// A record from memory, or from the file if it is whole there.
    fn find_record(&self, known: &mut KnownRecords, id: &SnapshotId) -> Option<Arc<SnapshotRecord>> {
        if let Some(record) = known.records.get(id) {
            return Some(record.clone());
        }
        // Removed whatever comes of it: a sound record is kept decoded, and a damaged one is not checked again.
        let place = known.places.remove(id)?;
        match self.verify_record(id, known.file.get(place)?) {
            Ok(record) => Some(known.records.entry(*id).or_insert(Arc::new(record)).clone()),
            Err(_) => {
                known.damaged = true;
                None
            }
        }
    }

    /// Adds records to memory and, as far as it can be written, to the catalog file.
    fn cache_records(&self, records: &[(SnapshotId, SnapshotRecord)]) {
        if records.is_empty() {
            return;
        }
        self.with_known_records(|known| {
            // Whatever the list does not name was made since, perhaps by another process.
            let is_listed =
                |listed: &Arc<[SnapshotId]>| records.iter().all(|(id, _)| listed.binary_search(id).is_ok());
            known.listed = known.listed.take().filter(is_listed);
            known.records.extend(records.iter().map(|(id, record)| (*id, Arc::new(record.clone()))));
            // A catalog that cannot be written costs the next command a few requests, nothing else.
            if known.damaged {
                known.damaged = self.rewrite_known(known).is_err();
            } else {
                let _ = self
                    .append_entries(&file::encode_entries(records.iter().map(|(id, record)| (id, record))));
            }
        });
    }
}

/// Whether a key is that of the record of a snapshot, which may be a forgotten one.
pub(crate) fn is_record_key(key: &ObjectKey) -> bool {
    [LIVE, FORGOTTEN].into_iter().any(|folder| parse_record_key(folder, key).is_some())
}

fn parse_record_key(folder: &str, key: &ObjectKey) -> Option<SnapshotId> {
    key.as_str().strip_prefix(folder)?.parse().ok()
}

/// The object of a snapshot that was not forgotten.
pub(crate) fn record_object_key(id: &SnapshotId) -> Result<ObjectKey> {
    record_key(LIVE, id)
}

fn record_key(folder: &str, id: &SnapshotId) -> Result<ObjectKey> {
    Ok(ObjectKey::new(format!("{folder}{id}"))?)
}
