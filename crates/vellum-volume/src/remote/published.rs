//! Stores that a web server publishes: they are listed where they are written to, and copied where they are read.
//!
//! Invariant: what opens a volume is copied as it is stored, sealed; nothing is opened or sealed on the way. The config
//! comes last: a copy that was interrupted holds no volume.

use std::path::Path;

use vellum_store::{LocalStore, ObjectStore, PublishedObjects, StoreError, StoreLocation};

use crate::device;
use crate::error::{Result, VolumeError};
use crate::volume::{Volume, config_object_key};
use crate::{key_epochs, keyring};

/// Longest object that is copied, bytes: the largest says that all refs are sealed with a key.
const OBJECT_MAX: u64 = 256 << 20;

impl Volume {
    /// Where the store of this worktree is.
    pub fn locate_own_store(&self) -> Result<StoreLocation> {
        crate::volume::locate_store(&self.state, &self.worktree)
    }
}

/// Writes the listings of a store of a volume, which readers over HTTP need.
pub fn publish_listing(location: &StoreLocation) -> Result<PublishedObjects> {
    // As it is opened, without its mode: numbered versions are listed one by one.
    Ok(vellum_store::publish_store(&*vellum_store::open_store(location)?)?)
}

/// Makes a store in a directory for the volume that another store holds, with everything that opens it, and no snapshot.
pub fn copy_keys_to_dir(source: &StoreLocation, dir: &Path) -> Result<()> {
    let from = vellum_store::open_store(source)?;
    let config = from.get_object(&config_object_key()?, OBJECT_MAX).map_err(|error| match error {
        StoreError::NotFound { .. } => {
            VolumeError::Foreign { place: from.describe_location(), reason: "it holds no volume".into() }
        }
        error => error.into(),
    })?;
    let to = LocalStore::create(dir)?;
    // A slot that was removed must not open the copy, so the notes of removals come before the slots.
    let folders = [
        keyring::REMOVED_PREFIX,
        key_epochs::EPOCH_PREFIX,
        device::PREFIX,
        key_epochs::SLOT_KEY_PREFIX,
        keyring::SLOT_PREFIX,
    ];
    for folder in folders {
        for key in from.list_keys(folder)? {
            put_if_absent(&to, &key, &from.get_object(&key, OBJECT_MAX)?)?;
        }
    }
    // The config last: a copy that was interrupted must not pass for a store, whose keys would be incomplete.
    put_if_absent(&to, &config_object_key()?, &config)
}

/// An interrupted copy left some.
fn put_if_absent(to: &LocalStore, key: &vellum_store::ObjectKey, bytes: &[u8]) -> Result<()> {
    match to.put_object(key, bytes) {
        Ok(()) | Err(StoreError::Exists { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
