//! Reads that are begun before anybody asks for them: a command that knows what it is going to read waits for all of it
//! at once.
//!
//! Invariant: each answer is given once, only for a few seconds, and not after this process wrote what it is about. What
//! could not be read is asked for again. Deliberately absent: packs, which `blocks` reads.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vellum_host::fork_safe::{Condvar, Mutex};

use super::{
    KeyFilter, ObjectInfo, ObjectKey, ObjectSelection, ObjectStore, ObjectVersion, RequestPurpose,
    VersionedObject, map_requests,
};
use crate::error::StoreError;
use crate::index::{INDEX_FOLDER, is_index_key};

/// How old an answer may be: a secret that takes longer to try is rare, and then the store is asked again.
const AGE_MAX: Duration = Duration::from_secs(5);
/// Longest object that is read early, bytes: a larger one is not worth having in memory before it is wanted.
const OBJECT_MAX: u64 = 1 << 20;

/// Most objects of an index that are read early: with what they hold in memory, some MiB.
const INDEX_OBJECTS_MAX: usize = 16;

/// What is read early.
#[derive(Debug, Clone)]
pub enum EarlyRead {
    /// An object.
    Object(ObjectKey),
    /// A folder.
    Folder(EarlyFolder),
}

/// The listing of a folder, and objects in it.
#[derive(Debug, Clone, Copy)]
pub struct EarlyFolder {
    /// The folder, as whoever needs its listing names it.
    pub folder: &'static str,
    /// Which objects whoever needs it wants, or more of them.
    pub is_wanted: KeyFilter,
    /// Most objects that are read, too: of more, none is.
    pub objects_max: usize,
}

impl EarlyRead {
    /// The index, if it consists of a few objects.
    #[must_use]
    pub fn of_index() -> Self {
        let is_wanted = is_index_key;
        Self::Folder(EarlyFolder { folder: INDEX_FOLDER, is_wanted, objects_max: INDEX_OBJECTS_MAX })
    }
}

/// A store of which some reads are under way already.
pub struct EarlyReads {
    shared: Arc<EarlyAnswers>,
}

struct EarlyAnswers {
    inner: Arc<dyn ObjectStore>,
    state: Mutex<AnswerState>,
    arrived: Condvar,
}

#[derive(Default)]
struct AnswerState {
    objects: HashMap<ObjectKey, EarlyAnswer<Option<Vec<u8>>>>,
    folders: HashMap<String, EarlyAnswer<ObjectSelection>>,
}

struct EarlyAnswer<T> {
    begun: Instant,
    /// None while it is under way.
    value: Option<T>,
}

impl<T> EarlyAnswer<T> {
    fn begin() -> Self {
        Self { begun: Instant::now(), value: None }
    }
}

impl EarlyReads {
    /// Begins reads of a store where waiting for answers dominates; another one is returned as it is.
    #[must_use]
    pub fn begin(inner: Arc<dyn ObjectStore>, reads: Vec<EarlyRead>) -> Arc<dyn ObjectStore> {
        if !inner.is_remote() {
            return inner;
        }
        let shared = Arc::new(EarlyAnswers { inner, state: Mutex::default(), arrived: Condvar::new() });
        shared.begin_reads(reads);
        Arc::new(Self { shared })
    }
}

impl EarlyAnswers {
    fn begin_reads(self: &Arc<Self>, reads: Vec<EarlyRead>) {
        let purpose = RequestPurpose::current();
        for read in reads {
            // Before its thread runs: whoever asks from now on waits for it, and does not send the same request.
            self.expect_answer(&read);
            let reader = Arc::clone(self);
            let begun = read.clone();
            // Not joined: who needs the answer waits for it, and who does not must not.
            let spawned = std::thread::Builder::new().name("vellum-early".into()).spawn(move || {
                purpose.set_for_thread();
                reader.carry_out(&begun);
            });
            if spawned.is_err() {
                // Without a thread it is read when somebody asks for it.
                self.forget_answer(&read);
            }
        }
    }

    fn expect_answer(&self, read: &EarlyRead) {
        let mut state = self.state.lock();
        match read {
            EarlyRead::Object(key) => drop(state.objects.insert(key.clone(), EarlyAnswer::begin())),
            EarlyRead::Folder(EarlyFolder { folder, .. }) => {
                state.folders.insert((*folder).to_owned(), EarlyAnswer::begin());
            }
        }
    }

    fn forget_answer(&self, read: &EarlyRead) {
        let mut state = self.state.lock();
        match read {
            EarlyRead::Object(key) => drop(state.objects.remove(key)),
            EarlyRead::Folder(EarlyFolder { folder, .. }) => drop(state.folders.remove(*folder)),
        }
        drop(state);
        self.arrived.notify_all();
    }

    fn carry_out(&self, read: &EarlyRead) {
        match read {
            EarlyRead::Object(key) => self.read_object(key),
            EarlyRead::Folder(wanted) => match self.inner.select_objects(wanted.folder, wanted.is_wanted) {
                Ok(found) => self.read_selected(wanted, found),
                Err(_) => self.forget_answer(read),
            },
        }
    }

    /// Gives a listing, and reads the objects in it.
    fn read_selected(&self, wanted: &EarlyFolder, found: ObjectSelection) {
        let small = found.objects.iter().filter(|info| info.size <= OBJECT_MAX);
        let small: Vec<ObjectKey> = small.map(|info| info.key.clone()).collect();
        let keys = if small.len() <= wanted.objects_max { small } else { Vec::new() };
        let mut state = self.state.lock();
        // Something in it was written meanwhile: an object may be read before that has arrived.
        let Some(answer) = state.folders.get_mut(wanted.folder) else { return };
        answer.value = Some(found);
        // Together with the listing: who has it asks for the objects at once.
        for key in &keys {
            state.objects.insert(key.clone(), EarlyAnswer::begin());
        }
        drop(state);
        self.arrived.notify_all();
        map_requests(&*self.inner, &keys, |key| self.read_object(key));
    }

    fn read_object(&self, key: &ObjectKey) {
        let value = match self.inner.get_object(key, OBJECT_MAX) {
            Ok(bytes) => Some(Some(bytes)),
            Err(error) if error.is_not_found() => Some(None),
            // Whoever asks for it learns why.
            Err(_) => None,
        };
        let mut state = self.state.lock();
        match value {
            // Unless it was written meanwhile, and is not expected any more.
            Some(value) => {
                if let Some(answer) = state.objects.get_mut(key) {
                    answer.value = Some(value);
                }
            }
            None => drop(state.objects.remove(key)),
        }
        drop(state);
        self.arrived.notify_all();
    }

    /// Takes an answer, and waits for it if it is under way.
    fn take_answer<T>(
        &self,
        find: impl Fn(&mut AnswerState) -> Option<&mut EarlyAnswer<T>>,
        remove: impl Fn(&mut AnswerState),
    ) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            // After a wait it may be gone: the read failed, or the object was written. Then the store is asked.
            let answer = find(&mut state)?;
            if let Some(value) = answer.value.take() {
                let is_fresh = answer.begun.elapsed() <= AGE_MAX;
                // Taken, and not kept: who asks once more wants what is there then.
                remove(&mut state);
                return is_fresh.then_some(value);
            }
            // This ends, since every request does, and whoever takes an answer away wakes up those who wait.
            self.arrived.wait(&mut state);
        }
    }

    fn take_listing(&self, folder: &str) -> Option<ObjectSelection> {
        self.take_answer(|state| state.folders.get_mut(folder), |state| drop(state.folders.remove(folder)))
    }

    /// This process writes an object: what was read of it counts no more.
    fn note_write(&self, key: &ObjectKey) {
        let mut state = self.state.lock();
        state.objects.remove(key);
        // A folder whose name only begins in the same way is dropped, too, which costs one more listing.
        state.folders.retain(|folder, _| !key.as_str().starts_with(folder.as_str()));
        drop(state);
        self.arrived.notify_all();
    }
}

impl ObjectStore for EarlyReads {
    fn describe_location(&self) -> String {
        self.shared.inner.describe_location()
    }

    fn inner_store(&self) -> Option<&dyn ObjectStore> {
        Some(&*self.shared.inner)
    }

    fn expect_reads(&self, reads: Vec<EarlyRead>) {
        self.shared.begin_reads(reads);
    }

    fn numbers_refs(&self) -> bool {
        self.shared.inner.numbers_refs()
    }

    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        let early = self
            .shared
            .take_answer(|state| state.objects.get_mut(key), |state| drop(state.objects.remove(key)));
        match early {
            Some(Some(bytes)) if bytes.len() as u64 <= max => Ok(bytes),
            Some(None) => Err(StoreError::NotFound { place: self.describe_location(), key: key.to_string() }),
            Some(Some(_)) | None => self.shared.inner.get_object(key, max),
        }
    }

    fn get_object_if_changed(
        &self,
        key: &ObjectKey,
        max: u64,
        known: Option<&ObjectVersion>,
    ) -> Result<Option<VersionedObject>, StoreError> {
        self.shared.inner.get_object_if_changed(key, max, known)
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        self.shared.inner.get_range(key, offset, len)
    }

    fn get_range_up_to(&self, key: &ObjectKey, offset: u64, max: u64) -> Result<Vec<u8>, StoreError> {
        self.shared.inner.get_range_up_to(key, offset, max)
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        self.shared.inner.object_size(key)
    }

    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        // Before the write: a read that is under way must not leave an answer from before it for whoever asks after it.
        self.shared.note_write(key);
        self.shared.inner.put_object(key, bytes)
    }

    fn put_objects(&self, objects: &[(ObjectKey, &[u8])]) -> Result<(), StoreError> {
        objects.iter().for_each(|(key, _)| self.shared.note_write(key));
        self.shared.inner.put_objects(objects)
    }

    fn swap_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        self.shared.note_write(key);
        self.shared.inner.swap_ref(key, expected, new)
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        // A selection that left something out is not the whole listing.
        let early = self.shared.take_listing(folder).filter(|found| found.others.count == 0);
        early.map_or_else(|| self.shared.inner.list_objects(folder), |found| Ok(found.objects))
    }

    fn list_keys(&self, folder: &str) -> Result<Vec<ObjectKey>, StoreError> {
        match self.shared.take_listing(folder).filter(|found| found.others.count == 0) {
            Some(found) => Ok(found.objects.into_iter().map(|info| info.key).collect()),
            None => self.shared.inner.list_keys(folder),
        }
    }

    fn select_objects(&self, folder: &str, is_wanted: KeyFilter) -> Result<ObjectSelection, StoreError> {
        match self.shared.take_listing(folder) {
            Some(found) => {
                let mut selection = ObjectSelection { objects: Vec::new(), others: found.others };
                found.objects.into_iter().for_each(|info| selection.add_object(info, is_wanted));
                Ok(selection)
            }
            None => self.shared.inner.select_objects(folder, is_wanted),
        }
    }

    fn holds_objects(&self) -> Result<bool, StoreError> {
        self.shared.inner.holds_objects()
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.shared.note_write(key);
        self.shared.inner.delete_object(key)
    }
}

#[cfg(test)]
mod tests;
