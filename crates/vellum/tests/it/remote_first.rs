//! The first contact with a service: how many requests it takes.

use std::collections::BTreeMap;

use vellum_testkit::LyingS3;

use crate::remote::world_with_credentials;

/// Requests of each method since the last call.
fn count_requests(server: &LyingS3) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for request in server.take_requests() {
        *counts.entry(request.method).or_default() += 1;
    }
    counts
}

#[test]
fn first_contacts_take_few_requests() {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    let url = server.store_url("store");
    world.run_at_home(&["init", "--name", "main", "--store", &url, "--credentials", "test"]).ok();
    // The probe takes 23 of them.
    let counts = count_requests(&server);
    assert_eq!(counts, BTreeMap::from([("DELETE", 3), ("GET", 17), ("LIST", 5), ("PUT", 15)]), "init");
    world
        .run_at_home(&["remote", "add", "origin", &server.store_url("origin"), "--credentials", "test"])
        .ok();
    let counts = count_requests(&server);
    assert_eq!(counts, BTreeMap::from([("DELETE", 3), ("GET", 12), ("LIST", 3), ("PUT", 9)]), "remote add");
}
