//! The current state of a live worktree, what is cached of it, and transactions on it.
//!
//! Invariants: if several layers have a key, the newest one counts, and a tombstone hides lower ones; only the top
//! layer changes, and not while a view reads it; a body that reads sees one live head throughout (sealing, publishing
//! and restoring wait for it); each change requires the lease, and what it changed is in no cache when it returns.

mod accesses;
pub mod cache;
mod cached;
pub mod head;
mod inline;
mod merge;
mod reader;
mod resident;
mod txn;
mod usage;
mod views;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use vellum_live::{CommitSequence, LiveError, LiveStore};
use vellum_map::{KeySpan, NodeCache, NodeSource};
use vellum_types::MapKey;
use vellum_volume::tree::NodeLoader;

use crate::error::Result;
use crate::lease::{WorktreeLease, read_stored_head};
use crate::operation_marks::put_current_mark;
use crate::tree::cache::InodeCache;
use crate::tree::head::{HEAD_KEY, LayerId, LayeredState, LiveHead};

use accesses::AccessTimes;
use merge::LayerChanges;
pub(crate) use merge::{decode_change, encode_change, encode_layer_key, is_layer_empty};
use reader::MapSnapshot;
pub use reader::{MapReader, VisitDentry, VisitEntry, VisitKey};
pub(crate) use reader::{read_numbered_records, wrap_decode_error};
use resident::ResidentNodes;
pub use txn::LiveTransaction;
pub use usage::{UsageAmount, WorktreeUsage};
use views::{ChangeGuard, OpenViews};

/// How often a transaction is begun anew for a node that is not in memory. One that needs more of them, more than
/// memory holds maybe, fetches them while others wait.
const FETCHES_MAX: usize = 64;

/// Where nodes of the base come from.
pub type NodeProvider = NodeCache<NodeLoader>;

/// A live worktree's map.
pub struct LiveMap {
    live: Arc<dyn LiveStore>,
    retries: AtomicU64,
    nodes: Arc<NodeProvider>,
    head: RwLock<LiveHead>,
    views: OpenViews,
    accesses: AccessTimes,
    /// Access times are not updated.
    keeps_access_times: AtomicBool,
    cache: InodeCache,
    usage: WorktreeUsage,
    lease: Arc<WorktreeLease>,
    /// The last transaction that was committed.
    committed: AtomicU64,
}

/// The result of a commit.
struct CommittedChanges {
    sequence: CommitSequence,
    /// The keys that were put or deleted: what caches must forget.
    changed: Vec<MapKey>,
}

impl LiveMap {
    /// Opens the map in a live store. In an empty store it creates one with the head `fresh`. Changes require `lease`.
    pub(crate) fn open(
        live: Arc<dyn LiveStore>,
        nodes: Arc<NodeProvider>,
        fresh: &LiveHead,
        lease: Arc<WorktreeLease>,
    ) -> Result<Self> {
        let head = match read_stored_head(&*live)? {
            Some(head) => head,
            None => {
                live.run_transaction(&mut |txn| {
                    txn.set_key(HEAD_KEY, fresh.encode().into());
                    Ok(())
                })?;
                fresh.clone()
            }
        };
        let map = Self {
            live,
            retries: AtomicU64::new(0),
            nodes,
            views: OpenViews::new(&head),
            head: RwLock::new(head),
            accesses: AccessTimes::default(),
            keeps_access_times: AtomicBool::new(false),
            cache: InodeCache::default(),
            usage: WorktreeUsage::new(),
            lease,
            committed: AtomicU64::new(0),
        };
        // Measured at each opening instead of stored, so that a wrong number cannot stay.
        map.usage.set_used_amount(map.measure_usage()?);
        Ok(map)
    }

    /// How much there is, and may be.
    #[must_use]
    pub fn worktree_usage(&self) -> &WorktreeUsage {
        &self.usage
    }

    /// What keeps the live metadata.
    #[must_use]
    pub fn live_store(&self) -> &Arc<dyn LiveStore> {
        &self.live
    }

    /// Where nodes come from.
    #[must_use]
    pub fn node_provider(&self) -> &Arc<NodeProvider> {
        &self.nodes
    }

    /// The states that views read.
    pub(crate) fn open_views(&self) -> &OpenViews {
        &self.views
    }

    /// Reads the current state. All reads of the body see the same state. The body must not call a method of this map.
    pub fn read_head_state<T>(&self, body: impl FnOnce(&dyn MapReader) -> Result<T>) -> Result<T> {
        let head = self.lock_head();
        let live: &dyn LiveStore = &*self.live;
        body(&MapSnapshot { live: &live, state: &head.state, nodes: &self.nodes })
    }

    /// Reads the trash; `None`: there is none. The body must not call a method of this map.
    pub fn read_trash<T>(&self, body: impl FnOnce(&dyn MapReader) -> Result<T>) -> Result<Option<T>> {
        let head = self.lock_head();
        let Some(state) = &head.trash else { return Ok(None) };
        self.read_sealed_state(state, body).map(Some)
    }

    /// Reads a sealed state.
    pub fn read_sealed_state<T>(
        &self,
        state: &LayeredState,
        body: impl FnOnce(&dyn MapReader) -> Result<T>,
    ) -> Result<T> {
        let live: &dyn LiveStore = &*self.live;
        body(&MapSnapshot { live: &live, state, nodes: &self.nodes })
    }

    /// The changes of a state's layers, merged: of each key the newest, in ascending order.
    pub fn visit_changes(
        &self,
        state: &LayeredState,
        visit: &mut dyn FnMut(Vec<u8>, Option<vellum_map::MapValue>) -> Result<()>,
    ) -> Result<()> {
        let live: &dyn LiveStore = &*self.live;
        let mut changes = LayerChanges::new(&live, &state.layers, &KeySpan::all_keys());
        while let Some((key, value)) = changes.next_change()? {
            visit(key, value)?;
        }
        Ok(())
    }

    /// How often a transaction was tried again, since what it needed was not in memory.
    #[must_use]
    pub fn retry_count(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// Changes the map: carries out all changes of the body, or none if it fails, and removes what was changed from the
    /// caches. The body may run several times, and must not call a method of this map.
    pub fn apply_change<T>(&self, body: impl FnMut(&mut LiveTransaction<'_>) -> Result<T>) -> Result<T> {
        self.lease.check_held()?;
        let (value, CommittedChanges { changed, sequence }) = self.run_transaction(body)?;
        // Of two threads, the one that committed first may get here last.
        self.committed.fetch_max(sequence.0, Ordering::AcqRel);
        self.accesses.forget_changed(&changed);
        // After the commit: what was read before, and is put into the cache only now, has a ticket that this voids.
        self.cache.invalidate_keys(&changed);
        Ok(value)
    }

    /// The last change that was committed.
    pub fn last_commit(&self) -> CommitSequence {
        CommitSequence(self.committed.load(Ordering::Acquire))
    }

    /// Waits until all changes so far are durable. It need not be known that the lease is still held: this is for who is
    /// about to give everything up.
    pub fn sync_changes(&self) -> Result<()> {
        // No change has a higher number, so that all of them are waited for.
        Ok(self.live_store().wait_until_durable(CommitSequence(u64::MAX))?)
    }

    fn run_transaction<T>(
        &self,
        mut body: impl FnMut(&mut LiveTransaction<'_>) -> Result<T>,
    ) -> Result<(T, CommittedChanges)> {
        for _ in 0..FETCHES_MAX {
            let nodes = ResidentNodes::new(&self.nodes, false);
            let done = self.try_transaction(&nodes, &mut body);
            // A body that got along without the node has succeeded, and its result counts.
            match nodes.missing_node().filter(|_| done.is_err()) {
                Some(missing) => {
                    self.retries.fetch_add(1, Ordering::Relaxed);
                    // With nothing locked, since this may wait for the store.
                    self.nodes.load_node(&missing)?
                }
                None => return done,
            };
        }
        self.try_transaction(&ResidentNodes::new(&self.nodes, true), &mut body)
    }

    fn try_transaction<T>(
        &self,
        nodes: &ResidentNodes<'_>,
        body: &mut impl FnMut(&mut LiveTransaction<'_>) -> Result<T>,
    ) -> Result<(T, CommittedChanges)> {
        // Lock order: the head, then the views, then the engine's writer. All three are held until the commit: no
        // view begins and no layer is sealed in the middle of a transaction.
        let (head, changing) = self.lock_for_change()?;
        let mut outcome = None;
        let mut changed = Vec::new();
        let mut grown = UsageAmount::default();
        let committed = self.live.run_transaction(&mut |live| {
            // It may be another try.
            self.usage.release_growth(std::mem::take(&mut grown));
            let mut txn = LiveTransaction::new(live, &head, nodes, &self.accesses);
            let done = body(&mut txn).and_then(|value| {
                let (keys, by) = txn.into_changes()?;
                // Within the engine's transaction, of which there is one at a time: two that fit alone cannot exceed
                // the quota together.
                self.usage.reserve_growth(by)?;
                (changed, grown) = (keys, by);
                Ok(value)
            });
            // What changes nothing can be done again.
            if done.is_ok() && !changed.is_empty() {
                put_current_mark(live);
            }
            let failed = done.is_err();
            outcome = Some(done);
            if failed { Err(LiveError::Abandoned) } else { Ok(()) }
        });
        if committed.is_err() {
            self.usage.release_growth(grown);
        }
        // The error of the body counts: that the transaction was abandoned only follows from it.
        match (outcome, committed) {
            (Some(Err(error)), _) => Err(error),
            (Some(Ok(value)), Ok(sequence)) => {
                if !changed.is_empty() {
                    changing.mark_written(head.top_layer());
                }
                Ok((value, CommittedChanges { sequence, changed }))
            }
            (_, Err(error)) => Err(error.into()),
            (None, Ok(_)) => Err(LiveError::Abandoned.into()),
        }
    }

    /// The head, held still, and the right to change its top layer: one that no view reads.
    fn lock_for_change(&self) -> Result<(RwLockReadGuard<'_, LiveHead>, ChangeGuard<'_>)> {
        loop {
            let head = self.lock_head();
            let changing = self.views.lock_for_change();
            if !changing.is_layer_read(head.top_layer()) {
                return Ok((head, changing));
            }
            // A view reads the top layer: it is sealed first, and this change goes into a new one. Sealing needs the
            // head for itself.
            drop((changing, head));
            self.change_head(|head, _| {
                // Somebody else may have sealed it.
                if self.views.lock_for_change().is_layer_read(head.top_layer()) {
                    head.seal_top_layer();
                }
                Ok(())
            })?;
        }
    }

    /// Returns whether nothing was changed since the top layer was begun.
    pub fn is_top_layer_empty(&self) -> Result<bool> {
        let top = self.lock_head().top_layer();
        self.is_layer_empty(top)
    }

    /// Returns whether a layer has no changes.
    pub(crate) fn is_layer_empty(&self, layer: LayerId) -> Result<bool> {
        let live: &dyn LiveStore = &*self.live;
        Ok(is_layer_empty(&live, layer)?)
    }

    /// Locks the head for reading: while the guard exists, the head does not change.
    pub fn lock_head(&self) -> RwLockReadGuard<'_, LiveHead> {
        self.head.read()
    }

    /// Changes the head: waits until no read and no transaction is in progress, and blocks new ones. What `change` does
    /// to the transaction is committed together with the new head. `change` may run several times.
    pub fn change_head<T>(
        &self,
        mut change: impl FnMut(&mut LiveHead, &mut dyn vellum_live::StoreTransaction) -> Result<T>,
    ) -> Result<(T, CommitSequence)> {
        let mut held: RwLockWriteGuard<'_, LiveHead> = self.head.write();
        let mut outcome = None;
        let mut new = held.clone();
        let committed = self.live.run_transaction(&mut |live| {
            // The body may run again, and must not find what it changed the first time.
            new = held.clone();
            let done = change(&mut new, live);
            let failed = done.is_err();
            outcome = Some(done);
            if failed {
                return Err(LiveError::Abandoned);
            }
            live.set_key(HEAD_KEY, new.encode().into());
            Ok(())
        });
        match (outcome, committed) {
            (Some(Err(error)), _) => Err(error),
            (Some(Ok(value)), Ok(sequence)) => {
                // Not before the commit: if that fails, memory and the store still have the same head.
                *held = new;
                Ok((value, sequence))
            }
            (_, Err(error)) => Err(error.into()),
            (None, Ok(_)) => Err(LiveError::Abandoned.into()),
        }
    }
}
