//! What snapshots record of a worktree: its state without what they leave out, as a tree of its own in the store.
//!
//! Invariants: such a tree is made from the state of one moment, in a worktree in memory, and the live worktree stays as it
//! is; a session protects the tree until a ref names it. It costs a list of all directories, and the removal of what is left
//! out from the copy; the last one is remembered until something changes. Unlike a snapshot of everything it needs the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use vellum_live::MemoryStore;
use vellum_map::MapRoot;
use vellum_types::{FileKind, Ino, InodeAttr, SnapshotId};
use vellum_volume::diff::StateComparison;
use vellum_volume::exclusions::SnapshotExclusions;
use vellum_volume::tree::StateReader;
use vellum_volume::{SnapshotRecord, SnapshotStatistics, VolumeError, WriteSession};

use crate::error::Result;
use crate::fs::{LiveFilesystem, LiveOptions};
use crate::history::exclusions::{ExcludedEntry, ExclusionChoice, ExclusionRules};
use crate::history::selected::{StoredSnapshot, TRIES, restore_times};
use crate::history::snapshot::LiveSnapshotRequest;
use crate::names::own_uid;
use crate::tree::head::{LayeredState, LiveHead};

/// A tree in the store that no ref has to name, with the session that protects it.
pub(crate) struct SessionTree {
    pub session: WriteSession,
    pub root: MapRoot,
    pub counted: SnapshotStatistics,
}

/// What the worktree was at a moment, without what was left out; named by the worktree's ref.
pub(crate) struct VisibleTree {
    /// What it was made from.
    of: LayeredState,
    exclusions: SnapshotExclusions,
    root: MapRoot,
    counted: SnapshotStatistics,
}

/// The state of the worktree at a moment, of which nothing goes while this exists.
struct HeldState<'f> {
    fs: &'f LiveFilesystem,
    state: LayeredState,
}

impl<'f> HeldState<'f> {
    fn of_present(fs: &'f LiveFilesystem) -> Result<Self> {
        // All its layers are sealed, so that a state with the same layers later is the same state.
        if !fs.live_map().is_top_layer_empty()? {
            fs.live_map().change_head(|head, _| {
                head.seal_top_layer();
                Ok(())
            })?;
        }
        let head = fs.live_map().lock_head();
        let state = head.sealed_state();
        // With the head held: the layers that are counted here cannot be removed in between.
        fs.live_map().open_views().begin_sealed_read(&state);
        drop(head);
        Ok(Self { fs, state })
    }
}

impl Drop for HeldState<'_> {
    fn drop(&mut self) {
        self.fs.live_map().open_views().end_read(&self.state);
    }
}

impl VisibleTree {
    fn state(&self) -> LayeredState {
        LayeredState { base: self.root, counted: self.counted, layers: Vec::new() }
    }
}

impl LiveFilesystem {
    /// The tree of what a snapshot would record now, in the store. Until the next one is asked for, the worktree's ref names it.
    pub fn publish_visible_tree(&self, choice: ExclusionChoice<'_>) -> Result<MapRoot> {
        let exclusions = self.resolve_exclusions(choice)?;
        if exclusions.is_empty() {
            self.publisher().publish_all()?;
            return Ok(self.live_map().lock_head().state.base);
        }
        let tree = self.store_visible_tree(&exclusions)?;
        tree.session.end_session()?;
        Ok(tree.root)
    }

    /// Whether what a snapshot would record differs from what the last one holds. Needs the store.
    pub(crate) fn is_visibly_changed(&self, exclusions: &SnapshotExclusions) -> Result<bool> {
        self.publisher().publish_pending()?;
        let Some(last) = self.live_map().lock_head().snapshot else { return Ok(true) };
        let tree = self.store_visible_tree(exclusions)?;
        tree.session.end_session()?;
        let from = self.volume().catalog.get_record(&last.id)?.root;
        if from == tree.root {
            return Ok(false);
        }
        // Their roots may differ though no file does: the next free inode number counts what is left out, too.
        let from = self.volume().open_tree(from);
        let to = self.volume().open_tree(tree.root);
        Ok(!StateComparison { from: &from, to: &to }.find_changes()?.is_empty())
    }

    /// Makes a snapshot without what is left out, which is kept as that of the last snapshot if it `decides`. When it
    /// returns, the snapshot is in the store.
    pub(crate) fn create_visible_snapshot(
        &self,
        request: &LiveSnapshotRequest,
        parents: &[SnapshotId],
        exclusions: &SnapshotExclusions,
        decides: bool,
    ) -> Result<SnapshotId> {
        for _ in 0..TRIES {
            // The new snapshot's parent must be in the store.
            self.publisher().publish_pending()?;
            let last = self.live_map().lock_head().snapshot;
            let SessionTree { session, root, counted } = self.store_visible_tree(exclusions)?;
            let follows = match last {
                Some(last) if parents.is_empty() => vec![last.id],
                Some(_) | None => parents.to_vec(),
            };
            let record = SnapshotRecord {
                root,
                parents: follows,
                statistics: counted,
                ..self.new_snapshot_record(request)
            };
            let kept = decides.then_some(exclusions);
            let made = self.commit_stored_snapshot(StoredSnapshot { record, last, kept }, &request.tags)?;
            session.end_session()?;
            if let Some(id) = made {
                return Ok(id);
            }
        }
        Err(VolumeError::Raced(format!("the worktree '{}'", self.worktree_name())).into())
    }

    /// Stores the worktree as it is now.
    pub(crate) fn store_whole_tree(&self) -> Result<SessionTree> {
        // What is left for the session is little then.
        self.publisher().publish_all()?;
        let session = self.volume().begin_lazy_write_session()?;
        self.store_held_state(&HeldState::of_present(self)?, session)
    }

    /// Stores the worktree as it is now, without what is left out.
    pub(crate) fn store_visible_tree(&self, exclusions: &SnapshotExclusions) -> Result<SessionTree> {
        let rules = ExclusionRules::parse(exclusions)?;
        self.publisher().publish_all()?;
        let session = self.volume().begin_lazy_write_session()?;
        let held = HeldState::of_present(self)?;
        if let Some(known) = self.visible_tree().lock().as_ref()
            && known.of == held.state
            && known.exclusions == *exclusions
        {
            return Ok(SessionTree { session, root: known.root, counted: known.counted });
        }
        let whole = self.store_held_state(&held, session)?;
        let copy = self.open_copy(whole.root, whole.counted)?;
        copy.remove_excluded(&rules.find_excluded(&*copy)?)?;
        let stored = copy.store_copy(whole.session)?;
        self.remember_visible_tree(VisibleTree {
            of: held.state.clone(),
            exclusions: exclusions.clone(),
            root: stored.root,
            counted: stored.counted,
        });
        Ok(stored)
    }

    fn store_held_state(&self, held: &HeldState<'_>, mut session: WriteSession) -> Result<SessionTree> {
        let state = &held.state;
        if state.layers.is_empty() {
            return Ok(SessionTree { session, root: state.base, counted: state.counted });
        }
        let mut published = self.publisher().store_state(state, &session)?;
        // What was stored can be read, and copied from, once it is in the index.
        published.counted.stored += session.flush_blobs()?.bytes_stored;
        session.resume_session(self.volume())?;
        Ok(SessionTree { session, root: published.root, counted: published.counted })
    }

    /// A worktree in memory that stands on a stored tree: what becomes of it is no change of this one.
    pub(crate) fn open_copy(&self, root: MapRoot, counted: SnapshotStatistics) -> Result<Arc<Self>> {
        let options = LiveOptions { worktree: Some(self.worktree_name().into()), ..LiveOptions::default() };
        let live = Arc::new(MemoryStore::default());
        let fresh = LiveHead::new(root, counted, None);
        // The log too is shared: what is copied is where it was written.
        let log = self.write_log().clone();
        Ok(Arc::new(Self::open(self.volume().clone(), live, log, &fresh, options)?))
    }

    /// Stores what became of a worktree in memory.
    pub(crate) fn store_copy(&self, mut session: WriteSession) -> Result<SessionTree> {
        self.live_map().change_head(|head, _| {
            head.seal_top_layer();
            Ok(())
        })?;
        let sealed = self.live_map().lock_head().sealed_state();
        let mut published = self.publisher().store_state(&sealed, &session)?;
        published.counted.stored += session.flush_blobs()?.bytes_stored;
        Ok(SessionTree { session, root: published.root, counted: published.counted })
    }

    /// Removes entries from a worktree in memory, and leaves all times as they were.
    fn remove_excluded(&self, excluded: &[ExcludedEntry]) -> Result<()> {
        let mut kept: BTreeMap<Ino, Arc<InodeAttr>> = BTreeMap::new();
        for excluded in excluded {
            kept.insert(excluded.dir, self.inode_attr(excluded.dir)?);
            self.collect_linked_files(excluded, &mut kept)?;
        }
        for ExcludedEntry { dir, entry, .. } in excluded {
            self.names().remove_tree(*dir, &entry.name, own_uid())?;
        }
        for (ino, attr) in kept {
            let there = self.live_map().read_head_state(|state| state.inode_attr(ino))?;
            // Of a file, all names may have been left out.
            if there.is_some_and(|there| there.nlink > 0) {
                restore_times(self, ino, &attr)?;
            }
        }
        Ok(())
    }

    /// Files that may have other names, which stay.
    fn collect_linked_files(
        &self,
        excluded: &ExcludedEntry,
        linked: &mut BTreeMap<Ino, Arc<InodeAttr>>,
    ) -> Result<()> {
        let mut waiting = vec![(excluded.entry.ino, excluded.entry.kind)];
        while let Some((ino, kind)) = waiting.pop() {
            if kind == FileKind::Dir {
                waiting.extend(self.list_entries(ino)?.into_iter().map(|entry| (entry.ino, entry.kind)));
                continue;
            }
            let attr = self.inode_attr(ino)?;
            if attr.nlink > 1 {
                linked.insert(ino, attr);
            }
        }
        Ok(())
    }

    fn remember_visible_tree(&self, tree: VisibleTree) {
        self.live_map().open_views().begin_sealed_read(&tree.state());
        let before = self.visible_tree().lock().replace(tree);
        before.iter().for_each(|before| self.live_map().open_views().end_read(&before.state()));
        // From then on the worktree's ref names it. Where it does not, only the session protects it, which ends.
        if !matches!(self.lease().renew(), Ok(true)) {
            self.forget_visible_tree();
        }
    }

    /// Lets the last visible tree go.
    pub(crate) fn forget_visible_tree(&self) {
        let before = self.visible_tree().lock().take();
        before.iter().for_each(|before| self.live_map().open_views().end_read(&before.state()));
    }
}
