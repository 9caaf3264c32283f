//! Snapshot records: writing and reading them in the store, with a local catalog, so that a history of thousands
//! is one file read.
//!
//! Invariant: a record's name is the hash of its content, so a cached record can be missing but never wrong: each
//! is checked against its id when the catalog is loaded.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, PoisonError};

use vellum_crypto::{Domain, VolumeKeys};
use vellum_store::{ObjectKey, ObjectStore, StoreError};
use vellum_types::{Reader, SnapshotId, Writer};

use crate::error::{Result, VolumeError};
use crate::record::SnapshotRecord;
use crate::state::StateDir;

/// Where the records of snapshots are; each of them keeps its tree alive.
const LIVE: &str = "snapshots/";
/// Where records go when their snapshot is forgotten.
const FORGOTTEN: &str = "forgotten/";
const CATALOG_FILE: &str = "catalog";
/// First bytes of the catalog file; the last is its version.
const MAGIC: &[u8; 8] = b"VLMCATA\x01";
/// Longest record that is read, bytes: notes and path lists are bounded far below.
const RECORD_MAX: usize = 8 << 20;

/// All snapshot records that were met, by id.
pub struct Catalog {
    objects: Arc<dyn ObjectStore>,
    keys: Arc<VolumeKeys>,
    state: StateDir,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    loaded: bool,
    records: HashMap<SnapshotId, Arc<SnapshotRecord>>,
}

impl Catalog {
    /// A catalog that is read when it is first needed.
    #[must_use]
    pub fn open(objects: Arc<dyn ObjectStore>, keys: Arc<VolumeKeys>, state: StateDir) -> Self {
        Self { objects, keys, state, known: Mutex::default() }
    }

    /// Stores a new record, durably; gives its id.
    pub fn put(&self, record: &SnapshotRecord) -> Result<SnapshotId> {
        let plain = record.encode();
        let id = SnapshotId(self.keys.record_id(Domain::Snapshot, &plain));
        let mut sealed = Vec::new();
        self.keys.seal(Domain::Snapshot, id.as_bytes(), &plain, &mut sealed);
        self.objects.put(&object_key(LIVE, &id)?, &sealed)?;
        self.remember(&[(id, record.clone())]);
        Ok(id)
    }

    /// The record of a snapshot. The catalog spares the request.
    pub fn get(&self, id: &SnapshotId) -> Result<Arc<SnapshotRecord>> {
        if let Some(record) = self.with_known(|known| known.records.get(id).cloned()) {
            return Ok(record);
        }
        let record = self.fetch(id)?;
        self.remember(&[(*id, record.clone())]);
        Ok(Arc::new(record))
    }

    /// The record as the store has it now, authenticated.
    pub fn fetch(&self, id: &SnapshotId) -> Result<SnapshotRecord> {
        match self.fetch_from(LIVE, id) {
            Err(VolumeError::MissingRecord(_)) => self.fetch_from(FORGOTTEN, id),
            other => other,
        }
    }

    fn fetch_from(&self, folder: &str, id: &SnapshotId) -> Result<SnapshotRecord> {
        let key = object_key(folder, id)?;
        let sealed = match self.objects.get(&key) {
            Ok(sealed) => sealed,
            Err(StoreError::NotFound { .. }) => return Err(VolumeError::MissingRecord(*id)),
            Err(error) => return Err(error.into()),
        };
        let damaged = |reason: String| VolumeError::Damaged { object: key.to_string(), reason };
        let mut plain = Vec::new();
        self.keys
            .open(Domain::Snapshot, id.as_bytes(), &sealed, &mut plain)
            .map_err(|error| damaged(error.to_string()))?;
        self.check(id, &plain).map_err(|error| match error {
            VolumeError::Decode { .. } => error,
            other => damaged(other.to_string()),
        })
    }

    fn check(&self, id: &SnapshotId, plain: &[u8]) -> Result<SnapshotRecord> {
        if SnapshotId(self.keys.record_id(Domain::Snapshot, plain)) != *id {
            let reason = "its content does not have the hash that it is named by".into();
            return Err(VolumeError::Damaged { object: format!("snapshots/{id}"), reason });
        }
        SnapshotRecord::decode(plain).map_err(VolumeError::decoding(format!("snapshot {id}")))
    }

    /// Ids of all snapshots in the store, sorted.
    pub fn ids(&self) -> Result<Vec<SnapshotId>> {
        self.list(LIVE)
    }

    /// Ids of the snapshots that were forgotten, sorted.
    pub fn forgotten_ids(&self) -> Result<Vec<SnapshotId>> {
        self.list(FORGOTTEN)
    }

    fn list(&self, folder: &str) -> Result<Vec<SnapshotId>> {
        let mut ids = Vec::new();
        for key in self.objects.list_names(folder)? {
            let name = key.as_str().rsplit('/').next().unwrap_or_default();
            let id = name.parse().map_err(|_| VolumeError::Damaged {
                object: key.to_string(),
                reason: "its name is not a snapshot id".into(),
            })?;
            ids.push(id);
        }
        ids.sort_unstable();
        Ok(ids)
    }

    /// All snapshots in the store with their records, in no particular order.
    pub fn all(&self) -> Result<Vec<(SnapshotId, Arc<SnapshotRecord>)>> {
        let ids = self.ids()?;
        let missing: Vec<_> = self
            .with_known(|known| ids.iter().filter(|id| !known.records.contains_key(*id)).copied().collect());
        let mut fetched = Vec::with_capacity(missing.len());
        for id in missing {
            match self.fetch(&id) {
                Ok(record) => fetched.push((id, record)),
                Err(VolumeError::MissingRecord(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.remember(&fetched);
        Ok(self.with_known(|known| {
            ids.iter().filter_map(|id| known.records.get(id).map(|record| (*id, record.clone()))).collect()
        }))
    }

    /// Takes a snapshot out of the history; its blobs go with the next collection. The record moves aside, so
    /// that a history can be followed across it. Killed halfway, the snapshot is still there.
    pub fn forget(&self, id: &SnapshotId) -> Result<()> {
        let sealed = self.objects.get(&object_key(LIVE, id)?)?;
        match self.objects.put(&object_key(FORGOTTEN, id)?, &sealed) {
            Ok(()) | Err(StoreError::Exists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.objects.delete(&object_key(LIVE, id)?)?)
    }

    fn with_known<T>(&self, act: impl FnOnce(&mut Known) -> T) -> T {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.loaded {
            known.records = self.load();
            known.loaded = true;
        }
        act(&mut known)
    }

    /// The catalog file's good records. A torn or damaged tail is left out: it is a cache.
    fn load(&self) -> HashMap<SnapshotId, Arc<SnapshotRecord>> {
        let mut records = HashMap::new();
        let Ok(bytes) = std::fs::read(self.state.join(CATALOG_FILE)) else { return records };
        let Some(body) = bytes.strip_prefix(MAGIC) else { return records };
        let mut reader = Reader::new(body);
        while let (Ok(id), Ok(plain)) = (reader.array().map(SnapshotId), reader.bytes(RECORD_MAX)) {
            match self.check(&id, plain) {
                Ok(record) => records.insert(id, Arc::new(record)),
                Err(_) => break,
            };
        }
        records
    }

    /// Adds records to memory and, as far as it can be written, to the catalog file.
    fn remember(&self, records: &[(SnapshotId, SnapshotRecord)]) {
        if records.is_empty() {
            return;
        }
        let mut writer = Writer::new();
        self.with_known(|known| {
            for (id, record) in records {
                writer.raw(id.as_bytes()).bytes(&record.encode());
                known.records.insert(*id, Arc::new(record.clone()));
            }
        });
        let append = || -> std::io::Result<()> {
            let path = self.state.join(CATALOG_FILE);
            let mut file = File::options().append(true).create(true).mode(0o600).open(path)?;
            let mut bytes = if file.metadata()?.len() == 0 { MAGIC.to_vec() } else { Vec::new() };
            bytes.extend_from_slice(writer.as_slice());
            file.write_all(&bytes)
        };
        // A catalog that cannot be written costs the next command a few requests, nothing else.
        let _ = append();
    }
}

fn object_key(folder: &str, id: &SnapshotId) -> Result<ObjectKey> {
    Ok(ObjectKey::new(format!("{folder}{id}"))?)
}
