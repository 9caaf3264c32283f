//! Plain objects through OpenDAL.
//!
//! Invariant: an object is replaced or deleted only as the version that the caller knows. Where the service has no
//! conditions, the object is looked at just before. What is read is of the version that was asked for. Calls block.

mod upload;

use std::future::poll_fn;
use std::ops::Range;
use std::path::Path;
use std::pin::Pin;

use bytes::Bytes;
use futures_core::Stream;
use opendal::{Metadata, Operator};
use vellum_types::{ErrorKind, UnixTime};

use self::upload::UploadStates;
pub(crate) use self::upload::fuzz_upload_record;
pub use self::upload::{InterruptedUpload, PlainUpload, UploadedFile, list_interrupted_uploads};
use super::failure::{FailedRequest, FailureClass};
use super::{Attempt, RequestSubject, ServiceStore, body};
use crate::error::StoreError;
use crate::object::RequestLimits;
use crate::object::address::{ServiceAddress, ServiceKind};
use crate::object::plain::{
    MTIME_FIELD, ObjectCondition, ObjectTag, PlainListing, PlainObject, PlainObjectHead, decode_mtime,
    encode_mtime,
};

/// The tag of an object without content: the MD5 hash of nothing.
const EMPTY_TAG: [u8; 16] =
    [0xd4, 0x1d, 0x8c, 0xd9, 0x8f, 0x00, 0xb2, 0x04, 0xe9, 0x80, 0x09, 0x98, 0xec, 0xf8, 0x42, 0x7e];
/// Objects between two calls that report how many were listed, a count.
const LISTED_STEP: u64 = 1000;

/// The plain objects in a folder of a service.
pub struct PlainObjects {
    service: ServiceStore,
    /// Where this machine remembers uploads in parts.
    states: Option<UploadStates>,
}

/// How a request names the version that it is about.
#[derive(Debug, Clone)]
pub(super) enum VersionMatch {
    /// By its tag.
    Etag(String),
    /// By its generation.
    Version(String),
}

/// The condition of a request on the current object of a key.
#[derive(Debug, Clone)]
enum WriteCondition {
    Absent,
    Unchanged(VersionMatch),
}

/// What a key is written with.
#[derive(Debug, Clone)]
struct WriteRequest {
    mtime: String,
    condition: Option<WriteCondition>,
}

impl PlainObjects {
    /// The objects at an address. Nothing is sent. A WebDAV server, which has no metadata, is refused.
    pub fn open(
        address: ServiceAddress,
        credentials: Option<&str>,
        limits: &RequestLimits,
    ) -> Result<Self, StoreError> {
        if !address.kind.is_object_service() {
            return Err(StoreError::Address {
                url: address.to_string(),
                reason: "plain files over WebDAV are not supported, only stores of volumes".to_owned(),
                kind: ErrorKind::Unsupported,
            });
        }
        Ok(Self { service: ServiceStore::open(address, credentials, limits, None)?, states: None })
    }

    /// Remembers uploads in parts below this directory, so that a later run continues or removes them.
    #[must_use]
    pub fn with_upload_records(self, dir: &Path) -> Self {
        Self { states: Some(UploadStates::for_place(dir, &self.service.location)), ..self }
    }

    /// The address without secrets, for messages.
    #[must_use]
    pub fn describe_location(&self) -> &str {
        &self.service.location
    }

    /// Lists the folder and everything below. `listed` is called now and then with the number of objects that came since.
    pub fn list_objects(&self, listed: &(dyn Fn(u64) + Sync)) -> Result<PlainListing, StoreError> {
        let subject = RequestSubject { action: "list", key: "" };
        // The request runs on another runtime and must own what it uses, so the numbers come back through a channel.
        let (counted, counts) = std::sync::mpsc::channel();
        let listing = std::thread::scope(|scope| {
            scope.spawn(move || {
                // A listing that failed half-way begins anew, and its objects were reported already.
                let mut reported = 0;
                for found in counts {
                    if found > reported {
                        listed(found - reported);
                        reported = found;
                    }
                }
            });
            let found = self.service.repeat(subject, &self.service.pool.writes, |operator| {
                let counted = counted.clone();
                async move { collect_listing(&operator, &counted).await }
            });
            // Otherwise the thread that counts would wait for more, and the scope for this thread.
            drop(counted);
            found
        })?;
        match listing {
            Ok(listing) => Ok(listing),
            Err(failed) => match self.service.wrap_failure(subject, &failed) {
                StoreError::NotFound { .. } => Ok(PlainListing::default()),
                error => Err(error),
            },
        }
    }

    /// Returns what the service reports about an object; None if there is none.
    pub fn stat_object(&self, key: &str) -> Result<Option<PlainObjectHead>, StoreError> {
        let subject = RequestSubject { action: "read", key };
        let found = self.service.repeat(subject, &self.service.pool.reads, |operator| {
            let path = key.to_owned();
            async move { operator.stat(&path).await }
        })?;
        match found {
            Ok(metadata) => Ok(Some(describe_head(&metadata))),
            Err(failed) => match self.service.wrap_failure(subject, &failed) {
                StoreError::NotFound { .. } => Ok(None),
                error => Err(error),
            },
        }
    }

    /// A range of this version of an object, which the caller bounds. Fails with [`StoreError::Changed`] if the object has
    /// another version by now.
    pub fn read_range(&self, key: &str, tag: &ObjectTag, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        let subject = RequestSubject { action: "read", key };
        let len = range.end.saturating_sub(range.start);
        if len == 0 {
            return Ok(Vec::new());
        }
        let read = self.service.repeat(subject, &self.service.pool.reads, |operator| {
            let path = key.to_owned();
            let version = self.match_version(tag);
            let range = range.clone();
            async move { body::read_version_range(&operator, &path, version, range, len).await }
        })?;
        let location = || self.service.location.clone();
        match read {
            // A service that ignores the condition of a read is noticed by the tag of its answer.
            Ok(Some(object)) if !tag.is_same_version(&describe_tag(&object.metadata)) => {
                Err(self.changed_error(key))
            }
            Ok(Some(object)) if object.bytes.len() as u64 == len => Ok(object.bytes),
            Ok(object) => {
                let got = object.map_or(len.saturating_add(1), |object| object.bytes.len() as u64);
                Err(StoreError::Length { place: location(), key: key.to_owned(), wanted: len, got })
            }
            Err(failed) if failed.classify() == FailureClass::ConditionFailed => Err(self.changed_error(key)),
            Err(failed) => Err(self.service.wrap_failure(subject, &failed)),
        }
    }

    /// Writes an object in one request: whole or not at all. Fails with [`StoreError::Changed`] if something else than
    /// expected has the key.
    pub fn put_object(
        &self,
        key: &str,
        bytes: &Bytes,
        mtime: UnixTime,
        expected: &ObjectCondition,
    ) -> Result<(), StoreError> {
        let subject = RequestSubject { action: "write", key };
        let mut request = self.write_request(mtime, expected);
        let mut schedule = self.service.budget.begin(self.service.limits.retry_for);
        let mut can_reload = true;
        // Whether an earlier try may have stored the object although it seemed to fail.
        let mut is_uncertain = false;
        loop {
            let written = self.send_put(subject, bytes, &request)?;
            let Err(failed) = written else { return Ok(()) };
            match failed.classify() {
                // An earlier try stored the object, and its answer was lost.
                FailureClass::ConditionFailed if is_uncertain && self.has_content(key, bytes)? => {
                    return Ok(());
                }
                FailureClass::ConditionFailed => return Err(self.changed_error(key)),
                // The service has no such condition. A look just before the write is not atomic, but it is all that
                // there is.
                FailureClass::Final if failed.is_unsupported() && request.condition.is_some() => {
                    self.check_condition(key, expected)?;
                    // Tried again without a pause: the service refuses the condition, whenever it is asked.
                    request.condition = None;
                    continue;
                }
                FailureClass::Transient | FailureClass::Garbled | FailureClass::Conflict => {
                    is_uncertain = true;
                }
                FailureClass::Throttled | FailureClass::CredentialsRefused | FailureClass::Final => {}
            }
            if !self.service.may_repeat(subject, &failed, &mut schedule, &mut can_reload)? {
                return Err(self.service.wrap_failure(subject, &failed));
            }
        }
    }

    /// Deletes this version of an object; false if there was nothing any more. Fails with [`StoreError::Changed`] if it has
    /// another version by now.
    pub fn delete_object(&self, key: &str, tag: &ObjectTag) -> Result<bool, StoreError> {
        // Not every service looks at the condition of a deletion.
        match self.stat_object(key)? {
            None => return Ok(false),
            Some(head) if !head.tag.is_same_version(tag) => return Err(self.changed_error(key)),
            Some(_) => {}
        }
        let subject = RequestSubject { action: "delete", key };
        let send = |version: Option<VersionMatch>| {
            self.service.repeat(subject, &self.service.pool.writes, move |operator| {
                let path = key.to_owned();
                let version = version.clone();
                async move { delete_version(&operator, &path, version).await }
            })
        };
        let outcome = match send(self.match_version(tag))? {
            // The service has no such condition. The version was looked at just before.
            Err(failed) if failed.is_unsupported() => send(None)?,
            outcome => outcome,
        };
        match outcome {
            Ok(()) => Ok(true),
            Err(failed) if failed.classify() == FailureClass::ConditionFailed => {
                match self.stat_object(key)? {
                    // An earlier try deleted it, though its answer was lost.
                    None => Ok(true),
                    Some(_) => Err(self.changed_error(key)),
                }
            }
            Err(failed) => match self.service.wrap_failure(subject, &failed) {
                // It was there a moment ago. An earlier try of this call deleted it, or somebody else did, with the
                // same result.
                StoreError::NotFound { .. } => Ok(true),
                error => Err(error),
            },
        }
    }

    /// How a request names this version; None if the service did not return it.
    fn match_version(&self, tag: &ObjectTag) -> Option<VersionMatch> {
        // Google Cloud Storage compares generations, the others compare tags.
        match self.service.address.kind {
            ServiceKind::S3
            | ServiceKind::Azure
            | ServiceKind::WebDavs
            | ServiceKind::WebDav
            | ServiceKind::Https
            | ServiceKind::Http => tag.etag.as_deref().map(|etag| VersionMatch::Etag(etag.into())),
            ServiceKind::Gcs => tag.version.as_deref().map(|version| VersionMatch::Version(version.into())),
        }
    }

    fn write_request(&self, mtime: UnixTime, expected: &ObjectCondition) -> WriteRequest {
        let condition = match expected {
            ObjectCondition::Absent => Some(WriteCondition::Absent),
            ObjectCondition::Unchanged(tag) => self.match_version(tag).map(WriteCondition::Unchanged),
        };
        WriteRequest { mtime: encode_mtime(self.service.address.kind, mtime), condition }
    }

    fn send_put(
        &self,
        subject: RequestSubject<'_>,
        bytes: &Bytes,
        request: &WriteRequest,
    ) -> Result<Attempt<Metadata>, StoreError> {
        let path = subject.key.to_owned();
        let body = bytes.clone();
        let WriteRequest { mtime, condition } = request.clone();
        self.service.attempt(subject, &self.service.pool.writes, |operator| async move {
            let mut writing =
                operator.write_with(&path, body).user_metadata([(MTIME_FIELD.to_owned(), mtime)]);
            writing = match &condition {
                None => writing,
                Some(WriteCondition::Absent) => writing.if_not_exists(true),
                Some(WriteCondition::Unchanged(VersionMatch::Etag(etag))) => writing.if_match(etag),
                Some(WriteCondition::Unchanged(VersionMatch::Version(version))) => {
                    writing.if_version_match(version)
                }
            };
            writing.await
        })
    }

    /// Looks at what has a key, where the service has no conditions.
    fn check_condition(&self, key: &str, expected: &ObjectCondition) -> Result<(), StoreError> {
        let is_met = match (self.stat_object(key)?, expected) {
            (None, ObjectCondition::Absent) => true,
            (Some(head), ObjectCondition::Unchanged(tag)) => head.tag.is_same_version(tag),
            (Some(_), ObjectCondition::Absent) | (None, ObjectCondition::Unchanged(_)) => false,
        };
        if is_met { Ok(()) } else { Err(self.changed_error(key)) }
    }

    /// Whether an object has exactly these bytes; read only if its length is right.
    fn has_content(&self, key: &str, bytes: &[u8]) -> Result<bool, StoreError> {
        let len = bytes.len() as u64;
        match self.stat_object(key)? {
            Some(head) if head.size == len => Ok(self.read_range(key, &head.tag, 0..len)? == bytes),
            Some(_) | None => Ok(false),
        }
    }

    fn changed_error(&self, key: &str) -> StoreError {
        StoreError::Changed { place: self.service.location.clone(), key: key.to_owned() }
    }
}

impl FailedRequest {
    /// Whether the service cannot do what was asked for.
    fn is_unsupported(&self) -> bool {
        self.error.kind() == opendal::ErrorKind::Unsupported
            || self.exchange.status.is_some_and(|status| status.as_u16() == 501)
    }
}

async fn collect_listing(
    operator: &Operator,
    counted: &std::sync::mpsc::Sender<u64>,
) -> opendal::Result<PlainListing> {
    let mut listing = PlainListing::default();
    let mut entries = operator.lister_with("").recursive(true).await?;
    let mut found = 0_u64;
    while let Some(entry) = poll_fn(|context| Pin::new(&mut entries).poll_next(context)).await {
        add_entry(&mut listing, &entry?);
        found += 1;
        if found.is_multiple_of(LISTED_STEP) {
            // Nobody counts any more if the wait was interrupted.
            let _ = counted.send(found);
        }
    }
    let _ = counted.send(found);
    Ok(listing)
}

fn add_entry(listing: &mut PlainListing, entry: &opendal::Entry) {
    let metadata = entry.metadata();
    if metadata.is_file() {
        listing.objects.push(PlainObject {
            key: entry.path().to_owned(),
            size: metadata.content_length(),
            uploaded: uploaded_at(metadata),
            tag: describe_tag(metadata),
        });
        return;
    }
    // The folder itself.
    let Some(key) = entry.path().strip_suffix('/').filter(|key| !key.is_empty()) else { return };
    let tag = describe_tag(metadata);
    // A key that ends with a slash and has content cannot become a file. If the tag is no hash, the object counts as
    // empty.
    match tag.as_md5() {
        Some(hash) if hash != EMPTY_TAG => listing.misnamed.push(entry.path().to_owned()),
        Some(_) | None => listing.markers.push(key.to_owned()),
    }
}

async fn delete_version(
    operator: &Operator,
    path: &str,
    version: Option<VersionMatch>,
) -> opendal::Result<()> {
    match version {
        Some(VersionMatch::Etag(etag)) => operator.delete_with(path).if_match(&etag).await,
        Some(VersionMatch::Version(version)) => operator.delete_with(path).if_version_match(&version).await,
        None => operator.delete(path).await,
    }
}

fn describe_tag(metadata: &Metadata) -> ObjectTag {
    ObjectTag { etag: metadata.etag().map(Into::into), version: metadata.version().map(Into::into) }
}

fn describe_head(metadata: &Metadata) -> PlainObjectHead {
    let stored = metadata.user_metadata().and_then(|fields| fields.get(MTIME_FIELD));
    PlainObjectHead {
        size: metadata.content_length(),
        uploaded: uploaded_at(metadata),
        mtime: stored.and_then(decode_mtime),
        tag: describe_tag(metadata),
    }
}

/// When the object was uploaded, as the service reports it; 1970 if it does not.
fn uploaded_at(metadata: &Metadata) -> UnixTime {
    metadata.last_modified().map_or(UnixTime::default(), |time| {
        let time = time.into_inner();
        let total = time.as_nanosecond();
        UnixTime {
            secs: i64::try_from(total.div_euclid(1_000_000_000)).unwrap_or_default(),
            nanos: u32::try_from(total.rem_euclid(1_000_000_000)).unwrap_or_default(),
        }
    })
}
