//! Since when something is acknowledged and not in the store.
//!
//! Invariant: the time is never later than that of the oldest such change, but for the half second in which the publisher
//! notices it.

use parking_lot::Mutex;
use vellum_host::clock::current_time;
use vellum_types::UnixTime;

use super::LivePublisher;
use crate::error::Result;
use crate::lease::has_unpublished_state;
use crate::tree::LiveMap;

/// When the publisher noticed the oldest unpublished change.
#[derive(Debug, Default)]
pub(crate) struct UnpublishedAge {
    since: Mutex<Option<UnixTime>>,
}

impl LivePublisher {
    /// Returns since when something is acknowledged and not in the store. `None`: all of it is in the store.
    pub fn unpublished_since(&self) -> Result<Option<UnixTime>> {
        if !self.has_unpublished_changes()? {
            return Ok(None);
        }
        Ok(Some(self.unpublished_age.since.lock().unwrap_or_else(current_time)))
    }

    /// Notes whether something is unpublished. `published`: everything older than that was published just now.
    pub(crate) fn note_unpublished(&self, published: Option<UnixTime>) -> Result<()> {
        let has_changes = self.has_unpublished_changes()?;
        let mut since = self.unpublished_age.since.lock();
        *since = match (has_changes, *since, published) {
            (false, _, _) => None,
            // What is left was changed after that moment.
            (true, _, Some(published)) => Some(published),
            (true, Some(since), None) => Some(since),
            // After a start: a snapshot that was left knows when it was made, and other changes do not.
            (true, None, None) => Some(oldest_pending_time(&self.map)?.unwrap_or_else(current_time)),
        };
        Ok(())
    }

    /// Whether anything can be published: open files without a name cannot.
    fn has_unpublished_changes(&self) -> Result<bool> {
        if !has_unpublished_state(&**self.map.live_store())? {
            return Ok(false);
        }
        let sealed = self.map.lock_head().sealed_state();
        let is_remainder = self.remainder.lock().as_ref() == Some(&sealed);
        Ok(!is_remainder || !self.map.is_top_layer_empty()? || !self.map.pending_snapshots()?.is_empty())
    }
}

fn oldest_pending_time(map: &LiveMap) -> Result<Option<UnixTime>> {
    Ok(map.pending_snapshots()?.into_iter().next().map(|(_, pending)| pending.record.time))
}
