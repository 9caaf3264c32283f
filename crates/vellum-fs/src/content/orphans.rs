//! Removing orphans: inodes that lost their last name, or never had one.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use vellum_map::KeySpan;
use vellum_types::{Ino, MapKey};

use super::LiveContent;
use super::released::remove_if_nameless;
use crate::error::{FsError, Result};
use crate::tree::head::{ORPHANS, orphan_key};
use crate::tree::{LiveMap, LiveTransaction, MapReader};

impl LiveContent {
    /// Removes an inode that has no name and that nobody has open. For who took its last name away while it was
    /// open, too: it may have been closed meanwhile.
    pub(crate) fn remove_if_unused(&self, ino: Ino) -> Result<()> {
        if self.are_orphans_left() {
            return Ok(());
        }
        if !self.map.is_nameless_inode(ino)? {
            return Ok(());
        }
        // Somebody has opened it again, and removes it later.
        let Some(_claim) = self.opened.claim_removal(ino) else { return Ok(()) };
        self.map.apply_change(|txn| remove_if_nameless(txn, ino))
    }

    /// Leaves files without a name for who opens the worktree next, though their last use ends. Each has an orphan record.
    pub(crate) fn leave_orphans(&self) {
        self.leaves_orphans.store(true, Ordering::Release);
    }

    /// Whether they are left.
    pub(super) fn are_orphans_left(&self) -> bool {
        self.leaves_orphans.load(Ordering::Acquire)
    }

    /// Removes what an earlier run left open and nameless, and nobody holds.
    pub(crate) fn remove_unheld_orphans(&self) -> Result<()> {
        // Collected before any is removed, so that the scan does not run over keys that are changing.
        let mut orphans = Vec::new();
        self.map.live_store().scan(&KeySpan::from_prefix(ORPHANS), &mut |key, _| {
            orphans.push(key.to_vec());
            ControlFlow::Continue(())
        })?;
        for key in orphans {
            let number = key.strip_prefix(ORPHANS).and_then(|digits| digits.try_into().ok());
            let ino = number.map(|digits| Ino(u64::from_be_bytes(digits)));
            let ino = ino.ok_or_else(|| FsError::BadTree("the record of an open file is none".into()))?;
            debug_assert_eq!(key, orphan_key(ino));
            // Somebody holds it, and removes it later.
            let Some(_claim) = self.opened.claim_removal(ino) else { continue };
            self.map.apply_change(|txn| {
                // It may have got a name again, or be gone.
                if txn.bare_inode_attr(ino)?.is_some_and(|bare| bare.attr.nlink == 0) {
                    remove_inode(txn, ino)?;
                }
                // Also if the inode stays: with a name again, it is no orphan.
                txn.remove_orphan(ino);
                Ok(())
            })?;
        }
        Ok(())
    }
}

impl LiveMap {
    /// Returns whether an inode exists and has no name.
    pub(super) fn is_nameless_inode(&self, ino: Ino) -> Result<bool> {
        self.read_head_state(|view| Ok(view.bare_inode_attr(ino)?.is_some_and(|bare| bare.attr.nlink == 0)))
    }
}

/// Removes all that the map holds of an inode that is there, and that no name leads to.
pub(crate) fn remove_inode(txn: &mut LiveTransaction<'_>, ino: Ino) -> Result<()> {
    let mut keys = vec![MapKey::for_attr(ino)];
    txn.collect_inode_keys(ino, &mut keys)?;
    keys.into_iter().for_each(|key| txn.delete_key(key));
    Ok(())
}
