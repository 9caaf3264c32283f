//! The worktree's lease: changes require it, and its holder changes the worktree's ref in the store.
//!
//! Invariant: who holds a lease changes the ref through it only, so that a process that lost it changes nothing.

use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::Mutex;
use vellum_live::LiveStore;
use vellum_map::{KeySpan, MapRoot};
use vellum_types::{Ino, MapKey, MapKeyRef, SnapshotId};
use vellum_volume::lease::HeldLease;
use vellum_volume::operations::{
    CommandScope, RecordedCommand, RevertScope, RevertedOperation, WorktreeScope, scoped_command,
};
use vellum_volume::refs::{UnsnapshottedTree, WorktreeHead};
use vellum_volume::{SnapshotRecord, Volume, VolumeError};

use crate::error::{FsError, Result};
use crate::tree::encode_layer_key;
use crate::tree::head::{HEAD_KEY, LayerId, LiveHead, PENDING, layer_prefix, orphan_key, parse_map_key};
use crate::tree::wrap_decode_error;

/// A worktree's ref in the store, and the right to change it. A worktree of one process needs no lease.
pub(crate) struct WorktreeLease {
    volume: Arc<Volume>,
    worktree: String,
    tenure: Option<Arc<HeldLease>>,
    /// What changes of the ref are made for at the moment.
    purpose: Mutex<Option<ChangePurpose>>,
}

/// What a command changes the worktree for, as operations record it.
#[derive(Debug, Clone)]
pub struct ChangePurpose {
    /// The command.
    pub command: RecordedCommand,
    /// The operation that it takes back, or carries out once more.
    pub reverted: RevertedOperation,
}

/// While it lives, records of operations say from which worktree and for which command its ref is changed.
struct ChangeScope {
    _worktree: WorktreeScope,
    _command: Option<CommandScope>,
    _reverted: Option<RevertScope>,
}

impl WorktreeLease {
    /// The ref of a worktree, changed with a lease if it has one.
    pub fn new(volume: Arc<Volume>, worktree: String, tenure: Option<Arc<HeldLease>>) -> Self {
        Self { volume, worktree, tenure, purpose: Mutex::default() }
    }

    /// The name of the worktree.
    pub fn worktree_name(&self) -> &str {
        &self.worktree
    }

    /// Fails if another process has taken the worktree over: changes made here would never reach the store.
    pub fn check_held(&self) -> Result<()> {
        Ok(self.tenure.as_ref().map_or(Ok(()), |tenure| tenure.check_still_held())?)
    }

    /// Whether a change may have to wait until it is known who has the worktree.
    pub fn may_change_wait(&self) -> bool {
        self.tenure.as_ref().is_some_and(|tenure| tenure.may_change_wait())
    }

    /// Renews the lease now, which writes the ref with the trees in use. Returns `false` if there is no lease, and
    /// nothing was written.
    pub fn renew(&self) -> Result<bool, VolumeError> {
        self.tenure.as_ref().map_or(Ok(false), |tenure| tenure.renew_lease().map(|()| true))
    }

    /// Lets all changes of the ref be made for a command while `act` runs, whichever thread makes them: snapshots are
    /// published by another one.
    pub fn change_for<T>(&self, purpose: ChangePurpose, act: impl FnOnce() -> T) -> T {
        *self.purpose.lock() = Some(purpose);
        let done = act();
        *self.purpose.lock() = None;
        done
    }

    /// The process that serves a mount was started with another command than the one that it carries out: that which the
    /// ref is changed for, or else the one that is given, if one is.
    fn enter_command(&self, command: Option<&RecordedCommand>) -> ChangeScope {
        let purpose = self.purpose.lock().clone();
        let reverted = purpose.as_ref().map(|purpose| purpose.reverted.clone());
        let command = purpose.map(|purpose| purpose.command).or_else(|| command.cloned());
        ChangeScope {
            _worktree: WorktreeScope::enter(&self.worktree),
            _command: command.map(CommandScope::enter_run),
            _reverted: reverted.map(RevertScope::enter),
        }
    }

    /// Lets `act` record operations as parts of the command that the ref is changed for, or else of this one.
    pub fn record_for<T>(&self, command: &RecordedCommand, act: impl FnOnce() -> T) -> T {
        let _scope = self.enter_command(Some(command));
        act()
    }

    /// Changes the value of the ref.
    pub fn update_ref(&self, change: impl Fn(&mut WorktreeHead)) -> Result<()> {
        let _scope = self.enter_command(None);
        self.change_ref(change)
    }

    /// As [`Self::update_ref`], for the command that this thread works for, or else for one with these words.
    pub fn update_ref_for(&self, command: &[&str], change: impl Fn(&mut WorktreeHead)) -> Result<()> {
        let command = scoped_command().unwrap_or_else(|| RecordedCommand::from_words(command));
        self.record_for(&command, || self.change_ref(change))
    }

    fn change_ref(&self, change: impl Fn(&mut WorktreeHead)) -> Result<()> {
        Ok(match &self.tenure {
            Some(tenure) => tenure.update_worktree_ref(change),
            None => self.volume.update_worktree_ref(&self.worktree, change),
        }?)
    }

    /// Stores the record of a snapshot that has its id already, and lets the worktree stand on it. `live`: what is published
    /// of the worktree besides.
    pub fn commit_snapshot(
        &self,
        record: &SnapshotRecord,
        live: Option<UnsnapshottedTree>,
    ) -> Result<SnapshotId> {
        Ok(match &self.tenure {
            Some(tenure) => tenure.commit_snapshot(record, live),
            None => self.volume.commit_prepared_snapshot(&self.worktree, record, live),
        }?)
    }

    /// Lets every change of the ref name these trees, so that the collector keeps them.
    pub fn set_read_trees_source(&self, source: impl Fn() -> Option<Vec<MapRoot>> + Send + Sync + 'static) {
        if let Some(tenure) = &self.tenure {
            tenure.set_read_trees_source(source);
        }
    }
}

/// Returns the live head of a live store, if it has one.
pub fn read_stored_head(live: &dyn LiveStore) -> Result<Option<LiveHead>> {
    let stored = live.get(HEAD_KEY)?;
    stored.map(|bytes| LiveHead::decode(&bytes).map_err(wrap_decode_error("the head"))).transpose()
}

/// Returns whether a live store has unpublished changes. Open files without a name are none: they cannot be published.
pub fn has_unpublished_state(live: &dyn LiveStore) -> Result<bool> {
    let Some(head) = read_stored_head(live)? else { return Ok(false) };
    let mut found = false;
    for layer in &head.sealed_state().layers {
        found |= !has_orphans_only(live, *layer)?;
    }
    // A pending snapshot counts even if nothing was changed since: its record is not in the store.
    for span in [KeySpan::from_prefix(layer_prefix(head.top_layer())), KeySpan::from_prefix(PENDING)] {
        live.scan(&span, &mut |_, _| {
            found = true;
            ControlFlow::Break(())
        })?;
    }
    Ok(found)
}

/// Whether all that a layer has belongs to files without a name: what publishing leaves of files that are open.
fn has_orphans_only(live: &dyn LiveStore, layer: LayerId) -> Result<bool> {
    let mut rest = KeySpan::from_prefix(layer_prefix(layer));
    loop {
        let mut next = None;
        live.scan(&rest, &mut |key, _| {
            next = Some(key.to_vec());
            ControlFlow::Break(())
        })?;
        let Some(key) = next else { return Ok(true) };
        // A key that cannot be read counts as a change, so that nothing is taken for published that may not be.
        let Some(Ok(found)) = parse_map_key(&key).map(MapKeyRef::parse) else { return Ok(false) };
        let ino = found.ino();
        if live.get(&orphan_key(ino))?.is_none() {
            return Ok(false);
        }
        // Behind all keys of this file.
        rest.start = encode_layer_key(layer, MapKey::for_attr(Ino(ino.0.saturating_add(1))).as_bytes());
    }
}

impl FsError {
    /// Returns whether another process has taken the worktree over.
    #[must_use]
    pub fn is_fenced_error(&self) -> bool {
        matches!(self, Self::Volume(VolumeError::Fenced { .. }))
    }
}
