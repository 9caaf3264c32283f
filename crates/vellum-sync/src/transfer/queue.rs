//! The steps of one phase, some at a time, to all threads.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::carrier::Carrier;
use crate::plan::{Action, Step};

/// Steps that one thread takes together at least, all of their directories: two threads that make files in one wait for
/// each other at every file.
const STEPS: usize = 32;
/// And at most: the others shall have something to do in the meantime. What comes over a line is asked for ahead in the
/// order of steps, so that all threads must stay close together: no more than the least.
const STEPS_MAX: usize = 512;
/// Bytes after which no more are taken: a large file is a portion of its own.
const BYTES: u64 = 1 << 20;

/// Carries out steps that do not depend on each other.
pub(super) fn in_parallel(carrier: &Carrier<'_>, steps: &[Step], threads: usize) {
    let portions = portions(carrier, steps);
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(end) = portions.get(next.fetch_add(1, Ordering::Relaxed)) {
            carrier.one_by_one(steps.get(end.0..end.1).unwrap_or_default());
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(portions.len()) {
            scope.spawn(work);
        }
        work();
    });
}

fn portions(carrier: &Carrier<'_>, steps: &[Step]) -> Vec<(usize, usize)> {
    let mut portions = Vec::with_capacity(steps.len() / STEPS + 1);
    let (mut start, mut bytes) = (0, 0);
    for (place, step) in steps.iter().enumerate() {
        if let (Action::Write(_), Some(id)) = (step.action, step.source) {
            bytes += carrier.size(id);
        }
        let count = place + 1 - start;
        let at_most = if carrier.is_near() { STEPS_MAX } else { STEPS };
        let leaves = || {
            let next = steps.get(place + 1).and_then(|next| next.source);
            next.zip(step.source).is_none_or(|(next, this)| !carrier.are_beside(this, next))
        };
        if bytes >= BYTES || count >= at_most || count >= STEPS && leaves() {
            portions.push((start, place + 1));
            (start, bytes) = (place + 1, 0);
        }
    }
    if start < steps.len() {
        portions.push((start, steps.len()));
    }
    portions
}
