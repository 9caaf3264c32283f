//! Epochs and past states: after a restore, open files continue to read what they had.
//!
//! Each restore begins a new *epoch*. Invariant: an operation that changes the worktree, or returns an inode number,
//! enters the epoch first, and a restore waits for all that have entered. So an inode number belongs to one epoch. A
//! past state is kept as long as an inode of it is held; it is in memory only, like open files.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::io::Errno;
use vellum_types::Ino;

use crate::content::LiveContent;
use crate::content::opened::UnusedInode;
use crate::error::Result;
use crate::fs::LiveBase;
use crate::number_map::NumberMap;
use crate::tree::LiveMap;
use crate::tree::head::LayeredState;

/// Maximum number of epochs: the number is part of the inode number that the kernel gets.
pub const EPOCHS_MAX: u16 = 1 << 15;

/// The number of a state that the worktree has had since it was opened; the first is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u16);

/// The number of holders of each inode.
pub(crate) type HeldInodes = NumberMap<Ino, u64>;

/// The state of an earlier epoch.
#[derive(Debug, Clone)]
pub(crate) struct PastState {
    pub state: LayeredState,
    held: HeldInodes,
}

/// The current epoch, the past states, and who holds which inode of either.
pub struct LiveEpochs {
    map: Arc<LiveMap>,
    content: Arc<LiveContent>,
    present: RwLock<()>,
    /// The number of the current epoch, for operations that have entered it.
    number: AtomicU16,
    pasts: Mutex<BTreeMap<Epoch, PastState>>,
}

/// While this guard exists, the worktree is not restored.
#[derive(Debug)]
pub struct EpochGuard<'f> {
    _present: RwLockReadGuard<'f, ()>,
}

impl LiveEpochs {
    /// The first epoch, without past states. Holders of its inodes are counted where open inodes are.
    pub(crate) fn new(base: &LiveBase, content: Arc<LiveContent>) -> Self {
        Self {
            map: base.map.clone(),
            content,
            present: RwLock::default(),
            number: AtomicU16::new(0),
            pasts: Mutex::default(),
        }
    }

    /// Enters the current epoch: the worktree is not restored before the returned guard is dropped.
    pub fn enter_epoch(&self) -> EpochGuard<'_> {
        EpochGuard { _present: self.present.read() }
    }

    /// Returns the current epoch. Without having entered, it can be outdated at once.
    #[must_use]
    pub fn current_epoch(&self) -> Epoch {
        Epoch(self.number.load(Ordering::Acquire))
    }

    /// Waits until no operation is in the current epoch, and blocks new ones. Lock order: before publishing and the live head.
    pub(crate) fn lock_epoch(&self) -> RwLockWriteGuard<'_, ()> {
        self.present.write()
    }

    /// Locks the past states. Lock order: the live head first, then these.
    pub(crate) fn lock_past_states(&self) -> MutexGuard<'_, BTreeMap<Epoch, PastState>> {
        self.pasts.lock()
    }

    /// Ends the epoch: keeps the current state for the holders of its inodes, and begins a new epoch. The head must
    /// be locked: a reader that has not entered, and finds the same epoch before and after reading, has read values
    /// of that epoch.
    pub(crate) fn begin_next_epoch(
        &self,
        present: Epoch,
        state: LayeredState,
        held: HeldInodes,
    ) -> Result<()> {
        let mut pasts = self.lock_past_states();
        // Without holders nobody can ask for this state again, and its layers may go.
        if !held.is_empty() {
            pasts.insert(present, PastState { state, held });
        }
        // Numbers come round again. One that a past state still has must not be given to another state: the kernel
        // may ask for its inodes.
        let next = (1..EPOCHS_MAX).map(|step| Epoch((present.0 + step) % EPOCHS_MAX));
        let next = next.into_iter().find(|epoch| !pasts.contains_key(epoch)).ok_or(Errno::NFILE)?;
        // Last, and only if there is a free number: without one the epoch goes on.
        self.number.store(next.0, Ordering::Release);
        Ok(())
    }

    /// Adds a holder of an inode; the caller must have entered. Fails with a stale handle if the inode's state no
    /// longer exists.
    pub fn hold_inode(&self, epoch: Epoch, ino: Ino) -> Result<()> {
        if epoch == self.current_epoch() {
            self.content.open_inodes().hold_inode(ino);
            return Ok(());
        }
        let mut pasts = self.lock_past_states();
        *pasts.get_mut(&epoch).ok_or(Errno::STALE)?.held.entry(ino).or_default() += 1;
        Ok(())
    }

    /// Removes holders of an inode. An inode without holders and without a name is removed, and so is a past state
    /// without held inodes.
    pub fn release_inode(&self, epoch: Epoch, ino: Ino, times: u64) -> Result<()> {
        let _entered = self.enter_epoch();
        match self.reduce_hold_count(epoch, ino, times) {
            Some(_) => self.content.remove_if_unused(ino),
            None => Ok(()),
        }
    }

    /// Removes holders of an inode, like [`LiveEpochs::release_inode`], but leaves the removal of an orphan to
    /// [`LiveEpochs::remove_released_orphans`]. Returns true if there is an orphan to remove.
    pub fn defer_inode_release(&self, epoch: Epoch, ino: Ino, times: u64) -> Result<bool> {
        let _entered = self.enter_epoch();
        match self.reduce_hold_count(epoch, ino, times) {
            Some(unused) => self.content.defer_removal(ino, unused),
            None => Ok(false),
        }
    }

    /// Removes the released orphans, many in one transaction.
    pub fn remove_released_orphans(&self) -> Result<()> {
        let _entered = self.enter_epoch();
        while self.content.remove_some_released()? {}
        Ok(())
    }

    /// Removes holders of an inode; the caller must have entered. Returns the inode if it has no holder any more and
    /// belongs to the current state. A past state without held inodes is removed.
    fn reduce_hold_count(&self, epoch: Epoch, ino: Ino, times: u64) -> Option<UnusedInode> {
        if epoch == self.current_epoch() {
            return self.content.open_inodes().release_inode(ino, times);
        }
        let mut pasts = self.lock_past_states();
        let Entry::Occupied(mut past) = pasts.entry(epoch) else { return None };
        if let Some(count) = past.get_mut().held.get_mut(&ino) {
            *count = count.saturating_sub(times);
            if *count == 0 {
                past.get_mut().held.remove(&ino);
            }
        }
        if past.get().held.is_empty() {
            past.remove();
            self.map.open_views().note_unneeded_layers();
        }
        None
    }
}
