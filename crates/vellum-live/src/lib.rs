//! Live metadata: what a mounted worktree needs to remember before it is published into the store.
//!
//! An ordered key-value store with transactions ([`LiveStore`]). It knows nothing of what keys and values mean.
//! Deliberately absent: POSIX, layers' meaning, the object store.

mod embedded;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod memory;
mod store;

#[cfg(any(test, feature = "sim"))]
#[doc(hidden)]
pub use embedded::sim;
pub use embedded::{
    DurabilityHooks, EmbeddedStore, EngineLimits, EngineStatistics, NoDurabilityHooks, folder,
};
pub use error::LiveError;
pub use memory::MemoryStore;
pub use store::{
    CommitSequence, LiveStore, StoreTimes, StoreTransaction, TransactionBody, ValueBytes, VisitScan,
};
