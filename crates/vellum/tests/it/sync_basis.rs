//! `vellum sync` with `--link-dest`, `--copy-dest` and `--compare-dest`, here and with another host.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::other_host::Host;
use crate::world::World;

/// A tree with an old copy: `same` is as it was, `new` and `edited` are not.
fn fill(world: &World) {
    world.write("src/dir/same", "the same");
    world.write("src/edited", "before");
    world.run(&["sync", "-a", "src/", "old"]).ok();
    world.run(&["sync", "-a", "src/", "old/src"]).ok();
    world.write("src/edited", "after it");
    world.write("src/new", "new");
}

fn inode(world: &World, path: &str) -> u64 {
    fs::metadata(world.tree().join(path)).unwrap().ino()
}

#[test]
fn what_did_not_change_is_linked_copied_or_left_out() {
    let world = World::empty();
    fill(&world);
    let run = |words: &[&str]| world.run(&[&["sync", "-a"], words].concat());
    run(&["-n", "--link-dest=../old", "src/", "linked"]).ok().says("link    dir/same (unchanged");
    run(&["--link-dest=../old", "src/", "linked"]).ok();
    assert_eq!(inode(&world, "linked/dir/same"), inode(&world, "old/dir/same"));
    assert_eq!(world.read("linked/edited"), "after it");
    run(&["--link-dest=../old", "src/", "linked"]).ok().says("Nothing to do");
    run(&["--copy-dest=../old", "src/", "copied"]).ok();
    assert_ne!(inode(&world, "copied/dir/same"), inode(&world, "old/dir/same"));
    assert_eq!(world.read("copied/dir/same"), "the same");
    run(&["--compare-dest=../old", "src/", "left"]).ok();
    assert!(!world.has("left/dir/same") && world.has("left/new") && world.has("left/edited"));
    // A directory that goes there itself is looked for by its name.
    run(&["-c", "--link-dest=../old", "src", "named"]).ok();
    assert_eq!(inode(&world, "named/src/dir/same"), inode(&world, "old/src/dir/same"));
    run(&["--link-dest=../old", "src/new", "src/dir", "several/"]).ok();
    assert_eq!(inode(&world, "several/dir/same"), inode(&world, "old/dir/same"));
}

#[test]
fn a_basis_directory_of_another_host_is_looked_at_there() {
    let host = Host::new();
    fill(&host.world);
    for words in [&[][..], &["-c"]] {
        host.world.run(&["sync", "-a", "src/", "expected"]).ok();
        host.sync(&[&["-a", "--link-dest=../old"], words, &["src/", &host.at("sent")]].concat()).ok();
        assert_eq!(inode(&host.world, "sent/dir/same"), inode(&host.world, "old/dir/same"));
        host.assert_equal("expected", "sent");
        host.sync(&["-a", "--link-dest=../old", "src/", &host.at("sent")]).ok().says("Nothing to do");
        host.sync(&["-a", "--link-dest=../old", "src", &host.at("sent2")]).ok();
        assert_eq!(inode(&host.world, "sent2/src/dir/same"), inode(&host.world, "old/src/dir/same"));
        host.sync(&["-a", "--copy-dest=../old", "src/", &host.at("copied")]).ok();
        host.assert_equal("expected", "copied");
        host.sync(&["-a", "--compare-dest=../old", "src/", &host.at("left")]).ok();
        assert!(!host.world.has("left/dir/same") && host.world.has("left/new"));
        host.sync(&[&["-a", "--link-dest=../old"], words, &[&host.at("src/"), "fetched"]].concat()).ok();
        assert_eq!(inode(&host.world, "fetched/dir/same"), inode(&host.world, "old/dir/same"));
        for made in ["sent", "sent2", "copied", "left", "fetched"] {
            fs::remove_dir_all(host.world.tree().join(made)).unwrap();
        }
    }
}

#[test]
fn a_basis_directory_that_is_not_there_is_named_and_the_rest_goes_on() {
    let host = Host::new();
    fill(&host.world);
    let both = ["-a", "--link-dest=../none", "--link-dest=../old"];
    for to in ["here".to_owned(), host.at("there")] {
        host.sync(&[&both[..], &["src/", &to]].concat()).ok().remarks("none").remarks("does not exist");
    }
    assert_eq!(inode(&host.world, "here/dir/same"), inode(&host.world, "old/dir/same"));
    assert_eq!(inode(&host.world, "there/dir/same"), inode(&host.world, "old/dir/same"));
    host.sync(&["-a", "--link-dest=../old/edited", "src/", "other"]).code(2).remarks("edited");
    host.sync(&["-a", "--link-dest=x", "--copy-dest=y", "src/", "other"]).code(3);
    host.sync(&["--two-way", "--link-dest=x", "src", "old"]).code(3).remarks("--link-dest");
}
