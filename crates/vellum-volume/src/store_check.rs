//! Whether the volume's store is fit for several writers: tried, and remembered in the state directory and in the store.
//!
//! Invariant: a store of a service that was not found fit is only read. What was found is used for 30 days, by whoever
//! has the volume's key, as long as the store has the address at which it was tried: a copy of a store in another
//! service is tried there.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vellum_crypto::{RecordDomain, VolumeKeys};
use vellum_store::{
    ObjectKey, ObjectStore, ReadOnlyStore, StoreError, StoreGuarantees, StoreMode, join_requests,
};
use vellum_types::ErrorKind;

use crate::error::{Result, VolumeError};
use crate::session::current_time;
use crate::state::{STORE_CHECK_FILE, StateDir};
use crate::store_identity::{STORE_OBJECT, StoreIdentity, apply_mode};

/// For how long it is used, seconds.
const USED_FOR: i64 = 30 * 24 * 60 * 60;
/// How far this machine's clock may be from a service's, seconds: what Amazon S3 allows.
const CLOCK_LEAD_MAX: i64 = 15 * 60;
/// Raised when the probe tries more: what an older one found is not used.
const PROBE_VERSION: u32 = 2;
/// What was found, for all who open the volume. Trying takes 23 requests.
pub(crate) const STORE_CHECK_OBJECT: &str = "store-check";
/// Longest object that is read, bytes: an address, and a few numbers.
const OBJECT_MAX: u64 = 16 << 10;

/// What an earlier probe found.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct StoreCheck {
    version: u32,
    store: String,
    /// Seconds since 1970.
    checked: i64,
    guarantees: StoreGuarantees,
    /// How refs are changed there, as the object `store` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<StoreMode>,
}

impl StoreCheck {
    fn parse(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    /// Whether it says something of this store, and is not too old.
    fn is_usable_for(&self, objects: &dyn ObjectStore) -> bool {
        let now = current_time().secs;
        // A clock that was set back must not make it valid for ever.
        let is_fresh = self.checked <= now && now - self.checked < USED_FOR;
        self.version == PROBE_VERSION && self.store == objects.describe_location() && is_fresh
    }

    fn keep(&self, state: &StateDir) {
        // Without it, the next command asks again: a state directory may be read only.
        if let Err(error) = state.write_json_file(STORE_CHECK_FILE, self) {
            tracing::debug!(%error, "the result of the store's probe is not kept");
        }
    }
}

/// Fails if this machine's clock is far from the service's: snapshots would have wrong times, and many services refuse the
/// requests of such a machine. The store has to be asked for something before.
pub(crate) fn refuse_wrong_clock(objects: &dyn ObjectStore) -> Result<()> {
    match objects.clock_lead() {
        Some(lead) if lead.abs() > CLOCK_LEAD_MAX => {
            Err(VolumeError::WrongClock { store: objects.describe_location(), lead })
        }
        Some(_) | None => Ok(()),
    }
}

/// Returns the mode in which a new store is to be used. Fails if it is not fit for several writers in any.
pub(crate) fn require_fit_store(state: &StateDir, objects: &dyn ObjectStore) -> Result<StoreMode> {
    let found = check_store(state, objects, None, None)?;
    found.best_mode().ok_or_else(|| unfit_store_error(objects, found))
}

/// Writes the mode of the store in which a volume was just made, and returns the store in that mode. Fails if it is not fit
/// for several writers in it.
pub(crate) fn set_up_store(
    state: &StateDir,
    objects: Arc<dyn ObjectStore>,
    keys: &VolumeKeys,
    wanted: StoreIdentity,
) -> Result<Arc<dyn ObjectStore>> {
    // A directory keeps all promises: the system's locks and renames see to it.
    if !objects.is_remote() {
        return Ok(objects);
    }
    let mode = wanted.settle_in(&*objects, keys)?.mode;
    // The mode that the store has from now on may be that of somebody who was faster.
    let objects = apply_mode(objects, mode);
    let found = check_store(state, &*objects, None, Some(mode))?;
    if !found.is_fit_for(mode) {
        return Err(unfit_store_error(&*objects, found));
    }
    share_store_check(state, &*objects, keys);
    Ok(objects)
}

/// Returns the store of a volume that exists, in its mode, for a machine that writes there for the first time.
pub(crate) fn join_store(
    state: &StateDir,
    objects: Arc<dyn ObjectStore>,
    keys: &VolumeKeys,
) -> Result<Arc<dyn ObjectStore>> {
    if !objects.is_remote() {
        return open_known_store(state, objects, keys);
    }
    // What the store says of itself decides, not what is kept here: this machine is about to write.
    let (known, ()) = join_requests(
        &*objects,
        || StoreIdentity::read_from(&*objects, keys),
        || adopt_shared_check(state, &*objects, keys),
    );
    let known = known?;
    if let Some(known) = &known {
        known.require_whole(&*objects)?;
    }
    let known = known.map(|known| known.mode);
    let objects = apply_mode(objects, known.unwrap_or(StoreMode::Shared));
    let found = check_store(state, &*objects, Some(keys), known)?;
    match known {
        Some(mode) if found.is_fit_for(mode) => Ok(objects),
        Some(_) => Err(unfit_store_error(&*objects, found)),
        // Of an early version, or somebody sets it up in this moment: then whoever writes it first decides.
        None => {
            // Refs that are there were written as single objects by a version that knows no other mode.
            let mode =
                found.best_mode().filter(|_| objects.list_keys("refs").is_ok_and(|keys| keys.is_empty()));
            let wanted = StoreIdentity::new_random(mode.unwrap_or(StoreMode::Shared), None);
            if !found.is_fit_for(wanted.mode) {
                return Err(unfit_store_error(&*objects, found));
            }
            set_up_store(state, objects, keys, wanted)
        }
    }
}

fn unfit_store_error(objects: &dyn ObjectStore, found: StoreGuarantees) -> VolumeError {
    VolumeError::UnfitStore {
        store: objects.describe_location(),
        missing: found.describe_missing().join("; "),
    }
}

/// The store of a volume that exists: as it is if it is fit, else one that can only be read.
pub(crate) fn open_known_store(
    state: &StateDir,
    objects: Arc<dyn ObjectStore>,
    keys: &VolumeKeys,
) -> Result<Arc<dyn ObjectStore>> {
    let mode = match read_kept_check(state, &*objects)?.and_then(|known| known.mode) {
        Some(mode) => mode,
        None if may_have_identity(&*objects) => {
            let found = StoreIdentity::read_from(&*objects, keys)?;
            // Only in a directory of this machine may content be missing: it is read together with its source.
            if let Some(found) = found.as_ref().filter(|_| objects.is_remote()) {
                found.require_whole(&*objects)?;
            }
            found.map_or(StoreMode::Shared, |found| found.mode)
        }
        None => StoreMode::Shared,
    };
    let objects = apply_mode(objects, mode);
    // It refuses writes by itself: there is nothing to try.
    if objects.is_read_only() {
        return Ok(objects);
    }
    let found = match check_store(state, &*objects, Some(keys), Some(mode)) {
        // Whoever may only read cannot lose anybody's changes.
        Err(error) if error.kind() == ErrorKind::Denied => {
            let reason = "these credentials do not allow writing".to_owned();
            return Ok(Arc::new(ReadOnlyStore::new(objects, reason, ErrorKind::Denied)));
        }
        // Another machine has the right to write: this one may read, and tries the store another time.
        Err(error) if error.kind() == ErrorKind::Conflict => {
            let reason = format!("it is only read now: {error}");
            return Ok(Arc::new(ReadOnlyStore::new(objects, reason, ErrorKind::Conflict)));
        }
        found => found?,
    };
    if found.is_fit_for(mode) {
        return Ok(objects);
    }
    let reason = format!(
        "the store is only read, because several writers would lose each other's changes: {} (with 'single-writer' \
         in the store's address, one machine writes at a time: 'vellum worktree relocate --store URL')",
        found.describe_missing().join("; ")
    );
    Ok(Arc::new(ReadOnlyStore::new(objects, reason, ErrorKind::Unsupported)))
}

/// Whether the store can have an object `store`. A directory has one if it was set up through a service.
fn may_have_identity(objects: &dyn ObjectStore) -> bool {
    objects.is_remote() || objects.local_dir().is_some_and(|dir| dir.join(STORE_OBJECT).exists())
}

/// What is kept here of an earlier check, if it can be used.
fn read_kept_check(state: &StateDir, objects: &dyn ObjectStore) -> Result<Option<StoreCheck>> {
    if !objects.is_remote() {
        return Ok(None);
    }
    let known = state.read_file(STORE_CHECK_FILE)?.and_then(|text| StoreCheck::parse(&text));
    Ok(known.filter(|known| known.is_usable_for(objects)))
}

/// What is known of the store, or what a probe finds. Without `keys` there is no volume yet that could say it. The mode
/// is kept with it, if it is known.
fn check_store(
    state: &StateDir,
    objects: &dyn ObjectStore,
    keys: Option<&VolumeKeys>,
    mode: Option<StoreMode>,
) -> Result<StoreGuarantees> {
    if !objects.is_remote() {
        return Ok(StoreGuarantees::ALL);
    }
    let check = match read_kept_check(state, objects)? {
        Some(known) => {
            // The probe may be from before the store was set up, when it had no mode yet.
            if mode.is_some() && known.mode != mode {
                StoreCheck { mode, ..known.clone() }.keep(state);
            }
            known
        }
        None => {
            let shared = keys.map(|keys| read_shared_check(objects, keys)).transpose()?.flatten();
            let is_new = shared.is_none();
            let check = match shared {
                Some(shared) => StoreCheck { mode, ..shared },
                None => StoreCheck {
                    version: PROBE_VERSION,
                    store: objects.describe_location(),
                    guarantees: objects.probe_guarantees()?,
                    checked: current_time().secs,
                    mode,
                },
            };
            check.keep(state);
            // What was read from the store need not be put there again.
            if let (true, Some(keys)) = (is_new, keys) {
                share_store_check(state, objects, keys);
            }
            check
        }
    };
    // For a result that was kept, too: an object that was just opened knows nothing of an earlier probe.
    objects.adapt_to_guarantees(&check.guarantees);
    Ok(check.guarantees)
}

fn shared_check_key() -> Result<ObjectKey> {
    Ok(ObjectKey::new(STORE_CHECK_OBJECT)?)
}

/// What somebody else found, if a holder of the volume's key wrote it and it can be used.
fn read_shared_check(objects: &dyn ObjectStore, keys: &VolumeKeys) -> Result<Option<StoreCheck>> {
    let sealed = match objects.get_object(&shared_check_key()?, OBJECT_MAX) {
        Ok(sealed) => sealed,
        Err(StoreError::NotFound { .. } | StoreError::TooLarge { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut text = Vec::new();
    let opened =
        keys.open_record(RecordDomain::Config, STORE_CHECK_OBJECT.as_bytes(), &sealed, &mut text).is_ok();
    // One that does not open counts as none: a probe costs some requests, and finds out the same.
    Ok(StoreCheck::parse(&text).filter(|check| opened && check.is_usable_for(objects)))
}

/// Keeps what somebody else found here, unless something is kept already. What fails is done again by [`check_store`].
fn adopt_shared_check(state: &StateDir, objects: &dyn ObjectStore, keys: &VolumeKeys) {
    if let Ok(None) = read_kept_check(state, objects)
        && let Ok(Some(shared)) = read_shared_check(objects, keys)
    {
        shared.keep(state);
    }
}

/// Tells all who open the volume what was found here: the next one then need not try.
fn share_store_check(state: &StateDir, objects: &dyn ObjectStore, keys: &VolumeKeys) {
    let Ok(Some(text)) = state.read_file(STORE_CHECK_FILE) else { return };
    if !objects.is_remote() || StoreCheck::parse(&text).is_none_or(|check| !check.is_usable_for(objects)) {
        return;
    }
    let share = || -> Result<()> {
        let key = shared_check_key()?;
        let mut sealed = Vec::new();
        keys.seal_record(RecordDomain::Config, STORE_CHECK_OBJECT.as_bytes(), &text, &mut sealed);
        // Most stores have none: then this takes one request.
        match objects.swap_ref(&key, None, Some(&sealed)) {
            Err(StoreError::Changed { .. }) => {}
            created => return Ok(created?),
        }
        let old = objects.get_object(&key, OBJECT_MAX)?;
        // If another machine was faster, the swap fails, and what that one found serves as well.
        Ok(objects.swap_ref(&key, Some(&old), Some(&sealed))?)
    };
    if let Err(error) = share() {
        tracing::debug!(%error, "the result of the store's probe is not shared");
    }
}
