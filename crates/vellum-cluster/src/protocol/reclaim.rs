//! Locks that a client had when another process served, and takes up again.

use vellum_fuse::wire::FileLock;

use super::fields::FrameFields;
use crate::error::{ClusterError, Result};

/// Locks in a frame, a count: a frame of 46 KiB.
pub const RECLAIMED_LOCKS_MAX: usize = 1024;

/// The flag of a request that says that it is for a lock of `flock` (`FUSE_LK_FLOCK`).
const FLOCK_FLAG: u32 = 1;

/// A lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReclaimedLock {
    /// The file.
    pub node: u64,
    /// What is locked, and for whom.
    pub lock: FileLock,
}

impl ReclaimedLock {
    /// The body of a request that sets it (`fuse_lk_in`).
    #[must_use]
    pub fn encode_request_body(&self) -> Vec<u8> {
        let FileLock { handle, owner, start, end, kind, pid, is_flock } = self.lock;
        let mut body = Vec::with_capacity(48);
        [handle, owner, start, end].iter().for_each(|word| body.extend(word.to_le_bytes()));
        let flags = if is_flock { FLOCK_FLAG } else { 0 };
        [kind, pid, flags, 0].iter().for_each(|word| body.extend(word.to_le_bytes()));
        body
    }

    fn append_to(&self, bytes: &mut Vec<u8>) {
        let FileLock { handle, owner, start, end, kind, pid, is_flock } = self.lock;
        [self.node, handle, owner, start, end].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend([u8::from(kind == FileLock::EXCLUSIVE), u8::from(is_flock)]);
        bytes.extend(pid.to_le_bytes());
    }

    fn read_from(fields: &mut FrameFields<'_>) -> Result<Self> {
        let node = fields.read_u64()?;
        let lock = FileLock {
            handle: fields.read_u64()?,
            owner: fields.read_u64()?,
            start: fields.read_u64()?,
            end: fields.read_u64()?,
            kind: if read_flag(fields)? { FileLock::EXCLUSIVE } else { FileLock::SHARED },
            is_flock: read_flag(fields)?,
            pid: fields.read_u32()?,
        };
        Ok(Self { node, lock })
    }
}

/// Adds locks behind their number.
pub fn append_locks(bytes: &mut Vec<u8>, locks: &[ReclaimedLock]) {
    // Senders cut what is longer than a frame may be into several, so that this is the number.
    let count = u32::try_from(locks.len()).unwrap_or(u32::MAX);
    bytes.extend(count.to_le_bytes());
    locks.iter().for_each(|lock| lock.append_to(bytes));
}

/// Reads locks behind their number.
pub fn read_locks(fields: &mut FrameFields<'_>) -> Result<Vec<ReclaimedLock>> {
    let count = read_lock_count(fields)?;
    (0..count).map(|_| ReclaimedLock::read_from(fields)).collect()
}

/// Reads the places of locks in a frame, behind their number.
pub fn read_lock_places(fields: &mut FrameFields<'_>) -> Result<Vec<u32>> {
    let count = read_lock_count(fields)?;
    (0..count).map(|_| fields.read_u32()).collect()
}

fn read_lock_count(fields: &mut FrameFields<'_>) -> Result<usize> {
    // Checked before memory is taken for so many.
    let count = usize::try_from(fields.read_u32()?).unwrap_or(usize::MAX);
    if count > RECLAIMED_LOCKS_MAX {
        return Err(ClusterError::Malformed("too many locks"));
    }
    Ok(count)
}

fn read_flag(fields: &mut FrameFields<'_>) -> Result<bool> {
    match fields.read_u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(ClusterError::Malformed("neither yes nor no")),
    }
}
