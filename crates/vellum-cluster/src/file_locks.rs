//! The locks of one session in the table of all, in the form that a mount's adapter uses.
//!
//! The kernel does not say which locks of `fcntl` belong to an open file (OFD), and sends nothing for them when it is
//! closed. So it is noted through which open file each owner has locked, and what is left of that ends with the file.
//!
//! Invariant: an owner is noted for an open file as long as it may have locks that end with it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use vellum_fuse::wire::FileLock;
use vellum_fuse::{DeferredLock, FileLocks, LockDecision};
use vellum_types::Ino;

use crate::locks::{
    HeldLock, LockError, LockKind, LockMode, LockOwner, LockRange, LockRequest, LockSession, LockTable,
    WaitId,
};

/// Owners that are noted for open files, a count: as many as a session may have locks.
const OWNERS_MAX: usize = 65_536;

/// Notes that a session is about to get a lock.
pub type LockHolderRecorder = Arc<dyn Fn() -> Result<(), Errno> + Send + Sync>;

/// The locks of a session.
pub struct SessionFileLocks {
    table: Arc<LockTable>,
    session: LockSession,
    /// None: the session does not outlive the process.
    recorder: Option<LockHolderRecorder>,
    owners: Mutex<HandleOwners>,
}

#[derive(Default)]
struct HandleOwners {
    by_handle: HashMap<u64, BTreeSet<(Ino, u64)>>,
    count: usize,
}

impl SessionFileLocks {
    /// Those of a session that is open in the table, or will be.
    #[must_use]
    pub fn new(table: Arc<LockTable>, session: LockSession) -> Self {
        Self { table, session, recorder: None, owners: Mutex::default() }
    }

    /// The same, of a session that takes up its locks when another process serves. `recorder` is called before each lock.
    #[must_use]
    pub fn with_recorder(self, recorder: LockHolderRecorder) -> Self {
        Self { recorder: Some(recorder), ..self }
    }

    /// Before a lock is set: afterwards, the process could end in between, and the next one would not let the session have
    /// the lock that its program was told of.
    fn record_holder(&self) -> Result<(), Errno> {
        self.recorder.as_ref().map_or(Ok(()), |record| record())
    }

    fn owner(&self, number: u64) -> LockOwner {
        LockOwner { session: self.session, number }
    }

    fn build_request(&self, ino: Ino, lock: &FileLock) -> Result<LockRequest, Errno> {
        let mode = match lock.kind {
            FileLock::SHARED => LockMode::Shared,
            // What is to be removed has no mode.
            FileLock::EXCLUSIVE | FileLock::NONE => LockMode::Exclusive,
            _ => return Err(Errno::INVAL),
        };
        // FUSE does not tell the locks of open files (OFD) from those of processes, so that both are taken
        // for the latter.
        let kind = if lock.is_flock { LockKind::Flock } else { LockKind::Posix };
        let range = if lock.is_flock {
            LockRange::ALL
        } else {
            LockRange::new(lock.start, lock.end).ok_or(Errno::INVAL)?
        };
        Ok(LockRequest { ino, owner: self.owner(lock.owner), kind, mode, range, pid: lock.pid })
    }

    /// Notes through which open file something is locked.
    fn note_owner(&self, ino: Ino, lock: &FileLock) -> Result<(), Errno> {
        // Of `flock`, the kernel says what ends with the file.
        if lock.is_flock || lock.kind == FileLock::NONE {
            return Ok(());
        }
        let mut owners = self.owners.lock();
        if owners.count >= OWNERS_MAX {
            return Err(Errno::NOLCK);
        }
        // Before the lock is set: a file that is closed meanwhile must find it. An owner who is noted without a lock costs
        // only a release that finds nothing.
        if owners.by_handle.entry(lock.handle).or_default().insert((ino, lock.owner)) {
            owners.count += 1;
        }
        Ok(())
    }

    fn describe_lock(&self, lock: &HeldLock) -> FileLock {
        FileLock {
            handle: 0,
            owner: lock.owner.number,
            start: lock.range.start(),
            end: lock.range.end(),
            kind: match lock.mode {
                LockMode::Shared => FileLock::SHARED,
                LockMode::Exclusive => FileLock::EXCLUSIVE,
            },
            // The numbers of processes on another machine say nothing here.
            pid: if lock.owner.session == self.session { lock.pid } else { 0 },
            is_flock: lock.kind == LockKind::Flock,
        }
    }
}

impl FileLocks for SessionFileLocks {
    fn find_conflict(&self, ino: Ino, lock: &FileLock) -> Result<Option<FileLock>, Errno> {
        let request = self.build_request(ino, lock)?;
        Ok(self.table.find_conflict(&request).map(|found| self.describe_lock(&found)))
    }

    fn set_lock(&self, ino: Ino, lock: &FileLock) -> Result<(), Errno> {
        let request = self.build_request(ino, lock)?;
        if lock.kind == FileLock::NONE {
            return self.table.unlock(&request).map_err(to_errno);
        }
        self.record_holder()?;
        self.note_owner(ino, lock)?;
        self.table.set(&request).map_err(to_errno)
    }

    fn is_held_up(&self) -> bool {
        self.table.is_held_up(self.session)
    }

    fn set_lock_later(&self, ino: Ino, lock: &FileLock, deferred: DeferredLock, decided: LockDecision) {
        let request = self.build_request(ino, lock).and_then(|request| {
            self.record_holder()?;
            self.note_owner(ino, lock)?;
            Ok(request)
        });
        match request {
            Ok(request) => {
                // By the number of the kernel's request, which is what an interrupt names.
                let wait = WaitId { session: self.session, number: deferred.unique };
                let done = |done: Result<(), LockError>| decided(done.map_err(to_errno));
                if deferred.waits {
                    self.table.set_and_wait(&request, wait, done);
                } else {
                    self.table.set_in_turn(&request, wait, done);
                }
            }
            Err(error) => decided(Err(error)),
        }
    }

    fn interrupt_wait(&self, unique: u64) {
        // It may have been decided already: then the program learns that.
        self.table.cancel(WaitId { session: self.session, number: unique });
    }

    fn end_descriptor(&self, ino: Ino, handle: u64, owner: u64) {
        // A program that closes any descriptor of a file loses all its fcntl locks on it (POSIX), so nothing is left for
        // the end of the file to release.
        self.owners.lock().remove_owner(handle, (ino, owner));
        // Whether anything was noted or not: what was locked may be of another open file of the same owner.
        self.table.release_ranges(ino, self.owner(owner));
    }

    fn end_file(&self, ino: Ino, handle: u64, flock_owner: Option<u64>) {
        // What is left is of OFD locks, for which the kernel sends nothing by itself.
        for (ino, owner) in self.owners.lock().remove_handle(handle) {
            self.table.release_ranges(ino, self.owner(owner));
        }
        if let Some(owner) = flock_owner {
            self.table.release_flock(ino, self.owner(owner));
        }
    }
}

impl HandleOwners {
    fn remove_owner(&mut self, handle: u64, owner: (Ino, u64)) {
        let Some(owners) = self.by_handle.get_mut(&handle) else { return };
        self.count -= usize::from(owners.remove(&owner));
        if owners.is_empty() {
            self.by_handle.remove(&handle);
        }
    }

    fn remove_handle(&mut self, handle: u64) -> BTreeSet<(Ino, u64)> {
        let owners = self.by_handle.remove(&handle).unwrap_or_default();
        self.count -= owners.len();
        owners
    }
}

fn to_errno(error: LockError) -> Errno {
    match error {
        LockError::WouldBlock => Errno::AGAIN,
        LockError::Deadlock => Errno::DEADLK,
        LockError::Interrupted => Errno::INTR,
        LockError::TooMany => Errno::NOLCK,
        LockError::SessionEnded => Errno::IO,
        LockError::DuplicateWait => Errno::INVAL,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::locks::LockLimits;

    const INO: Ino = Ino(7);
    const WAIT: DeferredLock = DeferredLock { unique: 3, waits: true };

    fn sessions() -> [SessionFileLocks; 2] {
        let table = Arc::new(LockTable::new(LockLimits::default()));
        [1, 2].map(|number| {
            let session = LockSession([number; 16]);
            table.open_session(session);
            SessionFileLocks::new(table.clone(), session)
        })
    }

    fn lock(handle: u64, owner: u64, is_flock: bool) -> FileLock {
        FileLock { handle, owner, start: 0, end: 9, kind: FileLock::EXCLUSIVE, pid: 5, is_flock }
    }

    #[test]
    fn sessions_exclude_each_other_and_see_by_whom() {
        let [one, two] = sessions();
        one.set_lock(INO, &lock(1, 10, false)).unwrap();
        assert_eq!(two.set_lock(INO, &lock(1, 10, false)), Err(Errno::AGAIN));
        let found = two.find_conflict(INO, &lock(1, 10, false)).unwrap().unwrap();
        assert_eq!((found.start, found.end, found.kind, found.pid), (0, 9, FileLock::EXCLUSIVE, 0));
        let (sender, decided) = channel();
        two.set_lock_later(INO, &lock(1, 10, false), WAIT, Box::new(move |done| sender.send(done).unwrap()));
        assert!(decided.try_recv().is_err());
        one.set_lock(INO, &FileLock { kind: FileLock::NONE, ..lock(1, 10, false) }).unwrap();
        assert_eq!(decided.try_recv(), Ok(Ok(())));
    }

    #[test]
    fn what_waits_is_interrupted() {
        let [one, two] = sessions();
        one.set_lock(INO, &lock(1, 10, true)).unwrap();
        let (sender, decided) = channel();
        two.set_lock_later(INO, &lock(1, 10, true), WAIT, Box::new(move |done| sender.send(done).unwrap()));
        one.interrupt_wait(3);
        assert!(decided.try_recv().is_err());
        two.interrupt_wait(3);
        assert_eq!(decided.try_recv(), Ok(Err(Errno::INTR)));
    }

    #[test]
    fn locks_of_an_open_file_end_with_it() {
        let [one, two] = sessions();
        one.set_lock(INO, &lock(1, 10, false)).unwrap();
        one.set_lock(INO, &lock(2, 11, true)).unwrap();
        one.end_file(INO, 3, None);
        assert_eq!(two.set_lock(INO, &lock(1, 10, false)), Err(Errno::AGAIN));
        one.end_file(INO, 1, None);
        two.set_lock(INO, &lock(1, 10, false)).unwrap();
        assert_eq!(two.set_lock(INO, &lock(1, 10, true)), Err(Errno::AGAIN));
        one.end_file(INO, 2, Some(11));
        two.set_lock(INO, &lock(1, 10, true)).unwrap();
        two.end_descriptor(INO, 1, 10);
        one.set_lock(INO, &lock(1, 10, false)).unwrap();
        assert!(two.owners.lock().by_handle.is_empty() && two.owners.lock().count == 0);
    }
}
