//! Tries what a server keeps of its promises.
//!
//! Invariant: only objects in a folder of the probe's own are touched, and they are removed however it ends. Several
//! handles of the store race, as several machines would.

use std::sync::Barrier;
use std::time::Duration;

use vellum_types::ErrorKind;

use super::{ObjectKey, ObjectStore, StoreGuarantees};
use crate::error::StoreError;

/// The folder of all probes.
pub(super) const FOLDER: &str = "probe";
/// Handles that race.
const RACERS: usize = 4;
/// Races of each kind.
const ROUNDS: u32 = 3;
/// What a probe left behind longer ago than this is removed by the next one.
const ABANDONED: Duration = Duration::from_hours(24);
/// Largest object of a probe, bytes.
const MAX: u64 = 64;

/// Opens another handle of the same store, which knows nothing of its refs.
type OpenHandle<'a> = &'a dyn Fn() -> Result<Box<dyn ObjectStore>, StoreError>;

/// Tries the promises of a store.
pub(super) fn probe_store(
    store: &dyn ObjectStore,
    open_handle: OpenHandle<'_>,
) -> Result<StoreGuarantees, StoreError> {
    let folder = format!("{FOLDER}/{:016x}", getrandom::u64().unwrap_or_default());
    let probe = StoreProbe { store, open_handle, folder };
    // The objects are removed before the outcome is looked at, whatever it is.
    let found = probe.try_promises();
    probe.remove_objects();
    found
}

/// Tries what a single writer relies on: that objects are found as they were written.
pub(super) fn probe_contents(store: &dyn ObjectStore) -> Result<StoreGuarantees, StoreError> {
    let folder = format!("{FOLDER}/{:016x}", getrandom::u64().unwrap_or_default());
    // Races need a second handle. A single writer has no rival, so there are none.
    let no_handle = || Err(StoreError::Key(FOLDER.to_owned()));
    let probe = StoreProbe { store, open_handle: &no_handle, folder };
    let mut found = StoreGuarantees::ALL;
    let mut try_contents = || -> Result<(), StoreError> {
        found.creates = probe.try_creation()?;
        found.ranges = probe.try_ranges()?;
        found.lists = probe.try_listings()?;
        Ok(())
    };
    let tried = try_contents();
    probe.remove_objects();
    tried.map(|()| found)
}

/// One probe.
struct StoreProbe<'a> {
    store: &'a dyn ObjectStore,
    open_handle: OpenHandle<'a>,
    folder: String,
}

impl StoreProbe<'_> {
    fn key(&self, name: &str) -> Result<ObjectKey, StoreError> {
        ObjectKey::new(format!("{}/{name}", self.folder))
    }

    fn try_promises(&self) -> Result<StoreGuarantees, StoreError> {
        let mut found = StoreGuarantees::ALL;
        found.creates = self.try_creation()?;
        // Each of the other trials begins with a conditional creation.
        if !found.creates {
            return Ok(StoreGuarantees { replaces: false, deletes: false, ..found });
        }
        found.ranges = self.try_ranges()?;
        found.lists = self.try_listings()?;
        for round in 0..ROUNDS {
            found.creates &= self.race_creation(round)?;
        }
        found.replaces = self.try_replacement()?;
        if !found.replaces {
            return Ok(StoreGuarantees { deletes: false, ..found });
        }
        found.deletes = self.try_conditional_deletion()?;
        for round in 0..ROUNDS {
            found.replaces &= self.race_replacement(round)?;
        }
        Ok(found)
    }

    /// An object can be created once.
    fn try_creation(&self) -> Result<bool, StoreError> {
        let key = self.key("object")?;
        match self.store.put_object(&key, b"0123456789") {
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(false),
            put => put?,
        }
        // A service that ignores the condition carries out the first creation as well. Only the second one shows
        // whether it does.
        match self.store.put_object(&key, b"another") {
            Err(StoreError::Exists { .. }) => Ok(self.store.get_object(&key, MAX)? == b"0123456789"),
            Err(error) => Err(error),
            Ok(()) => Ok(false),
        }
    }

    fn try_ranges(&self) -> Result<bool, StoreError> {
        let key = self.key("object")?;
        let beyond = |offset, len| match self.store.get_range(&key, offset, len) {
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(true),
            Err(error) => Err(error),
            Ok(_) => Ok(false),
        };
        Ok(self.store.get_range(&key, 2, 3)? == b"234" && beyond(8, 4)? && beyond(10, 1)?)
    }

    fn try_listings(&self) -> Result<bool, StoreError> {
        let keys = [self.key("listed-1")?, self.key("listed-2")?];
        for key in &keys {
            self.store.put_object(key, b"x")?;
        }
        // A service whose listings lag still shows the deleted object, or not yet the other one.
        self.store.delete_object(&keys[0])?;
        let listed = self.store.list_keys(&self.folder)?;
        Ok(!listed.contains(&keys[0]) && listed.contains(&keys[1]))
    }

    /// A handle whose knowledge of a ref is out of date cannot replace it.
    fn try_replacement(&self) -> Result<bool, StoreError> {
        let key = self.key("replaced")?;
        let other = self.prepare_changed_ref(&key)?;
        is_refused(other.swap_ref(&key, Some(b"1"), Some(b"3")))
            .and_then(|refused| Ok(refused && self.store.get_object(&key, MAX)? == b"2"))
    }

    /// Nor delete it.
    fn try_conditional_deletion(&self) -> Result<bool, StoreError> {
        let key = self.key("deleted")?;
        let other = self.prepare_changed_ref(&key)?;
        match is_refused(other.swap_ref(&key, Some(b"1"), None)) {
            Ok(refused) => Ok(refused && self.store.list_keys(&self.folder)?.contains(&key)),
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes a ref that has changed since the handle that is returned has read it.
    fn prepare_changed_ref(&self, key: &ObjectKey) -> Result<Box<dyn ObjectStore>, StoreError> {
        let other = (self.open_handle)()?;
        self.store.swap_ref(key, None, Some(b"1"))?;
        // This handle now remembers the ref as it is. The change below makes what it remembers outdated.
        other.get_object(key, MAX)?;
        match self.store.swap_ref(key, Some(b"1"), Some(b"2")) {
            // The service cannot replace at all: the other handle will be refused, too, and nothing has changed.
            Err(error) if error.kind() != ErrorKind::Unsupported => Err(error),
            Err(_) | Ok(()) => Ok(other),
        }
    }

    /// Of several who create the same object at once, one succeeds, and its bytes are there.
    fn race_creation(&self, round: u32) -> Result<bool, StoreError> {
        let key = self.key(&format!("created-{round}"))?;
        let won = self.race(|store, own| match store.put_object(&key, own) {
            Ok(()) => Ok(true),
            Err(StoreError::Exists { .. }) => Ok(false),
            Err(error) => Err(error),
        })?;
        self.has_one_winner(&key, &won)
    }

    /// Of several who replace the same ref at once, one succeeds, and its bytes are there.
    fn race_replacement(&self, round: u32) -> Result<bool, StoreError> {
        let key = self.key(&format!("raced-{round}"))?;
        self.store.swap_ref(&key, None, Some(b"start"))?;
        let won = self.race(|store, own| match store.swap_ref(&key, Some(b"start"), Some(own)) {
            Ok(()) => Ok(true),
            Err(StoreError::Changed { .. }) => Ok(false),
            Err(error) => Err(error),
        })?;
        self.has_one_winner(&key, &won)
    }

    fn has_one_winner(&self, key: &ObjectKey, won: &[bool]) -> Result<bool, StoreError> {
        let mut winners = (0..won.len()).filter(|&racer| won[racer]);
        let (Some(winner), None) = (winners.next(), winners.next()) else { return Ok(false) };
        Ok(self.store.get_object(key, MAX)? == racer_bytes(winner))
    }

    /// Lets several handles do the same at once; who succeeded, in order.
    fn race(
        &self,
        act: impl Fn(&dyn ObjectStore, &[u8]) -> Result<bool, StoreError> + Sync,
    ) -> Result<Vec<bool>, StoreError> {
        let handles = (0..RACERS).map(|_| (self.open_handle)()).collect::<Result<Vec<_>, _>>()?;
        let start = Barrier::new(RACERS);
        std::thread::scope(|scope| {
            let racing: Vec<_> = handles
                .iter()
                .enumerate()
                .map(|(racer, handle)| {
                    let start = &start;
                    let act = &act;
                    scope.spawn(move || {
                        // All begin at once. Otherwise the first racer would be done before the last one is started.
                        start.wait();
                        act(&**handle, &racer_bytes(racer))
                    })
                })
                .collect();
            // A racer that panicked has not won.
            racing.into_iter().map(|racer| racer.join().unwrap_or(Ok(false))).collect()
        })
    }

    /// Removes the probe's objects, and those of probes that were abandoned. What cannot be removed now is removed by a
    /// later probe.
    fn remove_objects(&self) {
        let Ok(objects) = self.store.list_objects(FOLDER) else { return };
        // Ages are relative to the newest object, since this machine's clock may differ from the server's.
        let newest = objects.iter().filter_map(|object| object.modified).max();
        for object in objects {
            let age = newest.zip(object.modified).and_then(|(newest, then)| newest.duration_since(then).ok());
            if object.key.folder() == self.folder || age.is_some_and(|age| age > ABANDONED) {
                let _ = self.store.delete_object(&object.key);
            }
        }
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
