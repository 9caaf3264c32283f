//! Refs as numbered versions, for stores that create objects on a condition, and replace none.
//!
//! Invariant: a ref is a folder with one object for each of its last versions; the highest number is the ref. A swap
//! creates the next number, so that one of several wins. A swap is reported as done only if its version followed the one
//! that was expected: a number can be free again because the version of that number was removed meanwhile, which the
//! listing after the creation, or the tags in newer versions, show. Objects that never change pass through.

mod version;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use vellum_types::ErrorKind;

pub(crate) use self::version::fuzz_decoder as fuzz_version_decoder;
use self::version::{OVERHEAD, REMOVED_LEN, RefVersion, TAGS, parse_number};
use super::{KeyFilter, ObjectInfo, ObjectKey, ObjectSelection, ObjectStore};
use crate::error::StoreError;

/// Versions below the highest that stay, a count. Fewer than a version has tags: what was removed can still be told.
const KEPT: u64 = 8;
/// Tries to read a ref whose versions are removed between the listing and the read, a count.
const READ_TRIES: usize = 20;
/// Refs whose last version is remembered, a count.
const KNOWN_MAX: usize = 256;
/// Longest version whose predecessor was read for a swap, bytes: refs have some hundred, and 64 KiB at most.
const VERSION_MAX: u64 = 1 << 20;

/// What an object of a key is, which decides how it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyUse {
    /// It never changes.
    Object,
    /// It is changed by swaps. A removal is one of its versions.
    Ref,
    /// It is changed by swaps, and its name is its own: once removed, it is never created again, and nothing of it
    /// stays.
    UniqueRef,
}

/// A store whose refs are numbered versions.
pub struct NumberedRefStore {
    inner: Arc<dyn ObjectStore>,
    /// What the object of a key, or an object in a folder, is.
    classify: fn(&str) -> KeyUse,
    /// The last version of refs that were read or written here. Whether it still is the last, a swap finds out.
    known: Mutex<HashMap<ObjectKey, RefVersion>>,
}

/// How a swap whose version was stored has ended.
enum SwapEnd {
    /// The version followed the expected one.
    Done,
    /// Its number was free because newer versions had replaced the expected one.
    Overtaken,
}

impl NumberedRefStore {
    /// Keeps the refs of `inner` as numbered versions.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>) -> Self {
        Self::with_refs(inner, classify_key)
    }

    /// As [`Self::new`], where other keys than those of a volume are refs. `classify` gets keys and folders.
    #[must_use]
    pub fn with_refs(inner: Arc<dyn ObjectStore>, classify: fn(&str) -> KeyUse) -> Self {
        Self { inner, classify, known: Mutex::default() }
    }

    fn is_ref(&self, key: &str) -> bool {
        (self.classify)(key) != KeyUse::Object
    }

    fn is_unique_ref(&self, key: &ObjectKey) -> bool {
        (self.classify)(key.as_str()) == KeyUse::UniqueRef
    }

    /// The numbers of a ref's versions, ascending.
    fn list_versions(&self, key: &ObjectKey) -> Result<Vec<u64>, StoreError> {
        let keys = self.inner.list_keys(key.as_str())?;
        Ok(keys.iter().filter(|found| found.folder() == key.as_str()).filter_map(parse_number).collect())
    }

    /// The last version of a ref, which may be the one that removed the ref.
    fn read_last_version(&self, key: &ObjectKey, max: u64) -> Result<Option<RefVersion>, StoreError> {
        // Versions are removed only after newer ones exist. So a retry sees a newer state, unless the ref changes all
        // the time.
        for _ in 0..READ_TRIES {
            let Some(number) = self.list_versions(key)?.pop() else { return Ok(None) };
            match self.inner.get_object(&version_key(key, number)?, max.saturating_add(OVERHEAD)) {
                Ok(bytes) => return Ok(Some(RefVersion { number, bytes })),
                // It was removed since it was listed: there are newer ones.
                Err(StoreError::NotFound { .. }) => {}
                Err(StoreError::TooLarge { place, size, .. }) => {
                    // Callers know the size of the ref, not that of the version around it.
                    let size = size.saturating_sub(OVERHEAD);
                    return Err(StoreError::TooLarge { place, key: key.to_string(), size, max });
                }
                Err(error) => return Err(error),
            }
        }
        Err(self.busy_error(key, "read"))
    }

    fn swap_version(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        // Taken out, not copied: if the swap fails, what was remembered is outdated.
        let known = self.known.lock().remove(key).filter(|known| known.payload() == expected);
        // One that is not known is most likely new.
        if let (None, None, Some(new)) = (&known, expected, new)
            && self.is_unique_ref(key)
            && self.store_version(key, None, Some(new))?
        {
            return Ok(());
        }
        let current = match known {
            Some(known) => Some(known),
            None => self.read_last_version(key, VERSION_MAX)?,
        };
        let payload = current.as_ref().and_then(RefVersion::payload);
        if payload != expected {
            return Err(self.changed_error(key));
        }
        // The ref is absent, and is to be absent.
        if payload.is_none() && new.is_none() {
            return Ok(());
        }
        if self.store_version(key, current, new)? { Ok(()) } else { Err(self.changed_error(key)) }
    }

    /// Stores the version after `current`. Returns false if another writer has stored it.
    fn store_version(
        &self,
        key: &ObjectKey,
        current: Option<RefVersion>,
        new: Option<&[u8]>,
    ) -> Result<bool, StoreError> {
        let expected = current.as_ref().map(|current| current.number);
        let next = RefVersion::following(current.as_ref(), new).map_err(|source| StoreError::Io {
            place: self.describe_location(),
            key: key.to_string(),
            action: "change",
            source,
        })?;
        let object = version_key(key, next.number)?;
        match self.inner.put_object(&object, &next.bytes) {
            Ok(()) => {}
            // Another writer created this number first, so its swap is the one that counts.
            Err(StoreError::Exists { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        // Listed after the creation: an older number can be free because its version was removed, and then newer
        // versions are in this listing.
        let versions = self.list_versions(key)?;
        match self.judge_swap(key, &next, expected, &versions)? {
            SwapEnd::Done => {}
            SwapEnd::Overtaken => {
                // Nobody reads it, since newer ones are there.
                self.inner.delete_object(&object)?;
                return Ok(false);
            }
        }
        let highest = versions.last().copied().unwrap_or(next.number);
        // The name of a removed session is never used again. So nobody can expect a version of it, and none has to
        // stay.
        let is_gone = new.is_none() && self.is_unique_ref(key) && highest == next.number;
        // Some old versions stay, so that a swap that was delayed finds its predecessor, or its absence proves that
        // it came too late.
        let first_kept = if is_gone { u64::MAX } else { highest.saturating_sub(KEPT) };
        self.remove_versions(key, versions.iter().copied().filter(|number| *number < first_kept));
        if !is_gone {
            self.remember(key, next);
        }
        Ok(true)
    }

    /// Whether a version that was stored followed the expected one. `versions` were listed afterwards.
    fn judge_swap(
        &self,
        key: &ObjectKey,
        stored: &RefVersion,
        expected: Option<u64>,
        versions: &[u64],
    ) -> Result<SwapEnd, StoreError> {
        // The stored number counts even if the listing lacks it.
        let highest = versions.last().copied().unwrap_or_default().max(stored.number);
        let later = highest - stored.number;
        if later < KEPT {
            // Its predecessor is not removed yet, unless the stored version came too late.
            let is_next = expected.is_none_or(|expected| versions.contains(&expected));
            return Ok(if is_next { SwapEnd::Done } else { SwapEnd::Overtaken });
        }
        // Many versions came after: they have the tag of the stored one if they descend from it.
        let last = self.read_last_version(key, VERSION_MAX)?.ok_or_else(|| self.changed_error(key))?;
        let later = last.number.saturating_sub(stored.number);
        match usize::try_from(later).ok().filter(|later| *later < TAGS) {
            Some(later) if last.tag(later) == stored.tag(0) => Ok(SwapEnd::Done),
            Some(_) => Ok(SwapEnd::Overtaken),
            // More changes came after it than a version has tags. Whether this swap was one of them cannot be told
            // any more.
            None => Err(self.busy_error(key, "change")),
        }
    }

    /// Removes versions, the lowest first, so that a reader that finds one version also finds its successors. What
    /// cannot be removed now is removed after a later swap.
    fn remove_versions(&self, key: &ObjectKey, numbers: impl Iterator<Item = u64>) {
        for number in numbers {
            let removed = version_key(key, number).and_then(|version| self.inner.delete_object(&version));
            if let Err(error) = removed {
                tracing::debug!(%key, number, %error, "an old version of a ref is not removed");
                return;
            }
        }
    }

    fn remember(&self, key: &ObjectKey, version: RefVersion) {
        let mut known = self.known.lock();
        // Rarely more refs than that are in use. Each that is forgotten costs one listing.
        if known.len() >= KNOWN_MAX && !known.contains_key(key) {
            known.clear();
        }
        known.insert(key.clone(), version);
    }

    fn changed_error(&self, key: &ObjectKey) -> StoreError {
        StoreError::Changed { place: self.describe_location(), key: key.to_string() }
    }

    fn missing_error(&self, key: &ObjectKey) -> StoreError {
        StoreError::NotFound { place: self.describe_location(), key: key.to_string() }
    }

    fn busy_error(&self, key: &ObjectKey, action: &'static str) -> StoreError {
        StoreError::Service {
            place: self.describe_location(),
            key: key.to_string(),
            action,
            kind: ErrorKind::Io,
            message: "others change it all the time; try again".to_owned(),
        }
    }
}

impl ObjectStore for NumberedRefStore {
    fn describe_location(&self) -> String {
        self.inner.describe_location()
    }

    fn inner_store(&self) -> Option<&dyn ObjectStore> {
        Some(&*self.inner)
    }

    fn numbers_refs(&self) -> bool {
        true
    }

    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        if !self.is_ref(key.as_str()) {
            return self.inner.get_object(key, max);
        }
        let last = self.read_last_version(key, max)?.ok_or_else(|| self.missing_error(key))?;
        let payload = last.payload().map(<[u8]>::to_vec).ok_or_else(|| self.missing_error(key))?;
        self.remember(key, last);
        Ok(payload)
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.get_range(key, offset, len)
    }

    fn get_range_up_to(&self, key: &ObjectKey, offset: u64, max: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.get_range_up_to(key, offset, max)
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        if !self.is_ref(key.as_str()) {
            return self.inner.object_size(key);
        }
        Ok(self.get_object(key, VERSION_MAX)?.len() as u64)
    }

    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        if !self.is_ref(key.as_str()) {
            return self.inner.put_object(key, bytes);
        }
        match self.swap_version(key, None, Some(bytes)) {
            Err(StoreError::Changed { place, key }) => Err(StoreError::Exists { place, key }),
            swapped => swapped,
        }
    }

    fn put_objects(&self, objects: &[(ObjectKey, &[u8])]) -> Result<(), StoreError> {
        // The inner store puts the objects behind one barrier. A ref needs its own protocol, so all are put one by
        // one, in the same order.
        if objects.iter().any(|(key, _)| self.is_ref(key.as_str())) {
            return objects.iter().try_for_each(|(key, bytes)| self.put_object(key, bytes));
        }
        self.inner.put_objects(objects)
    }

    fn swap_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        if !self.is_ref(key.as_str()) {
            return self.inner.swap_ref(key, expected, new);
        }
        self.swap_version(key, expected, new)
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        let mut found: Vec<ObjectInfo> = Vec::new();
        // Sorted by key, so that the versions of a ref follow one another, the highest last.
        for info in self.inner.list_objects(folder)? {
            if !self.is_ref(info.key.as_str()) {
                found.push(info);
                continue;
            }
            let is_version = parse_number(&info.key).is_some();
            let Some(key) =
                ObjectKey::new(info.key.folder()).ok().filter(|key| is_version && self.is_ref(key.as_str()))
            else {
                continue;
            };
            // The listed folder is itself a ref, so its versions are no objects of the caller.
            if key.as_str() == folder.trim_end_matches('/') {
                continue;
            }
            found.pop_if(|last| last.key == key);
            found.push(ObjectInfo { key, ..info });
        }
        found.retain_mut(|info| {
            let is_ref = self.is_ref(info.key.as_str());
            // A removed ref has no bytes behind its tags. Its size shows that without a read.
            let is_removed = is_ref && info.size == REMOVED_LEN;
            if is_ref {
                info.size = info.size.saturating_sub(OVERHEAD);
            }
            !is_removed
        });
        // Without their numbers, some sort differently: 'a/1' comes after 'a-b/1', and 'a' before 'a-b'.
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    fn list_keys(&self, folder: &str) -> Result<Vec<ObjectKey>, StoreError> {
        // The size of a version shows whether it removed the ref.
        if folder.is_empty() || self.is_ref(folder) {
            return Ok(self.list_objects(folder)?.into_iter().map(|info| info.key).collect());
        }
        self.inner.list_keys(folder)
    }

    fn select_objects(&self, folder: &str, is_wanted: KeyFilter) -> Result<ObjectSelection, StoreError> {
        // Only where there are no refs, whose versions have other keys than the refs themselves.
        if !folder.is_empty() && !self.is_ref(folder) {
            return self.inner.select_objects(folder, is_wanted);
        }
        let mut selection = ObjectSelection::default();
        for info in self.list_objects(folder)? {
            selection.add_object(info, is_wanted);
        }
        Ok(selection)
    }

    fn holds_objects(&self) -> Result<bool, StoreError> {
        self.inner.holds_objects()
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        if !self.is_ref(key.as_str()) {
            return self.inner.delete_object(key);
        }
        loop {
            // A deletion is about the version that is there, whatever was remembered.
            self.known.lock().remove(key);
            let last = match self.read_last_version(key, VERSION_MAX) {
                Ok(Some(last)) if last.payload().is_some() => last,
                Ok(_) => return Ok(()),
                // The content does not matter, only the number.
                Err(StoreError::TooLarge { .. }) => match self.list_versions(key)?.pop() {
                    Some(number) => RefVersion { number, bytes: Vec::new() },
                    None => return Ok(()),
                },
                Err(error) => return Err(error),
            };
            // If another writer created the next number first, its version is the one to be removed.
            if self.store_version(key, Some(last), None)? {
                return Ok(());
            }
        }
    }
}

/// What the object of a volume's key, or an object in a folder of a volume, is.
pub(super) fn classify_key(key: &str) -> KeyUse {
    match key.split('/').next() {
        Some("refs" | "store-check" | "log-heads") => KeyUse::Ref,
        Some("sessions") => KeyUse::UniqueRef,
        Some(_) | None => KeyUse::Object,
    }
}

fn version_key(key: &ObjectKey, number: u64) -> Result<ObjectKey, StoreError> {
    ObjectKey::new(format!("{key}/{number:016x}"))
}

#[cfg(test)]
mod tests;
