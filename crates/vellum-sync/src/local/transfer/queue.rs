//! Distributing the steps of a phase to threads, in portions.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::carrier::TransferContext;
use crate::plan::{StepAction, SyncStep};

/// Fewest steps of a portion, unless it is the last. It ends between two directories if possible: two threads that
/// create files in one directory wait for each other at every file.
const STEPS: usize = 32;
/// Most steps of a portion, so that all threads have work. Content from another host is requested ahead in the order of
/// steps, so that all threads must stay close together: there each portion is as small as possible.
const STEPS_MAX: usize = 512;
/// Bytes after which a portion ends: a large file is a portion of its own.
const BYTES: u64 = 1 << 20;

/// Carries out the wanted steps, which are independent of each other: `carry` receives portions, and skips steps that
/// are not wanted.
pub(super) fn execute_in_parallel(
    carrier: &TransferContext<'_>,
    steps: &[SyncStep],
    is_wanted: &(dyn Fn(&SyncStep) -> bool + Sync),
    carry: &(dyn Fn(&[SyncStep]) + Sync),
) {
    let portions = split_portions(carrier, steps, is_wanted);
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(end) = portions.get(next.fetch_add(1, Ordering::Relaxed)) {
            carry(steps.get(end.0..end.1).unwrap_or_default());
        }
        // This worker has nothing left. A worker that still copies a large file may use the thread for ranges
        // of it.
        carrier.idle_workers().add_idle_worker();
    };
    let threads = carrier.job().options.effort.thread_count();
    let at_work = threads.min(portions.len()).max(1);
    // Threads that are not even started count as idle, so a single large file uses all of them.
    carrier.idle_workers().set_idle_count(threads - at_work);
    std::thread::scope(|scope| {
        for _ in 1..at_work {
            scope.spawn(work);
        }
        work();
    });
    carrier.idle_workers().set_idle_count(0);
}

fn split_portions(
    carrier: &TransferContext<'_>,
    steps: &[SyncStep],
    is_wanted: &dyn Fn(&SyncStep) -> bool,
) -> Vec<(usize, usize)> {
    let mut portions = Vec::with_capacity(steps.len() / STEPS + 1);
    let mut start = 0;
    let mut count = 0;
    let mut bytes = 0;
    let at_most = match carrier.source() {
        // Each file waits for a request of its own. Taking several would leave other threads idle.
        source if source.has_request_per_file() => 1,
        source if source.needs_old_version() => STEPS,
        _ => STEPS_MAX,
    };
    for (place, step) in steps.iter().enumerate().filter(|(_, step)| is_wanted(step)) {
        if let (StepAction::Write(_) | StepAction::CopyBasis(_), Some(id)) = (step.action, step.source) {
            bytes += carrier.source_size(id);
        }
        count += 1;
        // A portion ends between two directories if possible: the kernel lets one thread at a time change a
        // directory.
        let leaves = || steps.get(place + 1).is_none_or(|next| !carrier.has_same_parent(step, next));
        if bytes >= BYTES || count >= at_most || count >= STEPS && leaves() {
            portions.push((start, place + 1));
            (start, count, bytes) = (place + 1, 0, 0);
        }
    }
    if count > 0 {
        portions.push((start, steps.len()));
    }
    portions
}
