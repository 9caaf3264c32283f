//! Every engine passes the one suite.

use vellum_live::{EmbeddedStore, EngineLimits, MemoryStore, NoDurabilityHooks};
use vellum_testkit::live_conformance;

#[test]
fn the_store_in_memory_conforms() {
    live_conformance::check_live_store(&MemoryStore::default());
}

#[test]
fn the_embedded_engine_conforms() {
    let dir = tempfile::tempdir().unwrap();
    live_conformance::check_live_store(&EmbeddedStore::open(dir.path(), NoDurabilityHooks).unwrap());
}

#[test]
fn the_embedded_engine_conforms_with_all_that_is_frozen_in_files() {
    let dir = tempfile::tempdir().unwrap();
    live_conformance::check_live_store(
        &EmbeddedStore::open_with(dir.path(), NoDurabilityHooks, EngineLimits { journal: 0, run: 0 })
            .unwrap(),
    );
}
