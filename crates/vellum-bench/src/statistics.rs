//! Statistics of a few runs: the median and the spread.
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
    pub fn from_figures(figures: &[f64]) -> Option<Self> {
        let mut sorted = figures.to_vec();
        // A total order, since a report that is read from a file may hold any figures.
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            min: *sorted.first()?,
            lower: interpolate_quantile(&sorted, 0.25),
            median: interpolate_quantile(&sorted, 0.5),
            upper: interpolate_quantile(&sorted, 0.75),
            max: *sorted.last()?,
        })
    }

    /// How far the middle half of the runs reaches from the median, as a part of it. 0 of a single run.
    #[must_use]
    pub fn relative_spread(&self) -> f64 {
        // Nothing is a part of a median of 0.
        if self.median > 0.0 { (self.upper - self.lower) / 2.0 / self.median } else { 0.0 }
    }
}

/// Between two figures it is as far as the quantile stands between their places.
fn interpolate_quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len().saturating_sub(1)) as f64;
    let below = place.floor();
    // Behind the last figure there is none to go towards, and the last one counts.
    let at = |index: f64| sorted.get(index as usize).or(sorted.last()).copied().unwrap_or_default();
    let low = at(below);
    let high = at(below + 1.0);
    low + (high - low) * (place - below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_five_runs_the_third_is_the_median_and_a_wild_one_does_not_move_it() {
        let summary = RunSummary::from_figures(&[5.0, 1.0, 3.0, 1000.0, 2.0]).unwrap();
        assert_eq!((summary.min, summary.lower, summary.median), (1.0, 2.0, 3.0));
        assert_eq!((summary.upper, summary.max), (5.0, 1000.0));
        assert!((summary.relative_spread() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn of_two_runs_the_median_is_between_and_of_none_there_is_none() {
        assert_eq!(RunSummary::from_figures(&[1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(RunSummary::from_figures(&[7.0]).unwrap().relative_spread(), 0.0);
        assert!(RunSummary::from_figures(&[]).is_none());
    }
}
