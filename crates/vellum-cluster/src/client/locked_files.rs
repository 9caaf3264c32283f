//! The locks of a client's programs, and open files whose locks were lost.
//!
//! Invariant: a program whose lock was lost with a session gets `EIO` from what it does through that open file, until it
//! closes it: another machine may have the lock by now.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use vellum_fuse::wire::{FileLock, FuseOperation, FuseRequest, Opcode};

use crate::locks::ranges::{OwnerRanges, RangeLock};
use crate::locks::{LockKind, LockMode, LockRange};
use crate::protocol::reclaim::ReclaimedLock;

/// Bytes of the handle that such requests begin with.
const HANDLE_LEN: usize = 8;

/// The locks, and the open files by their handles.
#[derive(Debug, Default)]
pub struct LockedFiles {
    owners: BTreeMap<LockPlace, OwnerLocks>,
    lost: HashSet<u64>,
}

/// A file, and who has locked it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LockPlace {
    node: u64,
    owner: u64,
    is_flock: bool,
}

/// What an owner has locked of a file, and through which open files.
#[derive(Debug, Default)]
struct OwnerLocks {
    handles: BTreeSet<u64>,
    /// Of `flock`: one lock, of the whole file.
    ranges: OwnerRanges,
}

impl LockedFiles {
    /// Notes a request that was answered with success.
    pub fn record_success(&mut self, request: &FuseRequest<'_>) {
        match request.decode_operation() {
            Ok(FuseOperation::Setlk { lock, .. }) => self.record_lock(request.header.node, &lock),
            Ok(_) | Err(_) => self.record_end(request),
        }
    }

    /// Notes a request by which a program has closed a descriptor, whether the server has learned of it or not.
    pub fn record_end(&mut self, request: &FuseRequest<'_>) {
        let node = request.header.node;
        match request.decode_operation() {
            // Whoever closes any descriptor of a file loses all its locks of `fcntl` on it.
            Ok(FuseOperation::Flush { owner, .. }) => {
                self.owners.remove(&LockPlace { node, owner, is_flock: false });
            }
            Ok(FuseOperation::Release { handle, .. }) => {
                self.lost.remove(&handle);
                self.owners.retain(|_, locks| !locks.handles.remove(&handle) || !locks.handles.is_empty());
            }
            Ok(_) | Err(_) => {}
        }
    }

    fn record_lock(&mut self, node: u64, lock: &FileLock) {
        let place = LockPlace { node, owner: lock.owner, is_flock: lock.is_flock };
        // The kernel may name the end of a range that has none by any number.
        let range =
            if lock.is_flock { None } else { LockRange::new(lock.start, lock.end.min(LockRange::LAST)) };
        let range = range.unwrap_or(LockRange::ALL);
        let mode = match lock.kind {
            FileLock::SHARED => LockMode::Shared,
            FileLock::EXCLUSIVE => LockMode::Exclusive,
            _ => {
                if let Some(locks) = self.owners.get_mut(&place) {
                    locks.ranges.clear(range);
                }
                self.owners.retain(|_, locks| !locks.ranges.is_empty());
                return;
            }
        };
        let locks = self.owners.entry(place).or_default();
        locks.handles.insert(lock.handle);
        let kind = if lock.is_flock { LockKind::Flock } else { LockKind::Posix };
        locks.ranges.set(RangeLock { range, kind, mode, pid: lock.pid });
    }

    /// The locks, for a server that does not know them.
    pub fn list_locks(&self) -> Vec<ReclaimedLock> {
        self.owners.iter().flat_map(|(place, locks)| locks.list_locks(*place)).collect()
    }

    /// These are lost: another machine may have them.
    pub fn lose_locks(&mut self, lost: &[ReclaimedLock]) {
        for ReclaimedLock { node, lock } in lost {
            let place = LockPlace { node: *node, owner: lock.owner, is_flock: lock.is_flock };
            // Of one owner, all of the file: what is left of several ranges protects nothing.
            let locks = self.owners.remove(&place).unwrap_or_default();
            self.lost.extend(locks.handles);
        }
    }

    /// Whether a request uses an open file whose locks were lost.
    pub fn is_lost(&self, request: &FuseRequest<'_>) -> bool {
        // Asked for each request, and nearly always nothing was lost.
        if self.lost.is_empty() {
            return false;
        }
        let uses_handle = matches!(
            Opcode::from_number(request.header.opcode),
            Some(
                Opcode::Read
                    | Opcode::Write
                    | Opcode::Fsync
                    | Opcode::Fallocate
                    | Opcode::Lseek
                    | Opcode::CopyFileRange
                    | Opcode::CopyFileRange64
                    | Opcode::Getlk
                    | Opcode::Setlk
                    | Opcode::Setlkw
            )
        );
        let handle = request.body().first_chunk::<HANDLE_LEN>().map(|handle| u64::from_le_bytes(*handle));
        uses_handle && handle.is_some_and(|handle| self.lost.contains(&handle))
    }
}

impl OwnerLocks {
    fn list_locks(&self, place: LockPlace) -> impl Iterator<Item = ReclaimedLock> + '_ {
        let LockPlace { node, owner, is_flock } = place;
        // Any of them: which one matters only for locks of open files (OFD), whose owner has one alone.
        let handle = self.handles.first().copied().unwrap_or_default();
        self.ranges.iter().map(move |RangeLock { range, mode, pid, .. }| {
            let kind = match mode {
                LockMode::Shared => FileLock::SHARED,
                LockMode::Exclusive => FileLock::EXCLUSIVE,
            };
            let lock =
                FileLock { handle, owner, start: range.start(), end: range.end(), kind, pid, is_flock };
            ReclaimedLock { node, lock }
        })
    }
}

#[cfg(test)]
mod tests {
    use vellum_fuse::wire::RequestHeader;

    use super::*;

    const NODE: u64 = 5;

    fn request(opcode: Opcode, body: &[u8]) -> FuseRequest<'_> {
        let header = RequestHeader { opcode: opcode.number(), unique: 2, node: NODE, uid: 0, gid: 0, pid: 1 };
        FuseRequest::from_parts(header, body)
    }

    fn lock_body(handle: u64, end: u64, kind: u32) -> Vec<u8> {
        let lock = FileLock { handle, owner: 8, start: 0, end, kind, pid: 1, is_flock: false };
        ReclaimedLock { node: NODE, lock }.encode_request_body()
    }

    fn lock(files: &mut LockedFiles, handle: u64, end: u64, kind: u32) {
        files.record_success(&request(Opcode::Setlkw, &lock_body(handle, end, kind)));
    }

    fn is_lost(files: &LockedFiles, opcode: Opcode, handle: u64) -> bool {
        files.is_lost(&request(opcode, &[&handle.to_le_bytes()[..], &[0; 32]].concat()))
    }

    fn release(files: &mut LockedFiles, handle: u64) {
        files.record_success(&request(Opcode::Release, &[&handle.to_le_bytes()[..], &[0; 16]].concat()));
    }

    #[test]
    fn who_has_lost_a_lock_gets_errors_until_the_file_is_closed() {
        let mut files = LockedFiles::default();
        lock(&mut files, 7, 9, FileLock::EXCLUSIVE);
        assert!(!is_lost(&files, Opcode::Write, 7));
        files.lose_locks(&files.list_locks());
        assert!(files.list_locks().is_empty());
        assert!(is_lost(&files, Opcode::Write, 7) && !is_lost(&files, Opcode::Write, 9));
        assert!(!is_lost(&files, Opcode::Getattr, 7));
        release(&mut files, 7);
        assert!(!is_lost(&files, Opcode::Write, 7));
    }

    #[test]
    fn what_is_locked_is_known_range_by_range() {
        let mut files = LockedFiles::default();
        lock(&mut files, 7, u64::MAX, FileLock::SHARED);
        lock(&mut files, 7, 9, FileLock::EXCLUSIVE);
        lock(&mut files, 7, 4, FileLock::NONE);
        let ranges = |files: &LockedFiles| -> Vec<_> {
            files.list_locks().iter().map(|held| (held.lock.start, held.lock.end, held.lock.kind)).collect()
        };
        let rest = (10, LockRange::LAST, FileLock::SHARED);
        assert_eq!(ranges(&files), [(5, 9, FileLock::EXCLUSIVE), rest]);
        // Through another descriptor of the same file.
        release(&mut files, 8);
        assert_eq!(files.list_locks().len(), 2);
        release(&mut files, 7);
        assert!(files.list_locks().is_empty());
        lock(&mut files, 7, 9, FileLock::SHARED);
        lock(&mut files, 7, u64::MAX, FileLock::NONE);
        assert!(files.list_locks().is_empty());
    }
}
