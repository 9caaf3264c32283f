//! Stores of services that take no conditions: one machine writes at a time.
//!
//! Invariant: nothing is written without the right to write; see [`claim`]. Under it the promises of [`ObjectStore`] are
//! kept by looking before writing. Reading needs no right.

mod claim;

use std::path::Path;

pub use self::claim::ClaimPace;
use self::claim::WriterClaim;
pub(crate) use self::claim::fuzz_decoder as fuzz_claim_decoder;
use super::numbered::classify_key;
use super::parallel::put_by_folder;
use super::{
    KeyFilter, KeyUse, ObjectInfo, ObjectKey, ObjectSelection, ObjectStore, ServiceStore, StoreGuarantees,
    StoreMode, probe,
};
use crate::error::StoreError;
use vellum_types::ErrorKind;

/// Listings of a folder that changes, a count.
const LISTINGS_MAX: u32 = 5;

/// A store with one writer.
pub struct SingleWriterStore {
    service: ServiceStore,
    claim: WriterClaim,
}

impl SingleWriterStore {
    /// The store of a service, whose cache on this machine is `cache`. Nothing is sent.
    #[must_use]
    pub fn new(service: ServiceStore, cache: &Path, pace: ClaimPace) -> Self {
        Self { service, claim: WriterClaim::new(cache, pace) }
    }

    /// Fails if the service would take conditions: then other machines may write with these, and would not look for a
    /// claim.
    fn refuse_conditional_service(&self) -> Result<(), StoreError> {
        let found = self.service.probe_guarantees()?;
        match found.best_mode() {
            Some(StoreMode::Shared | StoreMode::NumberedRefs) => Err(StoreError::Address {
                url: self.describe_location(),
                reason: "this service lets several machines write: leave out 'single-writer'".to_owned(),
                kind: ErrorKind::Usage,
            }),
            None => Ok(()),
        }
    }
}

impl Drop for SingleWriterStore {
    fn drop(&mut self) {
        self.claim.release(&self.service);
    }
}

impl ObjectStore for SingleWriterStore {
    fn describe_location(&self) -> String {
        self.service.describe_location()
    }

    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        self.service.get_object(key, max)
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        self.service.get_range(key, offset, len)
    }

    fn get_range_up_to(&self, key: &ObjectKey, offset: u64, max: u64) -> Result<Vec<u8>, StoreError> {
        self.service.get_range_up_to(key, offset, max)
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        self.service.object_size(key)
    }

    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        let held = self.claim.hold(&self.service)?;
        // The name of a pack is the hash of its bytes, so the order of uploads does not matter, and several run at
        // once. The right was checked just now, which is enough for an object that nothing refers to yet.
        let _held = if key.as_str().starts_with("packs/") {
            drop(held);
            None
        } else {
            Some(held)
        };
        // Between this look and the write, nobody else writes: the right to write guarantees that.
        match self.service.object_size(key) {
            Ok(_) => Err(StoreError::Exists { place: self.describe_location(), key: key.to_string() }),
            Err(error) if error.is_not_found() => self.service.overwrite_object(key.as_str(), bytes),
            Err(error) => Err(error),
        }
    }

    fn put_objects(&self, objects: &[(ObjectKey, &[u8])]) -> Result<(), StoreError> {
        put_by_folder(self, objects)
    }

    fn swap_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        let _held = self.claim.hold(&self.service)?;
        // At least one byte, so that any ref is noticed where none is expected.
        let longest = expected.map_or(0, <[u8]>::len).max(1) as u64;
        let changed = || StoreError::Changed { place: self.describe_location(), key: key.to_string() };
        let current = match self.service.read_path(key.as_str(), longest) {
            // It is longer than what is expected.
            Err(StoreError::TooLarge { .. }) => return Err(changed()),
            current => current?,
        };
        if current.as_deref() != expected {
            return Err(changed());
        }
        match new {
            Some(bytes) => self.service.overwrite_object(key.as_str(), bytes),
            None => self.service.delete_path(key.as_str()),
        }
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        if self.service.replaces_whole_objects() || classify_key(folder) == KeyUse::Object {
            return self.service.list_objects(folder);
        }
        // Some WebDAV servers leave out the rest of a folder of which a file is removed meanwhile. Of this machine nobody
        // removes one now; of others, it is seen by listing again.
        let _lock = self.claim.lock_file(&self.service)?;
        let mut listed = self.service.list_objects(folder)?;
        for _ in 0..LISTINGS_MAX {
            let again = self.service.list_objects(folder)?;
            if again == listed {
                break;
            }
            listed = again;
        }
        Ok(listed)
    }

    fn select_objects(&self, folder: &str, is_wanted: KeyFilter) -> Result<ObjectSelection, StoreError> {
        if self.service.replaces_whole_objects() || classify_key(folder) == KeyUse::Object {
            return self.service.select_objects(folder, is_wanted);
        }
        let mut selection = ObjectSelection::default();
        for info in self.list_objects(folder)? {
            selection.add_object(info, is_wanted);
        }
        Ok(selection)
    }

    fn holds_objects(&self) -> Result<bool, StoreError> {
        self.service.holds_objects()
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        let held = self.claim.hold(&self.service)?;
        // Nobody relies on a pack that is deleted, so several deletions may run at the same time.
        let _held = (!is_pack(key)).then_some(held);
        self.service.delete_object(key)
    }

    fn inner_store(&self) -> Option<&dyn ObjectStore> {
        Some(&self.service)
    }

    /// What remains to be kept by the service; the rest is kept by the right to write.
    fn probe_guarantees(&self) -> Result<StoreGuarantees, StoreError> {
        self.refuse_conditional_service()?;
        let found = probe::probe_contents(self)?;
        // Where a ref cannot be replaced without a moment in which it is missing, each version is an object of its own.
        Ok(StoreGuarantees { replaces: self.service.replaces_whole_objects(), ..found })
    }
}

fn is_pack(key: &ObjectKey) -> bool {
    key.as_str().starts_with("packs/")
}
