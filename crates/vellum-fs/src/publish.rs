//! Publishing: stores the changes of sealed layers as a tree, then removes the layers.
//!
//! Order: chunks and nodes, the index, the snapshot's record and the worktree's ref, and only then the live store
//! removes the layers. After a crash the work is repeated; at most some blobs are wasted.
//!
//! Invariant: a state reads the same before and after its lowest layers were published. Publishing splits content
//! anew, so the extents of a file in the new base differ from those below newer layers. If a newer layer touches such
//! a file, an *amendment* (a layer directly above the new base) keeps its extents as they were.

pub(crate) mod age;
mod amend;
mod content;
mod inode;
pub mod publisher;
mod run;
mod schedule;
#[cfg(test)]
mod tests;
mod trash;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use vellum_chunker::Chunker;
use vellum_host::{DurationDistribution, DurationHistogram};
use vellum_live::{CommitSequence, StoreTransaction};
use vellum_map::{KeySpan, MapRoot};
use vellum_types::{BlobId, ErrorKind, Ino, SnapshotId};
use vellum_volume::operations::RecordedCommand;
use vellum_volume::refs::{UnsnapshottedTree, WorktreeHead};
use vellum_volume::{SnapshotRecord, SnapshotStatistics, Volume};

use crate::content::LiveContent;
use crate::content::stored_chunks::UnpublishedChunks;
use crate::error::{FsError, Result};
use crate::fs::LiveBase;
use crate::history::past::{Epoch, LiveEpochs, PastState};
use crate::history::pending::{PendingSnapshot, read_pending_snapshots};
use crate::history::retained_roots;
use crate::lease::WorktreeLease;
use crate::log::{SealedSegments, WriteLog};
use crate::trash::LiveTrash;
use crate::tree::LiveMap;
use crate::tree::head::{LAYERS_END, LayerId, LayeredState, LiveHead, layer_prefix, pending_snapshot_key};
use age::UnpublishedAge;
pub(crate) use amend::{extent_span, is_named_in_layer};
pub(crate) use content::extent_chunk;

/// Number of layers above which a state is published before a layer is added: well below the maximum.
pub(crate) const LAYERS_MANY: usize = 1024;

/// Publishes a live worktree, and knows what of it is not published.
pub struct LivePublisher {
    volume: Arc<Volume>,
    lease: Arc<WorktreeLease>,
    map: Arc<LiveMap>,
    log: Arc<WriteLog>,
    content: Arc<LiveContent>,
    epochs: Arc<LiveEpochs>,
    trash: Arc<LiveTrash>,
    chunker: Chunker,
    /// Held while publishing: publishing is sequential and in order. Lock order: after the epoch, before the live head.
    publishing: Mutex<()>,
    /// A sealed state of which nothing can be published: it contains only open files without a name.
    remainder: Mutex<Option<LayeredState>>,
    unpublished_age: UnpublishedAge,
    /// The snapshot that the worktree's ref names, as far as this process wrote it.
    announced: Mutex<Option<SnapshotId>>,
    /// The tree of the trash that the worktree's ref names.
    announced_trash: Mutex<Option<UnsnapshottedTree>>,
    /// The command that moved the head last; None if no command did, or it is not known any more.
    head_command: Mutex<Option<RecordedCommand>>,
    /// How long publishing took: from the layers to a tree in the store.
    durations: DurationHistogram,
}

/// A state whose tree is in the store.
pub(crate) struct PublishedState {
    pub root: MapRoot,
    pub counted: SnapshotStatistics,
    /// Files of which the content was cut or inlined: their extents in the new tree are not those of the layers.
    recut: HashSet<Ino>,
    /// Inodes without a name: the tree does not have them, but they may be open.
    nameless: HashSet<Ino>,
    /// Chunks of such files and inodes that the layers name and the new tree does not, under that inode.
    replaced_chunks: HashMap<Ino, BTreeSet<BlobId>>,
}

/// The result of publishing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishProgress {
    /// There was nothing to publish.
    Nothing,
    /// Some layers were published; there may be more.
    Some,
}

impl LivePublisher {
    /// Publishes what the map and the content have, and moves past states onto the trees that it stores.
    pub(crate) fn new(
        base: &LiveBase,
        content: Arc<LiveContent>,
        epochs: Arc<LiveEpochs>,
        trash: Arc<LiveTrash>,
    ) -> Self {
        let LiveBase { volume, lease, map, log } = base.clone();
        let chunker = Chunker::new(volume.config.chunker, &volume.keys.chunker_key());
        Self {
            volume,
            lease,
            map,
            log,
            content,
            epochs,
            chunker,
            publishing: Mutex::default(),
            remainder: Mutex::default(),
            unpublished_age: UnpublishedAge::default(),
            announced: Mutex::default(),
            head_command: Mutex::default(),
            announced_trash: Mutex::new(trash.stored_tree()),
            trash,
            durations: DurationHistogram::default(),
        }
    }

    /// Keeps anything from being published, and layers from being removed, until the guard is dropped.
    pub(crate) fn pause_publishing(&self) -> MutexGuard<'_, ()> {
        self.publishing.lock()
    }

    /// How long publishing took.
    pub(crate) fn publish_durations(&self) -> DurationDistribution {
        self.durations.read_distribution()
    }

    /// Publishes the oldest pending snapshot, or all sealed layers if none is pending.
    pub fn publish_oldest(&self) -> Result<PublishProgress> {
        let _one_at_a_time = self.publishing.lock();
        // First, since it frees what publishing would otherwise carry along.
        self.remove_unused_layers()?;
        self.lease.check_held()?;
        // What an earlier publishing could not remove, since the store was away.
        self.content.unpublished_chunks().release_unneeded()?;
        let start = std::time::Instant::now();
        match self.map.pending_snapshots()?.into_iter().next() {
            Some((number, pending)) => {
                self.publish_trash()?;
                self.publish_snapshot(number, pending)?;
            }
            None => {
                // A copy: the head is free while this is published, which may take long, and gets newer layers
                // meanwhile.
                let sealed = self.map.lock_head().sealed_state();
                if !self.has_publishable_changes(&sealed) {
                    self.update_ref_snapshot()?;
                    return Ok(PublishProgress::Nothing);
                }
                self.publish_trash()?;
                self.publish_layers(&sealed)?;
            }
        }
        let elapsed = start.elapsed();
        self.durations.record_duration(elapsed);
        tracing::info!(?elapsed, "changes published");
        Ok(PublishProgress::Some)
    }

    /// Seals the top layer and publishes it.
    pub fn publish_all(&self) -> Result<()> {
        match self.seal_and_publish() {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                // The journal may have what the store lacks.
                self.map.live_store().compact_storage()?;
                self.seal_and_publish()
            }
            done => done,
        }
    }

    /// If writers wait for space, frees space that is not needed. What cannot be freed now is freed later.
    pub(crate) fn free_log_space(&self) {
        // A checkpoint of the journal costs writing all metadata: only when somebody needs the room.
        if self.log.usage().waiting == 0 {
            return;
        }
        let _ = self.map.live_store().compact_storage();
        // The worktree's ref names no tree any more that was let go, and deleted packs are closed.
        let _ = self.lease.renew();
    }

    fn seal_and_publish(&self) -> Result<()> {
        self.content.sync_all()?;
        // A store that was away for long must not leave more layers than a head may have.
        self.limit_layer_count(LAYERS_MANY)?;
        // What is written from now on does not hold back the room that this frees.
        self.log.rotate_segment();
        if !self.map.is_top_layer_empty()? {
            self.map.change_head(|head, _| {
                head.seal_top_layer();
                Ok(())
            })?;
        }
        let paused = self.pause_publishing();
        self.publish_trash()?;
        drop(paused);
        // Pending snapshots first, one after another, then what lies above them.
        while self.publish_oldest()? == PublishProgress::Some {}
        Ok(())
    }

    /// Publishes if at least `many` layers lie over each other. Not more than once: others go on laying layers. A store
    /// that is away is an error only if a few layers more might be too many to be read back.
    pub(crate) fn limit_layer_count(&self, many: usize) -> Result<()> {
        let count = self.map.lock_head().state.layers.len();
        if count < many {
            return Ok(());
        }
        match self.publish_oldest() {
            Err(error) if count >= LAYERS_MANY => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Publishes the pending snapshots, then updates the worktree's ref.
    pub fn publish_pending(&self) -> Result<()> {
        while !self.map.pending_snapshots()?.is_empty() {
            self.publish_oldest()?;
        }
        self.update_ref_snapshot()
    }

    /// Notes which command moves the head. Called while the head is locked: the ref is changed by the thread that publishes,
    /// which works for no command. What is not in the ref after a crash is recorded as a restore.
    pub(crate) fn set_head_command(&self, command: Option<RecordedCommand>) {
        *self.head_command.lock() = command;
    }

    fn update_moved_ref(&self, change: impl Fn(&mut WorktreeHead)) -> Result<()> {
        let known = self.head_command.lock().clone();
        let command = known.unwrap_or_else(|| RecordedCommand::from_words(&["restore"]));
        self.lease.record_for(&command, || self.lease.update_ref(change))
    }

    /// Updates the ref if it names another snapshot after a restore.
    pub(crate) fn update_ref_snapshot(&self) -> Result<()> {
        let head = self.map.lock_head().clone();
        // A worktree that has never had a snapshot has none for the ref to name.
        let Some(stands) = head.snapshot.map(|last| last.id) else { return Ok(()) };
        let mut announced = self.announced.lock();
        if *announced != Some(stands) {
            let root = self.volume.catalog.get_record(&stands)?.root;
            let live = Some(UnsnapshottedTree { root: head.state.base, counted: head.state.counted });
            // If the snapshot's tree is the worktree's base, the collector keeps it already.
            let live = live.filter(|live| live.root != root);
            self.update_moved_ref(|old| (old.head, old.live) = (Some(stands), live))?;
            *announced = Some(stands);
        }
        Ok(())
    }

    /// Says in the ref that the worktree stands on a new snapshot, whose tree is in the store. What the worktree holds besides
    /// stays in the ref, too.
    pub(crate) fn announce_snapshot(&self, record: &SnapshotRecord, command: &RecordedCommand) -> Result<()> {
        let head = self.map.lock_head().clone();
        let live = UnsnapshottedTree { root: head.state.base, counted: head.state.counted };
        let live = Some(live).filter(|live| live.root != record.root);
        let mut announced = self.announced.lock();
        *announced = Some(self.lease.record_for(command, || self.lease.commit_snapshot(record, live))?);
        Ok(())
    }

    /// Says in the ref on which snapshot the worktree stands, and what it holds besides, though that may be the same snapshot
    /// as before.
    pub(crate) fn announce_restored_state(&self) -> Result<()> {
        *self.announced.lock() = None;
        self.update_ref_snapshot()
    }

    /// Says in the ref on which snapshot the worktree stands since its head was moved.
    pub(crate) fn announce_moved_head(&self) -> Result<()> {
        let head = self.map.lock_head().clone();
        if head.snapshot.is_some() {
            return self.update_ref_snapshot();
        }
        let live = Some(UnsnapshottedTree { root: head.state.base, counted: head.state.counted });
        self.update_moved_ref(|old| (old.head, old.live) = (None, live))?;
        *self.announced.lock() = None;
        Ok(())
    }

    fn publish_snapshot(&self, number: u64, pending: PendingSnapshot) -> Result<()> {
        let (session, mut published) = self.store_durably(&pending.state)?;
        let command = pending.recorded_command();
        let record = SnapshotRecord { root: published.root, statistics: published.counted, ..pending.record };
        // Of this worktree, not of the record's: a fork publishes what it took over unpublished, if it comes first.
        // Everything that the record names is durable by now. Until the ref names the snapshot, the session protects
        // it from the collector.
        let id = self.lease.record_for(&command, || self.lease.commit_snapshot(&record, None))?;
        // Remembered, so that the ref is not written again only to say the same.
        *self.announced.lock() = Some(id);
        self.add_snapshot_tags(&pending.tags, &pending.id, &command)?;
        session.end_session()?;
        // The next snapshot of the line counts from this one.
        (published.counted.changed, published.counted.stored) = (0, 0);
        self.rebase_states(&pending.state, &published, Some(number))?;
        Ok(())
    }

    fn publish_layers(&self, sealed: &LayeredState) -> Result<()> {
        let (session, published) = self.store_durably(sealed)?;
        let live = UnsnapshottedTree { root: published.root, counted: published.counted };
        self.lease.update_ref(|head| head.live = Some(live))?;
        // Until here the session protected the tree, which the ref names now.
        session.end_session()?;
        let rest = self.rebase_states(sealed, &published, None)?;
        if live.root == sealed.base {
            // In no tree. What was sealed meanwhile may be in one: the head, which has it by now, is not asked.
            *self.remainder.lock() = Some(rest);
        }
        Ok(())
    }

    /// Returns whether a sealed state has anything that can be in a tree.
    pub(crate) fn has_publishable_changes(&self, sealed: &LayeredState) -> bool {
        let remainder = self.remainder.lock();
        !sealed.layers.is_empty() && remainder.as_ref() != Some(sealed)
    }

    /// Adds the tags that a command gives. One that was given to another snapshot meanwhile is ignored: it is no reason
    /// to publish again.
    pub(crate) fn add_snapshot_tags(
        &self,
        tags: &[String],
        id: &SnapshotId,
        command: &RecordedCommand,
    ) -> Result<()> {
        let add_tag = |tag: &String| match self.volume.add_tag(tag, *id) {
            Err(error) if error.kind() != ErrorKind::Conflict => Err(error.into()),
            Ok(()) | Err(_) => Ok(()),
        };
        self.lease.record_for(command, || tags.iter().try_for_each(add_tag))
    }

    /// Rebases all states that have the published layers on the new tree, and deletes the layers that are not needed
    /// any more. Returns what `done` has become.
    fn rebase_states(
        &self,
        done: &LayeredState,
        published: &PublishedState,
        snapshot: Option<u64>,
    ) -> Result<LayeredState> {
        // Asked first: what is named after this moment, by transactions that the change of the head waits for, counts.
        let sealed = self.log.sealed_segments();
        let mut pasts_before = None;
        let ((left, rest), sequence) = self.map.change_head(|head, txn| {
            // The head is held by `change_head`, and the lock on past states comes after it: that is their order
            // everywhere.
            let mut pasts = self.epochs.lock_past_states();
            // The body may run again.
            *pasts = pasts_before.get_or_insert_with(|| pasts.clone()).clone();
            let trash_layers = head.trash_layers();
            let is_trash = head.trash.as_ref().is_some_and(|trash| done.is_below(trash));
            let mut states = vec![&mut head.state];
            let mut waiting = read_pending_snapshots(|span, visit| txn.scan(span, visit))?;
            // The snapshot that is being published goes with this transaction, and needs no layers any more.
            waiting.retain(|(number, _)| Some(*number) != snapshot);
            states.extend(waiting.iter_mut().map(|(_, pending)| &mut pending.state));
            states.extend(pasts.values_mut().map(|past| &mut past.state));
            states.extend(head.trash.as_mut());
            // The others stand on something else: a restore has put their state on another tree.
            states.retain(|state| done.is_below(state));
            let newer: BTreeSet<LayerId> = states
                .iter()
                .flat_map(|state| state.layers.iter().take(state.layers.len() - done.layers.len()))
                .copied()
                .collect();
            // Within the transaction: what the newer layers touch is known only while nobody writes.
            let amended = self.map.add_amendment(done, published, &newer, head.next_layer, txn)?;
            let amendment = (!amended.is_empty()).then_some(head.next_layer);
            let chunks = amend::collect_replaced_chunks(published, &amended, &newer, txn)?;
            let keeps = (!chunks.is_empty()).then_some(head.next_layer);
            let using = newer.iter().copied().chain(amendment);
            self.map.retain_replaced_chunks(txn, done, chunks, &using.collect())?;
            // The trash refers to content of the worktree, never to that of its own base.
            if !is_trash && done.base != published.root {
                retained_roots::retain_for_trash(txn, done, &trash_layers)?;
            }
            let layers = amendment.into_iter().collect();
            let rest = LayeredState { base: published.root, counted: published.counted, layers };
            for state in states {
                // Layers are newest first, and those that were published are the lowest ones.
                state.layers.truncate(state.layers.len() - done.layers.len());
                state.layers.extend(&rest.layers);
                (state.base, state.counted) = (rest.base, rest.counted);
            }
            // The number is taken only if there is such a layer. Numbers are never used twice: the engine may have
            // frozen the prefix.
            head.next_layer = LayerId(head.next_layer.0 + u64::from(amendment.is_some()));
            for (number, pending) in &waiting {
                txn.set_key(&pending_snapshot_key(*number), pending.encode().into());
            }
            if let Some(number) = snapshot {
                txn.delete_key(&pending_snapshot_key(number));
            }
            // Asked after the states have moved: of the published layers, those remain that a view still reads.
            let needed = self.map.collect_needed_layers(head, &waiting, &pasts);
            for layer in done.layers.iter().filter(|layer| !needed.contains(layer)) {
                txn.delete_prefix(&layer_prefix(*layer));
            }
            retained_roots::release_unneeded_roots(txn, &needed)?;
            UnpublishedChunks::note_published(txn, &needed, keeps)?;
            Ok((needed, rest))
        })?;
        self.release_content(sequence, &sealed, &left).map(|()| rest)
    }

    /// Deletes layers that are not needed any more: those of a state before a restore, of a past state that was
    /// released, and of a view that ended.
    fn remove_unused_layers(&self) -> Result<()> {
        if !self.map.open_views().take_unneeded_layers_note() {
            return Ok(());
        }
        let sealed = self.log.sealed_segments();
        let (left, sequence) = self.map.change_head(|head, txn| {
            let waiting = read_pending_snapshots(|span, visit| txn.scan(span, visit))?;
            let needed = self.map.collect_needed_layers(head, &waiting, &self.epochs.lock_past_states());
            for layer in list_layers(txn)?.difference(&needed) {
                txn.delete_prefix(&layer_prefix(*layer));
            }
            retained_roots::release_unneeded_roots(txn, &needed)?;
            UnpublishedChunks::note_published(txn, &needed, None)?;
            Ok(needed)
        })?;
        self.release_content(sequence, &sealed, &left)
    }

    /// Lets go of what only layers named that were removed by a transaction.
    fn release_content(
        &self,
        removed: CommitSequence,
        sealed: &SealedSegments,
        layers: &BTreeSet<LayerId>,
    ) -> Result<()> {
        // A loss of power must not bring back what names the segments and chunks that go.
        self.map.live_store().wait_until_confirmed(removed)?;
        self.content.unpublished_chunks().release_unneeded()?;
        self.remove_unused_segments(sealed, layers)
    }

    /// Removes the segments of the write log to which no layer refers.
    fn remove_unused_segments(&self, sealed: &SealedSegments, layers: &BTreeSet<LayerId>) -> Result<()> {
        // Looked up, and not counted as extents come and go: a count would have to survive crashes.
        let mut named = BTreeSet::new();
        for layer in layers {
            amend::visit_log_segments(&**self.map.live_store(), *layer, &mut |segment| {
                named.insert(segment);
            })?;
        }
        self.log.remove_unnamed(sealed, &named)
    }
}

impl LiveMap {
    /// Returns the needed layers: those of the live head, pending snapshots, past states and views.
    fn collect_needed_layers(
        &self,
        head: &LiveHead,
        waiting: &[(u64, PendingSnapshot)],
        pasts: &BTreeMap<Epoch, PastState>,
    ) -> BTreeSet<LayerId> {
        std::iter::once(&head.state)
            .chain(&head.trash)
            .chain(waiting.iter().map(|(_, pending)| &pending.state))
            .chain(pasts.values().map(|past| &past.state))
            .flat_map(|state| state.layers.iter().copied())
            .chain(self.open_views().read_layers())
            .collect()
    }
}

/// Returns the layers that have keys.
fn list_layers(txn: &dyn StoreTransaction) -> Result<BTreeSet<LayerId>> {
    let mut layers = BTreeSet::new();
    let mut from = Some(LayerId(0));
    while let Some(LayerId(number)) = from.take() {
        let span = KeySpan::from_bounds(layer_prefix(LayerId(number)), LAYERS_END);
        txn.scan(&span, &mut |key, _| {
            let digits = key.get(1..9).and_then(|digits| digits.try_into().ok());
            from = digits.map(|digits| LayerId(u64::from_be_bytes(digits)));
            ControlFlow::Break(())
        })?;
        layers.extend(from);
        // The next scan begins behind the whole layer, so that only one key of each is read.
        from = from.map(|LayerId(found)| LayerId(found.saturating_add(1)));
    }
    Ok(layers)
}

impl From<vellum_store::BlobError> for FsError {
    fn from(error: vellum_store::BlobError) -> Self {
        Self::Volume(error.into())
    }
}
