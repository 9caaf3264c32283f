//! A transaction in progress: its changes over the committed state.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::{Bound, ControlFlow};

use vellum_map::KeySpan;

use super::groups::KeyGroups;
use crate::error::LiveError;
use crate::store::{StoreTransaction, ValueBytes, VisitScan};

/// Changed keys with their new values; None: they go.
pub(crate) type ChangedKeys = BTreeMap<Vec<u8>, Option<ValueBytes>>;

/// Changes that are not visible to others yet.
pub(crate) struct PendingChanges<'s> {
    committed: &'s KeyGroups,
    /// Prefixes whose keys all go, before `changes`.
    dropped: Vec<Vec<u8>>,
    changes: ChangedKeys,
}

impl<'s> PendingChanges<'s> {
    pub(crate) fn new(committed: &'s KeyGroups) -> Self {
        Self { committed, dropped: Vec::new(), changes: BTreeMap::new() }
    }

    /// What was changed: prefixes that go, then keys.
    pub(crate) fn into_changes(self) -> (Vec<Vec<u8>>, ChangedKeys) {
        (self.dropped, self.changes)
    }

    fn is_key_dropped(&self, key: &[u8]) -> bool {
        self.dropped.iter().any(|prefix| key.starts_with(prefix))
    }
}

impl StoreTransaction for PendingChanges<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<ValueBytes>, LiveError> {
        if let Some(change) = self.changes.get(key) {
            return Ok(change.clone());
        }
        if self.is_key_dropped(key) {
            return Ok(None);
        }
        self.committed.get_value(key)
    }

    fn scan(&self, span: &KeySpan, visit: &mut VisitScan<'_>) -> Result<(), LiveError> {
        if span.end.as_ref().is_some_and(|end| *end <= span.start) {
            return Ok(());
        }
        let end = span.end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut own = self.changes.range::<[u8], _>((Bound::Included(&*span.start), end)).peekable();
        let mut flow = ControlFlow::Continue(());
        self.committed.scan(span, &mut |key, value| {
            flow = visit_changes_before(&mut own, key, visit);
            // Taken also if the visitor has broken off: it is the entry of this key, and must not be met as one of
            // its own.
            let hidden = own.next_if(|(changed, _)| changed.as_slice() == key);
            if flow.is_continue() {
                flow = match hidden {
                    Some((_, None)) => ControlFlow::Continue(()),
                    Some((_, Some(new))) => visit(key, new),
                    None if self.is_key_dropped(key) => ControlFlow::Continue(()),
                    None => visit(key, value),
                };
            }
            flow
        })?;
        if flow.is_continue() {
            let _ = own.try_for_each(|(key, change)| visit_change(key, change.as_ref(), visit));
        }
        Ok(())
    }

    fn set_key(&mut self, key: &[u8], value: ValueBytes) {
        self.changes.insert(key.to_vec(), Some(value));
    }

    fn delete_key(&mut self, key: &[u8]) {
        self.changes.insert(key.to_vec(), None);
    }

    fn delete_prefix(&mut self, prefix: &[u8]) {
        // What this transaction has changed under the prefix so far goes, too.
        self.changes.retain(|key, _| !key.starts_with(prefix));
        self.dropped.push(prefix.to_vec());
    }
}

/// Visits the changes whose keys come before `key`.
fn visit_changes_before<'c>(
    own: &mut Peekable<impl Iterator<Item = (&'c Vec<u8>, &'c Option<ValueBytes>)>>,
    key: &[u8],
    visit: &mut VisitScan<'_>,
) -> ControlFlow<()> {
    while let Some((key, change)) = own.next_if(|(changed, _)| changed.as_slice() < key) {
        visit_change(key, change.as_ref(), visit)?;
    }
    ControlFlow::Continue(())
}

fn visit_change(key: &[u8], change: Option<&ValueBytes>, visit: &mut VisitScan<'_>) -> ControlFlow<()> {
    change.map_or(ControlFlow::Continue(()), |value| visit(key, value))
}
