//! Inode numbers: taken from a pool in memory, which is refilled from the filesystem's own record.
//!
//! Invariant: the record is above every number that was given out. The rest of a pool is not used if the process
//! dies.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vellum_types::value::SuperBlock;
use vellum_types::{Ino, MapKey};

use super::LiveNames;
use crate::error::Result;
use crate::tree::MapReader;

/// Numbers that are taken from the record at once: one transaction more for so many files.
const POOL: u64 = 4096;

/// Numbers to give out.
#[derive(Debug, Default)]
pub struct InodeNumberPool {
    pool: Mutex<Range<u64>>,
    /// Counts the states that the worktree stood on.
    era: AtomicU64,
}

/// A number that no inode has, as long as the worktree stands on the same state.
#[derive(Debug, Clone, Copy)]
pub struct ReservedInodeNumber {
    /// The number.
    pub ino: Ino,
    era: u64,
}

impl InodeNumberPool {
    /// Forgets the pool: the worktree stands on another state. Numbers that were taken for the old one are worthless.
    pub fn discard_numbers(&self) {
        let mut pool = self.pool.lock();
        // With the pool locked: whoever sees the new era finds no old number.
        self.era.fetch_add(1, Ordering::Release);
        *pool = 0..0;
    }

    /// Whether a number may be used still: to be asked in the transaction that uses it.
    pub fn is_number_valid(&self, number: &ReservedInodeNumber) -> bool {
        self.era.load(Ordering::Acquire) == number.era
    }
}

impl LiveNames {
    /// A number that no inode has. Not to be called in a transaction.
    pub(crate) fn reserve_inode_number(&self) -> Result<ReservedInodeNumber> {
        loop {
            // Read before the number is taken: a number from the pool of a later state with this era would be
            // refused, and never the other way round.
            let era = self.numbers.era.load(Ordering::Acquire);
            let mut pool = self.numbers.pool.lock();
            if let Some(number) = pool.next() {
                return Ok(ReservedInodeNumber { ino: Ino(number), era });
            }
            // Not under the lock: whoever changes the state holds the head, and then wants the lock.
            drop(pool);
            self.refill_number_pool(era)?;
        }
    }

    fn refill_number_pool(&self, era: u64) -> Result<()> {
        // The base's node is fetched here, not within the transaction.
        self.map.read_head_state(|view| view.read_super_block())?;
        let reserved = self.map.apply_change(|txn| {
            let Ino(first) = txn.read_super_block()?.next_ino;
            // The record is raised before any of these numbers is used, so that a crash wastes some and gives
            // none out twice.
            let next = first.saturating_add(POOL);
            txn.set_key(MapKey::for_attr(Ino::SUPER), &SuperBlock { next_ino: Ino(next) }.encode());
            Ok(first..next)
        })?;
        let mut pool = self.numbers.pool.lock();
        // Another thread may have filled it meanwhile, or a restore may have begun another era. These numbers
        // are then left unused, which costs nothing.
        if pool.is_empty() && self.numbers.era.load(Ordering::Acquire) == era {
            *pool = reserved;
        }
        Ok(())
    }
}
