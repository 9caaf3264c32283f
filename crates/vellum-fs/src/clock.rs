//! The clock that stamps inodes: the kernel's coarse one.
//!
//! The kernel itself stamps writes that it caches, with `CLOCK_REALTIME_COARSE`. With a finer clock here a file that is
//! made and then written would get older by up to a tick, and the kernel would have to write the times back, since they
//! differ from what it was told when the file was made. Invariant: every time of an inode that is "now" is of this clock.

use rustix::time::{ClockId, clock_gettime};
use vellum_types::{InodeAttr, UnixTime};

use crate::snapshot::next_moment;

/// A time of change that is ahead by more than this many seconds was set, or the clock was set back.
const AHEAD_MAX: i64 = 1;

/// The present time, as of the kernel's last tick.
#[must_use]
pub fn current_time() -> UnixTime {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    UnixTime { secs: now.tv_sec, nanos: u32::try_from(now.tv_nsec).unwrap_or_default() }
}

/// Gives an inode a later time of change than it had, if only by a nanosecond: by that one sees that something in it has
/// changed, within one tick too.
pub(crate) fn advance_change_time(attr: &mut InodeAttr, now: UnixTime) {
    let before = attr.ctime;
    let is_ahead = before.secs.saturating_sub(now.secs) > AHEAD_MAX;
    attr.ctime = if now > before || is_ahead { now } else { next_moment(before) };
}

/// Waits until the clock has moved on: what is stamped from now on is later than what was stamped before.
#[cfg(test)]
pub(crate) fn wait_for_tick() {
    let before = current_time();
    while current_time() == before {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn each_change_has_a_later_time() {
        let at = |secs, nanos| UnixTime { secs, nanos };
        let stamped = |before, now| {
            let mut attr = InodeAttr { ctime: before, ..InodeAttr::new(vellum_types::FileKind::File, 0) };
            advance_change_time(&mut attr, now);
            attr.ctime
        };
        assert_eq!(stamped(at(5, 0), at(5, 1)), at(5, 1));
        assert_eq!(stamped(at(5, 1), at(5, 1)), at(5, 2), "within a tick");
        assert_eq!(stamped(at(5, 999_999_999), at(5, 7)), at(6, 0));
        assert_eq!(stamped(at(500, 0), at(5, 7)), at(5, 7), "the clock was set back");
    }

    #[test]
    fn it_is_not_ahead_of_the_clock_with_which_the_kernel_stamps_files() {
        use std::os::unix::fs::MetadataExt;
        let before = current_time();
        let made = tempfile::tempfile().unwrap().metadata().unwrap();
        let stamped = UnixTime { secs: made.mtime(), nanos: u32::try_from(made.mtime_nsec()).unwrap() };
        assert!(before <= stamped);
    }
}
