//! Sealing all refs with a new key.
//!
//! Invariant: a ref keeps what it says, and its counter rises.

use vellum_host::ProgressMeter;
use vellum_store::{ObjectKey, StoreError, map_requests};

use super::{RETRIES, RefKind, RefStore};
use crate::error::{Result, VolumeError, is_data_loss};

/// Refs that were sealed with a new key.
#[derive(Debug, Default)]
pub(crate) struct ResealedRefs {
    pub(crate) count: u64,
    /// Those that cannot be read, and stay as they are.
    pub(crate) damaged: Vec<ObjectKey>,
}

/// A ref that is sealed with the newest key.
struct ResealedRef {
    counter: u64,
    /// Whether it was not before.
    is_new: bool,
}

impl RefStore {
    /// Seals all refs with the newest key, those too that were removed.
    pub(crate) fn reseal_refs(&self, meter: &ProgressMeter) -> Result<ResealedRefs> {
        let mut keys = Vec::new();
        for kind in RefKind::ALL {
            keys.extend(self.list_ref_objects(kind)?.into_iter().map(|key| (kind, key)));
        }
        meter.begin_phase(keys.len() as u64, 0);
        let outcomes = map_requests(&*self.objects, &keys, |(kind, key)| {
            meter.check_stopped()?;
            let outcome = self.reseal_ref(*kind, key);
            meter.add_progress(1, 0);
            outcome
        });
        // Also if some failed: those that were sealed anew have other counters now.
        let counters = keys.iter().zip(&outcomes).filter_map(|((_, key), outcome)| {
            let sealed = outcome.as_ref().ok()?.as_ref()?;
            Some((key, sealed.counter))
        });
        self.record_seen_counters(counters)?;
        let mut resealed = ResealedRefs::default();
        for ((_, key), outcome) in keys.into_iter().zip(outcomes) {
            match outcome {
                Ok(sealed) => resealed.count += u64::from(sealed.is_some_and(|sealed| sealed.is_new)),
                Err(error) if is_data_loss(&error) => resealed.damaged.push(key),
                Err(error) => return Err(error),
            }
        }
        Ok(resealed)
    }

    /// Seals a ref with the newest key, if it is there. Its counter is not recorded.
    fn reseal_ref(&self, kind: RefKind, key: &ObjectKey) -> Result<Option<ResealedRef>> {
        for _ in 0..RETRIES {
            let Some(found) = self.fetch_ref(kind, key)? else { return Ok(None) };
            // It was changed since the epoch began, or another machine finishes the same rotation.
            if found.epoch == self.keys.newest_epoch() {
                return Ok(Some(ResealedRef { counter: found.counter, is_new: false }));
            }
            let counter = found.counter + 1;
            let stored = self.encode_ref(kind, key, &found.name, counter, &found.value);
            match self.objects.swap_ref(key, Some(&found.stored), Some(&stored)) {
                Ok(()) => {
                    // What is remembered has the old bytes, with which the next swap would fail.
                    self.last.lock().remove(key);
                    return Ok(Some(ResealedRef { counter, is_new: true }));
                }
                // Whoever changed it may have done so with the key before.
                Err(StoreError::Changed { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(VolumeError::Raced(format!("the {} in {key}", kind.display_name())))
    }
}
