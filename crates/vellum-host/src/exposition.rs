//! Metrics in Prometheus's text exposition format 0.0.4: writing and parsing.
//!
//! Invariant: each name has one `# TYPE` line, before its samples; names and labels are constants of the program, so
//! that nothing has to be escaped. The only units are seconds and bytes.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::histogram::DurationDistribution;

/// Bounds of the exported buckets, as powers of two of nanoseconds: 1 µs to 17 s, each four times the one before.
const POWERS: std::ops::RangeInclusive<u32> = 10..=34;
const POWER_STEP: usize = 2;

/// A text that is being written.
#[derive(Debug, Default)]
pub struct MetricsExposition {
    text: String,
    last: String,
}

impl MetricsExposition {
    /// The text.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }

    /// Adds a counter. `labels` is `key="value"`, or empty.
    pub fn write_counter(&mut self, name: &str, labels: &str, value: impl Into<MetricValue>) {
        self.write_sample("counter", name, labels, value.into());
    }

    /// Adds a gauge.
    pub fn write_gauge(&mut self, name: &str, labels: &str, value: impl Into<MetricValue>) {
        self.write_sample("gauge", name, labels, value.into());
    }

    /// Adds a histogram of durations, in seconds.
    pub fn write_histogram(&mut self, name: &str, labels: &str, read: &DurationDistribution) {
        self.write_type("histogram", name);
        let comma = if labels.is_empty() { "" } else { "," };
        for power in POWERS.step_by(POWER_STEP) {
            let bound = (1_u64 << power) as f64 / 1e9;
            self.write_line(&format!(
                "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {}",
                read.count_below(power)
            ));
        }
        let count = read.count();
        // Prometheus requires a last bucket that has all samples, as many as the count says.
        self.write_line(&format!("{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}"));
        let braced = format_labels(labels);
        self.write_line(&format!("{name}_sum{braced} {}", read.sum().as_secs_f64()));
        self.write_line(&format!("{name}_count{braced} {count}"));
    }

    fn write_sample(&mut self, kind: &str, name: &str, labels: &str, value: MetricValue) {
        self.write_type(kind, name);
        let value = match value {
            MetricValue::Whole(value) => value.to_string(),
            MetricValue::Real(value) => value.to_string(),
        };
        self.write_line(&format!("{name}{} {value}", format_labels(labels)));
    }

    fn write_type(&mut self, kind: &str, name: &str) {
        if self.last != name {
            self.write_line(&format!("# TYPE {name} {kind}"));
            self.last = name.into();
        }
    }

    fn write_line(&mut self, line: &str) {
        // Writing into a String does not fail.
        let _ = writeln!(self.text, "{line}");
    }
}

fn format_labels(labels: &str) -> String {
    if labels.is_empty() { String::new() } else { format!("{{{labels}}}") }
}

/// A value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MetricValue {
    /// A count or a number of bytes.
    Whole(u64),
    /// A duration in seconds.
    Real(f64),
}

impl From<u64> for MetricValue {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<f64> for MetricValue {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

/// Parses the samples of a text, by name and labels. Other lines are skipped.
#[must_use]
pub fn parse_samples(text: &str) -> BTreeMap<String, f64> {
    let sample = |line: &str| {
        // Labels may have blanks in them: the value stands behind the last one.
        let (name, value) = line.rsplit_once(' ')?;
        (!line.starts_with('#')).then_some((name.to_owned(), value.parse().ok()?))
    };
    text.lines().filter_map(sample).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::histogram::DurationHistogram;

    #[test]
    fn what_is_written_is_read() {
        let histogram = DurationHistogram::default();
        for micros in [1, 2, 3000] {
            histogram.record_duration(Duration::from_micros(micros));
        }
        let mut text = MetricsExposition::default();
        text.write_counter("a_total", "kind=\"x\"", 3_u64);
        text.write_counter("a_total", "kind=\"y\"", 4_u64);
        text.write_gauge("b_seconds", "", 0.25);
        text.write_histogram("c_seconds", "kind=\"x\"", &histogram.read_distribution());
        let text = text.into_text();
        assert_eq!(text.matches("# TYPE a_total counter\n").count(), 1, "{text}");
        let samples = parse_samples(&text);
        assert_eq!(samples["a_total{kind=\"y\"}"], 4.0);
        assert_eq!(samples["b_seconds"], 0.25);
        assert_eq!(samples["c_seconds_count{kind=\"x\"}"], 3.0);
        assert_eq!(samples["c_seconds_bucket{kind=\"x\",le=\"0.000001024\"}"], 1.0);
        assert_eq!(samples["c_seconds_bucket{kind=\"x\",le=\"0.000004096\"}"], 2.0);
        assert_eq!(samples["c_seconds_bucket{kind=\"x\",le=\"+Inf\"}"], 3.0);
        assert!((samples["c_seconds_sum{kind=\"x\"}"] - 0.003_003).abs() < 1e-12);
    }

    #[test]
    fn what_is_no_sample_is_left_out() {
        assert!(parse_samples("# HELP x y 1\n\nname\nname value\n").is_empty());
    }
}
