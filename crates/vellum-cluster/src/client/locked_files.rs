//! Open files of a client's programs through which something is locked, and those whose locks were lost.
//!
//! Invariant: a program whose lock was lost with a session gets `EIO` from what it does through that open file, until it
//! closes it: another machine may have the lock by now.

use std::collections::HashSet;

use vellum_fuse::wire::{FileLock, FuseOperation, FuseRequest, Opcode};

/// Bytes of the handle that such requests begin with.
const HANDLE_LEN: usize = 8;

/// The open files, by their handles.
#[derive(Debug, Default)]
pub struct LockedFiles {
    locked: HashSet<u64>,
    lost: HashSet<u64>,
}

impl LockedFiles {
    /// Notes a request that was answered with success.
    pub fn record_success(&mut self, request: &FuseRequest<'_>) {
        match request.decode_operation() {
            Ok(FuseOperation::Setlk { lock, .. }) if lock.kind != FileLock::NONE => {
                self.locked.insert(lock.handle);
            }
            Ok(FuseOperation::Setlk { lock, .. })
                // Only if all of the file is unlocked: of single ranges it is not known what is left. A file
                // that is noted for too long fails too often, and never goes on without its lock.
                if lock.start == 0 && lock.end >= i64::MAX.cast_unsigned() =>
            {
                self.locked.remove(&lock.handle);
            }
            Ok(FuseOperation::Release { handle, .. }) => {
                self.locked.remove(&handle);
                self.lost.remove(&handle);
            }
            Ok(_) | Err(_) => {}
        }
    }

    /// All locks are lost, with the session.
    pub fn lose_all(&mut self) {
        // All of them: a new session has no locks, and who has them by now is not known.
        self.lost.extend(self.locked.drain());
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

#[cfg(test)]
mod tests {
    use vellum_fuse::wire::RequestHeader;

    use super::*;

    fn request(opcode: Opcode, body: &[u8]) -> FuseRequest<'_> {
        let header = RequestHeader { opcode: opcode.number(), unique: 2, node: 5, uid: 0, gid: 0, pid: 1 };
        FuseRequest::from_parts(header, body)
    }

    fn lock_body(handle: u64, end: u64, kind: u32) -> Vec<u8> {
        let mut body: Vec<u8> = [handle, 8, 0, end].iter().flat_map(|word| word.to_le_bytes()).collect();
        body.extend([kind, 1, 0, 0].iter().flat_map(|word| word.to_le_bytes()));
        body
    }

    #[test]
    fn who_has_lost_a_lock_gets_errors_until_the_file_is_closed() {
        let mut files = LockedFiles::default();
        files.record_success(&request(Opcode::Setlk, &lock_body(7, 9, FileLock::EXCLUSIVE)));
        files.record_success(&request(Opcode::Setlkw, &lock_body(8, u64::MAX, FileLock::SHARED)));
        files.record_success(&request(Opcode::Setlk, &lock_body(8, u64::MAX, FileLock::NONE)));
        let write = |handle: u64| [&handle.to_le_bytes()[..], &[0; 32]].concat();
        assert!(!files.is_lost(&request(Opcode::Write, &write(7))));
        files.lose_all();
        let is_lost = |files: &LockedFiles, handle| files.is_lost(&request(Opcode::Write, &write(handle)));
        assert_eq!([7, 8, 9].map(|handle| is_lost(&files, handle)), [true, false, false]);
        assert!(!files.is_lost(&request(Opcode::Getattr, &write(7))));
        files.record_success(&request(Opcode::Release, &[&7u64.to_le_bytes()[..], &[0; 16]].concat()));
        assert!(!is_lost(&files, 7));
    }
}
