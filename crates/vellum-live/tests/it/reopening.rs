//! What was written is there when a store is opened again.

use std::path::Path;

use vellum_live::{EmbeddedStore, EngineLimits, LiveError, LiveStore, NoDurabilityHooks};

use crate::transact;

fn open(dir: &Path) -> EmbeddedStore {
    EmbeddedStore::open(dir, NoDurabilityHooks).unwrap()
}

fn get(store: &EmbeddedStore, key: &[u8]) -> Option<Vec<u8>> {
    store.get(key).unwrap().map(|value| value.to_vec())
}

#[test]
fn a_store_is_what_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/live");
    let store = open(&path);
    transact(&store, |txn| txn.set_key(b"a", (*b"1").into())).unwrap();
    transact(&store, |txn| txn.set_key(b"b", (*b"2").into())).unwrap();
    drop(store);
    let store = open(&path);
    let change = transact(&store, |txn| {
        txn.delete_prefix(b"b");
        txn.set_key(b"c", (*b"3").into());
    });
    change.unwrap();
    drop(store);
    let store = open(&path);
    assert_eq!(get(&store, b"a").as_deref(), Some(&b"1"[..]));
    assert_eq!(get(&store, b"b"), None);
    assert_eq!(get(&store, b"c").as_deref(), Some(&b"3"[..]));
}

#[test]
fn sequences_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let first = transact(&open(dir.path()), |txn| txn.delete_key(b"a")).unwrap();
    let second = transact(&open(dir.path()), |txn| txn.delete_key(b"a")).unwrap();
    assert!(first < second);
}

#[test]
fn a_directory_has_one_user() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    assert!(matches!(EmbeddedStore::open(dir.path(), NoDurabilityHooks), Err(LiveError::InUse(_))));
    assert!(matches!(store.fork_into(dir.path()), Err(LiveError::InUse(_))));
    drop(store);
    open(dir.path());
}

/// A store with a frozen layer of some size and a little on top of it.
fn filled(dir: &Path, frozen: u32) -> EmbeddedStore {
    let store =
        EmbeddedStore::open_with(dir, NoDurabilityHooks, EngineLimits { journal: 64 << 20, run: 1 }).unwrap();
    let fill = transact(&store, |txn| {
        (0..frozen)
            .for_each(|i| txn.set_key(&[b"layer-001", &i.to_be_bytes()[..]].concat(), [7; 100].into()));
    });
    fill.unwrap();
    store.freeze_prefix(b"layer-001").unwrap();
    transact(&store, |txn| txn.set_key(b"layer-002top", (*b"top").into())).unwrap();
    store
}

#[test]
fn frozen_entries_leave_memory_and_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path(), 50_000);
    let before = store.statistics();
    assert_eq!((before.runs, before.frozen, before.checkpoints), (1, 50_000, 1));
    assert!(before.memory < 300_000, "{before:?}");
    assert!(before.journal < 1000, "{before:?}");
    assert!(before.run_bytes > 5_000_000 && before.journalled > 5_000_000, "{before:?}");
    drop(store);
    let store = open(dir.path());
    let after = store.statistics();
    assert_eq!((after.runs, after.frozen, after.run_bytes), (1, 50_000, before.run_bytes));
    assert_eq!(get(&store, b"layer-001\0\0\0\x07"), Some(vec![7; 100]));
    let dropped = transact(&store, |txn| txn.delete_prefix(b"layer-001")).unwrap();
    store.wait_until_durable(dropped).unwrap();
    drop(store);
    open(dir.path());
    let store = open(dir.path());
    assert_eq!((get(&store, b"layer-001\0\0\0\x07"), store.statistics().runs), (None, 0));
}

#[test]
fn a_fork_shares_what_is_frozen_and_goes_its_own_way() {
    let dir = tempfile::tempdir().unwrap();
    let original = dir.path().join("original");
    let copy = dir.path().join("copy");
    let store = filled(&original, 20_000);
    store.fork_into(&copy).unwrap();
    let refused = store.fork_into(&copy).unwrap_err();
    assert!(refused.to_string().contains("copy"), "{refused}");
    transact(&store, |txn| txn.delete_prefix(b"layer")).unwrap();
    drop(store);
    let fork = open(&copy);
    assert_eq!(fork.statistics().frozen, 20_000);
    assert_eq!(get(&fork, b"layer-001\0\0\0\x07"), Some(vec![7; 100]));
    assert_eq!(get(&fork, b"layer-002top").as_deref(), Some(&b"top"[..]));
    transact(&fork, |txn| txn.set_key(b"layer-002top", (*b"fork").into())).unwrap();
    assert_eq!(get(&open(&original), b"layer-002top"), None);
}

#[test]
fn the_journal_stays_short_without_freezing() {
    let dir = tempfile::tempdir().unwrap();
    let limit = 100_000;
    let store = EmbeddedStore::open_with(
        dir.path(),
        NoDurabilityHooks,
        EngineLimits { journal: limit, run: 1 << 20 },
    )
    .unwrap();
    // Much more than the room that a journal reserves at once.
    while store.statistics().checkpoints < 2 || store.statistics().journalled < 8 << 20 {
        for _ in 0..100 {
            transact(&store, |txn| txn.set_key(b"one key", [7; 3000].into())).unwrap();
        }
    }
    // What came while a checkpoint was written is in the journal still: it is followed by another one.
    while store.statistics().journal >= limit {
        std::thread::yield_now();
    }
    let written = store.statistics().journalled;
    drop(store);
    let on_disk: u64 =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(on_disk < written / 2, "{on_disk} bytes left of {written}");
    assert_eq!(get(&open(dir.path()), b"one key"), Some(vec![7; 3000]));
}
