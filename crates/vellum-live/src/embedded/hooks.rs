//! Hooks that an engine calls in the storage to which its entries refer: the write log.

use std::io;

/// Values point into something else, which has to be as durable as they are.
pub trait DurabilityHooks: Send + Sync + 'static {
    /// Makes everything durable that committed entries point to. Called before the entries themselves become so; a
    /// failure is as bad as one of the journal.
    fn before_sync(&self) -> io::Result<()>;

    /// Whether what an entry points to is there. Asked when a store is opened, for each entry that may have become
    /// durable without it: a transaction with an entry that says no is left out, and so are those after it.
    fn is_intact(&self, key: &[u8], value: &[u8]) -> bool;
}

/// Entries point to nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoDurabilityHooks;

impl DurabilityHooks for NoDurabilityHooks {
    fn before_sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_intact(&self, _key: &[u8], _value: &[u8]) -> bool {
        true
    }
}
