//! The trash: what was removed from the worktree, kept by reference for a number of days.
//!
//! It is a filesystem state of its own in the live store, with layers and a base like the worktree's: each entry is an
//! inode in the root directory, named by its number, with a record of its origin as an extended attribute. So no snapshot
//! of the worktree contains it, and publishing makes a tree of it that the worktree's ref names.
//!
//! Invariant: the transaction that removes the last name of an inode puts the inode into the trash. Entries never change
//! there. Numbers grow, and have nothing to do with those of the worktree.

pub(crate) mod keep;
mod restore;
mod select;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use vellum_map::MapRoot;
use vellum_types::{FileKind, Ino, MapKey, UnixTime};
use vellum_volume::refs::{UnsnapshottedTree, WorktreeTrash};
use vellum_volume::trash::TRASH_RECORD_NAME;
use vellum_volume::{SnapshotStatistics, Volume};

use crate::error::Result;
use crate::fs::LiveBase;
use crate::lease::WorktreeLease;
use crate::tree::head::{LayeredState, LiveHead};
use crate::tree::{LiveMap, MapReader, UsageAmount, wrap_decode_error};

pub use restore::TrashRestore;
pub use select::{select_number, select_path};
pub use vellum_volume::trash::{TrashEntry, TrashRecord};

/// Longest time that entries are kept, days: some hundred years.
pub const TRASH_DAYS_MAX: u32 = 36_500;

const SECONDS_PER_DAY: i64 = 24 * 60 * 60;
/// Keys that one transaction removes, about.
const BATCH_KEYS: usize = 4096;

/// The trash of a live worktree.
pub struct LiveTrash {
    volume: Arc<Volume>,
    lease: Arc<WorktreeLease>,
    map: Arc<LiveMap>,
    days: AtomicU32,
    /// The tree that the worktree's ref named when this was opened.
    stored: Option<UnsnapshottedTree>,
}

/// A state of the trash whose layers and base are kept while this exists.
struct HeldTrash<'t> {
    map: &'t LiveMap,
    state: LayeredState,
}

impl Drop for HeldTrash<'_> {
    fn drop(&mut self) {
        self.map.open_views().end_read(&self.state);
    }
}

impl LiveTrash {
    /// Opens the trash: begins or ends it in the live head if the worktree's ref has changed that.
    pub(crate) fn open(base: &LiveBase, stored: WorktreeTrash) -> Result<Self> {
        let LiveBase { volume, lease, map, .. } = base.clone();
        let trash = Self { volume, lease, map, days: AtomicU32::new(stored.days), stored: stored.tree };
        trash.adapt_head(stored)?;
        Ok(trash)
    }

    /// Makes the live head have a trash if and only if entries are kept.
    fn adapt_head(&self, stored: WorktreeTrash) -> Result<()> {
        let is_on = stored.days > 0;
        if self.map.lock_head().trash.is_some() == is_on {
            return Ok(());
        }
        let (root, counted) =
            stored.tree.map_or((self.volume.empty_root(), SnapshotStatistics::default()), |tree| {
                (tree.root, tree.counted)
            });
        self.map.change_head(|head, _| {
            match is_on {
                true => head.begin_trash(root, counted),
                false => head.trash = None,
            }
            Ok(())
        })?;
        self.map.open_views().note_unneeded_layers();
        Ok(())
    }

    /// The tree that the worktree's ref named when this was opened.
    pub(crate) fn stored_tree(&self) -> Option<UnsnapshottedTree> {
        self.stored
    }

    /// Days that an entry is kept; 0: nothing is kept.
    #[must_use]
    pub fn days(&self) -> u32 {
        self.days.load(Ordering::Acquire)
    }

    /// Sets how many days entries are kept, in the worktree's ref. With 0, nothing is kept any more, and what there is goes.
    pub fn set_days(&self, days: u32) -> Result<()> {
        // The ref first: if this process ends in between, the next one adapts the live head to the ref.
        self.lease.update_ref_for(&["trash", "days"], |head| {
            head.trash.days = days;
            if days == 0 {
                head.trash.tree = None;
            }
        })?;
        self.days.store(days, Ordering::Release);
        self.adapt_head(WorktreeTrash { days, tree: None })
    }

    /// What is in the trash.
    pub fn used_amount(&self) -> Result<UsageAmount> {
        let Some(held) = self.hold_state() else { return Ok(UsageAmount::default()) };
        let used = self.map.measure_state_usage(&held.state)?;
        // The root directory is no entry; it is made with the first one.
        Ok(UsageAmount { inodes: (used.inodes - 1).max(0), ..used })
    }

    /// Returns all entries, in the order in which they were removed.
    pub fn list_entries(&self) -> Result<Vec<TrashEntry>> {
        let Some(held) = self.hold_state() else { return Ok(Vec::new()) };
        self.map.read_sealed_state(&held.state, |view| {
            let mut numbers = Vec::new();
            view.visit_dentries(Ino::ROOT, None, &mut |_, dentry| {
                numbers.push(dentry.ino);
                ControlFlow::Continue(())
            })?;
            numbers.sort_unstable();
            // One that is missing was removed since.
            numbers.into_iter().filter_map(|number| read_entry(view, number).transpose()).collect()
        })
    }

    /// Keeps the layers of the trash while they are read. Nodes may have to be fetched from the store meanwhile: with the
    /// head held, all other requests would wait for that. What is removed meanwhile may be found or not.
    fn hold_state(&self) -> Option<HeldTrash<'_>> {
        let head = self.map.lock_head();
        let state = head.trash.clone()?;
        self.map.open_views().begin_sealed_read(&state);
        Some(HeldTrash { map: &self.map, state })
    }

    /// Removes all entries, whatever their number.
    pub fn empty(&self) -> Result<()> {
        self.lease.check_held()?;
        let next = self.map.read_trash(|view| Ok(view.read_super_block()?.next_ino))?;
        let Some(next) = next else { return Ok(()) };
        let root = self.volume.empty_root();
        self.map.change_head(|head, _| {
            if head.trash.is_some() {
                head.begin_trash(root, SnapshotStatistics::default());
            }
            Ok(())
        })?;
        self.map.open_views().note_unneeded_layers();
        // What was listed before must not be taken for what comes now.
        self.map.apply_change(|txn| {
            let next_ino = txn.read_trash(|view| Ok(view.read_super_block()?.next_ino))?;
            if let Some(next_ino) = next_ino.filter(|number| *number < next).map(|_| next) {
                keep::create_trash_root(txn, next_ino);
            }
            Ok(())
        })
    }

    /// Removes the entries that were removed from the worktree too long before a moment. Returns how many.
    pub fn expire(&self, now: UnixTime) -> Result<usize> {
        let kept = i64::from(self.days()) * SECONDS_PER_DAY;
        let is_expired = |entry: &TrashEntry| entry.record.removed.secs.saturating_add(kept) <= now.secs;
        let expired: Vec<Ino> =
            self.list_entries()?.iter().filter(|entry| is_expired(entry)).map(|entry| entry.number).collect();
        self.remove_entries(&expired)?;
        Ok(expired.len())
    }

    /// Removes entries. Those that are not there any more are no error.
    pub fn remove_entries(&self, numbers: &[Ino]) -> Result<()> {
        let mut rest = numbers;
        while !rest.is_empty() {
            // Before the transaction: the extents of a large file may fill many nodes, which are fetched here.
            let (batch, later) = rest.split_at(self.count_batch(rest)?);
            self.map.apply_change(|txn| {
                // Again, since publishing may have cut the content anew.
                let mut keys = Vec::new();
                txn.read_trash(|view| {
                    batch.iter().try_for_each(|number| collect_entry_keys(view, *number, &mut keys))
                })?;
                keys.iter().for_each(|key| txn.change_trash_key(key, None));
                Ok(())
            })?;
            rest = later;
        }
        Ok(())
    }

    /// How many entries one transaction removes: at least one, and as many as are little work.
    fn count_batch(&self, numbers: &[Ino]) -> Result<usize> {
        let Some(held) = self.hold_state() else { return Ok(numbers.len()) };
        self.map.read_sealed_state(&held.state, |view| {
            let mut keys = Vec::new();
            for (count, number) in numbers.iter().enumerate() {
                if keys.len() >= BATCH_KEYS {
                    return Ok(count);
                }
                collect_entry_keys(view, *number, &mut keys)?;
            }
            Ok(numbers.len())
        })
    }
}

/// The published part of the trash, as the worktree's ref is to name it.
pub(crate) fn published_trash(head: &LiveHead, empty: MapRoot) -> Option<UnsnapshottedTree> {
    let LayeredState { base, counted, .. } = *head.trash.as_ref()?;
    // With the empty tree as base nothing of it is published.
    (base != empty).then_some(UnsnapshottedTree { root: base, counted })
}

fn read_entry(view: &dyn MapReader, number: Ino) -> Result<Option<TrashEntry>> {
    let Some(bare) = view.bare_inode_attr(number)? else { return Ok(None) };
    let Some(record) = view.get_value(&MapKey::for_xattr(number, TRASH_RECORD_NAME))? else {
        return Ok(None);
    };
    let record = TrashRecord::decode(&record).map_err(wrap_decode_error("an entry of the trash"))?;
    let kind = bare.attr.kind;
    let size = if kind == FileKind::File { bare.attr.size } else { 0 };
    Ok(Some(TrashEntry { number, record, kind, size }))
}

/// Adds the keys of an entry, if it is there.
fn collect_entry_keys(view: &dyn MapReader, number: Ino, keys: &mut Vec<MapKey>) -> Result<()> {
    if view.bare_inode_attr(number)?.is_none() {
        return Ok(());
    }
    keys.push(MapKey::for_dentry(Ino::ROOT, &entry_name(number)));
    keys.push(MapKey::for_attr(number));
    view.collect_inode_keys(number, keys)
}

/// The name of an entry in the root directory of the trash.
fn entry_name(number: Ino) -> Vec<u8> {
    number.0.to_string().into_bytes()
}
