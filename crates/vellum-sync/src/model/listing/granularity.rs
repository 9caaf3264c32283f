//! The resolution of a filesystem's times, inferred from the times that occur in it.
//!
//! Invariant: the inferred resolution is never finer than the times seen, and a single finer time suffices to infer it.
//! Change times count too: the kernel sets them, so a tree in which programs set round times (an unpacked archive) does
//! not look like a filesystem that rounds.

use vellum_types::UnixTime;

/// The resolutions that filesystems have, nanoseconds: FAT, HFS+ and ext3, exFAT, milliseconds, microseconds, NTFS, and
/// all others.
const STEPS: [u64; 7] = [2_000_000_000, 1_000_000_000, 10_000_000, 1_000_000, 1_000, 100, 1];
/// Nanoseconds in a second.
const SECOND: i128 = 1_000_000_000;

/// The resolution of a filesystem's times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeGranularity(u64);

impl Default for TimeGranularity {
    /// The finest resolution.
    fn default() -> Self {
        Self(1)
    }
}

impl TimeGranularity {
    /// The coarsest resolution, for a filesystem in which no time was seen yet.
    pub const COARSEST: Self = Self(STEPS[0]);

    /// Decodes a resolution from the wire. It is at most the coarsest one, so a peer cannot make very different times
    /// equal.
    #[must_use]
    pub fn from_nanos(nanos: u64) -> Self {
        Self(nanos.clamp(1, Self::COARSEST.0))
    }

    /// The resolution in nanoseconds.
    #[must_use]
    pub fn step_nanos(self) -> u64 {
        self.0
    }

    /// Takes a stored time into account.
    pub fn observe_time(&mut self, time: UnixTime) {
        let nanos = i128::from(time.secs) * SECOND + i128::from(time.nanos);
        let fits = |step: &u64| nanos.rem_euclid(i128::from(*step)) == 0;
        // One time that does not fit proves that the filesystem keeps finer times. Times that fit prove
        // nothing.
        if !fits(&self.0) {
            self.0 = STEPS.into_iter().filter(|step| *step < self.0).find(fits).unwrap_or(1);
        }
    }

    /// The finer one of both.
    pub fn merge_finer(&mut self, other: Self) {
        self.0 = self.0.min(other.0);
    }

    /// The largest difference of two times that this filesystem may store as equal, nanoseconds.
    #[must_use]
    pub fn tolerance_nanos(self) -> u64 {
        self.0.saturating_sub(1)
    }

    /// Whether one time may be what some filesystem stores for another.
    #[must_use]
    pub fn is_possible_rounding(kept: UnixTime, given: UnixTime) -> bool {
        STEPS.into_iter().any(|step| Self(step).truncate_time(given) == kept)
    }

    /// A time as the filesystem stores it if it rounds down, as most do.
    #[must_use]
    pub fn truncate_time(self, time: UnixTime) -> UnixTime {
        let nanos = i128::from(time.secs) * SECOND + i128::from(time.nanos);
        let nanos = nanos - nanos.rem_euclid(i128::from(self.0));
        let secs = i64::try_from(nanos.div_euclid(SECOND)).unwrap_or(time.secs);
        UnixTime { secs, nanos: u32::try_from(nanos.rem_euclid(SECOND)).unwrap_or(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learnt(times: &[(i64, u32)]) -> u64 {
        let mut granularity = TimeGranularity::COARSEST;
        for (secs, nanos) in times {
            granularity.observe_time(UnixTime { secs: *secs, nanos: *nanos });
        }
        granularity.step_nanos()
    }

    #[test]
    fn the_finest_time_tells() {
        assert_eq!(learnt(&[]), 2_000_000_000);
        assert_eq!(learnt(&[(4, 0), (-6, 0)]), 2_000_000_000);
        assert_eq!(learnt(&[(4, 0), (5, 0)]), 1_000_000_000);
        assert_eq!(learnt(&[(4, 0), (5, 130_000_000)]), 10_000_000);
        assert_eq!(learnt(&[(5, 123_456_700), (6, 0)]), 100);
        assert_eq!(learnt(&[(5, 123_456_789), (6, 0)]), 1);
    }

    #[test]
    fn times_are_cut_towards_the_past() {
        let two = TimeGranularity::COARSEST;
        let cut = |secs, nanos| two.truncate_time(UnixTime { secs, nanos });
        assert_eq!(cut(5, 7), UnixTime { secs: 4, nanos: 0 });
        assert_eq!(cut(-5, 7), UnixTime { secs: -6, nanos: 0 });
        assert_eq!(
            TimeGranularity::default().truncate_time(UnixTime { secs: 5, nanos: 7 }),
            UnixTime { secs: 5, nanos: 7 }
        );
        assert_eq!(TimeGranularity::from_nanos(u64::MAX), two);
        let given = UnixTime { secs: 5, nanos: 123 };
        for (kept, may_be) in
            [((4, 0), true), ((5, 0), true), ((5, 100), true), ((3, 0), false), ((6, 0), false)]
        {
            let kept = UnixTime { secs: kept.0, nanos: kept.1 };
            assert_eq!(TimeGranularity::is_possible_rounding(kept, given), may_be, "{kept:?}");
        }
    }
}
