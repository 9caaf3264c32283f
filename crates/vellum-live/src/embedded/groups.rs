//! What readers see: all entries, group by group.
//!
//! Invariant: no group is empty. A group is changed by the one writer, and goes as a whole when its prefix is dropped.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use vellum_map::Span;

use super::record::Change;
use super::suffix::{GROUP_LEN, GroupKey, Suffix, split};
use crate::error::LiveError;
use crate::store::{Bytes, Visit};

/// Bytes of memory that an entry takes beside what its key and value hold: its place in a node of the tree and the
/// value's allocation; an estimate that bounds memory.
const ENTRY_OVERHEAD: usize = 88;

type Entries = BTreeMap<Suffix, Bytes>;

/// All entries.
#[derive(Default)]
pub(crate) struct Groups {
    groups: BTreeMap<GroupKey, Group>,
}

/// Entries whose keys begin alike.
#[derive(Default)]
pub(crate) struct Group {
    entries: Entries,
    /// Bytes of memory, about.
    weight: usize,
}

/// Groups that went: to be dropped where nobody waits.
pub(crate) type Gone = Vec<Group>;

impl Groups {
    /// The value under a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, LiveError> {
        let (group, rest) = split(key);
        Ok(self.groups.get(&group).and_then(|group| group.entries.get(rest).cloned()))
    }

    /// Visits the entries of a span in order.
    pub(crate) fn scan(&self, span: &Span, visit: &mut Visit<'_>) -> Result<(), LiveError> {
        if span.end.as_ref().is_some_and(|end| *end <= span.start) {
            return Ok(());
        }
        let (first, from) = split(&span.start);
        let last = span.end.as_deref().map(split);
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
            if held.scan(from, to, &mut key, visit).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Carries out what a transaction changed.
    pub(crate) fn apply(&mut self, dropped: &[Vec<u8>], changes: impl Iterator<Item = Change>) -> Gone {
        let mut gone = Vec::new();
        for prefix in dropped {
            self.drop_prefix(prefix, &mut gone);
        }
        for (key, value) in changes {
            let (group, rest) = split(&key);
            match value {
                Some(value) => self.groups.entry(group).or_default().put(rest, value),
                None => self.delete(group, rest),
            }
        }
        gone
    }

    /// Bytes of memory, about.
    pub(crate) fn weight(&self) -> usize {
        self.groups.values().map(|group| group.weight).sum()
    }

    fn delete(&mut self, key: GroupKey, rest: &[u8]) {
        if let Some(group) = self.groups.get_mut(&key) {
            group.delete(rest);
            if group.entries.is_empty() {
                self.groups.remove(&key);
            }
        }
    }

    fn drop_prefix(&mut self, prefix: &[u8], gone: &mut Gone) {
        let (first, rest) = split(prefix);
        if prefix.len() > GROUP_LEN {
            let doomed: Vec<_> = match self.groups.get(&first) {
                Some(group) => group.under(rest).map(|suffix| suffix.as_bytes().to_vec()).collect(),
                None => return,
            };
            doomed.iter().for_each(|rest| self.delete(first, rest));
            return;
        }
        let under = self.groups.range(first..).map(|(key, _)| *key);
        let doomed: Vec<_> = under.take_while(|key| key.as_bytes().starts_with(prefix)).collect();
        gone.extend(doomed.iter().filter_map(|key| self.groups.remove(key)));
    }
}

impl Group {
    fn put(&mut self, rest: &[u8], value: Bytes) {
        self.weight += value.len();
        if let Some(held) = self.entries.get_mut(rest) {
            let old = std::mem::replace(held, value);
            self.weight -= old.len();
        } else {
            self.weight += rest.len() + ENTRY_OVERHEAD;
            self.entries.insert(Suffix::new(rest), value);
        }
    }

    fn delete(&mut self, rest: &[u8]) {
        if let Some(old) = self.entries.remove(rest) {
            self.weight -= old.len() + rest.len() + ENTRY_OVERHEAD;
        }
    }

    fn under(&self, prefix: &[u8]) -> impl Iterator<Item = &Suffix> {
        let from = self.entries.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded));
        from.map(|(suffix, _)| suffix).take_while(move |suffix| suffix.as_bytes().starts_with(prefix))
    }

    /// Visits entries; `key` holds the group's part of their keys.
    fn scan(
        &self,
        from: &[u8],
        to: Bound<&[u8]>,
        key: &mut Vec<u8>,
        visit: &mut Visit<'_>,
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
