//! Every engine passes the one suite.

use vellum_live::{Embedded, Limits, MemoryStore, NoHooks};
use vellum_testkit::live_conformance;

#[test]
fn the_store_in_memory_conforms() {
    live_conformance::check(&MemoryStore::default());
}

#[test]
fn the_embedded_engine_conforms() {
    let dir = tempfile::tempdir().unwrap();
    live_conformance::check(&Embedded::open(dir.path(), NoHooks).unwrap());
}

#[test]
fn the_embedded_engine_conforms_with_all_that_is_frozen_in_files() {
    let dir = tempfile::tempdir().unwrap();
    live_conformance::check(
        &Embedded::open_with(dir.path(), NoHooks, Limits { journal: 0, run: 0 }).unwrap(),
    );
}
