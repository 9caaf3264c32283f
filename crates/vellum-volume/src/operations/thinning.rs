//! Old records of operations are deleted, and the chain goes on to prove what is left.
//!
//! A checkpoint comes first: an operation like others, which names the last record that goes, by its hash. Only then the records
//! are deleted. The oldest record that stays names that same one as its predecessor, so that the way back from the end of the
//! chain ends there: a record that was cut off by anybody else is missed.
//!
//! Invariants: of each chain, the newest records stay, and all that are not old; a record is deleted only if a checkpoint
//! that the chain's end leads to covers it. Killed at any point, the next collection deletes the rest.

use vellum_store::{map_requests, unlist_objects};
use vellum_types::UnixTime;

use super::chain::{ChainListing, FoundChain, ListedOperation};
use super::log::{ChainName, OperationLog};
use super::record::{Checkpoint, OperationEffect, OperationLink};
use crate::error::{Result, VolumeError, is_data_loss};
use crate::session::current_time;
use crate::volume::Volume;

/// Which records of a chain stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationRetention {
    /// So many of the newest.
    pub newest: usize,
    /// All that are younger, seconds.
    pub seconds: i64,
    /// Fewer are not worth a checkpoint, which is a record itself.
    pub batch: usize,
}

impl OperationRetention {
    /// What a collection keeps: what happened in the last quarter of a year, and more in worktrees where little does.
    pub const DEFAULT: Self = Self { newest: 1000, seconds: 90 * 86_400, batch: 100 };
}

impl Volume {
    /// Deletes old records of operations. Returns how many.
    pub fn thin_operations(&self, retention: &OperationRetention) -> Result<u64> {
        let mut deleted = 0;
        for chain in self.list_chains()? {
            match self.thin_chain(&chain, retention) {
                Ok(count) => deleted += count,
                // What is wrong with the records is for `verify`, and nothing of them is deleted.
                Err(error) if is_data_loss(&error) => {
                    tracing::warn!(chain = chain.name.name, %error, "records of operations are not thinned");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(deleted)
    }

    fn thin_chain(&self, chain: &FoundChain, retention: &OperationRetention) -> Result<u64> {
        let Some(log) = self.refs.operation_log() else { return Ok(0) };
        let present = log.list_sequences(&chain.name)?;
        let oldest_kept = UnixTime { secs: current_time().secs.saturating_sub(retention.seconds), nanos: 0 };
        // Most chains are short, or have nothing old: then no record but one is read.
        if present.len() < retention.newest.saturating_add(retention.batch)
            || !self.is_old(log, &chain.name, present.get(retention.batch), oldest_kept)?
        {
            return Ok(0);
        }
        let ChainListing { operations, checkpoint, .. } = self.read_chain(chain, usize::MAX)?;
        let last = match choose_checkpoint(&operations, retention, oldest_kept) {
            Some(new) => {
                let last = new.last;
                // Durable before the first record goes.
                self.refs.record_in_chain(&chain.name, vec![OperationEffect::Thinned(new)])?;
                Some(last)
            }
            // A run that was killed may have left some.
            None => checkpoint.map(|checkpoint| checkpoint.last),
        };
        last.map_or(Ok(0), |last| self.delete_covered(log, &chain.name, &present, last))
    }

    fn is_old(
        &self,
        log: &OperationLog,
        chain: &ChainName,
        sequence: Option<&u64>,
        oldest_kept: UnixTime,
    ) -> Result<bool> {
        let Some(sequence) = sequence else { return Ok(false) };
        let found = log.fetch_operation(chain, *sequence)?;
        // One that was removed behind Vellum's back tells nothing: the chain is looked at.
        Ok(found.is_none_or(|record| record.time < oldest_kept))
    }

    fn delete_covered(
        &self,
        log: &OperationLog,
        chain: &ChainName,
        present: &[u64],
        last: OperationLink,
    ) -> Result<u64> {
        let covered = present.iter().take_while(|sequence| **sequence <= last.sequence);
        let keys = covered.map(|sequence| log.record_key(chain, *sequence)).collect::<Result<Vec<_>>>()?;
        unlist_objects(&*self.objects, &|key| keys.contains(key))?;
        let deleted =
            map_requests(&*self.objects, &keys, |key| Ok::<_, VolumeError>(self.objects.delete_object(key)?));
        deleted.into_iter().collect::<Result<Vec<()>>>()?;
        Ok(keys.len() as u64)
    }
}

/// The checkpoint of the records that go, if enough go. `operations` are those of the chain, newest first.
fn choose_checkpoint(
    operations: &[ListedOperation],
    retention: &OperationRetention,
    oldest_kept: UnixTime,
) -> Option<Checkpoint> {
    let older = operations.iter().enumerate().skip(retention.newest);
    // Only what lies behind the last young one goes: times need not ascend, since clocks go back.
    let young =
        older.filter(|(_, operation)| operation.record.time >= oldest_kept).map(|(at, _)| at).next_back();
    let first = young.map_or(retention.newest, |young| young + 1);
    let going = operations.get(first..).filter(|going| going.len() >= retention.batch)?;
    // The list begins with the newest: this is the last one that the checkpoint covers.
    let last = going.first()?;
    Some(Checkpoint { last: last.link, records: going.len() as u64, time: last.record.time })
}
