//! States that the worktree stood on before it was restored: who has a file of one open goes on reading what it had.
//!
//! Each state since the worktree was opened is an *epoch*. Invariant: what changes the worktree, or tells somebody the
//! number of an inode, enters first, and a restore waits for all who entered; so a number belongs to one epoch. A past
//! state stays as long as somebody holds an inode of it; it lives in memory only, like what is open.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::io::Errno;
use vellum_types::{Ino, InodeAttr, MapKey};

use crate::error::Result;
use crate::fs::LiveFilesystem;
use crate::head::LayeredState;
use crate::tree::MapReader;

/// Epochs that can be held at once: their numbers are part of what the kernel calls inodes.
pub const EPOCHS_MAX: u16 = 1 << 15;

/// A state among those that the worktree stood on since it was opened; the first is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u16);

/// How often each inode is held.
pub(crate) type HeldInodes = HashMap<Ino, u64>;

/// A state that the worktree stands on no more.
#[derive(Debug, Clone)]
pub(crate) struct PastState {
    pub state: LayeredState,
    held: HeldInodes,
}

/// The present epoch and those before.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    present: RwLock<()>,
    /// The number of the present, for those who are in it.
    number: AtomicU16,
    pasts: Mutex<BTreeMap<Epoch, PastState>>,
}

/// While it lives, the worktree stays on the state that it stands on.
#[derive(Debug)]
pub struct EpochGuard<'f> {
    _present: RwLockReadGuard<'f, ()>,
}

impl Epochs {
    /// Waits until nobody is in the present state, and keeps everybody out.
    pub fn lock_epoch(&self) -> RwLockWriteGuard<'_, ()> {
        self.present.write()
    }

    /// The number of the present.
    pub fn current_number(&self) -> Epoch {
        Epoch(self.number.load(Ordering::Acquire))
    }

    /// The pasts. To be locked after the head.
    pub fn lock_past_states(&self) -> MutexGuard<'_, BTreeMap<Epoch, PastState>> {
        self.pasts.lock()
    }

    /// Keeps the present state for those who hold inodes of it, and lets another epoch begin. The head must be held
    /// still: who reads without entering, and finds the same epoch before and after, has read what belongs to it.
    pub fn begin_next_epoch(&self, present: Epoch, state: LayeredState, held: HeldInodes) -> Result<()> {
        let mut pasts = self.lock_past_states();
        if !held.is_empty() {
            pasts.insert(present, PastState { state, held });
        }
        let next = (1..EPOCHS_MAX).map(|step| Epoch((present.0 + step) % EPOCHS_MAX));
        let next = next.into_iter().find(|epoch| !pasts.contains_key(epoch)).ok_or(Errno::NFILE)?;
        self.number.store(next.0, Ordering::Release);
        Ok(())
    }
}

impl LiveFilesystem {
    /// Enters the present state: it is not restored to another one before what this gives is dropped.
    pub fn enter_epoch(&self) -> EpochGuard<'_> {
        EpochGuard { _present: self.epochs.present.read() }
    }

    /// The present epoch. Who has not entered may find another one at once.
    #[must_use]
    pub fn current_epoch(&self) -> Epoch {
        self.epochs.current_number()
    }

    /// Counts that somebody, who must have entered, holds an inode. Stale if its state is gone.
    pub fn hold_inode(&self, epoch: Epoch, ino: Ino) -> Result<()> {
        if epoch == self.current_epoch() {
            self.opened.hold_inode(ino);
            return Ok(());
        }
        let mut pasts = self.epochs.lock_past_states();
        *pasts.get_mut(&epoch).ok_or(Errno::STALE)?.held.entry(ino).or_default() += 1;
        Ok(())
    }

    /// Counts that an inode is held so many times less. What nobody holds and has no name goes, and so does a past
    /// state of which nothing is held.
    pub fn release_inode(&self, epoch: Epoch, ino: Ino, times: u64) -> Result<()> {
        let _entered = self.enter_epoch();
        if self.reduce_hold_count(epoch, ino, times) { self.remove_if_unused(ino) } else { Ok(()) }
    }

    /// Counts that an inode is held so many times less, by somebody who has entered. True if nobody holds it any more,
    /// and it is one of the present state; a past state of which nothing is held goes.
    pub(crate) fn reduce_hold_count(&self, epoch: Epoch, ino: Ino, times: u64) -> bool {
        if epoch == self.current_epoch() {
            return self.opened.release_inode(ino, times);
        }
        let mut pasts = self.epochs.lock_past_states();
        let Entry::Occupied(mut past) = pasts.entry(epoch) else { return false };
        if let Some(count) = past.get_mut().held.get_mut(&ino) {
            *count = count.saturating_sub(times);
            if *count == 0 {
                past.get_mut().held.remove(&ino);
            }
        }
        if past.get().held.is_empty() {
            past.remove();
            self.litter.store(true, Ordering::Release);
        }
        false
    }

    /// The attributes of an inode as a past state has them.
    pub fn past_inode_attr(&self, epoch: Epoch, ino: Ino) -> Result<InodeAttr> {
        self.read_past_state(epoch, |view| view.expect_inode_attr(ino))
    }

    /// An extended attribute of an inode as a past state has it.
    pub fn past_xattr(&self, epoch: Epoch, ino: Ino, name: &[u8]) -> Result<Arc<[u8]>> {
        let value = self.read_past_state(epoch, |view| view.get_value(&MapKey::for_xattr(ino, name)))?;
        Ok(value.ok_or(Errno::NODATA)?.as_bytes().into())
    }

    /// Reads a past state. Stale if it is gone.
    pub(crate) fn read_past_state<T>(
        &self,
        epoch: Epoch,
        body: impl FnOnce(&dyn MapReader) -> Result<T>,
    ) -> Result<T> {
        // The head is held: publishing moves pasts onto its trees together with the head.
        let _head = self.tree.lock_head();
        let state = self.epochs.lock_past_states().get(&epoch).map(|past| past.state.clone());
        self.tree.read_sealed_state(&state.ok_or(Errno::STALE)?, body)
    }
}
