//! `vellum sync`

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use crate::disk::Disk;
use crate::other_host::Host;
use crate::world::{World, noise};

/// A world with a source of some files in `tree/src`.
fn world() -> World {
    let world = World::empty();
    world.write("src/a.txt", "one\n");
    world.write("src/dir/b.txt", "two\n");
    world.write("src/dir/deep/c.bin", [0, 1, 2, 255]);
    world
}

#[test]
fn the_everyday_rsync_line_works() {
    let world = world();
    world.run(&["sync", "-aHAX", "--delete", "--info=progress2", "src/", "dst/"]).ok().says("Done: ");
    assert_eq!(world.read("dst/dir/b.txt"), "two\n");
    world.run(&["sync", "-avhP", "--delete", "src/", "dst/"]).ok().says("Nothing to do");
}

#[test]
fn a_slash_decides_what_goes_where_and_the_dry_run_says_so() {
    let world = world();
    world
        .run(&["sync", "-n", "src/", "dst"])
        .ok()
        .says("what is in 'src/' goes into 'dst'")
        .says("a.txt (4 B)");
    assert!(!world.has("dst"));
    world.run(&["sync", "-n", "src", "dst"]).ok().says("the directory 'src' goes into 'dst', as 'src'");
    world.run(&["sync", "src", "dst"]).ok();
    assert_eq!(world.read("dst/src/a.txt"), "one\n");
    world.run(&["sync", "src/a.txt", "dst"]).ok();
    assert_eq!(world.read("dst/a.txt"), "one\n");
    world.run(&["sync", "src/a.txt", "other"]).ok();
    assert_eq!(world.read("other"), "one\n");
}

#[test]
fn deleting_more_than_half_is_refused_without_force() {
    let world = world();
    for number in 0..12 {
        world.write(&format!("src/dir/f{number}"), "x");
    }
    world.run(&["sync", "src/", "dst"]).ok();
    fs::remove_dir_all(world.tree().join("src/dir")).unwrap();
    // What is not a deletion goes on.
    world.write("src/new", "new");
    let output = world.run(&["sync", "--delete", "src/", "dst"]).code(1);
    output.remarks("more than half, so nothing was deleted; --force-delete allows it");
    assert!(world.has("dst/dir/b.txt") && world.read("dst/new") == "new");
    world
        .run(&["sync", "--delete", "src/", "dst"])
        .code(2)
        .remarks("more than half")
        .remarks("--force-delete");
    assert!(world.has("dst/dir/b.txt"));
    world.run(&["sync", "-n", "--delete", "src/", "dst"]).ok().says("would be refused");
    world.run(&["sync", "--delete", "--force-delete", "src/", "dst"]).ok();
    assert!(!world.has("dst/dir"));
    // One of two, and of one: few are no sign of a wrong source.
    fs::rename(world.tree().join("src/new"), world.tree().join("src/other")).unwrap();
    world.run(&["sync", "--delete", "src/", "dst"]).ok().says("1 deleted");
    assert!(!world.has("dst/new") && world.has("dst/other"));
    for name in ["a.txt", "other"] {
        world.remove(&format!("src/{name}"));
    }
    world.run(&["sync", "--delete", "src/", "dst"]).code(2).remarks("the source is empty");
    assert!(world.has("dst/a.txt"));
}

/// The README's own tour led there.
#[test]
fn a_store_is_neither_written_to_nor_deleted() {
    let world = World::empty();
    world.write("src/f", "f");
    world.write("project/g", "g");
    world.write("dst/old", "old");
    world.run(&["init", "--plain", "project", "--store", "dst/store"]).ok();
    world.run_in("project", &["snapshot"]).ok();
    let refused = |words: &[&str], why: &str| {
        let first = ["sync", "-a", "--force-delete", "--in-place"];
        world.run(&[&first, words].concat()).code(2).remarks(why);
        assert!(!world.has("dst/store/f") && world.has("dst/old"), "{words:?}");
    };
    refused(&["src/", "dst/store"], "it is a Vellum store");
    refused(&["src/", "dst/store/packs/new"], "it lies in a Vellum store");
    refused(&["src/f", "dst/store/config"], "a Vellum store");
    refused(&["src", "dst/store"], "a Vellum store");
    refused(&["src/", "project/.vellum/x"], "the state directory of a Vellum worktree");
    refused(&["--delete", "src/", "dst"], "'store' at the destination is a Vellum store");
    refused(&["-b", "--backup-dir", "store/old", "src/", "dst"], "a Vellum store");
    refused(&["--remove-source-files", "dst/store/", "elsewhere"], "a Vellum store");
    let both = world.run_at_home(&["sync", "--two-way", "src", "dst"]).code(2);
    both.remarks("'store' at the destination is a Vellum store");
    world.run(&["sync", "-n", "--delete", "src/", "dst"]).ok().says("would be refused");
    // What leaves it alone is done; copying it is no harm.
    world.run(&["sync", "-a", "src/", "dst"]).ok();
    world.run(&["sync", "-a", "--delete", "--exclude=/store", "src/", "dst"]).ok();
    assert!(!world.has("dst/old"));
    world.run(&["sync", "-a", "dst/store", "copy/"]).ok();
    world.run_in("project", &["verify", "--all"]).ok();
}

#[test]
fn a_missing_source_deletes_nothing() {
    let world = world();
    world.run(&["sync", "src/", "dst"]).ok();
    world.run(&["sync", "--delete", "nothing/", "dst"]).code(2).remarks("nothing/");
    assert!(world.has("dst/dir/b.txt"));
}

#[test]
fn one_directory_is_not_both_ends_and_nesting_is_no_loop() {
    let world = world();
    world.run(&["sync", "src/", "src"]).code(3).remarks("one directory");
    world.run(&["sync", "src/", "src/backup"]).ok();
    world.run(&["sync", "src/", "src/backup"]).ok();
    assert!(world.has("src/backup/a.txt"));
    assert!(!world.has("src/backup/backup"));
    // The source lies in the destination: it is not deleted for not being in itself.
    world.run(&["sync", "--delete", "--force-delete", "src/dir/", "src"]).ok();
    assert!(world.has("src/dir/b.txt") && world.has("src/b.txt") && !world.has("src/a.txt"));
}

#[test]
fn a_symlink_where_the_directory_itself_goes_is_not_followed() {
    let world = world();
    fs::create_dir_all(world.tree().join("dst")).unwrap();
    fs::create_dir(world.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink(world.path("elsewhere"), world.tree().join("dst/src")).unwrap();
    world.run(&["sync", "src", "dst"]).code(2).remarks("something other than a directory");
    assert_eq!(fs::read_dir(world.path("elsewhere")).unwrap().count(), 0);
}

#[test]
fn rules_hold_in_the_order_in_which_they_are_typed() {
    let world = world();
    world.write("src/keep.o", "x");
    world.write("src/lose.o", "x");
    world.run(&["sync", "--include=keep.o", "--exclude=*.o", "src/", "one"]).ok();
    assert!(world.has("one/keep.o") && !world.has("one/lose.o"));
    world.run(&["sync", "--exclude=*.o", "--include=keep.o", "src/", "two"]).ok();
    assert!(!world.has("two/keep.o"));
    world.run(&["sync", "--exclude=/src/dir", "src", "three"]).ok();
    assert!(!world.has("three/src/dir") && world.has("three/src/a.txt"));
    world.run(&["sync", "--max-size=3", "src/", "four"]).ok();
    assert!(!world.has("four/a.txt") && world.has("four/keep.o"));
    world.run(&["sync", "--filter=q", "src/", "five"]).code(3);
}

#[test]
fn json_tells_steps_and_numbers() {
    let world = world();
    let value = world.json(&["sync", "-n", "src/", "dst"]);
    assert_eq!(value["dry_run"], true);
    assert_eq!(value["write_files"], 3);
    assert!(value["steps"].as_array().unwrap().iter().any(|step| step["path"] == "dir/b.txt"));
    let value = world.json(&["sync", "src/", "dst"]);
    assert_eq!((value["made"].as_u64(), value["written_bytes"].as_u64()), (Some(5), Some(12)));
}

#[test]
fn itemize_speaks_rsyncs_letters() {
    let world = world();
    world.run(&["sync", "-ai", "src/", "dst"]).ok().says(">f+++++++++ a.txt").says("cd+++++++++ dir/");
    world.write("src/a.txt", "longer\n");
    world.remove("src/dir/b.txt");
    world
        .run(&["sync", "-ai", "--delete", "src/", "dst"])
        .ok()
        .says(">fcst...... a.txt")
        .says("*deleting   dir/b.txt");
}

#[test]
fn a_profile_is_options_in_front() {
    let world = world();
    let config = world.path("config/vellum");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("config.toml"), "[sync.mine]\noptions = [\"-a\", \"--exclude=dir\"]\n").unwrap();
    let home = world.path("config");
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_vellum"));
        command.args(args).current_dir(world.tree()).env("XDG_CONFIG_HOME", &home).output().unwrap()
    };
    assert!(run(&["sync", "--profile", "mine", "src/", "dst"]).status.success());
    assert!(world.has("dst/a.txt") && !world.has("dst/dir"));
    assert_eq!(run(&["sync", "--profile", "other", "src/", "dst"]).status.code(), Some(3));
}

#[test]
fn a_snapshot_is_a_source() {
    let world = World::with_snapshot();
    let inside = world.tree();
    fs::hard_link(inside.join("a.txt"), inside.join("dir/same")).unwrap();
    std::os::unix::fs::symlink("a.txt", inside.join("link")).unwrap();
    world.write("big", crate::world::noise(3 << 20));
    world.chmod("big", 0o640);
    world.snapshot("second");
    let to = world.path("out");
    let to = to.to_str().unwrap();
    world.run(&["sync", "-aH", "@second:/", to]).ok();
    let read = |name: &str| fs::read(world.path("out").join(name)).unwrap();
    assert_eq!(read("big"), crate::world::noise(3 << 20));
    assert_eq!(fs::metadata(world.path("out/big")).unwrap().permissions().mode() & 0o7777, 0o640);
    let ino = |name: &str| fs::symlink_metadata(world.path("out").join(name)).unwrap().ino();
    assert_eq!(ino("a.txt"), ino("dir/same"));
    assert_eq!(fs::read_link(world.path("out/link")).unwrap().to_str(), Some("a.txt"));
    world.run(&["sync", "-aH", "@second:/", to]).ok().says("Nothing to do");
    world.run(&["sync", "-aHc", "@second:/", to]).ok().says("Nothing to do");
    world.run(&["sync", ".@first:/dir", to]).ok();
    assert_eq!(read("dir/deep/c.bin"), [0, 1, 2, 255]);
    world.run(&["sync", ".@first:/a.txt", &format!("{to}/renamed")]).ok();
    assert_eq!(read("renamed"), b"one\ntwo\nthree\n");
    world.run(&["sync", "dir", "@second:/"]).code(3).remarks("never changes");
}

#[test]
fn a_large_file_of_a_snapshot_is_whole_whoever_copies_its_parts() {
    let world = World::new();
    let mut large = crate::world::noise(40 << 20);
    large[15 << 20..19 << 20].fill(0);
    world.write("large", &large);
    world.snapshot("only");
    for options in [&["--jobs=1"][..], &["--jobs=4"], &["--jobs=4", "--sparse"], &["--jobs=4", "--verify"]] {
        let to = world.path("out");
        let place = to.to_str().unwrap();
        world.run(&[&["sync", "-a"][..], options, &["@only:/", place]].concat()).ok();
        assert!(fs::read(to.join("large")).unwrap() == large, "{options:?}");
        world.run(&["sync", "-a", "-c", "@only:/", place]).ok().says("Nothing to do");
        fs::remove_file(to.join("large")).unwrap();
    }
}

#[test]
fn what_is_backed_up_or_trashed_can_be_had_again() {
    let world = world();
    world.run(&["sync", "src/", "dst"]).ok();
    world.write("src/a.txt", "changed\n");
    world.run(&["sync", "-b", "src/", "dst"]).ok();
    assert_eq!((world.read("dst/a.txt~"), world.read("dst/a.txt")), ("one\n".into(), "changed\n".into()));
    world.remove("src/dir/b.txt");
    world.run(&["sync", "--delete", "--trash", "src/", "dst"]).ok();
    assert!(!world.has("dst/dir/b.txt"));
    let trash = fs::read_dir(world.tree().join("dst/.vellum-trash")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_to_string(trash.join("dir/b.txt")).unwrap(), "two\n");
    world.write("src/a.txt", "again\n");
    world.run(&["sync", "--backup-dir=old", "src/", "dst"]).ok();
    assert_eq!(world.read("dst/old/a.txt"), "changed\n");
}

#[test]
fn backups_in_the_destination_are_not_deleted_by_later_runs() {
    let world = world();
    world.run(&["sync", "src/", "dst"]).ok();
    let whole = world.tree().join("dst/whole");
    let whole = format!("--backup-dir={}", whole.display());
    for (content, option) in [("second\n", "--backup-dir=./old/"), ("third\n", whole.as_str())] {
        world.write("src/a.txt", content);
        world.run(&["sync", "--delete", option, "src/", "dst"]).ok();
        world.run(&["sync", "--delete", option, "src/", "dst"]).ok().says("Nothing to do");
        if option == whole {
            assert_eq!(world.read("dst/whole/a.txt"), "second\n");
        } else {
            assert_eq!(world.read("dst/old/a.txt"), "one\n");
            fs::remove_dir_all(world.tree().join("dst/old")).unwrap();
        }
    }
    assert!(!world.has("dst/whole/whole"));
}

#[test]
fn backups_go_to_another_filesystem() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    let disk = crate::disk::Disk::in_memory(8);
    let world = world();
    symlink("nowhere", world.tree().join("src/link")).unwrap();
    world.chmod("src/a.txt", 0o640);
    world.run(&["sync", "src/", "dst"]).ok();
    let before = fs::metadata(world.tree().join("dst/a.txt")).unwrap();
    world.write("src/a.txt", "changed\n");
    world.remove("src/dir/b.txt");
    world.remove("src/link");
    let option = format!("--backup-dir={}/made/here", disk.path().display());
    world.run(&["sync", "--delete", &option, "src/", "dst"]).ok();
    assert_eq!(world.read("dst/a.txt"), "changed\n");
    assert!(!world.has("dst/dir/b.txt") && !world.has("dst/link"));
    let kept = disk.path().join("made/here");
    assert_eq!(fs::read_to_string(kept.join("a.txt")).unwrap(), "one\n");
    assert_eq!(fs::read_to_string(kept.join("dir/b.txt")).unwrap(), "two\n");
    assert_eq!(fs::read_link(kept.join("link")).unwrap().to_str(), Some("nowhere"));
    let after = fs::metadata(kept.join("a.txt")).unwrap();
    assert_eq!(after.permissions().mode(), before.permissions().mode());
    assert_eq!((after.mtime(), after.mtime_nsec()), (before.mtime(), before.mtime_nsec()));
    // Where there is no room for the old version, it stays where it is.
    let large = crate::world::noise(16 << 20);
    world.write("dst/large", &large);
    world.run(&["sync", "--delete", &option, "src/", "dst"]).code(1).remarks("No space");
    assert!(fs::read(world.tree().join("dst/large")).unwrap() == large);
}

#[test]
fn a_timeout_without_a_connection_is_refused() {
    let world = world();
    world.run(&["sync", "--timeout=9", "src/", "dst"]).code(3).remarks("both ends are on this one");
    assert!(!world.has("dst"));
    world.run(&["sync", "--timeout=0", "src/", "dst"]).ok();
}

/// hostile.md 43.
#[test]
fn who_is_not_root_makes_nothing_privileged() {
    use std::os::unix::fs::MetadataExt;
    const USER: u32 = 4242;
    let world = World::empty();
    world.write("src/set-id", "x");
    world.write("src/capable", "x");
    world.give_to(USER);
    let at = |path: &str| world.tree().join(path);
    for path in ["src/set-id", "src/capable"] {
        std::os::unix::fs::chown(at(path), Some(0), Some(0)).unwrap();
    }
    world.chmod("src/set-id", 0o6755);
    crate::mounting::sh(
        &at("src"),
        "setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 capable
         setfattr -n trusted.mark -v ours capable; setfattr -n user.mark -v ours capable; mknod null c 1 3",
    );
    let ran = world.run_as(USER, &["sync", "-aX", "src/", "dst"]);
    assert!(matches!(ran.code, 0 | 1), "{}", ran.err);
    assert_eq!(fs::symlink_metadata(at("dst/set-id")).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(fs::symlink_metadata(at("dst/set-id")).unwrap().uid(), USER);
    assert!(!world.has("dst/null"));
    let kept = crate::mounting::sh(&at("dst"), "getfattr -d -m - capable");
    assert!(!kept.contains("security.") && !kept.contains("trusted."), "{kept}");
    assert!(kept.contains("user.mark"), "{kept}");
}

#[test]
fn who_is_not_root_copies_what_it_may_read() {
    const USER: u32 = 4242;
    let world = world();
    world.give_to(USER);
    world.write("src/secret", "x");
    world.chmod("src/secret", 0o600);
    world.run_as(USER, &["sync", "src/", "dst"]).code(1).remarks("secret").remarks("ermission denied");
    assert_eq!(world.read("dst/dir/b.txt"), "two\n");
    // What could not be read is not deleted, and nothing else is.
    world.write("dst/extra", "x");
    world.chmod("src/dir", 0o000);
    world.run_as(USER, &["sync", "--delete", "--exclude=secret", "src/", "dst"]).code(1);
    assert!(world.has("dst/extra") && world.has("dst/dir/b.txt"));
}

#[test]
fn killed_anywhere_no_file_is_torn_and_the_next_run_completes_it() {
    use std::time::{Duration, Instant};
    const FILES: usize = 40;
    let world = World::empty();
    for n in 0..FILES {
        world.write(&format!("src/f{n:02}"), crate::world::noise(200_000));
        world.write(&format!("dst/f{n:02}"), "old");
    }
    world.write("src/big", crate::world::noise(4 << 20));
    for when in [1, 5, 20] {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_vellum"))
            // Slow enough to be caught in the middle of it.
            .args(["sync", "-aI", "--resume", "--bwlimit=4M", "src/", "dst"])
            .current_dir(world.tree())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let written = || {
            let names = (0..FILES).map(|n| world.tree().join(format!("dst/f{n:02}")));
            names.filter(|path| fs::metadata(path).is_ok_and(|found| found.len() == 200_000)).count()
        };
        let limit = Instant::now() + Duration::from_secs(60);
        while written() < when && Instant::now() < limit && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        child.wait().unwrap();
        for n in 0..FILES {
            let found = fs::read(world.tree().join(format!("dst/f{n:02}"))).unwrap();
            assert!(found == b"old" || found == crate::world::noise(200_000), "f{n:02} is torn");
        }
        assert!(
            fs::read(world.tree().join("dst/big")).is_ok_and(|big| big.len() == 4 << 20)
                || !world.has("dst/big")
        );
    }
    world.run(&["sync", "-a", "src/", "dst"]).ok();
    world.run(&["sync", "-ac", "src/", "dst"]).ok().says("Nothing to do");
    let names = fs::read_dir(world.tree().join("dst")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.filter(|name| name.to_string_lossy().starts_with(".vellum-tmp")).count(), 0);
}

#[test]
fn a_run_that_is_asked_to_stop_says_how_to_go_on() {
    let world = World::empty();
    for n in 0..20 {
        world.write(&format!("src/f{n:02}"), crate::world::noise(100_000));
    }
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_vellum"))
        .args(["sync", "-a", "--bwlimit=100K", "src/", "dst"])
        .current_dir(world.tree())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !world.has("dst/f00") && std::time::Instant::now() < limit {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(),
        rustix::process::Signal::INT,
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stderr).contains("run the command again"));
    world.run(&["sync", "-a", "src/", "dst"]).ok();
    world.run(&["sync", "-ac", "src/", "dst"]).ok().says("Nothing to do");
}

#[test]
fn an_address_of_an_object_store_asks_no_host_of_that_name() {
    let world = World::empty();
    world.write("a/file", "x");
    for (typed, word) in [
        ("s3://bucket/x", "--rsh has no meaning"),
        ("sftp://host/x", "HOST:PATH"),
        ("file:///tmp/x", "/tmp/x"),
    ] {
        // What would be started to reach a host leaves a mark.
        let args = ["sync", "--rsh", "touch reached", "a/", typed];
        world.run(&args).code(3).remarks(word);
        world.run(&["sync", "--rsh", "touch reached", typed, "b"]).code(3).remarks(word);
        assert!(!world.has("reached") && !world.has("b"));
    }
}

/// A file that was written over in part is told as such, and mended: it was not by a run that goes by times.
#[test]
fn a_file_that_was_partly_written_over_is_told_and_mended() {
    let host = Host::new();
    let world = &host.world;
    let old = noise(3 << 20);
    let new = [&old[1 << 20..], &noise(9 << 20)[3 << 20..], &old[..1 << 20]].concat();
    world.write("src/f", &new);
    for prefix in ["", "here:"] {
        let disk = Disk::in_memory(6);
        let there = disk.path().join("dst");
        fs::create_dir(&there).unwrap();
        fs::write(there.join("f"), &old).unwrap();
        // Older than the source's, so that it is written.
        fs::File::open(there.join("f")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        let to = format!("{prefix}{}", there.display());
        let words = ["-a", "--update", "--in-place", "src/", &to];
        host.sync(&words).code(1).remarks("partly written over").remarks("run the command again");
        disk.grow(64);
        host.sync(&words).ok();
        assert!(fs::read(there.join("f")).unwrap() == new);
        host.sync(&words).ok().says("Nothing to do");
    }
}

/// What `x` rules leave out is neither copied nor removed.
#[test]
fn extended_attributes_that_a_rule_leaves_out_stay_where_they_are() {
    let host = Host::new();
    let world = &host.world;
    let set = |path: &str, name: &str, value: &str| {
        let path = world.tree().join(path);
        let done = Command::new("setfattr").args(["-n", name, "-v", value]).arg(path).status();
        assert!(done.unwrap().success());
    };
    let get = |path: &str| {
        let path = world.tree().join(path);
        let output = Command::new("getfattr").args(["-d", "--absolute-names"]).arg(path).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().filter(|line| line.starts_with("user.")).map(str::to_owned).collect::<Vec<_>>()
    };
    for far in [false, true] {
        let dst = if far { "far" } else { "near" };
        let to = if far { host.at("far/") } else { "near/".to_owned() };
        for path in ["src/f", "src/d/f"] {
            world.write(path, "f");
            set(path, "user.secret", "s");
            set(path, "user.kept", "k");
        }
        let words = ["-aX", "--filter=-x user.sec*", "--filter=-x user.mine", "src/", &to];
        host.sync(&words).ok();
        assert_eq!(get(&format!("{dst}/f")), ["user.kept=\"k\""]);
        set(&format!("{dst}/f"), "user.mine", "m");
        set(&format!("{dst}/d/f"), "user.other", "o");
        host.sync(&words).ok();
        assert_eq!(get(&format!("{dst}/f")), ["user.kept=\"k\"", "user.mine=\"m\""]);
        assert_eq!(get(&format!("{dst}/d/f")), ["user.kept=\"k\""]);
        set(&format!("{dst}/f"), "user.kept", "another");
        host.sync(&words).ok();
        assert_eq!(get(&format!("{dst}/f")), ["user.kept=\"k\"", "user.mine=\"m\""]);
        host.sync(&words).ok().says("Nothing to do");
    }
}
