//! What a filesystem can be expected to do: green, yellow, red.
//!
//! Expectations are parts of the machine's own yardsticks ([`crate::machine::MachineYardsticks`]), so that they hold on a slow
//! machine as on a fast one: data against copying memory, names against the cheapest system call. The parts were
//! recorded on one machine, which every grade names. They are what a local filesystem does; one across a network is
//! expected to be red where it has to ask.

use serde::{Deserialize, Serialize};

use crate::machine::MachineYardsticks;
use crate::report::BenchReport;

/// Where the parts were recorded.
pub const RECORDED_ON: &str = "ext4 on a virtual disk, 2 cores of an Intel Xeon (2026-11)";

/// At least this part of what is expected: green.
const GREEN: f64 = 0.5;

/// At least this part: yellow; else red.
const YELLOW: f64 = 0.1;

/// How a figure does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExpectationGrade {
    /// As good as expected, or half as good.
    Green,
    /// A tenth as good.
    Yellow,
    /// Worse.
    Red,
}

/// A figure against what was expected.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GradedFigure {
    /// How it does.
    pub grade: ExpectationGrade,
    /// What is expected on this machine, in the row's unit.
    pub expected: f64,
    /// Where the expectation was recorded.
    pub recorded_on: String,
}

/// What a row is measured with.
#[derive(Debug, Clone, Copy)]
enum YardstickKind {
    /// A part of the rate at which memory is copied.
    Copy(f64),
    /// A part of the rate of the cheapest system call; of as many threads as there are cores.
    Calls(f64),
}

/// The rows that have expectations: medians of `vellum bench --runs 9` with nothing else at work, as parts of the
/// yardsticks of the same run.
const EXPECTED: &[(&str, YardstickKind)] = &[
    ("big write", YardstickKind::Copy(0.48)),
    ("big write, flushed", YardstickKind::Copy(0.15)),
    ("big read, cold", YardstickKind::Copy(0.14)),
    ("big read, warm", YardstickKind::Copy(0.65)),
    ("small write", YardstickKind::Calls(0.00036)),
    ("small read, cold", YardstickKind::Calls(0.00065)),
    ("small read, warm", YardstickKind::Calls(0.0029)),
    ("stat", YardstickKind::Calls(0.17)),
    ("create", YardstickKind::Calls(0.00044)),
    ("mkdir", YardstickKind::Calls(0.00053)),
    ("rename", YardstickKind::Calls(0.015)),
    ("readdir", YardstickKind::Calls(0.28)),
    ("unlink", YardstickKind::Calls(0.043)),
    ("rmdir", YardstickKind::Calls(0.0037)),
    ("fsync", YardstickKind::Calls(0.0015)),
];

/// The grade of a rate.
#[must_use]
pub fn grade_rate(rate: f64, expected: f64) -> ExpectationGrade {
    // Without the minimum, a yardstick of 0 would give a part that is no number.
    match rate / expected.max(f64::MIN_POSITIVE) {
        part if part >= GREEN => ExpectationGrade::Green,
        part if part >= YELLOW => ExpectationGrade::Yellow,
        _ => ExpectationGrade::Red,
    }
}

/// Grades the rows of a report that something is expected of.
pub fn grade_report(report: &mut BenchReport) {
    let yardsticks = report.machine.yardsticks;
    for row in &mut report.rows {
        let yard = EXPECTED.iter().find(|(name, _)| *name == row.name).map(|(_, yard)| *yard);
        // Other benches have rows of which nothing is expected, and steps that were left out have no runs.
        let (Some(yard), Some(summary)) = (yard, row.summarize_runs()) else { continue };
        let expected = yard.expected_rate(yardsticks);
        row.graded = Some(GradedFigure {
            grade: grade_rate(summary.median, expected),
            expected,
            recorded_on: RECORDED_ON.into(),
        });
    }
}

impl YardstickKind {
    fn expected_rate(self, yardsticks: MachineYardsticks) -> f64 {
        match self {
            Self::Copy(part) => part * yardsticks.copy,
            Self::Calls(part) => part * yardsticks.calls,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::report::BetterDirection;

    #[test]
    fn half_of_what_is_expected_is_green_and_a_tenth_is_yellow() {
        assert_eq!(grade_rate(50.0, 100.0), ExpectationGrade::Green);
        assert_eq!(grade_rate(49.0, 100.0), ExpectationGrade::Yellow);
        assert_eq!(grade_rate(10.0, 100.0), ExpectationGrade::Yellow);
        assert_eq!(grade_rate(9.0, 100.0), ExpectationGrade::Red);
        assert_eq!(grade_rate(1.0, 0.0), ExpectationGrade::Green);
    }

    #[test]
    fn a_slow_machine_is_expected_to_do_less() {
        let mut report = BenchReport::new("filesystem", BTreeMap::new(), &[]);
        report.add_figure("big read, warm", "MiB/s", BetterDirection::Higher, 1000.0);
        report.add_figure("of which nothing is expected", "op/s", BetterDirection::Higher, 1.0);
        let mut expected = |copy| {
            report.machine.yardsticks = MachineYardsticks { copy, calls: 1e6 };
            grade_report(&mut report);
            report.rows[0].graded.clone().unwrap()
        };
        let slow = expected(1000.0);
        let fast = expected(50_000.0);
        assert_eq!((slow.grade, fast.grade), (ExpectationGrade::Green, ExpectationGrade::Red));
        assert!(slow.expected < fast.expected);
        assert_eq!(report.rows[1].graded, None);
    }
}
