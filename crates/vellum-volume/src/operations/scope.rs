//! What a thread takes back while it works: records of operations say it.

use std::cell::RefCell;

use super::record::RevertedOperation;

thread_local! {
    static REVERTED: RefCell<Option<RevertedOperation>> = const { RefCell::new(None) };
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
