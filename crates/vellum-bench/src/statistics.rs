//! What a few runs say together: the middle, and how far the runs are apart.
//!
//! Medians and quartiles, because one disturbed run must not move them.

use serde::{Deserialize, Serialize};

/// Five numbers about some runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    /// The least.
    pub min: f64,
    /// A quarter is below.
    pub lower: f64,
    /// Half is below.
    pub median: f64,
    /// Three quarters are below.
    pub upper: f64,
    /// The greatest.
    pub max: f64,
}

impl RunSummary {
    /// The summary of some figures; None of none.
    #[must_use]
    pub fn of(figures: &[f64]) -> Option<Self> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            min: *sorted.first()?,
            lower: quantile(&sorted, 0.25),
            median: quantile(&sorted, 0.5),
            upper: quantile(&sorted, 0.75),
            max: *sorted.last()?,
        })
    }

    /// How far the middle half of the runs reaches from the median, as a part of it. 0 of a single run.
    #[must_use]
    pub fn spread(&self) -> f64 {
        if self.median > 0.0 { (self.upper - self.lower) / 2.0 / self.median } else { 0.0 }
    }
}

/// Between two figures it is as far as the quantile stands between their places.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len().saturating_sub(1)) as f64;
    let below = place.floor();
    let at = |index: f64| sorted.get(index as usize).or(sorted.last()).copied().unwrap_or_default();
    let (low, high) = (at(below), at(below + 1.0));
    low + (high - low) * (place - below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_five_runs_the_third_is_the_median_and_a_wild_one_does_not_move_it() {
        let summary = RunSummary::of(&[5.0, 1.0, 3.0, 1000.0, 2.0]).unwrap();
        assert_eq!((summary.min, summary.lower, summary.median), (1.0, 2.0, 3.0));
        assert_eq!((summary.upper, summary.max), (5.0, 1000.0));
        assert!((summary.spread() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn of_two_runs_the_median_is_between_and_of_none_there_is_none() {
        assert_eq!(RunSummary::of(&[1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(RunSummary::of(&[7.0]).unwrap().spread(), 0.0);
        assert!(RunSummary::of(&[]).is_none());
    }
}
