//! Counts requests to a store and their latency, for statistics and for tests of costs.
//!
//! Invariant: it changes no answer. A failed request counts as a request.

use std::fmt::{self, Display};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use vellum_host::DurationHistogram;
use vellum_host::MetricsExposition;

use super::{
    KeyFilter, ObjectInfo, ObjectKey, ObjectRename, ObjectSelection, ObjectStore, ObjectVersion,
    RenameObjects, VersionedObject,
};
use crate::error::StoreError;

/// Requests and bytes so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestCounts {
    /// Whole and ranged gets, and questions for a size.
    pub gets: u64,
    /// Objects put, one by one or together.
    pub puts: u64,
    /// Waits for durability: a call of `put_objects` is one, whatever the number of objects.
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

    /// Returns the current counts.
    #[must_use]
    pub fn request_counts(&self) -> RequestCounts {
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

    /// Writes the latency of requests, and the bytes that were transferred.
    pub fn expose_metrics(&self, out: &mut MetricsExposition) {
        let RequestTimes { get, put, swap, list, delete } = &self.times;
        let all = [("get", get), ("put", put), ("swap", swap), ("list", list), ("delete", delete)];
        for (kind, times) in all {
            out.write_histogram(
                "vellum_object_request_seconds",
                &format!("request=\"{kind}\""),
                &times.read_distribution(),
            );
        }
        let counts = self.request_counts();
        out.write_counter("vellum_object_received_bytes_total", "", counts.bytes_in);
        out.write_counter("vellum_object_sent_bytes_total", "", counts.bytes_out);
    }

    fn count_received(&self, answer: Result<Vec<u8>, StoreError>) -> Result<Vec<u8>, StoreError> {
        // A request that fails has been sent all the same, so it counts.
        add_to_meter(&self.meters.gets, 1);
        if let Ok(bytes) = &answer {
            add_to_meter(&self.meters.bytes_in, bytes.len() as u64);
        }
        answer
    }
}

fn add_to_meter(meter: &AtomicU64, count: u64) {
    meter.fetch_add(count, Ordering::Relaxed);
}

/// Measures a request, and reports it to the log.
fn measure_request<T>(
    times: &DurationHistogram,
    request: &'static str,
    object: impl Display,
    work: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let start = Instant::now();
    let done = work();
    let elapsed = start.elapsed();
    times.record_duration(elapsed);
    match &done {
        Ok(_) => tracing::trace!(request, %object, ?elapsed, "store request"),
        // A missing object, or one that another process changed, is an ordinary answer, so this is not a warning.
        Err(error) => tracing::debug!(request, %object, ?elapsed, %error, "store request failed"),
    }
    done
}

/// Several objects in one request.
struct ObjectCount(usize);

impl Display for ObjectCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} objects", self.0)
    }
}

impl ObjectStore for MeteredStore {
    fn describe_location(&self) -> String {
        self.inner.describe_location()
    }

    fn inner_store(&self) -> Option<&dyn ObjectStore> {
        Some(&*self.inner)
    }

    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        self.count_received(measure_request(&self.times.get, "get", key, || self.inner.get_object(key, max)))
    }

    fn get_object_if_changed(
        &self,
        key: &ObjectKey,
        max: u64,
        known: Option<&ObjectVersion>,
    ) -> Result<Option<VersionedObject>, StoreError> {
        add_to_meter(&self.meters.gets, 1);
        let read = measure_request(&self.times.get, "get if changed", key, || {
            self.inner.get_object_if_changed(key, max, known)
        });
        if let Ok(Some(object)) = &read {
            add_to_meter(&self.meters.bytes_in, object.bytes.len() as u64);
        }
        read
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        self.count_received(measure_request(&self.times.get, "get range", key, || {
            self.inner.get_range(key, offset, len)
        }))
    }

    fn get_range_up_to(&self, key: &ObjectKey, offset: u64, max: u64) -> Result<Vec<u8>, StoreError> {
        self.count_received(measure_request(&self.times.get, "get range", key, || {
            self.inner.get_range_up_to(key, offset, max)
        }))
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        add_to_meter(&self.meters.gets, 1);
        measure_request(&self.times.get, "size", key, || self.inner.object_size(key))
    }

    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        add_to_meter(&self.meters.puts, 1);
        // A single object is a barrier of its own: the call returns when it is durable.
        add_to_meter(&self.meters.barriers, 1);
        add_to_meter(&self.meters.bytes_out, bytes.len() as u64);
        measure_request(&self.times.put, "put", key, || self.inner.put_object(key, bytes))
    }

    fn put_objects(&self, objects: &[(ObjectKey, &[u8])]) -> Result<(), StoreError> {
        add_to_meter(&self.meters.puts, objects.len() as u64);
        add_to_meter(&self.meters.barriers, 1);
        add_to_meter(&self.meters.bytes_out, objects.iter().map(|(_, bytes)| bytes.len() as u64).sum());
        measure_request(&self.times.put, "put", ObjectCount(objects.len()), || {
            self.inner.put_objects(objects)
        })
    }

    fn swap_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        add_to_meter(&self.meters.swaps, 1);
        add_to_meter(&self.meters.bytes_out, new.map_or(0, <[u8]>::len) as u64);
        measure_request(&self.times.swap, "swap", key, || self.inner.swap_ref(key, expected, new))
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        add_to_meter(&self.meters.lists, 1);
        measure_request(&self.times.list, "list", folder, || self.inner.list_objects(folder))
    }

    fn list_keys(&self, folder: &str) -> Result<Vec<ObjectKey>, StoreError> {
        add_to_meter(&self.meters.lists, 1);
        measure_request(&self.times.list, "list", folder, || self.inner.list_keys(folder))
    }

    fn select_objects(&self, folder: &str, is_wanted: KeyFilter) -> Result<ObjectSelection, StoreError> {
        add_to_meter(&self.meters.lists, 1);
        measure_request(&self.times.list, "list", folder, || self.inner.select_objects(folder, is_wanted))
    }

    fn holds_objects(&self) -> Result<bool, StoreError> {
        add_to_meter(&self.meters.lists, 1);
        measure_request(&self.times.list, "list", "", || self.inner.holds_objects())
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        add_to_meter(&self.meters.deletes, 1);
        measure_request(&self.times.delete, "delete", key, || self.inner.delete_object(key))
    }

    fn as_renaming(&self) -> Option<&dyn RenameObjects> {
        // Itself and not the inner store, so that renames are counted as well.
        self.inner.as_renaming().map(|_| self as _)
    }

    fn as_metered(&self) -> Option<&MeteredStore> {
        Some(self)
    }
}

impl RenameObjects for MeteredStore {
    fn rename_objects(&self, renames: &[ObjectRename]) -> Result<Vec<bool>, StoreError> {
        // Offered only if the store that is wrapped can do it.
        let Some(inner) = self.inner.as_renaming() else { return Ok(Vec::new()) };
        add_to_meter(&self.meters.puts, renames.len() as u64);
        add_to_meter(&self.meters.barriers, 1);
        measure_request(&self.times.put, "rename", ObjectCount(renames.len()), || {
            inner.rename_objects(renames)
        })
    }
}
