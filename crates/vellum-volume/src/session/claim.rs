//! The session object of this process: put, renewed, withdrawn.
//!
//! Invariant: the object changes with each renewal, by compare-and-swap. If it has not changed for a day, or differs
//! from what this process wrote, the session is lost, and this process detects that.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use vellum_crypto::{VolumeKeys, fill_random};
use vellum_map::MapRoot;
use vellum_store::{ObjectKey, ObjectStore, StoreError};

use super::others::{self, OtherSession};
use super::{COLLECTOR, OBJECT_MAX, PREFIX, SessionObject, current_time, seal_session};
use crate::error::{Result, VolumeError};
use crate::volume::Volume;

/// How often a writer renews its session, seconds.
const RENEWAL: u64 = 3600;
/// Number of attempts to replace a dead collector's session: each failure means that another collector took it.
const TAKE_OVER_ATTEMPTS: usize = 10;

/// A session object of this process; withdrawn when dropped.
pub(crate) struct SessionClaim {
    objects: Arc<dyn ObjectStore>,
    keys: Arc<VolumeKeys>,
    key: ObjectKey,
    stored: Mutex<Vec<u8>>,
    renewed: ClaimRenewal,
    /// The tree that is read; None: this process writes.
    reading: Option<MapRoot>,
    /// Whether it was withdrawn.
    is_ended: bool,
}

impl SessionClaim {
    /// Puts a writer's session; there can be many.
    pub(crate) fn claim_as_writer(volume: &Volume) -> Result<Self> {
        Self::put_claim(volume, None)
    }

    /// Puts a reader's session; there can be many.
    pub(crate) fn claim_as_reader(volume: &Volume, tree: MapRoot) -> Result<Self> {
        Self::put_claim(volume, Some(tree))
    }

    fn put_claim(volume: &Volume, reading: Option<MapRoot>) -> Result<Self> {
        // What is stored in the session is sealed with the newest key that there is when it begins.
        volume.epochs.refresh_recent_keys()?;
        // Random and not made of the process: one process may have several sessions at once.
        let mut name = [0; 16];
        fill_random(&mut name);
        let key = ObjectKey::new(format!("{PREFIX}{}", vellum_types::VolumeId(name)))?;
        let claim = Self::prepare_claim(volume, key, reading);
        volume.objects.put_object(&claim.key, &claim.stored.lock())?;
        tracing::debug!(session = %claim.key, reads = reading.is_some(), "session begun");
        Ok(claim)
    }

    /// Puts the collector's session, of which there is only one: two concurrent collections would treat each other's
    /// new packs as abandoned. The session of a dead collector is taken over.
    pub(crate) fn claim_as_collector(volume: &Volume) -> Result<Self> {
        volume.epochs.refresh_keys()?;
        let claim = Self::prepare_claim(volume, ObjectKey::new(COLLECTOR)?, None);
        for _ in 0..TAKE_OVER_ATTEMPTS {
            // All collectors use one key, so the store decides which of them is first.
            let taken = claim.objects.swap_ref(&claim.key, None, Some(&claim.stored.lock()));
            match taken {
                Ok(()) => return Ok(claim),
                Err(StoreError::Changed { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            // To tell how old the other one is, the store must be asked for its time: by a session of a writer.
            let others = Self::claim_as_writer(volume)?.list_other_sessions()?;
            let Some(other) = others.into_iter().find(|other| other.key == claim.key) else { continue };
            if !other.is_session_over() {
                return Err(VolumeError::InUse {
                    what: "the store".into(),
                    reason: format_collector(&other),
                });
            }
            // By compare-and-swap: if its owner is alive after all and renews it first, it stays, and the next round
            // reports that.
            other.remove_if_unrenewed(&*claim.objects)?;
        }
        Err(VolumeError::Raced("the collector's session".into()))
    }

    fn prepare_claim(volume: &Volume, key: ObjectKey, reading: Option<MapRoot>) -> Self {
        let session = SessionObject { reading, ..SessionObject::for_current_process() };
        let stored = seal_session(&volume.keys, &key, &session).into();
        let renewed = ClaimRenewal::new_renewed(session.renewed.secs);
        Self {
            objects: volume.objects.clone(),
            keys: volume.keys.clone(),
            key,
            stored,
            renewed,
            reading,
            is_ended: false,
        }
    }

    /// Its object.
    pub(crate) fn object_key(&self) -> &ObjectKey {
        &self.key
    }

    /// Renews the session if it is due.
    pub(crate) fn renew_if_due(&self) -> Result<()> {
        if !self.renewed.is_renewal_due() {
            return Ok(());
        }
        // The lock is held during the request. Of two renewals at once, the second would expect bytes that the
        // first has replaced, and report the session as lost.
        let mut stored = self.stored.lock();
        // Another thread may have done it while this one waited.
        if self.renewed.is_renewal_due() { self.renew_claim(&mut stored) } else { Ok(()) }
    }

    fn renew_claim(&self, stored: &mut Vec<u8>) -> Result<()> {
        let session = SessionObject { reading: self.reading, ..SessionObject::for_current_process() };
        let new = seal_session(&self.keys, &self.key, &session);
        match self.objects.swap_ref(&self.key, Some(stored), Some(&new)) {
            Ok(()) => {
                *stored = new;
                self.renewed.set_renewed(session.renewed.secs);
                Ok(())
            }
            Err(StoreError::Changed { .. }) => Err(VolumeError::SessionLost),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns all other sessions, with their age by the store's clock; this session provides the current time of
    /// that clock.
    pub(crate) fn list_other_sessions(&self) -> Result<Vec<OtherSession>> {
        // The store stamps this object with its own time now. Ages of the others are differences to that stamp, so
        // that no host's clock matters.
        self.renew_claim(&mut self.stored.lock())?;
        others::list_other_sessions(&*self.objects, &self.keys, &self.key)
    }

    /// Fails if another process ended this session because it considered the writer dead.
    pub(crate) fn check_not_lost(&self) -> Result<()> {
        match self.objects.get_object(&self.key, OBJECT_MAX) {
            // The bytes name the process: a collector that took the session over has put other ones.
            Ok(there) if there == *self.stored.lock() => Ok(()),
            Ok(_) | Err(StoreError::NotFound { .. } | StoreError::TooLarge { .. }) => {
                Err(VolumeError::SessionLost)
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl SessionClaim {
    /// Withdraws the session. Fails if another process ended it because it considered the writer dead.
    pub(crate) fn end_claim(mut self) -> Result<()> {
        self.is_ended = true;
        match self.objects.swap_ref(&self.key, Some(self.stored.get_mut()), None) {
            Ok(()) => Ok(()),
            Err(StoreError::Changed { .. }) => Err(VolumeError::SessionLost),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for SessionClaim {
    fn drop(&mut self) {
        if self.is_ended {
            return;
        }
        // If this fails, the collector waits until the process is gone. Another's claim of this name stays.
        let _ = self.objects.swap_ref(&self.key, Some(&self.stored.lock()), None);
    }
}

fn format_collector(other: &OtherSession) -> String {
    let key = &other.key;
    let name = other.key.name();
    match &other.session {
        Ok(session) => format!(
            "process {} on {} is collecting already ({key}); if you know that it is gone, 'vellum gc run \
             --end-session {name}' ends it",
            session.pid, session.host
        ),
        Err(error) => format!(
            "somebody collects, or did and was killed: {error}. It counts until it was not changed for 24 hours; \
             if no 'vellum gc run' is at work, 'vellum gc run --end-session {name}' ends it"
        ),
    }
}

/// The time of the last renewal, by the wall clock and by a clock that cannot be set: neither setting the clock back
/// nor suspending the machine must delay the next renewal.
struct ClaimRenewal {
    secs: AtomicI64,
    begun: Instant,
    after: AtomicU64,
}

impl ClaimRenewal {
    fn new_renewed(secs: i64) -> Self {
        Self { secs: secs.into(), begun: Instant::now(), after: 0.into() }
    }

    fn set_renewed(&self, secs: i64) {
        // Relaxed: the two only say when to ask, and the lock on `stored` orders the requests themselves.
        self.secs.store(secs, Ordering::Relaxed);
        self.after.store(self.begun.elapsed().as_secs(), Ordering::Relaxed);
    }

    fn is_renewal_due(&self) -> bool {
        let passed = self.begun.elapsed().as_secs().saturating_sub(self.after.load(Ordering::Relaxed));
        is_renewal_due(current_time().secs, self.secs.load(Ordering::Relaxed), passed)
    }
}

/// Returns whether a session renewed at `renewed` is due at `now`, after `passed` seconds of the clock that cannot be
/// set.
fn is_renewal_due(now: i64, renewed: i64, passed: u64) -> bool {
    now.abs_diff(renewed).max(passed) >= RENEWAL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_renewed_whatever_is_done_to_the_clock() {
        let hour = RENEWAL.cast_signed();
        assert!(!is_renewal_due(1000, 1000, 0) && !is_renewal_due(1000 + hour - 1, 1000, RENEWAL - 1));
        assert!(is_renewal_due(1000 + hour, 1000, 10), "the machine slept");
        assert!(
            is_renewal_due(1000, 1000 + hour, 10),
            "the clock was set back: what others see is from the future"
        );
        assert!(is_renewal_due(1000, 1000, RENEWAL), "the clock was set back again and again");
        assert!(is_renewal_due(i64::MIN, i64::MAX, 0));
    }
}
