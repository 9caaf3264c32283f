//! A store that refuses writes with a reason.
//!
//! Invariant: reads pass through; every write fails before anything is sent.

use std::sync::Arc;

use vellum_types::ErrorKind;

use super::{KeyFilter, ObjectInfo, ObjectKey, ObjectSelection, ObjectStore, StoreGuarantees};
use crate::error::StoreError;

/// A store that is only read.
pub struct ReadOnlyStore {
    inner: Arc<dyn ObjectStore>,
    reason: String,
    kind: ErrorKind,
}

impl ReadOnlyStore {
    /// Refuses writes to `inner`, with a reason.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>, reason: String, kind: ErrorKind) -> Self {
        Self { inner, reason, kind }
    }

    fn refuse(&self, action: &'static str, key: &ObjectKey) -> StoreError {
        StoreError::Service {
            place: self.inner.describe_location(),
            key: key.to_string(),
            action,
            kind: self.kind,
            message: self.reason.clone(),
        }
    }
}

impl ObjectStore for ReadOnlyStore {
    fn describe_location(&self) -> String {
        self.inner.describe_location()
    }

    fn inner_store(&self) -> Option<&dyn ObjectStore> {
        Some(&*self.inner)
    }

    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.get_object(key, max)
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.get_range(key, offset, len)
    }

    fn get_range_up_to(&self, key: &ObjectKey, offset: u64, max: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.get_range_up_to(key, offset, max)
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        self.inner.object_size(key)
    }

    fn put_object(&self, key: &ObjectKey, _: &[u8]) -> Result<(), StoreError> {
        Err(self.refuse("write", key))
    }

    fn swap_ref(&self, key: &ObjectKey, _: Option<&[u8]>, _: Option<&[u8]>) -> Result<(), StoreError> {
        Err(self.refuse("change", key))
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        self.inner.list_objects(folder)
    }

    fn list_keys(&self, folder: &str) -> Result<Vec<ObjectKey>, StoreError> {
        self.inner.list_keys(folder)
    }

    fn select_objects(&self, folder: &str, is_wanted: KeyFilter) -> Result<ObjectSelection, StoreError> {
        self.inner.select_objects(folder, is_wanted)
    }

    fn holds_objects(&self) -> Result<bool, StoreError> {
        self.inner.holds_objects()
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        Err(self.refuse("delete", key))
    }

    /// A reserve is a file, and a process that may not write cannot release it.
    fn ensure_reserve(&self) {}

    fn release_reserve(&self) {}

    fn adapt_to_guarantees(&self, _: &StoreGuarantees) {}
}
