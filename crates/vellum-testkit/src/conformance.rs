//! A suite of the requirements on every object store.
//!
//! Each function panics with the requirement that was violated. The store must be empty at the start.

use vellum_store::{ObjectKey, ObjectStore, StoreError};

/// Threads that compete for one ref.
const RACERS: u64 = 4;
/// Increments by each thread.
const ROUNDS: u64 = 10;

/// More bytes than any object of the suite has.
const MAX: u64 = 4 << 20;

/// Runs the whole suite.
///
/// # Panics
/// Panics if the store violates a requirement.
pub fn check_object_store(store: &dyn ObjectStore) {
    // In this order: each check goes on with what those before it have stored.
    check_put_and_get(store);
    check_sizes(store);
    check_ranges(store);
    check_put_objects(store);
    check_listings(store);
    check_refs(store);
    check_races(store);
    check_deletions(store);
}

fn object_key(text: &str) -> ObjectKey {
    ObjectKey::new(text).expect("a valid key")
}

fn check_put_and_get(store: &dyn ObjectStore) {
    let name = object_key("packs/ab/one");
    assert!(
        matches!(store.get_object(&name, MAX), Err(StoreError::NotFound { .. })),
        "an absent object is not found"
    );
    assert!(
        matches!(store.object_size(&name), Err(StoreError::NotFound { .. })),
        "an absent object has no size"
    );
    store.put_object(&name, b"content").expect("put");
    assert_eq!(store.get_object(&name, MAX).expect("get"), b"content", "what was put is got");
    assert_eq!(store.object_size(&name).expect("size"), 7);
    assert!(
        matches!(store.put_object(&name, b"other"), Err(StoreError::Exists { .. })),
        "objects are not replaced"
    );
    assert_eq!(store.get_object(&name, MAX).expect("get"), b"content", "a refused put changes nothing");
    store.put_object(&object_key("empty"), b"").expect("put of nothing");
    assert_eq!(
        store.get_object(&object_key("empty"), MAX).expect("get"),
        b"",
        "an empty object is an object"
    );
    // Longer than the pieces in which remote stores are read.
    // The period divides no power of 2, so that pieces in a wrong order show.
    let large: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    store.put_object(&object_key("packs/cd/large"), &large).expect("put");
    assert_eq!(store.get_object(&object_key("packs/cd/large"), MAX).expect("get"), large);
}

fn check_sizes(store: &dyn ObjectStore) {
    let name = object_key("packs/ab/one");
    let large = object_key("packs/cd/large");
    assert_eq!(store.get_object(&name, 7).expect("get"), b"content", "an object may be as large as it may");
    assert_eq!(store.get_object(&object_key("empty"), 0).expect("get"), b"");
    for (name, max, len) in
        [(&name, 6, 7), (&name, 0, 7), (&large, 2_999_999, 3_000_000), (&large, 1, 3_000_000)]
    {
        match store.get_object(name, max) {
            Err(error @ StoreError::TooLarge { .. }) => {
                let text = error.to_string();
                assert!(text.contains(name.as_str()), "the error names the object: {text}");
                assert!(text.contains(&format!("{len} bytes")), "and its size: {text}");
                assert!(text.contains(&format!("{max} at most")), "and what was allowed: {text}");
            }
            other => {
                panic!("an object of {len} bytes where {max} are allowed: {:?}", other.map(|got| got.len()))
            }
        }
    }
    let absent = store.get_object(&object_key("packs/ab/none"), 0);
    assert!(matches!(absent, Err(StoreError::NotFound { .. })), "an absent object is not too large");
}

fn check_ranges(store: &dyn ObjectStore) {
    let name = object_key("packs/ab/one");
    assert_eq!(store.get_range(&name, 2, 3).expect("range"), b"nte");
    assert_eq!(store.get_range(&name, 0, 7).expect("range"), b"content");
    // HTTP answers a range that begins within an object and ends behind it with fewer bytes and without an
    // error, so that a backend has to notice. The largest offset shows whether a sum overflows.
    for (offset, len) in [(5, 3), (7, 1), (100, 1), (u64::MAX, 1), (0, 8)] {
        assert!(
            store.get_range(&name, offset, len).is_err(),
            "a range past the end is an error: {offset}+{len}"
        );
    }
    let absent = store.get_range(&object_key("packs/ab/none"), 0, 1);
    assert!(matches!(absent, Err(StoreError::NotFound { .. })), "a range of an absent object is not found");
}

fn check_put_objects(store: &dyn ObjectStore) {
    let objects =
        [(object_key("index/1"), &b"a"[..]), (object_key("packs/ef/2"), b"b"), (object_key("index/3"), b"c")];
    store.put_objects(&objects).expect("put_all");
    for (name, bytes) in &objects {
        assert_eq!(store.get_object(name, MAX).expect("get"), *bytes);
    }
    // The second of three exists already: the first is stored, the last, in another folder, must not be.
    let again = [
        (object_key("packs/ef/4"), &b"d"[..]),
        (object_key("index/1"), b"x"),
        (object_key("snapshots/5"), b"e"),
    ];
    assert!(
        matches!(store.put_objects(&again), Err(StoreError::Exists { .. })),
        "none of several is replaced"
    );
    assert_eq!(store.get_object(&object_key("index/1"), MAX).expect("get"), b"a");
    assert!(store.get_object(&object_key("snapshots/5"), MAX).is_err(), "nothing is put after a failure");
    // The listings that are checked next count the objects.
    store.delete_object(&object_key("packs/ef/4")).expect("delete");
    store.put_objects(&[]).expect("put of none");
}

fn check_listings(store: &dyn ObjectStore) {
    let names = |folder: &str| -> Vec<String> {
        let listed = store.list_objects(folder).expect("list");
        assert!(listed.is_sorted_by(|a, b| a.key < b.key), "listings are sorted");
        let keys: Vec<_> = listed.into_iter().map(|info| info.key).collect();
        assert_eq!(store.list_keys(folder).expect("list_names"), keys, "both listings agree");
        keys.iter().map(ToString::to_string).collect()
    };
    assert_eq!(names("packs"), ["packs/ab/one", "packs/cd/large", "packs/ef/2"]);
    assert_eq!(names("packs/"), names("packs"), "a closing slash changes nothing");
    assert_eq!(names("packs/ab"), ["packs/ab/one"]);
    assert_eq!(names("index"), ["index/1", "index/3"]);
    assert_eq!(names("nothing"), [""; 0], "a missing folder is empty");
    // Services list by prefixes of keys, by which this would find `packs`.
    assert_eq!(names("pack"), [""; 0], "a folder is whole components");
    assert_eq!(names("").len(), 6, "the root holds everything");
    let sizes: Vec<_> = store.list_objects("packs").expect("list").iter().map(|info| info.size).collect();
    assert_eq!(sizes, [7, 3_000_000, 1]);
    assert!(store.list_objects("../").is_err(), "a listing stays in the store");
}

fn check_refs(store: &dyn ObjectStore) {
    let name = object_key("refs/heads/main");
    let swap = |expected: Option<&[u8]>, new: Option<&[u8]>| store.swap_ref(&name, expected, new);
    let changed = |answer| matches!(answer, Err(StoreError::Changed { .. }));
    assert!(changed(swap(Some(b"1"), Some(b"2"))), "an absent ref is not what was expected");
    swap(None, Some(b"1")).expect("creation");
    assert!(changed(swap(None, Some(b"2"))), "a present ref is not absent");
    assert!(changed(swap(Some(b"0"), Some(b"2"))), "another value is not what was expected");
    assert!(changed(swap(Some(b""), Some(b"2"))), "nor is a longer one");
    assert!(changed(swap(Some(b"12"), Some(b"2"))), "nor a shorter one");
    assert_eq!(store.get_object(&name, MAX).expect("get"), b"1");
    swap(Some(b"1"), Some(b"22")).expect("change");
    assert_eq!(store.get_object(&name, MAX).expect("get"), b"22");
    assert!(changed(swap(Some(b"1"), None)), "a deletion compares, too");
    swap(Some(b"22"), None).expect("deletion");
    assert!(matches!(store.get_object(&name, MAX), Err(StoreError::NotFound { .. })));
    swap(None, None).expect("nothing stays nothing");
}

fn check_races(store: &dyn ObjectStore) {
    let name = object_key("refs/heads/race");
    store.swap_ref(&name, None, Some(b"0")).expect("creation");
    // A lost update would show as a smaller number at the end, whatever the order of the threads was.
    let increment = || loop {
        let old = store.get_object(&name, MAX).expect("a ref is there at every moment");
        let number: u64 = String::from_utf8_lossy(&old).parse().expect("a whole value");
        match store.swap_ref(&name, Some(&old), Some((number + 1).to_string().as_bytes())) {
            Ok(()) => break,
            // Another thread was faster. The loop begins with the value that it stored.
            Err(StoreError::Changed { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..RACERS {
            scope.spawn(|| (0..ROUNDS).for_each(|_| increment()));
        }
    });
    let end = store.get_object(&name, MAX).expect("get");
    assert_eq!(end, (RACERS * ROUNDS).to_string().into_bytes(), "no update is lost");
    let contest = object_key("index/contest");
    // All of them put the same bytes, so that only the results tell who has won.
    let won = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..RACERS).map(|i| (i, scope.spawn(|| store.put_object(&contest, b"x").is_ok()))).collect();
        threads.into_iter().filter_map(|(_, thread)| thread.join().ok().filter(|won| *won)).count()
    });
    assert_eq!(won, 1, "of several puts of one key exactly one succeeds");
}

fn check_deletions(store: &dyn ObjectStore) {
    let name = object_key("packs/ab/one");
    store.delete_object(&name).expect("delete");
    assert!(
        matches!(store.get_object(&name, MAX), Err(StoreError::NotFound { .. })),
        "a deleted object is gone"
    );
    let range = store.get_range(&name, 0, 1);
    assert!(matches!(range, Err(StoreError::NotFound { .. })), "and not readable in pieces");
    // Whoever repeats a deletion after a reply was lost must not fail.
    store.delete_object(&name).expect("deleting what is not there");
    assert!(store.list_objects("packs/ab").expect("list").is_empty());
}
