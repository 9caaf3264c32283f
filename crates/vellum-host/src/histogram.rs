//! Histograms of durations that are cheap enough to be always enabled, with a resolution of 1/8.
//!
//! Invariant: recording takes no lock, allocates nothing and consists of two additions; a reader may see one without
//! the other. Each power of two of nanoseconds has [`PER_OCTAVE`] classes, so that a quantile is too high by one part
//! in eight at most. The bounds of powers of two are exact.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Classes of one power of two.
const PER_OCTAVE: usize = 1 << OCTAVE_BITS;
const OCTAVE_BITS: u32 = 3;

/// The highest power of two with classes of its own: 2^42 ns, more than an hour. Longer durations are counted there.
const OCTAVES: u32 = 42;

/// The number of classes: durations below the first power with enough classes are counted by single nanoseconds.
const CLASSES: usize = (OCTAVES - OCTAVE_BITS + 1) as usize * PER_OCTAVE;

/// Counts durations from any number of threads.
pub struct DurationHistogram {
    counts: [AtomicU64; CLASSES],
    nanos: AtomicU64,
}

/// Most durations that a reading from elsewhere may count: readings of a million processes can still be added.
const FOREIGN_COUNT_MAX: u64 = 1 << 40;

/// A reading of a [`DurationHistogram`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DurationDistribution {
    counts: Vec<u64>,
    nanos: u64,
}

impl Default for DurationHistogram {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; CLASSES], nanos: AtomicU64::new(0) }
    }
}

impl std::fmt::Debug for DurationHistogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let read = self.read_distribution();
        f.debug_struct("DurationHistogram").field("count", &read.count()).field("sum", &read.sum()).finish()
    }
}

impl DurationHistogram {
    /// Counts one duration.
    pub fn record_duration(&self, took: Duration) {
        self.record_sample(took, 1);
    }

    /// Counts this many durations, of which the given one is a sample.
    pub fn record_sample(&self, took: Duration, many: u64) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if let Some(count) = self.counts.get(classify_duration(nanos)) {
            count.fetch_add(many, Ordering::Relaxed);
        }
        // The sum has room for 584 years.
        self.nanos.fetch_add(nanos.wrapping_mul(many), Ordering::Relaxed);
    }

    /// Returns the current counts.
    #[must_use]
    pub fn read_distribution(&self) -> DurationDistribution {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        DurationDistribution { counts, nanos: self.nanos.load(Ordering::Relaxed) }
    }
}

impl Default for DurationDistribution {
    fn default() -> Self {
        Self { counts: vec![0; CLASSES], nanos: 0 }
    }
}

/// A class of durations, and how many it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurationClass {
    /// Its number.
    pub class: u32,
    /// How many durations are in it.
    pub count: u64,
}

impl DurationDistribution {
    /// Adds the durations of another reading, so that quantiles are those of all.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
        self.nanos = self.nanos.saturating_add(other.nanos);
    }

    /// The classes that have durations: what another process needs to add this reading to its own.
    #[must_use]
    pub fn occupied_classes(&self) -> Vec<DurationClass> {
        let all = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        all.filter_map(|(class, count)| {
            Some(DurationClass { class: u32::try_from(class).ok()?, count: *count })
        })
        .collect()
    }

    /// The reading with these classes, and the sum of its durations. None if there is no such class, or if the counts are
    /// absurd: another process may have sent them.
    #[must_use]
    pub fn from_classes(classes: &[DurationClass], sum: Duration) -> Option<Self> {
        let mut reading = Self { nanos: u64::try_from(sum.as_nanos()).ok()?, ..Self::default() };
        let mut total = 0_u64;
        for DurationClass { class, count } in classes {
            total = total.checked_add(*count).filter(|total| *total <= FOREIGN_COUNT_MAX)?;
            // The bound of the total keeps this sum from an overflow.
            *reading.counts.get_mut(usize::try_from(*class).ok()?)? += count;
        }
        Some(reading)
    }

    /// Returns the number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of all durations.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.nanos)
    }

    /// Returns how many durations are below 2^`power` nanoseconds, exactly.
    #[must_use]
    pub fn count_below(&self, power: u32) -> u64 {
        // Powers of two are bounds of classes, so the sum is exact.
        let end = classify_duration(1_u64.checked_shl(power).unwrap_or(u64::MAX));
        self.counts.iter().take(end).sum()
    }

    /// Returns the quantile `part`, from 0 to 1: at most 1/8 too high. Zero if there are no durations.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Duration {
        // At least one, so that the quantile 0 is the shortest duration.
        let wanted = (self.count() as f64 * part.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut counted = 0;
        for (class, count) in self.counts.iter().enumerate() {
            counted += count;
            if counted >= wanted {
                return Duration::from_nanos(class_upper_bound(class));
            }
        }
        Duration::ZERO
    }
}

/// The class of a duration.
fn classify_duration(nanos: u64) -> usize {
    let Some(octave) = nanos.checked_ilog2().filter(|octave| *octave >= OCTAVE_BITS) else {
        return nanos as usize;
    };
    if octave >= OCTAVES {
        return CLASSES - 1;
    }
    let shift = octave - OCTAVE_BITS;
    // The three bits behind the highest one select the class within the power of two.
    let within = (nanos >> shift) as usize & (PER_OCTAVE - 1);
    (shift + 1) as usize * PER_OCTAVE + within
}

/// The greatest duration of a class, nanoseconds.
fn class_upper_bound(class: usize) -> u64 {
    let octave = class / PER_OCTAVE;
    let within = class % PER_OCTAVE;
    match octave.checked_sub(1) {
        None => within as u64,
        Some(shift) => (((PER_OCTAVE + within) as u64 + 1) << shift) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_in_one_class_and_its_bound_is_near() {
        let mut before = 0;
        let spread =
            (0..64).flat_map(|power| [0, 1, 3].map(|more: u64| (1_u64 << power).saturating_add(more)));
        let mut all: Vec<u64> = spread.chain(0..5000).collect();
        all.sort_unstable();
        for nanos in all {
            let class = classify_duration(nanos);
            assert!(class >= before && class < CLASSES, "{nanos}");
            before = class;
            if nanos < 1 << OCTAVES {
                let bound = class_upper_bound(class);
                assert!(bound >= nanos && bound - nanos <= nanos / 8, "{nanos} {bound}");
            }
        }
    }

    #[test]
    fn quantiles_and_powers_are_as_counted() {
        let histogram = DurationHistogram::default();
        for micros in 1..=1000 {
            histogram.record_duration(Duration::from_micros(micros));
        }
        let read = histogram.read_distribution();
        assert_eq!(read.count(), 1000);
        assert_eq!(read.sum(), Duration::from_micros(500_500));
        for (part, exact) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = read.quantile(part).as_secs_f64() * 1e6;
            assert!(found >= exact && found <= exact * 1.13, "{part}: {found}");
        }
        // 2^19 ns are 524.288 µs.
        assert_eq!(read.count_below(19), 524);
        assert_eq!(read.count_below(63), 1000);
        assert_eq!(DurationHistogram::default().read_distribution().quantile(0.5), Duration::ZERO);
    }

    #[test]
    fn readings_of_several_processes_have_the_quantiles_of_all() {
        let [all, fast, slow] = [(); 3].map(|()| DurationHistogram::default());
        for micros in 1..=1000 {
            let took = Duration::from_micros(micros);
            all.record_duration(took);
            let part = if micros <= 900 { &fast } else { &slow };
            part.record_duration(took);
        }
        let mut merged = fast.read_distribution();
        let sent = slow.read_distribution();
        merged.merge(
            &DurationDistribution::from_classes(&sent.occupied_classes(), sent.sum()).expect("classes"),
        );
        assert_eq!(merged, all.read_distribution());
        let wrong = |class, count| {
            DurationDistribution::from_classes(&[DurationClass { class, count }; 2], Duration::ZERO)
        };
        assert_eq!(wrong(u32::MAX, 1), None);
        assert_eq!(wrong(1, u64::MAX), None);
        assert_eq!(wrong(1, 1).expect("classes").count(), 2);
    }

    #[test]
    fn threads_lose_nothing() {
        let histogram = DurationHistogram::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..10_000).for_each(|nanos| histogram.record_duration(Duration::from_nanos(nanos)))
                });
            }
        });
        assert_eq!(histogram.read_distribution().count(), 40_000);
    }
}
