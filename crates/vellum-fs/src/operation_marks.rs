//! Marks in the live store of operations that were carried out for other machines.
//!
//! A machine that has lost its connection does not know whether its last operation was carried out, and sends it again. So
//! the transaction that carries it out also puts a mark: an operation with a mark is not carried out again, also by a
//! process that was started since.
//!
//! Invariant: a mark is there if and only if the change is. Deliberately absent: what the operation was answered.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use vellum_live::{LiveStore, StoreTransaction};
use vellum_map::KeySpan;

use crate::error::Result;
use crate::fs::LiveFilesystem;
use crate::tree::head::{OPERATION_MARKS, operation_mark_prefix};

/// That the mark is there is all that it says.
const VALUE: [u8; 1] = [1];

/// An operation that is about to be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationMark {
    /// For whom.
    pub session: u64,
    /// Which of its operations.
    pub number: u64,
    /// Operations of the same session whose marks nobody will ask for again.
    pub obsolete: Vec<u64>,
}

// An operation passes through code that knows nothing of marks on its way to a transaction, on one thread.
thread_local! {
    static CURRENT: RefCell<Option<OperationMark>> = const { RefCell::new(None) };
}

/// While this exists, transactions of this thread put a mark.
#[derive(Debug)]
pub struct OperationMarkGuard(());

impl OperationMark {
    /// Has the transactions of this thread put this mark.
    #[must_use]
    pub fn enter(self) -> OperationMarkGuard {
        CURRENT.with_borrow_mut(|current| *current = Some(self));
        OperationMarkGuard(())
    }
}

impl Drop for OperationMarkGuard {
    fn drop(&mut self) {
        CURRENT.with_borrow_mut(|current| *current = None);
    }
}

/// Puts the mark of this thread, if it has one. Part of each transaction that changes something.
pub(crate) fn put_current_mark(txn: &mut dyn StoreTransaction) {
    CURRENT.with_borrow(|current| {
        if let Some(mark) = current {
            put_mark(txn, mark);
        }
    });
}

fn put_mark(txn: &mut dyn StoreTransaction, mark: &OperationMark) {
    txn.set_key(&mark_key(mark.session, mark.number), Arc::from(VALUE.as_slice()));
    mark.obsolete.iter().for_each(|number| txn.delete_key(&mark_key(mark.session, *number)));
}

impl LiveFilesystem {
    /// The operations of a session that were carried out, as far as their marks are still there.
    pub fn marked_operations(&self, session: u64) -> Result<BTreeSet<u64>> {
        let mut numbers = BTreeSet::new();
        visit_marks(&**self.live_map().live_store(), &operation_mark_prefix(session), |_, number| {
            numbers.insert(number);
        })?;
        Ok(numbers)
    }

    /// The sessions that have marks.
    pub fn marked_sessions(&self) -> Result<BTreeSet<u64>> {
        let mut sessions = BTreeSet::new();
        visit_marks(&**self.live_map().live_store(), OPERATION_MARKS, |session, _| {
            sessions.insert(session);
        })?;
        Ok(sessions)
    }

    /// Puts a mark by itself, after an operation that takes several transactions.
    pub fn put_operation_mark(&self, mark: &OperationMark) -> Result<()> {
        self.live_map().live_store().run_transaction(&mut |txn| {
            put_mark(txn, mark);
            Ok(())
        })?;
        Ok(())
    }

    /// Removes all marks of a session.
    pub fn remove_operation_marks(&self, session: u64) -> Result<()> {
        let prefix = operation_mark_prefix(session);
        self.live_map().live_store().run_transaction(&mut |txn| {
            txn.delete_prefix(&prefix);
            Ok(())
        })?;
        Ok(())
    }
}

fn visit_marks(live: &dyn LiveStore, prefix: &[u8], mut visit: impl FnMut(u64, u64)) -> Result<()> {
    live.scan(&KeySpan::from_prefix(prefix), &mut |key, _| {
        if let Some((session, number)) = parse_mark_key(key) {
            visit(session, number);
        }
        ControlFlow::Continue(())
    })?;
    Ok(())
}

/// `q ‖ session ‖ number`, both of 64 bits and big-endian.
fn mark_key(session: u64, number: u64) -> Vec<u8> {
    [&operation_mark_prefix(session)[..], &number.to_be_bytes()].concat()
}

fn parse_mark_key(key: &[u8]) -> Option<(u64, u64)> {
    let (session, number) = key.strip_prefix(OPERATION_MARKS)?.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*session), u64::from_be_bytes(number.try_into().ok()?)))
}
