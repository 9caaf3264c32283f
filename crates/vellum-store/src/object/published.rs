//! Stores that a web server publishes: they are only read, and list their objects in objects.
//!
//! Invariant: what is read is the state that the listing describes: refs are those in the listing, and an object that is
//! not listed does not exist, whatever the server answers for its key. Nothing is ever written. Who writes the listing is
//! in `publishing`.

mod kept;
mod listing;
mod publishing;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vellum_types::ErrorKind;

use self::kept::KeptListings;
pub(crate) use self::listing::fuzz_listing_decoder;
use self::listing::{ListedObjects, PublishedObject, decode_listing};
pub(crate) use self::publishing::replace_listed;
pub use self::publishing::{PublishedObjects, publish_store, unlist_objects};
use super::{ObjectInfo, ObjectKey, ObjectStore, ObjectVersion, StoreGuarantees};
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
/// For how long a listing is used without asking again, as long as it has what is looked for.
const USED_FOR: Duration = Duration::from_secs(30);

/// A store behind a web server.
pub struct PublishedStore {
    inner: Arc<dyn ObjectStore>,
    main: Mutex<Option<KnownListing>>,
    packs: Mutex<Option<KnownListing>>,
    /// What other processes of this user have read of them; none if the user has no folder for that.
    kept: Option<KeptListings>,
}

/// A listing that was read.
#[derive(Clone)]
struct KnownListing {
    objects: Arc<ListedObjects>,
    /// By which the server is asked whether there is another one.
    version: Option<ObjectVersion>,
    read: Instant,
}

impl PublishedStore {
    /// Reads the listings in `inner`, which is not asked to list anything. They are kept in the folder `cache` for the next
    /// process, if there is one.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>, cache: Option<&Path>) -> Self {
        let kept = cache.map(KeptListings::in_folder);
        Self { inner, main: Mutex::default(), packs: Mutex::default(), kept }
    }

    /// What an earlier process read of a listing. The server is asked whether there is another one before anything is taken
    /// from it that can change.
    fn load_kept(&self, name: &'static str) -> Option<KnownListing> {
        // Dated back, so that it counts as outdated: it spares the transfer, if the server says that it is unchanged.
        let read = Instant::now().checked_sub(USED_FOR)?;
        let (version, objects) = self.kept.as_ref()?.load_listing(name)?;
        Some(KnownListing { objects: Arc::new(objects), version: Some(version), read })
    }

    /// The objects of a listing, as they were up to `age` ago.
    fn read_listing(&self, name: &'static str, age: Duration) -> Result<Arc<ListedObjects>, StoreError> {
        let known = if name == LISTING { &self.main } else { &self.packs };
        // Held during the request, so that several threads that need it send one.
        let mut known = known.lock();
        if known.is_none() {
            *known = self.load_kept(name);
        }
        if let Some(known) = known.as_ref().filter(|known| known.read.elapsed() < age) {
            return Ok(known.objects.clone());
        }
        let key = ObjectKey::from_trusted(name.to_owned());
        let fail = |message: &str| self.make_error("read", name, ErrorKind::NotFound, message);
        let version = known.as_ref().and_then(|known| known.version.as_ref());
        let read = match self.inner.get_object_if_changed(&key, LISTING_MAX, version) {
            Err(StoreError::NotFound { .. }) => {
                return Err(fail(
                    "there is no listing: 'vellum publish', where the store is written to, makes one",
                ));
            }
            read => read?,
        };
        let read = match (read, known.as_mut()) {
            (Some(read), _) => read,
            // The server says that it is unchanged.
            (None, Some(known)) => {
                known.read = Instant::now();
                return Ok(known.objects.clone());
            }
            (None, None) => {
                return Err(fail("the server answers that nothing changed, and was not asked that"));
            }
        };
        let objects = decode_listing(&read.bytes).ok_or_else(|| {
            fail(
                "the server answers with something that is not the listing of a store: is the address right?",
            )
        })?;
        let objects = Arc::new(objects);
        // Only what was decoded is kept: the page of an error, kept with its tag, would be found again and again.
        if let (Some(kept), Some(version)) = (&self.kept, &read.version) {
            kept.keep_listing(name, version, &read.bytes);
        }
        *known = Some(KnownListing { objects: objects.clone(), version: read.version, read: Instant::now() });
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

    /// The error of an object that the server does not have. The listings are read again, once: if the object is not in
    /// them any more, it is gone, and whoever looks for its content finds in the index where that is now.
    fn explain_missing(&self, key: &ObjectKey, error: StoreError) -> StoreError {
        if !error.is_not_found() {
            return error;
        }
        let read_again = || {
            // Also for a pack: the index to be looked at next is in the other listing.
            let main = self.read_listing(LISTING, Duration::ZERO)?;
            let is_pack = is_in_folder(key, PACKS_FOLDER);
            let listed = if is_pack { self.read_listing(PACKS_LISTING, Duration::ZERO)? } else { main };
            Ok(listed.contains_key(key))
        };
        match read_again() {
            Ok(false) => error,
            Ok(true) => {
                let message = "the server does not have it: the listing is older than the store, and 'vellum publish', \
                               where the store is written to, makes a new one";
                self.make_error("read", key.as_str(), ErrorKind::Conflict, message)
            }
            Err(error) => error,
        }
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
        // The listing of packs, which is long, is not looked at: what the server does not have is explained
        // by it later.
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
                version: None,
            }));
        }
        // Each listing is sorted, but packs belong between the other folders.
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    fn holds_objects(&self) -> Result<bool, StoreError> {
        Ok(!self.read_listing(LISTING, USED_FOR)?.is_empty())
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        Err(self.refuse("delete", key.as_str()))
    }

    fn expect_new_objects(&self) {
        for known in [&self.main, &self.packs] {
            let mut known = known.lock();
            let outdated = Instant::now().checked_sub(USED_FOR);
            match (known.as_mut(), outdated) {
                (Some(known), Some(outdated)) => known.read = outdated,
                // The machine was started just now: its clock has no earlier time.
                (Some(_), None) => *known = None,
                (None, _) => {}
            }
        }
    }

    fn probe_guarantees(&self) -> Result<StoreGuarantees, StoreError> {
        Err(self.refuse("set up", "a volume"))
    }
}

/// Whether a key is in a folder, or has its name.
fn is_in_folder(key: &ObjectKey, folder: &str) -> bool {
    key.as_str().strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
