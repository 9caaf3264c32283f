//! A store that fails according to a script: before or after the effect, with torn or flipped bytes, stale listings,
//! lost acknowledgements, no space.
//!
//! Invariant: without a script it behaves like the underlying store. Operations of all kinds are counted together, from
//! 0, so that a test can stop at each of them in turn.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vellum_store::{ObjectInfo, ObjectKey, ObjectStore, StoreError};

/// Kinds of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreOperation {
    /// Whole gets.
    Get,
    /// Ranged gets.
    GetRange,
    /// Requests for a size.
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

/// The operations that a fault affects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultTrigger {
    /// The operation with this number, counted over all kinds.
    Nth(u64),
    /// This operation and all later ones: the process or the machine has died.
    From(u64),
    /// Every operation of a kind on keys with this prefix.
    Each(StoreOperation, String),
    /// Only the first operation of a kind on keys with this prefix.
    Once(StoreOperation, String),
}

/// The fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreFault {
    /// The operation fails without an effect.
    Before,
    /// The operation has its effect, but the reply is lost: it fails for the caller.
    After,
    /// A put is acknowledged without an effect.
    Lost,
    /// Reads return, and puts store, only this many of the bytes, and succeed.
    Torn(usize),
    /// Reads return, and puts store, bytes with this bit (modulo their number) flipped, and succeed.
    Flip(usize),
    /// Listings omit objects that were put since the script was set.
    Stale,
    /// There is no space.
    NoSpace,
}

struct FaultyStoreState {
    script: Vec<(FaultTrigger, StoreFault)>,
    put_since: Vec<ObjectKey>,
    space: Option<u64>,
}

/// A store that fails on demand.
pub struct FaultyStore {
    inner: Arc<dyn ObjectStore>,
    count: AtomicU64,
    state: Mutex<FaultyStoreState>,
}

impl FaultyStore {
    /// Wraps a store, without faults yet.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>) -> Self {
        let state = FaultyStoreState { script: Vec::new(), put_since: Vec::new(), space: None };
        Self { inner, count: AtomicU64::new(0), state: Mutex::new(state) }
    }

    /// Replaces the script.
    pub fn set_script(&self, script: impl IntoIterator<Item = (FaultTrigger, StoreFault)>) {
        let mut state = self.state.lock();
        state.script = script.into_iter().collect();
        state.put_since.clear();
    }

    /// Limits the bytes that can be put from now on; None removes the limit.
    pub fn set_space_limit(&self, bytes: Option<u64>) {
        self.state.lock().space = bytes;
    }

    /// The number of operations so far.
    #[must_use]
    pub fn operation_count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Counts an operation and returns its fault.
    fn next_fault(&self, op: StoreOperation, key: &str) -> Option<StoreFault> {
        // Counted before the script is looked at, so that the same test has the same numbers with and without
        // faults.
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        let mut state = self.state.lock();
        let position = state.script.iter().position(|(when, _)| match when {
            FaultTrigger::Nth(at) => *at == number,
            FaultTrigger::From(at) => *at <= number,
            FaultTrigger::Each(kind, prefix) | FaultTrigger::Once(kind, prefix) => {
                *kind == op && key.starts_with(prefix)
            }
        })?;
        let (when, fault) = state.script.get(position)?.clone();
        // The entry is spent even if the operation would have failed by itself.
        if matches!(when, FaultTrigger::Once(..)) {
            state.script.remove(position);
        }
        Some(fault)
    }

    fn injected_error(&self, key: &str, kind: io::ErrorKind) -> StoreError {
        StoreError::Io {
            place: self.describe_location(),
            key: key.to_owned(),
            action: "reach",
            source: io::Error::new(kind, "injected"),
        }
    }

    fn run_with_faults<T>(
        &self,
        op: StoreOperation,
        key: &str,
        act: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match self.next_fault(op, key) {
            Some(StoreFault::Before) => Err(self.injected_error(key, io::ErrorKind::TimedOut)),
            Some(StoreFault::NoSpace) => Err(self.injected_error(key, io::ErrorKind::StorageFull)),
            // The operation happens, and its own error, if it has one, is returned instead of the injected
            // one.
            Some(StoreFault::After) => act().and(Err(self.injected_error(key, io::ErrorKind::TimedOut))),
            // The others are for gets and puts, except that stale listings are made by `list_objects` itself.
            _ => act(),
        }
    }

    fn read_with_faults(
        &self,
        op: StoreOperation,
        key: &ObjectKey,
        act: impl FnOnce() -> Result<Vec<u8>, StoreError>,
    ) -> Result<Vec<u8>, StoreError> {
        match self.next_fault(op, key.as_str()) {
            // A read has no effect that could remain, so that failing before and after it are the same.
            Some(StoreFault::Before | StoreFault::NoSpace | StoreFault::After) => {
                Err(self.injected_error(key.as_str(), io::ErrorKind::TimedOut))
            }
            Some(fault) => act().map(|bytes| corrupt_bytes(fault, bytes)),
            None => act(),
        }
    }

    fn reserve_space(&self, key: &ObjectKey, len: usize) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        if let Some(space) = &mut state.space {
            match space.checked_sub(len as u64) {
                Some(rest) => *space = rest,
                None => return Err(self.injected_error(key.as_str(), io::ErrorKind::StorageFull)),
            }
        }
        // Kept for stale listings, which hide what was stored since the script was set.
        state.put_since.push(key.clone());
        Ok(())
    }

    fn has_stale_fault(&self) -> bool {
        self.state.lock().script.iter().any(|(_, fault)| *fault == StoreFault::Stale)
    }
}

fn corrupt_bytes(fault: StoreFault, mut bytes: Vec<u8>) -> Vec<u8> {
    match fault {
        StoreFault::Torn(len) => bytes.truncate(len),
        StoreFault::Flip(bit) => {
            // Any number is valid, so a test need not know how long the object is.
            let bit = bit % (bytes.len() * 8).max(1);
            if let Some(byte) = bytes.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
        }
        StoreFault::Before
        | StoreFault::After
        | StoreFault::Lost
        | StoreFault::Stale
        | StoreFault::NoSpace => {}
    }
    bytes
}

impl ObjectStore for FaultyStore {
    fn describe_location(&self) -> String {
        format!("faulty {}", self.inner.describe_location())
    }

    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        self.read_with_faults(StoreOperation::Get, key, || self.inner.get_object(key, max))
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        self.read_with_faults(StoreOperation::GetRange, key, || self.inner.get_range(key, offset, len))
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        self.run_with_faults(StoreOperation::Size, key.as_str(), || self.inner.object_size(key))
    }

    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        let fault = self.next_fault(StoreOperation::Put, key.as_str());
        match fault {
            Some(StoreFault::Before) => {
                return Err(self.injected_error(key.as_str(), io::ErrorKind::TimedOut));
            }
            Some(StoreFault::NoSpace) => {
                return Err(self.injected_error(key.as_str(), io::ErrorKind::StorageFull));
            }
            // A store that acknowledges and forgets takes no space either.
            Some(StoreFault::Lost) => return Ok(()),
            _ => self.reserve_space(key, bytes.len())?,
        }
        match fault {
            Some(StoreFault::After) => self
                .inner
                .put_object(key, bytes)
                .and(Err(self.injected_error(key.as_str(), io::ErrorKind::TimedOut))),
            Some(fault) => self.inner.put_object(key, &corrupt_bytes(fault, bytes.to_vec())),
            None => self.inner.put_object(key, bytes),
        }
    }

    fn swap_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        self.run_with_faults(StoreOperation::Swap, key.as_str(), || self.inner.swap_ref(key, expected, new))
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        let mut listed =
            self.run_with_faults(StoreOperation::List, folder, || self.inner.list_objects(folder))?;
        // While the script has this fault, every listing is stale, whatever its trigger is.
        if self.has_stale_fault() {
            let hidden = self.state.lock().put_since.clone();
            listed.retain(|info| !hidden.contains(&info.key));
        }
        Ok(listed)
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.run_with_faults(StoreOperation::Delete, key.as_str(), || self.inner.delete_object(key))
    }

    fn parallel_get_count(&self) -> usize {
        self.inner.parallel_get_count()
    }
}
