//! Whether the volume's store is fit for several writers: tried, and remembered in the state directory and in the store.
//!
//! Invariant: a store of a service that was not found fit is only read. What was found is used for 30 days, by whoever
//! has the volume's key, as long as the store has the address at which it was tried: a copy of a store in another
//! service is tried there.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vellum_crypto::{RecordDomain, VolumeKeys};
use vellum_store::{ObjectKey, ObjectStore, ReadOnlyStore, StoreError, StoreGuarantees};
use vellum_types::ErrorKind;

use crate::error::{Result, VolumeError};
use crate::session::current_time;
use crate::state::{STORE_CHECK_FILE, StateDir};

/// For how long it is used, seconds.
const USED_FOR: i64 = 30 * 24 * 60 * 60;
/// Raised when the probe tries more: what an older one found is not used.
const PROBE_VERSION: u32 = 1;
/// What was found, for all who open the volume. Trying takes some 60 requests.
const STORE_CHECK_OBJECT: &str = "store-check";
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

/// The store of a volume that is to be made: refused if it is not fit for several writers.
pub(crate) fn require_fit_store(state: &StateDir, objects: &dyn ObjectStore) -> Result<()> {
    refuse_unfit_store(objects, check_store(state, objects, None)?)
}

/// The same for a volume that exists.
pub(crate) fn require_known_fit_store(
    state: &StateDir,
    objects: &dyn ObjectStore,
    keys: &VolumeKeys,
) -> Result<()> {
    refuse_unfit_store(objects, check_store(state, objects, Some(keys))?)
}

fn refuse_unfit_store(objects: &dyn ObjectStore, found: StoreGuarantees) -> Result<()> {
    if found.is_fit_for_sharing() {
        return Ok(());
    }
    Err(VolumeError::UnfitStore {
        store: objects.describe_location(),
        missing: found.describe_missing().join("; "),
    })
}

/// The store of a volume that exists: as it is if it is fit, else one that can only be read.
pub(crate) fn limit_unfit_store(
    state: &StateDir,
    objects: Arc<dyn ObjectStore>,
    keys: &VolumeKeys,
) -> Result<Arc<dyn ObjectStore>> {
    let found = match check_store(state, &*objects, Some(keys)) {
        // Whoever may only read cannot lose anybody's changes.
        Err(error) if error.kind() == ErrorKind::Denied => {
            let reason = "these credentials do not allow writing".to_owned();
            return Ok(Arc::new(ReadOnlyStore::new(objects, reason, ErrorKind::Denied)));
        }
        found => found?,
    };
    if found.is_fit_for_sharing() {
        return Ok(objects);
    }
    let reason = format!(
        "the store is only read, because several writers would lose each other's changes: {}",
        found.describe_missing().join("; ")
    );
    Ok(Arc::new(ReadOnlyStore::new(objects, reason, ErrorKind::Unsupported)))
}

/// What is known of the store, or what a probe finds. Without `keys` there is no volume yet that could say it.
fn check_store(
    state: &StateDir,
    objects: &dyn ObjectStore,
    keys: Option<&VolumeKeys>,
) -> Result<StoreGuarantees> {
    if !objects.is_remote() {
        return Ok(StoreGuarantees::ALL);
    }
    let known = state.read_file(STORE_CHECK_FILE)?.and_then(|text| StoreCheck::parse(&text));
    let check = match known.filter(|known| known.is_usable_for(objects)) {
        Some(known) => known,
        None => {
            let shared = keys.map(|keys| read_shared_check(objects, keys)).transpose()?.flatten();
            let is_new = shared.is_none();
            let check = match shared {
                Some(shared) => shared,
                None => StoreCheck {
                    version: PROBE_VERSION,
                    store: objects.describe_location(),
                    guarantees: objects.probe_guarantees()?,
                    checked: current_time().secs,
                },
            };
            check.keep(state);
            if let (true, Some(keys)) = (is_new, keys) {
                share_store_check(state, objects, keys);
            }
            check
        }
    };
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
    Ok(StoreCheck::parse(&text).filter(|check| opened && check.is_usable_for(objects)))
}

/// Tells all who open the volume what was found here: the next one then need not try.
pub(crate) fn share_store_check(state: &StateDir, objects: &dyn ObjectStore, keys: &VolumeKeys) {
    let Ok(Some(text)) = state.read_file(STORE_CHECK_FILE) else { return };
    if !objects.is_remote() || StoreCheck::parse(&text).is_none_or(|check| !check.is_usable_for(objects)) {
        return;
    }
    let share = || -> Result<()> {
        let key = shared_check_key()?;
        let mut sealed = Vec::new();
        keys.seal_record(RecordDomain::Config, STORE_CHECK_OBJECT.as_bytes(), &text, &mut sealed);
        let old = match objects.get_object(&key, OBJECT_MAX) {
            Ok(old) => Some(old),
            Err(StoreError::NotFound { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(objects.swap_ref(&key, old.as_deref(), Some(&sealed))?)
    };
    if let Err(error) = share() {
        tracing::debug!(%error, "the result of the store's probe is not shared");
    }
}
