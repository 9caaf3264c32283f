//! Writes without conditions, for stores with one writer; and the names that begin with a dot, which belong to the store
//! itself.
//!
//! Invariant: nothing here notices that another machine writes, too. The caller must have the right to write.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use opendal::Operator;
use vellum_types::LookupResult;

use super::{RequestSubject, ServiceStore, body};
use crate::error::StoreError;

/// The folder of objects that have not got their names yet, and of those that are written to learn the time.
const TEMP_FOLDER: &str = ".tmp";
/// What is left there for longer belongs to a writer that died.
const ABANDONED: Duration = Duration::from_hours(24);

impl ServiceStore {
    /// Whether an object appears whole or not at all when it is written under its own name. WebDAV servers write into the
    /// file that readers see.
    fn writes_whole_objects(&self) -> bool {
        // Of the services here, only WebDAV has a rename.
        !self.operator.read().info().capability().rename
    }

    /// Whether an existing object can be replaced so that readers find the old or the new one: a rename over another file
    /// removes that one first.
    pub(in crate::object) fn replaces_whole_objects(&self) -> bool {
        self.writes_whole_objects()
    }

    /// Writes an object, whatever is there.
    pub(in crate::object) fn overwrite_object(&self, path: &str, bytes: &[u8]) -> Result<(), StoreError> {
        if self.writes_whole_objects() {
            return self.write_in_place(path, bytes, self.limits.retry_for);
        }
        let temporary = format!("{TEMP_FOLDER}/{:016x}", getrandom::u64().unwrap_or_default());
        self.write_in_place(&temporary, bytes, self.limits.retry_for)?;
        let subject = RequestSubject { action: "write", key: path };
        let renamed = self.repeat(subject, &self.pool.writes, |operator| {
            let from = temporary.clone();
            let to = path.to_owned();
            async move { operator.rename(&from, &to).await }
        })?;
        let Err(failed) = renamed else { return Ok(()) };
        // The reply to an earlier try may be lost: then its source is gone, and the object is there.
        let stored = self.read_path(path, bytes.len() as u64);
        if matches!(stored, Ok(Some(stored)) if stored == bytes) {
            return Ok(());
        }
        // What cannot be removed now is removed when it is a day old.
        let _ = self.delete_path(&temporary);
        Err(self.wrap_failure(subject, &failed))
    }

    /// Writes an object under its own name, and repeats that for `retry_for`.
    pub(in crate::object) fn write_in_place(
        &self,
        path: &str,
        bytes: &[u8],
        retry_for: Duration,
    ) -> Result<(), StoreError> {
        let subject = RequestSubject { action: "write", key: path };
        let body = Bytes::copy_from_slice(bytes);
        let send = |operator: Operator| {
            let path = path.to_owned();
            let body = body.clone();
            async move { operator.write(&path, body).await }
        };
        let written =
            self.repeat_for(subject, retry_for, || self.attempt(subject, &self.pool.writes, send))?;
        written.map(drop).map_err(|failed| self.wrap_failure(subject, &failed))
    }

    /// An object of at most `max` bytes; none if there is none.
    pub(in crate::object) fn read_path(&self, path: &str, max: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let subject = RequestSubject { action: "read", key: path };
        let read = self.repeat(subject, &self.pool.reads, |operator| {
            let path = path.to_owned();
            async move { body::read_object_range(&operator, &path, .., max).await }
        })?;
        let wrapped = read.map_err(|failed| self.wrap_failure(subject, &failed));
        match wrapped {
            Ok(Some(object)) => Ok(Some(object.bytes)),
            Ok(None) => Err(StoreError::TooLarge {
                place: self.location.clone(),
                key: path.to_owned(),
                size: max.saturating_add(1),
                max,
            }),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// When an object was written, by the clock of the service.
    pub(in crate::object) fn find_write_time(&self, path: &str) -> Result<Option<SystemTime>, StoreError> {
        let subject = RequestSubject { action: "read", key: path };
        let found = self.repeat(subject, &self.pool.reads, |operator| {
            let path = path.to_owned();
            async move { operator.stat(&path).await }
        })?;
        let metadata = found.map_err(|failed| self.wrap_failure(subject, &failed))?;
        Ok(metadata.last_modified().map(Into::into))
    }

    /// Removes an object; it is no error if there is none.
    pub(in crate::object) fn delete_path(&self, path: &str) -> Result<(), StoreError> {
        let subject = RequestSubject { action: "delete", key: path };
        let deleted = self.repeat(subject, &self.pool.writes, |operator| {
            let path = path.to_owned();
            async move { operator.delete(&path).await }
        })?;
        deleted.map_err(|failed| self.wrap_failure(subject, &failed)).ignore_missing()
    }

    /// Removes what writers that died have left without a name. What cannot be removed now is removed another time.
    pub(in crate::object) fn remove_abandoned_objects(&self) {
        let subject = RequestSubject { action: "list", key: TEMP_FOLDER };
        let listed = self.repeat(subject, &self.pool.writes, |operator| async move {
            operator.list(&format!("{TEMP_FOLDER}/")).await
        });
        let Ok(Ok(entries)) = listed else { return };
        // The newest file tells the server's time, from which this machine's clock may differ.
        let newest = entries.iter().filter_map(|entry| entry.metadata().last_modified()).max();
        for entry in entries.iter().filter(|entry| entry.metadata().is_file()) {
            let age = newest.zip(entry.metadata().last_modified()).map(|(newest, then)| {
                SystemTime::from(newest).duration_since(then.into()).unwrap_or_default()
            });
            if age.is_some_and(|age| age > ABANDONED) {
                let _ = self.delete_path(entry.path());
            }
        }
    }
}

/// Whether this is one of the store's own objects, which are none of the volume's.
pub(super) fn is_own_object(path: &str) -> bool {
    path.starts_with('.')
}
