//! What was written is there when a store is opened again.

use vellum_live::{Embedded, LiveError, LiveStore, NoHooks};

fn open(dir: &std::path::Path) -> Embedded {
    Embedded::open(dir, NoHooks).unwrap()
}

fn put(store: &Embedded, key: &[u8], value: &[u8]) {
    let put = store.transact(&mut |txn| {
        txn.put(key, value.into());
        Ok(())
    });
    put.unwrap();
}

#[test]
fn a_store_is_what_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/live");
    let store = open(&path);
    put(&store, b"a", b"1");
    put(&store, b"b", b"2");
    drop(store);
    let store = open(&path);
    let dropped = store.transact(&mut |txn| {
        txn.delete_prefix(b"b");
        txn.put(b"c", (*b"3").into());
        Ok(())
    });
    dropped.unwrap();
    drop(store);
    let store = open(&path);
    assert_eq!(store.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(store.get(b"b").unwrap(), None);
    assert_eq!(store.get(b"c").unwrap().as_deref(), Some(&b"3"[..]));
    assert!(store.memory() > 0);
}

#[test]
fn sequences_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    put(&store, b"a", b"1");
    let first = store.transact(&mut |txn| Ok(txn.delete(b"a"))).unwrap();
    drop(store);
    let second = open(dir.path()).transact(&mut |txn| Ok(txn.delete(b"a"))).unwrap();
    assert!(first < second);
}

#[test]
fn a_directory_has_one_user() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    assert!(matches!(Embedded::open(dir.path(), NoHooks), Err(LiveError::InUse(_))));
    drop(store);
    open(dir.path());
}
