//! The claim of a log by this process: waiting for it, taking it, renewing it, losing it.
//!
//! Invariant: who may append is decided by the engine alone. Times only decide when another process may claim, by the
//! engine's clock, and from when on this one serves no changes, by a clock that continues while the machine sleeps: it
//! counts from before each renewal, and stops at two thirds of the term, so it has stopped when another one may claim.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use vellum_host::fork_safe::{Condvar, Mutex};
use vellum_volume::lease::MonotonicClock;

use crate::error::SharedLogError;
use crate::log::{LogClaim, LogEpoch, LogIncarnation, ServerRecord, ServerSighting, SharedLog};

/// How long a claim counts that is not renewed, by the engine's clock.
pub const CLAIM_TERM: Duration = Duration::from_secs(10);
/// From when on a server that could not renew its claim serves no changes.
const SERVE_TERM: Duration = Duration::from_millis(6_667);
/// For how long after that nobody else can claim the log.
pub const CLAIM_RESERVE: Duration = CLAIM_TERM.saturating_sub(SERVE_TERM);
/// The interval of renewals: three within a term.
const RENEW_EVERY: Duration = Duration::from_secs(3);
/// The interval after a renewal that failed.
const RETRY_EVERY: Duration = Duration::from_millis(500);
/// By how much two ages of one claim may contradict each other: stores tell times in seconds.
const CLOCK_ERROR: Duration = Duration::from_millis(1_500);
/// How often a process that waits for a claim looks at it.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Why a log takes nothing more from this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFailure {
    /// Why, as messages show it.
    pub reason: String,
    /// Whether another process has the log.
    pub is_fenced: bool,
}

impl LogFailure {
    pub(crate) fn stopped() -> Self {
        Self { reason: "the shared log is closed".into(), is_fenced: false }
    }
}

impl fmt::Display for LogFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for LogFailure {}

/// What stands in the way of a claim.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another server renews its claim.
    #[error("{} has the worktree and renews its claim", .0.host)]
    InUse(ServerRecord),
    /// The log itself failed.
    #[error(transparent)]
    Log(#[from] SharedLogError),
    /// The claim cannot be recorded on this machine.
    #[error("cannot record the claim of the shared log: {0}")]
    Record(std::io::Error),
}

/// What a process knows when it wants to claim a log.
pub struct ClaimRequest<'a> {
    /// The log that the worktree continues in.
    pub expected: LogIncarnation,
    /// This process.
    pub server: &'a ServerRecord,
    /// Processes of this state directory that may have claimed it last. They have ended, since this one has the lock.
    pub own: &'a [[u8; 16]],
    /// Whether to claim it though another server may have it.
    pub early: bool,
    /// Tells when the claim was asked for.
    pub clock: &'a dyn MonotonicClock,
    /// Called before a claim with the server before: whoever claims has to know afterwards, also after a crash, that it
    /// was this one.
    pub before_claim: &'a dyn Fn(Option<&ServerRecord>) -> std::io::Result<()>,
}

/// A claim, and who had it before.
#[derive(Debug, Clone)]
pub struct TakenClaim {
    /// The claim.
    pub claim: LogClaim,
    /// The server before; None if there was none.
    pub before: Option<ServerRecord>,
    /// When it was asked for, by the claimant's clock.
    pub begun: Duration,
}

/// Claims a log, as soon as the server before cannot be serving any more. Fails with [`ClaimError::InUse`] once that has
/// renewed its claim while it was watched.
pub fn claim_log(log: &dyn SharedLog, request: &ClaimRequest<'_>) -> Result<TakenClaim, ClaimError> {
    let mut watched: Option<(ServerSighting, Instant)> = None;
    loop {
        let seen = log.current_server(None, Duration::ZERO)?;
        let is_free = seen.as_ref().is_none_or(|seen| {
            seen.released
                || seen.age > CLAIM_TERM
                || request.early
                || request.own.contains(&seen.server.instance)
        });
        if is_free {
            let after = seen.as_ref().map(|seen| seen.epoch);
            let before = seen.as_ref().map(|seen| &seen.server);
            // Before the claim: if this process dies right after it, the next one must know whose log it has taken.
            (request.before_claim)(before).map_err(ClaimError::Record)?;
            // Before it is sent: the engine counts the term from when it arrives, so this side stops earlier.
            let begun = request.clock.now();
            match log.claim(request.expected, request.server, after) {
                Ok(claim) => {
                    return Ok(TakenClaim { claim, before: seen.map(|seen| seen.server), begun });
                }
                // Somebody else was faster: it is that one now for which to wait.
                Err(SharedLogError::Fenced { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        } else if let (Some(seen), Some((before, at))) = (&seen, &watched)
            // Another epoch, or an age that has grown by less than the time since the last look: it was renewed.
            && (seen.epoch != before.epoch || seen.age + CLOCK_ERROR < before.age + at.elapsed())
        {
            return Err(ClaimError::InUse(seen.server.clone()));
        }
        watched = seen.map(|seen| (seen, Instant::now()));
        // The server before may be alive and slow. It is watched until it renews, or until a whole term has passed.
        thread::sleep(LOOK_EVERY);
    }
}

/// The claim of this process, shared by those who append, renew and serve.
pub struct HeldClaim {
    /// The log.
    pub log: Arc<dyn SharedLog>,
    /// This process.
    pub server: ServerRecord,
    clock: Arc<dyn MonotonicClock>,
    current: Mutex<HeldLog>,
    /// Until when changes may be served, milliseconds of the clock.
    serve_until: AtomicU64,
    failure: Mutex<Option<LogFailure>>,
    /// Wakes those who wait to serve.
    changed: Condvar,
    hooks: Mutex<ClaimHooks>,
}

/// Called when the log takes nothing more from this process.
type FailureHook = Box<dyn Fn(&LogFailure) + Send>;

/// What is called when something becomes of the claim.
#[derive(Default)]
struct ClaimHooks {
    failed: Vec<FailureHook>,
    gone: Option<Box<dyn Fn() + Send>>,
}

/// The log that is claimed, and under which epoch.
#[derive(Debug, Clone, Copy)]
pub struct HeldLog {
    /// Which log it is.
    pub incarnation: LogIncarnation,
    /// The epoch of the claim.
    pub epoch: LogEpoch,
}

impl HeldClaim {
    /// Holds a claim, of which it counts the age by the clock with which it was taken.
    #[must_use]
    pub fn new(
        log: Arc<dyn SharedLog>,
        server: ServerRecord,
        taken: &TakenClaim,
        clock: Arc<dyn MonotonicClock>,
    ) -> Self {
        let TakenClaim { claim, begun, .. } = taken;
        let held = Self {
            log,
            server,
            clock,
            current: Mutex::new(HeldLog { incarnation: claim.incarnation, epoch: claim.epoch }),
            serve_until: AtomicU64::new(0),
            failure: Mutex::new(None),
            changed: Condvar::new(),
            hooks: Mutex::default(),
        };
        held.extend_from(*begun);
        held
    }

    /// Which log is claimed, and under which epoch.
    #[must_use]
    pub fn current(&self) -> HeldLog {
        *self.current.lock()
    }

    /// Creates a log where there is none any more, and claims it.
    pub fn replace_log(&self) -> Result<LogClaim, SharedLogError> {
        let begun = self.clock.now();
        let incarnation = self.log.create()?;
        // Another process that lost the same log may have created the new one and claimed it; then the claim below is
        // refused.
        let after = self.log.current_server(None, Duration::ZERO)?.map(|seen| seen.epoch);
        let claim = self.log.claim(incarnation, &self.server, after)?;
        *self.current.lock() = HeldLog { incarnation, epoch: claim.epoch };
        self.extend_from(begun);
        Ok(claim)
    }

    /// Renews the claim.
    pub fn renew(&self) -> Result<(), SharedLogError> {
        // From before the request is sent, since the engine counts from when it arrives.
        let begun = self.clock.now();
        self.log.renew(self.current().epoch)?;
        self.extend_from(begun);
        Ok(())
    }

    /// Returns whether this process can be sure that no other one has claimed the log.
    #[must_use]
    pub fn is_sure(&self) -> bool {
        to_millis(self.clock.now()) < self.serve_until.load(Ordering::Acquire)
    }

    /// Returns whether this process will be sure for some time without a renewal.
    #[must_use]
    pub fn is_sure_for(&self, time: Duration) -> bool {
        to_millis(self.clock.now() + time) < self.serve_until.load(Ordering::Acquire)
    }

    /// Waits until changes may be served, `patience` at most. Returns false if it is not known by then.
    pub fn wait_until_sure(&self, patience: Duration) -> Result<bool, LogFailure> {
        let until = Instant::now() + patience;
        // Held while `is_sure` is looked at: `extend_from` and `fail` take it, so that no wake-up is missed.
        let mut failure = self.failure.lock();
        loop {
            if let Some(failure) = &*failure {
                return Err(failure.clone());
            }
            if self.is_sure() {
                return Ok(true);
            }
            if self.changed.wait_until(&mut failure, until).timed_out() {
                return Ok(self.is_sure());
            }
        }
    }

    /// Why the log takes nothing more from this process.
    #[must_use]
    pub fn failure(&self) -> Option<LogFailure> {
        self.failure.lock().clone()
    }

    /// Lets `hook` be called when the log takes nothing more from this process; at once, if that is so already.
    pub fn add_failure_hook(&self, hook: impl Fn(&LogFailure) + Send + 'static) {
        let mut hooks = self.hooks.lock();
        match self.failure() {
            // With the hooks locked, so that a failure between the look and the push cannot pass the hook by.
            Some(failure) => hook(&failure),
            None => hooks.failed.push(Box::new(hook)),
        }
    }

    /// Lets `hook` be called when a renewal finds that the log is gone.
    pub fn set_gone_hook(&self, hook: impl Fn() + Send + 'static) {
        self.hooks.lock().gone = Some(Box::new(hook));
    }

    /// From now on no changes are served. The first reason stays.
    pub fn fail(&self, failure: LogFailure) {
        {
            let mut known = self.failure.lock();
            if known.is_some() {
                return;
            }
            *known = Some(failure.clone());
            // With the failure's lock, which a renewal takes as well: one that is answered late must not extend a failed
            // claim.
            self.serve_until.store(0, Ordering::Release);
        }
        self.changed.notify_all();
        // Each is called once: nobody sets the failure again.
        let hooks = std::mem::take(&mut self.hooks.lock().failed);
        hooks.iter().for_each(|hook| hook(&failure));
    }

    /// What a failure means for this process.
    pub(crate) fn describe_failure(&self, error: &SharedLogError) -> LogFailure {
        if !matches!(error, SharedLogError::Fenced { .. }) {
            return LogFailure { reason: error.to_string(), is_fenced: false };
        }
        // Only for the message: that it was taken is known.
        let taker = self.log.current_server(None, Duration::ZERO).ok().flatten();
        let by = taker.map_or_else(|| "another machine".to_owned(), |seen| seen.server.host);
        let reason = format!("{by} has taken it over, with all that was synced here ({error})");
        LogFailure { reason, is_fenced: true }
    }

    fn extend_from(&self, begun: Duration) {
        let failure = self.failure.lock();
        if failure.is_none() {
            // The maximum, since answers of two renewals may come in the other order.
            self.serve_until.fetch_max(to_millis(begun + SERVE_TERM), Ordering::AcqRel);
        }
        self.changed.notify_all();
    }
}

fn to_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The thread that renews a claim until it is dropped, or the claim is lost.
pub struct ClaimKeeper {
    stop: Arc<KeeperStop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct KeeperStop {
    is_set: Mutex<bool>,
    wake: Condvar,
}

impl ClaimKeeper {
    /// Starts the thread. What is called if the claim is lost or the log is gone, the claim knows.
    pub fn start(claim: Arc<HeldClaim>) -> std::io::Result<Self> {
        let stop = Arc::<KeeperStop>::default();
        let stopped = stop.clone();
        let keep = move || {
            let mut period = RENEW_EVERY;
            // A server that can do nothing any more leaves the log to others.
            while !stopped.wait(period) && claim.failure().is_none() {
                match claim.renew() {
                    Ok(()) => period = RENEW_EVERY,
                    Err(error @ SharedLogError::Fenced { .. }) => {
                        return claim.fail(claim.describe_failure(&error));
                    }
                    Err(SharedLogError::Lost { .. }) => {
                        // Who appends does what is to be done.
                        claim.hooks.lock().gone.iter().for_each(|hook| hook());
                        period = RETRY_EVERY;
                    }
                    // The engine is away, or refuses what may be mended: who changes files waits meanwhile.
                    Err(error) => {
                        tracing::warn!(%error, "the claim of the shared log cannot be renewed");
                        period = RETRY_EVERY;
                    }
                }
            }
        };
        let thread = thread::Builder::new().name("log-claim".into()).spawn(keep)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl KeeperStop {
    /// Waits; returns true if the thread is to stop.
    fn wait(&self, period: Duration) -> bool {
        let mut is_set = self.is_set.lock();
        // Not a sleep: a worktree that is closed must not wait for the next renewal.
        self.wake.wait_while_for(&mut is_set, |is_set| !*is_set, period);
        *is_set
    }
}

impl Drop for ClaimKeeper {
    fn drop(&mut self) {
        *self.stop.is_set.lock() = true;
        self.stop.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic there has been told already.
            let _ = thread.join();
        }
    }
}
