//! Decides whether a lease has ended, by the store's clock: a session that the caller has just written provides its
//! current time.

use std::time::{Duration, SystemTime};

use vellum_store::ObjectKey;
use vellum_types::UnixTime;

use super::Lease;
use crate::error::Result;
use crate::session::{SessionClaim, current_time};
use crate::volume::Volume;

/// Returns whether another process may take the lease in the ref at `key`, which was just read.
pub(crate) fn is_lease_over(volume: &Volume, key: &ObjectKey, lease: &Lease) -> Result<bool> {
    if lease.ended || lease.session.is_process_dead() {
        return Ok(true);
    }
    let term = u64::from(lease.term);
    Ok(match read_object_age(volume, key)? {
        Some(age) => age > Duration::from_secs(term),
        // Where a store tells no times, the time in the lease is all there is.
        None => current_time().secs.saturating_sub(lease.session.renewed.secs) > i64::from(lease.term),
    })
}

/// Returns the present by the store's clock; `None` if it reports no times.
pub(crate) fn read_store_time(volume: &Volume) -> Result<Option<UnixTime>> {
    // The session is put only to be dated by the store: the time of an object that was just written is the store's time.
    let asker = SessionClaim::claim_as_writer(volume)?;
    let present = read_modification_time(volume, asker.object_key())?;
    let since_epoch = present.and_then(|present| present.duration_since(SystemTime::UNIX_EPOCH).ok());
    Ok(since_epoch.map(|since| UnixTime {
        secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: since.subsec_nanos(),
    }))
}

/// Returns how long ago an object was written, by the store's clock; `None` if it reports no times.
fn read_object_age(volume: &Volume, key: &ObjectKey) -> Result<Option<Duration>> {
    let asker = SessionClaim::claim_as_writer(volume)?;
    // In this order: what is renewed in between looks younger, never older.
    let present = read_modification_time(volume, asker.object_key())?;
    // What is dated ahead was written before the store's clock was set back: it is young until that moment comes.
    Ok(present
        .zip(read_modification_time(volume, key)?)
        .map(|(present, written)| present.duration_since(written).unwrap_or(Duration::ZERO)))
}

fn read_modification_time(volume: &Volume, key: &ObjectKey) -> Result<Option<SystemTime>> {
    let folder = key.as_str().rsplit_once('/').map_or("", |(folder, _)| folder);
    let listed = volume.objects.list_objects(folder)?;
    Ok(listed.into_iter().find(|info| info.key == *key).and_then(|info| info.modified))
}
