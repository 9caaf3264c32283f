//! Whether the destination's filesystem keeps the times that it is given.
//!
//! Invariant: a time that was set and is not there is set again in the way that older FUSE filesystems need, which pass over
//! a time of change that comes without one of reading. What is known of the filesystem is asked once a run.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use vellum_checkout::beneath::HeldNode;

use crate::listing::{ListingEntry, TimeGranularity};
use crate::options::SyncOptions;
use crate::plan::WantedAttributes;

/// Seconds from the present within which a time may be there by chance.
const RECENT: u64 = 60;

const UNKNOWN: u8 = 0;
const KEPT: u8 = 1;
const LOST: u8 = 2;

/// What is known of the filesystem.
#[derive(Debug, Default)]
pub(super) struct TimeKeeping(AtomicU8);

impl TimeKeeping {
    /// Sees to it that something has the time that it was given. Where that cannot be, whoever gave it has said so.
    pub fn ensure_times(&self, node: &HeldNode<'_>, entry: &ListingEntry<'_>, options: &SyncOptions) {
        let known = self.0.load(Ordering::Relaxed);
        let wanted = WantedAttributes::from_entry(entry, options);
        let (Some(mtime), None, true) = (wanted.mtime, wanted.atime, known != KEPT) else { return };
        if known == UNKNOWN {
            let Ok(now) = node.stat().map(|now| now.mtime) else { return };
            let is_there = TimeGranularity::is_possible_rounding(now, mtime);
            // What was written at this moment may have the time by chance.
            let is_old = mtime.secs.abs_diff(current_seconds()) > RECENT;
            match is_there {
                true if is_old || now == mtime && mtime.nanos % 100 != 0 => {
                    self.0.store(KEPT, Ordering::Relaxed);
                }
                false if is_old => self.0.store(LOST, Ordering::Relaxed),
                _ => {}
            }
            if is_there {
                return;
            }
        }
        let _ = node.set_mtime_as_read_now(mtime);
    }
}

/// Seconds since 1970.
fn current_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().try_into().unwrap_or(i64::MAX)
}
