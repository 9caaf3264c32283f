//! Whether the destination's filesystem keeps the times that it is given.
//!
//! Invariant: a time that was set and is not there, or is not there any more when the file has its name, is set again in the
//! way that older FUSE filesystems need, which pass over a time of change that comes without one of reading. What is known
//! of the filesystem is asked once a run: where times stay, a file costs no call more.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use vellum_host::beneath::HeldNode;
use vellum_types::UnixTime;

use crate::model::listing::{ListingEntry, TimeGranularity};
use crate::model::options::SyncOptions;
use crate::plan::WantedAttributes;

/// Seconds from the present within which a time may be there by chance.
const RECENT: u64 = 60;

const KEPT: u8 = 1;
const LOST: u8 = 2;

/// What is known of the filesystem.
#[derive(Debug, Default)]
pub(super) struct TimeKeeping {
    /// After they were set.
    setting: TimeCheck,
    /// After what has them was renamed: FAT through FUSE gives it the present.
    naming: TimeCheck,
}

/// Whether times are there after one kind of call: [`KEPT`], [`LOST`], or 0 while nothing is known.
#[derive(Debug, Default)]
struct TimeCheck(AtomicU8);

impl TimeKeeping {
    /// Sees to it that something has the time that it was given. Where that cannot be, whoever gave it has said so.
    pub fn ensure_times(&self, node: &HeldNode<'_>, entry: &ListingEntry<'_>, options: &SyncOptions) {
        if self.setting.is_kept() {
            return;
        }
        let wanted = WantedAttributes::from_entry(entry, options);
        if let (Some(mtime), None) = (wanted.mtime, wanted.atime)
            && self.setting.is_lost(node, mtime)
        {
            let _ = node.set_mtime_as_read_now(mtime);
        }
    }

    /// The same of what had the time, and was renamed since. `hold` finds it, if anybody has to look at it.
    pub fn ensure_times_after_rename<'n>(
        &self,
        hold: impl FnOnce() -> Option<HeldNode<'n>>,
        entry: &ListingEntry<'_>,
        options: &SyncOptions,
    ) {
        if self.naming.is_kept() {
            return;
        }
        let wanted = WantedAttributes::from_entry(entry, options);
        let Some(mtime) = wanted.mtime else { return };
        let Some(node) = hold().filter(|node| self.naming.is_lost(node, mtime)) else { return };
        let _ = match wanted.atime {
            Some(atime) => node.set_times(atime, mtime),
            None => node.set_mtime_as_read_now(mtime),
        };
    }
}

impl TimeCheck {
    /// Whether nobody has to look again.
    fn is_kept(&self) -> bool {
        self.0.load(Ordering::Relaxed) == KEPT
    }

    /// Whether something has not the time that it was given, as far as that is known or can be seen.
    fn is_lost(&self, node: &HeldNode<'_>, mtime: UnixTime) -> bool {
        match self.0.load(Ordering::Relaxed) {
            KEPT => return false,
            LOST => return true,
            _ => {}
        }
        let Ok(now) = node.stat().map(|now| now.mtime) else { return false };
        // A filesystem that rounds keeps the time as well as it can, which is not a loss.
        let is_there = TimeGranularity::is_possible_rounding(now, mtime);
        // What was written at this moment may have the time by chance.
        let is_old = mtime.secs.abs_diff(current_seconds()) > RECENT;
        match is_there {
            // A time of long ago cannot be there by chance, so one such file is enough to know the
            // filesystem.
            true if is_old || now == mtime && !mtime.nanos.is_multiple_of(100) => {
                self.0.store(KEPT, Ordering::Relaxed)
            }
            false if is_old => self.0.store(LOST, Ordering::Relaxed),
            _ => {}
        }
        !is_there
    }
}

/// Seconds since 1970.
fn current_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().try_into().unwrap_or(i64::MAX)
}
