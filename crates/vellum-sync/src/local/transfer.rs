//! Carrying out a plan in a local directory: phase after phase, with the files of a phase in parallel.
//!
//! Invariant: after the failure of one entry all others are carried out, except deletions; after a failure that all
//! others would share (no space, read-only) no further step is begun. Deliberately absent: the system calls of a step
//! (see `receive`).

mod burst;
mod carrier;
mod durable;
mod hidden_dirs;
mod queue;

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use vellum_host::ProgressMeter;

use crate::ends::WantedFile;
use crate::ends::local::LocalEnd;
use crate::error::{Result, SyncError};
use crate::local::receive::{
    BackupKeeper, DelayedNames, EntryWriter, StagingDirectories, SyncJob, SyncProblem, SyncReport,
    TransferControl,
};
use crate::model::listing::ListingEntryId;
use crate::model::path::split_path;
use crate::plan::{StepAction, StepPhase, SyncStep, WriteMethod};
use burst::is_delayed;
use carrier::TransferContext;
use hidden_dirs::HiddenDirectories;

/// Carries out a plan below the root of `to`.
pub(crate) fn execute_plan(to: &LocalEnd, job: &SyncJob<'_>, meter: &ProgressMeter) -> Result<SyncReport> {
    if let Some(refusal) = &job.plan.refusal {
        return Err(SyncError::Refused(refusal.clone()));
    }
    let options = job.options;
    // Staging directories that cannot be used fail here, before anything at the destination is changed.
    let staging = StagingDirectories::open_dirs(to.root(), &options.writing)?;
    if !job.to.leftovers.is_empty() {
        // Partial files of files that this run writes are kept: the run goes on with them.
        let expected = collect_partial_names(job);
        to.remove_leftovers(job.to, &|path| expected.contains(split_path(path).1));
    }
    if job.plan.is_empty() && !options.moves {
        return Ok(SyncReport::default());
    }
    let counts = job.plan.counts;
    meter.begin_phase(job.plan.steps.len() as u64, counts.write_bytes);
    // The source learns about all files now, so that it can ask for small ones ahead while directories are
    // created.
    job.source.announce_files(job.from, &collect_wanted_files(job));
    // Directories for kept versions are created only if the plan replaces or deletes entries.
    let replaces = job.plan.steps.iter().any(|step| step.old.is_some() && step.phase != StepPhase::Finish);
    let keeper = if replaces { BackupKeeper::new(to.root(), &options.writing)? } else { None };
    let flow = TransferControl::new(meter, options.preserve.sparse, options.effort.bandwidth);
    let mut receiver = EntryWriter::new(job, flow, keeper, staging);
    if options.writing.delays_names && job.plan.phase_steps(StepPhase::Files).iter().any(is_delayed) {
        receiver.delayed = Some(DelayedNames::new(to.root())?);
    }
    let carrier = TransferContext::new(to.root(), receiver, meter);
    execute_phases(&carrier, job);
    let durable = (options.writing.fsync || options.moves) && durable::sync_destination(&carrier, to.root());
    // A run that was stopped or gave up has not written everything. The source must not be removed then.
    let durable = durable && !carrier.should_stop();
    Ok(SyncReport { durable, ..carrier.into_report() })
}

fn execute_phases(carrier: &TransferContext<'_>, job: &SyncJob<'_>) {
    let plan = job.plan;
    // The order of phases: what is in the way is removed, directories exist before their entries, renames
    // come before files (their old names may be written to), links after the files that they name, deletions
    // when everything is written, and attributes of directories last, because all of the above changes their
    // times.
    let hidden_dirs = HiddenDirectories::for_job(job);
    carrier.execute_steps(plan.phase_steps(StepPhase::Clear));
    carrier.execute_steps(
        plan.phase_steps(StepPhase::Dirs).iter().filter(|step| !hidden_dirs.is_created_by(step)),
    );
    carrier.execute_steps(plan.phase_steps(StepPhase::Rename));
    let files = plan.phase_steps(StepPhase::Files);
    if !hidden_dirs.is_empty() {
        queue::execute_in_parallel(carrier, files, &|step| hidden_dirs.is_filled_by(step, job), &|steps| {
            hidden_dirs.fill_dirs(carrier, steps)
        });
    }
    let is_later = |step: &SyncStep| carrier.delayed().is_some() && !is_delayed(step);
    let is_wanted = |step: &SyncStep| !is_later(step) && !hidden_dirs.is_filled_by(step, job);
    queue::execute_in_parallel(carrier, files, &is_wanted, &|steps| {
        carrier.execute_steps(steps.iter().filter(|step| is_wanted(step)));
    });
    // Everything that comes with content is complete now. What follows must not be visible before the new
    // files are.
    carrier.name_delayed(job);
    carrier.execute_steps(files.iter().filter(|step| is_later(step)));
    carrier.execute_steps(plan.phase_steps(StepPhase::Links));
    let deletes = plan.phase_steps(StepPhase::Delete);
    // After a failure the old entry may be the only copy: of a file that was renamed at the source, for
    // example, whose new name could not be written.
    if !deletes.is_empty() && carrier.failed.load(Ordering::Relaxed) {
        carrier.report_problem(SyncProblem::for_kept_entries(deletes.len(), ["entry", "entries"]));
    } else {
        carrier.execute_steps(deletes);
    }
    carrier.execute_steps(plan.phase_steps(StepPhase::Finish));
}

/// The names of partial files that this run may continue.
fn collect_partial_names(job: &SyncJob<'_>) -> HashSet<Vec<u8>> {
    if !job.options.writing.resume {
        return HashSet::new();
    }
    let files = job
        .plan
        .phase_steps(StepPhase::Files)
        .iter()
        .filter(|step| matches!(step.action, StepAction::Write(_)));
    files
        .filter_map(|step| job.from.get(step.source?))
        .map(|entry| crate::local::receive::partial_name(&entry))
        .collect()
}

fn collect_wanted_files(job: &SyncJob<'_>) -> Vec<WantedFile> {
    let wanted =
        |(id, how): (ListingEntryId, WriteMethod)| WantedFile { id, delta: how != WriteMethod::Whole };
    let files = job.plan.phase_steps(StepPhase::Files).iter();
    files
        .filter_map(|step| match step.action {
            StepAction::Write(how) => Some((step.source?, how)),
            _ => None,
        })
        .map(wanted)
        .collect()
}
