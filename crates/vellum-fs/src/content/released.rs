//! Released orphans: inodes without a name and without holders, of which many are removed by one transaction.
//!
//! Invariant: each has had an orphan record since it lost its name. So if the process dies, the remaining ones are
//! removed when the worktree is opened the next time.

use parking_lot::{Mutex, MutexGuard};

use vellum_types::limits::INLINE_MAX;
use vellum_types::{Ino, MapKey};

use super::LiveContent;
use super::opened::UnusedInode;
use super::orphans::remove_inode;
use crate::error::Result;
use crate::tree::{LiveTransaction, MapReader};

/// Inodes that one transaction removes at most.
const BATCH_INODES: usize = 256;
/// Keys that one transaction removes, about: who removes large files does not hold up the others.
const BATCH_KEYS: usize = 4096;

/// Inodes that are to be removed.
#[derive(Debug, Default)]
pub(super) struct ReleasedOrphans(Mutex<Vec<Ino>>);

impl ReleasedOrphans {
    /// Adds one; gives how many there are.
    fn add_orphan(&self, ino: Ino) -> usize {
        let mut waiting = self.lock();
        waiting.push(ino);
        waiting.len()
    }

    /// Takes some.
    fn take_batch(&self) -> Vec<Ino> {
        let mut waiting = self.lock();
        // From the end, so that the rest need not be moved; their order does not matter.
        let keep = waiting.len().saturating_sub(BATCH_INODES);
        waiting.split_off(keep)
    }

    fn return_batch(&self, inodes: Vec<Ino>) {
        self.lock().extend(inodes);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Ino>> {
        self.0.lock()
    }
}

impl LiveContent {
    /// Leaves the removal of an inode whose last use has ended to [`LiveContent::remove_some_released`], if it has no
    /// name; false if it has one.
    pub(crate) fn defer_removal(&self, ino: Ino, unused: UnusedInode) -> Result<bool> {
        if self.are_orphans_left() {
            return Ok(false);
        }
        // Whoever removes it looks whether it has a name again.
        if !unused.is_orphan && !self.map.is_nameless_inode(ino)? {
            return Ok(false);
        }
        // Whoever makes more of them than the thread can remove helps it: so their number is bounded.
        if self.released.add_orphan(ino) >= BATCH_INODES {
            self.remove_some_released()?;
        }
        Ok(true)
    }

    /// Removes some of the released orphans, in one transaction; false if there were none.
    pub(crate) fn remove_some_released(&self) -> Result<bool> {
        let mut batch = self.released.take_batch();
        if batch.is_empty() {
            return Ok(false);
        }
        let done = self.remove_orphan_batch(&mut batch);
        // What was not reached, or could not be removed, is tried again.
        self.released.return_batch(batch);
        done.map(|()| true)
    }

    /// Removes inodes from the end of a list, as many as are little work.
    fn remove_orphan_batch(&self, batch: &mut Vec<Ino>) -> Result<()> {
        let mut claims = Vec::new();
        let mut inodes = Vec::new();
        let mut keys = 0;
        while let Some(ino) = batch.pop() {
            // Who has it open again, or is removing it, lets go of it later, or is done with it.
            let Some(claim) = self.opened.try_claim_removal(ino) else { continue };
            // Held until the transaction is committed: nobody opens the inode while it goes.
            claims.push(claim);
            inodes.push(ino);
            match self.map.read_head_state(|view| count_inode_keys(view, ino)) {
                Ok(more) => keys += more,
                Err(error) => {
                    batch.append(&mut inodes);
                    return Err(error);
                }
            }
            if keys >= BATCH_KEYS {
                break;
            }
        }
        let removed =
            self.map.apply_change(|txn| inodes.iter().try_for_each(|ino| remove_if_nameless(txn, *ino)));
        if removed.is_err() {
            batch.append(&mut inodes);
        }
        removed
    }
}

/// How many keys an inode has, about. Those of a large file may fill many nodes: they are fetched here, not within the
/// transaction.
fn count_inode_keys(view: &dyn MapReader, ino: Ino) -> Result<usize> {
    let mut keys: Vec<MapKey> = Vec::new();
    if view.bare_inode_attr(ino)?.is_some_and(|bare| bare.attr.size > INLINE_MAX as u64) {
        view.collect_inode_keys(ino, &mut keys)?;
    }
    Ok(keys.len() + 1)
}

/// Removes an inode, unless it has a name again.
pub(super) fn remove_if_nameless(txn: &mut LiveTransaction<'_>, ino: Ino) -> Result<()> {
    if txn.bare_inode_attr(ino)?.is_some_and(|bare| bare.attr.nlink == 0) {
        remove_inode(txn, ino)?;
        txn.remove_orphan(ino);
    }
    Ok(())
}
