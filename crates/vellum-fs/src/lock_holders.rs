//! Sessions of other machines whose programs have locked files, in the live store.
//!
//! A process that serves keeps locks in memory. When the next one begins, the machines tell it which locks they have. It
//! believes only those whose session is noted here: a session that has ended has lost its locks, perhaps to others, and
//! its machine need not know that.
//!
//! Invariant: a session that has locks is noted, durably. Before others can get the locks of one that has ended, it is
//! durable that it is not noted.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use vellum_map::KeySpan;

use crate::error::Result;
use crate::fs::LiveFilesystem;
use crate::tree::head::LOCK_HOLDERS;

/// The name of a session.
pub type LockHolderId = [u8; 16];

/// That the key is there is all that it says.
const VALUE: [u8; 1] = [1];

impl LiveFilesystem {
    /// The sessions that are noted.
    pub fn lock_holders(&self) -> Result<BTreeSet<LockHolderId>> {
        let mut holders = BTreeSet::new();
        self.live_map().live_store().scan(&KeySpan::from_prefix(LOCK_HOLDERS), &mut |key, _| {
            // Keys of another length are none of these.
            let id = key.strip_prefix(LOCK_HOLDERS).and_then(|id| LockHolderId::try_from(id).ok());
            holders.extend(id);
            ControlFlow::Continue(())
        })?;
        Ok(holders)
    }

    /// Notes a session, before it gets its first lock, and returns when that is durable: otherwise a machine that takes over
    /// from one that was lost would give the lock to others.
    pub fn add_lock_holder(&self, id: LockHolderId) -> Result<()> {
        let live = self.live_map().live_store();
        let added = live.run_transaction(&mut |txn| {
            txn.set_key(&holder_key(id), Arc::from(VALUE.as_slice()));
            Ok(())
        })?;
        Ok(live.wait_until_durable(added)?)
    }

    /// Forgets sessions, and returns when that is durable.
    pub fn remove_lock_holders(&self, ids: &[LockHolderId]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let live = self.live_map().live_store();
        let removed = live.run_transaction(&mut |txn| {
            ids.iter().for_each(|id| txn.delete_key(&holder_key(*id)));
            Ok(())
        })?;
        Ok(live.wait_until_durable(removed)?)
    }
}

/// `k ‖ session`.
fn holder_key(id: LockHolderId) -> Vec<u8> {
    [LOCK_HOLDERS, &id].concat()
}
