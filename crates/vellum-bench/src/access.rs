//! The access log of a mount: reads its lines, and adds them up.
//!
//! Invariant: a line that is damaged is counted and reported with its number, never guessed at. Memory is bounded: at
//! most [`FILES_MAX`] files are counted separately, the rest count as one.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;
use vellum_host::DurationHistogram;

mod line;

pub use line::{LoggedRequest, RequestedFile};

/// Files that are counted separately.
const FILES_MAX: usize = 100_000;

/// Damaged lines that are kept; all are counted.
const DAMAGED_MAX: usize = 10;

/// What stands in the log where a reader was too slow.
const DROPPED: &str = "# lines were dropped";

/// Whose requests count.
#[derive(Debug, Clone, Copy, Default)]
pub struct AccessFilter {
    /// Of this user only.
    pub uid: Option<u32>,
    /// Of this process only.
    pub pid: Option<u32>,
    /// Not of this process: the one that reads the log.
    pub except_pid: Option<u32>,
}

impl AccessFilter {
    fn matches_request(&self, request: &LoggedRequest<'_>) -> bool {
        self.uid.is_none_or(|uid| uid == request.uid)
            && self.pid.is_none_or(|pid| pid == request.pid)
            && self.except_pid != Some(request.pid)
    }
}

/// One kind of request, over some time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OperationSummary {
    /// What was asked.
    pub operation: String,
    /// How often.
    pub count: u64,
    /// How often in vain.
    pub failed: u64,
    /// Seconds that all took together.
    pub total: f64,
    /// Seconds that one took on average.
    pub average: f64,
    /// Seconds that half did not exceed.
    pub p50: f64,
    /// Seconds that 99 of 100 did not exceed.
    pub p99: f64,
    /// Its part of the time of all.
    pub share: f64,
}

/// A file that took long.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SlowFile {
    /// The node, and the name in it.
    pub about: String,
    /// How often it was asked about.
    pub count: u64,
    /// Seconds that this took together.
    pub total: f64,
    /// The longest of them.
    pub longest: f64,
}

/// A line that is damaged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DamagedLine {
    /// Its number, from 1.
    pub line: u64,
    /// What is there of it.
    pub text: String,
}

/// The sums of some lines.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AccessSummary {
    /// Requests that count.
    pub requests: u64,
    /// By kind; those that took longest together come first.
    pub operations: Vec<OperationSummary>,
    /// The files that took longest together.
    pub slowest: Vec<SlowFile>,
    /// How often the log reports that lines are missing.
    pub dropped: u64,
    /// The first lines that are damaged.
    pub damaged: Vec<DamagedLine>,
    /// How many are.
    pub damaged_lines: u64,
}

#[derive(Default)]
struct OperationTotals {
    times: DurationHistogram,
    longest: Duration,
    failed: u64,
}

#[derive(Default)]
struct FileTotals {
    count: u64,
    total: Duration,
    longest: Duration,
}

/// Lines, as they are read.
#[derive(Default)]
pub struct AccessProfile {
    filter: AccessFilter,
    kinds: HashMap<String, OperationTotals>,
    files: HashMap<String, FileTotals>,
    lines: u64,
    understood: u64,
    dropped: u64,
    damaged: Vec<DamagedLine>,
    damaged_lines: u64,
}

impl AccessProfile {
    /// Nothing yet.
    #[must_use]
    pub fn new(filter: AccessFilter) -> Self {
        Self { filter, ..Self::default() }
    }

    /// Reads the next line, without its end. `whole`: it had one. Gives when its request was answered.
    pub fn read_line(&mut self, line: &[u8], whole: bool) -> Option<f64> {
        self.lines += 1;
        let text = String::from_utf8_lossy(line);
        // A remark of the log itself: a valid line, though it is no request.
        if text == DROPPED {
            self.understood += 1;
            self.dropped += 1;
            return None;
        }
        // A line without its end may go on, whatever it looks like.
        let Some(request) = LoggedRequest::parse_line(&text).filter(|_| whole) else {
            self.damaged_lines += 1;
            if self.damaged.len() < DAMAGED_MAX {
                // Cut, since what is no line may be very long.
                self.damaged.push(DamagedLine { line: self.lines, text: text.chars().take(200).collect() });
            }
            return None;
        };
        self.understood += 1;
        if self.filter.matches_request(&request) {
            self.count_request(&request);
        }
        Some(request.time)
    }

    /// Whether there were lines, none of which is one of an access log.
    #[must_use]
    pub fn has_no_valid_line(&self) -> bool {
        self.lines > 0 && self.understood == 0
    }

    fn count_request(&mut self, request: &LoggedRequest<'_>) {
        // Looked up before an entry is made: that would need an owned name for each line of the log.
        let kind = match self.kinds.get_mut(request.operation) {
            Some(kind) => kind,
            None => self.kinds.entry(request.operation.into()).or_default(),
        };
        kind.times.record_duration(request.took);
        kind.longest = kind.longest.max(request.took);
        kind.failed += u64::from(!request.is_successful());
        // Files that have a place in the full table keep it, and go on being counted.
        let known = self.files.len() < FILES_MAX || self.files.contains_key(request.requested_file());
        let about = if known { request.requested_file() } else { "(others)" };
        let file = match self.files.get_mut(about) {
            Some(file) => file,
            None => self.files.entry(about.into()).or_default(),
        };
        file.count += 1;
        file.total += request.took;
        file.longest = file.longest.max(request.took);
    }

    /// What was read since the last time; `slowest` files are told. Damaged lines are told once.
    pub fn take_summary(&mut self, slowest: usize) -> AccessSummary {
        // The numbers of lines go on: a damaged line is named by its place in the whole log.
        let kinds = std::mem::take(&mut self.kinds);
        let files = std::mem::take(&mut self.files);
        let all: Duration = files.values().map(|file| file.total).sum();
        let mut operations: Vec<_> =
            kinds.into_iter().map(|(operation, kind)| kind.into_summary(operation, all)).collect();
        // By name where times are equal, since the tables have no order: equal logs give equal summaries.
        operations.sort_by(|a, b| b.total.total_cmp(&a.total).then_with(|| a.operation.cmp(&b.operation)));
        let mut files: Vec<_> = files.into_iter().collect();
        files.sort_by(|a, b| b.1.total.cmp(&a.1.total).then_with(|| a.0.cmp(&b.0)));
        let slow = |(about, file): (String, FileTotals)| SlowFile {
            about,
            count: file.count,
            total: file.total.as_secs_f64(),
            longest: file.longest.as_secs_f64(),
        };
        AccessSummary {
            requests: operations.iter().map(|operation| operation.count).sum(),
            operations,
            slowest: files.into_iter().take(slowest).map(slow).collect(),
            dropped: std::mem::take(&mut self.dropped),
            damaged: std::mem::take(&mut self.damaged),
            damaged_lines: std::mem::take(&mut self.damaged_lines),
        }
    }
}

impl OperationTotals {
    fn into_summary(self, operation: String, all: Duration) -> OperationSummary {
        let read = self.times.read_distribution();
        let count = read.count();
        let total = read.sum().as_secs_f64();
        // A class of durations ends later than the longest of them.
        let quantile = |part| read.quantile(part).min(self.longest).as_secs_f64();
        OperationSummary {
            operation,
            count,
            failed: self.failed,
            total,
            average: total / (count.max(1)) as f64,
            p50: quantile(0.5),
            p99: quantile(0.99),
            // Requests that all took no time would otherwise have a share that is not a number.
            share: total / all.as_secs_f64().max(f64::MIN_POSITIVE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        r#"1700000000.250000 [uid:5,gid:6,pid:7] lookup (1,"a.txt"): ok 9,0100644,12 <0.000120>"#;

    #[test]
    fn kinds_and_files_are_counted_and_damage_is_told_with_its_line() {
        let mut profile = AccessProfile::new(AccessFilter::default());
        assert!(!profile.has_no_valid_line(), "nothing was read");
        for micros in 1..=100 {
            let line = format!("1.5 [uid:0,gid:0,pid:1] read (2,4096,0): ok 4096 <0.{micros:06}>");
            assert_eq!(profile.read_line(line.as_bytes(), true), Some(1.5));
        }
        assert!(!profile.has_no_valid_line());
        profile.read_line(LINE.as_bytes(), true);
        profile.read_line(b"# lines were dropped", true);
        profile.read_line(b"1.5 [uid:0,gid:0,pid:1] read (2,40", true);
        profile.read_line(LINE.as_bytes(), false);
        let summary = profile.take_summary(1);
        assert_eq!((summary.requests, summary.dropped, summary.damaged_lines), (101, 1, 2));
        assert_eq!(summary.damaged[0].line, 103);
        assert_eq!(summary.damaged[1].line, 104);
        let read = &summary.operations[0];
        assert_eq!((read.operation.as_str(), read.count), ("read", 100));
        assert!((read.total - 0.00505).abs() < 1e-9);
        assert!(read.p50 >= 50e-6 && read.p50 <= 57e-6 && (99e-6..=100e-6).contains(&read.p99));
        assert!(read.share > 0.97 && read.share < 1.0);
        assert_eq!(summary.slowest.len(), 1);
        assert_eq!(summary.slowest[0].about, "2");
        assert_eq!(profile.take_summary(1).requests, 0);
    }

    #[test]
    fn a_filter_lets_through_one_user_or_process() {
        let any = AccessFilter::default();
        let count = |filter| {
            let mut profile = AccessProfile::new(filter);
            profile.read_line(LINE.as_bytes(), true);
            profile.take_summary(0).requests
        };
        assert_eq!(count(AccessFilter { uid: Some(5), ..any }), 1);
        assert_eq!(count(AccessFilter { uid: Some(0), ..any }), 0);
        assert_eq!(count(AccessFilter { uid: Some(5), pid: Some(8), ..any }), 0);
        assert_eq!(count(AccessFilter { pid: Some(7), ..any }), 1);
        assert_eq!(count(AccessFilter { except_pid: Some(7), ..any }), 0);
        assert_eq!(count(AccessFilter { except_pid: Some(8), ..any }), 1);
    }
}
