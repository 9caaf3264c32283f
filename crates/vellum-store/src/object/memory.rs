//! Objects in the memory of this process: for tests, and for measuring what a store itself costs.
//!
//! Invariant: it answers as a directory would. It ends with the process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::RwLock;

use super::{ObjectInfo, ObjectKey, ObjectStore, check_read_length, key};
use crate::error::StoreError;

/// An object with its time.
struct MemoryObject {
    // Shared, so that readers copy it without holding the lock.
    bytes: Arc<[u8]>,
    modified: SystemTime,
}

/// A store in memory.
pub struct MemoryObjectStore {
    location: String,
    objects: RwLock<BTreeMap<ObjectKey, MemoryObject>>,
}

impl MemoryObjectStore {
    /// An empty store. `location` is what messages call it.
    #[must_use]
    pub fn new(location: &str) -> Self {
        Self { location: location.to_owned(), objects: RwLock::default() }
    }

    fn find_bytes(&self, key: &ObjectKey) -> Result<Arc<[u8]>, StoreError> {
        let objects = self.objects.read();
        objects
            .get(key)
            .map(|object| Arc::clone(&object.bytes))
            .ok_or_else(|| StoreError::NotFound { place: self.location.clone(), key: key.to_string() })
    }
}

impl ObjectStore for MemoryObjectStore {
    fn describe_location(&self) -> String {
        self.location.clone()
    }

    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        let bytes = self.find_bytes(key)?;
        let size = bytes.len() as u64;
        if size > max {
            return Err(StoreError::TooLarge {
                place: self.location.clone(),
                key: key.to_string(),
                size,
                max,
            });
        }
        Ok(bytes.to_vec())
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        let bytes = self.find_bytes(key)?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        // A range beyond the end is cut here; `check_read_length` then reports the truncation as the other stores do.
        let end = start.saturating_add(usize::try_from(len).unwrap_or(usize::MAX)).min(bytes.len());
        check_read_length(self, key, bytes[start..end].to_vec(), len)
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        Ok(self.find_bytes(key)?.len() as u64)
    }

    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        // One lock for the look and the write: of several who create an object, one succeeds.
        let mut objects = self.objects.write();
        if objects.contains_key(key) {
            return Err(StoreError::Exists { place: self.location.clone(), key: key.to_string() });
        }
        objects.insert(key.clone(), MemoryObject { bytes: bytes.into(), modified: SystemTime::now() });
        Ok(())
    }

    fn swap_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        // As for a put: nobody may come between the comparison and the change.
        let mut objects = self.objects.write();
        if objects.get(key).map(|object| &*object.bytes) != expected {
            return Err(StoreError::Changed { place: self.location.clone(), key: key.to_string() });
        }
        match new {
            Some(bytes) => {
                let object = MemoryObject { bytes: bytes.into(), modified: SystemTime::now() };
                objects.insert(key.clone(), object);
            }
            None => {
                objects.remove(key);
            }
        }
        Ok(())
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        let folder = key::check_folder(folder)?;
        let is_inside = |key: &ObjectKey| {
            folder.is_empty() || key.as_str().strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
        };
        let objects = self.objects.read();
        let found = objects.iter().filter(|(key, _)| is_inside(key)).map(|(key, object)| ObjectInfo {
            key: key.clone(),
            size: object.bytes.len() as u64,
            modified: Some(object.modified),
            version: None,
        });
        Ok(found.collect())
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.objects.write().remove(key);
        Ok(())
    }
}
