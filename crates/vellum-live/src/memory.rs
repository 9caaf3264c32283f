//! A store in memory without durability: for tests, and as a reference for other engines.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::path::Path;

use parking_lot::{Mutex, RwLock};
use vellum_map::KeySpan;

use crate::error::LiveError;
use crate::store::{CommitSequence, LiveStore, StoreTransaction, TransactionBody, ValueBytes, VisitScan};

type MemoryEntries = BTreeMap<Vec<u8>, ValueBytes>;

/// Everything in one ordered map.
#[derive(Debug, Default)]
pub struct MemoryStore {
    entries: RwLock<MemoryEntries>,
    /// Held by the transaction under way.
    writer: Mutex<CommitSequence>,
}

/// Changes that are not committed yet.
struct MemoryTransaction<'s> {
    store: &'s MemoryStore,
    changes: BTreeMap<Vec<u8>, Option<ValueBytes>>,
    dropped: Vec<Vec<u8>>,
}

impl MemoryStore {
    fn read_entries(&self) -> parking_lot::RwLockReadGuard<'_, MemoryEntries> {
        self.entries.read()
    }
}

impl LiveStore for MemoryStore {
    fn get(&self, key: &[u8]) -> Result<Option<ValueBytes>, LiveError> {
        Ok(self.read_entries().get(key).cloned())
    }

    fn scan(&self, span: &KeySpan, visit: &mut VisitScan<'_>) -> Result<(), LiveError> {
        for (key, value) in self.read_entries().range::<[u8], _>(span_bounds(span)) {
            if visit(key, value) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }

    fn run_transaction(&self, body: &mut TransactionBody<'_>) -> Result<CommitSequence, LiveError> {
        // One transaction at a time. Readers go on until the changes are applied, all of them under one lock.
        let mut last = self.writer.lock();
        let mut pending = MemoryTransaction { store: self, changes: BTreeMap::new(), dropped: Vec::new() };
        body(&mut pending)?;
        let MemoryTransaction { changes, dropped, .. } = pending;
        let mut entries = self.entries.write();
        for prefix in dropped {
            entries.retain(|key, _| !key.starts_with(&prefix));
        }
        for (key, value) in changes {
            match value {
                Some(value) => entries.insert(key, value),
                None => entries.remove(&key),
            };
        }
        last.0 += 1;
        Ok(*last)
    }

    fn wait_until_durable(&self, _upto: CommitSequence) -> Result<(), LiveError> {
        Ok(())
    }

    fn freeze_prefix(&self, _prefix: &[u8]) -> Result<(), LiveError> {
        Ok(())
    }

    fn fork_into(&self, _dir: &Path) -> Result<(), LiveError> {
        Err(LiveError::NoDirectory)
    }

    fn memory_size(&self) -> usize {
        self.read_entries().iter().map(|(key, value)| key.len() + value.len()).sum()
    }
}

impl StoreTransaction for MemoryTransaction<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<ValueBytes>, LiveError> {
        if let Some(change) = self.changes.get(key) {
            return Ok(change.clone());
        }
        if self.dropped.iter().any(|prefix| key.starts_with(prefix)) {
            return Ok(None);
        }
        self.store.get(key)
    }

    fn scan(&self, span: &KeySpan, visit: &mut VisitScan<'_>) -> Result<(), LiveError> {
        let mut merged: MemoryEntries = BTreeMap::new();
        self.store.scan(span, &mut |key, value| {
            if !self.dropped.iter().any(|prefix| key.starts_with(prefix)) {
                merged.insert(key.to_vec(), value.clone());
            }
            ControlFlow::Continue(())
        })?;
        for (key, change) in self.changes.range::<[u8], _>(span_bounds(span)) {
            match change {
                Some(value) => merged.insert(key.clone(), value.clone()),
                None => merged.remove(key),
            };
        }
        for (key, value) in &merged {
            if visit(key, value) == ControlFlow::Break(()) {
                break;
            }
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
        self.changes.retain(|key, _| !key.starts_with(prefix));
        self.dropped.push(prefix.to_vec());
    }
}

/// The bounds of a span; one that ends before it starts is empty.
fn span_bounds(span: &KeySpan) -> (Bound<&[u8]>, Bound<&[u8]>) {
    let start = span.start.as_slice();
    let end = match &span.end {
        Some(end) if end.as_slice() <= start => Bound::Excluded(start),
        Some(end) => Bound::Excluded(end.as_slice()),
        None => Bound::Unbounded,
    };
    (Bound::Included(start), end)
}
