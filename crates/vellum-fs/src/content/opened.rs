//! Open files: counts handles and holders of each inode, so that an inode without a name is removed at the last
//! close.
//!
//! Invariant: a claimed inode cannot be opened, so the claimant may remove it.

use std::collections::hash_map::Entry;

use parking_lot::{Condvar, Mutex, MutexGuard};
use vellum_types::Ino;

use crate::attributes::numbers::NumberMap;
use crate::history::past::HeldInodes;

/// An open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileHandle(pub u64);

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenFlags {
    /// It is going to be written.
    pub write: bool,
    /// Each write goes to its end.
    pub append: bool,
    /// Its content goes.
    pub truncate: bool,
}

/// An inode in the table.
#[derive(Debug)]
enum InodeUse {
    /// It is open by so many handles, and held so many times without one.
    Open {
        handles: u64,
        held: u64,
        /// It lost its last name meanwhile. A hint: it may have got one again, or may have had none from the start.
        is_orphan: bool,
    },
    /// Somebody is removing it.
    Claimed,
}

const UNUSED: InodeUse = InodeUse::Open { handles: 0, held: 0, is_orphan: false };

/// An inode whose last use has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnusedInode {
    /// Whether it is known to have lost its last name while it was in use.
    pub is_orphan: bool,
}

#[derive(Debug, Default)]
struct OpenInodeMap {
    inodes: NumberMap<Ino, InodeUse>,
    handles: NumberMap<FileHandle, Ino>,
    last: u64,
}

/// The table of open inodes.
#[derive(Debug, Default)]
pub struct OpenInodes {
    table: Mutex<OpenInodeMap>,
    unclaimed: Condvar,
}

impl OpenInodeMap {
    /// Counts down; gives the inode if nobody uses it any more, and somebody did.
    fn reduce_counts(&mut self, ino: Ino, count: impl FnOnce(&mut u64, &mut u64)) -> Option<UnusedInode> {
        let Entry::Occupied(mut entry) = self.inodes.entry(ino) else { return None };
        let InodeUse::Open { handles, held, is_orphan } = entry.get_mut() else { return None };
        count(handles, held);
        let unused = (*handles == 0 && *held == 0).then_some(UnusedInode { is_orphan: *is_orphan });
        if unused.is_some() {
            entry.remove();
        }
        unused
    }
}

/// The right to remove an inode that nobody has open. Opening it waits until this is dropped.
#[derive(Debug)]
pub(crate) struct RemovalClaim<'o> {
    opened: &'o OpenInodes,
    ino: Ino,
}

impl OpenInodes {
    /// Counts an opening.
    pub(crate) fn add_handle(&self, ino: Ino) -> FileHandle {
        let mut table = self.wait_until_unclaimed(ino);
        if let InodeUse::Open { handles, .. } = table.inodes.entry(ino).or_insert(UNUSED) {
            *handles += 1;
        }
        table.last += 1;
        let handle = FileHandle(table.last);
        table.handles.insert(handle, ino);
        handle
    }

    /// Counts a close; gives the inode if nobody has it open or holds it any more.
    pub(crate) fn close_handle(&self, handle: FileHandle) -> Option<Ino> {
        let mut table = self.table.lock();
        let ino = table.handles.remove(&handle)?;
        table.reduce_counts(ino, |handles, _| *handles = handles.saturating_sub(1)).map(|_| ino)
    }

    /// Counts that somebody holds an inode, for whom there is no handle.
    pub(crate) fn hold_inode(&self, ino: Ino) {
        if let InodeUse::Open { held, .. } =
            self.wait_until_unclaimed(ino).inodes.entry(ino).or_insert(UNUSED)
        {
            *held += 1;
        }
    }

    /// Counts that it is held so many times less; gives it if nobody has it open or holds it any more.
    pub(crate) fn release_inode(&self, ino: Ino, times: u64) -> Option<UnusedInode> {
        self.table.lock().reduce_counts(ino, |_, held| *held = held.saturating_sub(times))
    }

    /// Remembers that an inode lost its last name while it was in use. False if its last use has ended since: whoever
    /// ended it did not know of an orphan, so the caller must see to it.
    pub(crate) fn mark_orphan(&self, ino: Ino) -> bool {
        match self.table.lock().inodes.get_mut(&ino) {
            Some(InodeUse::Open { is_orphan, .. }) => {
                *is_orphan = true;
                true
            }
            Some(InodeUse::Claimed) | None => false,
        }
    }

    /// Takes what is held without a handle: it is of another state from now on.
    pub(crate) fn take_held_inodes(&self) -> HeldInodes {
        let mut taken = HeldInodes::default();
        self.table.lock().inodes.retain(|ino, used| match used {
            InodeUse::Open { handles, held, .. } => {
                // The holders stay with the state that they knew; the worktree's new state starts without any.
                if *held > 0 {
                    taken.insert(*ino, std::mem::take(held));
                }
                *handles > 0
            }
            InodeUse::Claimed => true,
        });
        taken
    }

    /// Claims an inode; None if somebody has it open.
    pub(crate) fn claim_removal(&self, ino: Ino) -> Option<RemovalClaim<'_>> {
        let mut table = self.wait_until_unclaimed(ino);
        match table.inodes.entry(ino) {
            Entry::Occupied(_) => None,
            Entry::Vacant(entry) => {
                entry.insert(InodeUse::Claimed);
                Some(RemovalClaim { opened: self, ino })
            }
        }
    }

    /// Claims an inode, without waiting; None if somebody has it open, or is removing it.
    pub(crate) fn try_claim_removal(&self, ino: Ino) -> Option<RemovalClaim<'_>> {
        match self.table.lock().inodes.entry(ino) {
            Entry::Occupied(_) => None,
            Entry::Vacant(entry) => {
                entry.insert(InodeUse::Claimed);
                Some(RemovalClaim { opened: self, ino })
            }
        }
    }

    fn wait_until_unclaimed(&self, ino: Ino) -> MutexGuard<'_, OpenInodeMap> {
        let mut table = self.table.lock();
        while matches!(table.inodes.get(&ino), Some(InodeUse::Claimed)) {
            // The claimant may be removing it, or may find that it must stay: who opens it looks afterwards.
            self.unclaimed.wait(&mut table);
        }
        table
    }
}

impl Drop for RemovalClaim<'_> {
    fn drop(&mut self) {
        self.opened.table.lock().inodes.remove(&self.ino);
        // All, not one: they wait for different inodes.
        self.opened.unclaimed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(7);

    #[test]
    fn the_last_close_is_told() {
        let opened = OpenInodes::default();
        let a = opened.add_handle(INO);
        let b = opened.add_handle(INO);
        assert_ne!(a, b);
        assert_eq!(opened.close_handle(a), None);
        assert_eq!(opened.close_handle(a), None, "a handle counts once");
        assert_eq!(opened.close_handle(b), Some(INO));
    }

    #[test]
    fn what_is_held_and_open_goes_with_the_last_of_both() {
        let opened = OpenInodes::default();
        let handle = opened.add_handle(INO);
        opened.hold_inode(INO);
        opened.hold_inode(INO);
        assert_eq!(opened.close_handle(handle), None);
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
    fn what_is_held_is_taken_and_what_is_open_stays() {
        let opened = OpenInodes::default();
        let handle = opened.add_handle(INO);
        opened.hold_inode(INO);
        opened.hold_inode(Ino(8));
        assert_eq!(opened.take_held_inodes(), HeldInodes::from_iter([(INO, 1), (Ino(8), 1)]));
        assert!(opened.claim_removal(Ino(8)).is_some() && opened.claim_removal(INO).is_none());
        assert_eq!(opened.close_handle(handle), Some(INO));
    }

    #[test]
    fn what_is_open_cannot_be_claimed_and_what_is_claimed_cannot_be_opened() {
        let opened = OpenInodes::default();
        let handle = opened.add_handle(INO);
        assert!(opened.claim_removal(INO).is_none());
        opened.close_handle(handle);
        let claim = opened.claim_removal(INO);
        assert!(claim.is_some());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| opened.add_handle(INO));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!waiting.is_finished());
            drop(claim);
        });
        assert!(opened.claim_removal(INO).is_none());
    }
}
