//! Engines from outside.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod decoders;
mod full;
mod killing;
mod model;
mod reopening;
mod suites;
mod threads;

use vellum_live::{CommitSequence, LiveError, LiveStore, StoreTransaction};

/// A transaction whose body cannot fail.
fn transact(
    store: &impl LiveStore,
    body: impl Fn(&mut dyn StoreTransaction),
) -> Result<CommitSequence, LiveError> {
    store.run_transaction(&mut |txn| {
        body(txn);
        Ok(())
    })
}
