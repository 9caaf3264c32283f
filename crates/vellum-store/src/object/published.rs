//! Stores that a web server publishes: they are only read, and list their objects in objects.
//!
//! Invariant: what is read is the state that the listing describes: refs are those in the listing, and an object that is
//! not listed does not exist, whatever the server answers for its key. Nothing is ever written. Deliberately absent: who
//! writes the listing and when; see [`publish_store`].

mod listing;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vellum_types::ErrorKind;

pub(crate) use self::listing::fuzz_listing_decoder;
use self::listing::{ListedObjects, PublishedObject, decode_listing, encode_listing};
use super::{ObjectInfo, ObjectKey, ObjectStore, StoreGuarantees};
use crate::error::StoreError;
use crate::pack::PACKS_FOLDER;

/// The listing of everything but packs.
const LISTING: &str = "listing";
/// The listing of packs: it is much longer than the other one, and needed to verify a store only.
const PACKS_LISTING: &str = "listing-packs";
/// Longest listing, bytes: some three million packs.
const LISTING_MAX: u64 = 256 << 20;
/// The folder of refs, whose bytes stand in the listing.
const REFS_FOLDER: &str = "refs";
/// The folder of sessions, which come and go, and concern writers only.
const SESSIONS_FOLDER: &str = "sessions";
/// Longest ref, bytes, with what surrounds a numbered version.
const REF_MAX: u64 = 80 << 10;
/// For how long a listing is used without asking again: one command lists several folders.
const USED_FOR: Duration = Duration::from_secs(5);
/// How often a listing is made anew because somebody else wrote one meanwhile, a count.
const TRIES: usize = 20;

/// A store behind a web server.
pub struct PublishedStore {
    inner: Arc<dyn ObjectStore>,
    main: Mutex<Option<KnownListing>>,
    packs: Mutex<Option<KnownListing>>,
}

/// A listing that was read.
#[derive(Clone)]
struct KnownListing {
    objects: Arc<ListedObjects>,
    read: Instant,
}

/// What [`publish_store`] listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedObjects {
    /// Objects that are not packs, a count.
    pub objects: u64,
    /// Packs, a count.
    pub packs: u64,
}

impl PublishedStore {
    /// Reads the listings in `inner`, which is not asked to list anything.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>) -> Self {
        Self { inner, main: Mutex::default(), packs: Mutex::default() }
    }

    /// The objects of a listing, as they were up to `age` ago.
    fn read_listing(&self, name: &'static str, age: Duration) -> Result<Arc<ListedObjects>, StoreError> {
        let known = if name == LISTING { &self.main } else { &self.packs };
        // Held during the request, so that several threads that need it send one.
        let mut known = known.lock();
        if let Some(known) = known.as_ref().filter(|known| known.read.elapsed() < age) {
            return Ok(known.objects.clone());
        }
        let key = ObjectKey::from_trusted(name.to_owned());
        let fail = |message: &str| self.make_error("read", name, ErrorKind::NotFound, message);
        let bytes = match self.inner.get_object(&key, LISTING_MAX) {
            Err(StoreError::NotFound { .. }) => {
                return Err(fail(
                    "there is no listing: 'vellum publish', where the store is written to, makes one",
                ));
            }
            bytes => bytes?,
        };
        let objects = decode_listing(&bytes).ok_or_else(|| {
            fail(
                "the server answers with something that is not the listing of a store: is the address right?",
            )
        })?;
        let objects = Arc::new(objects);
        *known = Some(KnownListing { objects: objects.clone(), read: Instant::now() });
        Ok(objects)
    }

    /// What the listing says of an object, read again if it says nothing.
    fn find_listed(&self, key: &ObjectKey) -> Result<PublishedObject, StoreError> {
        // Refs change. Other objects do not, so that one that was listed once still is what it was.
        let first_age = if is_in_folder(key, REFS_FOLDER) { USED_FOR } else { Duration::MAX };
        for age in [first_age, USED_FOR] {
            if let Some(object) = self.read_listing(LISTING, age)?.get(key) {
                return Ok(object.clone());
            }
        }
        Err(StoreError::NotFound { place: self.describe_location(), key: key.to_string() })
    }

    /// The error of an object that is listed, and that the server does not have.
    fn explain_missing(&self, key: &ObjectKey, error: StoreError) -> StoreError {
        if !error.is_not_found() {
            return error;
        }
        let before = self.main.lock().clone();
        let now = match self.read_listing(LISTING, Duration::ZERO) {
            Ok(now) => now,
            Err(error) => return error,
        };
        // The store was published anew meanwhile. Where the object is then, the index says.
        if before.is_none_or(|before| before.objects != now) {
            return error;
        }
        let message = "the server does not have it: the listing is older than the store, and 'vellum publish', where \
                       the store is written to, makes a new one";
        self.make_error("read", key.as_str(), ErrorKind::Conflict, message)
    }

    fn make_error(&self, action: &'static str, key: &str, kind: ErrorKind, message: &str) -> StoreError {
        StoreError::Service {
            place: self.describe_location(),
            key: key.to_owned(),
            action,
            kind,
            message: message.to_owned(),
        }
    }

    fn refuse(&self, action: &'static str, key: &str) -> StoreError {
        self.make_error(action, key, ErrorKind::Unsupported, "stores over http:// and https:// are read only")
    }
}

impl ObjectStore for PublishedStore {
    fn describe_location(&self) -> String {
        self.inner.describe_location()
    }

    fn inner_store(&self) -> Option<&dyn ObjectStore> {
        Some(&*self.inner)
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        if is_in_folder(key, PACKS_FOLDER) {
            return self.inner.get_object(key, max).map_err(|error| self.explain_missing(key, error));
        }
        let PublishedObject { size, content } = self.find_listed(key)?;
        match content {
            Some(_) if size > max => {
                Err(StoreError::TooLarge { place: self.describe_location(), key: key.to_string(), size, max })
            }
            Some(content) => Ok(content),
            None => self.inner.get_object(key, max).map_err(|error| self.explain_missing(key, error)),
        }
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.get_range(key, offset, len).map_err(|error| self.explain_missing(key, error))
    }

    fn get_range_up_to(&self, key: &ObjectKey, offset: u64, max: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.get_range_up_to(key, offset, max).map_err(|error| self.explain_missing(key, error))
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        if is_in_folder(key, PACKS_FOLDER) {
            return self.inner.object_size(key).map_err(|error| self.explain_missing(key, error));
        }
        Ok(self.find_listed(key)?.size)
    }

    fn put_object(&self, key: &ObjectKey, _: &[u8]) -> Result<(), StoreError> {
        Err(self.refuse("write", key.as_str()))
    }

    fn swap_ref(&self, key: &ObjectKey, _: Option<&[u8]>, _: Option<&[u8]>) -> Result<(), StoreError> {
        Err(self.refuse("change", key.as_str()))
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        let folder = super::key::check_folder(folder)?;
        let names: &[&'static str] = match folder.split('/').next() {
            Some("") | None => &[LISTING, PACKS_LISTING],
            Some(PACKS_FOLDER) => &[PACKS_LISTING],
            Some(_) => &[LISTING],
        };
        let mut found = Vec::new();
        for name in names {
            let listed = self.read_listing(name, USED_FOR)?;
            let inside = listed.iter().filter(|(key, _)| folder.is_empty() || is_in_folder(key, folder));
            found.extend(inside.map(|(key, object)| ObjectInfo {
                key: key.clone(),
                size: object.size,
                modified: None,
            }));
        }
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    fn holds_objects(&self) -> Result<bool, StoreError> {
        Ok(!self.read_listing(LISTING, USED_FOR)?.is_empty())
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        Err(self.refuse("delete", key.as_str()))
    }

    fn probe_guarantees(&self) -> Result<StoreGuarantees, StoreError> {
        Err(self.refuse("set up", "a volume"))
    }
}

/// Writes the listings of a store, so that it can be read through a web server. `store` is as [`super::open_store`] opens
/// it: refs that are numbered versions are listed as these.
pub fn publish_store(store: &dyn ObjectStore) -> Result<PublishedObjects, StoreError> {
    // Before the other: a reader must find every pack that the listed index names.
    let packs = write_listing(store, PACKS_LISTING, list_packs)?;
    let objects = write_listing(store, LISTING, list_all_but_packs)?;
    Ok(PublishedObjects { objects, packs })
}

/// Lists and writes until nobody else wrote a listing meanwhile. Each listing was then begun after the one that it
/// replaces was complete, so that the last of several writers lists what all of them stored.
fn write_listing(
    store: &dyn ObjectStore,
    name: &str,
    list: fn(&dyn ObjectStore) -> Result<ListedObjects, StoreError>,
) -> Result<u64, StoreError> {
    let key = ObjectKey::from_trusted(name.to_owned());
    let mut tries = TRIES;
    loop {
        let old = match store.get_object(&key, LISTING_MAX) {
            Ok(old) => Some(old),
            Err(StoreError::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        let listed = list(store)?;
        let new = encode_listing(&listed);
        let count = listed.len() as u64;
        if old.as_deref() == Some(&*new) {
            return Ok(count);
        }
        match store.swap_ref(&key, old.as_deref(), Some(&new)) {
            Err(StoreError::Changed { .. }) if tries > 1 => tries -= 1,
            swapped => return swapped.map(|()| count),
        }
    }
}

fn list_packs(store: &dyn ObjectStore) -> Result<ListedObjects, StoreError> {
    let listed = store.list_objects(PACKS_FOLDER)?;
    Ok(listed
        .into_iter()
        .map(|info| (info.key, PublishedObject { size: info.size, content: None }))
        .collect())
}

fn list_all_but_packs(store: &dyn ObjectStore) -> Result<ListedObjects, StoreError> {
    // Refs come first: what they name was stored before them, and is listed after them.
    let mut found = ListedObjects::new();
    for key in store.list_keys(REFS_FOLDER)? {
        match store.get_object(&key, REF_MAX) {
            Ok(content) => {
                found.insert(key, PublishedObject { size: content.len() as u64, content: Some(content) });
            }
            // It was removed since it was listed.
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    for info in store.list_objects("")? {
        let left_out = [PACKS_FOLDER, REFS_FOLDER, SESSIONS_FOLDER, LISTING, PACKS_LISTING];
        if !left_out.iter().any(|folder| is_in_folder(&info.key, folder)) {
            found.insert(info.key, PublishedObject { size: info.size, content: None });
        }
    }
    Ok(found)
}

/// Whether a key is in a folder, or has its name.
fn is_in_folder(key: &ObjectKey, folder: &str) -> bool {
    key.as_str().strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
