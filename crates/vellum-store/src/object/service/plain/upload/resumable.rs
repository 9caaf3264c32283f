//! An upload in parts to S3 or Azure, which a later run can continue.
//!
//! Invariant: a part of an earlier run becomes a part of the object only if the service has it with the length that it has
//! now, and with the same content: by its tag, if that is a hash; otherwise because the file has the length and the time
//! that it had then. An upload of which this machine has no record is given up when it is dropped.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use md5::{Digest, Md5};
use parking_lot::Mutex;
use vellum_types::ErrorKind;

use super::super::{PlainObjects, VersionMatch, WriteCondition, WriteRequest};
use super::state::{UploadRecord, UploadState};
use super::{PARTS_MAX, UploadedFile};
use crate::error::StoreError;
use crate::object::RequestPurpose;
use crate::object::plain::{MTIME_FIELD, ObjectCondition, ObjectTag};
use crate::object::service::exchange::{ExchangeRecord, record_exchange};
use crate::object::service::failure::FailedRequest;
use crate::object::service::multipart::{FinishCondition, MultipartClient, StoredPart, UploadFinish};
use crate::object::service::runtime::run_future_to_end;
use crate::object::service::{Attempt, RequestSubject, ServiceStore};

/// An upload that the service knows by an id.
pub(super) struct ResumableUpload<'a> {
    objects: &'a PlainObjects,
    record: UploadRecord,
    expected: ObjectCondition,
    /// Parts of an earlier run by their numbers.
    earlier: BTreeMap<u32, StoredPart>,
    /// The tags of the parts that the object will be made of.
    tags: Mutex<BTreeMap<u32, String>>,
    /// None if another process has it, or if there is no place for it.
    state: Option<UploadState>,
    /// Whether the service has it and this process is responsible for it.
    is_open: AtomicBool,
}

impl<'a> ResumableUpload<'a> {
    /// Continues the upload of an earlier run, or begins one.
    pub fn begin(objects: &'a PlainObjects, file: &UploadedFile<'_>) -> Result<Self, StoreError> {
        let state = objects.take_upload_state(file.key);
        let recorded = state.as_ref().and_then(|state| state.read_record().ok()?);
        let part_len = PlainObjects::part_len(file.size);
        // The name of a record is a hash of the key, so that the key itself is compared.
        if let Some(record) = recorded.filter(|record| record.key == file.key) {
            // Of another length, parts with the same numbers begin elsewhere.
            let is_same_file =
                record.size == file.size && record.mtime == file.mtime && record.part_len == part_len;
            let earlier = match is_same_file {
                true => objects.list_stored_parts(&record)?,
                false => {
                    // Parts of another content are of no use, and are paid for as long as the service has them.
                    objects.abort_recorded_upload(&record)?;
                    None
                }
            };
            if let Some(earlier) = earlier {
                let mut upload = Self::new(objects, file, record, state);
                upload.earlier = earlier;
                return Ok(upload);
            }
        }
        let record = objects.begin_recorded_upload(file, part_len)?;
        // Without a record, it is given up at the latest when it is dropped.
        let state = state.filter(|state| match state.write_record(&record) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(key = file.key, %error, "an upload cannot be recorded, so no later run can continue it");
                false
            }
        });
        Ok(Self::new(objects, file, record, state))
    }

    fn new(
        objects: &'a PlainObjects,
        file: &UploadedFile<'_>,
        record: UploadRecord,
        state: Option<UploadState>,
    ) -> Self {
        Self {
            objects,
            record,
            expected: file.expected.clone(),
            earlier: BTreeMap::new(),
            tags: Mutex::default(),
            state,
            is_open: AtomicBool::new(true),
        }
    }

    /// Takes a part of an earlier run, if it is this one.
    pub fn reuse_part(&self, number: u32, part: &[u8]) -> bool {
        let Some(stored) = self.earlier.get(&number).filter(|stored| stored.size == part.len() as u64) else {
            return false;
        };
        let tag = ObjectTag { etag: Some(stored.tag.as_str().into()), version: None };
        let is_same = match tag.as_md5().filter(|_| self.record.has_hashes) {
            Some(hash) => hash == *Md5::digest(part),
            // The file has the length and the time that it had when the part was sent.
            None => true,
        };
        if is_same {
            self.tags.lock().insert(number, stored.tag.clone());
        }
        is_same
    }

    /// Sends a part.
    pub fn send_part(&self, number: u32, part: &Bytes) -> Result<(), StoreError> {
        let sent = self.objects.send_multipart(&self.record.key, |client| {
            let path = self.record.key.clone();
            let id = self.record.id.clone();
            let part = part.clone();
            async move { client.send_part(&path, &id, number, part).await }
        })?;
        let tag = sent.map_err(|failed| self.wrap_failure(&failed))?;
        self.tags.lock().insert(number, tag);
        Ok(())
    }

    /// Makes the object of the parts.
    pub fn finish(mut self) -> Result<(), StoreError> {
        match self.make_object() {
            Ok(()) => {
                self.forget();
                Ok(())
            }
            Err(error) => {
                // The service did not answer, or the user stops: the next run needs no part again.
                if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::Io) {
                    self.keep();
                }
                Err(error)
            }
        }
    }

    fn make_object(&self) -> Result<(), StoreError> {
        let file = UploadedFile {
            key: &self.record.key,
            size: self.record.size,
            mtime: self.record.mtime,
            expected: &self.expected,
        };
        // Not every service looks at the condition of an upload in parts.
        self.objects.check_condition(file.key, &self.expected)?;
        let WriteRequest { mtime, condition } = self.objects.write_request(file.mtime, &self.expected);
        let condition = condition.and_then(|condition| match condition {
            WriteCondition::Absent => Some(FinishCondition::Absent),
            WriteCondition::Unchanged(VersionMatch::Etag(tag)) => Some(FinishCondition::Tag(tag)),
            // S3 and Azure compare tags.
            WriteCondition::Unchanged(VersionMatch::Version(_)) => None,
        });
        let finish = UploadFinish {
            id: self.record.id.clone(),
            tags: self.tags.lock().values().cloned().collect(),
            metadata: (MTIME_FIELD.to_owned(), mtime),
            condition,
        };
        let finished = match self.send_finish(&finish)? {
            // The service has no such condition, and the object was looked at just now.
            Err(failed) if failed.is_unsupported() => {
                self.send_finish(&UploadFinish { condition: None, ..finish })?
            }
            finished => finished,
        };
        let Err(failed) = finished else { return Ok(()) };
        // A service that finished it, and whose answer was lost, knows nothing of the upload when it is asked again.
        if self.objects.has_uploaded(&file)? {
            return Ok(());
        }
        match failed.is_condition_failure() {
            true => Err(self.objects.changed_error(file.key)),
            false => Err(self.wrap_failure(&failed)),
        }
    }

    fn send_finish(&self, finish: &UploadFinish) -> Result<Attempt<()>, StoreError> {
        self.objects.send_multipart(&self.record.key, |client| {
            let path = self.record.key.clone();
            let finish = finish.clone();
            async move { client.finish_upload(&path, &finish).await }
        })
    }

    /// Leaves it for the next run, unless that could not find it.
    pub fn keep(self) {
        if self.state.is_some() {
            self.is_open.store(false, Ordering::Relaxed);
        }
    }

    /// The service does not have it any more.
    fn forget(&mut self) {
        self.is_open.store(false, Ordering::Relaxed);
        if let Some(state) = self.state.take() {
            state.remove();
        }
    }

    fn wrap_failure(&self, failed: &FailedRequest) -> StoreError {
        self.objects.wrap_upload_failure(&self.record.key, failed)
    }
}

impl Drop for ResumableUpload<'_> {
    fn drop(&mut self) {
        if !self.is_open.load(Ordering::Relaxed) {
            return;
        }
        // Once, and even if the user wants to stop. What it does not reach, the next run gives up.
        let client = self.objects.service.multipart.read().clone();
        let path = self.record.key.clone();
        let id = self.record.id.clone();
        let record = ExchangeRecord::for_purpose(RequestPurpose::current());
        let aborting = record_exchange(record.clone(), async move {
            match client {
                Some(client) => client.abort_upload(&path, &id).await,
                None => Ok(()),
            }
        });
        match run_future_to_end(aborting) {
            Ok(Ok(())) => self.forget(),
            Ok(Err(_)) if record.read_exchange().status == Some(http::StatusCode::NOT_FOUND) => self.forget(),
            Ok(Err(_)) | Err(_) => {
                tracing::warn!(key = self.record.key, "an unfinished upload could not be given up");
            }
        }
    }
}

impl PlainObjects {
    /// Gives up the uploads of earlier runs that nobody continues. What the service does not give up now is tried again
    /// by the next run.
    pub fn remove_abandoned_uploads(&self) {
        let Some(states) = &self.states else { return };
        for state in states.take_abandoned().unwrap_or_default() {
            let aborted = match state.read_record() {
                Ok(Some(record)) => self.abort_recorded_upload(&record),
                // A run that ended before the service had begun its upload.
                Ok(None) => Ok(()),
                // Nothing is known of it, and the next run may be able to read it.
                Err(_) => continue,
            };
            match aborted {
                Ok(()) => state.remove(),
                Err(error) => tracing::warn!(%error, "an upload of an earlier run could not be given up"),
            }
        }
    }

    fn take_upload_state(&self, key: &str) -> Option<UploadState> {
        let taken = self.states.as_ref()?.take_state(key);
        taken.unwrap_or_else(|error| {
            tracing::warn!(key, %error, "an upload cannot be recorded, so no later run can continue it");
            None
        })
    }

    /// Begins an upload at the service.
    fn begin_recorded_upload(
        &self,
        file: &UploadedFile<'_>,
        part_len: u64,
    ) -> Result<UploadRecord, StoreError> {
        // S3 checks conditions when an upload ends, not when it begins.
        let WriteRequest { mtime, condition: _ } = self.write_request(file.mtime, file.expected);
        let begun = self.send_multipart(file.key, |client| {
            let path = file.key.to_owned();
            let metadata = (MTIME_FIELD.to_owned(), mtime.clone());
            async move { client.begin_upload(&path, metadata).await }
        })?;
        let begun = begun.map_err(|failed| self.wrap_upload_failure(file.key, &failed))?;
        Ok(UploadRecord {
            key: file.key.to_owned(),
            id: begun.id,
            size: file.size,
            mtime: file.mtime,
            part_len,
            has_hashes: begun.has_hashes,
        })
    }

    /// The parts of an upload that the service has; none if it does not know the upload.
    fn list_stored_parts(
        &self,
        record: &UploadRecord,
    ) -> Result<Option<BTreeMap<u32, StoredPart>>, StoreError> {
        let mut found = BTreeMap::new();
        let mut after = 0;
        loop {
            let listed = self.send_multipart(&record.key, |client| {
                let path = record.key.clone();
                let id = record.id.clone();
                async move { client.list_parts(&path, &id, after).await }
            })?;
            let page = match listed {
                Ok(page) => page,
                Err(failed) if failed.is_missing_upload() => return Ok(None),
                Err(failed) => return Err(self.wrap_upload_failure(&record.key, &failed)),
            };
            found.extend(page.parts.into_iter().map(|part| (part.number, part)));
            match page.next {
                // A service that goes round in a circle must not keep this process for ever.
                Some(next) if next > after && u64::from(next) <= PARTS_MAX => after = next,
                Some(_) | None => return Ok(Some(found)),
            }
        }
    }

    /// Gives up an upload, also one that the service does not know.
    fn abort_recorded_upload(&self, record: &UploadRecord) -> Result<(), StoreError> {
        let aborted = self.send_multipart(&record.key, |client| {
            let path = record.key.clone();
            let id = record.id.clone();
            async move { client.abort_upload(&path, &id).await }
        })?;
        match aborted {
            Err(failed) if !failed.is_missing_upload() => Err(self.wrap_upload_failure(&record.key, &failed)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Sends a request about an upload until it succeeds or fails for good, with the credentials as they are then.
    fn send_multipart<T, F>(
        &self,
        key: &str,
        request: impl Fn(MultipartClient) -> F,
    ) -> Result<Attempt<T>, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = opendal::Result<T>> + Send + 'static,
    {
        let service: &ServiceStore = &self.service;
        let subject = RequestSubject { action: "write", key };
        service.repeat(subject, &service.pool.writes, |_| {
            let sending = service.multipart.read().clone().map(&request);
            async move {
                match sending {
                    Some(sending) => sending.await,
                    None => Err(opendal::Error::new(opendal::ErrorKind::Unsupported, "no uploads in parts")),
                }
            }
        })
    }

    fn wrap_upload_failure(&self, key: &str, failed: &FailedRequest) -> StoreError {
        if failed.is_missing_upload() {
            return StoreError::UploadLost { place: self.service.location.clone(), key: key.to_owned() };
        }
        self.service.wrap_failure(RequestSubject { action: "write", key }, failed)
    }
}
