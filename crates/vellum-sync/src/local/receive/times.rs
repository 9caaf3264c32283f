//! Whether the destination's filesystem keeps the times that are set.
//!
//! Invariant: a modification time that was not stored, or that a rename changed, is set again together with an access
//! time: older FUSE filesystems ignore one without the other. The filesystem's behaviour is determined once for each
//! run: where times are kept, further files cost no additional call.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use vellum_host::beneath::HeldNode;
use vellum_types::UnixTime;

use crate::model::listing::{ListingEntry, TimeGranularity};
use crate::model::options::SyncOptions;
use crate::plan::WantedAttributes;

/// A time this many seconds from now may equal the expected one by chance.
const RECENT: u64 = 60;

const KEPT: u8 = 1;
const LOST: u8 = 2;

/// The known behaviour of the filesystem.
#[derive(Debug, Default)]
pub(super) struct TimeKeeping {
    /// Of setting a time.
    setting: TimeCheck,
    /// Of a rename: FAT through FUSE sets the current time.
    naming: TimeCheck,
}

/// Whether times are kept by one kind of call: [`KEPT`], [`LOST`], or 0 while it is unknown.
#[derive(Debug, Default)]
struct TimeCheck(AtomicU8);

impl TimeKeeping {
    /// Sets a modification time again if it was not stored. A failure was already reported when it was set first.
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

    /// The same after a rename. `hold` opens the file if it has to be examined.
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
    /// Whether times are known to be kept.
    fn is_kept(&self) -> bool {
        self.0.load(Ordering::Relaxed) == KEPT
    }

    /// Whether the modification time was lost, as far as that is known or can be seen.
    fn is_lost(&self, node: &HeldNode<'_>, mtime: UnixTime) -> bool {
        match self.0.load(Ordering::Relaxed) {
            KEPT => return false,
            LOST => return true,
            _ => {}
        }
        let Ok(now) = node.stat().map(|now| now.mtime) else { return false };
        // A filesystem that rounds keeps the time as well as it can, which is not a loss.
        let is_there = TimeGranularity::is_possible_rounding(now, mtime);
        // A file that was written just now may have the time by chance.
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
