//! Sessions of other processes, and which of them have ended.
//!
//! Invariant: a session counts until its process is known to have ended, or until it was not changed for [`LEASE`].
//! The latter is measured by the store's clock, whose current time is that of the caller's own session: the clocks of
//! the writer and of the caller do not matter. If a store reports no times, the time in the session is used. A
//! session that cannot be read counts like all others: it may be of a newer version, and is renewed as they are.

use std::time::{Duration, SystemTime};

use vellum_crypto::VolumeKeys;
use vellum_store::{ObjectKey, ObjectStore, StoreError};

use super::{LEASE, OBJECT_MAX, PREFIX, SessionObject, open_session};
use crate::error::{Result, VolumeError};
use crate::volume::Volume;

/// A session in the store that is not the caller's.
pub(crate) struct OtherSession {
    /// Its key.
    pub key: ObjectKey,
    /// Its content; an error if it cannot be read.
    pub session: Result<SessionObject>,
    /// Its bytes; `None` if it is too large.
    stored: Option<Vec<u8>>,
    /// Difference between the store's current time and the time when it was written, if the store reports times.
    age: Option<Duration>,
}

/// A session that a collection waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingSession {
    /// The session's object.
    pub object: String,
    /// Its writer, or why that is unknown.
    pub session: Result<SessionObject, String>,
}

impl WaitingSession {
    /// Returns the name by which it can be ended.
    #[must_use]
    pub fn session_name(&self) -> &str {
        self.object.strip_prefix(PREFIX).unwrap_or(&self.object)
    }
}

/// Returns all sessions except the caller's, which was just written.
pub(super) fn list_other_sessions(
    objects: &dyn ObjectStore,
    keys: &VolumeKeys,
    own: &ObjectKey,
) -> Result<Vec<OtherSession>> {
    let mut others = Vec::new();
    for key in objects.list_keys(PREFIX)?.into_iter().filter(|key| key != own) {
        // A session that ended since the listing is absent: its writer has finished, and its snapshot is found when
        // roots are marked again.
        others.extend(read_session(objects, keys, key)?);
    }
    // Bytes before times: what is renewed in between is young, and what is renewed after is not what was read.
    let listed = objects.list_objects(PREFIX)?;
    let modified = |key: &ObjectKey| listed.iter().find(|info| info.key == *key)?.modified;
    let present = modified(own);
    for other in &mut others {
        other.age = present.zip(modified(&other.key)).map(|(present, written)| compute_age(present, written));
    }
    Ok(others)
}

/// Returns all sessions, without their ages: nothing is written to ask the store for its time.
pub(crate) fn list_sessions(objects: &dyn ObjectStore, keys: &VolumeKeys) -> Result<Vec<OtherSession>> {
    let mut found = Vec::new();
    for key in objects.list_keys(PREFIX)? {
        found.extend(read_session(objects, keys, key)?);
    }
    Ok(found)
}

pub(super) fn read_session(
    objects: &dyn ObjectStore,
    keys: &VolumeKeys,
    key: ObjectKey,
) -> Result<Option<OtherSession>> {
    let (stored, session) = match objects.get_object(&key, OBJECT_MAX) {
        Ok(stored) => {
            let session = open_session(keys, &key, &stored);
            (Some(stored), session)
        }
        Err(error @ (StoreError::TooLarge { .. } | StoreError::NotAFile { .. })) => (None, Err(error.into())),
        // It ended since it was listed.
        Err(StoreError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(Some(OtherSession { key, session, stored, age: None }))
}

/// A session dated far in the store's future was written before the store's clock was set back: with a live writer it
/// would have been renewed since. So it counts as being as old as one dated far in the past.
fn compute_age(present: SystemTime, modified: SystemTime) -> Duration {
    present.duration_since(modified).unwrap_or_else(|error| error.duration())
}

impl OtherSession {
    /// Returns whether its writer has ended or has lost it.
    pub(crate) fn is_session_over(&self) -> bool {
        match (&self.session, self.age) {
            // However old: the worktree may not have been mounted since, and has the only names of what it protects.
            (Ok(session), _) if session.unpublished.is_some() => false,
            // A dead process needs no waiting. It can be recognised only from the same boot and process namespace.
            (Ok(session), _) if session.is_process_dead() => true,
            (_, Some(age)) => age.as_secs() > LEASE.unsigned_abs(),
            (Ok(session), None) => session.is_expired(),
            // Neither its time nor its process is known: it counts until somebody ends it by name.
            (Err(_), None) => false,
        }
    }

    /// Whether it is known to be a reader's.
    pub(crate) fn is_reader(&self) -> bool {
        self.session.as_ref().is_ok_and(|session| session.reading.is_some())
    }

    /// Removes it, unless it was renewed since it was read; returns whether it is gone.
    pub(crate) fn remove_if_unrenewed(&self, objects: &dyn ObjectStore) -> Result<bool> {
        let Some(stored) = &self.stored else {
            // Too long to be compared, and no writer's.
            objects.delete_object(&self.key)?;
            return Ok(true);
        };
        match objects.swap_ref(&self.key, Some(stored), None) {
            Ok(()) => Ok(true),
            Err(StoreError::Changed { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The same, for a message.
    pub(crate) fn into_waiting_session(self) -> WaitingSession {
        let session = self.session.map_err(|error: VolumeError| error.to_string());
        WaitingSession { object: self.key.to_string(), session }
    }
}

/// Ends sessions by name, whose writers are known to have ended. A writer that is still running finds its session
/// gone and makes no snapshot.
pub(crate) fn end_sessions(volume: &Volume, names: &[String]) -> Result<()> {
    for name in names {
        let name = name.strip_prefix(PREFIX).unwrap_or(name);
        let missing = || VolumeError::NoSession(name.escape_debug().to_string());
        let key = ObjectKey::new(format!("{PREFIX}{name}")).map_err(|_| missing())?;
        if !volume.objects.list_keys(PREFIX)?.contains(&key) {
            return Err(missing());
        }
        if let Some(other) = read_session(&*volume.objects, &volume.keys, key)? {
            // One that is renewed at this moment has a living writer, and stays.
            other.remove_if_unrenewed(&*volume.objects)?;
        }
    }
    Ok(())
}
