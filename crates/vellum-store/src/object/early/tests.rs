#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::object::MemoryObjectStore;

/// A service that notes what it is asked for.
struct NotedStore {
    inner: MemoryObjectStore,
    requests: Mutex<Vec<String>>,
}

impl NotedStore {
    fn with_objects(objects: &[(&str, &[u8])]) -> Arc<Self> {
        let inner = MemoryObjectStore::new("memory");
        for (key, bytes) in objects {
            inner.put_object(&key_of(key), bytes).unwrap();
        }
        Arc::new(Self { inner, requests: Mutex::default() })
    }

    fn note(&self, request: String) {
        self.requests.lock().push(request);
    }

    /// What it was asked for so far, sorted.
    fn sorted_requests(&self) -> Vec<String> {
        let mut requests = self.requests.lock().clone();
        requests.sort();
        requests
    }
}

impl ObjectStore for NotedStore {
    fn describe_location(&self) -> String {
        self.inner.describe_location()
    }
    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        self.note(format!("get {key}"));
        self.inner.get_object(key, max)
    }
    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.get_range(key, offset, len)
    }
    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        self.inner.object_size(key)
    }
    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        self.inner.put_object(key, bytes)
    }
    fn swap_ref(&self, key: &ObjectKey, old: Option<&[u8]>, new: Option<&[u8]>) -> Result<(), StoreError> {
        self.inner.swap_ref(key, old, new)
    }
    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        self.note(format!("list {folder}"));
        self.inner.list_objects(folder)
    }
    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.inner.delete_object(key)
    }
    fn is_remote(&self) -> bool {
        true
    }
}

fn folder(folder: &'static str, objects_max: usize) -> EarlyRead {
    EarlyRead::Folder(EarlyFolder { folder, is_wanted: |_| true, objects_max })
}

fn key_of(text: &str) -> ObjectKey {
    ObjectKey::new(text).unwrap()
}

#[test]
fn what_was_read_early_is_not_requested_again_and_counts_once() {
    let service = NotedStore::with_objects(&[("keys/a", b"1"), ("keys/b", b"2"), ("store", b"3")]);
    let reads =
        vec![folder("keys/", 2), EarlyRead::Object(key_of("store")), EarlyRead::Object(key_of("missing"))];
    let store = EarlyReads::begin(service.clone(), reads);
    assert_eq!(store.list_keys("keys/").unwrap(), [key_of("keys/a"), key_of("keys/b")]);
    assert_eq!(store.get_object(&key_of("keys/a"), 10).unwrap(), b"1");
    assert_eq!(store.get_object(&key_of("keys/b"), 10).unwrap(), b"2");
    assert_eq!(store.get_object(&key_of("store"), 10).unwrap(), b"3");
    assert!(store.get_object(&key_of("missing"), 10).unwrap_err().is_not_found());
    let once = ["get keys/a", "get keys/b", "get missing", "get store", "list keys/"];
    assert_eq!(service.sorted_requests(), once);
    // Whoever asks again wants to know what is there now.
    assert_eq!(store.get_object(&key_of("store"), 10).unwrap(), b"3");
    assert_eq!(store.list_objects("keys/").unwrap().len(), 2);
    assert_eq!(service.sorted_requests().len(), once.len() + 2);
}

#[test]
fn what_was_written_since_is_read_again() {
    let service = NotedStore::with_objects(&[("refs/a", b"1")]);
    let reads = vec![folder("refs/", 2), EarlyRead::Object(key_of("other"))];
    let store = EarlyReads::begin(service, reads);
    store.swap_ref(&key_of("refs/a"), Some(b"1"), Some(b"2")).unwrap();
    store.put_object(&key_of("refs/b"), b"3").unwrap();
    store.put_object(&key_of("other"), b"4").unwrap();
    assert_eq!(store.get_object(&key_of("refs/a"), 10).unwrap(), b"2");
    assert_eq!(store.get_object(&key_of("other"), 10).unwrap(), b"4");
    assert_eq!(store.list_keys("refs/").unwrap().len(), 2);
}

#[test]
fn many_objects_of_a_folder_and_large_ones_are_left_to_who_wants_them() {
    let large = vec![0; usize::try_from(OBJECT_MAX).unwrap() + 1];
    let service = NotedStore::with_objects(&[
        ("many/a", b"1"),
        ("many/b", b"2"),
        ("many/c", b"3"),
        ("few/large", &large),
        ("few/small", b"4"),
    ]);
    let reads = vec![folder("many/", 2), folder("few/", 2)];
    let store = EarlyReads::begin(service.clone(), reads);
    assert_eq!(store.list_keys("many/").unwrap().len(), 3);
    assert_eq!(store.list_keys("few/").unwrap().len(), 2);
    assert_eq!(store.get_object(&key_of("few/small"), 10).unwrap(), b"4");
    assert_eq!(service.sorted_requests(), ["get few/small", "list few/", "list many/"]);
    assert_eq!(store.get_object(&key_of("few/large"), 2 * OBJECT_MAX).unwrap(), large);
}

#[test]
fn a_write_while_a_read_is_under_way_wins() {
    let service = NotedStore::with_objects(&[("refs/a", b"1")]);
    let shared = EarlyAnswers { inner: service.clone(), state: Mutex::default(), arrived: Condvar::new() };
    let read = folder("refs/", 2);
    shared.expect_answer(&read);
    shared.note_write(&key_of("refs/a"));
    // Its answer comes now.
    shared.carry_out(&read);
    assert!(shared.take_listing("refs/").is_none());
    assert_eq!(service.sorted_requests(), ["list refs/"]);
}

#[test]
fn a_selection_is_no_whole_listing() {
    let service = NotedStore::with_objects(&[("keys/a", b"1"), ("keys/b", b"2")]);
    let is_wanted: KeyFilter = |key| key.name() == "a";
    let some = EarlyFolder { folder: "keys/", is_wanted, objects_max: 0 };
    let store = EarlyReads::begin(service.clone(), vec![EarlyRead::Folder(some)]);
    let selected = store.select_objects("keys/", is_wanted).unwrap();
    assert_eq!((selected.objects.len(), selected.others.count), (1, 1));
    assert_eq!(service.sorted_requests(), ["list keys/"]);
    let store = EarlyReads::begin(service, vec![EarlyRead::Folder(some)]);
    assert_eq!(store.list_keys("keys/").unwrap().len(), 2);
}

#[test]
fn more_reads_are_begun_when_it_is_known_what_they_are() {
    let service = NotedStore::with_objects(&[("refs/a", b"1"), ("store", b"2")]);
    let store = EarlyReads::begin(service.clone(), vec![EarlyRead::Object(key_of("store"))]);
    store.expect_reads(vec![EarlyRead::Object(key_of("refs/a")), EarlyRead::Object(key_of("refs/b"))]);
    assert_eq!(store.get_object(&key_of("refs/a"), 10).unwrap(), b"1");
    assert!(store.get_object(&key_of("refs/b"), 10).unwrap_err().is_not_found());
    assert_eq!(store.get_object(&key_of("store"), 10).unwrap(), b"2");
    assert_eq!(service.sorted_requests(), ["get refs/a", "get refs/b", "get store"]);
    // A store without early answers has nothing to begin.
    service.expect_reads(vec![EarlyRead::Object(key_of("refs/a"))]);
    assert_eq!(service.sorted_requests().len(), 3);
}
