//! Whether the volume's store is fit for several writers: tried, and remembered in the state directory.
//!
//! Invariant: a store of a service that was not found fit is only read. What was found is used for 30 days.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vellum_store::{ObjectStore, ReadOnlyStore, StoreGuarantees};
use vellum_types::ErrorKind;

use crate::error::{Result, VolumeError};
use crate::session::current_time;
use crate::state::{STORE_CHECK_FILE, StateDir};

/// For how long it is used, seconds.
const USED_FOR: i64 = 30 * 24 * 60 * 60;
/// Raised when the probe tries more: what an older one found is not used.
const PROBE_VERSION: u32 = 1;

/// What an earlier probe found.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct StoreCheck {
    version: u32,
    store: String,
    /// Seconds since 1970.
    checked: i64,
    guarantees: StoreGuarantees,
}

/// Tries the store unless that was done lately, and refuses one that is not fit for several writers.
pub(crate) fn require_fit_store(state: &StateDir, objects: &dyn ObjectStore) -> Result<()> {
    let found = check_store(state, objects)?;
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
) -> Result<Arc<dyn ObjectStore>> {
    let found = match check_store(state, &*objects) {
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

fn check_store(state: &StateDir, objects: &dyn ObjectStore) -> Result<StoreGuarantees> {
    if !objects.is_remote() {
        return Ok(StoreGuarantees::ALL);
    }
    let now = current_time().secs;
    let known =
        state.read_file(STORE_CHECK_FILE)?.and_then(|text| serde_json::from_slice::<StoreCheck>(&text).ok());
    let known = known.filter(|known| {
        // A clock that was set back must not make it valid for ever.
        let is_fresh = known.checked <= now && now - known.checked < USED_FOR;
        known.version == PROBE_VERSION && known.store == objects.describe_location() && is_fresh
    });
    let found = match known {
        Some(known) => known.guarantees,
        None => {
            let guarantees = objects.probe_guarantees()?;
            let check = StoreCheck {
                version: PROBE_VERSION,
                store: objects.describe_location(),
                checked: now,
                guarantees,
            };
            // Without it, the next command tries again: a state directory may be read only.
            if let Err(error) = state.write_json_file(STORE_CHECK_FILE, &check) {
                tracing::debug!(%error, "the result of the store's probe is not kept");
            }
            guarantees
        }
    };
    objects.adapt_to_guarantees(&found);
    Ok(found)
}
