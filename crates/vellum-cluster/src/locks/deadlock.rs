//! Deadlocks among POSIX locks, across all files and sessions.
//!
//! The nodes of the wait-for graph are owners of POSIX locks; an edge goes from one that waits to each whose locks it waits
//! for. A request that would close a circle fails. As on Linux, an owner whose threads wait apart counts as waiting for all
//! that they wait for. OFD locks and `flock` make no edges: to their owners, open files, nothing can be concluded from what
//! one of the processes that have them waits for.

use std::collections::HashSet;

use super::request::{LockKind, LockOwner, LockRequest};
use super::state::LockState;

impl LockState {
    /// Whether an owner that waited for this would wait for itself.
    pub(super) fn would_deadlock(&self, request: &LockRequest) -> bool {
        if request.kind != LockKind::Posix {
            return false;
        }
        let mut visited = HashSet::new();
        let mut pending: Vec<LockOwner> = self.holders(request).collect();
        while let Some(owner) = pending.pop() {
            if owner == request.owner {
                return true;
            }
            // What is granted while others wait adds edges that nobody has checked, so there may be circles without this
            // owner. In these the search would not end.
            if !visited.insert(owner) {
                continue;
            }
            for place in self.posix_waits.get(&owner).into_iter().flatten() {
                let waiting = self.file(place.ino).and_then(|file| file.waits.get(&place.order));
                pending.extend(waiting.into_iter().flat_map(|waiting| self.holders(&waiting.request)));
            }
        }
        false
    }

    /// The owners whose locks prevent a request.
    fn holders<'a>(&'a self, request: &LockRequest) -> impl Iterator<Item = LockOwner> + use<'a> {
        let file = self.file(request.ino);
        let request = *request;
        file.into_iter().flat_map(move |file| file.conflicts(&request)).map(|lock| lock.owner)
    }
}
