//! Locks of programs: who decides is the table that the adapter was given.
//!
//! Invariant: a request that waits for a lock keeps no thread.

use std::sync::Arc;

use rustix::io::Errno;
use vellum_types::Ino;

use super::{FuseAdapter, InodeOwner};
use crate::locks::{DeferredLock, FileLocks};
use crate::metrics::ServedRequest;
use crate::node::NodePlace;
use crate::transport::DeferredReply;
use crate::wire::{FileLock, FuseAnswer, SmallAnswer};

impl FuseAdapter {
    pub(super) fn answer_getlk(&self, call: ServedRequest<'_>, lock: &FileLock) -> FuseAnswer {
        let free = FileLock { kind: FileLock::NONE, ..*lock };
        match self.find_lockable(call.head.node) {
            Err(error) => FuseAnswer::Failed(error),
            Ok((locks, ino)) => {
                let found = locks.find_conflict(ino, lock);
                FuseAnswer::from_result(found, |found| SmallAnswer::for_lock(found.as_ref().unwrap_or(&free)))
            }
        }
    }

    pub(super) fn answer_setlk(
        &self,
        call: ServedRequest<'_>,
        lock: &FileLock,
        waits: bool,
        later: DeferredReply<'_>,
    ) -> FuseAnswer {
        let (locks, ino) = match self.find_lockable(call.head.node) {
            Ok(found) => found,
            Err(error) => return FuseAnswer::Failed(error),
        };
        // Whoever gives up a lock waits for nobody.
        if lock.kind == FileLock::NONE || !waits && !locks.is_held_up() {
            return FuseAnswer::from_unit_result(locks.set_lock(ino, lock));
        }
        let pending = later.into_pending();
        let decided = move |done| pending.send_answer(FuseAnswer::from_unit_result(done));
        let request = DeferredLock { unique: call.head.unique, waits };
        locks.set_lock_later(ino, lock, request, Box::new(decided));
        FuseAnswer::Later
    }

    pub(super) fn answer_interrupt(&self, unique: u64) -> FuseAnswer {
        match &self.locks {
            Some(locks) => {
                locks.interrupt_wait(unique);
                FuseAnswer::None
            }
            // The kernel then lets programs wait for all of their answers.
            None => FuseAnswer::Failed(Errno::NOSYS),
        }
    }

    /// A restore may have replaced the state in which the file was locked.
    pub(super) fn end_descriptor_locks(&self, node: u64, handle: u64, owner: u64) {
        if let (Some(locks), NodePlace::Main(_, ino)) = (&self.locks, NodePlace::from_node(node)) {
            locks.end_descriptor(ino, handle, owner);
        }
    }

    pub(super) fn answer_release(&self, node: u64, handle: u64, flock_owner: Option<u64>) -> FuseAnswer {
        if let (Some(locks), NodePlace::Main(_, ino)) = (&self.locks, NodePlace::from_node(node)) {
            locks.end_file(ino, handle, flock_owner);
        }
        FuseAnswer::Done
    }

    /// The table, and the inode under which it knows a node. Only files of the current state can be locked.
    fn find_lockable(&self, node: u64) -> Result<(&Arc<dyn FileLocks>, Ino), Errno> {
        let locks = self.locks.as_ref().ok_or(Errno::NOSYS)?;
        match self.inode_owner(node) {
            Ok(InodeOwner::Live(_, ino)) => Ok((locks, ino)),
            Ok(
                InodeOwner::Past(..)
                | InodeOwner::Frozen(..)
                | InodeOwner::Virtual(_)
                | InodeOwner::Removed(_),
            ) => Err(Errno::NOLCK),
            Err(error) => Err(error.errno()),
        }
    }
}
