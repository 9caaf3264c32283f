//! A store that fails as its script says: before or after the effect, with torn or flipped bytes, stale listings,
//! lost acknowledgements, no space.
//!
//! Invariant: without a script it is the store beneath. Operations are counted over all kinds, from 0, so that a
//! test can stop the world at each of them in turn.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use vellum_store::{ObjectInfo, ObjectKey, ObjectStore, StoreError};

/// Kinds of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Whole gets.
    Get,
    /// Ranged gets.
    GetRange,
    /// Questions for a size.
    Size,
    /// Puts; each object of a `put_all` is one.
    Put,
    /// Compare-and-swaps.
    Swap,
    /// Listings.
    List,
    /// Deletions.
    Delete,
}

/// Which operations a fault hits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum When {
    /// The operation with this number, counted over all kinds.
    Nth(u64),
    /// This operation and all after it: the process or the machine has died.
    From(u64),
    /// Every operation of a kind on keys that begin with this.
    Each(Op, String),
    /// The first operation of a kind on keys that begin with this; then the fault is spent.
    Once(Op, String),
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails, and nothing has happened.
    Before,
    /// It happens, and the answer is lost: to the caller it failed.
    After,
    /// A put is acknowledged, and nothing has happened.
    Lost,
    /// Reads give, and puts store, only this many of the bytes; with success.
    Torn(usize),
    /// Reads give, and puts store, bytes in which this bit (modulo their number) is flipped; with success.
    Flip(usize),
    /// Listings omit what was put since the script was set.
    Stale,
    /// There is no space.
    NoSpace,
}

struct State {
    script: Vec<(When, Fault)>,
    put_since: Vec<ObjectKey>,
    space: Option<u64>,
}

/// A store that fails on demand.
pub struct Faulty {
    inner: Arc<dyn ObjectStore>,
    count: AtomicU64,
    state: Mutex<State>,
}

impl Faulty {
    /// A store that has no faults yet.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>) -> Self {
        let state = State { script: Vec::new(), put_since: Vec::new(), space: None };
        Self { inner, count: AtomicU64::new(0), state: Mutex::new(state) }
    }

    /// Replaces the script.
    pub fn script(&self, script: impl IntoIterator<Item = (When, Fault)>) {
        let mut state = self.state();
        state.script = script.into_iter().collect();
        state.put_since.clear();
    }

    /// From now on only this many bytes can be put; `None` lifts the limit.
    pub fn space(&self, bytes: Option<u64>) {
        self.state().space = bytes;
    }

    /// Operations so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation and says what goes wrong with it.
    fn next(&self, op: Op, key: &str) -> Option<Fault> {
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        let mut state = self.state();
        let position = state.script.iter().position(|(when, _)| match when {
            When::Nth(at) => *at == number,
            When::From(at) => *at <= number,
            When::Each(kind, prefix) | When::Once(kind, prefix) => *kind == op && key.starts_with(prefix),
        })?;
        let (when, fault) = state.script.get(position)?.clone();
        if matches!(when, When::Once(..)) {
            state.script.remove(position);
        }
        Some(fault)
    }

    fn broken(&self, key: &str, kind: io::ErrorKind) -> StoreError {
        StoreError::Io {
            place: self.describe(),
            key: key.to_owned(),
            action: "reach",
            source: io::Error::new(kind, "injected"),
        }
    }

    fn answer<T>(
        &self,
        op: Op,
        key: &str,
        act: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match self.next(op, key) {
            Some(Fault::Before) => Err(self.broken(key, io::ErrorKind::TimedOut)),
            Some(Fault::NoSpace) => Err(self.broken(key, io::ErrorKind::StorageFull)),
            Some(Fault::After) => act().and(Err(self.broken(key, io::ErrorKind::TimedOut))),
            _ => act(),
        }
    }

    fn read(
        &self,
        op: Op,
        key: &ObjectKey,
        act: impl FnOnce() -> Result<Vec<u8>, StoreError>,
    ) -> Result<Vec<u8>, StoreError> {
        match self.next(op, key.as_str()) {
            Some(Fault::Before | Fault::NoSpace | Fault::After) => {
                Err(self.broken(key.as_str(), io::ErrorKind::TimedOut))
            }
            Some(fault) => act().map(|bytes| spoil(fault, bytes)),
            None => act(),
        }
    }

    fn reserve(&self, key: &ObjectKey, len: usize) -> Result<(), StoreError> {
        let mut state = self.state();
        if let Some(space) = &mut state.space {
            match space.checked_sub(len as u64) {
                Some(rest) => *space = rest,
                None => return Err(self.broken(key.as_str(), io::ErrorKind::StorageFull)),
            }
        }
        state.put_since.push(key.clone());
        Ok(())
    }

    fn is_stale(&self) -> bool {
        self.state().script.iter().any(|(_, fault)| *fault == Fault::Stale)
    }
}

fn spoil(fault: Fault, mut bytes: Vec<u8>) -> Vec<u8> {
    match fault {
        Fault::Torn(len) => bytes.truncate(len),
        Fault::Flip(bit) => {
            let bit = bit % (bytes.len() * 8).max(1);
            if let Some(byte) = bytes.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
        }
        Fault::Before | Fault::After | Fault::Lost | Fault::Stale | Fault::NoSpace => {}
    }
    bytes
}

impl ObjectStore for Faulty {
    fn describe(&self) -> String {
        format!("faulty {}", self.inner.describe())
    }

    fn get(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        self.read(Op::Get, key, || self.inner.get(key, max))
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        self.read(Op::GetRange, key, || self.inner.get_range(key, offset, len))
    }

    fn size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        self.answer(Op::Size, key.as_str(), || self.inner.size(key))
    }

    fn put(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        let fault = self.next(Op::Put, key.as_str());
        match fault {
            Some(Fault::Before) => return Err(self.broken(key.as_str(), io::ErrorKind::TimedOut)),
            Some(Fault::NoSpace) => return Err(self.broken(key.as_str(), io::ErrorKind::StorageFull)),
            Some(Fault::Lost) => return Ok(()),
            _ => self.reserve(key, bytes.len())?,
        }
        match fault {
            Some(Fault::After) => {
                self.inner.put(key, bytes).and(Err(self.broken(key.as_str(), io::ErrorKind::TimedOut)))
            }
            Some(fault) => self.inner.put(key, &spoil(fault, bytes.to_vec())),
            None => self.inner.put(key, bytes),
        }
    }

    fn swap(&self, key: &ObjectKey, expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<(), StoreError> {
        self.answer(Op::Swap, key.as_str(), || self.inner.swap(key, expected, new))
    }

    fn list(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        let mut listed = self.answer(Op::List, folder, || self.inner.list(folder))?;
        if self.is_stale() {
            let hidden = self.state().put_since.clone();
            listed.retain(|info| !hidden.contains(&info.key));
        }
        Ok(listed)
    }

    fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.answer(Op::Delete, key.as_str(), || self.inner.delete(key))
    }

    fn parallel_gets(&self) -> usize {
        self.inner.parallel_gets()
    }
}
