//! Volumes that a program opens by the address of their store, without a directory that belongs to them.
//!
//! Invariants: no key is kept, so that each process needs the secret. What was seen of the store, its index, and the live
//! worktrees of this machine are kept in a folder of the user, one for each volume and address: a store that was rolled back
//! is noticed there as in a worktree. Changes are recorded in the chain of the volume, since no worktree made them.

use std::path::Path;

use vellum_crypto::VolumeKeys;
use vellum_host::private_dir::create_private_dir;
use vellum_store::{EarlyReads, ObjectStore, StoreLocation, open_store};
use zeroize::Zeroizing;

use super::init::{choose_slot_reads, slot_id_of};
use super::stored_config::keep_config_copy;
use super::{StoredConfig, Volume, read_volume_config};
use crate::config::VolumeConfig;
use crate::error::{Result, VolumeError};
use crate::key_epochs::{GivenKeys, HeldSlot};
use crate::keyring::{self, UnlockedKey};
use crate::remote::MAIN_WORKTREE;
use crate::state::{STATE_DIR, StateDir, WorktreeFile, find_user_state_dir};

/// The folder for volumes that were opened by address, in that for what Vellum remembers for a user.
const STORES_FOLDER: &str = "stores";
/// Where operations were carried out. No worktree has such a name, so that they are recorded in the chain of the volume.
const OPERATION_ORIGIN: &str = "@address";
/// Hexadecimal digits of a folder's name: enough that two are never the same.
const FOLDER_DIGITS: usize = 32;

/// How a volume is opened by the address of its store.
pub struct StoreAccess<'a> {
    /// The store, by an address that does not depend on where the process stands.
    pub location: &'a StoreLocation,
    /// Whether the volume is to be sealed; one of the other sort is refused.
    pub encrypted: bool,
    /// The folder for what is remembered of volumes; none: that of the user.
    pub state: Option<&'a Path>,
}

impl Volume {
    /// Opens the volume that a store holds; `secret` is asked for what opens it if it is encrypted. `HEAD` is that of the
    /// worktree `main`.
    ///
    /// Fails with [`VolumeError::NoVolumeInStore`] if there is none, with [`VolumeError::OtherSort`] if it is of the other
    /// sort, and with [`VolumeError::WrongSecret`] if no slot opens.
    pub fn open_in_store(
        access: &StoreAccess<'_>,
        secret: impl FnOnce() -> Result<Zeroizing<Vec<u8>>>,
    ) -> Result<Self> {
        let location = access.location;
        // A service is waited for once: for the config, and for what the secret is tried on.
        let objects = EarlyReads::begin(open_store(location)?, choose_slot_reads(access.encrypted));
        let place = objects.describe_location();
        let stored =
            read_volume_config(&*objects)?.ok_or_else(|| VolumeError::NoVolumeInStore(place.clone()))?;
        let config = stored.config;
        // Whoever can write to the store can put a plain volume there: it is taken only if one was asked for.
        if config.encrypted != access.encrypted {
            return Err(VolumeError::OtherSort { place, encrypted: config.encrypted });
        }
        // Nothing is made before the secret has opened the volume.
        let given = match config.encrypted {
            true => Some(unlock_volume(&*objects, &stored, &secret()?)?),
            false => None,
        };
        let state = prepare_state(access, &config)?;
        let state = given.map_or(state.clone(), |given| state.with_given_keys(given));
        keep_config_copy(&state, &*objects, &stored);
        let mut volume = Self::open_on(objects, &state)?;
        volume.refs = volume.refs.with_operations(OPERATION_ORIGIN);
        Ok(volume)
    }
}

/// The keys that a secret gives, of the volume whose config this is.
fn unlock_volume(objects: &dyn ObjectStore, stored: &StoredConfig, secret: &[u8]) -> Result<GivenKeys> {
    let volume = stored.config.volume;
    let UnlockedKey { master, slot, exchange, .. } = keyring::unlock_master_key(objects, secret, volume)?;
    let keys = VolumeKeys::for_encrypted(&master, volume);
    // The slot was of this volume; only now it is known that the config is, too.
    stored.authenticate(&keys)?;
    if keyring::is_slot_removed(objects, &keys, &slot)? {
        return Err(VolumeError::RemovedSlot);
    }
    Ok(GivenKeys::new(master, HeldSlot { slot: slot_id_of(&slot)?, exchange }))
}

/// The state directory for a volume at an address. It is made if it is not there.
fn prepare_state(access: &StoreAccess<'_>, config: &VolumeConfig) -> Result<StateDir> {
    let folder = match access.state {
        Some(folder) => folder.to_owned(),
        None => find_user_state_dir().ok_or(VolumeError::NoUserState)?.join(STORES_FOLDER),
    };
    let StoreLocation { url, credentials } = access.location.clone();
    // Of both: if another volume is made at the address, nothing that was seen of the first one is held against it.
    let name = blake3::hash(format!("{url}\0{}", config.volume).as_bytes()).to_hex();
    let path = folder.join(name.get(..FOLDER_DIGITS).unwrap_or(&name)).join(STATE_DIR);
    create_private_dir(&path).map_err(VolumeError::wrap_local_error(&path))?;
    let state = StateDir::for_folder(&path);
    let wanted = WorktreeFile {
        credentials,
        ..WorktreeFile::new(config.volume, url, MAIN_WORKTREE.into(), config.encrypted)
    };
    // Written only if it says something else: other processes may read it at this moment.
    if state.read_worktree_file().ok().as_ref() != Some(&wanted) {
        state.write_worktree_file(&wanted)?;
    }
    Ok(state)
}
