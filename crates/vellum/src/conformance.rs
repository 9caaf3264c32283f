//! The conformance run: the promises of docs/semantics.md, each tried on a filesystem and a store, as a user would try them:
//! by running this program.
//!
//! Invariant: everything is done in one directory that the run makes and removes, and in one folder of the store. Files of
//! the user, settings and what other commands keep of the user are not touched. Deliberately absent: what needs a power cut
//! or a full disk.

mod checked_out;
mod damage;
mod entries;
mod ground;
mod killed;
mod mounted;
mod program;
mod store;

use std::io;
use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;
use vellum_host::ProgressMeter;
use vellum_store::StoreLocation;

use self::ground::TrialGround;
use crate::error::Result;

/// What is tried on.
#[derive(Debug, Clone)]
pub struct ConformanceRequest {
    /// The directory in which the run makes its own.
    pub directory: PathBuf,
    /// The store in which it makes a folder of its own; None: directories beside the worktrees.
    pub store: Option<StoreLocation>,
}

/// Whether a promise is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrialVerdict {
    /// It is kept.
    Pass,
    /// It is not.
    Fail,
    /// It cannot be tried here, or means nothing here.
    NotApplicable,
}

/// What the promises of a group are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PromiseSubject {
    /// Worktrees that are directories.
    CheckedOut,
    /// Worktrees that are mounted.
    Mounted,
    /// The store.
    Store,
}

/// A promise that was tried.
#[derive(Debug, Clone, Serialize)]
pub struct TriedPromise {
    /// What it is about.
    pub subject: PromiseSubject,
    /// The promise, in short.
    pub promise: &'static str,
    /// Whether it is kept.
    pub verdict: TrialVerdict,
    /// Why not, or why it was not tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How it was tried.
    pub tried: &'static str,
    /// How long that took.
    pub seconds: f64,
}

/// Why a trial ended before its end.
#[derive(Debug)]
pub enum TrialStop {
    /// The promise is not kept.
    Broken(String),
    /// It cannot be tried here, or means nothing here.
    Inapplicable(String),
}

/// The outcome of a trial.
pub type TrialResult<T = ()> = Result<T, TrialStop>;

impl From<io::Error> for TrialStop {
    fn from(error: io::Error) -> Self {
        Self::Broken(format!("it could not be tried: {error}"))
    }
}

impl From<rustix::io::Errno> for TrialStop {
    fn from(errno: rustix::io::Errno) -> Self {
        io::Error::from(errno).into()
    }
}

/// Fails unless something is so.
fn expect(is_so: bool, otherwise: impl FnOnce() -> String) -> TrialResult {
    if is_so { Ok(()) } else { Err(TrialStop::Broken(otherwise())) }
}

/// A promise, and how it is tried.
struct Promise {
    name: &'static str,
    how: &'static str,
    check: fn(&TrialGround) -> TrialResult,
}

/// Tries all promises. Fails if there is no place to try them in.
pub fn run_conformance(request: &ConformanceRequest, meter: &ProgressMeter) -> Result<Vec<TriedPromise>> {
    let ground = TrialGround::create(request)?;
    let mut tried = Vec::new();
    for (subject, promises) in [
        (PromiseSubject::CheckedOut, &[checked_out::PROMISES, killed::PROMISES, damage::PROMISES][..]),
        (PromiseSubject::Mounted, &[mounted::PROMISES][..]),
    ] {
        for promise in promises.iter().copied().flatten() {
            meter.check_stopped()?;
            tried.push(try_promise(subject, promise, &ground));
            meter.add_progress(1, 0);
        }
        // All kinds of entries in one worktree: a snapshot and a restore for each would take many times as long.
        let restored = entries::try_restoring(subject, &ground);
        meter.add_progress(restored.len() as u64, 0);
        tried.extend(restored);
    }
    tried.extend(store::try_store(&ground, meter)?);
    // Removed here and not only by `drop`, which could not report that something is left.
    ground.remove()?;
    Ok(tried)
}

fn try_promise(subject: PromiseSubject, promise: &Promise, ground: &TrialGround) -> TriedPromise {
    let start = Instant::now();
    let outcome = (promise.check)(ground);
    TriedPromise::new(subject, (promise.name, promise.how), outcome, start)
}

impl TriedPromise {
    fn new(
        subject: PromiseSubject,
        named: (&'static str, &'static str),
        outcome: TrialResult,
        start: Instant,
    ) -> Self {
        let (promise, tried) = named;
        let (verdict, reason) = match outcome {
            Ok(()) => (TrialVerdict::Pass, None),
            Err(TrialStop::Broken(reason)) => (TrialVerdict::Fail, Some(reason)),
            Err(TrialStop::Inapplicable(reason)) => (TrialVerdict::NotApplicable, Some(reason)),
        };
        Self { subject, promise, verdict, reason, tried, seconds: start.elapsed().as_secs_f64() }
    }
}
