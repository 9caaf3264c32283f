//! Objects in a service, through OpenDAL.
//!
//! Invariant: every call ends. What `put_object` and `swap_ref` answer is true even if replies were lost on the way: after
//! an uncertain end the object is read back. Conditions are the service's own: where it has none, the call fails
//! instead of writing unconditionally. Calls block.

mod attempt;
mod body;
mod clock;
mod credentials;
mod exchange;
mod failure;
mod gate;
mod hedge;
mod listing;
mod multipart;
mod no_answer;
mod offline;
mod operator;
mod plain;
mod pool;
mod refs;
mod retry;
mod runtime;
mod transport;
mod unconditional;

use std::future::poll_fn;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_core::Stream;
use opendal::{ErrorKind as DalKind, Operator};
use parking_lot::RwLock;
use vellum_types::{ErrorKind, LookupResult};

use self::clock::ClockLead;
pub use self::credentials::LoginCredentials;
pub use self::failure::describe_clock_lead;
use self::failure::{FailedRequest, FailureClass};
use self::listing::{ListingProgress, list_pages};
use self::multipart::MultipartClient;
pub(crate) use self::multipart::fuzz_decoder as fuzz_part_list;
use self::offline::RequestSwitch;
pub(super) use self::offline::{is_offline, set_offline};
pub(crate) use self::plain::fuzz_upload_record;
pub use self::plain::{InterruptedUpload, PlainObjects, PlainUpload, UploadedFile, list_interrupted_uploads};
use self::pool::RequestPool;
use self::refs::{DELETION_MARKER, KnownRefs};
use self::retry::RequestRetryBudget;
pub(super) use self::retry::wait_before_repeat;
use self::runtime::RunError;
use super::address::ServiceAddress;
use super::bandwidth::BandwidthMeter;
use super::parallel::put_by_folder;
use super::{
    KeyFilter, ObjectInfo, ObjectKey, ObjectSelection, ObjectStore, ObjectVersion, RequestLimits,
    ServiceTraffic, StoreGuarantees, VersionedObject, check_read_length, key, probe,
};
use crate::error::StoreError;

/// Ranged gets worth having under way at once for one caller, a count: what hides 50 ms of latency at 4 MiB each.
const PARALLEL_GETS: usize = 8;

/// A store in a folder of a service.
pub struct ServiceStore {
    address: ServiceAddress,
    credentials: Option<String>,
    limits: RequestLimits,
    location: String,
    operator: RwLock<Operator>,
    /// For uploads in parts that a later run can continue; none if the service has others.
    multipart: RwLock<Option<MultipartClient>>,
    budget: RequestRetryBudget,
    switch: RequestSwitch,
    bandwidth: Arc<BandwidthMeter>,
    pool: Arc<RequestPool>,
    known_refs: KnownRefs,
    clock: ClockLead,
    /// Whether refs are deleted by a marker, since the service ignores the condition of a deletion.
    uses_deletion_markers: AtomicBool,
}

/// What a request is for, for messages.
#[derive(Clone, Copy)]
struct RequestSubject<'a> {
    action: &'static str,
    key: &'a str,
}

/// How one try of a request ended.
type Attempt<T> = Result<T, FailedRequest>;

impl ServiceStore {
    /// A store at an address, whose requests can be switched off in the folder `cache`. Nothing is sent.
    pub fn open(
        address: ServiceAddress,
        credentials: Option<&str>,
        limits: &RequestLimits,
        cache: Option<&Path>,
    ) -> Result<Self, StoreError> {
        let bandwidth = Arc::new(BandwidthMeter::new(cache));
        let location = address.to_string();
        let pool = RequestPool::for_store(&location, credentials);
        let operator = operator::build_operator(&address, credentials, limits, &bandwidth, &pool.traffic)?;
        let multipart = operator::build_multipart_client(&address, credentials, &operator)?;
        Ok(Self {
            bandwidth,
            location,
            credentials: credentials.map(str::to_owned),
            limits: limits.clone(),
            operator: RwLock::new(operator),
            multipart: RwLock::new(multipart),
            budget: RequestRetryBudget::new(limits.first_answer_max),
            switch: RequestSwitch::new(cache, limits),
            pool,
            known_refs: KnownRefs::default(),
            clock: ClockLead::default(),
            uses_deletion_markers: AtomicBool::new(false),
            address,
        })
    }

    /// Requests that were repeated so far.
    #[must_use]
    pub fn repeat_count(&self) -> u64 {
        self.budget.repeat_count()
    }

    /// Whether uploads in parts can be continued by a later run.
    fn can_resume_uploads(&self) -> bool {
        self.multipart.read().is_some()
    }

    fn wrap_run_error(&self, subject: RequestSubject<'_>, error: RunError) -> StoreError {
        let (kind, message) = match error {
            RunError::Interrupted => (ErrorKind::Interrupted, "interrupted"),
            RunError::NoRuntime => (ErrorKind::Io, "the system has no threads for requests"),
        };
        self.service_error(subject, kind, message.to_owned())
    }

    fn service_error(&self, subject: RequestSubject<'_>, kind: ErrorKind, message: String) -> StoreError {
        StoreError::Service {
            place: self.location.clone(),
            key: subject.key.to_owned(),
            action: subject.action,
            kind,
            message,
        }
    }

    /// The error of a request that failed for good.
    fn wrap_failure(&self, subject: RequestSubject<'_>, failed: &FailedRequest) -> StoreError {
        // Only an answer proves that an object is missing. A failure of the transport does not, whatever OpenDAL
        // makes of it.
        let is_missing = failed.exchange.failure.is_none() && failed.error.kind() == DalKind::NotFound;
        // Without its bucket, a store would look like a new one.
        if is_missing && !failed.is_missing_bucket() {
            return StoreError::NotFound { place: self.location.clone(), key: subject.key.to_owned() };
        }
        let mut message = failed.describe();
        if failed.classify() == FailureClass::CredentialsRefused {
            message.push_str(&credentials::advise_renewal(self.credentials.as_deref()));
        }
        self.service_error(subject, failed.error_kind(), message)
    }

    /// The output of a request, or `missing` if there is no such object.
    fn output_or<T>(
        &self,
        subject: RequestSubject<'_>,
        output: Attempt<T>,
        missing: T,
    ) -> Result<T, StoreError> {
        match output.map_err(|failed| self.wrap_failure(subject, &failed)) {
            Err(StoreError::NotFound { .. }) => Ok(missing),
            output => output,
        }
    }

    /// The error of an object that has more than `max` bytes. One more request, for the message only.
    fn too_large_error(&self, key: &ObjectKey, max: u64) -> Result<StoreError, StoreError> {
        // The object may have been replaced by a smaller one since.
        let size = self.object_size(key)?.max(max.saturating_add(1));
        Ok(StoreError::TooLarge { place: self.location.clone(), key: key.to_string(), size, max })
    }

    fn exists_error(&self, key: &ObjectKey) -> StoreError {
        StoreError::Exists { place: self.location.clone(), key: key.to_string() }
    }

    /// Whether an object has exactly these bytes; read only if its length is right.
    fn has_bytes(&self, key: &ObjectKey, bytes: &[u8]) -> Result<bool, StoreError> {
        match self.object_size(key).none_if_missing()? {
            Some(size) if size == bytes.len() as u64 => Ok(self.get_object(key, size)? == bytes),
            Some(_) | None => Ok(false),
        }
    }
}

impl ObjectStore for ServiceStore {
    fn describe_location(&self) -> String {
        self.location.clone()
    }

    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        let subject = RequestSubject { action: "read", key: key.as_str() };
        let read = self.repeat_read(subject, max, |operator| {
            let path = key.to_string();
            async move { body::read_object_range(&operator, &path, .., max).await }
        })?;
        match read {
            Ok(Some(object)) => {
                self.known_refs.remember(key, &object);
                if self.is_deletion_marker(&object.bytes) {
                    return Err(StoreError::NotFound { place: self.location.clone(), key: key.to_string() });
                }
                Ok(object.bytes)
            }
            Ok(None) => Err(self.too_large_error(key, max)?),
            Err(failed) => Err(self.wrap_failure(subject, &failed)),
        }
    }

    fn get_object_if_changed(
        &self,
        key: &ObjectKey,
        max: u64,
        known: Option<&ObjectVersion>,
    ) -> Result<Option<VersionedObject>, StoreError> {
        let subject = RequestSubject { action: "read", key: key.as_str() };
        let read = self.repeat_read(subject, max, |operator| {
            let path = key.to_string();
            let known = known.cloned();
            async move { body::read_changed_object(&operator, &path, known, max).await }
        })?;
        match read {
            Ok(Some(object)) => Ok(Some(object)),
            Ok(None) => Err(self.too_large_error(key, max)?),
            Err(failed) if failed.exchange.status == Some(http::StatusCode::NOT_MODIFIED) => Ok(None),
            Err(failed) => Err(self.wrap_failure(subject, &failed)),
        }
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        let bytes = self.get_range_up_to(key, offset, len)?;
        check_read_length(self, key, bytes, len)
    }

    fn get_range_up_to(&self, key: &ObjectKey, offset: u64, max: u64) -> Result<Vec<u8>, StoreError> {
        let subject = RequestSubject { action: "read", key: key.as_str() };
        // No object is that long: its end comes first.
        let end = offset.saturating_add(max);
        let read = self.repeat_read(subject, max, |operator| {
            let path = key.to_string();
            async move { body::read_object_range(&operator, &path, offset..end, max).await }
        })?;
        match read {
            Ok(Some(object)) => Ok(object.bytes),
            Ok(None) => Err(StoreError::Length {
                place: self.location.clone(),
                key: key.to_string(),
                wanted: max,
                got: max.saturating_add(1),
            }),
            // Status 416: the object ends before `offset`.
            Err(failed) if failed.error.kind() == DalKind::RangeNotSatisfied => Ok(Vec::new()),
            Err(failed) => match self.wrap_failure(subject, &failed) {
                error @ StoreError::NotFound { .. } => Err(error),
                // Some services answer a range beyond the end with an error of their own.
                error => match self.object_size(key) {
                    Ok(size) if size <= offset => Ok(Vec::new()),
                    Ok(_) | Err(_) => Err(error),
                },
            },
        }
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        let subject = RequestSubject { action: "read", key: key.as_str() };
        let found = self.repeat(subject, &self.pool.reads, |operator| {
            let path = key.to_string();
            async move { operator.stat(&path).await }
        })?;
        match found {
            Ok(metadata) => Ok(metadata.content_length()),
            Err(failed) => Err(self.wrap_failure(subject, &failed)),
        }
    }

    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        let subject = RequestSubject { action: "write", key: key.as_str() };
        // One copy for all tries: clones of it share the memory.
        let body = Bytes::copy_from_slice(bytes);
        let mut schedule = self.budget.begin(self.limits.retry_for);
        let mut can_reload = true;
        // Whether an earlier try may have stored the object although it seemed to fail.
        let mut is_uncertain = false;
        loop {
            let path = key.to_string();
            let body = body.clone();
            let written = self.attempt(subject, &self.pool.writes, |operator| async move {
                operator.write_with(&path, body).if_not_exists(true).await
            })?;
            let Err(failed) = written else { return Ok(()) };
            match failed.classify() {
                // An earlier try may have succeeded and lost its answer. Equal bytes under an immutable name are
                // that object.
                FailureClass::ConditionFailed if is_uncertain && self.has_bytes(key, bytes)? => return Ok(()),
                FailureClass::ConditionFailed => return Err(self.exists_error(key)),
                // The service may have stored the object although the request failed: a status of 500, or a
                // connection that was cut, does not tell.
                FailureClass::Transient | FailureClass::Garbled | FailureClass::Conflict => {
                    is_uncertain = true
                }
                // The service refused before it stored anything.
                FailureClass::Throttled | FailureClass::CredentialsRefused | FailureClass::Final => {}
            }
            if !self.may_repeat(subject, &failed, &mut schedule, &mut can_reload)? {
                return Err(self.wrap_failure(subject, &failed));
            }
        }
    }

    fn swap_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        self.swap_known_ref(key, expected, new)
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        Ok(self.select_objects(folder, |_| true)?.objects)
    }

    fn select_objects(&self, folder: &str, is_wanted: KeyFilter) -> Result<ObjectSelection, StoreError> {
        let folder = key::check_folder(folder)?;
        let path = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let uses_markers = self.uses_deletion_markers.load(Ordering::Relaxed);
        // Shared by all tries, so that each goes on where the one before has ended.
        let progress = ListingProgress::new(is_wanted, uses_markers.then_some(DELETION_MARKER.len() as u64));
        let subject = RequestSubject { action: "list", key: folder };
        let listed = self.repeat(subject, &self.pool.writes, |operator| {
            let path = path.clone();
            let progress = Arc::clone(&progress);
            async move { list_pages(&operator, &path, &progress).await }
        })?;
        // WebDAV answers 404 for a folder that does not exist. Object services return an empty listing.
        self.output_or(subject, listed, ())?;
        let selection = progress.lock().take_selection();
        Ok(selection)
    }

    fn holds_objects(&self) -> Result<bool, StoreError> {
        let subject = RequestSubject { action: "list", key: "" };
        let found = self.repeat(subject, &self.pool.writes, |operator| async move {
            // Page by page: whatever else a bucket is used for may be millions of objects.
            let mut listed = operator.lister_with("").recursive(true).await?;
            while let Some(entry) = poll_fn(|context| Pin::new(&mut listed).poll_next(context)).await {
                let entry = entry?;
                if entry.metadata().is_file()
                    // What a probe or the store itself left does not mean that the folder is in use.
                    && !is_in_folder(entry.path(), probe::FOLDER)
                    && !unconditional::is_own_object(entry.path())
                {
                    return Ok(true);
                }
            }
            Ok(false)
        })?;
        self.output_or(subject, found, false)
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        let subject = RequestSubject { action: "delete", key: key.as_str() };
        let deleted = self.repeat(subject, &self.pool.writes, |operator| {
            let path = key.to_string();
            async move { operator.delete(&path).await }
        })?;
        // Also if the deletion failed: it may have been carried out, and the answer lost.
        self.known_refs.forget(key);
        self.output_or(subject, deleted, ())
    }

    fn put_objects(&self, objects: &[(ObjectKey, &[u8])]) -> Result<(), StoreError> {
        put_by_folder(self, objects)
    }

    fn parallel_get_count(&self) -> usize {
        PARALLEL_GETS
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn probe_guarantees(&self) -> Result<StoreGuarantees, StoreError> {
        probe::probe_store(self, &|| {
            let second = Self::open(self.address.clone(), self.credentials.as_deref(), &self.limits, None)?;
            Ok(Box::new(second))
        })
    }

    fn ignore_silence(&self) {
        self.switch.ignore_silence();
    }

    fn service_traffic(&self) -> Option<ServiceTraffic> {
        Some(self.pool.read_traffic())
    }

    fn clock_lead(&self) -> Option<i64> {
        self.clock.read_lead()
    }

    fn adapt_to_guarantees(&self, found: &StoreGuarantees) {
        self.uses_deletion_markers.store(!found.deletes, Ordering::Relaxed);
    }
}

fn is_in_folder(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}
