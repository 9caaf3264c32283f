//! Tries what a server keeps of its promises.
//!
//! Invariant: only objects in a folder of the probe's own are touched, and they are removed however it ends. Several
//! requests race, as those of several machines would. One object serves several trials, and requests that do not depend
//! on each other are sent at once: most of the time of a probe is the way to the server.

use std::sync::{Barrier, OnceLock};
use std::time::Duration;

use vellum_types::ErrorKind;

use super::{ObjectInfo, ObjectKey, ObjectStore, StoreGuarantees, join_requests, map_requests};
use crate::error::StoreError;

/// The folder of all probes.
pub(super) const FOLDER: &str = "probe";
/// Handles that race to create an object, a count. One fewer race to replace it: the last one looks at the outcome.
const RACERS: usize = 4;
/// What a probe left behind longer ago than this is removed by the next one.
const ABANDONED: Duration = Duration::from_hours(24);
/// Largest object of a probe, bytes.
const MAX: u64 = 64;

/// Opens another handle of the same store, which knows nothing of its refs.
type OpenHandle<'a> = &'a (dyn Fn() -> Result<Box<dyn ObjectStore>, StoreError> + Sync);

/// Tries the promises of a store.
pub(super) fn probe_store(
    store: &dyn ObjectStore,
    open_handle: OpenHandle<'_>,
) -> Result<StoreGuarantees, StoreError> {
    let probe = StoreProbe::new(store);
    // The objects are removed before the outcome is looked at, whatever it is.
    let found = probe.try_promises(open_handle);
    probe.remove_objects();
    found
}

/// Tries what a single writer relies on: that objects are found as they were written. It has no rival, so there are no
/// races.
pub(super) fn probe_contents(store: &dyn ObjectStore) -> Result<StoreGuarantees, StoreError> {
    let probe = StoreProbe::new(store);
    let found = probe.try_contents();
    probe.remove_objects();
    found
}

/// One probe.
struct StoreProbe<'a> {
    store: &'a dyn ObjectStore,
    folder: String,
    /// What the folder of all probes was found to hold.
    listed: OnceLock<Vec<ObjectInfo>>,
}

/// How a race to create one object ended.
struct CreationRace {
    /// The handles that raced.
    handles: Vec<Box<dyn ObjectStore>>,
    /// The number of the one that succeeded; none if not exactly one did.
    winner: Option<usize>,
}

impl<'a> StoreProbe<'a> {
    fn new(store: &'a dyn ObjectStore) -> Self {
        let folder = format!("{FOLDER}/{:016x}", getrandom::u64().unwrap_or_default());
        Self { store, folder, listed: OnceLock::new() }
    }

    fn key(&self, name: &str) -> Result<ObjectKey, StoreError> {
        ObjectKey::new(format!("{}/{name}", self.folder))
    }

    fn try_promises(&self, open_handle: OpenHandle<'_>) -> Result<StoreGuarantees, StoreError> {
        let none =
            StoreGuarantees { creates: false, replaces: false, deletes: false, ..StoreGuarantees::ALL };
        let key = self.key("raced")?;
        let deleted = self.key("deleted")?;
        let (raced, stored) = join_requests(
            self.store,
            || self.race_creation(open_handle, &key),
            || self.store_and_delete(&deleted),
        );
        let CreationRace { handles, winner } = raced?;
        // Each of the other trials begins with a conditional creation.
        let Some(winner) = winner else { return Ok(none) };
        let [rivals @ .., witness] = handles.as_slice() else { return Ok(none) };
        stored?;
        let created = racer_bytes(winner);
        // From here on, these know the object as it is now. What one of them changes, the others do not learn, as if they
        // were on other machines.
        let mut knowing = vec![self.store];
        knowing.extend(rivals.iter().map(|rival| -> &dyn ObjectStore { &**rival }));
        let read_by_all = || map_requests(self.store, &knowing, |handle| handle.get_object(&key, MAX));
        let (read, (ranges, lists)) = join_requests(self.store, read_by_all, || {
            join_requests(self.store, || self.try_ranges(&key, &created), || self.try_listing(&key, &deleted))
        });
        let found = StoreGuarantees { ranges: ranges?, lists: lists?, ..none };
        for bytes in read {
            if bytes? != created {
                return Ok(found);
            }
        }
        let found = StoreGuarantees { creates: true, ..found };
        // All who lose this race try to replace what they do not know: the condition is tried as well as its atomicity.
        let Some(replaced) = race_replacement(rivals, &key, &created)? else { return Ok(found) };
        if witness.get_object(&key, MAX)? != replaced {
            return Ok(found);
        }
        // A handle whose knowledge is out of date cannot delete the object.
        let deletes = is_refused(self.store.swap_ref(&key, Some(&created), None))?;
        Ok(StoreGuarantees { replaces: true, deletes, ..found })
    }

    fn try_contents(&self) -> Result<StoreGuarantees, StoreError> {
        let key = self.key("object")?;
        let deleted = self.key("deleted")?;
        let content = b"0123456789";
        let creates = match self.store.put_object(&key, content) {
            Err(error) if error.kind() == ErrorKind::Unsupported => false,
            put => {
                put?;
                self.is_creation_refused(&key)? && self.store.get_object(&key, MAX)? == content
            }
        };
        self.store_and_delete(&deleted)?;
        let ranges = self.try_ranges(&key, content)?;
        let lists = self.try_listing(&key, &deleted)?;
        Ok(StoreGuarantees { creates, ranges, lists, ..StoreGuarantees::ALL })
    }

    /// An object can be created once.
    fn is_creation_refused(&self, key: &ObjectKey) -> Result<bool, StoreError> {
        match self.store.put_object(key, b"another") {
            Err(StoreError::Exists { .. }) => Ok(true),
            Err(error) => Err(error),
            Ok(()) => Ok(false),
        }
    }

    fn store_and_delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        match self.store.put_object(key, b"x") {
            // The race finds out the same.
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(()),
            put => {
                put?;
                self.store.delete_object(key)
            }
        }
    }

    /// Ranges are exact: within an object, across its end and beyond it.
    fn try_ranges(&self, key: &ObjectKey, content: &[u8]) -> Result<bool, StoreError> {
        let len = content.len() as u64;
        let is_refused = |offset, len| match self.store.get_range(key, offset, len) {
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(true),
            Err(error) => Err(error),
            Ok(_) => Ok(false),
        };
        let read_within = || self.store.get_range(key, 2, 3);
        let (within, (across, beyond)) = join_requests(self.store, read_within, || {
            join_requests(self.store, || is_refused(len - 2, 4), || is_refused(len, 1))
        });
        Ok(content.get(2..5) == Some(within?.as_slice()) && across? && beyond?)
    }

    /// A listing shows what was stored, and not what was deleted.
    fn try_listing(&self, stored: &ObjectKey, deleted: &ObjectKey) -> Result<bool, StoreError> {
        // Of all probes, so that those that were abandoned are found as well.
        let listed = self.store.list_objects(FOLDER)?;
        let has = |key: &ObjectKey| listed.iter().any(|object| object.key == *key);
        let is_right = has(stored) && !has(deleted);
        // One that is not right cannot say what is to be removed.
        if is_right {
            let _ = self.listed.set(listed);
        }
        Ok(is_right)
    }

    /// Of several who create the same object at once, one succeeds.
    fn race_creation(
        &self,
        open_handle: OpenHandle<'_>,
        key: &ObjectKey,
    ) -> Result<CreationRace, StoreError> {
        // Handles that were opened are connections of their own, wherever one has a single connection.
        let handles = (0..RACERS).map(|_| open_handle()).collect::<Result<Vec<_>, _>>()?;
        let winner = race(RACERS, |racer| {
            match handles.get(racer).map(|handle| handle.put_object(key, &racer_bytes(racer))) {
                Some(Ok(())) => Ok(true),
                Some(Err(StoreError::Exists { .. })) | None => Ok(false),
                // A service that has no conditions: nobody wins.
                Some(Err(error)) if error.kind() == ErrorKind::Unsupported => Ok(false),
                Some(Err(error)) => Err(error),
            }
        })?;
        Ok(CreationRace { handles, winner })
    }

    /// Removes the probe's objects, and those of probes that were abandoned. What cannot be removed now is removed by a
    /// later probe.
    fn remove_objects(&self) {
        let objects = match self.listed.get() {
            Some(listed) => listed.clone(),
            None => self.store.list_objects(FOLDER).unwrap_or_default(),
        };
        // Ages are relative to the newest object, since this machine's clock may differ from the server's.
        let newest = objects.iter().filter_map(|object| object.modified).max();
        let is_removed = |object: &ObjectInfo| {
            let age = newest.zip(object.modified).and_then(|(newest, then)| newest.duration_since(then).ok());
            object.key.folder() == self.folder || age.is_some_and(|age| age > ABANDONED)
        };
        let removed: Vec<ObjectKey> =
            objects.into_iter().filter(is_removed).map(|object| object.key).collect();
        map_requests(self.store, &removed, |key| {
            // The next probe tries again.
            let _ = self.store.delete_object(key);
        });
    }
}

/// Of several who replace the same object at once, one succeeds: what it wrote, or none.
fn race_replacement(
    rivals: &[Box<dyn ObjectStore>],
    key: &ObjectKey,
    created: &[u8],
) -> Result<Option<Vec<u8>>, StoreError> {
    let own = |racer: usize| format!("rival {racer}").into_bytes();
    let replace = |racer: usize| rivals[racer].swap_ref(key, Some(created), Some(&own(racer)));
    let winner = race(rivals.len(), |racer| match replace(racer) {
        Ok(()) => Ok(true),
        Err(StoreError::Changed { .. }) => Ok(false),
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(false),
        Err(error) => Err(error),
    })?;
    Ok(winner.map(own))
}

/// Lets so many act at the same moment, each with its number; returns the one that succeeded, or none if not exactly one
/// did.
fn race(
    racers: usize,
    act: impl Fn(usize) -> Result<bool, StoreError> + Sync,
) -> Result<Option<usize>, StoreError> {
    let start = Barrier::new(racers);
    let run = |racer: usize| {
        // Otherwise the first racer would be done before the last one is started.
        start.wait();
        act(racer)
    };
    let won = std::thread::scope(|scope| {
        let run = &run;
        let racing: Vec<_> = (0..racers).map(|racer| scope.spawn(move || run(racer))).collect();
        // A racer that panicked has not won.
        racing.into_iter().map(|racer| racer.join().unwrap_or(Ok(false))).collect::<Result<Vec<_>, _>>()
    })?;
    let mut winners = (0..racers).filter(|racer| won.get(*racer) == Some(&true));
    match (winners.next(), winners.next()) {
        (winner @ Some(_), None) => Ok(winner),
        (Some(_), Some(_)) | (None, _) => Ok(None),
    }
}

/// What each racer writes.
fn racer_bytes(racer: usize) -> Vec<u8> {
    format!("racer {racer}").into_bytes()
}

/// Whether a swap was refused, as it must be.
fn is_refused(swapped: Result<(), StoreError>) -> Result<bool, StoreError> {
    match swapped {
        Ok(()) => Ok(false),
        Err(StoreError::Changed { .. }) => Ok(true),
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(false),
        Err(error) => Err(error),
    }
}
