//! What a workload gave, of each host and of all as one.
//!
//! Invariant: latencies of several hosts and runs are added class by class, and percentiles are those of all operations;
//! none is an average of others. The time of all hosts is from the first one's begin to the last one's end.

use std::time::Duration;

use serde::Serialize;
use vellum_host::DurationDistribution;

use super::workload::ClusterWorkload;

const MIB: f64 = (1 << 20) as f64;

/// How long operations took, milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LatencyPercentiles {
    /// Half of them took no longer.
    pub p50: f64,
    /// 95 % of them.
    pub p95: f64,
    /// 99 % of them.
    pub p99: f64,
    /// All of them.
    pub max: f64,
}

/// Figures of one host, or of all.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClusterBenchFigures {
    /// Operations that succeeded.
    pub operations: u64,
    /// Bytes that they read or wrote.
    pub bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// How the first of them failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// The time that they took together.
    pub seconds: f64,
    /// Operations in a second.
    pub operations_per_second: f64,
    /// MiB in a second.
    pub mib_per_second: f64,
    /// How long each took.
    pub latency_ms: LatencyPercentiles,
}

/// Figures of a host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HostFigures {
    /// Its name.
    pub host: String,
    /// What it did.
    #[serde(flatten)]
    pub figures: ClusterBenchFigures,
}

/// Figures of a workload, over all runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkloadFigures {
    /// Which.
    pub workload: ClusterWorkload,
    /// The row that it is in the report.
    pub row: &'static str,
    /// All hosts as one.
    pub whole: ClusterBenchFigures,
    /// Each host that took part to the end.
    pub hosts: Vec<HostFigures>,
}

/// What is added up until figures are made.
#[derive(Debug, Clone, Default)]
pub(super) struct FigureSum {
    pub latencies: DurationDistribution,
    pub operations: u64,
    pub bytes: u64,
    pub errors: u64,
    pub first_error: Option<String>,
    pub longest: Duration,
    pub seconds: f64,
}

impl FigureSum {
    /// Adds operations that took `seconds` more.
    pub fn add(&mut self, more: &Self) {
        self.latencies.merge(&more.latencies);
        // The numbers come from other machines: a wrong one must not end the bench.
        self.operations = self.operations.saturating_add(more.operations);
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.errors = self.errors.saturating_add(more.errors);
        if self.first_error.is_none() {
            self.first_error.clone_from(&more.first_error);
        }
        self.longest = self.longest.max(more.longest);
        self.seconds += more.seconds;
    }

    pub fn to_figures(&self) -> ClusterBenchFigures {
        // A class of durations ends later than the longest of them.
        let quantile = |part| to_ms(self.latencies.quantile(part).min(self.longest));
        // A clock that stood still measures nothing; a rate without end would spoil every comparison.
        let seconds = self.seconds.max(1e-9);
        ClusterBenchFigures {
            operations: self.operations,
            bytes: self.bytes,
            errors: self.errors,
            first_error: self.first_error.clone(),
            seconds: self.seconds,
            operations_per_second: self.operations as f64 / seconds,
            mib_per_second: self.bytes as f64 / MIB / seconds,
            latency_ms: LatencyPercentiles {
                p50: quantile(0.5),
                p95: quantile(0.95),
                p99: quantile(0.99),
                max: to_ms(self.longest),
            },
        }
    }
}

fn to_ms(took: Duration) -> f64 {
    took.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use vellum_host::DurationHistogram;

    use super::*;

    fn sum_of(micros: impl Iterator<Item = u64>) -> FigureSum {
        let histogram = DurationHistogram::default();
        let mut longest = 0;
        micros.for_each(|micros| {
            histogram.record_duration(Duration::from_micros(micros));
            longest = longest.max(micros);
        });
        let latencies = histogram.read_distribution();
        FigureSum {
            operations: latencies.count(),
            latencies,
            longest: Duration::from_micros(longest),
            seconds: 2.0,
            ..FigureSum::default()
        }
    }

    #[test]
    fn percentiles_of_two_hosts_are_those_of_all_operations() {
        // 990 fast operations here and 10 slow ones there: averages of percentiles would be slow.
        let mut whole = sum_of(std::iter::repeat_n(100, 990));
        whole.add(&FigureSum { errors: 3, seconds: 0.0, ..sum_of(std::iter::repeat_n(50_000, 10)) });
        let figures = whole.to_figures();
        assert_eq!((figures.operations, figures.errors), (1000, 3));
        assert_eq!(figures.operations_per_second, 500.0);
        assert!(figures.latency_ms.p50 < 0.12 && figures.latency_ms.p99 < 0.12, "{figures:?}");
        assert_eq!(figures.latency_ms.max, 50.0);
    }
}
