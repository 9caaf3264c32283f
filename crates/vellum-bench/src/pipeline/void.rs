//! A store whose packs go nowhere. All else is small and kept in memory, so that an index can be.

use std::sync::Arc;

use vellum_store::{ObjectInfo, ObjectKey, ObjectStore, OpendalStore, StoreError};

/// The store.
pub struct DiscardingStore(Arc<dyn ObjectStore>);

impl DiscardingStore {
    /// A new one, with nothing in it.
    pub fn new() -> Result<Self, StoreError> {
        Ok(Self(Arc::new(OpendalStore::memory("nowhere")?)))
    }
}

impl ObjectStore for DiscardingStore {
    fn describe(&self) -> String {
        self.0.describe()
    }

    fn get(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        self.0.get(key, max)
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        self.0.get_range(key, offset, len)
    }

    fn size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        self.0.size(key)
    }

    fn put(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        if key.as_str().starts_with("packs/") { Ok(()) } else { self.0.put(key, bytes) }
    }

    fn swap(&self, key: &ObjectKey, expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<(), StoreError> {
        self.0.swap(key, expected, new)
    }

    fn list(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        self.0.list(folder)
    }

    fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.0.delete(key)
    }
}
