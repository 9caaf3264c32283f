//! Live metadata: what a mounted worktree stores locally before it is published.
//!
//! An ordered key-value store with transactions ([`LiveStore`]). The meaning of keys and values is unknown here.
//! Deliberately absent: POSIX, the meaning of layers, the object store.

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
