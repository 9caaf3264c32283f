//! Two reports of one bench: which rows became worse by more than their noise.
//!
//! A row is worse when its median is worse by more than its *tolerance*: the least change that matters, or so many
//! spreads of both sides together, whichever is more. Few runs show no spread that can be relied on, so they need a
//! greater change.

use serde::Serialize;
use vellum_types::ErrorKind;

use crate::error::{BenchError, Result};
use crate::report::{BenchReport, BenchRow, BetterDirection};

/// How many spreads of both sides are noise. The spread is half of the range of the middle half, two thirds of a
/// standard deviation: three are two of these.
const SPREADS: f64 = 3.0;

/// From so many runs on their spread says something.
const RUNS_ENOUGH: usize = 3;

/// The least change that matters where there are fewer.
const TOLERANCE_OF_FEW: f64 = 0.25;

/// What became of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ComparisonVerdict {
    /// As good, or better, or not worse by more than noise.
    #[serde(rename = "OK")]
    Ok,
    /// Worse.
    #[serde(rename = "REGRESSION")]
    Regression,
}

/// One row on both sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparedRow {
    /// What was measured.
    pub name: String,
    /// Of the figures.
    pub unit: String,
    /// Median before.
    pub base: f64,
    /// Median now.
    pub new: f64,
    /// How much better it is now, as a part of the median before; below 0: worse.
    pub change: f64,
    /// How much worse it may be.
    pub tolerance: f64,
    /// What became of it.
    pub verdict: ComparisonVerdict,
}

/// Two reports, compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReportComparison {
    /// What both measured.
    pub bench: String,
    /// The rows that both have.
    pub rows: Vec<ComparedRow>,
    /// Rows that are gone.
    pub only_base: Vec<String>,
    /// Rows that are new.
    pub only_new: Vec<String>,
    /// The two are not of one machine or one target, so that they say little of each other.
    pub elsewhere: bool,
}

impl ReportComparison {
    /// How many rows are worse.
    #[must_use]
    pub fn count_regressions(&self) -> usize {
        self.rows.iter().filter(|row| row.verdict == ComparisonVerdict::Regression).count()
    }
}

/// Compares two reports; `tolerance` is the least change that matters, as a part.
pub fn compare_reports(base: &BenchReport, new: &BenchReport, tolerance: f64) -> Result<ReportComparison> {
    if base.bench != new.bench {
        let reason = format!("it is of the bench '{}', the first of '{}'", new.bench, base.bench);
        return Err(mismatch_error(reason));
    }
    if let Some(name) = find_different_parameter(base, new) {
        return Err(mismatch_error(format!("it was made with another {name} than the first")));
    }
    let compared = |row: &BenchRow| Some(compare_rows(row, new.find_row(&row.name)?, tolerance)).flatten();
    let missing = |from: &BenchReport, side: &BenchReport| {
        let rows = from.rows.iter().filter(|row| side.find_row(&row.name).is_none());
        rows.map(|row| row.name.clone()).collect()
    };
    Ok(ReportComparison {
        bench: base.bench.clone(),
        rows: base.rows.iter().filter_map(compared).collect(),
        only_base: missing(base, new),
        only_new: missing(new, base),
        elsewhere: !base.machine.is_comparable_to(&new.machine) || base.target != new.target,
    })
}

fn mismatch_error(reason: String) -> BenchError {
    BenchError::Format { name: "the second report".into(), reason, kind: ErrorKind::Usage }
}

/// The first parameter in which they differ. How often they ran may differ.
fn find_different_parameter(base: &BenchReport, new: &BenchReport) -> Option<String> {
    // The number of runs may be another one: medians of few and of many can be compared.
    let names = base.parameters.keys().chain(new.parameters.keys()).filter(|name| *name != "runs");
    names.into_iter().find(|name| base.parameters.get(*name) != new.parameters.get(*name)).cloned()
}

/// None where a side has no runs.
fn compare_rows(base: &BenchRow, new: &BenchRow, least: f64) -> Option<ComparedRow> {
    let before = base.summarize_runs()?;
    let now = new.summarize_runs()?;
    // The side with fewer runs decides, since its spread is the one that cannot be relied on.
    let few = base.runs.len().min(new.runs.len()) < RUNS_ENOUGH;
    let least = if few { least.max(TOLERANCE_OF_FEW) } else { least };
    // Spreads that do not depend on each other add up by their squares.
    let noise = SPREADS * before.relative_spread().hypot(now.relative_spread());
    // As ratios, so that half as fast and twice as slow are the same change.
    let ratio = match base.better {
        BetterDirection::Higher => now.median / before.median.max(f64::MIN_POSITIVE),
        BetterDirection::Lower => before.median / now.median.max(f64::MIN_POSITIVE),
    };
    let tolerance = least.max(noise);
    let worse = ratio < 1.0 / (1.0 + tolerance);
    Some(ComparedRow {
        name: base.name.clone(),
        unit: base.unit.clone(),
        base: before.median,
        new: now.median,
        change: ratio - 1.0,
        // The least ratio that is still within the noise lies this far below 1.
        tolerance: 1.0 - 1.0 / (1.0 + tolerance),
        verdict: if worse { ComparisonVerdict::Regression } else { ComparisonVerdict::Ok },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const TOLERANCE: f64 = 0.10;

    fn report(better: BetterDirection, runs: &[f64]) -> BenchReport {
        let mut report = BenchReport::new("filesystem", BTreeMap::new(), &[("threads", 1)]);
        runs.iter().for_each(|figure| report.add_figure("row", "x", better, *figure));
        report
    }

    fn verdict(better: BetterDirection, base: &[f64], new: &[f64]) -> ComparisonVerdict {
        let compared = compare_reports(&report(better, base), &report(better, new), TOLERANCE).unwrap();
        compared.rows[0].verdict
    }

    #[test]
    fn steady_rows_that_are_worse_are_regressions_whichever_way_is_better() {
        let steady = [100.0, 101.0, 99.0];
        let less = [80.0, 81.0, 79.0];
        assert_eq!(verdict(BetterDirection::Higher, &steady, &less), ComparisonVerdict::Regression);
        assert_eq!(verdict(BetterDirection::Higher, &less, &steady), ComparisonVerdict::Ok);
        assert_eq!(verdict(BetterDirection::Lower, &less, &steady), ComparisonVerdict::Regression);
        assert_eq!(verdict(BetterDirection::Lower, &steady, &less), ComparisonVerdict::Ok);
        assert_eq!(verdict(BetterDirection::Higher, &steady, &[95.0, 96.0, 94.0]), ComparisonVerdict::Ok);
    }

    #[test]
    fn rows_that_vary_much_anyway_are_not_regressions() {
        assert_eq!(
            verdict(BetterDirection::Higher, &[100.0, 60.0, 140.0], &[80.0, 81.0, 79.0]),
            ComparisonVerdict::Ok
        );
        // One wild run is no noise: the others agree.
        let wild = [100.0, 101.0, 99.0, 100.0, 900.0];
        assert_eq!(
            verdict(BetterDirection::Higher, &wild, &[80.0, 81.0, 79.0]),
            ComparisonVerdict::Regression
        );
    }

    #[test]
    fn few_runs_need_a_greater_change() {
        assert_eq!(verdict(BetterDirection::Higher, &[100.0], &[85.0]), ComparisonVerdict::Ok);
        assert_eq!(verdict(BetterDirection::Higher, &[100.0], &[50.0]), ComparisonVerdict::Regression);
    }

    #[test]
    fn what_cannot_be_compared_is_refused() {
        let base = report(BetterDirection::Higher, &[1.0]);
        let mut other = base.clone();
        other.parameters.insert("threads".into(), 2);
        let error = compare_reports(&base, &other, TOLERANCE).unwrap_err();
        assert!(error.to_string().contains("another threads"), "{error}");
        let mut other = base.clone();
        other.bench = "objects".into();
        assert_eq!(compare_reports(&base, &other, TOLERANCE).unwrap_err().kind(), ErrorKind::Usage);
        let mut other = base.clone();
        other.rows[0].name = "renamed".into();
        let compared = compare_reports(&base, &other, TOLERANCE).unwrap();
        assert_eq!(
            (&*compared.only_base, &*compared.only_new),
            (&["row".to_owned()][..], &["renamed".to_owned()][..])
        );
    }
}
