//! What a thread takes back while it works, and from which worktree: records of operations say it.

use std::cell::RefCell;

use super::record::RevertedOperation;

thread_local! {
    static REVERTED: RefCell<Option<RevertedOperation>> = const { RefCell::new(None) };
    static WORKTREE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// While it lives, whatever this thread does takes back another operation, or carries it out once more.
pub struct RevertScope {
    before: Option<RevertedOperation>,
}

impl RevertScope {
    /// Begins to take back an operation.
    #[must_use]
    pub fn enter(reverted: RevertedOperation) -> Self {
        Self { before: REVERTED.with_borrow_mut(|current| current.replace(reverted)) }
    }
}

impl Drop for RevertScope {
    fn drop(&mut self) {
        REVERTED.with_borrow_mut(|current| *current = self.before.take());
    }
}

/// The operation that this thread takes back.
pub(super) fn current_reverted_operation() -> Option<RevertedOperation> {
    REVERTED.with_borrow(Clone::clone)
}

/// While it lives, whatever this thread does is recorded as carried out from a worktree, and not from that with which the
/// volume was opened: a mount serves another one.
pub struct WorktreeScope {
    before: Option<String>,
}

impl WorktreeScope {
    /// Begins to work for a worktree.
    #[must_use]
    pub fn enter(name: &str) -> Self {
        Self { before: WORKTREE.with_borrow_mut(|current| current.replace(name.to_owned())) }
    }
}

impl Drop for WorktreeScope {
    fn drop(&mut self) {
        WORKTREE.with_borrow_mut(|current| *current = self.before.take());
    }
}

/// The worktree that this thread works for, if it works for one.
pub(super) fn scoped_worktree() -> Option<String> {
    WORKTREE.with_borrow(Clone::clone)
}
