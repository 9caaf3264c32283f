//! Hooks that an engine calls in the storage to which its entries refer: the write log.

use std::io;

/// Called by the engine to keep what values point to (the write log) as durable as the values are.
pub trait DurabilityHooks: Send + Sync + 'static {
    /// Makes durable what committed entries point to. Called before the entries themselves become durable. If it fails,
    /// the store accepts nothing more, as after a failed flush of the journal.
    fn before_sync(&self) -> io::Result<()>;

    /// Returns whether what an entry points to is there. Called when a store is opened, for each entry that may have
    /// become durable without it. If it returns false, the entry's transaction and all later ones are left out.
    fn is_intact(&self, key: &[u8], value: &[u8]) -> bool;
}

/// Hooks of a store whose entries point to nothing.
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
