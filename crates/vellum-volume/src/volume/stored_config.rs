//! The config of a store and the keys that open it, before there is a volume.
//!
//! Invariant: what was read of a config counts when its seal was checked with the volume's first key.

use std::sync::Arc;

use vellum_crypto::VolumeKeys;
use vellum_store::{ObjectKey, ObjectStore, StoreError};

use crate::config::{self, CONFIG_OBJECT, VolumeConfig};
use crate::error::{Result, VolumeError};
use crate::key_epochs::{KeyEpochs, KeyHome};
use crate::state::{StateDir, WorktreeFile};

/// The copy of a service's config in the state directory.
pub(crate) const CONFIG_COPY_FILE: &str = "config.copy";

/// The keys of a volume, as far as they are kept in the state directory of a worktree.
pub(super) fn open_key_epochs(
    state: &StateDir,
    objects: Arc<dyn ObjectStore>,
    config: &VolumeConfig,
) -> Result<Arc<KeyEpochs>> {
    let volume = config.volume;
    if !config.encrypted {
        return Ok(Arc::new(KeyEpochs::for_plain(objects, volume, state.clone())));
    }
    let master = state.read_master_key()?.ok_or(VolumeError::Locked)?;
    let home = KeyHome { worktree: state.clone(), store: state.clone() };
    Ok(Arc::new(KeyEpochs::for_encrypted(objects, volume, &master, home, None)?))
}

/// A volume's config as it was read, before its seal is checked.
pub(crate) struct StoredConfig {
    pub config: VolumeConfig,
    pub(super) bytes: Vec<u8>,
}

impl StoredConfig {
    /// Fails if the config was not sealed with these keys.
    pub fn authenticate(&self, keys: &VolumeKeys) -> Result<()> {
        self.config.authenticate(&self.bytes, keys)
    }
}

pub(crate) fn read_volume_config(objects: &dyn ObjectStore) -> Result<Option<StoredConfig>> {
    match objects.get_object(&config_object_key()?, config::OBJECT_MAX) {
        Ok(bytes) => {
            let config = VolumeConfig::decode(&bytes)
                .map_err(VolumeError::wrap_decode_error("the volume's config"))?;
            Ok(Some(StoredConfig { config, bytes }))
        }
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The copy of a service's config in the state directory, if it is that of the worktree's volume. The object never changes:
/// the copy spares a request for each command.
pub(crate) fn read_config_copy(
    state: &StateDir,
    objects: &dyn ObjectStore,
    worktree: &WorktreeFile,
) -> Result<Option<StoredConfig>> {
    // A directory is as near as the copy would be, and can be another one by now.
    if !objects.is_remote() {
        return Ok(None);
    }
    let Some(bytes) = state.read_file(CONFIG_COPY_FILE)? else { return Ok(None) };
    // A copy that cannot be read counts as none: the object itself is asked for then.
    let config = VolumeConfig::decode(&bytes).ok();
    // Its seal is checked by the caller, as that of the object would be. This only spares the keys of another volume.
    let is_own = |config: &VolumeConfig| {
        config.volume.to_string() == worktree.volume && config.encrypted == worktree.encrypted
    };
    Ok(config.filter(is_own).map(|config| StoredConfig { config, bytes }))
}

/// Keeps the config of a service's volume in the state directory. Its seal was checked.
pub(crate) fn keep_config_copy(state: &StateDir, objects: &dyn ObjectStore, stored: &StoredConfig) {
    if objects.is_remote() {
        // Without it, the next command asks again.
        let _ = state.write_file(CONFIG_COPY_FILE, &stored.bytes);
    }
}

pub(crate) fn config_object_key() -> Result<ObjectKey> {
    Ok(ObjectKey::new(CONFIG_OBJECT)?)
}
