//! Refs: the few mutable objects of a store: worktree heads, tags, pins and annotations of snapshots, and the settings.
//!
//! Invariants: a ref's object name is a keyed hash of its name, so that a listing tells nothing; each change is a
//! compare-and-swap and raises the counter; a counter lower than one seen before is refused as a rollback. A ref
//! that was removed leaves an object that says so: whoever makes it anew counts on, and one that is missing is noticed.

mod head;
mod kind;
mod known;
mod listing;
mod recorded;
mod reseal;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vellum_crypto::{KeyEpoch, RecordDomain, VolumeKeys};
use vellum_host::escape::is_invisible_char;
use vellum_store::{ObjectInfo, ObjectKey, ObjectStore, StoreError, join_requests, map_requests};
use vellum_types::limits::REF_NAME_MAX;
use vellum_types::{BlobId, DecodeError, FieldReader, FieldWriter};

pub use self::head::{
    READING_MAX, UnsnapshottedTree, WorktreeHead, WorktreeLog, WorktreeMark, WorktreeQuota, WorktreeTrash,
};
pub(crate) use self::kind::VOLUME_SETTINGS;
pub use self::kind::{NamedRefKind, RefKind};
pub(crate) use self::known::{KNOWN_REFS_FILE, fuzz_decoder as fuzz_known_decoder};
pub use self::listing::SharedRefListing;
use self::recorded::{RecordedChange, RefChange, is_removed_value};
pub(crate) use self::recorded::{read_chain_link, recorded_value};
pub(crate) use self::reseal::ResealedRefs;
use crate::error::{Result, VolumeError, is_data_loss};
use crate::key_epochs::KeyEpochs;
use crate::operations::{OperationEffect, OperationLog, OperationSink, RefEffect, SealedOperation};
use crate::state::StateDir;

const VERSION: u8 = 1;

/// Longest object, bytes: the longest name and value, sealed.
const OBJECT_MAX: u64 = 64 << 10;
/// Longest value, bytes: a head with two directories, each of `PATH_MAX` (4,096) bytes, three for one where they are
/// not UTF-8.
const VALUE_MAX: usize = 48 << 10;

/// How often a compare-and-swap is tried again before giving up: each failure means that somebody else succeeded.
const RETRIES: usize = 100;

/// For how long a ref of a service counts as recent. Most commands take less.
const RECENT: Duration = Duration::from_secs(2);

/// One ref, as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRef {
    /// Its name.
    pub name: String,
    /// How often it was changed.
    pub counter: u64,
    /// What it says; nothing if it was removed.
    pub value: Vec<u8>,
    /// The object's bytes, for the next compare-and-swap.
    stored: Vec<u8>,
    /// The key epoch that it is sealed in.
    epoch: KeyEpoch,
}

impl StoredRef {
    pub(crate) fn is_removed_ref(&self) -> bool {
        is_removed_value(&self.value)
    }
}

/// A ref that is there or was, and cannot be read.
#[derive(Debug)]
pub struct DamagedRef {
    /// What it is for.
    pub kind: RefKind,
    /// Its object; the name is known from within only.
    pub key: ObjectKey,
    /// What is wrong with it.
    pub error: VolumeError,
}

/// Reads and changes refs.
pub struct RefStore {
    objects: Arc<dyn ObjectStore>,
    keys: Arc<VolumeKeys>,
    epochs: Arc<KeyEpochs>,
    state: StateDir,
    seen: Mutex<BTreeMap<String, u64>>,
    /// The refs that were read or changed by name, as they were then: a compare-and-swap finds out whether they still are.
    last: Mutex<HashMap<ObjectKey, RememberedRef>>,
    known: known::KnownRefs,
    /// One listing of refs of all kinds, while [`SharedRefListing`] lives.
    shared_listing: Mutex<Option<Vec<ObjectInfo>>>,
    /// Where changes are recorded.
    log: Option<OperationLog>,
}

/// A ref as it was at some moment.
struct RememberedRef {
    /// None if its object was not there.
    found: Option<StoredRef>,
    read: Instant,
}

impl RememberedRef {
    fn new(found: Option<StoredRef>) -> Self {
        Self { found, read: Instant::now() }
    }
}

impl RefStore {
    /// The refs of a store, checked against what this worktree's state directory has seen.
    pub fn open(objects: Arc<dyn ObjectStore>, epochs: Arc<KeyEpochs>, state: StateDir) -> Result<Self> {
        let seen = Mutex::new(state.read_seen_counters()?);
        let keys = epochs.volume_keys().clone();
        let last = Mutex::default();
        Ok(Self {
            objects,
            keys,
            epochs,
            state,
            seen,
            last,
            known: Mutex::default(),
            shared_listing: Mutex::default(),
            log: None,
        })
    }

    /// The same, and every change is recorded as an operation that was carried out from this worktree.
    #[must_use]
    pub fn with_operations(self, worktree: &str) -> Self {
        let log = OperationLog::new(self.objects.clone(), self.epochs.clone(), worktree.into());
        Self { log: Some(log), ..self }
    }

    /// The records of operations, if they are kept.
    pub(crate) fn operation_log(&self) -> Option<&OperationLog> {
        self.log.as_ref()
    }

    /// The ref of this name, if there is one.
    pub fn get_ref(&self, kind: RefKind, name: &str) -> Result<Option<StoredRef>> {
        Ok(self.find_ref(kind, name)?.filter(|found| !found.is_removed_ref()))
    }

    /// The ref of this name as it is, or was at most [`RECENT`] ago if the store is a service: for a command that asks for
    /// the same ref several times. What is written afterwards is compared with the ref as it is then.
    pub fn get_recent_ref(&self, kind: RefKind, name: &str) -> Result<Option<StoredRef>> {
        if self.objects.is_remote() {
            let last = self.last.lock();
            let known = last.get(&self.ref_object_key(kind, name)?);
            // One that was not there is asked for again: another process may just have made it for this one.
            if let Some(recent) = known.filter(|last| last.read.elapsed() < RECENT)
                && let Some(found) = recent.found.as_ref().filter(|found| found.name == name)
            {
                return Ok(Some(found.clone()).filter(|found| !found.is_removed_ref()));
            }
        }
        self.get_ref(kind, name)
    }

    /// The ref of this name, also one that was removed.
    pub(crate) fn find_ref(&self, kind: RefKind, name: &str) -> Result<Option<StoredRef>> {
        let key = self.ref_object_key(kind, name)?;
        let found = self.read_ref(kind, &key)?;
        match found {
            // One that was removed by its object says no name.
            Some(found) if found.name != name && !found.is_removed_ref() => {
                Err(damaged_ref_error(&key, "it belongs to another name"))
            }
            found => {
                self.last.lock().insert(key, RememberedRef::new(found.clone()));
                Ok(found)
            }
        }
    }

    /// The ref in an object, if the object is there.
    fn read_ref(&self, kind: RefKind, key: &ObjectKey) -> Result<Option<StoredRef>> {
        let found = self.fetch_ref(kind, key)?;
        // Recorded before anybody acts on the value: whatever is lower from now on is a rollback.
        self.record_seen_counters(found.iter().map(|found| (key, found.counter)))?;
        Ok(found)
    }

    /// The refs in some objects, each as [`Self::read_ref`] gives it.
    pub fn read_refs(&self, kind: RefKind, keys: &[ObjectKey]) -> Result<Vec<Result<Option<StoredRef>>>> {
        let found = map_requests(&*self.objects, keys, |key| self.fetch_ref(kind, key));
        self.record_found_counters(keys.iter(), &found)?;
        Ok(found)
    }

    /// Remembers the counters of refs that were read. Together: each time, the whole file of what was seen is written anew.
    fn record_found_counters<'k>(
        &self,
        keys: impl Iterator<Item = &'k ObjectKey>,
        found: &[Result<Option<StoredRef>>],
    ) -> Result<()> {
        let seen = keys.zip(found).filter_map(|(key, found)| {
            let found = found.as_ref().ok()?.as_ref()?;
            Some((key, found.counter))
        });
        self.record_seen_counters(seen)
    }

    /// The ref in an object, without a record of what was seen. It must not be older than what was seen before it was
    /// asked for; what others see meanwhile may be newer.
    fn fetch_ref(&self, kind: RefKind, key: &ObjectKey) -> Result<Option<StoredRef>> {
        // Before the request: another thread may raise the counter while this one waits for the answer, and that
        // answer is no rollback.
        let seen = self.last_seen_counter(key);
        // The keys, too: a machine that has not heard of a rotation would accept a ref that a revoked device sealed
        // with the old key. Both are asked for at once: what is opened below, the newest keys open.
        let read = || self.objects.get_object(key, OBJECT_MAX);
        let answer = if self.epochs.is_refresh_due() {
            let (answer, refreshed) =
                join_requests(&*self.objects, read, || self.epochs.refresh_keys_if_due());
            refreshed?;
            answer
        } else {
            read()
        };
        let found = match answer {
            Ok(bytes) => self.decode_ref(kind, key, bytes)?,
            // A removed ref leaves an object with its counter. So an object that was seen once and is missing was
            // deleted behind Vellum's back, or the store was replaced by an older copy.
            Err(StoreError::NotFound { .. }) if seen == 0 => return Ok(None),
            Err(StoreError::NotFound { .. }) => {
                let note = self.state.seen_file_path();
                return Err(VolumeError::RefLost { object: key.to_string(), seen, note });
            }
            Err(error) => return Err(error.into()),
        };
        if found.counter < seen {
            let note = self.state.seen_file_path();
            return Err(VolumeError::RolledBack { what: key.to_string(), found: found.counter, seen, note });
        }
        Ok(Some(found))
    }

    /// All refs of a kind, by name.
    pub fn list_refs(&self, kind: RefKind) -> Result<Vec<StoredRef>> {
        // Each is read, whatever a listing says, which may lag: what nothing names is deleted.
        let keys = self.list_ref_objects(kind)?;
        let mut refs = Vec::new();
        let found = self.read_refs(kind, &keys)?;
        for (key, found) in keys.into_iter().zip(found) {
            if let Some(found) = found?.filter(|found| !found.is_removed_ref()) {
                self.last.lock().insert(key, RememberedRef::new(Some(found.clone())));
                refs.push(found);
            }
        }
        // They were listed by their objects, whose names are hashes: that order says nothing.
        refs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(refs)
    }

    /// All refs of a kind that can be read, by name, and the objects of those that are damaged or lost. To be shown: where a
    /// service lists a version that is known here, this is not read again.
    pub fn list_readable_refs(&self, kind: RefKind) -> Result<(Vec<StoredRef>, Vec<DamagedRef>)> {
        let listed = self.list_ref_infos(kind)?;
        let found = self.read_listed_refs(kind, &listed)?;
        let mut refs = Vec::new();
        let mut damaged = Vec::new();
        for (ObjectInfo { key, .. }, found) in listed.into_iter().zip(found) {
            match found {
                Ok(found) => refs.extend(found.filter(|found| !found.is_removed_ref())),
                Err(error) if is_data_loss(&error) => damaged.push(DamagedRef { kind, key, error }),
                Err(error) => return Err(error),
            }
        }
        refs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok((refs, damaged))
    }

    /// Removes a ref that is damaged or lost: by its name, or by its object.
    pub fn remove_damaged_ref(&self, kind: RefKind, name_or_object: &str) -> Result<()> {
        let folder = format!("refs/{}/", kind.folder_name());
        let (key, name) = match ObjectKey::new(name_or_object) {
            Ok(key) if name_or_object.starts_with(&folder) => (key, ""),
            _ => (self.ref_object_key(kind, name_or_object)?, name_or_object),
        };
        for _ in 0..RETRIES {
            let stored = match self.objects.get_object(&key, OBJECT_MAX) {
                Ok(stored) => Some(stored),
                Err(StoreError::NotFound { .. }) => None,
                // It is no ref of anybody, and a swap needs the bytes that it replaces.
                Err(StoreError::NotAFile { .. } | StoreError::TooLarge { .. }) => {
                    self.objects.delete_object(&key)?;
                    None
                }
                Err(error) => return Err(error.into()),
            };
            let found = stored.clone().and_then(|stored| self.decode_ref(kind, &key, stored).ok());
            // A damaged object may tell no counter. The last one seen here keeps the removal from looking like a
            // rollback.
            let counter = found.map_or(0, |found| found.counter).max(self.last_seen_counter(&key)) + 1;
            let removed = self.encode_ref(kind, &key, name, counter, &[]);
            match self.objects.swap_ref(&key, stored.as_deref(), Some(&removed)) {
                Ok(()) => {
                    self.last.lock().remove(&key);
                    self.record_seen_counter(&key, counter)?;
                    let nothing = Vec::new();
                    // What it said is not known. An object that was named instead of the ref tells no name.
                    return self.record_operation(vec![OperationEffect::Ref(RefEffect {
                        kind,
                        name: name.into(),
                        counter,
                        before: nothing.clone(),
                        after: nothing,
                    })]);
                }
                Err(StoreError::Changed { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(VolumeError::Raced(format!("the {} '{name_or_object}'", kind.display_name())))
    }

    /// Changes a ref to what `change` makes of its present value; `None` removes it. Tried again when somebody
    /// else changed it meanwhile, so `change` may run several times.
    pub fn update_ref(
        &self,
        kind: RefKind,
        name: &str,
        change: impl FnMut(Option<&StoredRef>) -> Result<Option<Vec<u8>>>,
    ) -> Result<()> {
        let put = &mut |sealed: &SealedOperation| self.put_operation(sealed);
        self.update_ref_recording(kind, name, &mut OperationSink { effects: Vec::new(), put }, change)
    }

    /// As [`Self::update_ref`]; `sink` stores the record of the operation, and with it what else the ref is to name.
    pub(crate) fn update_ref_recording(
        &self,
        kind: RefKind,
        name: &str,
        sink: &mut OperationSink<'_>,
        mut change: impl FnMut(Option<&StoredRef>) -> Result<Option<Vec<u8>>>,
    ) -> Result<()> {
        kind.check_name(name)?;
        let key = self.ref_object_key(kind, name)?;
        // What it said last spares a request, if that is what it says still.
        let last = self.last.lock().remove(&key).map(|last| last.found);
        let mut remembered = last.filter(|last| last.as_ref().is_none_or(|last| last.name == name));
        for _ in 0..RETRIES {
            let is_remembered = remembered.is_some();
            let old = match remembered.take() {
                Some(last) => last,
                None => self.find_ref(kind, name)?,
            };
            let counter = old.as_ref().map_or(0, |old| old.counter) + 1;
            let present = old.as_ref().filter(|old| !old.is_removed_ref());
            let new = match change(present) {
                Ok(None) if present.is_none() && !is_remembered => return Ok(()),
                Err(error) if !is_remembered => return Err(error),
                // Nobody is refused, and nothing is left undone, because of what may have changed since.
                Err(_) => continue,
                Ok(None) if present.is_none() => continue,
                Ok(new) => new.unwrap_or_default(),
            };
            // Before the record is put: a change that cannot be made is no operation.
            if new.len() > VALUE_MAX {
                let what = format!("what the {} '{name}' is to say", kind.display_name());
                return Err(VolumeError::TooLong { what, len: new.len(), max: VALUE_MAX });
            }
            let changed = RefChange { kind, name, old: old.as_ref(), counter, new, is_remembered };
            let Some(RecordedChange { value, pending }) = self.record_change(&changed, sink)? else {
                continue;
            };
            let epoch = self.keys.newest_epoch();
            let stored = self.encode_ref(kind, &key, name, counter, &value);
            // The stored bytes are compared, not the value. They contain the counter, so a value that was changed
            // and changed back is noticed.
            let expected = old.as_ref().map(|old| old.stored.as_slice());
            match self.objects.swap_ref(&key, expected, Some(&stored)) {
                Ok(()) => {
                    let is_created = expected.is_none();
                    let new = StoredRef { name: name.to_owned(), counter, value, stored, epoch };
                    self.remember_swapped_ref(kind, &key, new, is_created)?;
                    return pending.map_or(Ok(()), |pending| self.finish_operation(pending));
                }
                // Each round that fails here lets another writer's change through, so somebody always makes
                // progress.
                Err(StoreError::Changed { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(VolumeError::Raced(format!("the {} '{name}'", kind.display_name())))
    }

    /// Puts the record of an operation.
    pub(crate) fn put_operation(&self, sealed: &SealedOperation) -> Result<()> {
        Ok(self.objects.put_object(&sealed.key, &sealed.bytes)?)
    }

    /// The object that a ref of this name is in.
    pub(crate) fn ref_object_key(&self, kind: RefKind, name: &str) -> Result<ObjectKey> {
        compute_ref_key(&self.keys, kind, name)
    }

    fn encode_ref(&self, kind: RefKind, key: &ObjectKey, name: &str, counter: u64, value: &[u8]) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        writer.write_u8(VERSION).write_varint(counter).write_bytes(name.as_bytes()).write_bytes(value);
        let mut sealed = Vec::new();
        self.keys.seal_record(
            RecordDomain::Ref,
            &build_associated_data(kind, key),
            writer.as_slice(),
            &mut sealed,
        );
        sealed
    }

    fn decode_ref(&self, kind: RefKind, key: &ObjectKey, stored: Vec<u8>) -> Result<StoredRef> {
        let mut plain = Vec::new();
        let epoch = self
            .keys
            .open_record_in_epoch(RecordDomain::Ref, &build_associated_data(kind, key), &stored, &mut plain)
            .map_err(|error| self.epochs.explain_unseal_error(key, error))?;
        // A device that was revoked has the earlier keys, and can seal a ref with them.
        self.epochs.require_current_seal(key, epoch)?;
        let (counter, name, value) =
            parse_ref(&plain).map_err(VolumeError::wrap_decode_error(key.to_string()))?;
        Ok(StoredRef { name, counter, value, stored, epoch })
    }

    /// A rotation that began while a ref was made may have listed the refs before. Then its maker seals it with the new key.
    /// Whoever is not given that withdraws the ref. Gives the ref as it is then, unless somebody else changed it.
    fn settle_created_ref(
        &self,
        kind: RefKind,
        key: &ObjectKey,
        made: StoredRef,
    ) -> Result<Option<StoredRef>> {
        if let Err(error) = self.epochs.refresh_keys() {
            // If this fails, the ref stays, and is refused when the rotation is finished.
            let _ = self.objects.swap_ref(key, Some(&made.stored), None);
            return Err(error);
        }
        let epoch = self.keys.newest_epoch();
        if made.epoch == epoch {
            return Ok(Some(made));
        }
        // It is not read again: when the rotation is finished, it does not count any more.
        let counter = made.counter + 1;
        let stored = self.encode_ref(kind, key, &made.name, counter, &made.value);
        match self.objects.swap_ref(key, Some(&made.stored), Some(&stored)) {
            Ok(()) => Ok(Some(StoredRef { counter, stored, epoch, ..made })),
            Err(StoreError::Changed { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Remembers that an object that never changes is there.
    pub(crate) fn record_seen_object(&self, key: &ObjectKey) -> Result<()> {
        self.record_seen_counter(key, 1)
    }

    /// The objects of a folder that were seen here.
    pub(crate) fn seen_objects(&self, folder: &str) -> Result<Vec<ObjectKey>> {
        let seen = self.seen.lock();
        let known = seen.keys().filter(|key| key.starts_with(folder)).cloned();
        Ok(known.map(ObjectKey::new).collect::<Result<_, _>>()?)
    }

    fn last_seen_counter(&self, key: &ObjectKey) -> u64 {
        let seen = self.seen.lock();
        seen.get(&key.to_string()).copied().unwrap_or(0)
    }

    /// Remembers a counter if it is the highest so far.
    fn record_seen_counter(&self, key: &ObjectKey, counter: u64) -> Result<()> {
        self.record_seen_counters(std::iter::once((key, counter)))
    }

    /// Remembers those of the counters that are the highest so far.
    fn record_seen_counters<'k>(&self, counters: impl Iterator<Item = (&'k ObjectKey, u64)>) -> Result<()> {
        // The lock is held until the file is written: otherwise two threads could write it in the reverse order, and
        // the higher counter would be missing from it.
        let mut seen = self.seen.lock();
        let mut is_changed = false;
        for (key, counter) in counters {
            if counter > seen.get(key.as_str()).copied().unwrap_or(0) {
                seen.insert(key.to_string(), counter);
                is_changed = true;
            }
        }
        if is_changed { self.state.merge_seen_counters(&mut seen) } else { Ok(()) }
    }
}

/// The object that a ref of this name is in.
pub(crate) fn compute_ref_key(keys: &VolumeKeys, kind: RefKind, name: &str) -> Result<ObjectKey> {
    // Keyed, because whoever can list the store is not to learn the names of refs.
    let folder = kind.folder_name();
    let id = keys.compute_name_id(RecordDomain::Ref, format!("{folder}/{name}").as_bytes());
    Ok(ObjectKey::new(format!("refs/{folder}/{}", BlobId(id)))?)
}

/// Whether a key is that of a ref: its kind, and a keyed hash of its name.
pub(crate) fn is_ref_key(key: &ObjectKey) -> bool {
    let parts: Vec<_> = key.as_str().split('/').collect();
    let kinds = RefKind::ALL.map(RefKind::folder_name);
    matches!(parts.as_slice(), ["refs", kind, id] if kinds.contains(kind) && id.parse::<BlobId>().is_ok())
}

/// Counter, name and value of a ref, from the plaintext of its object.
pub fn parse_ref(plain: &[u8]) -> Result<(u64, String, Vec<u8>), DecodeError> {
    let mut reader = FieldReader::new(plain);
    reader.expect_version(VERSION)?;
    let counter = reader.read_varint()?;
    let name = reader.read_string(REF_NAME_MAX)?.to_owned();
    let value = reader.read_bytes(VALUE_MAX)?.to_vec();
    reader.expect_end()?;
    Ok((counter, name, value))
}

fn build_associated_data(kind: RefKind, key: &ObjectKey) -> Vec<u8> {
    let mut data = kind.folder_name().as_bytes().to_vec();
    // No folder and no key has a zero byte, so that the two parts cannot be divided otherwise.
    data.push(0);
    data.extend_from_slice(key.as_str().as_bytes());
    data
}

fn damaged_ref_error(key: &ObjectKey, reason: &str) -> VolumeError {
    VolumeError::Damaged { object: key.to_string(), reason: reason.into() }
}

/// Refuses names that snapshot expressions could not tell from something else, or that would garble a terminal.
pub fn check_ref_name(name: &str) -> Result<()> {
    let reason = if name.is_empty() {
        "it is empty"
    } else if name.len() > REF_NAME_MAX {
        "it is longer than 255 bytes"
    } else if name.chars().any(is_invisible_char) {
        "it has characters that do not show"
    } else if name.chars().any(|c| c.is_control() || c.is_whitespace()) {
        "it has white space or control characters"
    } else if name.contains(['~', '^', '@', '{', '}', ':', '/', '\\']) {
        // Expressions use them: for steps (~ ^), moments (@ { }), paths and lines of directories (:) and refs of remotes (/).
        "it has one of ~ ^ @ { } : / \\"
    } else if name.starts_with('-') {
        "it begins with a hyphen"
    } else if name == "HEAD" {
        "HEAD is the snapshot that the worktree stands on"
    } else if name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit()) {
        "it looks like the id of a snapshot"
    } else {
        return Ok(());
    };
    Err(VolumeError::BadName { name: name.escape_debug().to_string(), reason })
}
