//! Every backend and every decorator passes the one suite.

use std::sync::Arc;

use vellum_store::{LocalStore, MemoryObjectStore, MeteredStore, NumberedRefStore};
use vellum_testkit::{FaultyStore, conformance};

#[test]
fn a_local_directory_conforms() {
    let dir = tempfile::tempdir().unwrap();
    conformance::check_object_store(&LocalStore::create(dir.path().join("new/store")).unwrap());
}

#[test]
fn memory_conforms() {
    conformance::check_object_store(&MemoryObjectStore::new("memory"));
}

#[test]
fn a_metered_store_conforms_and_counts() {
    let dir = tempfile::tempdir().unwrap();
    let store = MeteredStore::new(Arc::new(LocalStore::create(dir.path()).unwrap()));
    conformance::check_object_store(&store);
    let counts = store.request_counts();
    assert!(counts.gets > 0 && counts.swaps > 0 && counts.deletes > 0 && counts.bytes_in > 3_000_000);
    assert!(counts.barriers < counts.puts);
}

#[test]
fn a_faulty_store_without_a_script_conforms() {
    let dir = tempfile::tempdir().unwrap();
    conformance::check_object_store(&FaultyStore::new(Arc::new(LocalStore::create(dir.path()).unwrap())));
}

#[test]
fn numbered_refs_conform() {
    let dir = tempfile::tempdir().unwrap();
    conformance::check_object_store(&NumberedRefStore::new(Arc::new(
        LocalStore::create(dir.path()).unwrap(),
    )));
    conformance::check_object_store(&NumberedRefStore::new(Arc::new(MemoryObjectStore::new("memory"))));
}
