//! Swaps that come too late, and what is left behind.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::object::MemoryObjectStore;

fn key(text: &str) -> ObjectKey {
    ObjectKey::new(text).unwrap()
}

fn shared() -> (Arc<MemoryObjectStore>, NumberedRefStore) {
    let inner = Arc::new(MemoryObjectStore::new("memory://numbered"));
    (inner.clone(), NumberedRefStore::new(inner))
}

/// Swaps `count` times, from the number `from` on.
fn count_up(store: &NumberedRefStore, name: &ObjectKey, from: u32, count: u32) {
    for number in from..from + count {
        let old = number.to_string().into_bytes();
        store.swap_ref(name, Some(&old), Some((number + 1).to_string().as_bytes())).unwrap();
    }
}

#[test]
fn a_few_versions_stay() {
    let (inner, store) = shared();
    let name = key("refs/tag/x");
    store.swap_ref(&name, None, Some(b"0")).unwrap();
    count_up(&store, &name, 0, 30);
    let versions = inner.list_keys("refs/tag/x").unwrap();
    assert_eq!(versions.len(), KEPT as usize + 1);
    assert_eq!(versions.last().unwrap().as_str(), "refs/tag/x/000000000000001f");
    assert_eq!(store.list_keys("refs").unwrap(), std::slice::from_ref(&name));
    assert_eq!(store.list_objects("refs/tag/").unwrap()[0].size, 2);
    assert!(store.list_keys("refs/tag/x").unwrap().is_empty(), "a ref is no folder");
}

#[test]
fn a_swap_of_a_version_that_is_long_gone_fails() {
    let (inner, store) = shared();
    let late = NumberedRefStore::new(inner.clone());
    let name = key("refs/tag/x");
    store.swap_ref(&name, None, Some(b"0")).unwrap();
    assert_eq!(late.get_object(&name, 9).unwrap(), b"0");
    for swaps in [1, 7, 8, 9, 10, 63, 64, 100] {
        let from: u32 = String::from_utf8(late.get_object(&name, 9).unwrap()).unwrap().parse().unwrap();
        count_up(&store, &name, from, swaps);
        // Its number is free again after some swaps, so that it is created, and found to be too late.
        let swapped = late.swap_ref(&name, Some(from.to_string().as_bytes()), Some(b"late"));
        assert!(
            matches!(&swapped, Err(StoreError::Changed { .. }))
                || swaps == 100 && swapped.as_ref().is_err_and(|error| error.kind() == ErrorKind::Io),
            "{swaps}: {swapped:?}"
        );
        assert_eq!(store.get_object(&name, 9).unwrap(), (from + swaps).to_string().into_bytes());
    }
}

#[test]
fn a_swap_that_many_others_followed_has_succeeded() {
    let (_, store) = shared();
    let name = key("refs/tag/x");
    store.swap_ref(&name, None, Some(b"0")).unwrap();
    let first = store.read_last_version(&name, 9).unwrap().unwrap();
    for (from, swaps, expected) in [(0, 8, true), (8, 55, true), (63, 1, false)] {
        count_up(&store, &name, from, swaps);
        let versions = store.list_versions(&name).unwrap();
        let judged = store.judge_swap(&name, &first, None, &versions);
        assert_eq!(matches!(judged, Ok(SwapEnd::Done)), expected, "after {} swaps", from + swaps);
    }
    let foreign = RefVersion { bytes: vec![7; 140], ..first };
    let name = key("refs/tag/y");
    store.swap_ref(&name, None, Some(b"0")).unwrap();
    count_up(&store, &name, 0, 10);
    let judged = store.judge_swap(&name, &foreign, None, &store.list_versions(&name).unwrap());
    assert!(matches!(judged, Ok(SwapEnd::Overtaken)));
}

#[test]
fn a_session_that_ended_leaves_nothing_and_stays_ended() {
    let (inner, store) = shared();
    let late = NumberedRefStore::new(inner.clone());
    let name = key("sessions/ab");
    store.put_object(&name, b"1").unwrap();
    assert!(matches!(store.put_object(&name, b"2"), Err(StoreError::Exists { .. })));
    assert_eq!(late.get_object(&name, 9).unwrap(), b"1");
    store.swap_ref(&name, Some(b"1"), None).unwrap();
    assert!(inner.list_keys("").unwrap().is_empty());
    let renewed = late.swap_ref(&name, Some(b"1"), Some(b"2"));
    assert!(matches!(renewed, Err(StoreError::Changed { .. })), "{renewed:?}");
    assert!(inner.list_keys("").unwrap().is_empty());
}

#[test]
fn refs_that_were_removed_are_absent_and_come_back() {
    let (_, store) = shared();
    let name = key("refs/tag/x");
    for round in 0..12 {
        store.swap_ref(&name, None, Some(b"1")).unwrap();
        if round % 2 == 0 {
            store.swap_ref(&name, Some(b"1"), None).unwrap();
        } else {
            store.delete_object(&name).unwrap();
        }
        assert!(store.get_object(&name, 9).unwrap_err().is_not_found());
        assert!(store.object_size(&name).unwrap_err().is_not_found());
        assert!(store.list_keys("refs").unwrap().is_empty());
        assert!(store.list_objects("").unwrap().is_empty());
    }
    store.delete_object(&name).unwrap();
}

#[test]
fn what_somebody_else_put_there_is_no_ref_or_says_what_it_says() {
    let (inner, store) = shared();
    for foreign in
        ["refs/tag/x/1", "refs/tag/x/0000000000000000", "refs/tag/x/000000000000000G", "refs/stray"]
    {
        inner.put_object(&key(foreign), b"foreign").unwrap();
    }
    assert!(store.list_keys("refs").unwrap().is_empty());
    assert!(store.get_object(&key("refs/tag/x"), 9).unwrap_err().is_not_found());
    inner.put_object(&key("refs/tag/x/0000000000000007"), b"cut").unwrap();
    assert_eq!(store.get_object(&key("refs/tag/x"), 9).unwrap(), b"cut");
    store.swap_ref(&key("refs/tag/x"), Some(b"cut"), Some(b"whole")).unwrap();
    assert_eq!(store.get_object(&key("refs/tag/x"), 9).unwrap(), b"whole");
    inner.put_object(&key("refs/tag/x/0000000000000010"), &[0; 3000]).unwrap();
    assert!(matches!(store.get_object(&key("refs/tag/x"), 9), Err(StoreError::TooLarge { .. })));
    store.delete_object(&key("refs/tag/x")).unwrap();
    assert!(store.get_object(&key("refs/tag/x"), 9).unwrap_err().is_not_found());
}
