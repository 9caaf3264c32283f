//! Engines from outside.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod decoders;
mod full;
mod killing;
mod model;
mod reopening;
mod suites;
mod threads;

use vellum_live::{LiveError, LiveStore, Sequence, Transaction};

/// A transaction whose body cannot fail.
fn transact(store: &impl LiveStore, body: impl Fn(&mut dyn Transaction)) -> Result<Sequence, LiveError> {
    store.transact(&mut |txn| {
        body(txn);
        Ok(())
    })
}
