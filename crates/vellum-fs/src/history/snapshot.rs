//! Snapshots and restores of a live worktree: the top layer is sealed, or the state is replaced. The cost of both is
//! independent of the number of files.

use vellum_host::process::host_name;
use vellum_host::process::user_name;
use vellum_types::{SnapshotId, UnixTime};
use vellum_volume::exclusions::SnapshotExclusions;
use vellum_volume::operations::scoped_command;
use vellum_volume::session::{current_time, date_after_parent};
use vellum_volume::{SnapshotOrigin, SnapshotRecord, SnapshotStatistics, resolve};

use crate::error::{FsError, Result};
use crate::fs::LiveFilesystem;
use crate::history::exclusions::{ExclusionChoice, check_exclusions_kept, keep_exclusions};
use crate::history::expected::ExpectedState;
use crate::history::pending::{PendingSnapshot, read_pending_snapshots};
use crate::history::retained_roots;
use crate::lease::ChangePurpose;
use crate::publish::LAYERS_MANY;
use crate::tree::UsageAmount;
use crate::tree::head::{AncestorSnapshot, LayeredState, LiveHead, pending_snapshot_key};

/// Attributes of a new snapshot.
#[derive(Debug, Clone)]
pub struct LiveSnapshotRequest {
    /// Its note.
    pub note: String,
    /// Its tags.
    pub tags: Vec<String>,
    /// Its origin.
    pub origin: SnapshotOrigin,
}

/// The unpublished part of a live worktree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnpublishedChanges {
    /// Pending snapshots.
    pub snapshots: u64,
    /// Layers below the top layer.
    pub sealed_layers: u64,
    /// Bytes of file data in the write log.
    pub log_bytes: u64,
    /// Bytes of live metadata in memory, about.
    pub metadata_bytes: u64,
}

/// What a restore does with changes that no snapshot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnsavedChanges {
    /// They are saved in a safety snapshot.
    Save,
    /// They are discarded.
    Discard,
    /// The restore fails. It also fails if the worktree stands on another snapshot than this one.
    Refuse {
        /// Where the worktree stood when the target was computed.
        expected: SnapshotId,
    },
}

impl UnsavedChanges {
    fn for_restore(discard: bool) -> Self {
        if discard { Self::Discard } else { Self::Save }
    }

    fn check_head(self, head: &LiveHead) -> Result<()> {
        match self {
            // Somebody took a snapshot of unchanged files meanwhile, which would be left out of the history.
            Self::Refuse { expected } if head.snapshot.as_ref().is_none_or(|last| last.id != expected) => {
                Err(FsError::ChangedMeanwhile)
            }
            Self::Refuse { .. } | Self::Save | Self::Discard => Ok(()),
        }
    }
}

impl LiveFilesystem {
    /// Makes a snapshot of everything. When it returns, the snapshot survives a power cut; its tree is published later. A
    /// safety snapshot leaves out what the last snapshot of everything left out, and is in the store then.
    pub fn create_snapshot(&self, request: &LiveSnapshotRequest) -> Result<SnapshotId> {
        self.create_snapshot_with_parents(request, &[])
    }

    /// The same for a snapshot that ends a merge: it descends from `parents`, and from the last snapshot if there are
    /// none. Its counter is above that of the last snapshot, which is the merge with its conflicts.
    pub fn create_snapshot_with_parents(
        &self,
        request: &LiveSnapshotRequest,
        parents: &[SnapshotId],
    ) -> Result<SnapshotId> {
        let nothing = SnapshotExclusions::default();
        let choice = match request.origin {
            SnapshotOrigin::User => ExclusionChoice::Given(&nothing),
            SnapshotOrigin::Safety => ExclusionChoice::Kept,
        };
        self.create_snapshot_excluding(request, parents, choice)
    }

    /// The same for a snapshot that leaves something out. If it does, it is in the store when this returns. What is given
    /// is left out until the next snapshot of everything, unless this is a safety snapshot. Fails with
    /// [`FsError::BadPattern`] if a pattern is none.
    pub fn create_snapshot_excluding(
        &self,
        request: &LiveSnapshotRequest,
        parents: &[SnapshotId],
        choice: ExclusionChoice<'_>,
    ) -> Result<SnapshotId> {
        self.lease().check_held()?;
        let exclusions = self.resolve_exclusions(choice)?;
        let decides = match (request.origin, choice) {
            (SnapshotOrigin::User, ExclusionChoice::Given(_)) => true,
            (SnapshotOrigin::Safety, _) | (SnapshotOrigin::User, ExclusionChoice::Kept) => false,
        };
        if !exclusions.is_empty() {
            return self.create_visible_snapshot(request, parents, &exclusions, decides);
        }
        let id = self.create_whole_snapshot(request, parents, decides)?;
        self.forget_visible_tree();
        Ok(id)
    }

    fn create_whole_snapshot(
        &self,
        request: &LiveSnapshotRequest,
        parents: &[SnapshotId],
        decides: bool,
    ) -> Result<SnapshotId> {
        // Not under the head: it may publish, which needs the head for itself.
        self.publisher().limit_layer_count(LAYERS_MANY)?;
        let mut record = self.new_snapshot_record(request);
        let (id, sequence) = self.live_map().change_head(|head, live| {
            if let Some(last) = &head.snapshot {
                record.parents = if parents.is_empty() { vec![last.id] } else { parents.to_vec() };
                record.counter = last.counter + 1;
                // Whatever the clock says, a snapshot is later than the one it follows, unless that is in the future.
                record.time = date_after_parent(record.time, next_moment(last.time));
            }
            let id = self.volume().assign_snapshot_id(&mut record)?;
            head.seal_top_layer();
            let state = head.sealed_state();
            // Nobody writes while the head is changed: this is what the sealed state holds.
            let used = self.live_map().worktree_usage().used_amount();
            let pending = PendingSnapshot {
                state,
                used,
                id,
                record: record.clone(),
                tags: request.tags.clone(),
                // The thread that publishes it works for no command.
                command: scoped_command(),
            };
            live.set_key(&pending_snapshot_key(head.next_pending), pending.encode().into());
            head.next_pending += 1;
            if decides {
                keep_exclusions(live, &SnapshotExclusions::default())?;
            }
            head.snapshot = Some(AncestorSnapshot { id, counter: record.counter, time: record.time });
            Ok(id)
        })?;
        // Content first, then what names it. The snapshot's own record is part of the transaction that is waited for
        // below.
        self.write_log().sync_log()?;
        self.live_map().live_store().wait_until_durable(sequence)?;
        Ok(id)
    }

    pub(crate) fn new_snapshot_record(&self, request: &LiveSnapshotRequest) -> SnapshotRecord {
        SnapshotRecord {
            nonce: Default::default(),
            root: self.volume().empty_root(),
            parents: Vec::new(),
            counter: 1,
            time: current_time(),
            worktree: self.worktree_name().into(),
            author: user_name(),
            host: host_name(),
            note: request.note.clone(),
            origin: request.origin,
            paths: Vec::new(),
            statistics: SnapshotStatistics::default(),
        }
    }

    /// Restores a snapshot. Changes that no snapshot holds are saved in a safety snapshot first, whose id is
    /// returned, unless they are to be discarded. Holders of inodes continue to read their old content.
    pub fn restore_snapshot(&self, target: SnapshotId, discard: bool) -> Result<Option<SnapshotId>> {
        self.replace_state(target, UnsavedChanges::for_restore(discard), None)
    }

    /// Restores a snapshot as [`LiveFilesystem::restore_snapshot`] does. Fails with [`FsError::ChangedMeanwhile`], and changes
    /// nothing, if the worktree holds something else than the caller has looked at.
    pub fn restore_expected_state(
        &self,
        target: SnapshotId,
        discard: bool,
        expected: &ExpectedState,
    ) -> Result<Option<SnapshotId>> {
        self.replace_state(target, UnsavedChanges::for_restore(discard), Some(expected))
    }

    /// Restores a snapshot that descends from `from`, if the worktree still holds what `from` holds and stands on it.
    /// Fails with [`FsError::ChangedMeanwhile`] otherwise, and changes nothing: what somebody writes while a successor is
    /// computed is never replaced by it.
    pub fn advance_snapshot(&self, target: SnapshotId, from: SnapshotId) -> Result<()> {
        self.replace_state(target, UnsavedChanges::Refuse { expected: from }, None).map(drop)
    }

    /// Lets the worktree stand on another snapshot, or on none, and leaves its files alone: what they hold is a change since
    /// then. Fails with [`FsError::ChangedMeanwhile`] if it stands on another one than `from`.
    pub fn move_to_snapshot(&self, from: Option<SnapshotId>, target: Option<SnapshotId>) -> Result<()> {
        self.lease().check_held()?;
        self.publisher().publish_pending()?;
        // Until the ref names it as the last one.
        let _named = target.map(|target| self.pin_snapshot_tree(target)).transpose()?;
        let published = target.map(|target| self.load_published_state(target)).transpose()?;
        let ancestor = published.map(|(_, _, ancestor)| ancestor);
        // Otherwise the publisher could write the ref between the two changes, for another command.
        let _paused = self.publisher().pause_publishing();
        let ((), sequence) = self.live_map().change_head(|head, _| {
            let stands = head.snapshot.as_ref().map(|last| last.id);
            // A command that was killed before the ref was changed is repeated.
            if stands != from && stands != target {
                return Err(FsError::ChangedMeanwhile);
            }
            head.snapshot = ancestor;
            self.publisher().set_head_command(scoped_command());
            Ok(())
        })?;
        self.live_map().live_store().wait_until_durable(sequence)?;
        self.publisher().announce_moved_head()
    }

    /// Lets operations be recorded as parts of a command while `act` runs, and publishes afterwards what it left to be
    /// published.
    pub fn change_for<T, E: From<FsError>>(
        &self,
        purpose: ChangePurpose,
        act: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.lease().change_for(purpose, || {
            let done = act()?;
            self.publisher().publish_pending()?;
            Ok(done)
        })
    }

    fn replace_state(
        &self,
        target: SnapshotId,
        unsaved: UnsavedChanges,
        expected: Option<&ExpectedState>,
    ) -> Result<Option<SnapshotId>> {
        self.lease().check_held()?;
        let exclusions = self.kept_exclusions()?;
        if !exclusions.is_empty() {
            return self.replace_visible_state(target, unsaved, expected, &exclusions);
        }
        let waits = self.live_map().pending_snapshots()?.iter().any(|(_, waiting)| waiting.id == target);
        // Before the epoch is locked: this may fetch from the store, and all requests would wait for it.
        let mut named = if waits { None } else { Some(self.pin_snapshot_tree(target)?) };
        // From here on no operation is under way that could return a number of the old state as one of the new.
        let ended = self.epochs().lock_epoch();
        // Nobody changes anything between this and the new state.
        expected.map_or(Ok(()), |expected| self.check_expected_state(expected))?;
        let saved = self.save_before_restore(target, unsaved)?;
        let present = self.epochs().current_epoch();
        let mut held = None;
        let sequence = loop {
            let (stands, sequence) = self.live_map().change_head(|head, live| {
                unsaved.check_head(head)?;
                // A snapshot may have left something out meanwhile, which would be lost.
                check_exclusions_kept(live, &exclusions)?;
                // Looked up within: it may be published, and be no more among those that wait, at any moment.
                let waiting = read_pending_snapshots(|span, visit| live.scan(span, visit))?;
                let (state, used, ancestor) = match waiting.into_iter().find(|(_, waits)| waits.id == target)
                {
                    Some((_, PendingSnapshot { state, used, id, record, .. })) => {
                        (state, used, AncestorSnapshot { id, counter: record.counter, time: record.time })
                    }
                    // It was published in between. Its tree must be pinned first, for which the head has to be given
                    // back.
                    None if named.is_none() => return Ok(false),
                    None => self.load_published_state(target)?,
                };
                // Taken once, though the body may run again: a second call would find nobody.
                let held =
                    held.get_or_insert_with(|| self.content().open_inodes().take_held_inodes()).clone();
                self.epochs().begin_next_epoch(present, head.state.clone(), held)?;
                retained_roots::retain_for_trash(live, &head.state, &head.trash_layers())?;
                set_head_state(head, state, ancestor);
                // Before the head is released: from then on, the ref may be changed.
                self.publisher().set_head_command(scoped_command());
                self.live_map().worktree_usage().set_used_amount(used);
                // Before the head is released: nobody may read the new state and find the old one cached.
                self.forget_cached_state();
                Ok(true)
            })?;
            if stands {
                break sequence;
            }
            named = Some(self.pin_snapshot_tree(target)?);
        };
        self.live_map().open_views().note_unneeded_layers();
        // Requests go on in the new state before it is durable, as they do after any other change.
        drop(ended);
        self.live_map().live_store().wait_until_durable(sequence)?;
        Ok(saved)
    }

    /// The same for a worktree of which the last snapshot left something out: that is carried over. Fails with
    /// [`FsError::InTheWay`] if the target has something else in its place, unless unsaved changes are to be discarded.
    fn replace_visible_state(
        &self,
        target: SnapshotId,
        unsaved: UnsavedChanges,
        expected: Option<&ExpectedState>,
        exclusions: &SnapshotExclusions,
    ) -> Result<Option<SnapshotId>> {
        // What is left to be stored while all requests wait is little then.
        self.publisher().publish_all()?;
        let _named = self.pin_snapshot_tree(target)?;
        let ended = self.epochs().lock_epoch();
        // From here on nobody changes anything.
        expected.map_or(Ok(()), |expected| self.check_expected_state(expected))?;
        let overwrites = unsaved == UnsavedChanges::Discard;
        // Before the safety snapshot: a restore that fails leaves nothing behind.
        let carried = self.store_carried_tree(target, exclusions, overwrites)?;
        let saved = self.save_before_restore(target, unsaved)?;
        let state = LayeredState { base: carried.root, counted: carried.counted, layers: Vec::new() };
        // Named by the worktree's ref before it stands on it: the session ends with the process.
        let _read = self.name_stored_tree(&state)?;
        let (.., ancestor) = self.load_published_state(target)?;
        let present = self.epochs().current_epoch();
        let mut held = None;
        let ((), sequence) = self.live_map().change_head(|head, live| {
            unsaved.check_head(head)?;
            check_exclusions_kept(live, exclusions)?;
            let held = held.get_or_insert_with(|| self.content().open_inodes().take_held_inodes()).clone();
            self.epochs().begin_next_epoch(present, head.state.clone(), held)?;
            retained_roots::retain_for_trash(live, &head.state, &head.trash_layers())?;
            set_head_state(head, state.clone(), ancestor);
            self.publisher().set_head_command(scoped_command());
            self.live_map().worktree_usage().set_used_amount(UsageAmount::from_statistics(&state.counted));
            self.forget_cached_state();
            Ok(())
        })?;
        self.live_map().open_views().note_unneeded_layers();
        drop(ended);
        self.live_map().live_store().wait_until_durable(sequence)?;
        // For who takes the worktree over. The restore is done, and stays so if the ref cannot be written now: the publisher
        // writes it later, and among the trees that are read the ref names this one already.
        if self.publisher().announce_restored_state().is_ok() {
            let _ = carried.session.end_session();
        }
        Ok(saved)
    }

    /// Does with changes that no snapshot holds what is wanted; returns the snapshot that saves them. The caller has
    /// locked the epoch, so that nobody changes anything after this has looked.
    fn save_before_restore(&self, target: SnapshotId, unsaved: UnsavedChanges) -> Result<Option<SnapshotId>> {
        match unsaved {
            UnsavedChanges::Discard => return Ok(None),
            UnsavedChanges::Refuse { .. } if self.is_changed()? => return Err(FsError::ChangedMeanwhile),
            UnsavedChanges::Refuse { .. } => return Ok(None),
            UnsavedChanges::Save if !self.is_changed()? => return Ok(None),
            UnsavedChanges::Save => {}
        }
        // Not from the store's list, which may take long to be read: this is for people.
        let short = resolve::shorten_id(&target, &self.volume().catalog.cached_ids());
        let note = format!("before the restore of {short}");
        let request = LiveSnapshotRequest { note, tags: Vec::new(), origin: SnapshotOrigin::Safety };
        self.create_snapshot(&request).map(Some)
    }

    /// Returns the state of a published snapshot.
    pub(crate) fn load_published_state(
        &self,
        id: SnapshotId,
    ) -> Result<(LayeredState, UsageAmount, AncestorSnapshot)> {
        let record = self.volume().catalog.get_record(&id)?;
        // Both count since the last snapshot of the worktree, which from now on is this one.
        let counted = SnapshotStatistics { changed: 0, stored: 0, ..record.statistics };
        let state = LayeredState { base: record.root, counted, layers: Vec::new() };
        Ok((
            state,
            UsageAmount::from_statistics(&counted),
            AncestorSnapshot { id, counter: record.counter, time: record.time },
        ))
    }

    /// Returns whether anything changed since the last snapshot, but for what that left out. If it left something out, this
    /// needs the store, and lists all directories if anything changed since this was last asked.
    pub fn is_changed(&self) -> Result<bool> {
        if !self.differs_from_snapshot()? {
            return Ok(false);
        }
        let exclusions = self.kept_exclusions()?;
        Ok(exclusions.is_empty() || self.is_visibly_changed(&exclusions)?)
    }

    /// Returns whether the worktree holds something else than the last snapshot, which may be what that left out.
    pub fn differs_from_snapshot(&self) -> Result<bool> {
        if !self.live_map().is_top_layer_empty()? {
            return Ok(true);
        }
        let head = self.live_map().lock_head().clone();
        // As long as there is no snapshot, none holds what is there, however little it is.
        let Some(last) = head.snapshot else { return Ok(true) };
        Ok(match self.live_map().pending_snapshots()?.into_iter().find(|(_, waits)| waits.id == last.id) {
            // The snapshot is not published. Nothing was changed if the same layers still lie below the top
            // one.
            Some((_, waits)) => waits.state.layers != head.sealed_state().layers,
            None => {
                self.publisher().has_publishable_changes(&head.sealed_state())
                    || self.volume().catalog.get_record(&last.id)?.root != head.state.base
            }
        })
    }

    /// Returns what is not published yet.
    pub fn unpublished_changes(&self) -> Result<UnpublishedChanges> {
        let live = self.live_map().live_store();
        Ok(UnpublishedChanges {
            snapshots: self.live_map().pending_snapshots()?.len() as u64,
            sealed_layers: self.live_map().lock_head().sealed_state().layers.len() as u64,
            log_bytes: self.write_log().used_bytes(),
            metadata_bytes: live.memory_size() as u64,
        })
    }
}

/// Adds an empty top layer to a state.
fn set_head_state(head: &mut LiveHead, state: LayeredState, snapshot: AncestorSnapshot) {
    // From the present head: a number of a layer is never used twice.
    let top = head.allocate_layer();
    head.state = state;
    head.state.layers.insert(0, top);
    head.snapshot = Some(snapshot);
}

/// The least moment after another: clocks go back, and a history must not; nor does an inode's time of change.
pub(crate) fn next_moment(time: UnixTime) -> UnixTime {
    match time.nanos + 1 {
        1_000_000_000 => UnixTime { secs: time.secs.saturating_add(1), nanos: 0 },
        nanos => UnixTime { secs: time.secs, nanos },
    }
}
