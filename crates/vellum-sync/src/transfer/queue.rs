//! The steps of one phase, some at a time, to all threads.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::carrier::Carrier;
use crate::plan::{Action, Step};

/// Steps that one thread takes together: they are mostly of one directory.
const STEPS: usize = 32;
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
        if place + 1 - start >= STEPS || bytes >= BYTES {
            portions.push((start, place + 1));
            (start, bytes) = (place + 1, 0);
        }
    }
    if start < steps.len() {
        portions.push((start, steps.len()));
    }
    portions
}
