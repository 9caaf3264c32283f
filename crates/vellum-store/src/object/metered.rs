//! Counts what is asked of a store, and how long it takes, for statistics and for tests of costs.
//!
//! Invariant: it changes no answer. A failed request counts as a request.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use vellum_types::{DurationHistogram, MetricsExposition};

use super::{ObjectInfo, ObjectKey, ObjectStore};
use crate::error::StoreError;

/// Requests and bytes so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestCounts {
    /// Whole and ranged gets, and questions for a size.
    pub gets: u64,
    /// Objects put, one by one or together.
    pub puts: u64,
    /// Waits for durability: a `put_all` of any number is one.
    pub barriers: u64,
    /// Compare-and-swaps.
    pub swaps: u64,
    /// Listings.
    pub lists: u64,
    /// Deletions.
    pub deletes: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
}

#[derive(Default)]
struct RequestMeters {
    gets: AtomicU64,
    puts: AtomicU64,
    barriers: AtomicU64,
    swaps: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

/// How long requests took, by kind.
#[derive(Default)]
struct RequestTimes {
    get: DurationHistogram,
    put: DurationHistogram,
    swap: DurationHistogram,
    list: DurationHistogram,
    delete: DurationHistogram,
}

/// A store that counts.
pub struct MeteredStore {
    inner: Arc<dyn ObjectStore>,
    meters: RequestMeters,
    times: RequestTimes,
}

impl MeteredStore {
    /// Counts what goes through to `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>) -> Self {
        Self { inner, meters: RequestMeters::default(), times: RequestTimes::default() }
    }

    /// What was counted so far.
    #[must_use]
    pub fn counts(&self) -> RequestCounts {
        let read = |meter: &AtomicU64| meter.load(Ordering::Relaxed);
        let meters = &self.meters;
        RequestCounts {
            gets: read(&meters.gets),
            puts: read(&meters.puts),
            barriers: read(&meters.barriers),
            swaps: read(&meters.swaps),
            lists: read(&meters.lists),
            deletes: read(&meters.deletes),
            bytes_in: read(&meters.bytes_in),
            bytes_out: read(&meters.bytes_out),
        }
    }

    /// Tells requests with their times, and bytes.
    pub fn expose(&self, out: &mut MetricsExposition) {
        let RequestTimes { get, put, swap, list, delete } = &self.times;
        let all = [("get", get), ("put", put), ("swap", swap), ("list", list), ("delete", delete)];
        for (kind, times) in all {
            out.histogram("vellum_object_request_seconds", &format!("request=\"{kind}\""), &times.read());
        }
        let counts = self.counts();
        out.counter("vellum_object_received_bytes_total", "", counts.bytes_in);
        out.counter("vellum_object_sent_bytes_total", "", counts.bytes_out);
    }

    fn received(&self, answer: Result<Vec<u8>, StoreError>) -> Result<Vec<u8>, StoreError> {
        add(&self.meters.gets, 1);
        if let Ok(bytes) = &answer {
            add(&self.meters.bytes_in, bytes.len() as u64);
        }
        answer
    }
}

fn add(meter: &AtomicU64, count: u64) {
    meter.fetch_add(count, Ordering::Relaxed);
}

fn timed<T>(times: &DurationHistogram, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = work();
    times.record(start.elapsed());
    done
}

impl ObjectStore for MeteredStore {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn directory(&self) -> Option<&Path> {
        self.inner.directory()
    }

    fn get(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        self.received(timed(&self.times.get, || self.inner.get(key, max)))
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        self.received(timed(&self.times.get, || self.inner.get_range(key, offset, len)))
    }

    fn size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        add(&self.meters.gets, 1);
        timed(&self.times.get, || self.inner.size(key))
    }

    fn put(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        add(&self.meters.puts, 1);
        add(&self.meters.barriers, 1);
        add(&self.meters.bytes_out, bytes.len() as u64);
        timed(&self.times.put, || self.inner.put(key, bytes))
    }

    fn put_all(&self, objects: &[(ObjectKey, &[u8])]) -> Result<(), StoreError> {
        add(&self.meters.puts, objects.len() as u64);
        add(&self.meters.barriers, 1);
        add(&self.meters.bytes_out, objects.iter().map(|(_, bytes)| bytes.len() as u64).sum());
        timed(&self.times.put, || self.inner.put_all(objects))
    }

    fn swap(&self, key: &ObjectKey, expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<(), StoreError> {
        add(&self.meters.swaps, 1);
        add(&self.meters.bytes_out, new.map_or(0, <[u8]>::len) as u64);
        timed(&self.times.swap, || self.inner.swap(key, expected, new))
    }

    fn list(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        add(&self.meters.lists, 1);
        timed(&self.times.list, || self.inner.list(folder))
    }

    fn list_names(&self, folder: &str) -> Result<Vec<ObjectKey>, StoreError> {
        add(&self.meters.lists, 1);
        timed(&self.times.list, || self.inner.list_names(folder))
    }

    fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        add(&self.meters.deletes, 1);
        timed(&self.times.delete, || self.inner.delete(key))
    }

    fn parallel_gets(&self) -> usize {
        self.inner.parallel_gets()
    }

    fn keep_reserve(&self) {
        self.inner.keep_reserve();
    }

    fn release_reserve(&self) {
        self.inner.release_reserve();
    }

    fn metered(&self) -> Option<&MeteredStore> {
        Some(self)
    }
}
