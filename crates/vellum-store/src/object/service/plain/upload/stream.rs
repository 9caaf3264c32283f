//! An upload in parts through OpenDAL, for services other than S3: what the service calls the upload is not shown, so that
//! no later run could continue it.
//!
//! Invariant: nothing stands at the key before [`StreamUpload::finish`], and an upload that is not finished is given up at
//! the service, too. Memory is bounded by the parts that are under way.

use bytes::Bytes;
use opendal::Writer;
use vellum_types::UnixTime;

use super::super::{PlainObjects, VersionMatch, WriteCondition, WriteRequest};
use super::UploadedFile;
use crate::error::StoreError;
use crate::object::RequestPurpose;
use crate::object::plain::{MTIME_FIELD, ObjectCondition};
use crate::object::service::exchange::{ExchangeRecord, record_exchange};
use crate::object::service::failure::{FailedRequest, FailureClass};
use crate::object::service::runtime::run_future_to_end;
use crate::object::service::{RequestSubject, ServiceStore};

/// Parts of one object under way at once, a count.
const PARTS_AT_ONCE: usize = 4;

/// An upload whose parts are sent in their order.
pub(super) struct StreamUpload<'a> {
    objects: &'a PlainObjects,
    key: String,
    mtime: UnixTime,
    expected: ObjectCondition,
    /// Bytes of all parts so far.
    sent: u64,
    /// None when it is finished or given up.
    writer: Option<Writer>,
}

impl PlainObjects {
    /// Begins an upload. An object that is empty in the end is no object for parts.
    pub(super) fn begin_stream_upload(
        &self,
        file: &UploadedFile<'_>,
    ) -> Result<StreamUpload<'_>, StoreError> {
        let UploadedFile { key, mtime, expected, size: _ } = *file;
        let subject = RequestSubject { action: "write", key };
        let operator = self.service.operator.read().clone();
        let WriteRequest { mtime: stored_mtime, condition } = self.write_request(mtime, expected);
        let path = key.to_owned();
        let opened = run_future_to_end(async move {
            let writing = operator
                .writer_with(&path)
                .concurrent(PARTS_AT_ONCE)
                .user_metadata([(MTIME_FIELD.to_owned(), stored_mtime)]);
            match condition {
                None => writing.await,
                Some(WriteCondition::Absent) => writing.if_not_exists(true).await,
                Some(WriteCondition::Unchanged(VersionMatch::Etag(etag))) => writing.if_match(&etag).await,
                Some(WriteCondition::Unchanged(VersionMatch::Version(version))) => {
                    writing.if_version_match(&version).await
                }
            }
        });
        let opened = opened.map_err(|error| self.service.wrap_run_error(subject, error))?;
        let writer = opened.map_err(|error| {
            self.service.wrap_failure(subject, &FailedRequest { error, exchange: Default::default() })
        })?;
        Ok(StreamUpload {
            objects: self,
            key: key.to_owned(),
            mtime,
            expected: expected.clone(),
            sent: 0,
            writer: Some(writer),
        })
    }
}

impl StreamUpload<'_> {
    /// Sends the next part.
    pub fn write_part(&mut self, part: &Bytes) -> Result<(), StoreError> {
        self.sent += part.len() as u64;
        self.repeat(|mut writer| {
            let part = part.clone();
            async move {
                let outcome = writer.write(part).await;
                (writer, outcome)
            }
        })
    }

    /// Makes the object of the parts. Fails with [`StoreError::Changed`] if something else than expected has the key.
    pub fn finish(mut self) -> Result<(), StoreError> {
        // Not every service looks at the condition of an upload in parts.
        self.objects.check_condition(&self.key, &self.expected)?;
        let finished = self.repeat(|mut writer| async move {
            let outcome = writer.close().await.map(drop);
            (writer, outcome)
        });
        // A service that finished it, and whose answer was lost, knows nothing of the upload when it is asked again.
        let file =
            UploadedFile { key: &self.key, size: self.sent, mtime: self.mtime, expected: &self.expected };
        if finished.is_err() && !self.objects.has_uploaded(&file)? {
            return finished;
        }
        self.writer = None;
        Ok(())
    }

    /// Aborts the upload.
    fn abort(&mut self) {
        let Some(mut writer) = self.writer.take() else { return };
        // Parts that remain at the service are paid for until a rule of the bucket removes them.
        let aborted = run_future_to_end(async move { writer.abort().await });
        if !matches!(aborted, Ok(Ok(()))) {
            tracing::warn!(key = self.key, "an unfinished upload could not be given up");
        }
    }

    /// Carries out a step, and again after failures that may pass. It is never dropped half-way: what the service knows
    /// of the upload would be forgotten here.
    fn repeat<F>(&mut self, step: impl Fn(Writer) -> F) -> Result<(), StoreError>
    where
        F: Future<Output = (Writer, opendal::Result<()>)> + Send + 'static,
    {
        let objects = self.objects;
        let service: &ServiceStore = &objects.service;
        let key = self.key.clone();
        let subject = RequestSubject { action: "write", key: &key };
        let mut schedule = service.budget.begin(service.limits.retry_for);
        // The writer keeps the operator that it was opened with, so it would not use new credentials.
        let mut can_reload = false;
        loop {
            // It is missing after a step that did not run to its end: nothing is known of the upload then.
            let Some(writer) = self.writer.take() else { return Err(objects.changed_error(&key)) };
            // For one step, and not for the whole upload: other writes come between the parts, and during the pause
            // before the next try.
            let purpose = RequestPurpose::current();
            let permit = service.pool.writes.enter(purpose);
            let record = ExchangeRecord::for_purpose(purpose);
            let ended = run_future_to_end(record_exchange(record.clone(), step(writer)));
            drop(permit);
            let (writer, outcome) = ended.map_err(|error| service.wrap_run_error(subject, error))?;
            self.writer = Some(writer);
            let Err(error) = outcome else { return Ok(()) };
            let failed = FailedRequest { error, exchange: Box::new(record.read_exchange()) };
            if failed.classify() == FailureClass::ConditionFailed {
                return Err(objects.changed_error(&key));
            }
            if !service.may_repeat(subject, &failed, &mut schedule, &mut can_reload)? {
                return Err(service.wrap_failure(subject, &failed));
            }
        }
    }
}

impl Drop for StreamUpload<'_> {
    fn drop(&mut self) {
        self.abort();
    }
}
