//! Times of change of inodes.
//!
//! Invariant: every time of an inode that is "now" is of the kernel's coarse clock ([`vellum_host::clock`]).

use vellum_types::{InodeAttr, UnixTime};

use crate::history::snapshot::next_moment;

/// A time of change that is ahead by more than this many seconds was set, or the clock was set back.
const AHEAD_MAX: i64 = 1;

/// Gives an inode a later time of change than it had, if only by a nanosecond: by that one sees that something in it has
/// changed, within one tick too.
pub(crate) fn advance_change_time(attr: &mut InodeAttr, now: UnixTime) {
    let before = attr.ctime;
    let is_ahead = before.secs.saturating_sub(now.secs) > AHEAD_MAX;
    // A time that is far ahead is not continued. Otherwise the times of an inode would stay in the future for
    // good after the clock was wrong once.
    attr.ctime = if now > before || is_ahead { now } else { next_moment(before) };
}

/// Waits until the clock has moved on: what is stamped from now on is later than what was stamped before.
#[cfg(test)]
pub(crate) fn wait_for_tick() {
    let before = vellum_host::clock::current_time();
    while vellum_host::clock::current_time() == before {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
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
}
