//! Snapshots and restores of a live worktree: the top layer is sealed, or another state takes its place. Neither
//! depends on how many files there are.

use std::sync::atomic::Ordering;

use vellum_types::{SnapshotId, UnixTime};
use vellum_volume::session::{host_name, now, user_name};
use vellum_volume::{SnapshotOrigin, SnapshotRecord, SnapshotStatistics, resolve};

use crate::error::Result;
use crate::fs::LiveFilesystem;
use crate::head::{AncestorSnapshot, LayeredState, LiveHead};
use crate::pending::{PendingSnapshot, all_pending, key_of};
use crate::tree::UsageAmount;

/// Layers of one head that are published before another is laid over them: well below what a head may have.
pub(crate) const LAYERS_MANY: usize = 1024;

/// What a snapshot is made with.
#[derive(Debug, Clone)]
pub struct LiveSnapshotRequest {
    /// What the user says of it.
    pub note: String,
    /// Names that it gets.
    pub tags: Vec<String>,
    /// Why it is made.
    pub origin: SnapshotOrigin,
}

/// What a live worktree has not published yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnpublishedChanges {
    /// Snapshots that wait.
    pub snapshots: u64,
    /// Layers beneath the top one.
    pub sealed_layers: u64,
    /// Bytes of file data in the write log.
    pub log_bytes: u64,
    /// Bytes of live metadata in memory, about.
    pub metadata_bytes: u64,
}

impl LiveFilesystem {
    /// Makes a snapshot. When it returns, the snapshot survives a loss of power; its tree is published later.
    pub fn snapshot(&self, request: &LiveSnapshotRequest) -> Result<SnapshotId> {
        self.admit()?;
        self.bound_layers(LAYERS_MANY)?;
        let mut record = self.new_record(request);
        let (id, sequence) = self.tree.change_head(|head, live| {
            if let Some(last) = &head.snapshot {
                record.parents = vec![last.id];
                record.counter = last.counter + 1;
                record.time = record.time.max(just_after(last.time));
            }
            let id = self.volume.name_snapshot(&mut record)?;
            head.seal();
            let (state, used) = (head.sealed(), self.tree.usage().used());
            let pending =
                PendingSnapshot { state, used, id, record: record.clone(), tags: request.tags.clone() };
            live.put(&key_of(head.next_pending), pending.encode().into());
            head.next_pending += 1;
            head.snapshot = Some(AncestorSnapshot { id, counter: record.counter, time: record.time });
            Ok(id)
        })?;
        self.log.sync()?;
        self.tree.live().wait_durable(sequence)?;
        Ok(id)
    }

    /// Publishes if at least `many` layers lie over each other. Not more than once: others go on laying layers. A store
    /// that is away is an error only if a few layers more might be too many to be read back.
    pub(crate) fn bound_layers(&self, many: usize) -> Result<()> {
        let count = self.tree.head().state.layers.len();
        if count < many {
            return Ok(());
        }
        match self.publish() {
            Err(error) if count >= LAYERS_MANY => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    pub(crate) fn new_record(&self, request: &LiveSnapshotRequest) -> SnapshotRecord {
        SnapshotRecord {
            nonce: Default::default(),
            root: self.volume.empty_root(),
            parents: Vec::new(),
            counter: 1,
            time: now(),
            worktree: self.worktree().into(),
            author: user_name(),
            host: host_name(),
            note: request.note.clone(),
            origin: request.origin,
            paths: Vec::new(),
            statistics: SnapshotStatistics::default(),
        }
    }

    /// Lets the worktree stand on another snapshot, as it was recorded. What no snapshot holds is saved in one first,
    /// unless it is to be discarded; gives that one. Who holds inodes goes on reading what they held.
    pub fn restore(&self, target: SnapshotId, discard: bool) -> Result<Option<SnapshotId>> {
        self.admit()?;
        let waits = self.pending()?.iter().any(|(_, waiting)| waiting.id == target);
        let mut named = if waits { None } else { Some(self.name_first(target)?) };
        let ended = self.epochs.end();
        let saved = if discard || !self.is_changed()? {
            None
        } else {
            // Not from the store's list, which may take long to be read: this is for people.
            let short = resolve::short(&target, &self.volume.catalog.remembered_ids());
            let note = format!("before the restore of {short}");
            Some(self.snapshot(&LiveSnapshotRequest {
                note,
                tags: Vec::new(),
                origin: SnapshotOrigin::Safety,
            })?)
        };
        let (present, mut held) = (self.epoch(), None);
        let sequence = loop {
            let (stands, sequence) = self.tree.change_head(|head, live| {
                // Looked up within: it may be published, and be no more among those that wait, at any moment.
                let waiting = all_pending(|span, visit| live.scan(span, visit))?;
                let (state, used, ancestor) = match waiting.into_iter().find(|(_, waits)| waits.id == target)
                {
                    Some((_, PendingSnapshot { state, used, id, record, .. })) => {
                        (state, used, AncestorSnapshot { id, counter: record.counter, time: record.time })
                    }
                    None if named.is_none() => return Ok(false),
                    None => self.published(target)?,
                };
                let held = held.get_or_insert_with(|| self.opened.take_held()).clone();
                self.epochs.succeed(present, head.state.clone(), held)?;
                stand_on(head, state, ancestor);
                self.tree.usage().set(used);
                self.forget_state();
                Ok(true)
            })?;
            if stands {
                break sequence;
            }
            named = Some(self.name_first(target)?);
        };
        self.litter.store(true, Ordering::Release);
        drop(ended);
        self.tree.live().wait_durable(sequence)?;
        Ok(saved)
    }

    /// The state of a snapshot that is in the store.
    pub(crate) fn published(&self, id: SnapshotId) -> Result<(LayeredState, UsageAmount, AncestorSnapshot)> {
        let record = self.volume.catalog.get(&id)?;
        let counted = SnapshotStatistics { changed: 0, stored: 0, ..record.statistics };
        let state = LayeredState { base: record.root, counted, layers: Vec::new() };
        Ok((
            state,
            UsageAmount::counted(&counted),
            AncestorSnapshot { id, counter: record.counter, time: record.time },
        ))
    }

    /// Whether anything changed since the last snapshot.
    pub fn is_changed(&self) -> Result<bool> {
        if !self.is_top_empty()? {
            return Ok(true);
        }
        let head = self.tree.head().clone();
        let Some(last) = head.snapshot else { return Ok(true) };
        Ok(match self.pending()?.into_iter().find(|(_, waits)| waits.id == last.id) {
            Some((_, waits)) => waits.state.layers != head.sealed().layers,
            None => {
                self.can_publish(&head.sealed()) || self.volume.catalog.get(&last.id)?.root != head.state.base
            }
        })
    }

    /// What is not published yet.
    pub fn unpublished(&self) -> Result<UnpublishedChanges> {
        let live = self.tree.live();
        Ok(UnpublishedChanges {
            snapshots: self.pending()?.len() as u64,
            sealed_layers: self.tree.head().sealed().layers.len() as u64,
            log_bytes: self.log.used(),
            metadata_bytes: live.memory() as u64,
        })
    }
}

/// Puts an empty top layer over a state.
fn stand_on(head: &mut LiveHead, state: LayeredState, snapshot: AncestorSnapshot) {
    let top = head.new_layer();
    head.state = state;
    head.state.layers.insert(0, top);
    head.snapshot = Some(snapshot);
}

/// The least moment after another: clocks go back, and a history must not; nor does an inode's time of change.
pub(crate) fn just_after(time: UnixTime) -> UnixTime {
    match time.nanos + 1 {
        1_000_000_000 => UnixTime { secs: time.secs.saturating_add(1), nanos: 0 },
        nanos => UnixTime { secs: time.secs, nanos },
    }
}
