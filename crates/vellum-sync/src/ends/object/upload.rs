//! Carrying out a plan in an object store: files are uploaded in parallel, and objects deleted.
//!
//! Invariant: an object is complete or does not exist, and only the listed version is replaced or deleted. After the
//! failure of one entry all others are carried out, except deletions. A multipart upload is left unfinished only if the
//! next run can continue it. Memory is bounded by the number of concurrent files, and is independent of their length.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use vellum_host::ProgressMeter;
use vellum_store::{ObjectCondition, PlainObjects, PlainUpload, StoreError, UploadedFile};
use vellum_volume::VolumeError;

use super::reader::ObjectContentReader;
use super::{ObjectEnd, map_object_error, object_key, parallel};
use crate::error::{Result, SyncError};
use crate::local::receive::{SyncJob, SyncProblem, SyncReport, TransferControl};
use crate::model::options::RETRIES;
use crate::plan::{StepAction, StepPhase, SyncStep};

/// Longest file that is uploaded by a single request, bytes.
const SINGLE_MAX: u64 = 8 << 20;
/// Default number of concurrent uploads by a single request, a count.
const FILES_AT_ONCE: usize = 8;
/// Number of concurrent multipart uploads, a count: each of them uploads several parts at once.
const LARGE_FILES_AT_ONCE: usize = 2;

/// The execution of a plan.
struct UploadRun<'a> {
    end: &'a ObjectEnd,
    job: &'a SyncJob<'a>,
    flow: TransferControl<'a>,
    meter: &'a ProgressMeter,
    steps: AtomicU64,
    /// Bytes of parts that an earlier run had sent.
    spared: AtomicU64,
    /// Some entry was not written.
    failed: AtomicBool,
    /// All further steps would fail as well.
    over: AtomicBool,
    problems: Mutex<Vec<SyncProblem>>,
}

/// A part of a file.
struct FilePart {
    /// From 1.
    number: u32,
    bytes: Bytes,
}

/// Reads a file in the parts that it is uploaded in.
struct PartReader {
    /// Bytes of all parts but the last.
    len: u64,
    /// Parts so far.
    sent: u32,
    content: ObjectContentReader,
}

impl PartReader {
    /// The next part; none at the end.
    fn read_next(&mut self) -> Result<Option<FilePart>> {
        if self.content.is_at_end() {
            return Ok(None);
        }
        self.sent += 1;
        let bytes = Bytes::from(self.content.read_part(self.len)?);
        Ok(Some(FilePart { number: self.sent, bytes }))
    }
}

/// Carries out a plan.
pub(super) fn execute_plan(end: &ObjectEnd, job: &SyncJob<'_>, meter: &ProgressMeter) -> Result<SyncReport> {
    if let Some(refusal) = &job.plan.refusal {
        return Err(SyncError::Refused(refusal.clone()));
    }
    meter.begin_phase(job.plan.steps.len() as u64, job.plan.counts.write_bytes);
    let run = UploadRun {
        end,
        job,
        flow: TransferControl::new(meter, false, job.options.effort.bandwidth),
        meter,
        steps: AtomicU64::new(0),
        spared: AtomicU64::new(0),
        failed: AtomicBool::new(false),
        over: AtomicBool::new(false),
        problems: Mutex::default(),
    };
    run.execute_phases();
    // Only after a whole run is it known that nothing continues them. One that does not answer is left alone.
    if !meter.is_stopped() && !run.over.load(Ordering::Relaxed) {
        end.objects.remove_abandoned_uploads();
    }
    let mut problems = run.problems.into_inner();
    problems.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(SyncReport {
        steps: run.steps.into_inner(),
        written: run.flow.written.into_inner(),
        spared: run.spared.into_inner(),
        problems,
        stopped: meter.is_stopped(),
        durable: !meter.is_stopped() && !run.over.into_inner(),
        ..SyncReport::default()
    })
}

impl UploadRun<'_> {
    fn execute_phases(&self) {
        let plan = self.job.plan;
        self.execute_steps(plan.phase_steps(StepPhase::Clear), FILES_AT_ONCE);
        let size = |step: &&SyncStep| step.source.map_or(0, |id| self.job.from.entry(id).size());
        let files = plan.phase_steps(StepPhase::Files).iter();
        let (large, small): (Vec<&SyncStep>, Vec<&SyncStep>) =
            // Large files are uploaded in parallel parts already. A few of them use the line fully, and each
            // takes memory for its parts.
            files.partition(|step| size(step) > SINGLE_MAX);
        let jobs = self.job.options.effort.jobs.map(|jobs| jobs.clamp(1, 64) as usize);
        self.execute_steps(small, jobs.unwrap_or(FILES_AT_ONCE));
        self.execute_steps(large, jobs.unwrap_or(LARGE_FILES_AT_ONCE).min(LARGE_FILES_AT_ONCE));
        let deletes = plan.phase_steps(StepPhase::Delete);
        // After a failure the old object may be the only copy of something that was renamed at the source.
        if !deletes.is_empty() && self.failed.load(Ordering::Relaxed) {
            let problem = SyncProblem::for_kept_entries(deletes.len(), ["object", "objects"]);
            self.problems.lock().push(problem);
        } else {
            self.execute_steps(deletes, FILES_AT_ONCE);
        }
    }

    fn execute_steps<'s>(&self, steps: impl IntoIterator<Item = &'s SyncStep>, threads: usize) {
        let steps: Vec<&SyncStep> = steps.into_iter().collect();
        // The result is not needed: after a stop, the counters show what was carried out.
        let _ = parallel::map_in_parallel(&steps, threads, self.meter, |step| {
            if self.over.load(Ordering::Relaxed) {
                return;
            }
            match self.execute_with_retries(step) {
                Err(SyncError::Stopped) => {}
                Ok(()) => {
                    self.steps.fetch_add(1, Ordering::Relaxed);
                    self.meter.add_progress(1, 0);
                }
                Err(error) => self.report_failure(step, &error),
            }
        });
    }

    fn execute_with_retries(&self, step: &SyncStep) -> Result<()> {
        let mut left = self.job.options.effort.retries.unwrap_or(RETRIES);
        loop {
            match self.execute_step(step) {
                // The file changed while it was read, or the service lost parts of it. Other failures of the service
                // were repeated by the layer below.
                Err(SyncError::Changed | SyncError::Unequal | SyncError::UploadLost) if left > 0 => left -= 1,
                other => return other,
            }
        }
    }

    fn execute_step(&self, step: &SyncStep) -> Result<()> {
        match step.action {
            StepAction::Delete => self.delete_object(step),
            // An object's time is set by writing it.
            StepAction::Write(_) | StepAction::Attributes => self.upload_file(step),
            StepAction::MakeDir
            | StepAction::Symlink
            | StepAction::Special
            | StepAction::Link
            | StepAction::Rename
            | StepAction::LinkBasis(_)
            | StepAction::CopyBasis(_) => Err(SyncError::Unequal),
        }
    }

    fn upload_file(&self, step: &SyncStep) -> Result<()> {
        let Some(id) = step.source else { return Ok(()) };
        let entry = self.job.from.entry(id);
        let key = object_key(&entry);
        // The service itself compares (If-Match, If-None-Match), so a change by somebody else between listing
        // and upload is not overwritten.
        let expected = match step.old {
            Some(old) => ObjectCondition::Unchanged(self.end.listed_tag(old).ok_or(SyncError::Unequal)?),
            None => ObjectCondition::Absent,
        };
        let mut content = ObjectContentReader::new(self.job.source.open_content(entry, None)?, &entry);
        let objects = &self.end.objects;
        if content.size <= SINGLE_MAX {
            let bytes = Bytes::from(content.read_part(SINGLE_MAX)?);
            // The request is sent only after this, so an object never holds a mixture of two versions.
            content.check_unchanged()?;
            objects.put_object(&key, &bytes, content.mtime, &expected).map_err(map_written_error)?;
            self.flow.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            // The uploaded bytes count even if a stop was requested.
            let _ = self.flow.throttle_bytes(bytes.len() as u64);
            return Ok(());
        }
        let file = UploadedFile { key: &key, size: content.size, mtime: content.mtime, expected: &expected };
        let upload = objects.begin_upload(&file).map_err(map_written_error)?;
        let spared = match self.send_parts(&upload, content) {
            Ok(spared) => spared,
            Err(error) => {
                // The next run goes on with the parts that the service has. After other failures they are of no use,
                // and the service gives them up.
                if matches!(error, SyncError::Stopped) || error.is_final() {
                    upload.keep_for_next_run();
                }
                return Err(error);
            }
        };
        upload.finish().map_err(map_written_error)?;
        self.flow.written.fetch_add(file.size.saturating_sub(spared), Ordering::Relaxed);
        self.spared.fetch_add(spared, Ordering::Relaxed);
        Ok(())
    }

    /// Sends the parts of a file, several at once. Returns how many bytes were there already.
    fn send_parts(&self, upload: &PlainUpload<'_>, content: ObjectContentReader) -> Result<u64> {
        let parts = PartReader { len: PlainObjects::part_len(content.size), sent: 0, content };
        let parts = Mutex::new(parts);
        let has_failed = AtomicBool::new(false);
        let spared = AtomicU64::new(0);
        let send_some = || -> Result<()> {
            while !has_failed.load(Ordering::Relaxed) {
                // Read under the lock: content arrives in its order, and one part after the other keeps the limit of
                // the bandwidth.
                let mut reader = parts.lock();
                let Some(part) = reader.read_next()? else { break };
                let is_there = upload.has_part(part.number, &part.bytes);
                // What is there already takes no bandwidth.
                let len = part.bytes.len() as u64;
                match is_there {
                    true => {
                        spared.fetch_add(len, Ordering::Relaxed);
                        self.meter.add_progress(0, len);
                    }
                    false => self.flow.throttle_bytes(len)?,
                }
                self.meter.check_stopped()?;
                drop(reader);
                if !is_there {
                    upload.send_part(part.number, &part.bytes).map_err(map_written_error)?;
                }
            }
            Ok(())
        };
        let send = || {
            let sent = send_some();
            has_failed.fetch_or(sent.is_err(), Ordering::Relaxed);
            sent
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..upload.parts_at_once()).map(|_| scope.spawn(send)).collect();
            let mut outcome = send();
            for other in others {
                // A thread ends without a result only if it panicked, which the panic hook has printed.
                outcome = outcome.and(other.join().unwrap_or(Err(SyncError::Unequal)));
            }
            outcome
        })?;
        parts.into_inner().content.check_unchanged()?;
        // A request to stop that came during the last part is noticed before the object gets its name.
        self.flow.throttle_bytes(0)?;
        Ok(spared.into_inner())
    }

    fn delete_object(&self, step: &SyncStep) -> Result<()> {
        let Some(old) = step.old else { return Ok(()) };
        let key = object_key(&self.job.to.entry(old));
        // Deleting is conditional as well: an object that was replaced since the listing stays.
        let tag = self.end.listed_tag(old).ok_or(SyncError::Unequal)?;
        self.end.objects.delete_object(&key, &tag).map(drop).map_err(map_written_error)
    }

    fn report_failure(&self, step: &SyncStep, error: &SyncError) {
        let vanished = matches!(error, SyncError::Vanished);
        // A file that vanished at the source is no failure to write.
        self.failed.fetch_or(!vanished, Ordering::Relaxed);
        self.over.fetch_or(error.is_final(), Ordering::Relaxed);
        let path = match (step.source, step.old) {
            (Some(source), _) => self.job.from.entry(source).path(),
            (None, Some(old)) => self.job.to.entry(old).path(),
            (None, None) => Vec::new(),
        };
        self.problems.lock().push(SyncProblem { path, message: error.format_chain(), vanished });
    }
}

/// Maps an error of writing: an object that is not found is no vanished source file here.
fn map_written_error(error: StoreError) -> SyncError {
    match error {
        StoreError::NotFound { .. } => VolumeError::from(error).into(),
        error => map_object_error(error),
    }
}
