//! What a bench found: rows with the figure of every run, curves, and on what machine.
//!
//! Invariant: the same shape for every bench, so that any two reports of one bench can be compared, drawn and kept. It
//! is written as JSON (docs/json.md) with the version of all results; another version is refused when it is read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vellum_types::ErrorKind;

use crate::error::{BenchError, Result};
use crate::expectation::GradedFigure;
use crate::machine::MachineDescription;
use crate::statistics::RunSummary;

/// Version of JSON results; see docs/json.md.
pub const VERSION: u64 = 1;

/// Whether more is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BetterDirection {
    /// Rates.
    Higher,
    /// Times, and sizes.
    Lower,
}

/// One thing that was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchRow {
    /// What: "big write".
    pub name: String,
    /// Of the figures: "MiB/s".
    pub unit: String,
    /// Whether more is better.
    pub better: BetterDirection,
    /// The figure of each run.
    pub runs: Vec<f64>,
    /// How it does against what was expected, where something was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graded: Option<GradedFigure>,
}

impl BenchRow {
    /// A row without figures yet.
    #[must_use]
    pub fn new(name: &str, unit: &str, better: BetterDirection) -> Self {
        Self { name: name.into(), unit: unit.into(), better, runs: Vec::new(), graded: None }
    }

    /// The statistics of its runs.
    #[must_use]
    pub fn summarize_runs(&self) -> Option<RunSummary> {
        RunSummary::from_figures(&self.runs)
    }
}

/// One line of a chart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchCurve {
    /// What it shows.
    pub name: String,
    /// What stands below: "s", "files", "bytes".
    pub x_unit: String,
    /// What stands beside: "MiB/s", "s".
    pub y_unit: String,
    /// The points, by x.
    pub points: Vec<(f64, f64)>,
}

/// All that a bench found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    /// Which bench: "filesystem".
    pub bench: String,
    /// What was measured: a path and its filesystem, or a store.
    pub target: BTreeMap<String, String>,
    /// Where.
    pub machine: MachineDescription,
    /// With which numbers.
    pub parameters: BTreeMap<String, u64>,
    /// The figures.
    pub rows: Vec<BenchRow>,
    /// Throughput while time passes, of the last run.
    #[serde(default)]
    pub timelines: Vec<BenchCurve>,
    /// Cost against files or bytes.
    #[serde(default)]
    pub scaling: Vec<BenchCurve>,
}

impl BenchReport {
    /// A report without figures yet.
    #[must_use]
    pub fn new(bench: &str, target: BTreeMap<String, String>, parameters: &[(&str, u64)]) -> Self {
        Self {
            bench: bench.into(),
            target,
            machine: MachineDescription::measure_current(),
            parameters: parameters.iter().map(|(name, value)| ((*name).into(), *value)).collect(),
            rows: Vec::new(),
            timelines: Vec::new(),
            scaling: Vec::new(),
        }
    }

    /// Adds the figure of one more run to a row, which is made when it is the first.
    pub fn add_figure(&mut self, name: &str, unit: &str, better: BetterDirection, figure: f64) {
        let place = self.rows.iter().position(|row| row.name == name);
        let row = match place.and_then(|place| self.rows.get_mut(place)) {
            Some(row) => row,
            // At the end, so that rows keep the order in which they were measured.
            None => self.rows.push_mut(BenchRow::new(name, unit, better)),
        };
        row.runs.push(figure);
    }

    /// Adds a rate: how many a second.
    pub fn add_rate(&mut self, name: &str, unit: &str, amount: f64, seconds: f64) {
        // A clock that stood still measures nothing; a rate without end would spoil every comparison.
        self.add_figure(name, unit, BetterDirection::Higher, amount / seconds.max(1e-9));
    }

    /// The row of this name.
    #[must_use]
    pub fn find_row(&self, name: &str) -> Option<&BenchRow> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// Reads what `--json` wrote; `name` is of the file, for messages.
    pub fn parse_json(name: &str, json: &[u8]) -> Result<Self> {
        let refuse = |reason: String, kind| BenchError::Format { name: name.into(), reason, kind };
        // At first only the version is read: another one may have other fields, and has to be refused for the
        // right reason.
        let value: serde_json::Value = serde_json::from_slice(json)
            .map_err(|error| refuse(format!("it is not JSON: {error}"), ErrorKind::Corrupt))?;
        match value.get("version").and_then(serde_json::Value::as_u64) {
            Some(VERSION) => {}
            Some(other) => {
                let reason = format!("it has version {other}, and this Vellum knows version {VERSION}");
                return Err(refuse(reason, ErrorKind::Unsupported));
            }
            None => return Err(refuse("it has no version".into(), ErrorKind::Corrupt)),
        }
        serde_json::from_value(value)
            .map_err(|error| refuse(format!("no bench wrote it: {error}"), ErrorKind::Corrupt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(report: &BenchReport, version: u64) -> Vec<u8> {
        let mut value = serde_json::to_value(report).unwrap();
        value["version"] = version.into();
        serde_json::to_vec(&value).unwrap()
    }

    #[test]
    fn what_was_written_is_read_and_another_version_is_refused() {
        let mut report = BenchReport::new("filesystem", BTreeMap::new(), &[("runs", 2)]);
        report.add_rate("stat", "op/s", 10.0, 2.0);
        report.add_rate("stat", "op/s", 10.0, 4.0);
        assert_eq!(report.find_row("stat").unwrap().runs, [5.0, 2.5]);
        assert_eq!(BenchReport::parse_json("a", &written(&report, 1)).unwrap(), report);
        let error = BenchReport::parse_json("a.json", &written(&report, 2)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("a.json") && error.to_string().contains("version 2"), "{error}");
    }

    #[test]
    fn what_no_bench_wrote_is_refused() {
        for text in
            ["", "{", "[]", "{}", "{\"version\":1}", "{\"version\":\"1\"}", "{\"version\":1,\"rows\":3}"]
        {
            assert_eq!(
                BenchReport::parse_json("x", text.as_bytes()).unwrap_err().kind(),
                ErrorKind::Corrupt,
                "{text}"
            );
        }
    }
}
