//! Snapshots that are taken out of the history: their records move, and can still be read.
//!
//! Invariant: a record is always in one of the two folders, or for a moment in both.

use std::collections::HashMap;
use std::sync::Arc;

use vellum_store::{ObjectKey, ObjectRename, RenameObjects, StoreError, map_requests, unlist_objects};
use vellum_types::{LookupResult, SnapshotId};

use super::{FORGOTTEN, LIVE, SnapshotCatalog, record_key};
use crate::error::{Result, VolumeError};
use crate::record::{OBJECT_MAX, SnapshotRecord};

/// Records that are moved together: their copies share the flushes of a disk, and are in memory at once.
const FORGET_BATCH: usize = 1024;

impl SnapshotCatalog {
    /// Returns the records of snapshots that were forgotten, in the order asked for: from the catalog, or else from the
    /// store, several at once. Each fails as [`Self::fetch_forgotten_record`] does.
    pub fn get_forgotten_records(&self, ids: &[SnapshotId]) -> Vec<Result<Arc<SnapshotRecord>>> {
        let unknown: Vec<_> = self.with_known_records(|known| {
            ids.iter().filter(|id| self.find_record(known, id).is_none()).copied().collect()
        });
        let fetched = map_requests(&*self.objects, &unknown, |id| self.fetch_forgotten_record(id));
        let mut found = Vec::with_capacity(unknown.len());
        let mut failed = HashMap::new();
        for (id, outcome) in unknown.into_iter().zip(fetched) {
            match outcome {
                Ok(record) => found.push((id, record)),
                Err(error) => drop(failed.insert(id, error)),
            }
        }
        self.cache_records(&found);
        self.with_known_records(|known| {
            let get = |id: &SnapshotId| match failed.remove(id) {
                Some(error) => Err(error),
                None => known.records.get(id).cloned().ok_or(VolumeError::MissingRecord(*id)),
            };
            ids.iter().map(get).collect()
        })
    }

    /// Takes snapshots out of the history; the next collection deletes their blobs. The records move to the forgotten
    /// ones, so that a history can be followed across them. If this is killed halfway, each snapshot is either there or
    /// forgotten. Returns those that it forgot: what is not there any more was forgotten by somebody else.
    pub fn forget_snapshots(&self, ids: &[SnapshotId]) -> Result<Vec<SnapshotId>> {
        let mut forgotten = Vec::with_capacity(ids.len());
        for batch in ids.chunks(FORGET_BATCH) {
            forgotten.extend(match self.objects.as_renaming() {
                Some(store) => self.rename_batch(batch, store)?,
                None => self.copy_batch(batch)?,
            });
        }
        Ok(forgotten)
    }

    fn rename_batch(&self, ids: &[SnapshotId], store: &dyn RenameObjects) -> Result<Vec<SnapshotId>> {
        let rename = |id| Ok(ObjectRename { from: record_key(LIVE, id)?, to: record_key(FORGOTTEN, id)? });
        let renames = ids.iter().map(rename).collect::<Result<Vec<_>>>()?;
        // Before the records move: a reader of a published store that misses one must find in the listing that it is gone.
        unlist_objects(&*self.objects, &|key| renames.iter().any(|rename| rename.from == *key))?;
        let renamed = store.rename_objects(&renames);
        // The records themselves stay known, because histories lead across them.
        self.with_known_records(|known| known.listed = None);
        Ok(ids.iter().zip(renamed?).filter(|(_, was_there)| *was_there).map(|(id, _)| *id).collect())
    }

    fn copy_batch(&self, ids: &[SnapshotId]) -> Result<Vec<SnapshotId>> {
        let found = map_requests(&*self.objects, ids, |id| {
            Ok::<_, VolumeError>(self.objects.get_object(&record_key(LIVE, id)?, OBJECT_MAX))
        });
        let mut moved = Vec::with_capacity(ids.len());
        let mut sealed = Vec::with_capacity(ids.len());
        for (id, found) in ids.iter().zip(found) {
            if let Some(record) = found?.none_if_missing()? {
                moved.push(*id);
                sealed.push((record_key(FORGOTTEN, id)?, record));
            }
        }
        let copies: Vec<_> = sealed.iter().map(|(key, bytes)| (key.clone(), &bytes[..])).collect();
        // The copies first: between the two requests a record is in both folders, never in none.
        match self.objects.put_objects(&copies) {
            // An earlier attempt, killed before it deleted the originals, left some of the copies.
            Err(StoreError::Exists { .. }) => self.put_missing_copies(&copies)?,
            other => other?,
        }
        let originals = moved.iter().map(|id| record_key(LIVE, id)).collect::<Result<Vec<_>>>()?;
        // As in `rename_batch`: before the originals go.
        unlist_objects(&*self.objects, &|key| originals.contains(key))?;
        let deleted = map_requests(&*self.objects, &originals, |key| {
            Ok::<_, VolumeError>(self.objects.delete_object(key)?)
        });
        // The records themselves stay known, because histories lead across them.
        self.with_known_records(|known| known.listed = None);
        deleted.into_iter().collect::<Result<()>>()?;
        Ok(moved)
    }

    /// Puts a snapshot back that was forgotten. Fails as [`Self::fetch_forgotten_record`] does.
    pub(crate) fn restore_forgotten_record(&self, id: &SnapshotId) -> Result<()> {
        let record = self.fetch_forgotten_record(id)?;
        // The original first: between the two requests the record is in both folders, never in none.
        self.store_record(&record)?;
        let copy = record_key(FORGOTTEN, id)?;
        unlist_objects(&*self.objects, &|key| *key == copy)?;
        self.objects.delete_object(&copy)?;
        self.with_known_records(|known| known.listed = None);
        Ok(())
    }

    fn put_missing_copies(&self, copies: &[(ObjectKey, &[u8])]) -> Result<()> {
        for (key, bytes) in copies {
            match self.objects.put_object(key, bytes) {
                Ok(()) | Err(StoreError::Exists { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
