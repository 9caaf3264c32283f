//! The roots of a collection: every record of a snapshot that the store has, or should have.
//!
//! Invariant: no root is left out in silence. A record that a worktree, a tag, a child or this machine's catalog names
//! and that is missing or damaged stops the collection, unless the caller said to go on without it: nobody else knows
//! what that snapshot needs.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use vellum_map::MapRoot;
use vellum_types::SnapshotId;

use crate::error::{Result, VolumeError, is_data_loss};
use crate::session::{current_time, list_read_trees};
use crate::volume::Volume;

/// Shortest beginning of an id that names a lost record, digits.
const PREFIX_MIN: usize = 4;

/// A record that is needed to tell what is alive, and cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostRecord {
    /// The snapshot.
    pub id: SnapshotId,
    /// What is wrong with its record.
    pub problem: String,
    /// What names it.
    pub named_by: String,
}

/// What stays.
#[derive(Default)]
pub(crate) struct LiveRoots {
    /// The snapshots that are kept, each with its tree.
    pub snapshots: Vec<SnapshotRoot>,
    /// Trees that worktrees and readers hold.
    pub held: Vec<HeldRoot>,
}

/// The tree of a snapshot.
pub(crate) struct SnapshotRoot {
    pub id: SnapshotId,
    pub root: MapRoot,
}

/// A tree that the ref of a worktree names, or the session of a reader.
pub(crate) struct HeldRoot {
    /// None: a reader has it.
    pub worktree: Option<String>,
    /// The snapshot on which the worktree stands, if this is the tree of that one.
    pub head: Option<SnapshotId>,
    pub root: MapRoot,
    /// Whether somebody reads it, who may read something else in a moment.
    pub is_read: bool,
}

impl LiveRoots {
    /// Returns the trees that must stay, each once.
    pub(crate) fn all_roots(&self) -> Vec<MapRoot> {
        let of_snapshots = self.snapshots.iter().map(|snapshot| snapshot.root);
        let mut roots: Vec<_> = of_snapshots.chain(self.held.iter().map(|held| held.root)).collect();
        // Many are equal: those of snapshots that changed nothing, and of worktrees that stand on a snapshot.
        roots.sort_unstable();
        roots.dedup();
        roots
    }
}

/// Returns the ids of the lost records that `without` names by their first digits. Fails with [`VolumeError::NotLost`] or
/// [`VolumeError::Ambiguous`] if one of them is not the beginning of exactly one.
pub(super) fn resolve_lost_ids(volume: &Volume, without: &[String]) -> Result<BTreeSet<SnapshotId>> {
    if without.is_empty() {
        return Ok(BTreeSet::new());
    }
    // Only lost records can be named: to go on without one that can be read would delete what it needs.
    let lost = RecordWalk::walk_records(volume)?.lost;
    let mut resolved = BTreeSet::new();
    for text in without {
        let named = |id: &SnapshotId| text.len() >= PREFIX_MIN && id.to_string().starts_with(text.as_str());
        let found: Vec<_> = lost.keys().filter(|id| named(id)).collect();
        match found.as_slice() {
            [id] => drop(resolved.insert(**id)),
            [] => return Err(VolumeError::NotLost(text.escape_debug().to_string())),
            several => {
                let matches = several.iter().map(ToString::to_string).collect();
                return Err(VolumeError::Ambiguous { prefix: text.clone(), matches });
            }
        }
    }
    Ok(resolved)
}

/// Returns the trees that must stay: of all snapshots, and of the heads of worktrees, which are snapshots too; and what
/// mounted ones stand on and read besides. Fails with [`VolumeError::RecordsLost`] if a record is lost that is not in
/// `without`.
pub(crate) fn find_live_roots(volume: &Volume, without: &BTreeSet<SnapshotId>) -> Result<LiveRoots> {
    let mut walk = RecordWalk::walk_records(volume)?;
    walk.lost.retain(|id, _| !without.contains(id));
    if !walk.lost.is_empty() {
        return Err(VolumeError::RecordsLost(walk.lost.into_values().collect()));
    }
    Ok(walk.live)
}

/// A walk over all records, from everything that names one.
struct RecordWalk<'a> {
    volume: &'a Volume,
    live: LiveRoots,
    met: HashSet<SnapshotId>,
    /// Records that are named and were not looked at yet, with what names them.
    waiting: Vec<(SnapshotId, String)>,
    lost: BTreeMap<SnapshotId, LostRecord>,
}

impl<'a> RecordWalk<'a> {
    fn walk_records(volume: &'a Volume) -> Result<Self> {
        let mut walk = Self {
            volume,
            live: LiveRoots::default(),
            met: HashSet::new(),
            waiting: Vec::new(),
            lost: BTreeMap::new(),
        };
        // Refs first: a snapshot that is made afterwards is in the listing of records.
        let mut heads = Vec::new();
        let mut standing = Vec::new();
        for (name, head) in volume.list_worktrees()? {
            heads.extend(head.head.map(|id| (id, format!("the worktree '{name}' stands on it"))));
            standing.extend(head.head.map(|id| (name.clone(), id)));
            // No record names what a mount published since its last snapshot, what is in its trash, what its readers
            // still use, and what an owner that lost its lease stands on: only the ref does.
            let live = head.live.into_iter().chain(head.trash.tree).map(|tree| tree.root);
            let roots = live.chain(head.left.iter().map(|(_, root)| *root)).map(|root| (root, false));
            let roots = roots.chain(head.reading.iter().map(|root| (*root, true)));
            walk.live.held.extend(roots.map(|(root, is_read)| HeldRoot {
                worktree: Some(name.clone()),
                head: None,
                root,
                is_read,
            }));
        }
        walk.waiting.extend(heads);
        let tags =
            volume.list_tags()?.into_iter().map(|(name, id)| (id, format!("the tag '{name}' names it")));
        walk.waiting.extend(tags);
        // A pin that is over protects nothing, so that its snapshot may have been forgotten by now.
        let pins = volume.list_pin_refs()?.into_iter().filter(|(_, pin)| pin.is_in_force(current_time()));
        walk.waiting.extend(pins.map(|(id, _)| (id, "it is pinned".into())));
        walk.visit_listed_records()?;
        walk.visit_named_records()?;
        for (worktree, id) in standing {
            // Also that of one that was forgotten while the head was set to it.
            if !walk.lost.contains_key(&id) {
                let root = volume.catalog.get_record(&id)?.root;
                walk.live.held.push(HeldRoot {
                    worktree: Some(worktree),
                    head: Some(id),
                    root,
                    is_read: false,
                });
            }
        }
        // After the records: a reader that begins later looks whether its snapshot is still there.
        let read = list_read_trees(volume)?.into_iter();
        walk.live.held.extend(read.map(|root| HeldRoot { worktree: None, head: None, root, is_read: true }));
        Ok(walk)
    }

    /// The records that the store lists.
    fn visit_listed_records(&mut self) -> Result<()> {
        let records = self.volume.catalog.read_all_records()?;
        for (id, record) in records.sound {
            self.met.insert(id);
            self.keep_root(id, record.root);
            self.enqueue_parents(id, &record.parents);
        }
        for (id, error) in records.damaged {
            self.met.insert(id);
            self.record_lost_snapshot(id, &error, "the store lists it".into());
        }
        Ok(())
    }

    /// The records that something names: parents of others, also of forgotten ones; refs; this machine's catalog. A
    /// store may leave out in a listing what is there when it is asked for by name.
    fn visit_named_records(&mut self) -> Result<()> {
        let forgotten = self.volume.catalog.list_forgotten_ids()?;
        let known = self.volume.catalog.known_ids().into_iter();
        self.waiting.extend(known.map(|id| (id, "it was seen here before".into())));
        self.waiting.extend(forgotten.iter().map(|id| (*id, "the store lists it as forgotten".into())));
        // From the end: what others name is worth more in a message than that it was seen or listed.
        self.waiting.reverse();
        // A forgotten snapshot keeps nothing alive: its record is read for its parents only. Records do not change, so
        // that each is read from the store once, however often a collection walks.
        let read = self.volume.catalog.get_forgotten_records(&forgotten);
        let mut forgotten: HashMap<SnapshotId, _> = forgotten.into_iter().zip(read).collect();
        while let Some((id, named_by)) = self.waiting.pop() {
            if !self.met.insert(id) {
                continue;
            }
            let catalog = &self.volume.catalog;
            let record = match forgotten.remove(&id) {
                Some(read) => read,
                None => match catalog.try_fetch_record(&id) {
                    Ok(Some(record)) => {
                        self.keep_root(id, record.root);
                        Ok(Arc::new(record))
                    }
                    // Forgotten since the listing.
                    Ok(None) => catalog.fetch_forgotten_record(&id).map(Arc::new),
                    Err(error) => Err(error),
                },
            };
            match record {
                Ok(record) => self.enqueue_parents(id, &record.parents),
                // Only what is certainly lost counts as lost. A store that does not answer ends the collection.
                Err(error) if is_data_loss(&error) => self.record_lost_snapshot(id, &error, named_by),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn keep_root(&mut self, id: SnapshotId, root: MapRoot) {
        self.live.snapshots.push(SnapshotRoot { id, root });
    }

    fn enqueue_parents(&mut self, child: SnapshotId, parents: &[SnapshotId]) {
        let child = || format!("it is a parent of snapshot {child}");
        self.waiting.extend(parents.iter().map(|parent| (*parent, child())));
    }

    fn record_lost_snapshot(&mut self, id: SnapshotId, error: &VolumeError, named_by: String) {
        let problem = match error {
            VolumeError::MissingRecord(_) => "is missing".into(),
            VolumeError::Damaged { reason, .. } => format!("is damaged: {reason}"),
            other => format!("cannot be read: {other}"),
        };
        self.lost.insert(id, LostRecord { id, problem, named_by });
    }
}
