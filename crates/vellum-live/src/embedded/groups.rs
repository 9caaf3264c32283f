//! The entries that readers see, by group.
//!
//! Invariant: no group is empty. The single writer changes a group until it is sealed. A sealed group is deleted as a
//! whole when its prefix is dropped, and can move from memory into a run before that.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use vellum_map::KeySpan;

use super::record::KeyChange;
use super::run::SortedRun;
use super::suffix::{GROUP_LEN, GroupKey, KeySuffix, split_key};
use crate::error::LiveError;
use crate::store::{ValueBytes, VisitScan};

/// Bytes of memory that an entry takes beside what its key and value hold: its place in a node of the tree and the
/// value's allocation; an estimate that bounds memory.
const ENTRY_OVERHEAD: usize = 88;

type GroupEntries = BTreeMap<KeySuffix, ValueBytes>;

/// All entries.
#[derive(Default)]
pub(crate) struct KeyGroups {
    groups: BTreeMap<GroupKey, KeyGroup>,
}

/// Entries whose keys begin alike.
pub(crate) enum KeyGroup {
    /// In memory.
    Live(LiveGroup),
    /// In a file; never changed.
    Frozen(Arc<SortedRun>),
}

/// Entries in memory.
#[derive(Default)]
pub(crate) struct LiveGroup {
    entries: GroupEntries,
    /// Bytes of memory, about.
    weight: usize,
    /// Whether nothing is changed any more.
    sealed: bool,
}

/// Where the value of a key is to be found.
pub(crate) enum ValueLocation {
    Value(Option<ValueBytes>),
    InRun(Arc<SortedRun>),
}

/// Removed groups: to be dropped where no caller waits.
pub(crate) type RemovedGroups = Vec<KeyGroup>;
/// A key and its value.
pub(crate) type KeyValue = (Vec<u8>, ValueBytes);
/// What follows the group in a key, and its value.
pub(crate) type SuffixEntry = (KeySuffix, ValueBytes);

impl KeyGroups {
    /// Returns the value under a key, or the run that has it. The caller reads the run after it has released the lock
    /// on the groups.
    pub(crate) fn find_value(&self, key: &[u8]) -> ValueLocation {
        let (group, rest) = split_key(key);
        match self.groups.get(&group) {
            None => ValueLocation::Value(None),
            Some(KeyGroup::Live(group)) => ValueLocation::Value(group.entries.get(rest).cloned()),
            Some(KeyGroup::Frozen(run)) => ValueLocation::InRun(Arc::clone(run)),
        }
    }

    /// The value under a key.
    pub(crate) fn get_value(&self, key: &[u8]) -> Result<Option<ValueBytes>, LiveError> {
        match self.find_value(key) {
            ValueLocation::Value(value) => Ok(value),
            ValueLocation::InRun(run) => run.get_value(split_key(key).1),
        }
    }

    /// The run that holds all entries of a span, if one does.
    pub(crate) fn find_covering_run(&self, span: &KeySpan) -> Option<Arc<SortedRun>> {
        let group = GroupKey::from_key(&span.start);
        // The span begins in a group that is in memory, or in none.
        let Some(KeyGroup::Frozen(run)) = self.groups.get(&group) else { return None };
        let beyond = self.groups.range((Bound::Excluded(group), Bound::Unbounded)).next();
        // A span may reach into the next group. Then the run alone is not all of it.
        let ends = beyond.is_none_or(|(next, _)| !span.contains(next.as_bytes()));
        ends.then(|| Arc::clone(run))
    }

    /// Visits the entries of a span in order.
    pub(crate) fn scan(&self, span: &KeySpan, visit: &mut VisitScan<'_>) -> Result<(), LiveError> {
        // `BTreeMap::range` panics if the end is before the start.
        if span.end.as_ref().is_some_and(|end| *end <= span.start) {
            return Ok(());
        }
        let (first, from) = split_key(&span.start);
        let last = span.end.as_deref().map(split_key);
        let mut key = Vec::with_capacity(64);
        for (group, held) in self.groups.range(first..) {
            let from = if *group == first { from } else { &[] };
            let to = match &last {
                Some((last, _)) if group > last => break,
                Some((last, to)) if group == last => Bound::Excluded(*to),
                _ => Bound::Unbounded,
            };
            key.clear();
            key.extend_from_slice(group.as_bytes());
            let flow = match held {
                KeyGroup::Live(held) => held.scan_entries(from, to, &mut key, visit),
                KeyGroup::Frozen(run) => run.scan_entries(from, to, &mut key, visit)?,
            };
            if flow.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Applies the changes of a transaction. Returns the groups that were removed, to be dropped without the lock.
    pub(crate) fn apply_transaction(
        &mut self,
        dropped: &[Vec<u8>],
        changes: impl Iterator<Item = KeyChange>,
    ) -> RemovedGroups {
        // Prefixes first, as in the record: a transaction may remove a prefix, and then set keys under another one.
        let mut gone = Vec::new();
        for prefix in dropped {
            self.drop_prefix(prefix, &mut gone);
        }
        for (key, value) in changes {
            let (group, rest) = split_key(&key);
            match value {
                Some(value) => self.set_key(group, rest, value),
                None => self.delete_key(group, rest),
            }
        }
        gone
    }

    /// The first of these keys and prefixes that lies in a sealed group: it must not change.
    pub(crate) fn find_sealed_change<'k>(
        &self,
        dropped: &'k [Vec<u8>],
        changed: impl Iterator<Item = &'k [u8]>,
    ) -> Option<&'k [u8]> {
        let goes = |group: &GroupKey| dropped.iter().any(|prefix| group.as_bytes().starts_with(prefix));
        let is_sealed = |group: &GroupKey| match self.groups.get(group) {
            None => false,
            Some(KeyGroup::Live(live)) => live.sealed && !goes(group),
            Some(KeyGroup::Frozen(_)) => !goes(group),
        };
        // A shorter prefix removes whole groups, which is allowed. One that is longer than a group's key would change
        // a group.
        let parts = dropped.iter().map(Vec::as_slice).filter(|prefix| prefix.len() > GROUP_LEN);
        let mut allowed = None;
        parts.chain(changed).find(|key| {
            let group = GroupKey::from_key(key);
            // The keys come in order, so that those of one group follow each other: each group is looked up once.
            if allowed == Some(group) {
                return false;
            }
            allowed = Some(group);
            is_sealed(&group)
        })
    }

    /// Seals all groups under a prefix. Returns those in memory that take `min` bytes or more.
    pub(crate) fn seal_groups(&mut self, prefix: &[u8], min: usize) -> Vec<GroupKey> {
        let under = self.groups.range_mut(GroupKey::from_key(prefix)..);
        let under = under.take_while(|(key, _)| key.as_bytes().starts_with(prefix));
        let mut large = Vec::new();
        for (key, group) in under {
            if let KeyGroup::Live(live) = group {
                live.sealed = true;
                if live.weight >= min {
                    large.push(*key);
                }
            }
        }
        large
    }

    /// Up to `max` entries of a sealed group that is in memory, from a key on; None: there is no such group.
    pub(crate) fn sealed_entries(
        &self,
        group: &GroupKey,
        from: &[u8],
        max: usize,
    ) -> Option<Vec<SuffixEntry>> {
        match self.groups.get(group) {
            Some(KeyGroup::Live(live)) if live.sealed => {
                let entries = live.entries.range::<[u8], _>((Bound::Included(from), Bound::Unbounded));
                Some(
                    entries.take(max).map(|(rest, value)| (rest.clone(), ValueBytes::clone(value))).collect(),
                )
            }
            _ => None,
        }
    }

    /// Puts a run into the place of its group, if that is still as it was when it was sealed.
    pub(crate) fn install_run(&mut self, run: Arc<SortedRun>) -> Option<KeyGroup> {
        match self.groups.get_mut(&run.group) {
            // Only a sealed group is replaced. A group that was dropped and made anew meanwhile has other entries.
            Some(group @ KeyGroup::Live(LiveGroup { sealed: true, .. })) => {
                Some(std::mem::replace(group, KeyGroup::Frozen(run)))
            }
            _ => None,
        }
    }

    /// Adds the run of a group that is not there yet.
    pub(crate) fn add_run(&mut self, run: Arc<SortedRun>) {
        self.groups.insert(run.group, KeyGroup::Frozen(run));
    }

    /// All runs.
    pub(crate) fn iter_runs(&self) -> impl Iterator<Item = &Arc<SortedRun>> {
        self.groups.values().filter_map(|group| match group {
            KeyGroup::Live(_) => None,
            KeyGroup::Frozen(run) => Some(run),
        })
    }

    /// Up to `max` entries that are in memory, in order, from a key on.
    pub(crate) fn collect_live_entries(&self, from: &[u8], max: usize) -> Vec<KeyValue> {
        let (first, from) = split_key(from);
        let mut entries = Vec::new();
        for (key, group) in self.groups.range(first..) {
            let KeyGroup::Live(live) = group else { continue };
            let from = if *key == first { from } else { &[] };
            let rest = live.entries.range::<[u8], _>((Bound::Included(from), Bound::Unbounded));
            let whole = |rest: &KeySuffix| [key.as_bytes(), rest.as_bytes()].concat();
            let missing = max - entries.len();
            entries.extend(rest.take(missing).map(|(rest, value)| (whole(rest), ValueBytes::clone(value))));
            if entries.len() == max {
                break;
            }
        }
        entries
    }

    /// Bytes of memory that entries take, about.
    pub(crate) fn live_memory_size(&self) -> usize {
        let weight = |group: &KeyGroup| if let KeyGroup::Live(live) = group { live.weight } else { 0 };
        self.groups.values().map(weight).sum()
    }

    /// Bytes of memory, about.
    pub(crate) fn memory_size(&self) -> usize {
        self.live_memory_size() + self.iter_runs().map(|run| run.memory_size()).sum::<usize>()
    }

    fn set_key(&mut self, key: GroupKey, rest: &[u8], value: ValueBytes) {
        let group = self.groups.entry(key).or_insert_with(|| KeyGroup::Live(LiveGroup::default()));
        match group {
            KeyGroup::Live(live) => live.set_key(rest, value),
            // A transaction with such a change was refused before its record was written.
            KeyGroup::Frozen(_) => debug_assert!(false, "a frozen group changes"),
        }
    }

    fn delete_key(&mut self, key: GroupKey, rest: &[u8]) {
        if let Some(KeyGroup::Live(live)) = self.groups.get_mut(&key) {
            live.delete_key(rest);
            if live.entries.is_empty() {
                self.groups.remove(&key);
            }
        }
    }

    fn drop_prefix(&mut self, prefix: &[u8], gone: &mut RemovedGroups) {
        let (first, rest) = split_key(prefix);
        if prefix.len() > GROUP_LEN {
            let pending_deletions: Vec<_> = match self.groups.get(&first) {
                Some(KeyGroup::Live(live)) => live.keys_with_prefix(rest).cloned().collect(),
                _ => return,
            };
            // One by one, since a prefix that is longer than a group's key is a part of a group. Shorter ones take
            // whole groups.
            pending_deletions.iter().for_each(|rest| self.delete_key(first, rest.as_bytes()));
            return;
        }
        let under = self.groups.range(first..).map(|(key, _)| *key);
        let pending_deletions: Vec<_> = under.take_while(|key| key.as_bytes().starts_with(prefix)).collect();
        gone.extend(pending_deletions.iter().filter_map(|key| self.groups.remove(key)));
    }
}

impl LiveGroup {
    fn set_key(&mut self, rest: &[u8], value: ValueBytes) {
        self.weight += value.len();
        if let Some(held) = self.entries.get_mut(rest) {
            let old = std::mem::replace(held, value);
            self.weight -= old.len();
        } else {
            self.weight += rest.len() + ENTRY_OVERHEAD;
            self.entries.insert(KeySuffix::new(rest), value);
        }
    }

    fn delete_key(&mut self, rest: &[u8]) {
        if let Some(old) = self.entries.remove(rest) {
            self.weight -= old.len() + rest.len() + ENTRY_OVERHEAD;
        }
    }

    fn keys_with_prefix(&self, prefix: &[u8]) -> impl Iterator<Item = &KeySuffix> {
        let from = self.entries.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded));
        from.map(|(suffix, _)| suffix).take_while(move |suffix| suffix.as_bytes().starts_with(prefix))
    }

    /// Visits entries; `key` holds the group's part of their keys.
    fn scan_entries(
        &self,
        from: &[u8],
        to: Bound<&[u8]>,
        key: &mut Vec<u8>,
        visit: &mut VisitScan<'_>,
    ) -> ControlFlow<()> {
        let start = key.len();
        if matches!(to, Bound::Excluded(to) if to <= from) {
            return ControlFlow::Continue(());
        }
        for (rest, value) in self.entries.range::<[u8], _>((Bound::Included(from), to)) {
            key.truncate(start);
            key.extend_from_slice(rest.as_bytes());
            visit(key, value)?;
        }
        ControlFlow::Continue(())
    }
}
