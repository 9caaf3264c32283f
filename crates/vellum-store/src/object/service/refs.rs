//! Compare-and-swap of refs, by the conditions of the service.
//!
//! Invariant: a swap that is reported as done was done by this call, and one that is reported as changed was not. What is
//! known of a ref only saves a request: the service checks it.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use opendal::{Metadata, Operator};
use parking_lot::Mutex;

use super::body::{self, ReadObject};
use super::failure::FailureClass;
use super::{Attempt, RequestSubject, ServiceStore};
use crate::error::StoreError;
use crate::object::ObjectKey;

/// What a deleted ref has as its bytes where the service cannot delete on a condition. Refs that exist are sealed, and have
/// another length.
pub(super) const DELETION_MARKER: &[u8] = b"vellum: deleted ref\n";
/// Refs whose tags are remembered, a count.
const KNOWN_MAX: usize = 256;
/// Largest object that is remembered, bytes: refs and sessions have some hundred.
const KNOWN_BYTES_MAX: usize = 64 << 10;
/// Tries of a swap whose condition fails although the ref has the expected bytes, a count: somebody else's swap there
/// and back, or a service that changes tags by itself.
const UNEXPLAINED_MAX: u32 = 8;

/// Refs as they were last read or written here, with the tags by which the service knows them.
#[derive(Default)]
pub(super) struct KnownRefs {
    refs: Mutex<HashMap<ObjectKey, ReadObject>>,
}

impl KnownRefs {
    /// Remembers an object that was read, if it can be a ref.
    pub fn remember(&self, key: &ObjectKey, object: &ReadObject) {
        if object.bytes.len() > KNOWN_BYTES_MAX || !has_tag(&object.metadata) || is_immutable(key) {
            return;
        }
        let mut refs = self.refs.lock();
        // All of them go at once: each ref that is forgotten costs a read, when it is swapped the next time.
        if refs.len() >= KNOWN_MAX && !refs.contains_key(key) {
            refs.clear();
        }
        refs.insert(key.clone(), object.clone());
    }

    /// Forgets a ref that was changed or deleted.
    pub fn forget(&self, key: &ObjectKey) {
        self.refs.lock().remove(key);
    }

    /// The ref, if it is known with these bytes.
    fn find_equal(&self, key: &ObjectKey, bytes: &[u8]) -> Option<ReadObject> {
        self.refs.lock().get(key).filter(|known| known.bytes == bytes).cloned()
    }
}

fn has_tag(metadata: &Metadata) -> bool {
    metadata.etag().is_some() || metadata.version().is_some()
}

/// Whether objects of this folder are never swapped.
fn is_immutable(key: &ObjectKey) -> bool {
    key.as_str().starts_with("packs/") || key.as_str().starts_with("index/")
}

impl ServiceStore {
    /// See [`crate::ObjectStore::swap_ref`].
    pub(super) fn swap_known_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        let subject = RequestSubject { action: "change", key: key.as_str() };
        let mut schedule = self.budget.begin(self.limits.retry_for);
        let mut can_reload = true;
        let mut is_uncertain = false;
        let mut unexplained = 0;
        let mut known = expected.and_then(|bytes| self.known_refs.find_equal(key, bytes));
        loop {
            let current = match known.take() {
                Some(known) => Some(known),
                // A creation needs no read: the condition fails if the ref exists. After an uncertain try, or a
                // failed condition that nothing explains, the ref is read.
                None if expected.is_none() && !is_uncertain && unexplained == 0 => None,
                None => self.read_ref(key, expected, new)?,
            };
            let current_bytes = current.as_ref().map(|object| object.bytes.as_slice());
            let current_bytes = current_bytes.filter(|bytes| !self.is_deletion_marker(bytes));
            // An earlier try was carried out and its answer lost. The bytes contain a counter, so they are equal
            // only if the change is the same.
            if is_uncertain && current_bytes == new {
                return Ok(());
            }
            if current_bytes != expected {
                return Err(self.changed_error(key));
            }
            let Err(failed) = self.send_swap(key, current.map(|object| object.metadata), new)? else {
                return Ok(());
            };
            // What was remembered led to a failed condition, or may have been replaced by the request that just
            // failed.
            self.known_refs.forget(key);
            match failed.classify() {
                FailureClass::ConditionFailed => {
                    unexplained += 1;
                    if unexplained > UNEXPLAINED_MAX {
                        return Err(self.changed_error(key));
                    }
                    // Read again at once: either it was changed, or what was known of it was old.
                    continue;
                }
                FailureClass::Transient | FailureClass::Garbled | FailureClass::Conflict => {
                    is_uncertain = true
                }
                FailureClass::Throttled | FailureClass::CredentialsRefused | FailureClass::Final => {}
            }
            if !self.may_repeat(subject, &failed, &mut schedule, &mut can_reload)? {
                return Err(self.wrap_failure(subject, &failed));
            }
        }
    }

    /// The ref as it is. One that is larger than both its old and its new bytes was changed by somebody else.
    fn read_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Option<ReadObject>, StoreError> {
        let subject = RequestSubject { action: "read", key: key.as_str() };
        let lengths = [expected.map_or(0, <[u8]>::len), new.map_or(0, <[u8]>::len), DELETION_MARKER.len()];
        let max = lengths.into_iter().max().unwrap_or_default() as u64;
        let read = self.repeat(subject, &self.pool.reads, |operator| {
            let path = key.to_string();
            async move { body::read_object_range(&operator, &path, .., max).await }
        })?;
        match read {
            Ok(None) => Err(self.changed_error(key)),
            read => self.output_or(subject, read, None),
        }
    }

    /// Sends the one conditional request of a swap.
    fn send_swap(
        &self,
        key: &ObjectKey,
        current: Option<Metadata>,
        new: Option<&[u8]>,
    ) -> Result<Attempt<()>, StoreError> {
        let subject = RequestSubject { action: "change", key: key.as_str() };
        let path = key.to_string();
        let uses_markers = self.uses_deletion_markers.load(Ordering::Relaxed);
        // Without conditional deletion, a marker takes the place of the ref. An absent ref needs none.
        let Some(bytes) = new.or(uses_markers.then_some(DELETION_MARKER).filter(|_| current.is_some()))
        else {
            let Some(metadata) = current else { return Ok(Ok(())) };
            return self.attempt(subject, &self.pool.writes, |operator| async move {
                operator.delete_with(&path).if_not_changed(&metadata).await
            });
        };
        let body = Bytes::copy_from_slice(bytes);
        let written =
            self.attempt(subject, &self.pool.writes, |operator| write_ref(operator, path, body, current))?;
        // The tag in the answer saves a read before the next swap.
        Ok(written.map(|metadata| {
            self.known_refs.remember(key, &ReadObject { bytes: bytes.to_vec(), metadata });
        }))
    }

    /// Whether these are the bytes of a ref that was deleted.
    pub(super) fn is_deletion_marker(&self, bytes: &[u8]) -> bool {
        bytes == DELETION_MARKER && self.uses_deletion_markers.load(Ordering::Relaxed)
    }

    fn changed_error(&self, key: &ObjectKey) -> StoreError {
        StoreError::Changed { place: self.location.clone(), key: key.to_string() }
    }
}

async fn write_ref(
    operator: Operator,
    path: String,
    body: Bytes,
    current: Option<Metadata>,
) -> opendal::Result<Metadata> {
    let writing = operator.write_with(&path, body);
    match current {
        Some(metadata) => writing.if_not_changed(&metadata).await,
        None => writing.if_not_exists(true).await,
    }
}
