//! `vellum sync` with `--temp-dir` (files are written in a directory of the user's before they get their names) and with
//! `--delay-updates` (they get them all at once).

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use crate::disk::Disk;
use crate::other_host::{Host, describe_tree};
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
    let near = world.path("near");
    let far = disk.path();
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
        let all = describe_tree(&world.tree().join(tree)).into_iter();
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
        assert_eq!(describe_tree(&world.tree().join(to)), describe_tree(&world.tree().join("src")), "{to}");
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
    let left = describe_tree(&world.tree().join("dst"));
    assert!(!left.iter().any(|line| line.contains(".vellum-tmp")), "{left:?}");
    world.run(&["sync", "-a", "src/", "dst"]).ok();
    assert_eq!(describe_tree(&world.tree().join("dst")), describe_tree(&world.tree().join("src")));
}

#[test]
fn a_temporary_directory_that_is_none_is_an_error_before_anything_is_changed() {
    let host = Host::new();
    let world = &host.world;
    fill(world, &["dst"]);
    world.write("file", "no directory");
    let before = describe_tree(&world.tree().join("dst"));
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
    assert_eq!(describe_tree(&world.tree().join("dst")), before);
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

/// The names in a tree that are temporary.
fn temporary(world: &World, tree: &str) -> Vec<String> {
    let all = describe_tree(&world.tree().join(tree)).into_iter();
    all.filter(|line| line.contains(".vellum-tmp")).collect()
}

#[test]
fn delayed_files_are_what_they_would_be_without_delay() {
    let host = Host::new();
    let world = &host.world;
    let trees = ["plain", "temp", "linked", "there", "here"];
    fill(world, &trees);
    world.write("src/dir/one", "two names");
    fs::hard_link(world.tree().join("src/dir/one"), world.tree().join("src/two")).unwrap();
    for tree in trees {
        world.write(&format!("{tree}/extra"), "goes");
    }
    let disk = Disk::in_memory(64);
    let elsewhere = disk.path();
    let elsewhere = elsewhere.to_str().unwrap();
    let there = host.at("there");
    let fetched = host.at("src/");
    for (words, from, to) in [
        (&["--delete-before"][..], "src/", "plain"),
        (&["--delete", "-T", elsewhere, "-b", "--backup-dir=../kept"], "src/", "temp"),
        (&["--delete", "--link-dest=../plain"], "src/", "linked"),
        (&["--delete"], "src/", &*there),
        (&["--delete"], &*fetched, "here"),
    ] {
        let words = [&["-aH", "--delay-updates", "--force-delete"], words, &[from, to]].concat();
        if words.iter().any(|word| word.contains("backup")) {
            let kept = world.path("kept");
            let backup = format!("--backup-dir={}", kept.display());
            let mut words = words;
            words.retain(|word| !word.starts_with("--backup-dir"));
            words.push(&backup);
            host.sync(&words).ok();
            assert_eq!(fs::read_to_string(kept.join("edited")).unwrap(), "before");
            assert_eq!(fs::read_to_string(kept.join("extra")).unwrap(), "goes");
            host.sync(&words).ok().says("Nothing to do");
        } else {
            host.sync(&words).ok();
            host.sync(&words).ok().says("Nothing to do");
        }
        let tree = to.rsplit(['/', ':']).next().unwrap();
        host.assert_equal("src", tree);
        let inode = |path: &str| fs::metadata(world.tree().join(tree).join(path)).unwrap().ino();
        assert_eq!(inode("dir/one"), inode("two"), "{tree}");
    }
    world.run(&["sync", "-a", "--delay-updates", "--inplace", "src/", "plain"]).code(3).remarks("in place");
}

#[test]
fn no_file_gets_its_name_before_all_are_written() {
    let world = World::empty();
    for n in 0..8 {
        world.write(&format!("dst/d/f{n}"), "old");
        world.write(&format!("src/d/f{n}"), noise(400_000));
    }
    world.write("src/unreadable", "x");
    let start = |signal: &str| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_vellum"))
            .args(["sync", "-aI", "--delay-updates", "--bwlimit=2M", "-j1", "src/", "dst"])
            .current_dir(world.tree())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // Two of eight are complete, and wait.
        crate::mounting::wait_until("files that wait", || {
            let names = fs::read_dir(world.tree().join("dst")).unwrap().map(|entry| entry.unwrap().path());
            let mut hidden = names.filter(|path| path.to_string_lossy().contains(".vellum-tmp-"));
            hidden.next().is_some_and(|dir| fs::read_dir(dir).is_ok_and(|names| names.count() >= 2))
        });
        for n in 0..8 {
            assert_eq!(world.read(&format!("dst/d/f{n}")), "old", "{signal}");
        }
        let pid = child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        child.wait().unwrap();
        for n in 0..8 {
            assert_eq!(world.read(&format!("dst/d/f{n}")), "old", "{signal}");
        }
    };
    start("-INT");
    assert_eq!(temporary(&world, "dst"), [""; 0], "what is stopped cleans up");
    start("-KILL");
    assert!(!temporary(&world, "dst").is_empty());
    // What was left is swept, and was not taken for content.
    world.run(&["sync", "-aI", "--delay-updates", "src/", "dst"]).ok();
    assert_eq!(describe_tree(&world.tree().join("dst")), describe_tree(&world.tree().join("src")));
}

#[test]
fn what_waits_is_given_up_on_a_full_disk_and_large_files_are_found_again() {
    let world = World::empty();
    let disk = Disk::in_memory(6);
    let to = disk.path().join("dst");
    world.write("src/a", "new");
    world.write("src/b", noise(2_000_000));
    world.write("src/c", noise(5_000_000));
    fs::create_dir(&to).unwrap();
    fs::write(to.join("a"), "old one").unwrap();
    let shown = to.to_str().unwrap();
    let words = ["sync", "-a", "--delay-updates", "--resume", "-j1", "src/", shown];
    world.run(&words).code(1).remarks("keep their old versions");
    assert_eq!(fs::read_to_string(to.join("a")).unwrap(), "old one");
    assert!(!to.join("b").exists() && !to.join("c").exists());
    let left = describe_tree(&to);
    assert!(left.iter().any(|line| line.contains(" 2000000 ")), "it is found again: {left:?}");
    fs::remove_file(world.tree().join("src/c")).unwrap();
    world.run(&words).ok();
    assert_eq!(describe_tree(&to), describe_tree(&world.tree().join("src")));
}

#[test]
fn a_connection_that_is_cut_before_the_names_are_given_is_made_again() {
    for there in [true, false] {
        let host = Host::through("RELAY 0 2500000 MARKER");
        host.world.write("src/a", "new");
        host.world.write("src/big", noise(4_000_000));
        host.world.write("there/a", "old one");
        let (from, to) =
            if there { ("src/".to_owned(), host.at("there")) } else { (host.at("src/"), "there".into()) };
        host.sync(&["-a", "--delay-updates", &from, &to]).ok();
        assert!(host.world.path("ssh/marker").exists(), "it was cut");
        host.assert_equal("src", "there");
    }
}
