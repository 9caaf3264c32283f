//! Which changes of refs are operations, and how they get into the chain of a worktree.
//!
//! A change of a worktree's head puts its record first, and then swaps the ref with the new value and the record's link
//! together. A change of anything else puts the record, makes the change, and then swaps the link into the chain's ref. Whoever
//! is killed in between leaves a record that nothing names: if its change was made, the next operation takes it into the chain.

use vellum_store::pack::pack_key;
use vellum_store::{ObjectKey, StoreError};
use vellum_types::{DecodeError, FieldReader, FieldWriter, LookupResult, SnapshotId};

use super::{RETRIES, RefKind, RefStore, RememberedRef, StoredRef, WorktreeHead};
use crate::catalog::record_object_key;
use crate::error::{Result, VolumeError, is_data_loss};
use crate::keyring::is_key_change_seen;
use crate::operations::{
    ChainName, OperationEffect, OperationLink, OperationLog, OperationSink, PutOperation, RefEffect,
    SealedOperation, find_outside_snapshot,
};

/// After so many numbers that were taken, the chain is listed.
const LISTED_FROM: usize = 4;
/// First byte of what is left of a worktree's head that was removed: the rest names its last operation.
const REMOVED: u8 = 3;
/// First byte of the ref of a chain that is no worktree's.
const CHAIN: u8 = 4;
/// Longest of these values, bytes: the first byte, a number, a hash.
const LINK_VALUE_MAX: usize = 1 + 10 + 32;
/// Shortest of these values, bytes. Longer than the value of a tag, which may begin with any byte.
const LINK_VALUE_MIN: usize = 1 + 1 + 32;

/// An operation whose record was put, and that no ref names yet.
#[derive(Debug)]
pub(crate) struct PendingOperation {
    chain: ChainName,
    previous: Option<OperationLink>,
    link: OperationLink,
    effects: Vec<OperationEffect>,
}

/// A ref that is about to be changed.
pub(super) struct RefChange<'a> {
    pub kind: RefKind,
    pub name: &'a str,
    pub old: Option<&'a StoredRef>,
    pub counter: u64,
    /// Empty to remove it.
    pub new: Vec<u8>,
    /// Whether what it says is remembered, and may be old.
    pub is_remembered: bool,
}

/// A change that is ready to be swapped.
pub(super) struct RecordedChange {
    pub value: Vec<u8>,
    /// What is to be finished when it was swapped.
    pub pending: Option<PendingOperation>,
}

/// The last operation of a chain that its ref names.
struct ChainEnd<'a> {
    chain: &'a ChainName,
    named: Option<OperationLink>,
    /// The record of the operation that is to come next, if one was put after an earlier end.
    own: Option<OperationLink>,
}

/// A record that was put.
struct PutRecord {
    previous: Option<OperationLink>,
    link: OperationLink,
}

pub(super) fn is_removed_value(value: &[u8]) -> bool {
    value.is_empty() || decode_link_value(REMOVED, value).is_some()
}

fn decode_link_value(first: u8, value: &[u8]) -> Option<OperationLink> {
    if !(LINK_VALUE_MIN..=LINK_VALUE_MAX).contains(&value.len()) || value.first() != Some(&first) {
        return None;
    }
    let parse = |value| {
        let mut reader = FieldReader::new(value);
        let link = OperationLink::decode(&mut reader)?;
        reader.expect_end()?;
        Ok::<_, DecodeError>(link)
    };
    parse(value.get(1..)?).ok()
}

fn encode_link_value(first: u8, link: &OperationLink) -> Vec<u8> {
    let mut writer = FieldWriter::new();
    link.encode(writer.write_u8(first));
    writer.into_vec()
}

/// The last operation that the ref of a chain names.
pub(crate) fn read_chain_link(kind: RefKind, value: &[u8]) -> Result<Option<OperationLink>> {
    match kind {
        RefKind::Tag | RefKind::Pin | RefKind::Settings | RefKind::Annotation => Ok(None),
        RefKind::Chain => Ok(decode_link_value(CHAIN, value)),
        RefKind::Worktree if is_removed_value(value) => Ok(decode_link_value(REMOVED, value)),
        RefKind::Worktree => {
            let head = WorktreeHead::decode(value)
                .map_err(VolumeError::wrap_decode_error("the head of a worktree"))?;
            Ok(head.operation)
        }
    }
}

/// The value of a chain's ref with another last operation.
fn set_chain_link(kind: RefKind, value: &[u8], link: Option<OperationLink>) -> Result<Vec<u8>> {
    let Some(link) = link else { return Ok(value.to_vec()) };
    match kind {
        RefKind::Tag | RefKind::Pin | RefKind::Settings | RefKind::Annotation => Ok(value.to_vec()),
        RefKind::Chain => Ok(encode_link_value(CHAIN, &link)),
        RefKind::Worktree if is_removed_value(value) => Ok(encode_link_value(REMOVED, &link)),
        RefKind::Worktree => {
            let head = WorktreeHead::decode(value)
                .map_err(VolumeError::wrap_decode_error("the head of a worktree"))?;
            Ok(WorktreeHead { operation: Some(link), ..head }.encode())
        }
    }
}

/// What operations record of a ref: nothing if it is not there.
pub(crate) fn recorded_value(kind: RefKind, value: &[u8]) -> Vec<u8> {
    match kind {
        _ if is_removed_value(value) => Vec::new(),
        RefKind::Tag | RefKind::Pin | RefKind::Settings | RefKind::Annotation | RefKind::Chain => {
            value.to_vec()
        }
        RefKind::Worktree => {
            // A head that does not decode is recorded as it is: the record still tells what was there.
            WorktreeHead::decode(value).map_or_else(|_| value.to_vec(), |head| head.recorded_part().encode())
        }
    }
}

impl RefStore {
    /// Puts the record of a change, if it is an operation, and gives the value that is to be swapped. None if what is
    /// remembered of the ref seems to be old: nothing was put then, and it is to be read.
    pub(super) fn record_change(
        &self,
        change: &RefChange<'_>,
        sink: &mut OperationSink<'_>,
    ) -> Result<Option<RecordedChange>> {
        let mut is_taken = false;
        let put = &mut |sealed: &SealedOperation| match (sink.put)(sealed) {
            // Whoever added to the chain since has the next number. A record that was put all the same would be one that
            // was not carried out, as the swap is going to fail.
            Err(VolumeError::Store(StoreError::Exists { .. })) if change.is_remembered => {
                is_taken = true;
                Err(VolumeError::Raced(format!("the operations of '{}'", change.name)))
            }
            put => put,
        };
        let recorded = self.put_change(change, &mut OperationSink { effects: sink.effects.clone(), put });
        if is_taken { Ok(None) } else { recorded.map(Some) }
    }

    fn put_change(&self, change: &RefChange<'_>, sink: &mut OperationSink<'_>) -> Result<RecordedChange> {
        let RefChange { kind, name, old, counter, new, is_remembered: _ } = change;
        let old_value = old.map_or(&[][..], |old| &old.value);
        let unrecorded = |value| RecordedChange { value, pending: None };
        // The ref of a chain only names records: a record of its change would have to be named in turn.
        let Some(log) = self.log.as_ref().filter(|_| *kind != RefKind::Chain) else {
            return Ok(unrecorded(new.clone()));
        };
        let effect = RefEffect {
            kind: *kind,
            name: (*name).to_owned(),
            counter: *counter,
            before: recorded_value(*kind, old_value),
            after: recorded_value(*kind, new),
        };
        let is_operation = effect.before != effect.after;
        let own = OperationEffect::Ref(effect);
        let effects: Vec<_> = sink.effects.iter().cloned().chain([own]).collect();
        match kind {
            RefKind::Tag | RefKind::Pin | RefKind::Settings | RefKind::Annotation | RefKind::Chain => {
                // A tag has no place for a link. The chain's own ref is swapped after it, so that a record may be left
                // unnamed.
                let begin = || self.begin_operation(log, effects.clone());
                let pending = is_operation.then(begin).transpose()?;
                Ok(RecordedChange { value: new.clone(), pending })
            }
            RefKind::Worktree => {
                // A head carries its link: one swap changes both, and there is no moment in which only one of them is
                // new.
                let link = read_chain_link(*kind, old_value)?;
                let link = match is_operation {
                    true => {
                        let chain = ChainName::of_worktree(name);
                        let end = ChainEnd { chain: &chain, named: link, own: None };
                        Some(self.put_next_operation(log, &end, &effects, sink.put)?.link)
                    }
                    false => link,
                };
                Ok(unrecorded(set_chain_link(*kind, new, link)?))
            }
        }
    }

    /// Puts the record of an operation that changes no ref of a worktree. [`Self::finish_operation`] is to be called when
    /// the operation was carried out. None if this store keeps no operations.
    pub(crate) fn begin_recorded(&self, effects: Vec<OperationEffect>) -> Result<Option<PendingOperation>> {
        self.log.as_ref().map(|log| self.begin_operation(log, effects)).transpose()
    }

    /// Records an operation that was carried out just now.
    pub(crate) fn record_operation(&self, effects: Vec<OperationEffect>) -> Result<()> {
        match self.begin_recorded(effects)? {
            Some(pending) => self.finish_operation(pending),
            None => Ok(()),
        }
    }

    /// Records an operation in a chain, whatever the worktree from which it is carried out.
    pub(crate) fn record_in_chain(&self, chain: &ChainName, effects: Vec<OperationEffect>) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let pending = self.begin_in_chain(log, chain.clone(), effects)?;
        self.finish_operation(pending)
    }

    fn begin_operation(&self, log: &OperationLog, effects: Vec<OperationEffect>) -> Result<PendingOperation> {
        self.begin_in_chain(log, self.find_own_chain(log)?, effects)
    }

    fn begin_in_chain(
        &self,
        log: &OperationLog,
        chain: ChainName,
        effects: Vec<OperationEffect>,
    ) -> Result<PendingOperation> {
        let link = match self.find_recent(&chain)? {
            Some(found) => read_chain_link(chain.kind, &found.value)?,
            None => None,
        };
        let end = ChainEnd { chain: &chain, named: link, own: None };
        let put = self.put_next_operation(log, &end, &effects, &mut |sealed| log.put_operation(sealed))?;
        Ok(PendingOperation { chain, previous: put.previous, link: put.link, effects })
    }

    /// The chain of the worktree from which operations are carried out; that of the volume if this store does not have it.
    fn find_own_chain(&self, log: &OperationLog) -> Result<ChainName> {
        let own = ChainName::of_worktree(&log.worktree);
        // Not as it is remembered: a process that has the volume open for long learns by it of a rotation. A record with the
        // keys before it could be read by a device that has lost its access.
        let is_here = match self.find_ref(own.kind, &own.name) {
            Ok(found) => found.is_some_and(|found| !found.is_removed_ref()),
            // What can still be done must not fail for it.
            Err(error) if is_data_loss(&error) => false,
            Err(error) => return Err(error),
        };
        Ok(if is_here { own } else { ChainName::of_volume() })
    }

    /// The ref of a chain as it was last known here: whether it still is, the swap finds out.
    fn find_recent(&self, chain: &ChainName) -> Result<Option<StoredRef>> {
        let key = self.ref_object_key(chain.kind, &chain.name)?;
        let known = self.last.lock().get(&key).and_then(|last| last.found.clone());
        match known {
            Some(found) if found.name == chain.name => Ok(Some(found)),
            Some(_) | None => self.find_ref(chain.kind, &chain.name),
        }
    }

    /// Puts the next record of a chain after the one that its ref names. Records that were not carried out keep their numbers;
    /// those that were, and that nothing names, come before the new one.
    fn put_next_operation(
        &self,
        log: &OperationLog,
        end: &ChainEnd<'_>,
        effects: &[OperationEffect],
        put: &mut PutOperation<'_>,
    ) -> Result<PutRecord> {
        let ChainEnd { chain, named, own } = *end;
        let mut previous = named;
        let mut sequence = named.map_or(1, |link| link.sequence + 1);
        for attempt in 0..RETRIES {
            let sealed = log.seal_operation(chain, sequence, previous, effects)?;
            match put(&sealed) {
                // Not the record before this one, but what the ref names: that is compared with the ref when the link is swapped
                // in.
                Ok(()) => return Ok(PutRecord { previous: named, link: sealed.link }),
                // The number is taken, by a command that runs at the same time or by one that was killed.
                Err(VolumeError::Store(StoreError::Exists { .. })) => {}
                Err(error) => return Err(error),
            }
            // One that cannot be read is named by whoever verifies the chain.
            if let Ok(Some(found)) = log.fetch_operation(chain, sequence)
                && found.previous == previous
            {
                let link = log.compute_link(&found);
                // It was put after an operation that was carried out, and that the ref has come to name since. A second record
                // would tell of the operation twice.
                if own == Some(link) {
                    return Ok(PutRecord { previous: named, link });
                }
                if self.is_carried_out(&found.effects)? {
                    previous = Some(link);
                }
            }
            sequence += 1;
            if attempt == LISTED_FROM {
                // The ref has lost its chain, of which very many records may be there.
                sequence = log.list_sequences(chain)?.last().map_or(sequence, |last| last + 1);
            }
        }
        Err(VolumeError::Raced(format!("the operations of '{}'", chain.name)))
    }

    /// Whether the effects of a record that no ref names can be seen. Those on the head of its worktree cannot: the swap that
    /// makes them names the record.
    fn is_carried_out(&self, effects: &[OperationEffect]) -> Result<bool> {
        for effect in effects {
            let is_seen = match effect {
                OperationEffect::Ref(RefEffect { kind: RefKind::Worktree | RefKind::Chain, .. }) => false,
                OperationEffect::Ref(RefEffect { kind, name, counter, after, .. }) => {
                    let found = self.find_ref(*kind, name)?;
                    // Who repeats a command that was killed writes the same value once more.
                    found.is_some_and(|found| {
                        found.counter >= *counter && recorded_value(*kind, &found.value) == *after
                    })
                }
                OperationEffect::Forgotten(id) | OperationEffect::Discarded(id) => self.is_forgotten(id)?,
                OperationEffect::Recovered(id) => !self.is_forgotten(id)?,
                OperationEffect::Collected { first: Some(first), .. } => !self.has_object(&pack_key(first))?,
                OperationEffect::Key(change, subject) => is_key_change_seen(&*self.objects, *change, subject)?,
                // That of a worktree is named by its head, in the swap that names the record.
                OperationEffect::Made(id) => {
                    find_outside_snapshot(effects).is_some() && self.has_object(&record_object_key(id)?)?
                }
                // Early versions named no pack that could be looked for.
                OperationEffect::Collected { first: None, .. }
                | OperationEffect::Reverted(_)
                // Nothing is deleted before a ref names it.
                | OperationEffect::Thinned(_) => false,
            };
            if is_seen {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_forgotten(&self, id: &SnapshotId) -> Result<bool> {
        Ok(!self.has_object(&record_object_key(id)?)?)
    }

    fn has_object(&self, key: &ObjectKey) -> Result<bool> {
        Ok(self.objects.object_size(key).none_if_missing()?.is_some())
    }

    /// Lets the ref of its chain name an operation that was carried out.
    pub(crate) fn finish_operation(&self, pending: PendingOperation) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let PendingOperation { chain, previous, mut link, effects } = pending;
        let mut expected = previous;
        let key = self.ref_object_key(chain.kind, &chain.name)?;
        for attempt in 0..RETRIES {
            // What is remembered spares a request. If it is old, the swap fails, and the next attempt reads the ref.
            let old = if attempt == 0 {
                self.find_recent(&chain)?
            } else {
                self.find_ref(chain.kind, &chain.name)?
            };
            let old_value = old.as_ref().map_or(&[][..], |old| &old.value);
            let named = read_chain_link(chain.kind, old_value)?;
            if named != expected {
                // Another one came between: it may have found that this was carried out.
                if self.names_operation(log, &chain, named, link)? {
                    return Ok(());
                }
                let end = ChainEnd { chain: &chain, named, own: Some(link) };
                let put =
                    self.put_next_operation(log, &end, &effects, &mut |sealed| log.put_operation(sealed))?;
                (link, expected) = (put.link, named);
            }
            let value = set_chain_link(chain.kind, old_value, Some(link))?;
            if self.swap_value(&chain, &key, old.as_ref(), value)? {
                return Ok(());
            }
        }
        Err(VolumeError::Raced(format!("the operations of '{}'", chain.name)))
    }

    /// Whether a chain that ends with `last` contains an operation.
    fn names_operation(
        &self,
        log: &OperationLog,
        chain: &ChainName,
        last: Option<OperationLink>,
        wanted: OperationLink,
    ) -> Result<bool> {
        let mut next = last;
        while let Some(link) = next.filter(|link| link.sequence >= wanted.sequence) {
            if link == wanted {
                return Ok(true);
            }
            next = log.fetch_operation(chain, link.sequence)?.and_then(|record| record.previous);
        }
        Ok(false)
    }

    /// Swaps the value of a chain's ref; false if somebody else changed it.
    fn swap_value(
        &self,
        chain: &ChainName,
        key: &ObjectKey,
        old: Option<&StoredRef>,
        value: Vec<u8>,
    ) -> Result<bool> {
        let counter = old.map_or(0, |old| old.counter) + 1;
        let epoch = self.keys.newest_epoch();
        let stored = self.encode_ref(chain.kind, key, &chain.name, counter, &value);
        match self.objects.swap_ref(key, old.map(|old| old.stored.as_slice()), Some(&stored)) {
            Ok(()) => {}
            Err(StoreError::Changed { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        let new = StoredRef { name: chain.name.clone(), counter, value, stored, epoch };
        self.remember_swapped_ref(chain.kind, key, new, old.is_none())?;
        Ok(true)
    }

    /// Remembers a ref that was swapped just now, and settles it if that created it.
    pub(super) fn remember_swapped_ref(
        &self,
        kind: RefKind,
        key: &ObjectKey,
        new: StoredRef,
        is_created: bool,
    ) -> Result<()> {
        let counter = new.counter;
        let now = if is_created { self.settle_created_ref(kind, key, new)? } else { Some(new) };
        let counter = now.as_ref().map_or(counter, |now| now.counter);
        // If somebody else has changed it since, what it says is not known here, and is read when it is needed.
        if let Some(now) = now {
            self.last.lock().insert(key.clone(), RememberedRef::new(Some(now)));
        }
        self.record_seen_counter(key, counter)
    }
}
