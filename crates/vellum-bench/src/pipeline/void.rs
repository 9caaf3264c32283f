//! A store whose packs go nowhere. All else is small and kept in memory, so that an index can be.

use vellum_store::{MemoryObjectStore, ObjectInfo, ObjectKey, ObjectStore, StoreError};

/// The store.
pub struct DiscardingStore(MemoryObjectStore);

impl DiscardingStore {
    /// A new one, with nothing in it.
    pub fn new() -> Self {
        Self(MemoryObjectStore::new("nowhere"))
    }
}

impl ObjectStore for DiscardingStore {
    fn describe_location(&self) -> String {
        self.0.describe_location()
    }

    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        self.0.get_object(key, max)
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        self.0.get_range(key, offset, len)
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        self.0.object_size(key)
    }

    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        // Packs are nearly all of the bytes, and nobody reads them here. Index objects are small.
        if key.as_str().starts_with("packs/") { Ok(()) } else { self.0.put_object(key, bytes) }
    }

    fn swap_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        self.0.swap_ref(key, expected, new)
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        self.0.list_objects(folder)
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.0.delete_object(key)
    }
}
