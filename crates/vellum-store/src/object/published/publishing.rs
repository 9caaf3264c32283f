//! Writing the listing of a store that a web server publishes.
//!
//! Invariant: what the listing names is in the store, as long as nobody lists it while another one deletes: whoever deletes
//! something that readers look for takes it out of the listing before. A store that nobody published gets no listing.

use vellum_types::{ErrorKind, LookupResult};

use super::listing::{ListedObjects, PublishedObject, decode_listing, encode_listing};
use super::{LISTING, LISTING_MAX, PACKS_LISTING, REFS_FOLDER, is_in_folder};
use crate::error::StoreError;
use crate::object::{ObjectKey, ObjectStore};
use crate::pack::PACKS_FOLDER;

/// The folder of sessions, which come and go, and concern writers only.
const SESSIONS_FOLDER: &str = "sessions";
/// The folders of shared logs, which concern machines that mount a worktree to write in it.
const LOG_FOLDERS: [&str; 2] = ["live", "log-heads"];
/// Longest ref, bytes, with what surrounds a numbered version.
const REF_MAX: u64 = 80 << 10;
/// How often a listing is made anew because somebody else wrote one meanwhile, a count.
const TRIES: usize = 20;

/// What [`publish_store`] listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedObjects {
    /// Objects that are not packs, a count.
    pub objects: u64,
    /// Packs, a count.
    pub packs: u64,
}

/// Writes the listings of a store, so that it can be read through a web server. `store` is as [`super::open_store`] opens
/// it: refs that are numbered versions are listed as these.
pub fn publish_store(store: &dyn ObjectStore) -> Result<PublishedObjects, StoreError> {
    publish_without(find_listed_store(store), &|_| false)
}

/// Lists a store anew, without objects that are about to be deleted, if it is published: readers that miss one of them then
/// find in the listing that it is gone, and look for its content elsewhere.
pub fn unlist_objects(
    store: &dyn ObjectStore,
    is_going: &dyn Fn(&ObjectKey) -> bool,
) -> Result<(), StoreError> {
    let store = find_listed_store(store);
    if read_listing_bytes(store, LISTING)?.is_none() {
        return Ok(());
    }
    accept_unwritable(publish_without(store, is_going).map(drop))
}

/// Lists objects of the index in place of those that they replace, which are about to be deleted, if the store is
/// published. Everything else stays listed as it was.
pub(crate) fn replace_listed(
    store: &dyn ObjectStore,
    going: &[ObjectKey],
    coming: &[ObjectKey],
) -> Result<(), StoreError> {
    let store = find_listed_store(store);
    let replaced = write_listing(store, LISTING, |old| {
        // What is no listing is not made one here: 'vellum publish' does, and says so if it cannot.
        let Some(mut listed) = old.and_then(decode_listing) else { return Ok(None) };
        if !going.iter().any(|key| listed.contains_key(key)) {
            return Ok(None);
        }
        listed.retain(|key, _| !going.contains(key));
        for key in coming {
            listed.insert(key.clone(), PublishedObject { size: store.object_size(key)?, content: None });
        }
        Ok(Some(listed))
    });
    accept_unwritable(replaced.map(drop))
}

/// The store as it is opened, without its mode: listings have the numbered versions of refs one by one.
fn find_listed_store(store: &dyn ObjectStore) -> &dyn ObjectStore {
    let mut found = store;
    let mut next = Some(store);
    while let Some(layer) = next {
        next = layer.inner_store();
        if let (true, Some(inner)) = (layer.numbers_refs(), next) {
            found = inner;
        }
    }
    found
}

/// Over SFTP nothing can be replaced: the listing stays as it is until it is written on the machine itself.
fn accept_unwritable(written: Result<(), StoreError>) -> Result<(), StoreError> {
    written.or_else(|error| if error.kind() == ErrorKind::Unsupported { Ok(()) } else { Err(error) })
}

fn publish_without(
    store: &dyn ObjectStore,
    is_going: &dyn Fn(&ObjectKey) -> bool,
) -> Result<PublishedObjects, StoreError> {
    let stays = |listed: Result<ListedObjects, StoreError>| {
        let mut listed = listed?;
        listed.retain(|key, _| !is_going(key));
        Ok(Some(listed))
    };
    // Before the other: a reader must find every pack that the listed index names.
    let packs = write_listing(store, PACKS_LISTING, |_| stays(list_packs(store)))?;
    let objects = write_listing(store, LISTING, |_| stays(list_all_but_packs(store)))?;
    Ok(PublishedObjects { objects, packs })
}

/// Lists and writes until nobody else wrote a listing meanwhile. Each listing was then begun after the one that it
/// replaces was complete, so that the last of several writers lists what all of them stored. `list` gets the bytes of
/// that one; if it returns no listing, nothing is written.
fn write_listing(
    store: &dyn ObjectStore,
    name: &str,
    list: impl Fn(Option<&[u8]>) -> Result<Option<ListedObjects>, StoreError>,
) -> Result<u64, StoreError> {
    let key = ObjectKey::from_trusted(name.to_owned());
    let mut tries = TRIES;
    loop {
        let old = read_listing_bytes(store, name)?;
        let Some(listed) = list(old.as_deref())? else { return Ok(0) };
        let new = encode_listing(&listed);
        let count = listed.len() as u64;
        // An equal listing is not written again: readers would have to fetch it once more, since it would
        // have another tag.
        if old.as_deref() == Some(&*new) {
            return Ok(count);
        }
        match store.swap_ref(&key, old.as_deref(), Some(&new)) {
            Err(StoreError::Changed { .. }) if tries > 1 => tries -= 1,
            swapped => return swapped.map(|()| count),
        }
    }
}

fn read_listing_bytes(store: &dyn ObjectStore, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
    store.get_object(&ObjectKey::from_trusted(name.to_owned()), LISTING_MAX).none_if_missing()
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
        if !left_out.iter().chain(&LOG_FOLDERS).any(|folder| is_in_folder(&info.key, folder)) {
            found.insert(info.key, PublishedObject { size: info.size, content: None });
        }
    }
    Ok(found)
}
