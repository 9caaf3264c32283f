//! The locks that programs have on files, as far as the adapter needs to know: somebody else has the table.

use rustix::io::Errno;
use vellum_types::Ino;

use crate::wire::FileLock;

/// Called when a lock is set, or will not be.
pub type LockDecision = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// A request for a lock that is decided later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeferredLock {
    /// Its number, which an interrupt names.
    pub unique: u64,
    /// Whether it waits until the lock can be set. Otherwise it fails with `EAGAIN` if that cannot be.
    pub waits: bool,
}

/// The locks of programs that use one mount, beside those of all others.
pub trait FileLocks: Send + Sync + 'static {
    /// A lock that prevents this one; None: it could be set.
    fn find_conflict(&self, ino: Ino, lock: &FileLock) -> Result<Option<FileLock>, Errno>;

    /// Sets a lock, or removes what the owner has in the range. Fails with `EAGAIN` if it would have to wait.
    fn set_lock(&self, ino: Ino, lock: &FileLock) -> Result<(), Errno>;

    /// Whether also requests that do not wait for a lock have to be decided later, by [`Self::set_lock_later`].
    fn is_held_up(&self) -> bool;

    /// Sets a lock when that can be decided.
    fn set_lock_later(&self, ino: Ino, lock: &FileLock, request: DeferredLock, decided: LockDecision);

    /// The program that waits for this request has got a signal: it fails with `EINTR`, if it still waits.
    fn interrupt_wait(&self, unique: u64);

    /// A descriptor was closed: the locks of `fcntl` of its owner end.
    fn end_descriptor(&self, ino: Ino, handle: u64, owner: u64);

    /// An open file was closed: what was locked through it ends.
    fn end_file(&self, ino: Ino, handle: u64, flock_owner: Option<u64>);
}
