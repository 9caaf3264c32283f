//! `vellum usage`

use serde_json::Value;

use crate::mounting::Mount;
use crate::world::{World, noise};

/// Content of this length that no other part of the noise has.
fn part(number: usize, len: usize) -> Vec<u8> {
    noise((number + 1) * 200_000)[number * 200_000..][..len].to_vec()
}

/// Three snapshots: `first` alone has `only` (200 kB), the first two have `both` (100 kB), all have `always` (50 kB).
fn world_with_shares() -> World {
    let world = World::new();
    world.write("always", part(0, 50_000));
    world.write("dir/both", part(1, 100_000));
    world.write("dir/only", part(2, 200_000));
    world.snapshot("first");
    world.remove("dir/only");
    world.snapshot("second");
    world.remove("dir/both");
    world.snapshot("third");
    world
}

fn bytes(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_else(|| panic!("{field} in {value}"))
}

/// Whether a figure is that of this much noise, with the metadata of a few files.
fn is_about(found: u64, noise: u64) -> bool {
    (noise..noise + 6_000).contains(&found)
}

fn freed(usage: &Value) -> u64 {
    bytes(&usage["freed"], "at_once") + bytes(&usage["freed"], "after_repacking")
}

#[test]
fn what_is_unique_and_what_is_shared_is_told_apart() {
    let world = world_with_shares();
    let report = world.json(&["usage", "first", "second", "third"]);
    let groups = report["groups"].as_array().unwrap();
    let unique: Vec<_> = groups.iter().map(|group| bytes(group, "unique")).collect();
    assert!(is_about(unique[0], 200_000), "{unique:?}");
    // What two snapshots have is unique to neither.
    assert!(is_about(unique[1], 0), "{unique:?}");
    assert!(is_about(bytes(&groups[0], "stored"), 350_000), "{report}");
    assert!(is_about(bytes(&groups[2], "stored"), 50_000), "{report}");
    for group in groups {
        assert_eq!(bytes(group, "stored"), bytes(group, "unique") + bytes(group, "shared"));
        assert_eq!(group["kind"], "snapshot");
    }
    assert_eq!(bytes(&groups[0], "logical"), 350_000);
    // Together they are all that there is.
    assert_eq!(bytes(&report["together"], "unique"), bytes(&report, "needed"));
    assert_eq!(bytes(&report["together"], "shared"), 0);
    // The worktree stands on the third.
    assert_eq!(bytes(&report["together"]["freed"], "held"), 1);
    assert!(is_about(freed(&report["together"]), 300_000), "{report}");
    assert_eq!(freed(&groups[2]), 0);
}

#[test]
fn what_would_be_freed_is_what_a_collection_frees() {
    let world = world_with_shares();
    let report = world.json(&["usage", "first", "second"]);
    let promised = bytes(&report["together"]["freed"], "at_once");
    let later = bytes(&report["together"]["freed"], "after_repacking");
    assert!(is_about(promised + later, 300_000), "{report}");
    for tag in ["first", "second"] {
        let id = world.json(&["show", tag])["snapshot"]["id"].as_str().unwrap().to_owned();
        world.run(&["tag", "remove", tag]).ok();
        world.run(&["forget", &id]).ok();
    }
    // Forgotten, it is what nothing needs.
    assert_eq!(bytes(&world.json(&["usage"]), "unneeded"), promised + later);
    let ran = world.json(&["gc", "run"]);
    assert_eq!(bytes(&ran, "freed"), promised + later);
    assert_eq!(bytes(&world.json(&["usage"]), "unneeded"), 0);
}

#[test]
fn a_worktree_is_measured_with_all_its_snapshots() {
    let world = world_with_shares();
    world.run(&["fork", "side", "--to", "../side"]).ok();
    let side = world.path("side");
    std::fs::write(side.join("own"), part(3, 70_000)).unwrap();
    world.run_in(side.to_str().unwrap(), &["snapshot", "-q"]).ok();
    let report = world.json(&["usage"]);
    let groups = report["groups"].as_array().unwrap();
    let names: Vec<_> = groups.iter().map(|group| group["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["main", "side"]);
    assert_eq!(bytes(&groups[0], "snapshots"), 3);
    assert!(is_about(bytes(&groups[0], "unique"), 300_000), "{report}");
    assert!(is_about(bytes(&groups[1], "unique"), 70_000), "{report}");
    assert!(is_about(bytes(&groups[1], "shared"), 50_000), "{report}");
    world.run(&["usage", "side"]).ok().says("side").remarks("on which a worktree stands");
}

#[test]
fn a_path_is_measured_in_the_last_snapshot() {
    let world = World::new();
    world.write("a/one", part(4, 60_000));
    world.write("b/two", part(5, 90_000));
    std::fs::copy(world.tree().join("a/one"), world.tree().join("b/copy")).unwrap();
    world.snapshot("t");
    let report = world.json(&["usage", "b", "./a/one"]);
    let groups = report["groups"].as_array().unwrap();
    assert_eq!(bytes(&groups[0], "logical"), 150_000);
    assert!(is_about(bytes(&groups[0], "unique"), 90_000), "{report}");
    // The other file has the same content.
    assert!(is_about(bytes(&groups[0], "shared"), 60_000), "{report}");
    assert_eq!(bytes(&groups[1], "unique"), 0);
    assert!(groups[0].get("freed").is_none());
    assert!(report.get("together").is_none());
    world.run(&["usage", "nowhere"]).code(2).remarks("nowhere");
    world.run(&["usage", "./nowhere"]).code(2).remarks("nowhere");
}

#[test]
fn what_a_mount_published_belongs_to_its_worktree_and_stays() {
    let world = world_with_shares();
    let mount = Mount::new(&world, "live");
    std::fs::write(mount.at("new"), part(6, 80_000)).unwrap();
    world.run_in(mount.path.to_str().unwrap(), &["flush"]).ok();
    let report = world.json(&["usage", "live"]);
    let live = &report["groups"][0];
    assert!(is_about(bytes(live, "unique"), 80_000), "{report}");
    assert!(is_about(bytes(live, "shared"), 50_000), "{report}");
    assert_eq!(freed(live), 0, "{report}");
    mount.umount().ok();
}
