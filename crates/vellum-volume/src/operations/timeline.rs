//! The operations of one worktree in the order of time: those of its chain, and those that were carried out from it and
//! stand in the chains of other worktrees.
//!
//! Invariant: operations of one chain keep its order, whatever clocks said.

use vellum_types::UnixTime;

use super::chain::{ChainListing, ListedOperation};
use super::log::ChainName;
use super::record::{OperationEffect, OperationLink, OperationRecord};
use crate::error::{Result, is_data_loss};
use crate::refs::RefKind;
use crate::volume::Volume;

/// Operations of each chain that are searched for those that changed a ref.
const SEARCHED: usize = 512;

/// An operation with the chain that it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChainedOperation {
    pub chain: ChainName,
    pub link: OperationLink,
    pub record: OperationRecord,
}

impl ChainedOperation {
    pub fn new(chain: &ChainName, ListedOperation { link, record }: ListedOperation) -> Self {
        Self { chain: chain.clone(), link, record }
    }

    /// What it is called in messages.
    pub fn describe(&self) -> String {
        let number = self.link.sequence;
        let command = self.record.command.join(" ");
        let of = self.chain.worktree().filter(|name| *name != self.record.worktree);
        let of = of.map(|name| format!(" of worktree '{name}'")).unwrap_or_default();
        match command.is_empty() {
            true => format!("{number}{of}"),
            false => format!("{number}{of}, '{command}'"),
        }
    }
}

/// The last operations of a worktree, newest first.
pub(super) struct Timeline {
    pub operations: Vec<ChainedOperation>,
    /// Whether there are none before them.
    pub is_whole: bool,
}

impl Volume {
    /// The operations of this worktree, of which at most the last `limit` of each chain are read.
    pub(super) fn read_timeline(&self, limit: usize) -> Result<Timeline> {
        let own = ChainName::of_worktree(&self.worktree.worktree);
        let mut timed = Vec::new();
        let mut known_since: Option<UnixTime> = None;
        for chain in self.list_chains()? {
            let is_own = chain.name == own;
            let ChainListing { operations, more, .. } = match self.read_chain(&chain, limit) {
                // What is wrong with the chains of others is for `verify`.
                Err(error) if !is_own && is_data_loss(&error) => continue,
                listing => listing?,
            };
            let mut time: Option<UnixTime> = None;
            for operation in operations {
                let own_time = operation.record.time;
                // Never later than what follows it in the chain: a clock that was set back must not reorder a chain.
                time = Some(time.map_or(own_time, |later| later.min(own_time)));
                if is_own || operation.record.worktree == own.name {
                    timed.push((time, ChainedOperation::new(&chain.name, operation)));
                }
            }
            if more {
                known_since = known_since.max(time);
            }
        }
        // Stable: operations of one chain stay in their order.
        timed.sort_by(|(a, _), (b, _)| b.cmp(a));
        // Of what is older than the oldest that was read of a chain, some may not have been read.
        timed.retain(|(time, _)| *time >= known_since);
        let operations = timed.into_iter().map(|(_, operation)| operation).collect();
        Ok(Timeline { operations, is_whole: known_since.is_none() })
    }

    /// The operation with a number in the chain of a worktree, if it was carried out and is still recorded.
    pub(super) fn find_operation(&self, chain: ChainName, sequence: u64) -> Result<Option<ChainedOperation>> {
        let Some(found) = self.find_chain(chain)? else { return Ok(None) };
        let Some(end) = found.end.filter(|end| end.sequence >= sequence) else { return Ok(None) };
        let limit = usize::try_from(end.sequence - sequence + 1).unwrap_or(usize::MAX);
        // Only what the end leads to counts: numbers are left out, but none occurs twice.
        let listed = self.read_chain(&found, limit)?.operations;
        let wanted = listed.into_iter().find(|operation| operation.link.sequence == sequence);
        Ok(wanted.map(|operation| ChainedOperation::new(&found.name, operation)))
    }

    /// The operations that changed a ref after it had this counter, the first one first, as far as they are recorded.
    pub(super) fn list_operations_after(
        &self,
        kind: RefKind,
        name: &str,
        counter: u64,
    ) -> Result<Vec<ChainedOperation>> {
        let changed = |record: &OperationRecord| {
            let counters = record.effects.iter().filter_map(|effect| match effect {
                OperationEffect::Ref(effect) if effect.kind == kind && effect.name == name => {
                    Some(effect.counter)
                }
                OperationEffect::Ref(_)
                | OperationEffect::Forgotten(_)
                | OperationEffect::Collected { .. }
                | OperationEffect::Key(..)
                | OperationEffect::Made(_)
                | OperationEffect::Reverted(_)
                | OperationEffect::Recovered(_)
                | OperationEffect::Discarded(_)
                | OperationEffect::Thinned(_) => None,
            });
            counters.filter(|found| *found > counter).min()
        };
        let mut later = Vec::new();
        for chain in self.list_chains()? {
            let listing = match self.read_chain(&chain, SEARCHED) {
                // This only finds a name for a message. What is wrong with a chain is for `verify`.
                Err(error) if is_data_loss(&error) => continue,
                listing => listing?,
            };
            for operation in listing.operations {
                let Some(at) = changed(&operation.record) else { continue };
                later.push((at, ChainedOperation::new(&chain.name, operation)));
            }
        }
        later.sort_by_key(|(at, _)| *at);
        Ok(later.into_iter().map(|(_, operation)| operation).collect())
    }
}
