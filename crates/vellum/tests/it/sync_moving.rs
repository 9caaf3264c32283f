//! `vellum sync --remove-source-files`: what the destination has is taken away at the source, and nothing else.

use std::fs;
use std::path::Path;

use crate::disk::Disk;
use crate::other_host::{Host, describe_tree};
use crate::world::{World, noise};

const MOVE: &str = "--remove-source-files";

/// The files of a directory and of those in it.
fn files(root: &Path) -> usize {
    let count = |path: &Path| if path.is_dir() { files(path) } else { 1 };
    fs::read_dir(root).unwrap().map(|entry| count(&entry.unwrap().path())).sum()
}

fn fill(world: &World) {
    for number in 0..30 {
        world.write(&format!("src/dir/f{number}"), format!("file {number}\n").repeat(number));
    }
    world.write("src/big", noise(4_000_000));
}

#[test]
fn a_dry_run_says_what_is_taken_away_and_takes_nothing() {
    let world = World::empty();
    world.write("src/dir/f", "f");
    let dry = world.run(&["sync", "-an", MOVE, "src/", "dst"]).ok();
    dry.says("  remove  dir/f at the source").says("1 removed at the source");
    assert!(world.has("src/dir/f") && !world.has("dst"));
    let done = world.json(&["sync", "-a", MOVE, "src/", "dst"]);
    assert_eq!(done["taken_away"], 1);
    assert!(!world.has("src/dir/f") && world.has("src/dir") && world.has("dst/dir/f"));
    // What is there already goes, too.
    world.write("src/dir/f", "f");
    world.run(&["sync", "-ac", MOVE, "src/", "dst"]).ok().says("1 removed at the source");
    assert!(!world.has("src/dir/f") && world.has("dst/dir/f"));
}

/// Both were taken away once, and the first was overwritten by the second.
#[test]
fn two_files_of_one_name_are_not_both_taken_away() {
    let host = Host::new();
    let world = &host.world;
    for (x, y) in [("x/r".to_owned(), "y/r".to_owned()), (host.at("x/r"), host.at("y/r"))] {
        let _ = fs::remove_dir_all(world.tree().join("dst"));
        world.write("x/r", "the first");
        world.write("y/r", "the second");
        let dry = host.sync(&["-an", MOVE, &x, &y, "dst/"]).ok();
        dry.says("  remove  r at the source").remarks("an earlier source has another entry of this name");
        assert!(world.has("x/r") && !world.has("dst"));
        host.sync(&["-a", MOVE, &x, &y, "dst/"]).ok().remarks("r: an earlier source");
        assert_eq!((world.read("dst/r").as_str(), world.read("y/r").as_str()), ("the first", "the second"));
        assert!(!world.has("x/r"));
    }
}

/// A source that goes into the destination as itself would be taken away as its own copy.
#[test]
fn sources_that_lie_in_the_destination_are_not_taken_away() {
    let world = World::empty();
    for name in ["dst/a/f", "dst/b/f", "c/g"] {
        world.write(name, name);
    }
    let refused = world.run(&["sync", "-a", MOVE, "dst/a", "c", "dst"]).code(3);
    refused.remarks("one directory");
    world.run(&["sync", "-a", MOVE, "dst/a/", "dst/b/", "dst/"]).ok();
    assert_eq!((world.read("dst/f").as_str(), world.read("dst/b/f").as_str()), ("dst/a/f", "dst/b/f"));
}

#[test]
fn what_cannot_be_moved_is_refused() {
    let world = World::with_snapshot();
    world.write("src/f", "f");
    let refused = |words: &[&str], why: &str| {
        world.run(&[&["sync", "-a", MOVE], words].concat()).code(3).remarks(why);
    };
    refused(&["--delete", "src/", "../dst"], "would be deleted at the destination");
    refused(&["-L", "src/", "../dst"], "symlinks lead to");
    refused(&["@first:/dir", "../dst"], "the snapshot first");
    refused(&["--two-way", "src", "../dst"], "no meaning with --two-way");
    assert!(world.has("src/f") && !world.path("dst").exists());
}

/// The file that is its own copy would be gone.
#[test]
fn a_file_that_is_its_own_copy_stays() {
    let host = Host::new();
    let world = &host.world;
    world.write("dir/f", "the only one");
    world.write("dir/sub/g", "the only one");
    world.write("other/x", "x");
    fs::hard_link(world.tree().join("dir/f"), world.tree().join("other/f")).unwrap();
    std::os::unix::fs::symlink("f", world.tree().join("dir/link")).unwrap();
    let (dir, far) = (host.at("dir/"), host.at("dir"));
    let lines: [&[&str]; 6] = [
        &["dir/f", "dir/"],
        &["dir/f", "dir/f"],
        &["dir/link", "dir/"],
        &["other/f", "dir/"],
        &["dir/", &far],
        &[&dir, "dir"],
    ];
    for words in lines {
        host.sync(&[&["-a", MOVE], words].concat()).code(1).remarks("the same file as at the destination");
        for (path, content) in
            [("dir/f", "the only one"), ("dir/sub/g", "the only one"), ("other/f", "the only one")]
        {
            assert_eq!(world.read(path), content, "{words:?}");
        }
        assert!(world.has("dir/link"));
    }
}

#[test]
fn files_move_to_another_host_and_from_it_through_a_cut() {
    for there in [true, false] {
        for relay in ["", "RELAY 0 2500000 MARKER"] {
            let host = Host::through(relay);
            fill(&host.world);
            let before = describe_tree(&host.world.tree().join("src"));
            let (from, to) =
                if there { ("src/".to_owned(), host.at("there")) } else { (host.at("src/"), "there".into()) };
            host.sync(&["-a", MOVE, &from, &to]).ok();
            assert_eq!(host.world.path("ssh/marker").exists(), !relay.is_empty());
            assert_eq!(describe_tree(&host.world.tree().join("there")), before);
            assert_eq!(files(&host.world.tree().join("src")), 0);
            assert!(host.world.has("src/dir"));
            host.sync(&["-a", MOVE, &from, &to]).ok();
        }
    }
}

/// What did not arrive stays, be it that it could not be written or that nobody tried.
#[test]
fn what_a_full_disk_does_not_take_stays_at_the_source() {
    let host = Host::new();
    let disk = Disk::in_memory(3);
    for to in [disk.path().join("here").display().to_string(), format!("here:{}/far", disk.path().display())]
    {
        let _ = fs::remove_dir_all(disk.path().join("here"));
        fill(&host.world);
        let before = files(&host.world.tree().join("src"));
        host.sync(&["-a", MOVE, "--jobs=1", "src/", &to]).code(1).remarks("No space");
        assert_eq!(files(&host.world.tree().join("src")), before);
    }
    disk.grow(64);
    host.sync(&["-a", MOVE, "src/", &format!("here:{}/far", disk.path().display())]).ok();
    assert_eq!(files(&host.world.tree().join("src")), 0);
    assert_eq!(files(&disk.path().join("far")), 31);
}
