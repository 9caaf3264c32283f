//! The current state of a live worktree, and transactions on it.
//!
//! Invariants: if several layers have a key, the newest one counts, and a tombstone hides lower ones; only the top
//! layer changes, and not while a view reads it; a body that reads sees one live head throughout (sealing, publishing
//! and restoring wait for it).

mod accesses;
pub mod head;
mod inline;
mod merge;
mod resident;
mod txn;
mod usage;
mod views;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::io::Errno;
use vellum_live::{CommitSequence, LiveError, LiveStore};
use vellum_map::{KeySpan, NodeCache, NodeSource};
use vellum_types::value::SuperBlock;
use vellum_types::{BareInodeAttr, Dentry, Ino, InodeAttr, MapKey, MapKeyRef, MapKeyTag};
use vellum_volume::tree::NodeLoader;

use crate::error::{FsError, Result};
use crate::tree::head::{HEAD_KEY, LayeredState, LiveHead};

pub use accesses::AccessTimes;
use merge::{LayerChanges, LiveRead, MergedEntries, get_merged_bare_attr, get_merged_value};
pub(crate) use merge::{decode_change, encode_change, encode_layer_key};
use resident::ResidentNodes;
pub use txn::LiveTransaction;
pub use usage::{UsageAmount, WorktreeUsage};
use views::{ChangeGuard, OpenViews};

/// How often a transaction is begun anew for a node that is not in memory. One that needs more of them, more than
/// memory holds maybe, fetches them while others wait.
const FETCHES_MAX: usize = 64;

/// Where nodes of the base come from.
pub type NodeProvider = NodeCache<NodeLoader>;

/// Called with each key and value of a scan, until it breaks off.
pub type VisitEntry<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;
/// Called with each name and what it stands for, until it breaks off.
pub type VisitDentry<'v> = dyn FnMut(&[u8], Dentry) -> ControlFlow<()> + 'v;

/// A live worktree's map.
pub struct LiveMap {
    live: Arc<dyn LiveStore>,
    retries: AtomicU64,
    nodes: Arc<NodeProvider>,
    head: RwLock<LiveHead>,
    views: OpenViews,
    accesses: AccessTimes,
    usage: WorktreeUsage,
}

/// The result of a commit.
#[derive(Debug)]
pub struct CommittedChanges {
    /// Its sequence number.
    pub sequence: CommitSequence,
    /// The keys that were put or deleted: what caches must forget.
    pub changed: Vec<MapKey>,
}

/// Reads one state of the map. Bodies of [`LiveMap::read_head_state`], [`LiveMap::read_sealed_state`] and
/// [`LiveMap::run_transaction`] get it.
pub trait MapReader {
    /// The value under a key.
    fn get_value(&self, key: &MapKey) -> Result<Option<vellum_map::MapValue>>;

    /// Visits the entries of a span in ascending order of their keys, until `visit` breaks off.
    fn scan(&self, span: KeySpan, visit: &mut VisitEntry<'_>) -> Result<()>;

    /// The attributes of an inode, if it exists.
    fn inode_attr(&self, ino: Ino) -> Result<Option<InodeAttr>> {
        let value = self.get_value(&MapKey::for_attr(ino))?;
        value.map(|value| InodeAttr::decode(&value).map_err(wrap_decode_error("an inode"))).transpose()
    }

    /// The attributes of an inode that somebody holds: stale if it is gone.
    fn expect_inode_attr(&self, ino: Ino) -> Result<InodeAttr> {
        self.inode_attr(ino)?.ok_or(FsError::Posix(Errno::STALE))
    }

    /// The attributes of an inode without its inline content, if it exists.
    fn bare_inode_attr(&self, ino: Ino) -> Result<Option<BareInodeAttr>>;

    /// The same of an inode that somebody holds: stale if it is gone.
    fn expect_bare_attr(&self, ino: Ino) -> Result<BareInodeAttr> {
        self.bare_inode_attr(ino)?.ok_or(FsError::Posix(Errno::STALE))
    }

    /// An entry of a directory.
    fn lookup_dentry(&self, dir: Ino, name: &[u8]) -> Result<Option<Dentry>> {
        let value = self.get_value(&MapKey::for_dentry(dir, name))?;
        value.map(|value| Dentry::decode(&value).map_err(wrap_decode_error("a directory entry"))).transpose()
    }

    /// Visits the entries of a directory whose names come after `after`, in order.
    fn visit_dentries(&self, dir: Ino, after: Option<&[u8]>, visit: &mut VisitDentry<'_>) -> Result<()> {
        let end = MapKey::first_for_tag(dir, MapKeyTag::Xattr);
        let span = match after {
            None => {
                KeySpan::from_bounds(MapKey::first_for_tag(dir, MapKeyTag::Dentry).as_bytes(), end.as_bytes())
            }
            Some(name) => KeySpan::from_bounds(MapKey::for_dentry(dir, name).as_bytes(), end.as_bytes())
                .after_key(MapKey::for_dentry(dir, name).as_bytes()),
        };
        let mut failed = None;
        self.scan(span, &mut |key, value| {
            let entry = MapKeyRef::parse(key).and_then(|key| Ok((key, Dentry::decode(value)?)));
            match entry {
                Ok((MapKeyRef::Dentry(_, name), dentry)) => visit(name, dentry),
                Ok(_) => ControlFlow::Break(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        failed.map_or(Ok(()), |error| Err(wrap_decode_error("a directory entry")(error)))
    }

    /// All keys of an inode but that of its attributes, added to `keys`.
    fn collect_inode_keys(&self, ino: Ino, keys: &mut Vec<MapKey>) -> Result<()> {
        let start = MapKey::first_for_tag(ino, MapKeyTag::Dentry);
        let end = MapKey::for_attr(Ino(ino.0.saturating_add(1)));
        let mut failed = None;
        self.scan(KeySpan::from_bounds(start.as_bytes(), end.as_bytes()), &mut |key, _| {
            match MapKeyRef::parse(key) {
                Ok(key) => keys.push(key.into()),
                Err(error) => failed = Some(error),
            }
            ControlFlow::Continue(())
        })?;
        failed.map_or(Ok(()), |error| Err(wrap_decode_error("a key")(error)))
    }

    /// The filesystem's own record.
    fn read_super_block(&self) -> Result<SuperBlock> {
        match self.get_value(&MapKey::for_attr(Ino::SUPER))? {
            Some(value) => SuperBlock::decode(&value).map_err(wrap_decode_error("the filesystem's record")),
            None => Ok(SuperBlock { next_ino: Ino(Ino::ROOT.0 + 1) }),
        }
    }
}

/// Names what does not decode.
pub(crate) fn wrap_decode_error(what: &str) -> impl Fn(vellum_types::DecodeError) -> FsError + use<'_> {
    move |source| FsError::Decode { what: what.into(), source }
}

/// Something to read from and the state to read.
struct MapSnapshot<'a> {
    live: &'a dyn LiveRead,
    state: &'a LayeredState,
    nodes: &'a NodeProvider,
}

impl MapReader for MapSnapshot<'_> {
    fn bare_inode_attr(&self, ino: Ino) -> Result<Option<BareInodeAttr>> {
        get_merged_bare_attr(self.live, self.state, self.nodes, ino)
    }

    fn get_value(&self, key: &MapKey) -> Result<Option<vellum_map::MapValue>> {
        get_merged_value(self.live, self.state, self.nodes, key)
    }

    fn scan(&self, span: KeySpan, visit: &mut VisitEntry<'_>) -> Result<()> {
        MergedEntries::new(self.live, self.state, self.nodes, span)?.visit_entries(visit)
    }
}

impl LiveMap {
    /// Opens the map in a live store. In an empty store it creates one with the head `fresh`.
    pub fn open(live: Arc<dyn LiveStore>, nodes: Arc<NodeProvider>, fresh: &LiveHead) -> Result<Self> {
        let head = match live.get(HEAD_KEY)? {
            Some(bytes) => LiveHead::decode(&bytes).map_err(wrap_decode_error("the head"))?,
            None => {
                live.run_transaction(&mut |txn| {
                    txn.set_key(HEAD_KEY, fresh.encode().into());
                    Ok(())
                })?;
                fresh.clone()
            }
        };
        let views = OpenViews::new(&head);
        let accesses = AccessTimes::default();
        let usage = WorktreeUsage::new();
        let tree =
            Self { live, retries: AtomicU64::new(0), nodes, head: RwLock::new(head), views, accesses, usage };
        tree.usage.set_used_amount(tree.measure_usage()?);
        Ok(tree)
    }

    /// Computes the usage of the worktree from that of its base and the changes of its layers. Takes time in proportion
    /// to the changes.
    pub fn measure_usage(&self) -> Result<UsageAmount> {
        let state = self.lock_head().state.clone();
        let mut sum = UsageAmount::from_statistics(&state.counted);
        self.visit_changes(&state, &mut |key, value| {
            let MapKeyRef::Attr(ino) =
                MapKeyRef::parse(&key).map_err(wrap_decode_error("a key of a layer"))?
            else {
                return Ok(());
            };
            if ino == Ino::SUPER {
                return Ok(());
            }
            let weight = |value: &[u8]| {
                InodeAttr::decode(value)
                    .map(|attr| UsageAmount::from_attr(&attr))
                    .map_err(wrap_decode_error("an inode"))
            };
            if let Some(before) = vellum_map::get_value(&*self.nodes, &state.base, &key)? {
                sum = sum.subtract_amount(weight(&before)?);
            }
            if let Some(after) = value {
                sum = sum.add_amount(weight(&after)?);
            }
            Ok(())
        })?;
        Ok(sum)
    }

    /// When inodes were read.
    #[must_use]
    pub fn access_times(&self) -> &AccessTimes {
        &self.accesses
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

    /// Changes the map: carries out all changes of the body, or none if it fails. The body may run several times, and
    /// must not call a method of this map.
    pub fn run_transaction<T>(
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
            let failed = done.is_err();
            outcome = Some(done);
            if failed { Err(LiveError::Abandoned) } else { Ok(()) }
        });
        if committed.is_err() {
            self.usage.release_growth(grown);
        }
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
                *held = new;
                Ok((value, sequence))
            }
            (_, Err(error)) => Err(error.into()),
            (None, Ok(_)) => Err(LiveError::Abandoned.into()),
        }
    }
}
