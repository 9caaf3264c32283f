//! Epochs and past states: after a restore, open files continue to read what they had.
//!
//! Each restore begins a new *epoch*. Invariant: an operation that changes the worktree, or returns an inode number,
//! enters the epoch first, and a restore waits for all that have entered. So an inode number belongs to one epoch. A
//! past state is kept as long as an inode of it is held; it is in memory only, like open files.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicU16, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::io::Errno;
use vellum_types::Ino;

use crate::attributes::numbers::NumberMap;
use crate::content::opened::UnusedInode;
use crate::error::Result;
use crate::fs::LiveFilesystem;
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

/// The current epoch and the past states.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
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

impl Epochs {
    /// Waits until no operation is in the current epoch, and blocks new ones.
    pub fn lock_epoch(&self) -> RwLockWriteGuard<'_, ()> {
        self.present.write()
    }

    /// Returns the number of the current epoch.
    pub fn current_number(&self) -> Epoch {
        Epoch(self.number.load(Ordering::Acquire))
    }

    /// Locks the past states. Lock order: the live head first, then these.
    pub fn lock_past_states(&self) -> MutexGuard<'_, BTreeMap<Epoch, PastState>> {
        self.pasts.lock()
    }

    /// Ends the epoch: keeps the current state for the holders of its inodes, and begins a new epoch. The head must
    /// be locked: a reader that has not entered, and finds the same epoch before and after reading, has read values
    /// of that epoch.
    pub fn begin_next_epoch(&self, present: Epoch, state: LayeredState, held: HeldInodes) -> Result<()> {
        let mut pasts = self.lock_past_states();
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
}

impl LiveFilesystem {
    /// Enters the current epoch: the worktree is not restored before the returned guard is dropped.
    pub fn enter_epoch(&self) -> EpochGuard<'_> {
        EpochGuard { _present: self.epochs.present.read() }
    }

    /// Returns the current epoch. Without having entered, it can be outdated at once.
    #[must_use]
    pub fn current_epoch(&self) -> Epoch {
        self.epochs.current_number()
    }

    /// Adds a holder of an inode; the caller must have entered. Fails with a stale handle if the inode's state no
    /// longer exists.
    pub fn hold_inode(&self, epoch: Epoch, ino: Ino) -> Result<()> {
        if epoch == self.current_epoch() {
            self.opened.hold_inode(ino);
            return Ok(());
        }
        let mut pasts = self.epochs.lock_past_states();
        *pasts.get_mut(&epoch).ok_or(Errno::STALE)?.held.entry(ino).or_default() += 1;
        Ok(())
    }

    /// Removes holders of an inode. An inode without holders and without a name is removed, and so is a past state
    /// without held inodes.
    pub fn release_inode(&self, epoch: Epoch, ino: Ino, times: u64) -> Result<()> {
        let _entered = self.enter_epoch();
        match self.reduce_hold_count(epoch, ino, times) {
            Some(_) => self.remove_if_unused(ino),
            None => Ok(()),
        }
    }

    /// Removes holders of an inode; the caller must have entered. Returns the inode if it has no holder any more and
    /// belongs to the current state. A past state without held inodes is removed.
    pub(crate) fn reduce_hold_count(&self, epoch: Epoch, ino: Ino, times: u64) -> Option<UnusedInode> {
        if epoch == self.current_epoch() {
            return self.opened.release_inode(ino, times);
        }
        let mut pasts = self.epochs.lock_past_states();
        let Entry::Occupied(mut past) = pasts.entry(epoch) else { return None };
        if let Some(count) = past.get_mut().held.get_mut(&ino) {
            *count = count.saturating_sub(times);
            if *count == 0 {
                past.get_mut().held.remove(&ino);
            }
        }
        if past.get().held.is_empty() {
            past.remove();
            self.has_unneeded_layers.store(true, Ordering::Release);
        }
        None
    }
}
