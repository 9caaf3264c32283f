//! Requests for locks, and what becomes of them.

use vellum_types::{ErrorKind, Ino};

/// The session of a client of the worktree, by its random id, which is never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockSession(pub [u8; LockSession::LEN]);

impl LockSession {
    /// Length of an id, bytes.
    pub const LEN: usize = 16;
}

/// Who owns a lock: what the kernel of a session's machine calls the owner. Of POSIX locks that is a process, of OFD locks
/// and of `flock` it is an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner {
    /// The session.
    pub session: LockSession,
    /// The kernel's number for the owner.
    pub number: u64,
}

/// Identifies a request that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WaitId {
    /// The session.
    pub session: LockSession,
    /// The session's number for the request: of FUSE, its `unique`.
    pub number: u64,
}

/// The system call that sets a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockKind {
    /// `fcntl` with `F_SETLK`: of a process.
    Posix,
    /// `fcntl` with `F_OFD_SETLK`: of an open file.
    Ofd,
    /// `flock`: of an open file, on all of the file.
    Flock,
}

/// With whom a lock can be shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockMode {
    /// With other shared locks.
    Shared,
    /// With none.
    Exclusive,
}

impl LockMode {
    /// Whether locks of two owners on one byte exclude each other.
    pub(super) fn conflicts_with(self, other: Self) -> bool {
        self == Self::Exclusive || other == Self::Exclusive
    }
}

/// Bytes of a file, from `start` to `end`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockRange {
    pub(super) start: u64,
    pub(super) end: u64,
}

impl LockRange {
    /// The last byte that a file can have (`OFFSET_MAX` of Linux): a range that ends there has no end.
    pub const LAST: u64 = i64::MAX.cast_unsigned();
    /// The whole file, however long it becomes.
    pub const ALL: Self = Self { start: 0, end: Self::LAST };

    /// The range from `start` to `end`, both included. None if it is empty, or ends behind [`LockRange::LAST`].
    #[must_use]
    pub fn new(start: u64, end: u64) -> Option<Self> {
        (start <= end && end <= Self::LAST).then_some(Self { start, end })
    }

    /// Its first byte.
    #[must_use]
    pub fn start(self) -> u64 {
        self.start
    }

    /// Its last byte.
    #[must_use]
    pub fn end(self) -> u64 {
        self.end
    }
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRequest {
    /// The file.
    pub ino: Ino,
    /// Who wants it.
    pub owner: LockOwner,
    /// By which system call.
    pub kind: LockKind,
    /// With whom it can be shared.
    pub mode: LockMode,
    /// Which bytes; of `flock` always [`LockRange::ALL`].
    pub range: LockRange,
    /// The process, for `F_GETLK`.
    pub pid: u32,
}

/// A lock that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLock {
    /// Who has it.
    pub owner: LockOwner,
    /// By which system call it was set.
    pub kind: LockKind,
    /// With whom it is shared.
    pub mode: LockMode,
    /// Which bytes.
    pub range: LockRange,
    /// The process that set it, by the numbers of its machine. `F_GETLK` reports -1 for OFD locks.
    pub pid: u32,
}

/// Why a lock was not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// Another owner has a lock that conflicts: `EAGAIN`.
    #[error("another process has locked it")]
    WouldBlock,
    /// The owner would wait for somebody who waits for it: `EDEADLK`.
    #[error("to wait for this lock would be a deadlock")]
    Deadlock,
    /// The request was taken back: `EINTR`.
    #[error("waiting for the lock was interrupted")]
    Interrupted,
    /// The session has as many locks or requests as it may have: `ENOLCK`.
    #[error("the machine has too many locks")]
    TooMany,
    /// There is no such session (any more): `EIO`.
    #[error("the session that wants the lock has ended")]
    SessionEnded,
    /// A request with this id waits already: an error of the client's, `EINVAL`.
    #[error("a request with the same number waits already")]
    DuplicateWait,
}

impl LockError {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(self) -> ErrorKind {
        match self {
            Self::WouldBlock | Self::Deadlock => ErrorKind::Conflict,
            Self::Interrupted => ErrorKind::Interrupted,
            Self::TooMany => ErrorKind::NoSpace,
            Self::SessionEnded => ErrorKind::Io,
            Self::DuplicateWait => ErrorKind::Usage,
        }
    }
}

/// Limits of one session: a client bounds what it makes the server keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockLimits {
    /// Most locks (separate ranges). A lock takes about 100 bytes.
    pub locks: usize,
    /// Most requests that wait. One takes about 200 bytes, and a thread of a program on the client.
    pub waits: usize,
}

impl Default for LockLimits {
    fn default() -> Self {
        // More than databases take, which lock pages; in all a few MiB for a session.
        Self { locks: 65_536, waits: 8_192 }
    }
}

/// What a session has in the table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LockUsage {
    /// Locks (separate ranges).
    pub locks: usize,
    /// Requests that wait.
    pub waits: usize,
}
