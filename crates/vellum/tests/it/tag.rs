//! `vellum tag`

use std::fs;

use vellum_testkit::{LyingS3, S3Request};

use crate::remote::world_with_credentials;
use crate::remote_faults::attach;
use crate::world::World;

#[test]
fn tags_name_snapshots_until_removed() {
    let world = World::with_snapshot();
    world.run(&["tag", "add", "v1"]).ok().says("v1 is snapshot");
    world.run(&["tag", "list"]).ok().says("first").says("v1");
    world.run(&["cat", "v1", "a.txt"]).ok().says("one");
    world.run(&["tag", "remove", "v1", "first"]).ok().says("Removed the tag v1");
    world.run(&["tag", "list"]).ok().remarks("no tags yet");
    world.run(&["cat", "v1", "a.txt"]).code(2);
}

#[test]
fn a_tag_is_not_moved_by_accident() {
    let world = World::with_snapshot();
    world.write("x", "");
    world.snapshot("second");
    world.run(&["tag", "add", "first", "HEAD"]).code(2).remarks("the tag 'first' exists already");
    world.run(&["tag", "add", "first", "first"]).ok();
    world
        .run(&["tag", "remove", "nothing"])
        .code(2)
        .remarks("there is no tag 'nothing'")
        .remarks("vellum tag list");
    world.run(&["tag", "add", "HEAD"]).code(3);
    world.run(&["tag", "add", "a~1"]).code(3);
}

#[test]
fn a_name_is_never_taken_for_the_beginning_of_an_id() {
    let world = World::with_snapshot();
    world.write("a.txt", "second\n");
    let id = world.snapshot("second");
    // A worktree that is called like the beginning of another snapshot's id.
    let name = id[..5].to_owned();
    let args = ["fork", &name, "--to", "../other", "--from", "first"];
    world.run(&args).ok();
    assert_eq!(world.run(&["cat", &name, "a.txt"]).ok().out, "one\ntwo\nthree\n");
    world.run(&["restore", &name]).ok();
    assert_eq!(world.read("a.txt"), "one\ntwo\nthree\n");
    world.run(&["cat", &id[..6], "a.txt"]).ok().says("second");
    // Fewer than four digits are no id.
    world.run(&["cat", &id[..3], "a.txt"]).code(2).remarks("4 digits");
    world.run(&["cat", "b", "a.txt"]).code(2);
    // Names of the other kind, and names that read as ids, are refused, and no snapshot is made for them.
    world.run(&["tag", "add", "main"]).code(3).remarks("a worktree is called that");
    world.run(&["tag", "add", "beef"]).code(3).remarks("reads as the beginning of an id");
    world.run(&["snapshot", "--tag", "2026"]).code(3).remarks("reads as the beginning of an id");
    world.run(&["fork", "first", "--to", "../first"]).code(3).remarks("a tag is called that");
    assert!(!world.path("first/.vellum").exists());
    world.run(&["worktree", "rename", "main", "second"]).code(3).remarks("a tag is called that");
    assert_eq!(world.run(&["history", "--all", "-n", "0"]).ok().lines().len(), 2);
}

#[test]
fn json() {
    let world = World::with_snapshot();
    let id = world.snapshot("second");
    let value = world.json(&["tag", "list"]);
    assert_eq!(value["tags"][1], serde_json::json!({"name": "second", "snapshot": id}));
}

/// The only tag's object.
fn object(world: &World) -> std::path::PathBuf {
    let mut all = fs::read_dir(world.tree().join(".vellum/store/refs/tag")).unwrap();
    all.next().unwrap().unwrap().path()
}

#[test]
fn one_damaged_or_lost_tag_stops_nothing_and_can_be_removed() {
    for harm in ["flipped", "gone", "directory", "symlink", "large"] {
        for by_name in [true, false] {
            let world = World::with_snapshot();
            let path = object(&world);
            let mut bytes = fs::read(&path).unwrap();
            fs::remove_file(&path).unwrap();
            match harm {
                "flipped" => {
                    bytes[20] ^= 1;
                    fs::write(&path, bytes).unwrap();
                }
                "directory" => fs::create_dir(&path).unwrap(),
                "symlink" => std::os::unix::fs::symlink("/etc/passwd", &path).unwrap(),
                "large" => fs::write(&path, vec![7; 1 << 20]).unwrap(),
                _ => {}
            }
            let name = format!("refs/tag/{}", path.file_name().unwrap().to_str().unwrap());
            for command in [&["history"][..], &["history", "--all"], &["status"], &["tag", "list"]] {
                world.run(command).ok().remarks(&name).remarks(&format!("vellum tag remove {name}"));
            }
            if harm == "gone" {
                world.run(&["tag", "list"]).ok().remarks("seen.json says that version 1");
            }
            // What is not known to be unneeded stays.
            world.run(&["gc", "run"]).code(2);
            world
                .run(&["tag", "remove", if by_name { "first" } else { &name }])
                .ok()
                .remarks("removed the tag");
            let output = world.run(&["history"]).ok();
            assert!(!output.err.contains("refs/tag"), "{}", output.err);
            world.run(&["verify", "--all"]).ok();
            world.run(&["gc", "run"]).ok();
            world.run(&["tag", "add", "first"]).ok();
            world.run(&["tag", "list"]).ok().says("first");
            world.run(&["tag", "remove", "first"]).ok().says("Removed the tag first; it was snapshot");
        }
    }
}

#[test]
fn one_damaged_worktree_stops_neither_history_nor_status_of_another() {
    let world = World::with_snapshot();
    let side = world.path("side");
    world.run(&["fork", "side", "--to", side.to_str().unwrap()]).ok();
    let refs = world.tree().join(".vellum/store/refs/worktree");
    let before: Vec<_> = fs::read_dir(&refs).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(before.len(), 2);
    world.run(&["snapshot"]).ok();
    for path in before {
        let kept = fs::read(&path).unwrap();
        fs::write(&path, "junk").unwrap();
        // That of this worktree is needed.
        if world.run(&["history"]).code == 0 {
            let name = path.file_name().unwrap().to_str().unwrap();
            world.run(&["history"]).ok().remarks(name);
            world.run(&["status"]).ok().remarks(name);
            world.run(&["worktree", "list"]).ok().remarks(name).says("main");
        }
        fs::write(&path, kept).unwrap();
    }
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_note_of_what_was_seen_that_cannot_be_read_is_named_with_a_remedy() {
    let world = World::with_snapshot();
    let note = world.tree().join(".vellum/seen.json");
    fs::write(&note, "{").unwrap();
    let path = note.to_str().unwrap();
    world.run(&["status"]).code(2).remarks(path).remarks(&format!("delete {path}"));
    fs::remove_file(&note).unwrap();
    world.run(&["status"]).ok();
}

#[test]
fn what_was_seen_of_many_tags_is_written_down_once() {
    let world = World::empty();
    let store = world.path("store").display().to_string();
    world.run(&["init", "--plain", "--store", &store]).ok();
    world.write("file", "content");
    world.run(&["snapshot"]).ok();
    for number in 0..30 {
        world.run(&["tag", "add", &format!("t{number}")]).ok();
    }
    std::fs::create_dir(world.path("other")).unwrap();
    world.run(&["-C", "../other", "init", "--plain", "--name", "other", "--store", &store]).ok();
    let listed = std::process::Command::new("strace")
        .args([
            "-f",
            "-qq",
            "-e",
            "trace=rename,renameat,renameat2",
            env!("CARGO_BIN_EXE_vellum"),
            "tag",
            "list",
        ])
        .current_dir(world.path("other"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&listed.stdout).lines().count(), 30);
    // The tags, and the worktrees.
    let traced = String::from_utf8_lossy(&listed.stderr);
    let writes = traced.lines().filter(|line| line.contains("/seen.json\"")).count();
    assert!((1..=2).contains(&writes), "written {writes} times:\n{traced}");
}

#[test]
fn tags_that_a_service_lists_as_before_are_not_read_again() {
    let server = LyingS3::start().unwrap();
    let world = world_with_credentials();
    let url = server.store_url("store");
    world.run_at_home(&["init", "--plain", "--store", &url, "--credentials", "test"]).ok();
    world.write("file", "one");
    world.run_at_home(&["snapshot", "--tag", "moved"]).ok();
    for number in 0..40 {
        world.run_at_home(&["tag", "add", &format!("t{number}")]).ok();
    }
    attach(&world, "other", &url);
    let list = |args: &[&str]| {
        let _ = server.take_requests();
        let listed = world.run_beside("other", args).ok().out;
        let requests = server.take_requests();
        let count = |method| {
            let of_tags = |request: &&S3Request| request.key.starts_with("store/refs/tag");
            requests.iter().filter(of_tags).filter(|request| request.method == method).count()
        };
        (listed, count("LIST"), count("GET"))
    };
    let (first, _, read) = list(&["tag", "list"]);
    assert_eq!((first.lines().count(), read), (41, 41));
    for args in [&["tag", "list"][..], &["history", "-a"], &["worktree", "list"]] {
        let (_, pages, read) = list(args);
        assert!(pages <= 2 && read == 0, "{args:?}: {pages} pages, {read} read");
    }
    world.write("file", "two");
    world.run_at_home(&["snapshot"]).ok();
    world.run_at_home(&["tag", "remove", "moved", "t0"]).ok();
    world.run_at_home(&["tag", "add", "moved"]).ok();
    let (listed, _, read) = list(&["tag", "list"]);
    // The one that was removed is an object that says so.
    assert_eq!((listed.lines().count(), read), (40, 2));
    let id = |listed: &str| {
        let line = listed.lines().find(|line| line.starts_with("moved")).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_ne!(id(&listed), id(&first));
    // A damaged file costs requests.
    fs::write(world.path("other/.vellum/known-refs"), "damaged").unwrap();
    assert_eq!(list(&["tag", "list"]).0, listed);
}
