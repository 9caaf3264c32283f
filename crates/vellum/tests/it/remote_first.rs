//! The first contact with a service: how many requests it takes, and what is noticed about this machine.

use std::collections::BTreeMap;
use std::fs;

use vellum_testkit::{LyingS3, SeaweedServer};

use crate::remote::{init, world_with_credentials};
use crate::remote_devices::run_with_clock;

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
    // The worktree and the recovery code are added at once: one of them may find that the other has looked for newer keys.
    let gets = counts["GET"];
    assert!((17..=18).contains(&gets), "{gets}");
    // The slots are listed beside the config, in case there is a volume.
    assert_eq!(counts, BTreeMap::from([("DELETE", 3), ("GET", gets), ("LIST", 6), ("PUT", 15)]), "init");
    world
        .run_at_home(&["remote", "add", "origin", &server.store_url("origin"), "--credentials", "test"])
        .ok();
    let counts = count_requests(&server);
    assert_eq!(counts, BTreeMap::from([("DELETE", 3), ("GET", 13), ("LIST", 3), ("PUT", 8)]), "remote add");
}

#[test]
fn a_verification_of_all_takes_few_requests() {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    world.run_at_home(&["init", "--store", &server.store_url("store"), "--credentials", "test"]).ok();
    world.write("a.txt", "one\n");
    world.run_at_home(&["snapshot"]).ok();
    count_requests(&server);
    world.run_at_home(&["verify", "--all"]).ok();
    assert_eq!(count_requests(&server), BTreeMap::from([("GET", 15), ("LIST", 17)]));
}

#[test]
fn a_wrong_clock_is_noticed_at_the_first_contact() {
    let world = world_with_credentials();
    let server = SeaweedServer::start(&world.path("seaweed"));
    let url = server.store_url("store");
    init(&world, &url).ok();
    world.write("a.txt", "one\n");
    world.run_at_home(&["snapshot"]).ok();
    let other = server.store_url("other");
    let third = server.store_url("third");
    for dir in ["new", "volume"] {
        fs::create_dir(world.path(dir)).unwrap();
    }
    world.run_beside("volume", &["init", "--plain"]).ok();
    let commands: [(&str, &[&str]); 4] = [
        ("new", &["init", "--plain", "--store", &other, "--credentials", "test"]),
        ("new", &["init", "--plain", "--store", &url, "--credentials", "test"]),
        ("new", &["clone", "--plain", "--credentials", "test", &url, "clone"]),
        ("volume", &["remote", "add", "origin", &third, "--credentials", "test"]),
    ];
    for (clock, words) in [("+61m", "this machine's clock is 61 min fast"), ("-3h", "clock is 180 min slow")]
    {
        for (dir, args) in commands {
            let ran = run_with_clock(&world, dir, clock, args).code(2);
            ran.remarks(words);
        }
    }
    assert!(fs::read_dir(world.path("new")).unwrap().next().is_none(), "nothing is made");
    // What services allow is allowed.
    for (dir, args) in commands {
        run_with_clock(&world, dir, "+5m", args).ok();
        let _ = fs::remove_dir_all(world.path("new/.vellum"));
    }
}
