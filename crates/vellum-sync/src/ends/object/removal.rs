//! Moving objects: they are deleted at the service once the destination has them.
//!
//! Invariant: an object is deleted only as the version that was listed, which is the one that was read. Deliberately
//! absent: which objects the destination has (see `local::moving`).

use parking_lot::Mutex;
use vellum_host::ProgressMeter;

use super::{ObjectEnd, map_object_error, object_key, parallel};
use crate::error::{Result, SyncError};
use crate::local::receive::{SyncProblem, SyncReport};
use crate::model::listing::{ListingEntry, ListingEntryId, TreeListing};

/// Most concurrent deletions, a count.
const DELETIONS_AT_ONCE: usize = 8;

/// Deletes objects of the listing that are still the listed versions.
pub(super) fn remove_unchanged_objects(
    end: &ObjectEnd,
    listing: &TreeListing,
    entries: &[ListingEntryId],
    meter: &ProgressMeter,
) -> SyncReport {
    let report = Mutex::new(SyncReport::default());
    let outcome = parallel::map_in_parallel(entries, DELETIONS_AT_ONCE, meter, |id| {
        let entry = listing.entry(*id);
        match remove_unchanged_object(end, &entry) {
            Ok(()) => report.lock().taken += 1,
            // The request was given up because of a stop, which is reported for the run as a whole.
            Err(SyncError::Stopped) => {}
            Err(error) => {
                let message = format!("not removed at the source: {}", error.format_chain());
                report.lock().problems.push(SyncProblem { path: entry.path(), message, vanished: false });
            }
        }
    });
    let mut report = report.into_inner();
    report.stopped = outcome.is_err() || meter.is_stopped();
    report.problems.sort_by(|a, b| a.path.cmp(&b.path));
    report
}

fn remove_unchanged_object(end: &ObjectEnd, entry: &ListingEntry<'_>) -> Result<()> {
    let tag = end.listed_tag(entry.id()).ok_or(SyncError::Unequal)?;
    // An object that is gone already is what was asked for.
    end.objects.delete_object(&object_key(entry), &tag).map(drop).map_err(map_object_error)
}
