//! Open files: how often each inode is open, so that one without a name goes at the last close.
//!
//! Invariant: while an inode is claimed nobody can open it, so what claims it may remove it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use vellum_types::Ino;

/// An open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

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

/// What all who have an inode open share: how far it was read in sequence, and how far ahead it is being fetched.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Where the last read ended.
    pub read_to: AtomicU64,
    /// Up to where chunks were asked for.
    pub fetched_to: AtomicU64,
    /// How much to ask for next, bytes.
    pub window: AtomicU64,
}

/// An inode in the table.
#[derive(Debug)]
enum Use {
    /// It is open so many times.
    Open(u64, Arc<Stream>),
    /// Somebody is removing it.
    Claimed,
}

#[derive(Debug, Default)]
struct Table {
    inodes: HashMap<Ino, Use>,
    handles: HashMap<Handle, Ino>,
    last: u64,
}

/// The table of open inodes.
#[derive(Debug, Default)]
pub struct Opened {
    table: Mutex<Table>,
    unclaimed: Condvar,
}

/// The right to remove an inode that nobody has open. Opening it waits until this is dropped.
#[derive(Debug)]
pub(crate) struct Claim<'o> {
    opened: &'o Opened,
    ino: Ino,
}

impl Opened {
    /// The inodes that are open.
    pub(crate) fn inodes(&self) -> Vec<Ino> {
        self.lock().inodes.keys().copied().collect()
    }

    /// Counts an opening.
    pub(crate) fn add(&self, ino: Ino) -> Handle {
        let mut table = self.wait_unclaimed(ino);
        match table.inodes.entry(ino).or_insert_with(|| Use::Open(0, Arc::default())) {
            Use::Open(count, _) => *count += 1,
            Use::Claimed => {}
        }
        table.last += 1;
        let handle = Handle(table.last);
        table.handles.insert(handle, ino);
        handle
    }

    /// Counts a close; gives the inode if nobody has it open any more.
    pub(crate) fn remove(&self, handle: Handle) -> Option<Ino> {
        let mut table = self.lock();
        let ino = table.handles.remove(&handle)?;
        let Entry::Occupied(mut entry) = table.inodes.entry(ino) else { return None };
        match entry.get_mut() {
            Use::Open(count, _) if *count > 1 => {
                *count -= 1;
                None
            }
            Use::Open(..) => {
                entry.remove();
                Some(ino)
            }
            Use::Claimed => None,
        }
    }

    /// What those who have the inode open share.
    pub(crate) fn stream(&self, ino: Ino) -> Option<Arc<Stream>> {
        match self.lock().inodes.get(&ino) {
            Some(Use::Open(_, stream)) => Some(stream.clone()),
            Some(Use::Claimed) | None => None,
        }
    }

    /// Claims an inode; None if somebody has it open.
    pub(crate) fn claim(&self, ino: Ino) -> Option<Claim<'_>> {
        let mut table = self.wait_unclaimed(ino);
        match table.inodes.entry(ino) {
            Entry::Occupied(_) => None,
            Entry::Vacant(entry) => {
                entry.insert(Use::Claimed);
                Some(Claim { opened: self, ino })
            }
        }
    }

    fn wait_unclaimed(&self, ino: Ino) -> MutexGuard<'_, Table> {
        let mut table = self.lock();
        while matches!(table.inodes.get(&ino), Some(Use::Claimed)) {
            table = self.unclaimed.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
        table
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.opened.lock().inodes.remove(&self.ino);
        self.opened.unclaimed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(7);

    #[test]
    fn the_last_close_is_told() {
        let opened = Opened::default();
        let (a, b) = (opened.add(INO), opened.add(INO));
        assert_ne!(a, b);
        assert_eq!(opened.remove(a), None);
        assert_eq!(opened.remove(a), None, "a handle counts once");
        assert_eq!(opened.remove(b), Some(INO));
    }

    #[test]
    fn what_is_open_cannot_be_claimed_and_what_is_claimed_cannot_be_opened() {
        let opened = Opened::default();
        let handle = opened.add(INO);
        assert!(opened.claim(INO).is_none());
        opened.remove(handle);
        let claim = opened.claim(INO);
        assert!(claim.is_some());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| opened.add(INO));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!waiting.is_finished());
            drop(claim);
        });
        assert!(opened.claim(INO).is_none());
    }
}
