//! `vellum conformance`

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use vellum_testkit::{LyingS3, S3Lie};

use crate::disk::Disk;
use crate::remote::{every, world_with_credentials};
use crate::world::{Ran, World};

/// Verdicts by subject and promise.
fn verdicts(report: &Value) -> BTreeMap<String, String> {
    let promises = report["promises"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    promises
        .map(|one| {
            assert_eq!(one["reason"].is_string(), one["verdict"] != "pass", "{one}");
            assert!(one["seconds"].is_f64() && one["tried"].is_string(), "{one}");
            (format!("{}: {}", text(&one["subject"]), text(&one["promise"])), text(&one["verdict"]))
        })
        .collect()
}

fn report(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{}{}", ran.out, ran.err))
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn all_promises_are_kept_on_this_machine() {
    // In a worktree, in which no other one can be made.
    let world = World::new();
    world.run_at_home(&["conformance", "--dir", "."]).code(3).remarks("'.' lies in the worktree");
    let ran = world.run_at_home(&["conformance", "--json"]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let report = report(&ran);
    assert_eq!(report["conforms"], true);
    assert_eq!(report["directory"], world.path("").to_str().unwrap().trim_end_matches('/'));
    let verdicts = verdicts(&report);
    assert!(verdicts.len() > 50, "{verdicts:#?}");
    let others: Vec<_> = verdicts.iter().filter(|(_, verdict)| *verdict != "pass").collect();
    assert!(others.is_empty(), "{others:#?}");
    let made = |name: &str| name.starts_with("vellum-conformance");
    let left = fs::read_dir(world.path(""))
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_str().is_some_and(made));
    assert_eq!(left.count(), 0, "it removes what it made");
}

#[test]
fn what_a_filesystem_does_not_have_is_not_applicable() {
    let world = World::empty();
    // No links, owners, modes, attributes or special files; names are text, and in any case the same.
    let disk = Disk::foreign("exfat");
    let ran = world.run_at_home(&["conformance", "--dir", disk.path().to_str().unwrap()]);
    assert!(is_empty(&disk.path()), "{}", ran.out);
    let line = |text: &str| ran.out.lines().find(|line| line.contains(text)).unwrap_or_default().to_owned();
    for missing in ["extended attributes", "hard links", "differ in case", "owners"] {
        assert!(line(missing).starts_with("n/a"), "{missing}: {}", ran.out);
    }
    for kept in ["content of files", "a snapshot never changes", "levels of directories"] {
        assert!(line(kept).starts_with("pass"), "{kept}: {}", ran.out);
    }
}

#[test]
fn a_service_is_tried_in_a_folder_that_is_removed() {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    let url = server.store_url("folder");
    let ran = world.run_at_home(&["conformance", "--json", "--store", &url, "--credentials", "test"]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let verdicts = verdicts(&report(&ran));
    assert_eq!(verdicts["checked-out: damage is found, and never read"], "not-applicable");
    assert_eq!(verdicts["mounted: what fsync acknowledged survives kill -9"], "pass");
    assert_eq!(server.list_keys(), Vec::<String>::new());
    assert!(is_empty(&world.tree()));
}

#[test]
fn a_store_that_breaks_its_promises_does_not_conform() {
    let world = world_with_credentials();
    let server = LyingS3::start().unwrap();
    server.add_lie(every("PUT"), S3Lie::IgnoreConditions);
    let url = server.store_url("folder");
    let ran = world.run_at_home(&["conformance", "--store", &url, "--credentials", "test"]).code(1);
    let ran = ran.says("FAIL").says("not kept").says("an object is never replaced");
    assert!(
        ran.out.lines().any(|line| line.starts_with("FAIL") && line.contains("compare-and-swap")),
        "{}",
        ran.out
    );
    assert_eq!(server.list_keys(), Vec::<String>::new());
}

#[test]
fn a_store_in_a_directory_that_was_not_there_goes_and_one_that_was_there_stays() {
    let world = World::empty();
    for url in ["gopher://x", ""] {
        assert!(world.run_at_home(&["conformance", "--store", url]).code >= 2);
    }
    world.run_at_home(&["conformance", "--dir", "nowhere"]).code(2).remarks("nowhere");
    fs::create_dir(world.path("stores")).unwrap();
    fs::write(world.path("stores/mine"), "x").unwrap();
    world.run_at_home(&["conformance", "-q", "--store", "../stores"]).ok();
    assert_eq!(fs::read_dir(world.path("stores")).unwrap().count(), 1);
    assert!(is_empty(&world.tree()));
}
