//! `vellum sync` with another host.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::other_host::{Host, describe_tree};
use crate::world::{World, noise};

fn fill(world: &World) {
    for number in 0..200 {
        world.write(&format!("src/dir/f{number}"), format!("file {number}\n").repeat(number));
    }
    world.write("src/big", noise(2_000_000));
    world.write("src/empty", "");
    world.write("src/odd \n'\"$(touch x);`touch y`", "odd");
    world.chmod("src/empty", 0o604);
    symlink("../nowhere", world.tree().join("src/dir/link")).unwrap();
    fs::hard_link(world.tree().join("src/big"), world.tree().join("src/dir/again")).unwrap();
}

#[test]
fn a_tree_goes_there_and_comes_back() {
    let host = Host::new();
    fill(&host.world);
    host.sync(&["-aH", "src/", &host.at("there")]).ok().says("Done: ");
    host.assert_equal("src", "there");
    host.sync(&["-aH", &host.at("there/"), "back"]).ok().says("Done: ");
    host.assert_equal("src", "back");
    host.sync(&["-aH", "--delete", "src/", &host.at("there")]).ok().says("Nothing to do");
    host.sync(&["-aH", "--delete", &host.at("there/"), "src"]).ok().says("Nothing to do");
    assert!(!host.world.has("x") && !host.world.has("y"));
}

#[test]
fn what_changed_goes_and_what_is_gone_is_deleted() {
    let host = Host::new();
    fill(&host.world);
    host.sync(&["-aH", "src", &host.at("there/")]).ok();
    host.assert_equal("src", "there/src");
    let mut big = fs::read(host.world.tree().join("src/big")).unwrap();
    big.splice(1_000_000..1_000_000, *b"inserted");
    host.world.write("src/big", &big);
    host.world.remove("src/dir/f7");
    for compress in ["--compress=none", "--compress=zstd"] {
        host.sync(&["-aH", "--delete", compress, "-c", "src", &host.at("there/")]).ok();
        host.assert_equal("src", "there/src");
    }
    host.sync(&["-aHc", "--delete", &host.at("there/src"), "back"]).ok();
    host.assert_equal("src", "back/src");
}

#[test]
fn a_file_that_moved_into_a_new_directory_is_renamed_there() {
    let host = Host::new();
    host.world.write("src/a/file", noise(100_000));
    host.world.write("src/a/other", "stays");
    host.world.write("src/a/third", "stays");
    host.sync(&["-a", "src/", &host.at("there")]).ok();
    let inode = |path: &str| fs::metadata(host.world.tree().join(path)).unwrap().ino();
    let before = inode("there/a/file");
    fs::create_dir_all(host.world.tree().join("src/new/deep")).unwrap();
    fs::rename(host.world.tree().join("src/a/file"), host.world.tree().join("src/new/deep/file")).unwrap();
    host.sync(&["-a", "--delete", "--detect-renames", "src/", &host.at("there")]).ok().says("rename");
    assert_eq!(inode("there/new/deep/file"), before, "renamed, not sent");
    host.assert_equal("src", "there");
    host.sync(&["-a", "--delete", "--detect-renames", "src/", &host.at("there")]).ok().says("Nothing to do");
}

#[test]
fn hosts_are_reached_through_what_rsync_is_told_to_use_and_patterns_are_named() {
    let host = Host::new();
    host.world.write("src/file", "content");
    let to = host.at("there");
    let words = ["sync", "--remote-program", env!("CARGO_BIN_EXE_vellum"), "src/", &to];
    let ran = host.world.command_at_home(&words).env("RSYNC_RSH", &host.rsh).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(host.world.read("there/file"), "content");
    host.sync(&["-a", &host.at("src/*"), "back"]).code(3).remarks("is not expanded");
    host.sync(&["-a", &host.at("src/none"), "back"]).code(2).remarks("No such file");
    host.world.write("list", "file\nnone\n");
    host.sync(&["-a", "--files-from=list", &host.at("src/"), "back"]).code(1).remarks("none");
    assert_eq!(host.world.read("back/file"), "content");
}

#[test]
fn a_file_goes_alone() {
    let host = Host::new();
    host.world.write("one", "content");
    host.sync(&["one", &host.at("new")]).ok();
    assert_eq!(host.world.read("new"), "content");
    fs::create_dir(host.world.tree().join("dir")).unwrap();
    host.sync(&["one", &host.at("dir")]).ok();
    assert_eq!(host.world.read("dir/one"), "content");
    host.sync(&[&host.at("dir/one"), "two"]).ok();
    assert_eq!(host.world.read("two"), "content");
}

/// hostile.md 49: nothing that was typed as a path is read by a shell.
#[test]
fn paths_are_no_commands() {
    let host = Host::new();
    host.world.write("src/file", "content");
    for name in ["a b", "a'b", "a\"b", "$(touch x)", "`touch x`", ";touch x", "a\nb", "*", "-rf"] {
        host.sync(&["src/", &host.at(name)]).ok();
        assert_eq!(host.world.read(&format!("{name}/file")), "content", "{name:?}");
        host.sync(&[&format!("{}/", host.at(name)), "back"]).ok();
    }
    assert!(!host.world.has("x"));
    host.sync(&["--", "src", "-oProxyCommand=touch x:y"]).code(3).remarks("is not a host name");
    host.sync(&["src", "host::module"]).code(3).remarks("rsync daemon");
    assert!(!host.world.has("x"));
}

#[test]
fn a_dry_run_says_what_would_be_and_does_nothing() {
    let host = Host::new();
    host.world.write("src/file", "content");
    host.sync(&["-n", "src", &host.at("there")]).ok().says("as 'src'").says("write   file");
    assert!(!host.world.has("there"));
}

#[test]
fn what_fails_there_is_told_here() {
    let host = Host::new();
    host.world.write("file", "content");
    host.sync(&[&host.at("none"), "back"]).code(2).remarks("No such file");
    host.sync(&["file", &host.at("file/below")]).code(2);
    let program = "/nowhere/vellum";
    let ran = host.world.run(&["sync", "-e", &host.rsh, "--remote-program", program, "file", &host.at("x")]);
    ran.code(2).remarks("the connection to 'here' is gone");
    host.world.run(&["sync", "-e", "/nowhere/ssh", "file", &host.at("x")]).code(2).remarks("start ssh");
}

/// The list went as a map whose keys are no strings.
#[test]
fn a_list_of_files_goes_over_the_line() {
    let host = Host::new();
    for path in ["src/a", "src/d/b", "src/c"] {
        host.world.write(path, "content");
    }
    host.world.write("list", "a\nd/b\n");
    host.sync(&["-a", "--files-from", "list", "src/", &host.at("there")]).ok();
    host.sync(&["-a", "--files-from", "list", &host.at("src/"), "back"]).ok();
    for side in ["there", "back"] {
        assert!(host.world.has(&format!("{side}/a")) && host.world.has(&format!("{side}/d/b")));
        assert!(!host.world.has(&format!("{side}/c")));
    }
}

/// Only that it is right: how long it takes is what `bench/run.py sync_remote` measures.
#[test]
fn a_slow_line_changes_nothing() {
    let host = Host::through("RELAY 0.05 0 -");
    fill(&host.world);
    host.sync(&["-aH", "src/", &host.at("there")]).ok();
    host.assert_equal("src", "there");
    host.sync(&["-aH", &host.at("there/"), "back"]).ok();
    host.assert_equal("src", "back");
}

#[test]
fn a_connection_that_is_cut_is_made_again() {
    for there in [true, false] {
        // Beyond what the two sides say before any content.
        let host = Host::through("RELAY 0 20000 MARKER");
        fill(&host.world);
        let (from, to) =
            if there { ("src/".to_owned(), host.at("there")) } else { (host.at("src/"), "there".into()) };
        host.sync(&["-aH", &from, &to]).ok();
        assert!(host.world.path("ssh/marker").exists(), "it was cut");
        host.assert_equal("src", "there");
    }
}

#[test]
fn what_arrived_of_a_file_before_a_cut_is_not_sent_again() {
    let host = Host::through("RELAY 0 2500000 MARKER");
    host.world.write("src/big", noise(4_000_000));
    host.sync(&["-a", &host.at("src/"), "there"]).ok();
    assert!(host.world.path("ssh/marker").exists(), "it was cut");
    host.assert_equal("src", "there");
    let passed = host.passed();
    assert!(passed < 5_500_000, "{passed} bytes");
}

/// What a cut connection left in the directory of `--partial-dir` is taken up, and a directory beside the file is gone in
/// the end.
#[test]
fn what_is_kept_in_a_partial_directory_after_a_cut_is_not_sent_again() {
    for (there, is_absolute) in [(true, false), (false, false), (true, true)] {
        // Cut when it is told to be, and not before.
        let host = Host::through("RELAY 0 1000000000 MARKER");
        host.world.write("src/dir/big", noise(6_000_000));
        let (from, to) =
            if there { ("src/".to_owned(), host.at("there")) } else { (host.at("src/"), "there".into()) };
        let common = host.world.path("kept");
        let option = match is_absolute {
            true => format!("--partial-dir={}", common.display()),
            false => "--partial-dir=.kept".to_owned(),
        };
        let words = ["-a", &option, "--bwlimit=300K", "--retries=0", &from, &to];
        let mut child = host.start(&words);
        let kept = || match is_absolute {
            true => arriving(&common, 0).unwrap_or_default(),
            false => host.world.tree().join("there/dir/.kept/big"),
        };
        let arrived = || fs::metadata(kept()).map_or(0, |found| found.len());
        crate::mounting::wait_until("a fourth of it", || arrived() >= 1_500_000);
        host.cut();
        assert!(!child.wait().unwrap().success());
        assert!(!host.world.has("there/dir/big"));
        // The other side may be at work a moment longer.
        crate::mounting::wait_until("the end", || fs::File::open(kept()).unwrap().try_lock().is_ok());
        assert!(arrived() >= 1_500_000, "it is kept");
        fs::remove_file(host.world.path("ssh/marker.passed")).unwrap();
        host.sync(&["-a", &option, &from, &to]).ok();
        host.assert_equal("src", "there");
        let passed = host.passed();
        assert!(passed < 5_500_000, "{passed} bytes");
        assert!(!host.world.has("there/dir/.kept"));
        assert!(!is_absolute || fs::read_dir(&common).unwrap().next().is_none());
    }
}

/// The file that is being received in a directory, if so much of it has arrived.
fn arriving(dir: &Path, bytes: u64) -> Option<PathBuf> {
    let names = fs::read_dir(dir).ok()?.map(|entry| entry.unwrap().path());
    names.into_iter().find(|path| {
        let is_temp =
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".vellum-tmp-"));
        is_temp && fs::metadata(path).is_ok_and(|found| found.len() >= bytes)
    })
}

#[test]
fn what_arrived_of_a_file_before_a_kill_is_not_sent_again() {
    for there in [true, false] {
        // Never cut: the relay counts.
        let host = Host::through("RELAY 0 1000000000 MARKER");
        host.world.write("src/big", noise(6_000_000));
        fs::create_dir(host.world.tree().join("there")).unwrap();
        let (from, to) =
            if there { ("src/".to_owned(), host.at("there")) } else { (host.at("src/"), "there".into()) };
        let mut child = host.start(&["-a", "--bwlimit=300K", &from, &to]);
        let dir = host.world.tree().join("there");
        crate::mounting::wait_until("a third of it", || arriving(&dir, 2_000_000).is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        // The other side may be at work a moment longer.
        let left = arriving(&dir, 2_000_000).unwrap();
        crate::mounting::wait_until("the end", || fs::File::open(&left).unwrap().try_lock().is_ok());
        assert!(!host.world.has("there/big"));
        fs::remove_file(host.world.path("ssh/marker.passed")).unwrap();
        host.sync(&["-a", &from, &to]).ok();
        host.assert_equal("src", "there");
        let passed = host.passed();
        assert!(passed < 5_000_000, "{passed} bytes");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "nothing is left");
    }
}

/// What an earlier run left in a directory for it is compared, whatever it is.
#[test]
fn what_is_left_of_a_file_is_never_trusted() {
    let host = Host::new();
    let content = noise(3_000_000);
    host.world.write("src/big", &content);
    let mut damaged = content[..2_000_000].to_vec();
    damaged[777_777] ^= 1;
    for left in [damaged, vec![0; 4_000_000], content.iter().rev().copied().collect()] {
        for there in [true, false] {
            let _ = fs::remove_dir_all(host.world.tree().join("there"));
            host.world.write("there/.partial/big", &left);
            let (from, to) =
                if there { ("src/".to_owned(), host.at("there")) } else { (host.at("src/"), "there".into()) };
            host.sync(&["-a", "--partial-dir=.partial", &from, &to]).ok();
            host.assert_equal("src", "there");
        }
    }
}

/// hostile.md 46.
#[test]
fn a_full_disk_there_keeps_the_old_file_and_more_room_mends_it() {
    let disk = crate::disk::Disk::in_memory(4);
    let host = Host::new();
    let old = noise(1_000_000);
    fs::create_dir(disk.path().join("there")).unwrap();
    fs::write(disk.path().join("there/big"), &old).unwrap();
    host.world.write("src/big", noise(6_000_000).into_iter().rev().collect::<Vec<u8>>());
    let to = format!("here:{}/there", disk.path().display());
    host.sync(&["-a", "src/", &to]).code(1).remarks("No space");
    assert!(fs::read(disk.path().join("there/big")).unwrap() == old);
    disk.grow(64);
    host.sync(&["-a", "src/", &to]).ok();
    assert_eq!(describe_tree(&disk.path().join("there")), describe_tree(&host.world.tree().join("src")));
}

/// A destination that was made on the way could not be made durable.
#[test]
fn a_new_destination_there_is_made_durable() {
    let host = Host::new();
    host.world.write("src/dir/file", "content");
    host.sync(&["-a", "--fsync", "src/", &host.at("there")]).ok();
    host.sync(&["-a", "--fsync", "src/", &host.at("made/there")]).ok();
    host.assert_equal("src", "made/there");
}

#[test]
fn modes_of_what_is_left_are_those_of_the_source() {
    let host = Host::new();
    host.world.write("src/script", "#!/bin/sh\n");
    host.world.chmod("src/script", 0o750);
    host.sync(&["-a", "--chmod", "Fgo-x", "src/", &host.at("there")]).ok();
    let mode = fs::metadata(host.world.tree().join("there/script")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o740);
}

#[test]
fn both_ways_over_ssh() {
    let host = Host::new();
    let world = &host.world;
    world.write("a/one", "1\n");
    world.write("a/dir/both", "b\n");
    world.write("b/two", "2\n");
    let both = |more: &[&str]| host.both(more);
    both(&[]).ok();
    host.assert_equal("a", "b");
    // Each side changes something, deletes something, and both change the same.
    world.write("b/two", "changed there\n");
    world.write("a/new", "new here\n");
    world.remove("a/one");
    world.write("a/dir/both", "changed here\n");
    world.write("b/dir/both", "changed there, too\n");
    both(&["-n"]).ok().says("rename  dir/both");
    both(&[]).ok();
    assert_eq!(files(world, "a"), files(world, "b"));
    assert_eq!(world.read("a/two"), "changed there\n");
    assert_eq!(world.read("b/new"), "new here\n");
    assert!(!world.has("b/one"));
    let kept = fs::read_dir(world.tree().join("b/dir")).unwrap().count();
    assert_eq!(kept, 2);
    world.write("a/dir/both", "here\n");
    world.write("b/dir/both", "larger there\n");
    both(&["--conflict", "larger"]).ok();
    assert_eq!(world.read("a/dir/both"), "larger there\n");
    both(&[]).ok().says("Nothing to do");
}

/// Files of both sides, and directories, whose times are each side's own.
fn files(world: &World, side: &str) -> Vec<String> {
    describe_tree(&world.tree().join(side)).into_iter().filter(|line| !line.contains(" 40755 ")).collect()
}

/// Makes so many files of 100 KB.
fn make_files(world: &World, side: &str, count: usize) {
    for (number, content) in noise(count * 100_000).chunks(100_000).enumerate() {
        world.write(&format!("{side}/f{number}"), content);
    }
}

#[test]
fn both_ways_a_connection_that_is_cut_is_made_again_and_what_arrived_is_not_sent_again() {
    let whole = 4_000_000;
    let cut = 2_000_000;
    let host = Host::through(&format!("RELAY 0 {cut} MARKER"));
    make_files(&host.world, "b", 40);
    fs::create_dir(host.world.tree().join("a")).unwrap();
    host.both(&["--jobs", "1"]).ok().says("40 files");
    assert!(host.world.path("ssh/marker").exists(), "it was cut");
    assert_eq!(files(&host.world, "a"), files(&host.world, "b"));
    // Some files were under way at once; the rest of what passed before the cut is here.
    let passed = host.passed();
    assert!(passed < whole + 1_500_000, "{passed} bytes");
    host.both(&[]).ok().says("Nothing to do: 40 entries agree");
}

#[test]
fn both_ways_a_cut_while_sending_and_a_conflict_lose_nothing() {
    let host = Host::through("RELAY 0 1000000 MARKER");
    let world = &host.world;
    make_files(world, "a", 30);
    world.write("a/both", "here\n");
    world.write("b/both", "there!\n");
    host.both(&[]).ok().says("rename  both -> both.conflict-");
    assert!(world.path("ssh/marker").exists(), "it was cut");
    assert_eq!(files(world, "a"), files(world, "b"));
    assert_eq!(files(world, "a").len(), 32);
    host.both(&[]).ok().says("Nothing to do: 32 entries agree");
}

/// Looking again at paths that a rule may hide gave the far side other numbers for its files.
#[test]
fn both_ways_with_rules_the_right_content_comes() {
    let host = Host::new();
    let world = &host.world;
    for (path, content) in
        [("b/a.log", "left out\n"), ("b/b", "first\n"), ("b/d/c", "second\n"), ("a/e", "third\n")]
    {
        world.write(path, content);
    }
    host.both(&["--exclude", "*.log"]).ok();
    let read = |path: &str| world.read(path);
    assert_eq!(
        (read("a/b"), read("a/d/c"), read("b/e")),
        ("first\n".into(), "second\n".into(), "third\n".into())
    );
    assert!(!world.has("a/a.log"));
}
