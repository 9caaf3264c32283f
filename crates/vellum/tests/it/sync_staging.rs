//! `vellum sync` with `--temp-dir`: files are written in a directory of the user's before they get their names.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use crate::disk::Disk;
use crate::other_host::{Host, told};
use crate::world::{World, noise};

/// A source with small and large files, of which the destinations have old versions.
fn fill(world: &World, destinations: &[&str]) {
    world.write("src/dir/small", "small");
    world.write("src/edited", "before");
    world.write("src/large", noise(3_000_000));
    for to in destinations {
        world.run(&["sync", "-a", "src/", to]).ok();
    }
    world.write("src/edited", "after it");
    world.write("src/large", noise(3_500_000));
    world.write("src/dir/new", "new");
    world.write("src/also/large", noise(2_000_000));
    world.chmod("src/dir/new", 0o640);
    std::os::unix::fs::symlink("new", world.tree().join("src/dir/link")).unwrap();
}

fn is_empty(dir: &std::path::Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn files_are_written_in_the_temporary_directory_and_are_whole_under_their_names() {
    let world = World::empty();
    fill(&world, &["beside", "same", "other", "verified", "theirs"]);
    let disk = Disk::in_memory(64);
    let (near, far) = (world.path("near"), disk.path());
    fs::create_dir(&near).unwrap();
    fs::create_dir(world.tree().join("beside/tmp")).unwrap();
    let near = near.to_str().unwrap();
    let old = world.path("old");
    let old = old.to_str().unwrap();
    let elsewhere = far.to_str().unwrap();
    let mut rsync = Command::new("rsync");
    rsync.args(["-a", "--delete", "-T", elsewhere, "src/", "theirs"]).current_dir(world.tree());
    assert!(rsync.status().unwrap().success());
    // Times within one second are equal to rsync: it leaves those of directories and symlinks.
    let files = |tree: &str| {
        let all = told(&world.tree().join(tree)).into_iter();
        all.filter(|line| line.contains("\" 100")).collect::<Vec<_>>()
    };
    for (to, words) in [
        ("beside", &["-T", "tmp", "--delete"][..]),
        ("same", &["--temp-dir", near, "--backup-dir", old]),
        ("other", &["-T", elsewhere, "--resume"]),
        ("verified", &["-T", elsewhere, "--verify", "--fsync", "--delta=always"]),
    ] {
        let run = || world.run(&[&["sync", "-a", "--modify-window=0"], words, &["src/", to]].concat()).ok();
        run();
        run().says("Nothing to do");
        if to == "beside" {
            assert!(is_empty(&world.tree().join("beside/tmp")), "it is neither used up nor deleted");
            fs::remove_dir(world.tree().join("beside/tmp")).unwrap();
        }
        assert_eq!(told(&world.tree().join(to)), told(&world.tree().join("src")), "{to}");
        assert_eq!(files(to), files("theirs"), "{to}");
    }
    assert!(is_empty(std::path::Path::new(near)) && is_empty(&far));
    assert_eq!(fs::read_to_string(world.path("old/edited")).unwrap(), "before");
}

#[test]
fn a_file_that_the_temporary_directory_has_no_room_for_is_named_and_the_old_one_stays() {
    let world = World::empty();
    fill(&world, &["dst"]);
    let disk = Disk::in_memory(1);
    let elsewhere = disk.path();
    world.run(&["sync", "-a", "-T", elsewhere.to_str().unwrap(), "src/", "dst"]).code(1).remarks("large");
    assert_eq!(fs::read(world.tree().join("dst/large")).unwrap(), noise(3_000_000));
    assert!(is_empty(&elsewhere));
    let left = told(&world.tree().join("dst"));
    assert!(!left.iter().any(|line| line.contains(".vellum-tmp")), "{left:?}");
    world.run(&["sync", "-a", "src/", "dst"]).ok();
    assert_eq!(told(&world.tree().join("dst")), told(&world.tree().join("src")));
}

#[test]
fn a_temporary_directory_that_is_none_is_an_error_before_anything_is_changed() {
    let host = Host::new();
    let world = &host.world;
    fill(world, &["dst"]);
    world.write("file", "no directory");
    let before = told(&world.tree().join("dst"));
    let file = world.tree().join("file");
    for (temp, why) in
        [("none", "does not exist"), ("/none", "does not exist"), (file.to_str().unwrap(), "not a directory")]
    {
        for to in ["dst".to_owned(), "fresh".into(), host.at("dst"), host.at("fresh")] {
            let ran = host.sync(&["-a", "--delete", "-T", temp, "src/", &to]);
            ran.code(2).remarks("--temp-dir").remarks(temp).remarks(why);
            assert!(!world.has("fresh"), "{to}");
        }
    }
    world.run(&["sync", "-a", "--partial-dir=/none/deep", "src/", "dst"]).code(2).remarks("--partial-dir");
    world.run(&["sync", "-a", "--partial-dir=/none/deep", "src/", "fresh"]).code(2).remarks("--partial-dir");
    world.run(&["sync", "-a", "--partial-dir=a/b", "src/", "dst"]).code(3).remarks("--partial-dir");
    assert!(!world.has("fresh"));
    assert_eq!(told(&world.tree().join("dst")), before);
}

#[test]
fn the_temporary_directory_of_another_host_is_there() {
    let host = Host::new();
    let world = &host.world;
    fill(world, &["there", "here", "there2/src"]);
    let disk = Disk::in_memory(64);
    let elsewhere = disk.path();
    let elsewhere = elsewhere.to_str().unwrap();
    fs::create_dir(world.tree().join("there/tmp")).unwrap();
    fs::create_dir(world.tree().join("there2/tmp")).unwrap();
    fs::set_permissions(world.tree().join("there2/tmp"), fs::Permissions::from_mode(0o700)).unwrap();
    host.sync(&["-a", "-T", "tmp", "--delete", "src/", &host.at("there")]).ok();
    fs::remove_dir(world.tree().join("there/tmp")).unwrap();
    host.sync(&["-a", "-T", elsewhere, "src/", &host.at("there")]).ok();
    host.assert_equal("src", "there");
    host.sync(&["-a", "-T", "tmp", "src", &host.at("there2")]).ok();
    host.assert_equal("src", "there2/src");
    host.sync(&["-a", "-T", elsewhere, &host.at("src/"), "here"]).ok();
    host.assert_equal("src", "here");
    host.sync(&["-a", "-T", elsewhere, &host.at("src/"), "here"]).ok().says("Nothing to do");
    assert_eq!(fs::metadata(world.tree().join("there/large")).unwrap().nlink(), 1);
}
