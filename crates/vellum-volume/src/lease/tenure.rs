//! The lease that this process holds: taken, renewed, used, released.
//!
//! Invariants: a holder changes the head only if its token is still there; a holder that lost its token never changes
//! anything again. Without an answer from the store for a whole term, a holder checks the lease before it
//! acknowledges anything; if the store is unreachable, work continues.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use vellum_host::process::host_name;
use vellum_map::MapRoot;
use vellum_types::SnapshotId;

use super::{Lease, LeaseToken, is_lease_over};
use crate::error::{Result, VolumeError};
use crate::operations::{OperationEffect, OperationSink, SealedOperation};
use crate::record::SnapshotRecord;
use crate::refs::{READING_MAX, RefKind, UnsnapshottedTree, WorktreeHead};
use crate::session::{SessionObject, current_time};
use crate::volume::{Volume, decode_worktree_head};

/// How long a writer waits for the store if its lease is in doubt: an unreachable store must not block it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of renewals within a term, so that one failed renewal does no harm.
const RENEWALS: u32 = 3;

/// A monotonic clock that continues while the machine sleeps.
pub trait MonotonicClock: Send + Sync {
    /// The time since some moment in the past.
    fn now(&self) -> Duration;
}

/// The system's clock since it was started.
#[derive(Debug, Clone, Copy, Default)]
pub struct BootClock;

impl MonotonicClock for BootClock {
    fn now(&self) -> Duration {
        // Unlike the monotonic clock, it counts the time that the machine was suspended, in which another process may take the
        // lease.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let secs = u64::try_from(now.tv_sec);
        let nanos = u32::try_from(now.tv_nsec);
        Duration::new(secs.unwrap_or(0), nanos.unwrap_or(0))
    }
}

/// A process that wants to change a worktree.
pub struct LeaseClaimant {
    /// The tokens with which its live state may have been changed last. It takes the lease only if one of them was
    /// the last; with none, it has no live state yet.
    pub known: Vec<LeaseToken>,
    /// The token that it will have, already recorded.
    pub token: LeaseToken,
    /// Directory of its live state.
    pub place: String,
    /// Where it mounts the worktree, if it does.
    pub mountpoint: Option<String>,
    /// Term of its lease if it is not renewed, seconds.
    pub term: u32,
    /// Whether it takes a lease that has not ended.
    pub early: bool,
    /// Its clock.
    pub clock: Arc<dyn MonotonicClock>,
}

/// The result of taking a lease.
#[derive(Debug, Clone)]
pub struct TakenLease {
    /// The current value of the ref.
    pub head: WorktreeHead,
    /// The previous holder, and the directory of its live state, which may have unpublished changes.
    pub put_out: Option<(Lease, String)>,
}

/// The lease of a worktree held by this process.
pub struct HeldLease {
    volume: Arc<Volume>,
    worktree: String,
    token: LeaseToken,
    place: String,
    term: Duration,
    clock: Arc<dyn MonotonicClock>,
    /// Time until which no other process can have taken the lease, milliseconds of the clock.
    sure_until: AtomicU64,
    /// Held by the thread that checks the lease after that time.
    asking: Mutex<()>,
    /// The process that took the lease, for messages.
    lost: OnceLock<String>,
    /// Reports the trees that are read besides the base.
    reading: OnceLock<Box<ReadTrees>>,
    /// What else a change needs; set at most once, before the first change.
    guard: OnceLock<Arc<dyn ChangeGuard>>,
}

/// What else than the lease allows a holder to change its worktree: the claim of a log outside this machine.
pub trait ChangeGuard: Send + Sync {
    /// Fails if nothing may be changed now.
    fn check_change(&self) -> Result<(), GuardRefusal>;

    /// Whether a change may have to wait before it is carried out or refused.
    fn may_change_wait(&self) -> bool;

    /// A position that the log has durably reached; None if there is none that counts.
    fn log_floor(&self) -> Option<u64>;
}

/// Why a guard refuses a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuardRefusal {
    /// Another process has the worktree: nothing will be changed from here any more.
    Lost(String),
    /// It is not known whether another process has the worktree.
    Unsure(String),
}

/// Reports the trees that a holder reads, most important first. `None`: it cannot report any more, and the ref keeps
/// what it has.
pub type ReadTrees = dyn Fn() -> Option<Vec<MapRoot>> + Send + Sync;

impl HeldLease {
    /// Takes the lease of a worktree. Fails with [`VolumeError::Leased`] if another process holds it and the claimant is not
    /// `early`, with [`VolumeError::Behind`] if another process changed the worktree since the claimant's live state, and
    /// with [`VolumeError::NoSuchRef`] if there is no such worktree.
    pub fn acquire(
        volume: &Arc<Volume>,
        worktree: &str,
        claimant: LeaseClaimant,
    ) -> Result<(Arc<Self>, TakenLease)> {
        // The term counts from before the request: however long the answer takes, nobody else may have the lease
        // sooner than this process expects.
        let begun = claimant.clock.now();
        let mut taken = None;
        let missing = || VolumeError::no_worktree(worktree);
        let key = volume.refs.ref_object_key(RefKind::Worktree, worktree)?;
        volume.refs.update_ref(RefKind::Worktree, worktree, |old| {
            let mut head = decode_worktree_head(old.ok_or_else(missing)?)?;
            let before = head.lease.take();
            let is_current = before.as_ref().is_some_and(|lease| claimant.known.contains(&lease.token));
            if !is_current && !claimant.known.is_empty() {
                return Err(claimant.behind_error(worktree, before.as_ref()));
            }
            // Its own lease, if the live state was not copied or moved meanwhile: its lock says that nobody uses it.
            let is_own = is_current && head.place == claimant.place && head.host == host_name();
            let mut put_out = None;
            if let Some(lease) = before.filter(|lease| !is_own && !lease.ended) {
                if !claimant.early && !is_lease_over(volume, &key, &lease)? {
                    return Err(leased_error(worktree, &lease, &head));
                }
                if !is_current {
                    // What it read first is what it stood on before it published last: it may not know of that yet.
                    if let Some(root) = head.reading.first().copied() {
                        head.keep_root_for(lease.token, root);
                    }
                    head.keep_root_for(lease.token, read_base_root(volume, &head)?);
                    put_out = Some((lease, head.place.clone()));
                }
            }
            // In the same swap that checks the previous holder: of two that claim at once, one finds the ref changed
            // and begins again.
            claimant.record_claim(&mut head);
            let value = head.encode();
            taken = Some(TakenLease { head, put_out });
            Ok(Some(value))
        })?;
        let tenure = Arc::new(Self {
            volume: volume.clone(),
            worktree: worktree.into(),
            token: claimant.token,
            place: claimant.place,
            term: Duration::from_secs(claimant.term.into()),
            clock: claimant.clock,
            sure_until: AtomicU64::new(0),
            asking: Mutex::default(),
            lost: OnceLock::new(),
            reading: OnceLock::new(),
            guard: OnceLock::new(),
        });
        tenure.set_sure_from(begun);
        tracing::info!(worktree, term = ?tenure.term, "lease acquired");
        // What others published before they went must be found.
        volume.blobs.refresh_index()?;
        Ok((tenure, taken.ok_or_else(missing)?))
    }

    /// Returns the name of the worktree.
    #[must_use]
    pub fn worktree_name(&self) -> &str {
        &self.worktree
    }

    /// Returns the interval of renewals.
    #[must_use]
    pub fn renewal_period(&self) -> Duration {
        self.term / RENEWALS
    }

    /// Registers the trees that are read, so that every change of the ref names them and the collector keeps them.
    pub fn set_read_trees_source(&self, reading: impl Fn() -> Option<Vec<MapRoot>> + Send + Sync + 'static) {
        // Said once, by who opened the worktree.
        let _ = self.reading.set(Box::new(reading));
    }

    /// Lets changes depend on something else, too.
    pub fn set_change_guard(&self, guard: Arc<dyn ChangeGuard>) {
        // Said once, by who opened the worktree.
        let _ = self.guard.set(guard);
    }

    /// Whether the next change may have to wait for what it depends on besides the lease.
    #[must_use]
    pub fn may_change_wait(&self) -> bool {
        self.guard.get().is_some_and(|guard| guard.may_change_wait())
    }

    /// Gives the lease up for lost, since another process has the right to take it: this one changes nothing any more.
    pub fn lose_lease(&self, why: String) -> VolumeError {
        self.mark_lost(why)
    }

    /// Renews the lease. Fails with [`VolumeError::Fenced`] if it is lost.
    pub fn renew_lease(&self) -> Result<()> {
        self.update_worktree_ref(|_| ())
    }

    /// Changes the value of the worktree's ref, and renews the lease. `change` may be called several times. Changes nothing
    /// and fails with [`VolumeError::Fenced`] if another process took the lease.
    pub fn update_worktree_ref(&self, change: impl Fn(&mut WorktreeHead)) -> Result<()> {
        let refs = &self.volume.refs;
        let put = &mut |sealed: &SealedOperation| refs.put_operation(sealed);
        self.update_worktree_ref_recording(&mut OperationSink { effects: Vec::new(), put }, change)
    }

    /// Records a snapshot that has its id already, and lets the worktree stand on it. What it names must be durable. `live`:
    /// what is published of the worktree since the snapshot; nothing, if that is what it holds. Fails as
    /// [`Self::update_worktree_ref`] does.
    pub fn commit_snapshot(
        &self,
        record: &SnapshotRecord,
        live: Option<UnsnapshottedTree>,
    ) -> Result<SnapshotId> {
        let id = record.compute_id(&self.volume.keys);
        self.volume.catalog.store_record_during(record, |put| {
            let mut sink = OperationSink { effects: vec![OperationEffect::Made(id)], put };
            self.update_worktree_ref_recording(&mut sink, |head| (head.head, head.live) = (Some(id), live))
        })?;
        Ok(id)
    }

    fn update_worktree_ref_recording(
        &self,
        sink: &mut OperationSink<'_>,
        change: impl Fn(&mut WorktreeHead),
    ) -> Result<()> {
        self.check_not_lost()?;
        let begun = self.clock.now();
        // What is read before the change counts, too: a crash may come before the change is known here.
        let reading = self.reading.get().and_then(|reading| reading());
        let floor = self.guard.get().and_then(|guard| guard.log_floor());
        self.volume.refs.update_ref_recording(RefKind::Worktree, &self.worktree, sink, |old| {
            let Some(old) = old else { return Err(self.mark_lost("the worktree was removed".into())) };
            let mut head = decode_worktree_head(old)?;
            self.expect_own_lease(&mut head)?.session = SessionObject::for_current_process();
            if let Some(reading) = &reading {
                // A ref has room for so many. The source names the most important ones first.
                head.reading = reading.iter().take(READING_MAX).copied().collect();
            }
            if let (Some(log), Some(floor)) = (&mut head.log, floor) {
                log.floor = floor;
            }
            change(&mut head);
            Ok(Some(head.encode()))
        })?;
        self.set_sure_from(begun);
        tracing::debug!(worktree = self.worktree, "lease renewed");
        Ok(())
    }

    /// The lease of a ref; an error if it is not the one that this process took.
    fn expect_own_lease<'h>(&self, head: &'h mut WorktreeHead) -> Result<&'h mut Lease> {
        let Some(lease) = &mut head.lease else {
            return Err(self.mark_lost("the worktree was removed and made anew".into()));
        };
        // The token alone decides. Times say when others may take the lease, not whether they did.
        if lease.token != self.token || lease.ended {
            return Err(self.mark_lost(format!("it was taken over by {lease}")));
        }
        Ok(lease)
    }

    /// Removes the worktree, and the lease with it. Fails as [`Self::update_worktree_ref`] does.
    pub fn remove_worktree(&self) -> Result<()> {
        self.check_not_lost()?;
        // A removal is how room is made on a full disk, so it may use the reserve.
        self.volume.release_reserves();
        self.volume.refs.update_ref(RefKind::Worktree, &self.worktree, |old| {
            let Some(old) = old else { return Err(self.mark_lost("the worktree was removed".into())) };
            self.expect_own_lease(&mut decode_worktree_head(old)?)?;
            Ok(None)
        })?;
        // Writers of this process are refused from here on: what they changed would never be published.
        self.mark_lost("the worktree was removed".into());
        self.volume.release_unpublished(&self.worktree)
    }

    /// Releases the lease: everything is published, and another process may take it at once.
    pub fn release_lease(&self) -> Result<()> {
        self.update_worktree_ref(|head| {
            // Nothing is read from here any more: the collector need not keep these trees.
            head.reading.clear();
            head.lease.iter_mut().for_each(|lease| lease.ended = true);
        })?;
        // Local writers are fenced like those of another process: from here on another process may change the head.
        self.mark_lost("its lease was given up".into());
        Ok(())
    }

    /// Fails with [`VolumeError::Fenced`] if the lease is known to be lost. The store is not asked.
    pub fn check_not_lost(&self) -> Result<()> {
        self.lost.get().map_or(Ok(()), |why| Err(self.fenced_error(why)))
    }

    /// Returns why the lease is lost, if it is.
    #[must_use]
    pub fn lease_loss(&self) -> Option<VolumeError> {
        self.check_not_lost().err()
    }

    /// Fails with [`VolumeError::Fenced`] if another process holds the lease; to be called before each change. After a term
    /// without an answer from the store, it asks the store and waits at most 5 seconds.
    pub fn check_still_held(self: &Arc<Self>) -> Result<()> {
        if let Some(guard) = self.guard.get() {
            guard.check_change().map_err(|refusal| match refusal {
                GuardRefusal::Lost(why) => self.mark_lost(why),
                GuardRefusal::Unsure(why) => {
                    VolumeError::UnsureClaim { worktree: self.worktree.clone(), why }
                }
            })?;
        }
        if self.is_surely_held() {
            return Ok(());
        }
        self.check_not_lost()?;
        // Writers pass through here before every change. One of them asks, and those that wait here find the answer below:
        // otherwise all would send a request of their own as soon as the lease is in doubt.
        let _alone = self.asking.lock();
        if self.is_surely_held() {
            return Ok(());
        }
        // Asked by a thread of its own, because a request to a store that is away may take longer than a writer is to
        // wait. If it succeeds later, that counts from then on.
        let (reply, replies) = mpsc::channel();
        let asker = self.clone();
        let ask = move || {
            // The writer may have stopped waiting for the answer.
            let _ = reply.send(asker.renew_lease());
        };
        let asker = std::thread::Builder::new().name("lease".into()).spawn(ask);
        // A thread that cannot be started counts as a store that does not answer.
        let answer = asker.ok().and_then(|_| replies.recv_timeout(PATIENCE).ok());
        self.check_not_lost()?;
        if !matches!(answer, Some(Ok(()))) {
            tracing::warn!(
                worktree = self.worktree,
                "the lease cannot be renewed now: the store does not answer"
            );
            // The store is away. Work goes on here, and it is asked again before long.
            self.set_sure_until(self.clock.now() + self.renewal_period());
        }
        Ok(())
    }

    fn is_surely_held(&self) -> bool {
        self.lost.get().is_none() && to_millis(self.clock.now()) < self.sure_until.load(Ordering::Acquire)
    }

    fn set_sure_from(&self, begun: Duration) {
        self.set_sure_until(begun + self.term);
    }

    fn set_sure_until(&self, end: Duration) {
        // Two renewals may finish in the reverse order. The later end counts, since each was granted by the store.
        self.sure_until.fetch_max(to_millis(end), Ordering::AcqRel);
    }

    fn mark_lost(&self, why: String) -> VolumeError {
        // The first reason stays: a later failure is only its consequence.
        let lost = self.lost.get_or_init(|| {
            tracing::info!(worktree = self.worktree, why, "lease ended");
            why
        });
        self.fenced_error(lost)
    }

    fn fenced_error(&self, why: &str) -> VolumeError {
        VolumeError::Fenced { worktree: self.worktree.clone(), why: why.into(), place: self.place.clone() }
    }
}

impl LeaseClaimant {
    fn behind_error(&self, worktree: &str, by: Option<&Lease>) -> VolumeError {
        let by = by.map_or_else(|| "somebody who made it anew".into(), ToString::to_string);
        VolumeError::Behind { worktree: worktree.into(), by, place: self.place.clone() }
    }

    fn record_claim(&self, head: &mut WorktreeHead) {
        (head.host, head.place) = (host_name(), self.place.clone());
        // What was kept for this live state when others took the lease is its own concern again: it names its trees itself from
        // now on.
        head.left.retain(|(token, _)| !self.known.contains(token));
        head.lease = Some(Lease {
            token: self.token,
            session: SessionObject::for_current_process(),
            mountpoint: self.mountpoint.clone(),
            since: current_time(),
            term: self.term,
            ended: false,
        });
    }
}

/// Returns the tree that the previous holder published last.
fn read_base_root(volume: &Volume, head: &WorktreeHead) -> Result<MapRoot> {
    match (&head.live, &head.head) {
        // What was published since the last snapshot is newer than that.
        (Some(live), _) => Ok(live.root),
        (None, Some(id)) => Ok(volume.catalog.get_record(id)?.root),
        (None, None) => Ok(volume.empty_root()),
    }
}

pub(crate) fn leased_error(worktree: &str, lease: &Lease, head: &WorktreeHead) -> VolumeError {
    let lease = Box::new(lease.clone());
    VolumeError::Leased { worktree: worktree.into(), lease, place: head.place.clone() }
}

fn to_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
