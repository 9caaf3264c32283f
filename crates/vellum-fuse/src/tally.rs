//! Statistics of a mount: number and latency of requests by kind, and lines about each request while a process reads
//! them.
//!
//! Invariant: always on, without a lock. A look at the clock can take a tenth of a microsecond: of kinds that are asked
//! often, one of [`EVERY`] is timed, and stands for the rest.

pub mod access_log;
pub mod line;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use vellum_fs::Result;
use vellum_host::DurationHistogram;
use vellum_host::MetricsExposition;

use crate::wire::{FuseOperation, RequestHeader};
use access_log::AccessLog;
use line::{LineDetail, LineNote};

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are called what FUSE calls them")]
pub enum RequestKind {
    Lookup,
    Getattr,
    Setattr,
    Readlink,
    Mknod,
    Mkdir,
    Unlink,
    Rmdir,
    Symlink,
    Rename,
    Link,
    Read,
    Write,
    Fsync,
    Readdir,
    Fsyncdir,
    Statfs,
    Setxattr,
    Getxattr,
    Listxattr,
    Removexattr,
    Fallocate,
    Lseek,
    CopyFileRange,
    Statx,
    Tmpfile,
}

const NAMES: [&str; 26] = [
    "lookup",
    "getattr",
    "setattr",
    "readlink",
    "mknod",
    "mkdir",
    "unlink",
    "rmdir",
    "symlink",
    "rename",
    "link",
    "read",
    "write",
    "fsync",
    "readdir",
    "fsyncdir",
    "statfs",
    "setxattr",
    "getxattr",
    "listxattr",
    "removexattr",
    "fallocate",
    "lseek",
    "copy_file_range",
    "statx",
    "tmpfile",
];

/// The first requests of a kind, all of which are timed: what is rare is told exactly.
const EACH: u64 = 64;

/// After these, one of so many is timed.
const EVERY: u64 = 8;

impl RequestKind {
    fn name(self) -> &'static str {
        NAMES.get(self as usize).copied().unwrap_or("?")
    }
}

/// A request that is served: of which kind, by whom, about which node, and with what.
#[derive(Debug, Clone, Copy)]
pub struct ServedRequest<'a> {
    /// What is asked.
    pub op: RequestKind,
    /// Who asks, and about which node.
    pub head: &'a RequestHeader,
    /// All that is asked: told in the log.
    pub what: &'a FuseOperation<'a>,
}

/// Counters, and the log of requests.
pub struct RequestMetrics {
    counts: [AtomicU64; NAMES.len()],
    times: [DurationHistogram; NAMES.len()],
    failed: AtomicU64,
    read: AtomicU64,
    written: AtomicU64,
    /// The log of requests.
    pub log: Arc<AccessLog>,
    beneath: Box<UnderlyingMetrics>,
}

/// Tells the figures of what lies beneath the mount.
pub type UnderlyingMetrics = dyn Fn(&mut MetricsExposition) + Send + Sync;

impl Default for RequestMetrics {
    fn default() -> Self {
        Self::with_exposer(|_| {})
    }
}

impl std::fmt::Debug for RequestMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestMetrics").field("log", &self.log).finish_non_exhaustive()
    }
}

impl RequestMetrics {
    /// Nothing was done yet. `beneath` tells the figures of what the mount shows.
    pub fn with_exposer(beneath: impl Fn(&mut MetricsExposition) + Send + Sync + 'static) -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; NAMES.len()],
            times: std::array::from_fn(|_| DurationHistogram::default()),
            failed: AtomicU64::new(0),
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
            log: Arc::default(),
            beneath: Box::new(beneath),
        }
    }

    /// Carries out a request, counts it, and logs it if somebody reads the log.
    pub fn observe_request<T: LineDetail>(
        &self,
        request: ServedRequest<'_>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let stands_for = self.sample_request(request.op);
        let logged = self.log.has_reader();
        let started = (stands_for > 0 || logged).then(Instant::now);
        let done = work();
        let timed = started.map(|started| (started, started.elapsed()));
        if let (Some((_, took)), Some(times)) =
            (timed.filter(|_| stands_for > 0), self.times.get(request.op as usize))
        {
            times.record_sample(took, stands_for);
        }
        if done.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(timed) = timed.filter(|_| logged) {
            self.log.append_note(LineNote::new(request, timed, &done));
        }
        done
    }

    /// For how many requests of its kind the next one is timed; 0: it is not.
    fn sample_request(&self, op: RequestKind) -> u64 {
        match self.counts.get(op as usize).map(|count| count.fetch_add(1, Ordering::Relaxed)) {
            None => 0,
            Some(before) if before < EACH => 1,
            Some(before) if before.is_multiple_of(EVERY) => EVERY,
            Some(_) => 0,
        }
    }

    /// Counts bytes that were read.
    pub fn count_read_bytes(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes that were written.
    pub fn count_written_bytes(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// All figures as text, in the format of Prometheus. Kinds of requests that there were none of are left out.
    #[must_use]
    pub fn format_metrics(&self) -> String {
        let mut out = MetricsExposition::default();
        for (name, times) in NAMES.iter().zip(&self.times) {
            let read = times.read_distribution();
            if read.count() > 0 {
                out.write_histogram("vellum_fuse_request_seconds", &format!("operation=\"{name}\""), &read);
            }
        }
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        out.write_counter("vellum_fuse_failed_requests_total", "", load(&self.failed));
        out.write_counter("vellum_fuse_read_bytes_total", "", load(&self.read));
        out.write_counter("vellum_fuse_written_bytes_total", "", load(&self.written));
        (self.beneath)(&mut out);
        out.into_text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    const HEAD: RequestHeader = RequestHeader { opcode: 0, unique: 0, node: 1, uid: 0, gid: 0, pid: 1 };

    #[test]
    fn requests_are_counted_and_failures_too() {
        let tally = RequestMetrics::default();
        let request = ServedRequest {
            op: RequestKind::Lookup,
            head: &HEAD,
            what: &FuseOperation::Lookup { name: b"x" },
        };
        tally.observe_request(request, || Ok(())).unwrap();
        tally.observe_request::<()>(request, || Err(Errno::NOENT.into())).unwrap_err();
        let text = tally.format_metrics();
        assert!(text.contains("vellum_fuse_request_seconds_count{operation=\"lookup\"} 2\n"), "{text}");
        assert!(text.contains("vellum_fuse_failed_requests_total 1\n"), "{text}");
        assert_eq!(RequestKind::CopyFileRange.name(), "copy_file_range");
    }

    #[test]
    fn of_what_is_asked_often_samples_are_timed_and_stand_for_all() {
        let tally = RequestMetrics::default();
        let request = ServedRequest {
            op: RequestKind::Read,
            head: &HEAD,
            what: &FuseOperation::Read { offset: 0, len: 1, direct: false },
        };
        for count in 1..=EACH + 100 * EVERY {
            tally.observe_request(request, || Ok(())).unwrap();
            let recorded = tally.times[RequestKind::Read as usize].read_distribution().count();
            assert!(recorded.abs_diff(count) < EVERY, "{recorded} {count}");
            assert!(count > EACH || recorded == count);
        }
    }
}
