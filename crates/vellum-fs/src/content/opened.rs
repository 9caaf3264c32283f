//! Open inodes: counts the holders of each, so that an inode without a name is removed when its last holder lets go: the
//! kernel, which knows it, or a program that has opened it through the library.
//!
//! Invariant: a claimed inode cannot be held, so the claimant may remove it.

use std::collections::hash_map::Entry;

use parking_lot::{Condvar, Mutex, MutexGuard};
use vellum_types::Ino;

use crate::history::past::HeldInodes;
use crate::number_map::NumberMap;

/// An inode in the table.
#[derive(Debug)]
enum InodeUse {
    /// It is held so many times.
    Held {
        count: u64,
        /// It lost its last name meanwhile. A hint: it may have got one again, or may have had none from the start.
        is_orphan: bool,
    },
    /// Somebody is removing it.
    Claimed,
}

/// An inode whose last use has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnusedInode {
    /// Whether it is known to have lost its last name while it was in use.
    pub is_orphan: bool,
}

type OpenInodeMap = NumberMap<Ino, InodeUse>;

/// The table of open inodes.
#[derive(Debug, Default)]
pub(crate) struct OpenInodes {
    table: Mutex<OpenInodeMap>,
    unclaimed: Condvar,
}

/// The right to remove an inode that nobody has open. Opening it waits until this is dropped.
#[derive(Debug)]
pub(crate) struct RemovalClaim<'o> {
    opened: &'o OpenInodes,
    ino: Ino,
}

impl OpenInodes {
    /// Counts a holder. From here on nobody removes the inode; whether it is there still, the holder looks afterwards.
    pub fn hold_inode(&self, ino: Ino) {
        let unused = InodeUse::Held { count: 0, is_orphan: false };
        if let InodeUse::Held { count, .. } = self.wait_until_unclaimed(ino).entry(ino).or_insert(unused) {
            *count += 1;
        }
    }

    /// Counts so many holders less; gives the inode if nobody holds it any more, and somebody did.
    pub fn release_inode(&self, ino: Ino, times: u64) -> Option<UnusedInode> {
        let mut table = self.table.lock();
        let Entry::Occupied(mut entry) = table.entry(ino) else { return None };
        let InodeUse::Held { count, is_orphan } = entry.get_mut() else { return None };
        // The number may come from the kernel. Should it be too large, the count must not wrap to one that
        // never ends.
        *count = count.saturating_sub(times);
        let unused = (*count == 0).then_some(UnusedInode { is_orphan: *is_orphan });
        if unused.is_some() {
            entry.remove();
        }
        unused
    }

    /// Remembers that an inode lost its last name while it was in use. False if its last use has ended since: whoever
    /// ended it did not know of an orphan, so the caller must see to it.
    pub fn mark_orphan(&self, ino: Ino) -> bool {
        match self.table.lock().get_mut(&ino) {
            Some(InodeUse::Held { is_orphan, .. }) => {
                *is_orphan = true;
                true
            }
            Some(InodeUse::Claimed) | None => false,
        }
    }

    /// Takes all holders: they stay with the state that they knew, and the worktree's new state starts without any.
    pub fn take_held_inodes(&self) -> HeldInodes {
        let mut taken = HeldInodes::default();
        self.table.lock().retain(|ino, used| match used {
            InodeUse::Held { count, .. } => {
                taken.insert(*ino, *count);
                false
            }
            // Its removal is still under way, and the claimant takes it out of the table.
            InodeUse::Claimed => true,
        });
        taken
    }

    /// Claims an inode; None if somebody has it open.
    pub fn claim_removal(&self, ino: Ino) -> Option<RemovalClaim<'_>> {
        self.claim_in(&mut self.wait_until_unclaimed(ino), ino)
    }

    /// Claims an inode, without waiting; None if somebody has it open, or is removing it.
    pub fn try_claim_removal(&self, ino: Ino) -> Option<RemovalClaim<'_>> {
        self.claim_in(&mut self.table.lock(), ino)
    }

    fn claim_in(&self, table: &mut OpenInodeMap, ino: Ino) -> Option<RemovalClaim<'_>> {
        match table.entry(ino) {
            Entry::Occupied(_) => None,
            Entry::Vacant(entry) => {
                entry.insert(InodeUse::Claimed);
                Some(RemovalClaim { opened: self, ino })
            }
        }
    }

    fn wait_until_unclaimed(&self, ino: Ino) -> MutexGuard<'_, OpenInodeMap> {
        let mut table = self.table.lock();
        while matches!(table.get(&ino), Some(InodeUse::Claimed)) {
            // The claimant may be removing it, or may find that it must stay: who opens it looks afterwards.
            self.unclaimed.wait(&mut table);
        }
        table
    }
}

impl Drop for RemovalClaim<'_> {
    fn drop(&mut self) {
        self.opened.table.lock().remove(&self.ino);
        // All, not one: they wait for different inodes.
        self.opened.unclaimed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(7);

    #[test]
    fn what_is_held_goes_with_the_last_holder() {
        let opened = OpenInodes::default();
        opened.hold_inode(INO);
        opened.hold_inode(INO);
        assert!(opened.claim_removal(INO).is_none());
        let released = [(); 3].map(|()| opened.release_inode(INO, 1));
        assert_eq!(released, [None, Some(UnusedInode { is_orphan: false }), None]);
    }

    #[test]
    fn an_orphan_is_known_at_its_last_release() {
        let opened = OpenInodes::default();
        opened.hold_inode(INO);
        assert!(opened.mark_orphan(INO));
        assert_eq!(opened.release_inode(INO, 1), Some(UnusedInode { is_orphan: true }));
        assert!(!opened.mark_orphan(INO), "nobody uses it any more");
        opened.hold_inode(INO);
        assert_eq!(opened.release_inode(INO, 1), Some(UnusedInode { is_orphan: false }), "it is another use");
    }

    #[test]
    fn what_is_held_is_taken() {
        let opened = OpenInodes::default();
        opened.hold_inode(INO);
        opened.hold_inode(INO);
        opened.hold_inode(Ino(8));
        assert_eq!(opened.take_held_inodes(), HeldInodes::from_iter([(INO, 2), (Ino(8), 1)]));
        assert!(opened.claim_removal(INO).is_some() && opened.claim_removal(Ino(8)).is_some());
    }

    #[test]
    fn what_is_held_cannot_be_claimed_and_what_is_claimed_cannot_be_held() {
        let opened = OpenInodes::default();
        opened.hold_inode(INO);
        assert!(opened.claim_removal(INO).is_none());
        assert!(opened.release_inode(INO, 1).is_some());
        let claim = opened.claim_removal(INO);
        assert!(claim.is_some());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| opened.hold_inode(INO));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!waiting.is_finished());
            drop(claim);
        });
        assert!(opened.claim_removal(INO).is_none());
    }
}
