//! The refs of a service as they were listed last, kept in the state directory: a list of very many refs costs the pages of
//! the listing, and a request for each ref that is another now.
//!
//! Invariant: what is kept is sealed, as the service has it, and is opened each time like what was just read. It is used only
//! while the listing shows the very tag under which it was read, and while nothing newer was seen. A file that is missing,
//! damaged or old costs requests.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use vellum_store::{ObjectInfo, ObjectKey, ObjectVersion, map_requests};
use vellum_types::{DecodeError, FieldReader, FieldWriter};

use super::{OBJECT_MAX, RefKind, RefStore, StoredRef};
use crate::error::Result;

pub(crate) const KNOWN_REFS_FILE: &str = "known-refs";
/// First bytes of the file; the last is its version.
const MAGIC: &[u8; 8] = b"VLMREFS\x01";
/// Longest key, and longest tag, bytes: services have tags of some ten.
const NAME_MAX: usize = 1024;
/// Longest list of refs that is always written down when one of them had to be read: its file is small.
const SMALL_LIST_LEN: usize = 256;
/// A longer one is written anew if more refs than this many, and than this part of all, had to be read: it may be large, and
/// reading few again costs less.
const UNKNOWN_MAX: usize = 16;
const UNKNOWN_PART: usize = 64;

/// Refs by key. None: the file was not read yet.
pub(super) type KnownRefs = Mutex<Option<HashMap<ObjectKey, KnownRef>>>;

/// A ref as a service had it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KnownRef {
    /// What the service calls that version of it.
    tag: String,
    /// Its object.
    stored: Vec<u8>,
}

impl RefStore {
    /// The refs of a listing, each as [`Self::read_refs`] gives it.
    pub(super) fn read_listed_refs(
        &self,
        kind: RefKind,
        listed: &[ObjectInfo],
    ) -> Result<Vec<Result<Option<StoredRef>>>> {
        // To read a small file costs no more than to look up a copy of it.
        if !self.objects.is_remote() {
            let keys: Vec<_> = listed.iter().map(|info| info.key.clone()).collect();
            return self.read_refs(kind, &keys);
        }
        // A machine that has not heard of a rotation would accept what a revoked device sealed with the old key.
        self.epochs.refresh_keys_if_due()?;
        let mut found: Vec<_> = listed.iter().map(|info| self.find_known_ref(kind, info)).collect();
        let unknown: Vec<_> =
            listed.iter().zip(&found).filter(|(_, found)| found.is_none()).map(|(info, _)| info).collect();
        let read = map_requests(&*self.objects, &unknown, |info| self.fetch_tagged_ref(kind, info));
        let count = unknown.len();
        let mut newly_known = Vec::new();
        let mut read = read.into_iter();
        for (info, place) in listed.iter().zip(&mut found).filter(|(_, found)| found.is_none()) {
            let Some((tag, outcome)) = read.next() else { break };
            if let (Some(tag), Ok(Some(found))) = (tag, &outcome) {
                newly_known.push((info.key.clone(), KnownRef { tag, stored: found.stored.clone() }));
            }
            *place = Some(outcome);
        }
        let found: Vec<_> = found.into_iter().flatten().collect();
        self.record_found_counters(listed.iter().map(|info| &info.key), &found)?;
        self.remember_refs(newly_known);
        let is_small = count > 0 && listed.len() <= SMALL_LIST_LEN;
        if is_small || (count > UNKNOWN_MAX && count > listed.len() / UNKNOWN_PART) {
            self.keep_known_refs(kind, listed);
        }
        Ok(found)
    }

    /// The refs of a kind that are known without a request, by name: of a directory those that are there, of a service those
    /// that were there when they were listed last. What cannot be read is left out.
    pub fn list_known_refs(&self, kind: RefKind) -> Result<Vec<StoredRef>> {
        if !self.objects.is_remote() {
            return Ok(self.list_readable_refs(kind)?.0);
        }
        let folder = format!("refs/{}/", kind.folder_name());
        let mut known = self.known.lock();
        let known = known.get_or_insert_with(|| self.load_known_refs());
        let known = known.iter().filter(|(key, _)| key.as_str().starts_with(&folder));
        let read = known.filter_map(|(key, known)| self.decode_ref(kind, key, known.stored.clone()).ok());
        let mut refs: Vec<_> = read.filter(|found| !found.is_removed_ref()).collect();
        refs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(refs)
    }

    /// A listed ref that is known in the listed version.
    fn find_known_ref(&self, kind: RefKind, info: &ObjectInfo) -> Option<Result<Option<StoredRef>>> {
        // A time is no sure name of a version: two changes within its resolution have the same one.
        let Some(ObjectVersion::Tag(tag)) = &info.version else { return None };
        let stored = {
            let mut known = self.known.lock();
            let known = known.get_or_insert_with(|| self.load_known_refs());
            known.get(&info.key).filter(|known| known.tag == *tag)?.stored.clone()
        };
        // Whatever is wrong with it is found out, and reported, by reading the object.
        let found = self.decode_ref(kind, &info.key, stored).ok()?;
        // A store that was rolled back shows the old tag again. What was kept for it must not hide that.
        (found.counter >= self.last_seen_counter(&info.key)).then_some(Ok(Some(found)))
    }

    /// Reads a ref, and what the service calls this version of it.
    fn fetch_tagged_ref(
        &self,
        kind: RefKind,
        info: &ObjectInfo,
    ) -> (Option<String>, Result<Option<StoredRef>>) {
        let seen = self.last_seen_counter(&info.key);
        if info.version.is_some()
            && let Ok(Some(object)) = self.objects.get_object_if_changed(&info.key, OBJECT_MAX, None)
            && let Ok(found) = self.decode_ref(kind, &info.key, object.bytes)
            && found.counter >= seen
        {
            let tag = match object.version {
                Some(ObjectVersion::Tag(tag)) => Some(tag),
                // Without a tag it cannot be recognised in a later listing, so it is not worth keeping.
                Some(ObjectVersion::Modified(_)) | None => None,
            };
            return (tag, Ok(Some(found)));
        }
        // The usual way, for whatever could not be read like this: it knows what it means.
        (None, self.fetch_ref(kind, &info.key))
    }

    fn load_known_refs(&self) -> HashMap<ObjectKey, KnownRef> {
        // The file only has copies of what the store has: if it cannot be read, the refs are read from the store.
        let bytes = self.state.read_file(KNOWN_REFS_FILE).ok().flatten().unwrap_or_default();
        decode_known_refs(&bytes).unwrap_or_default()
    }

    /// For this process, which may list them again.
    fn remember_refs(&self, new: Vec<(ObjectKey, KnownRef)>) {
        self.known.lock().get_or_insert_with(|| self.load_known_refs()).extend(new);
    }

    /// Writes down what is known, without the refs of this kind that are not listed any more.
    fn keep_known_refs(&self, kind: RefKind, listed: &[ObjectInfo]) {
        let mut known = self.known.lock();
        let known = known.get_or_insert_with(|| self.load_known_refs());
        let present: HashSet<_> = listed.iter().map(|info| &info.key).collect();
        let folder = format!("refs/{}/", kind.folder_name());
        // Only this kind was listed: of the others, nothing is known to be gone.
        known.retain(|key, _| !key.as_str().starts_with(&folder) || present.contains(key));
        // If it cannot be written, the next command reads the refs again.
        let _ = self.state.write_file(KNOWN_REFS_FILE, &encode_known_refs(known));
    }
}

fn encode_known_refs(known: &HashMap<ObjectKey, KnownRef>) -> Vec<u8> {
    let mut writer = FieldWriter::new();
    writer.write_raw(MAGIC);
    for (key, KnownRef { tag, stored }) in known {
        writer.write_bytes(key.as_str().as_bytes()).write_bytes(tag.as_bytes()).write_bytes(stored);
    }
    writer.into_vec()
}

/// For a fuzz target.
pub(crate) fn fuzz_decoder(bytes: &[u8]) {
    if let Ok(known) = decode_known_refs(bytes) {
        assert!(decode_known_refs(&encode_known_refs(&known)).is_ok_and(|again| again == known));
    }
}

/// Refs from the bytes of the file.
fn decode_known_refs(bytes: &[u8]) -> Result<HashMap<ObjectKey, KnownRef>, DecodeError> {
    let mut reader = FieldReader::new(bytes);
    // A file of another version counts as none, like a damaged one: its refs are read again.
    if reader.read_array::<8>()? != *MAGIC {
        return Err(DecodeError::Invalid("beginning of the known refs"));
    }
    let mut known = HashMap::new();
    while reader.remaining() > 0 {
        let key = ObjectKey::new(reader.read_string(NAME_MAX)?)
            .map_err(|_| DecodeError::Invalid("key of a known ref"))?;
        let tag = reader.read_string(NAME_MAX)?.to_owned();
        let stored = reader.read_bytes(OBJECT_MAX as usize)?.to_vec();
        known.insert(key, KnownRef { tag, stored });
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_of_known_refs_is_refused() -> Result<(), vellum_store::StoreError> {
        let mut known = HashMap::new();
        for number in 0..5 {
            let known_ref = KnownRef { tag: format!("\"{number}\""), stored: vec![number; 40] };
            known.insert(ObjectKey::new(format!("refs/tag/{number}"))?, known_ref);
        }
        let bytes = encode_known_refs(&known);
        assert!(decode_known_refs(&bytes).is_ok_and(|found| found == known));
        for len in 0..bytes.len() {
            // A file that ends between two refs is one with fewer of them.
            assert!(decode_known_refs(&bytes[..len]).map_or(0, |found| found.len()) < 5);
        }
        assert!(decode_known_refs(b"VLMREFS\x02").is_err());
        Ok(())
    }
}
