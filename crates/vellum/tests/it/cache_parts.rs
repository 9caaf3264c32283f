//! The two parts of the cache of a store in a service: names stay, however much content is read.

use std::fs;
use std::path::Path;

use vellum_testkit::{S3Failure, S3Lie, S3Match};

use crate::hydrate::{LazyMount, noise};
use crate::remote::world_with_credentials;

/// The names below a directory, and how many bytes their files have.
fn walk(dir: &Path) -> (usize, u64) {
    let mut found = (0, 0);
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.metadata().unwrap();
        let below = if metadata.is_dir() { walk(&entry.path()) } else { (0, metadata.len()) };
        found = (found.0 + below.0 + 1, found.1 + below.1);
    }
    found
}

#[test]
fn content_of_many_times_the_limit_leaves_the_names() {
    let names: Vec<String> = (0..24).map(|number| format!("dir-{}/file-{number}", number % 5)).collect();
    let files: Vec<(&str, Vec<u8>)> =
        names.iter().zip(0..).map(|(name, seed)| (name.as_str(), noise(seed, 700_000))).collect();
    let lazy = LazyMount::in_world(world_with_credentials(), &files);
    // What a process fetches that has nothing in memory.
    lazy.umount();
    lazy.mount();
    let all = walk(&lazy.mountpoint());
    assert_eq!(all, (24 + 5, 24 * 700_000));
    lazy.run(&["cache", "--set-size", "2M", "--set-node-size", "1M"]).ok().says("Names: ");
    for (name, content) in &files {
        assert!(fs::read(lazy.path(name)).unwrap() == *content);
    }
    let cache = lazy.json(&["cache"]);
    assert!(cache["bytes"].as_u64().unwrap() <= 2 << 20 && cache["limit"] == 2 << 20, "{cache}");
    assert!(cache["nodes"]["packs"].as_u64().unwrap() >= 1 && cache["nodes"]["limit"] == 1 << 20, "{cache}");
    let shown = lazy.mountpoint().display().to_string();
    let figures = lazy.json(&["stats", &shown, "--interval", "0.05", "--count", "1"])["disk_cache"].clone();
    assert!(
        figures["nodes"]["bytes"].as_u64().unwrap() > 0 && figures["nodes"]["limit"] == 1 << 20,
        "{figures}"
    );

    // Another process has nothing of it in memory.
    lazy.umount();
    lazy.mount();
    let requests = S3Match { method: "GET", key: "store/packs/".into(), skip: 0, times: u32::MAX };
    lazy.server.add_lie(requests, S3Lie::Fail(S3Failure::new(403, "AccessDenied")));
    assert_eq!(walk(&lazy.mountpoint()), all);
    assert!(
        files.iter().any(|(name, _)| fs::read(lazy.path(name)).is_err()),
        "more content than fits is here"
    );
}
