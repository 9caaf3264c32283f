//! Statistics of a mount: number and latency of requests by kind, and the access log while a process reads it.
//!
//! Invariant: counting is always on, and takes no lock. Reading the clock can take a tenth of a microsecond, so of
//! frequent kinds only one request in [`EVERY`] is timed, and stands for the rest.

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

/// Declares the kinds of requests, each with its name: in one list, so that no kind can be without a name.
macro_rules! request_kinds {
    ($($kind:ident $name:literal)+) => {
        /// A kind of request that is counted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "they have the names of the operations of FUSE")]
        pub enum RequestKind {
            $($kind,)+
        }

        /// The names of the kinds, in their order.
        const NAMES: [&str; [$($name),+].len()] = [$($name),+];
    };
}

request_kinds! {
    Lookup "lookup"
    Getattr "getattr"
    Setattr "setattr"
    Readlink "readlink"
    Mknod "mknod"
    Mkdir "mkdir"
    Unlink "unlink"
    Rmdir "rmdir"
    Symlink "symlink"
    Rename "rename"
    Link "link"
    Read "read"
    Write "write"
    Fsync "fsync"
    Readdir "readdir"
    Fsyncdir "fsyncdir"
    Statfs "statfs"
    Setxattr "setxattr"
    Getxattr "getxattr"
    Listxattr "listxattr"
    Removexattr "removexattr"
    Fallocate "fallocate"
    Lseek "lseek"
    CopyFileRange "copy_file_range"
    Statx "statx"
    Tmpfile "tmpfile"
    Create "create"
    Open "open"
    Lock "lock"
}

/// The first requests of a kind are all timed, so that the figures of rare kinds are exact.
const EACH: u64 = 64;

/// Of the further requests, one in this many is timed.
const EVERY: u64 = 8;

impl RequestKind {
    /// The kind of an operation; None for operations that are not counted.
    #[must_use]
    pub fn from_operation(operation: &FuseOperation<'_>) -> Option<Self> {
        use FuseOperation as Do;
        Some(match operation {
            Do::Lookup { .. } => Self::Lookup,
            Do::Getattr => Self::Getattr,
            Do::Setattr(_) => Self::Setattr,
            Do::Readlink => Self::Readlink,
            Do::Mknod { .. } => Self::Mknod,
            Do::Mkdir { .. } => Self::Mkdir,
            Do::Unlink { .. } => Self::Unlink,
            Do::Rmdir { .. } => Self::Rmdir,
            Do::Symlink { .. } => Self::Symlink,
            Do::Rename { .. } => Self::Rename,
            Do::Link { .. } => Self::Link,
            Do::Read { .. } => Self::Read,
            Do::Write { .. } | Do::WriteStored { .. } => Self::Write,
            Do::Fsync { .. } => Self::Fsync,
            // Programs ask for the same in both cases: the kernel chooses between the two.
            Do::Readdir { .. } | Do::Readdirplus { .. } => Self::Readdir,
            Do::Fsyncdir { .. } => Self::Fsyncdir,
            Do::Statfs => Self::Statfs,
            Do::Setxattr { .. } => Self::Setxattr,
            Do::Getxattr { .. } => Self::Getxattr,
            Do::Listxattr { .. } => Self::Listxattr,
            Do::Removexattr { .. } => Self::Removexattr,
            Do::Fallocate { .. } => Self::Fallocate,
            Do::Lseek { .. } => Self::Lseek,
            Do::CopyFileRange { .. } => Self::CopyFileRange,
            Do::Statx => Self::Statx,
            Do::Tmpfile { .. } => Self::Tmpfile,
            Do::Create { .. } => Self::Create,
            Do::Open { .. } => Self::Open,
            // These do next to nothing.
            Do::Init(_) | Do::Destroy | Do::Forget { .. } | Do::BatchForget(_) => return None,
            Do::Getlk(_) | Do::Setlk { .. } => Self::Lock,
            Do::Opendir | Do::Flush { .. } | Do::Release { .. } | Do::Releasedir => return None,
            Do::Interrupt { .. } | Do::Ioctl { .. } | Do::Unknown => return None,
        })
    }

    fn name(self) -> &'static str {
        NAMES[self as usize]
    }
}

/// A request that is served.
#[derive(Debug, Clone, Copy)]
pub struct ServedRequest<'a> {
    /// The caller, and the node that the request is about.
    pub head: &'a RequestHeader,
    /// The operation with its arguments.
    pub operation: &'a FuseOperation<'a>,
}

/// The counters and the access log of a mount.
pub struct RequestMetrics {
    counts: [AtomicU64; NAMES.len()],
    times: [DurationHistogram; NAMES.len()],
    failed: AtomicU64,
    read: AtomicU64,
    written: AtomicU64,
    /// The access log.
    pub log: Arc<AccessLog>,
    underlying: Box<UnderlyingMetrics>,
}

/// Writes the metrics of what is mounted.
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
    /// All counters at zero. `underlying` writes the metrics of what is mounted.
    pub fn with_exposer(underlying: impl Fn(&mut MetricsExposition) + Send + Sync + 'static) -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; NAMES.len()],
            times: std::array::from_fn(|_| DurationHistogram::default()),
            failed: AtomicU64::new(0),
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
            log: Arc::default(),
            underlying: Box::new(underlying),
        }
    }

    /// Carries out a request, counts it if it is of a counted kind, and logs it if a process reads the log.
    pub fn observe_request<T: LineDetail>(
        &self,
        request: ServedRequest<'_>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Some(kind) = RequestKind::from_operation(request.operation) else { return work() };
        // Before the work: the clock is read only for requests that are timed.
        let stands_for = self.sample_request(kind);
        let logged = self.log.has_reader();
        let started = (stands_for > 0 || logged).then(Instant::now);
        let done = work();
        if done.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        let Some(started) = started else { return done };
        let took = started.elapsed();
        if stands_for > 0 {
            self.times[kind as usize].record_sample(took, stands_for);
        }
        if logged {
            self.log.append_note(LineNote::new(kind, request, started, took, &done));
        }
        done
    }

    /// Counts a request. Returns how many requests of its kind its time stands for; 0 if it is not timed.
    fn sample_request(&self, kind: RequestKind) -> u64 {
        match self.counts[kind as usize].fetch_add(1, Ordering::Relaxed) {
            before if before < EACH => 1,
            before if before.is_multiple_of(EVERY) => EVERY,
            _ => 0,
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

    /// All metrics as text in the format of Prometheus. Kinds without requests are left out.
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
        (self.underlying)(&mut out);
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
        let metrics = RequestMetrics::default();
        let request = ServedRequest { head: &HEAD, operation: &FuseOperation::Lookup { name: b"x" } };
        metrics.observe_request(request, || Ok(())).unwrap();
        metrics.observe_request::<()>(request, || Err(Errno::NOENT.into())).unwrap_err();
        let text = metrics.format_metrics();
        assert!(text.contains("vellum_fuse_request_seconds_count{operation=\"lookup\"} 2\n"), "{text}");
        assert!(text.contains("vellum_fuse_failed_requests_total 1\n"), "{text}");
        assert_eq!(RequestKind::CopyFileRange.name(), "copy_file_range");
    }

    #[test]
    fn of_what_is_asked_often_samples_are_timed_and_stand_for_all() {
        let metrics = RequestMetrics::default();
        let read = FuseOperation::Read { offset: 0, len: 1, direct: false };
        let request = ServedRequest { head: &HEAD, operation: &read };
        for count in 1..=EACH + 100 * EVERY {
            metrics.observe_request(request, || Ok(())).unwrap();
            let recorded = metrics.times[RequestKind::Read as usize].read_distribution().count();
            assert!(recorded.abs_diff(count) < EVERY, "{recorded} {count}");
            assert!(count > EACH || recorded == count);
        }
    }
}
