//! Reading the chains of operations, and finding out whether a record was edited, cut, moved or lost.

use std::collections::{BTreeMap, BTreeSet};

use vellum_store::{ObjectKey, map_requests};
use vellum_types::ErrorKind;

use super::log::{ChainName, OperationLog};
use super::record::{Checkpoint, OperationEffect, OperationLink, OperationRecord, RefEffect};
use crate::error::{Result, VolumeError, is_data_loss};
use crate::refs::{RefKind, StoredRef, read_chain_link, recorded_value};
use crate::volume::Volume;

/// Records that are read together.
const RECORDS_AT_ONCE: u64 = 64;

/// An operation of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedOperation {
    /// Its hash.
    pub link: OperationLink,
    /// What it was.
    pub record: OperationRecord,
}

/// The operations of some chains.
#[derive(Debug, Default)]
pub struct ChainListing {
    /// Newest first.
    pub operations: Vec<ListedOperation>,
    /// Whether there are older ones.
    pub more: bool,
    /// Where the chain ends, if that was reached, and old records were deleted. None for several chains.
    pub checkpoint: Option<Checkpoint>,
}

/// Something that is wrong with a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationProblem {
    /// The worktree whose chain it is; none for that of the volume.
    pub worktree: Option<String>,
    /// The record, if it is one record.
    pub sequence: Option<u64>,
    /// The object of the record, or the folder of the chain.
    pub object: String,
    /// What is wrong.
    pub reason: String,
}

impl OperationProblem {
    /// What it concerns, for messages.
    #[must_use]
    pub fn subject(&self) -> String {
        let chain = match &self.worktree {
            Some(worktree) => format!("of worktree '{worktree}'"),
            None => "of the volume".into(),
        };
        match self.sequence {
            Some(sequence) => format!("operation {sequence} {chain}"),
            None => format!("operations {chain}"),
        }
    }
}

/// What a verification of chains found.
#[derive(Debug, Default)]
pub struct ChainCheck {
    /// Chains that were checked, a count.
    pub chains: u64,
    /// Sound operations, a count.
    pub operations: u64,
    /// What is wrong.
    pub problems: Vec<OperationProblem>,
    /// Where chains end of which old records were deleted.
    pub checkpoints: Vec<CheckedCheckpoint>,
    /// Records that no ref names: what they tell was not carried out, or not to the end. Nothing is wrong with that.
    pub unfinished: Vec<OperationProblem>,
}

/// Where a chain ends since its old records were deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedCheckpoint {
    /// The worktree whose chain it is; none for that of the volume.
    pub worktree: Option<String>,
    /// What the chain says.
    pub checkpoint: Checkpoint,
}

/// A chain and the last operation that its ref names.
pub(super) struct FoundChain {
    pub name: ChainName,
    pub end: Option<OperationLink>,
    /// What the ref says, as operations record it.
    value: Vec<u8>,
}

impl Volume {
    /// The last `limit` operations of a worktree, newest first. Fails if one of them was changed or is missing.
    pub fn list_operations(&self, worktree: &str, limit: usize) -> Result<ChainListing> {
        let chain = ChainName::of_worktree(worktree);
        let found = self.find_chain(chain)?;
        let missing = || VolumeError::no_worktree(worktree);
        self.read_chain(&found.ok_or_else(missing)?, limit)
    }

    /// The last `limit` operations of the volume, newest first. Fails as [`Self::list_operations`] does.
    pub fn list_all_operations(&self, limit: usize) -> Result<ChainListing> {
        let mut all = ChainListing::default();
        for chain in self.list_chains()? {
            // The whole limit from each: which chain has the newest operations is known only when they are read.
            let ChainListing { operations, more, .. } = self.read_chain(&chain, limit)?;
            all.operations.extend(operations);
            all.more |= more;
        }
        // By time, as people look for them: the numbers of different chains have nothing to do with each other.
        all.operations.sort_by(|a, b| {
            let key = |of: &ListedOperation| (of.record.time, of.record.sequence);
            key(b).cmp(&key(a))
        });
        all.more |= all.operations.len() > limit;
        all.operations.truncate(limit);
        Ok(all)
    }

    /// Checks the chain of a worktree.
    pub fn verify_operations(&self, worktree: &str) -> Result<ChainCheck> {
        let missing = || VolumeError::no_worktree(worktree);
        let found = self.find_chain(ChainName::of_worktree(worktree))?.ok_or_else(missing)?;
        let mut check = ChainCheck::default();
        self.check_chain(&found, &mut check)?;
        Ok(check)
    }

    /// Checks all chains of the volume, and looks for records of chains that no ref knows.
    pub fn verify_all_operations(&self) -> Result<ChainCheck> {
        self.verify_listed_operations(&self.list_operation_objects()?)
    }

    /// Checks the records of all chains; `listed` are the objects of all records.
    pub(crate) fn verify_listed_operations(&self, listed: &[ObjectKey]) -> Result<ChainCheck> {
        let mut check = ChainCheck::default();
        let Some(log) = self.refs.operation_log() else { return Ok(check) };
        let folder = |key: &ObjectKey| format!("{}/", key.folder());
        // Listed before the refs are: a chain that begins in between is then not taken for one whose ref is lost.
        let mut folders: BTreeSet<_> = listed.iter().map(folder).collect();
        for chain in self.list_chains()? {
            folders.remove(&log.chain_folder(&chain.name));
            self.check_chain(&chain, &mut check)?;
        }
        check.problems.extend(folders.into_iter().map(|folder| OperationProblem {
            worktree: None,
            sequence: None,
            reason: format!("the ref of the records in {folder} is missing or damaged"),
            object: folder,
        }));
        Ok(check)
    }

    /// The objects of all records.
    pub(crate) fn list_operation_objects(&self) -> Result<Vec<ObjectKey>> {
        self.refs.operation_log().map_or(Ok(Vec::new()), OperationLog::list_records)
    }

    /// An error if the record in an object cannot be read.
    pub(crate) fn check_operation_object(&self, key: &ObjectKey) -> Result<()> {
        let Some(log) = self.refs.operation_log() else { return Ok(()) };
        log.fetch_record(key).map(drop)
    }

    pub(super) fn find_chain(&self, name: ChainName) -> Result<Option<FoundChain>> {
        let found = self.refs.find_ref(name.kind, &name.name)?;
        found.map(|found| describe_chain(name, &found)).transpose()
    }

    /// The chains of all refs that can be read, also of worktrees that were removed.
    pub(super) fn list_chains(&self) -> Result<Vec<FoundChain>> {
        let mut chains = Vec::new();
        for kind in [RefKind::Worktree, RefKind::Chain] {
            let keys = self.refs.list_ref_objects(kind)?;
            for found in self.refs.read_refs(kind, &keys)? {
                let describe = |found: StoredRef| {
                    let name = ChainName { kind, name: found.name.clone() };
                    describe_chain(name, &found)
                };
                match found.and_then(|found| found.map(describe).transpose()) {
                    Ok(found) => chains.extend(found),
                    // Its records are found to belong to no ref.
                    Err(error) if is_data_loss(&error) || error.kind() == ErrorKind::Unsupported => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(chains)
    }

    /// The last `limit` operations of a chain, newest first.
    pub(super) fn read_chain(&self, chain: &FoundChain, limit: usize) -> Result<ChainListing> {
        let mut listing = ChainListing::default();
        let Some(log) = self.refs.operation_log() else { return Ok(listing) };
        let mut known = BTreeMap::new();
        let mut next = chain.end;
        while let Some(link) = next {
            match listing.checkpoint {
                Some(checkpoint) if link == checkpoint.last => break,
                // Records at and below a checkpoint may be deleted at any time, so nothing else may stand in for the
                // one that it names.
                Some(checkpoint) if link.sequence <= checkpoint.last.sequence => {
                    let object = format!("operation {} of '{}'", link.sequence, chain.name.name);
                    let reason = "a checkpoint names another record in its place".into();
                    return Err(VolumeError::Damaged { object, reason });
                }
                Some(_) | None => {}
            }
            if listing.operations.len() >= limit {
                listing.more = true;
                break;
            }
            if !known.contains_key(&link.sequence) {
                // Numbers are seldom left out: those before it are needed next.
                let wanted = (limit - listing.operations.len()) as u64;
                let first = link.sequence.saturating_sub(wanted.min(RECORDS_AT_ONCE) - 1).max(1);
                let sequences: Vec<_> = (first..=link.sequence).collect();
                let found = map_requests(log.objects(), &sequences, |number| {
                    log.fetch_operation(&chain.name, *number)
                });
                known = sequences.into_iter().zip(found).collect();
            }
            let record = match known.remove(&link.sequence) {
                Some(found) => found?,
                None => None,
            };
            let lost = |reason: &str| VolumeError::Damaged {
                object: format!("operation {} of '{}'", link.sequence, chain.name.name),
                reason: reason.into(),
            };
            let record = record.ok_or_else(|| lost("it is missing"))?;
            if log.compute_link(&record) != link {
                return Err(lost("it is not the one that was recorded"));
            }
            next = record.previous;
            // The newest counts: it comes first.
            listing.checkpoint = listing.checkpoint.or(record.checkpoint());
            listing.operations.push(ListedOperation { link, record });
        }
        Ok(listing)
    }

    fn check_chain(&self, chain: &FoundChain, check: &mut ChainCheck) -> Result<()> {
        let Some(log) = self.refs.operation_log() else { return Ok(()) };
        check.chains += 1;
        let present = log.list_sequences(&chain.name)?;
        let mut walk = ChainWalk {
            chain,
            log,
            check,
            named: BTreeSet::new(),
            checkpoint: None,
            later_value: Some(chain.value.clone()),
            later_counters: BTreeMap::new(),
        };
        let first = walk.walk_back()?;
        let ChainWalk { named, checkpoint, .. } = walk;
        check.checkpoints.extend(
            checkpoint.map(|checkpoint| CheckedCheckpoint { worktree: chain.worktree(), checkpoint }),
        );
        let thinned = checkpoint.map_or(0, |checkpoint| checkpoint.last.sequence);
        let problem = |sequence, reason| chain.describe_problem(log, sequence, reason);
        let end = chain.end.map_or(0, |end| end.sequence);
        // What a checkpoint covers may still be there.
        let counted = present.iter().copied().filter(|sequence| *sequence > thinned);
        for sequence in counted.filter(|sequence| !named.contains(sequence)) {
            let reason = match sequence > end {
                true => "not carried out, or not to the end: the ref names no record as late as this one",
                false => "not carried out: no later record names it",
            };
            check.unfinished.push(problem(sequence, reason));
        }
        // Numbers are left out only for records that are there.
        let Some(first) = first else { return Ok(()) };
        let present: BTreeSet<_> = present.into_iter().collect();
        let is_lost = |sequence: &u64| !present.contains(sequence) && !named.contains(sequence);
        for sequence in (1..end).filter(|sequence| *sequence >= first).filter(is_lost) {
            check.problems.push(problem(sequence, "it is missing"));
        }
        Ok(())
    }
}

impl FoundChain {
    fn describe_problem(&self, log: &OperationLog, sequence: u64, reason: &str) -> OperationProblem {
        OperationProblem {
            worktree: self.worktree(),
            sequence: Some(sequence),
            object: log.record_path(&self.name, sequence),
            reason: reason.into(),
        }
    }

    fn worktree(&self) -> Option<String> {
        match self.name.kind {
            RefKind::Worktree => Some(self.name.name.clone()),
            RefKind::Tag | RefKind::Pin | RefKind::Settings | RefKind::Annotation | RefKind::Chain => None,
        }
    }
}

fn describe_chain(name: ChainName, found: &StoredRef) -> Result<FoundChain> {
    let end = read_chain_link(name.kind, &found.value)?;
    let value = recorded_value(name.kind, &found.value);
    Ok(FoundChain { name, end, value })
}

/// The way from the end of a chain to its beginning.
struct ChainWalk<'a> {
    chain: &'a FoundChain,
    log: &'a OperationLog,
    check: &'a mut ChainCheck,
    named: BTreeSet<u64>,
    /// The newest checkpoint so far.
    checkpoint: Option<Checkpoint>,
    /// What the operation after said the worktree's ref said before it; none if it is not known any more.
    later_value: Option<Vec<u8>>,
    /// The lowest counter of each ref so far.
    later_counters: BTreeMap<(RefKind, String), u64>,
}

impl ChainWalk<'_> {
    /// Checks each record that the end leads to. Returns the number of the first one that could be reached, if any.
    fn walk_back(&mut self) -> Result<Option<u64>> {
        let mut first = None;
        let mut next = self.chain.end;
        while let Some(link) = next {
            if let Some(Checkpoint { last, .. }) =
                self.checkpoint.filter(|it| link.sequence <= it.last.sequence)
            {
                // The oldest record that was kept names the last one that was not.
                if link != last {
                    self.report(link, "a checkpoint names another record in its place");
                }
                return Ok(first);
            }
            self.named.insert(link.sequence);
            first = Some(link.sequence);
            let record = match self.log.fetch_operation(&self.chain.name, link.sequence) {
                Ok(Some(record)) => record,
                Ok(None) => {
                    // Only the record knew the hash of the one before it, so the walk cannot go on.
                    self.report(link, "it is missing");
                    return Ok(first);
                }
                Err(error) if is_data_loss(&error) => {
                    self.report(link, &error.to_string());
                    return Ok(first);
                }
                Err(error) => return Err(error),
            };
            if self.log.compute_link(&record) != link {
                self.report(link, "it is not the one that was recorded: its hash is another");
                return Ok(first);
            }
            // Only after its hash was compared: of a record that is not the right one, nothing that it says counts.
            self.check_effects(link, &record);
            self.checkpoint = self.checkpoint.or(record.checkpoint());
            self.check.operations += 1;
            next = record.previous;
        }
        Ok(first)
    }

    fn check_effects(&mut self, link: OperationLink, record: &OperationRecord) {
        // The walk goes back in time, within a record as well.
        for effect in record.effects.iter().rev() {
            let OperationEffect::Ref(RefEffect { kind, name, counter, before, after }) = effect else {
                continue;
            };
            let later = self.later_counters.insert((*kind, name.clone()), *counter);
            // Two that did the same at once may both have recorded it.
            if later.is_some_and(|later| later < *counter) {
                self.report(
                    link,
                    &format!("the counter of the {} '{name}' falls after it", kind.display_name()),
                );
            }
            if *kind == self.chain.name.kind && *name == self.chain.name.name {
                let later = self.later_value.replace(before.clone());
                if later.is_some_and(|later| later != *after) {
                    self.report(link, "the worktree was changed after it without a record");
                }
            }
        }
    }

    fn report(&mut self, link: OperationLink, reason: &str) {
        self.check.problems.push(self.chain.describe_problem(self.log, link.sequence, reason));
    }
}
