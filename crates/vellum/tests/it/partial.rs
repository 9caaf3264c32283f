//! Partial checkouts: `clone --only`, `restore --only`, `hydrate` and `evict` in plain directories.

use std::fs;
use std::process::Stdio;

use crate::world::{Ran, World, run};

/// A worktree with a store beside it, and one snapshot.
fn stored() -> World {
    let world = World::empty();
    world.run(&["init", "--plain", "--store", "../store"]).ok();
    for path in ["docs/a", "docs/deep/b", "src/x", "src/y", "top"] {
        world.write(path, format!("content of {path}\n"));
    }
    world.snapshot("first");
    world
}

fn run_at(world: &World, dir: &str, args: &[&str]) -> Ran {
    run(&world.path(dir), args, Stdio::null())
}

#[test]
fn a_clone_of_some_paths_has_these_alone() {
    let world = stored();
    let beside = world.path("");
    run(&beside, &["clone", "store", "small", "--plain", "--only", "src", "docs/a"], Stdio::null())
        .ok()
        .says("3 written")
        .remarks("The other paths are absent");
    let has = |path: &str| world.path("small").join(path).exists();
    assert!(has("src/x") && has("src/y") && has("docs/a") && !has("docs/deep") && !has("top"));
    run_at(&world, "small", &["status"]).ok().remarks("2 paths with 2 files, 38 B, are absent");
    fs::write(world.path("small/src/x"), "changed").unwrap();
    fs::write(world.path("small/new"), "new").unwrap();
    run_at(&world, "small", &["status"]).code(1).says("src/x").says("new");
    run_at(&world, "small", &["snapshot", "--tag", "edited"]).ok();
    let whole = world.run(&["ls", "edited", "-R"]).ok();
    assert_eq!(
        whole.lines(),
        ["docs/", "docs/a", "docs/deep/", "docs/deep/b", "new", "src/", "src/x", "src/y", "top"]
    );
    run_at(&world, "small", &["diff", "first", "edited"]).code(1);
    run(&beside, &["clone", "store", "other", "--plain", "--only", "nowhere"], Stdio::null())
        .code(2)
        .remarks("'nowhere'");
    assert!(!world.path("other/.vellum").exists(), "nothing was made");
    run(&beside, &["clone", "store", "other", "--plain", "--only", "src", "--mount"], Stdio::null()).code(3);
}

#[test]
fn what_is_absent_is_told_and_brought_back() {
    let world = stored();
    world.run(&["restore", "HEAD", "--only", "src"]).ok();
    assert!(!world.has("docs") && !world.has("top") && world.has("src/x"));
    let absent = &world.json(&["status"])["absent"];
    assert_eq!((absent["paths"].as_u64(), absent["files"].as_u64()), (Some(2), Some(3)));
    world.run(&["status", "src"]).ok().remarks("partial checkout: 2 paths are absent");
    world.run(&["diff"]).ok();
    let states = world.run(&["ls", "HEAD", "--state"]).ok();
    assert!(
        states.out.contains("absent      docs/") && states.out.contains("absent      top"),
        "{}",
        states.out
    );
    assert!(!states.out.contains("absent      src"), "{}", states.out);
    world.run(&["restore", "HEAD", "top"]).code(2).remarks("'top' is absent").remarks("vellum hydrate top");
    world.run(&["hydrate", "docs/deep"]).ok().says("1 file written, 23 B");
    assert!(world.has("docs/deep/b") && !world.has("docs/a"));
    world.run(&["hydrate", "docs/deep"]).ok().says("Nothing was absent there");
    world.run(&["hydrate", "nowhere"]).code(2).remarks("'nowhere'");
    world.run(&["hydrate", "--metadata-only", "docs"]).code(3);
    world.run(&["hydrate", "."]).ok().says("2 files written");
    let ran = world.run(&["status"]).ok();
    assert!(!ran.err.contains("absent"), "{}", ran.err);
}

#[test]
fn evicted_files_are_absent_and_changed_ones_stay() {
    let world = stored();
    world.write("src/y", "changed");
    world.write("src/new", "new");
    // Written long enough ago.
    std::thread::sleep(std::time::Duration::from_millis(40));
    let open = fs::File::open(world.tree().join("docs/a")).unwrap();
    let ran = world.run(&["evict", "src", "docs"]).code(1).says("Removed 2 files, 40 B");
    for refused in ["src/new: it is in no snapshot", "src/y: it changed", "docs/a: it is open"] {
        assert!(ran.out.contains(refused) || ran.err.contains(refused), "{refused}: {}{}", ran.out, ran.err);
    }
    drop(open);
    assert!(world.has("src/y") && world.has("src/new") && world.has("docs/a") && !world.has("src/x"));
    let done = world.json(&["evict", "docs"]);
    assert_eq!((done["files"].as_u64(), done["evicted"].as_u64()), (Some(1), Some(18)));
    assert!(!world.has("docs"));
    let changes = world.run(&["status"]).code(1);
    assert!(!changes.out.contains("docs") && !changes.out.contains("src/x"), "{}", changes.out);
    world.run_in("src", &["evict", "../top"]).ok();
    world.run(&["evict", "nowhere"]).code(2);
    world.run_in("src", &["hydrate", "x"]).ok();
    assert_eq!(world.read("src/x"), "content of src/x\n");
}

#[test]
fn who_works_in_a_directory_keeps_it() {
    let world = stored();
    std::thread::sleep(std::time::Duration::from_millis(40));
    world.run_in("docs/deep", &["evict", "."]).ok();
    assert!(world.has("docs/deep") && !world.has("docs/deep/b"));
    world.run(&["status"]).ok();
}

#[test]
fn what_the_store_has_lost_is_not_evicted() {
    let world = stored();
    std::thread::sleep(std::time::Duration::from_millis(40));
    let mut pending = vec![world.path("store/packs")];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() { pending.push(entry) } else { fs::remove_file(entry).unwrap() }
        }
    }
    assert_ne!(world.run(&["verify", "--all"]).code, 0);
    assert_ne!(world.run(&["evict", "top", "src"]).code, 0);
    assert!(world.has("top") && world.has("src/x"));
}

#[test]
fn what_is_absent_is_deleted_nowhere_else() {
    let world = stored();
    world.run(&["sync", "-a", ".", "../copy"]).ok();
    std::thread::sleep(std::time::Duration::from_millis(40));
    world.run(&["evict", "docs"]).ok();
    for args in [
        &["sync", "-a", "--delete", ".", "../copy"][..],
        &["sync", "-a", "--delete-before", "../tree/", "../copy"],
        &["sync", "-a", "--delete", "../tree:/", "../copy"],
        &["sync", "--two-way", ".", "../copy"],
        &["sync", "--two-way", "../copy", "."],
        &["sync", "--two-way", "../tree:/", "../copy"],
    ] {
        world.run(args).code(2).remarks("'docs' is absent");
    }
    world.run(&["sync", "-a", "--delete", "src", "../elsewhere"]).ok();
    world.run(&["sync", "-a", ".", "../copy"]).ok();
    assert!(world.path("copy/docs/a").exists() || world.path("copy/tree/docs/a").exists());
}

#[test]
fn merges_and_forks_of_a_partial_checkout() {
    let world = stored();
    world.run(&["fork", "other", "--to", "../other"]).ok();
    fs::write(world.path("other/docs/a"), "theirs\n").unwrap();
    run_at(&world, "other", &["snapshot"]).ok();
    world.write("src/x", "ours\n");
    world.snapshot("ours");
    world.run(&["restore", "HEAD", "--only", "src"]).ok();
    // Without a conflict, all files are merged.
    world.run(&["merge", "other"]).ok();
    assert!(!world.has("docs"));
    assert_eq!(world.run(&["cat", "HEAD", "docs/a"]).ok().out, "theirs\n");
    assert_eq!(world.run(&["cat", "HEAD", "src/x"]).ok().out, "ours\n");
    world.run(&["status"]).ok();
    // With one in what is absent, nothing is begun.
    world.run(&["hydrate", "docs/a"]).ok();
    world.write("docs/a", "ours\n");
    world.snapshot("edited");
    fs::write(world.path("other/docs/a"), "other\n").unwrap();
    run_at(&world, "other", &["snapshot"]).ok();
    std::thread::sleep(std::time::Duration::from_millis(40));
    world.run(&["evict", "docs/a"]).ok();
    world.run(&["merge", "other"]).code(2).remarks("'docs/a' is absent").remarks("vellum hydrate docs/a");
    world.run(&["status"]).ok();
    world.run(&["hydrate", "docs/a"]).ok();
    world.run(&["merge", "other"]).code(1);
    world.run(&["evict", "docs/a"]).code(2);
    world.run(&["merge", "--abort"]).ok();
    world.run(&["fork", "whole", "--to", "../whole"]).ok();
    assert!(world.path("whole/top").exists() && world.path("whole/docs/deep/b").exists());
}
