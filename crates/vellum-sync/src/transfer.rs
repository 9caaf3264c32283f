//! Carrying out a plan in a local directory: phase after phase, the files of one in parallel.
//!
//! Invariant: after the failure of one entry all others are carried out, but nothing is deleted; after a failure that
//! all others would share (no space, read-only) nothing more is begun. Deliberately absent: what a step means for the
//! filesystem (see `receive`).

mod carrier;
mod nest;
mod queue;

use std::sync::atomic::Ordering;

use rustix::fs::syncfs;
use vellum_volume::Meter;

use crate::error::{Result, SyncError};
use crate::listing::EntryId;
use crate::local::Local;
use crate::plan::{Action, How, Phase, Step};
use crate::receive::{Flow, Job, Keeper, Problem, Receiver, Report};
use crate::source::Wanted;
use carrier::Carrier;
use nest::Nests;

/// Carries out a plan below the root of `to`.
pub(crate) fn carry_out(to: &Local, job: &Job<'_>, meter: &Meter) -> Result<Report> {
    if let Some(refusal) = &job.plan.refusal {
        return Err(SyncError::Refused(refusal.clone()));
    }
    let options = job.options;
    if !job.to.leftovers.is_empty() {
        let expected = expected_partials(job);
        to.sweep(job.to, &|path| expected.iter().any(|name| path.ends_with(name)));
    }
    if job.plan.is_empty() && !options.moves {
        return Ok(Report::default());
    }
    let counts = job.plan.counts;
    meter.begin(job.plan.steps.len() as u64, counts.write_bytes);
    job.source.expect(job.from, &expected_files(job));
    // Directories for what is kept are made when there is something to keep.
    let replaces = job.plan.steps.iter().any(|step| step.old.is_some() && step.phase != Phase::Finish);
    let keeper = if replaces { Keeper::new(to.root(), &options.writing)? } else { None };
    let flow = Flow::new(meter, options.preserve.sparse, options.effort.bandwidth);
    let carrier = Carrier::new(to.root(), Receiver::new(job, flow, keeper), meter);
    run(&carrier, job);
    let mut durable = false;
    if options.writing.fsync || options.moves {
        match syncfs(to.root()) {
            Ok(()) => durable = true,
            Err(errno) => carrier.tell(&[], &SyncError::io("make durable")(errno.into())),
        }
    }
    let durable = durable && !carrier.is_over();
    Ok(Report { durable, ..carrier.report() })
}

fn run(carrier: &Carrier<'_>, job: &Job<'_>) {
    let plan = job.plan;
    let nests = Nests::of(job);
    carrier.one_by_one(plan.phase(Phase::Clear));
    carrier.one_by_one(plan.phase(Phase::Dirs).iter().filter(|step| !nests.make(step)));
    carrier.one_by_one(plan.phase(Phase::Rename));
    let files = plan.phase(Phase::Files);
    if !nests.is_empty() {
        queue::in_parallel(carrier, files, &|step| nests.take(step, job), &|steps| {
            nests.fill(carrier, steps)
        });
    }
    let asked = |step: &Step| !nests.take(step, job);
    queue::in_parallel(carrier, files, &asked, &|steps| {
        carrier.one_by_one(steps.iter().filter(|step| asked(step)));
    });
    carrier.one_by_one(plan.phase(Phase::Links));
    let deletes = plan.phase(Phase::Delete);
    if !deletes.is_empty() && carrier.failed.load(Ordering::Relaxed) {
        let message =
            format!("not everything was written, so nothing was deleted; {} entries stay", deletes.len());
        carrier.tell_problem(Problem { path: Vec::new(), message, vanished: false });
    } else {
        carrier.one_by_one(deletes);
    }
    carrier.one_by_one(plan.phase(Phase::Finish));
}

/// Names under which what arrived of files may wait to be taken up.
fn expected_partials(job: &Job<'_>) -> Vec<Vec<u8>> {
    if !job.options.writing.resume {
        return Vec::new();
    }
    let files = job.plan.phase(Phase::Files).iter().filter(|step| matches!(step.action, Action::Write(_)));
    files
        .filter_map(|step| job.from.get(step.source?))
        .map(|entry| crate::receive::partial_name(&entry))
        .collect()
}

fn expected_files(job: &Job<'_>) -> Vec<Wanted> {
    let wanted = |(id, how): (EntryId, How)| Wanted { id, delta: how != How::Whole };
    let files = job.plan.phase(Phase::Files).iter();
    files
        .filter_map(|step| match step.action {
            Action::Write(how) => Some((step.source?, how)),
            _ => None,
        })
        .map(wanted)
        .collect()
}
