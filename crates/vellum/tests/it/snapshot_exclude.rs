//! `vellum snapshot --exclude`, `--one-file-system` and `--exclude-caches`

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::mounting::{Mount, detach_mount, kill, sh};
use crate::world::{Ran, World, run};

/// How a file begins that marks a cache.
const CACHE_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n# made by a test\n";

#[test]
fn what_is_excluded_is_in_no_snapshot_even_if_the_last_one_has_it() {
    let world = World::with_snapshot();
    world.write("dir/b.o", "object");
    world.write("keep.o", "kept");
    world.write("b", "beside");
    let ran =
        world.run(&["snapshot", "--exclude", "*.o", "--exclude", "!keep.o", "--exclude", "/dir/deep"]).ok();
    assert!(ran.err.is_empty(), "{}", ran.err);
    let ran = world.run(&["ls", "HEAD", "-R"]).ok();
    assert!(!ran.out.contains("b.o") && !ran.out.contains("deep"), "{}", ran.out);
    ran.says("keep.o").says("dir/b.txt");
    assert!(world.has("dir/b.o") && world.has("dir/deep/c.bin"));
    // It is neither new nor gone.
    let ran = world.run(&["status"]).ok().remarks("left out, as from the last snapshot");
    assert!(!ran.out.contains("deep"), "{}", ran.out);
    // The next snapshot says anew what is left out.
    world.run(&["snapshot", "--dry-run"]).code(0).says("deep");
    // One of some paths leaves out what the whole one did.
    world.write("dir/b.txt", "changed");
    world.run(&["snapshot", "dir", "--exclude", "x"]).ok();
    let ran = world.run(&["ls", "HEAD", "-R"]).ok();
    assert!(!ran.out.contains("b.o") && !ran.out.contains("deep"), "{}", ran.out);
    world.run(&["status"]).remarks("'*.o'");
    world.run(&["snapshot"]).ok();
    world.run(&["ls", "HEAD", "-R"]).ok().says("b.o").says("c.bin");
    assert!(!world.run(&["status"]).ok().err.contains("left out"));
}

#[test]
fn a_restore_does_not_touch_what_is_excluded() {
    let world = World::with_snapshot();
    world.write("huge/data", "not to be stored");
    world.write("dir/deep/new", "excluded, too");
    world.write("a.txt", "second");
    let second = world.run(&["snapshot", "-q", "--exclude", "huge", "--exclude", "deep"]).ok().out;
    // The first snapshot has files where excluded ones are now.
    world.run(&["restore", "first"]).code(2).remarks("dir/deep").remarks("would be overwritten or removed");
    assert_eq!(world.read("a.txt"), "second");
    world.run(&["restore", "first", "a.txt"]).ok();
    assert_eq!(world.read("a.txt"), "one\ntwo\nthree\n");
    world.run(&["restore", second.trim()]).ok();
    assert_eq!(world.read("a.txt"), "second");
    assert_eq!(world.read("huge/data"), "not to be stored");
    assert_eq!(world.read("dir/deep/new"), "excluded, too");
    // Nobody has stored it on the way.
    for id in world.json(&["history", "--all"])["snapshots"].as_array().unwrap() {
        let ran = world.run(&["ls", id["id"].as_str().unwrap(), "-R"]).ok();
        assert!(!ran.out.contains("huge"), "{}", ran.out);
    }
    // Once a snapshot was made without it, it is a change like others, and is kept before it goes.
    world.run(&["snapshot", "dir"]).ok();
    world.run(&["snapshot"]).ok();
    world.run(&["restore", "first"]).ok();
    assert!(!world.has("huge/data"));
    world.run(&["restore", "latest"]).ok();
    assert_eq!(world.read("huge/data"), "not to be stored");
}

#[test]
fn patterns_that_are_none_are_refused_and_a_damaged_list_is_named() {
    let world = World::with_snapshot();
    for (wrong, reason) in
        [("#x", "is a comment"), ("", "excludes nothing"), ("a\nb", "line break"), ("[z-a]", "z-a")]
    {
        world.run(&["snapshot", "--exclude", wrong]).code(3).remarks(reason);
    }
    assert_eq!(world.json(&["info"])["snapshots"], 1);
    fs::write(world.tree().join(".vellum/exclusions.json"), "{").unwrap();
    for command in [&["status"][..], &["restore", "first"], &["snapshot"]] {
        world.run(command).code(2).remarks("exclusions.json does not say what the last snapshot left out");
    }
    fs::remove_file(world.tree().join(".vellum/exclusions.json")).unwrap();
    world.run(&["status"]).ok();
}

#[test]
fn a_cache_is_left_out_but_for_its_mark() {
    let world = World::with_snapshot();
    world.write("cache/CACHEDIR.TAG", CACHE_TAG);
    world.write("cache/deep/data", "data");
    world.write("false/CACHEDIR.TAG", "no signature");
    world.write("false/data", "data");
    world.run(&["snapshot", "--exclude-caches"]).ok();
    let ran = world.run(&["ls", "HEAD", "-R"]).ok().says("cache/CACHEDIR.TAG").says("false/data");
    assert!(!ran.out.contains("deep/data"), "{}", ran.out);
    world.run(&["status"]).ok();
    world.run(&["restore", "first"]).code(1).remarks("cache: it stays");
    assert_eq!(world.read("cache/deep/data"), "data");
    // A worktree that is marked itself is not left empty.
    world.write("CACHEDIR.TAG", CACHE_TAG);
    world.write("more", "x");
    world.run(&["snapshot", "--exclude-caches"]).ok();
    world.run(&["ls", "HEAD"]).ok().says("more");
}

#[test]
fn what_is_mounted_is_left_out() {
    let world = World::with_snapshot();
    let before = "beneath the mount";
    world.write("other/before", before);
    world.snapshot("second");
    sh(&world.tree(), "mount -t tmpfs -o mode=755 none other");
    world.write("other/large", "of another filesystem");
    world.run(&["snapshot", "-x", "--tag", "without"]).ok();
    let ran = world.run(&["ls", "HEAD", "-R"]).ok().says("other");
    assert!(!ran.out.contains("large") && !ran.out.contains("before"), "{}", ran.out);
    world.run(&["status"]).ok();
    world.run(&["restore", "first"]).code(1).remarks("cannot remove the directory 'other'");
    assert_eq!(world.read("other/large"), "of another filesystem");
    // A path that is named is looked at where it is.
    world.run(&["restore", "without"]).ok();
    world.run(&["snapshot", "other"]).ok();
    world.run(&["ls", "HEAD", "-R"]).ok().says("other/large");
    world.run(&["snapshot"]).ok();
    world.run(&["ls", "HEAD", "-R"]).ok().says("other/large");
    sh(&world.tree(), "umount other");
    assert_eq!(world.read("other/before"), before);
}

fn vellum(dir: &Path, args: &[&str]) -> Ran {
    run(dir, args, Stdio::null())
}

/// The worktree and a mount of its volume.
fn places(world: &World) -> (Mount<'_>, [PathBuf; 2]) {
    let mount = Mount::new(world, "work");
    let path = mount.path.clone();
    (mount, [world.tree(), path])
}

/// Writes what snapshots are to leave out.
fn build(dir: &Path) {
    sh(
        dir,
        "mkdir -p modules/pkg dir/deep && echo index > modules/pkg/index && ln modules/pkg/index modules/link
         echo object > dir/deep/b.o && ln -s index modules/pkg/symlink && chmod 750 modules/pkg
         touch -d 2001-02-03 modules/pkg/index modules/pkg dir/deep/b.o",
    );
}

/// What is to stay of that: times, modes, links and content.
fn built(dir: &Path) -> String {
    let found =
        "find modules dir/deep/b.o -printf '%p %y %m %n %s %T@ %l\n' | sort; cat modules/link dir/deep/b.o";
    sh(dir, found)
}

const LEAVING_OUT: [&str; 6] = ["snapshot", "-q", "--exclude", "modules", "--exclude", "*.o"];

#[track_caller]
fn assert_in_no_snapshot(dir: &Path) {
    let listed: serde_json::Value =
        serde_json::from_str(&vellum(dir, &["history", "--all", "--json"]).ok().out).unwrap();
    for snapshot in listed["snapshots"].as_array().unwrap() {
        let ran = vellum(dir, &["ls", snapshot["id"].as_str().unwrap(), "-R"]).ok();
        assert!(!ran.out.contains("modules") && !ran.out.contains("b.o"), "{snapshot}: {}", ran.out);
    }
}

#[test]
fn what_is_left_out_stays_whatever_is_done_with_the_worktree() {
    let world = World::with_snapshot();
    let (mount, places) = places(&world);
    for (place, side) in places.iter().zip(["one", "two"]) {
        let run = |args: &[&str]| vellum(place, args);
        let read = |name: &str| fs::read_to_string(place.join(name)).unwrap();
        build(place);
        let before = built(place);
        let first = run(&LEAVING_OUT).ok().out;
        run(&["status"])
            .ok()
            .remarks("left out, as from the last snapshot: --exclude 'modules' --exclude '*.o'");
        fs::write(place.join("a.txt"), "second").unwrap();
        let ran = run(&["status"]).code(1).says("a.txt");
        assert!(!ran.out.contains("modules") && !ran.out.contains("b.o"), "{}", ran.out);
        assert_eq!(run(&["diff", "--name-status"]).code(1).out.trim(), "M\ta.txt");
        run(&["try", "--apply", "--", "sh", "-c", "echo tried > a.txt"]).ok();
        assert_eq!((read("a.txt").as_str(), built(place)), ("tried\n", before.clone()));
        run(&["restore", first.trim()]).ok();
        assert_eq!((read("a.txt").as_str(), built(place)), ("one\ntwo\nthree\n", before.clone()));
        run(&["status"]).ok();
        run(&["undo"]).ok();
        assert_eq!((read("a.txt").as_str(), built(place)), ("tried\n", before.clone()));
        fs::remove_file(place.join("dir/b.txt")).unwrap();
        run(&["restore", first.trim(), "dir"]).ok();
        assert_eq!((read("dir/b.txt").as_str(), built(place)), ("b\n", before.clone()));
        // A merge, once with conflicts that are given up and once without.
        world.run(&["fork", side, "--from", "first", "--to", &format!("../{side}")]).ok();
        fs::write(world.path(side).join("a.txt"), "theirs").unwrap();
        world.run_beside(side, &["snapshot", "-q"]).ok();
        run(&["merge", side]).code(1);
        assert_eq!(built(place), before);
        run(&["merge", "--abort"]).ok();
        assert_eq!((read("a.txt").as_str(), built(place)), ("tried\n", before.clone()));
        run(&["merge", side, "--theirs"]).ok();
        assert_eq!((read("a.txt").as_str(), built(place)), ("theirs", before.clone()));
        run(&["status"]).ok();
        assert_in_no_snapshot(place);
    }
    mount.umount().ok();
    mount.again(&["--worktree", "work"]).ok();
    built(&mount.path);
    vellum(&mount.path, &["status"]).ok().remarks("left out, as from the last snapshot");
    mount.umount().ok();
    world.run(&["verify", "--all"]).ok();
    world.run(&["operations", "--verify", "--all"]).ok();
}

#[test]
fn a_restore_of_a_mount_does_not_touch_what_is_excluded() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let run = |args: &[&str]| vellum(&mount.path, args);
    let read = |name: &str| fs::read_to_string(mount.at(name)).unwrap();
    mount.sh(
        "mkdir huge; echo 'not to be stored' > huge/data; echo excluded > dir/deep/new; echo second > a.txt",
    );
    let second = run(&["snapshot", "-q", "--exclude", "huge", "--exclude", "deep"]).ok().out;
    for args in [&["restore", "first"][..], &["restore", "first", "--dry-run"], &["restore", "first", "dir"]]
    {
        run(args)
            .code(2)
            .remarks("dir/deep")
            .remarks("would be overwritten or removed")
            .remarks("move them away");
    }
    assert_eq!(read("a.txt"), "second\n");
    run(&["restore", "first", "a.txt"]).ok();
    assert_eq!(read("a.txt"), "one\ntwo\nthree\n");
    run(&["restore", second.trim()]).ok();
    assert_eq!((read("a.txt"), read("huge/data")), ("second\n".into(), "not to be stored\n".into()));
    assert_eq!(read("dir/deep/new"), "excluded\n");
    // What is given up gives way to the snapshot's, and to nothing else.
    run(&["restore", "first", "--discard"]).ok();
    assert_eq!(fs::read(mount.at("dir/deep/c.bin")).unwrap(), [0, 1, 2, 255]);
    assert_eq!((read("dir/deep/new"), read("huge/data")), ("excluded\n".into(), "not to be stored\n".into()));
    // Once a snapshot was made without the options, it is a change like others, and is kept before it goes.
    run(&["snapshot", "-q"]).ok();
    run(&["restore", "first"]).ok();
    assert!(!mount.at("huge").exists());
    run(&["restore", "latest"]).ok();
    assert_eq!(read("huge/data"), "not to be stored\n");
    let status = run(&["status"]).ok();
    assert!(!status.err.contains("left out"), "{}", status.err);
}

#[test]
fn options_of_a_snapshot_of_a_mount_mean_what_they_mean_in_a_directory() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let run = |args: &[&str]| vellum(&mount.path, args);
    let listed = || run(&["ls", "HEAD", "-R"]).ok().out;
    build(&mount.path);
    mount.sh(&format!(
        "mkdir -p cache/deep; printf '{CACHE_TAG}' > cache/CACHEDIR.TAG; echo x > cache/deep/data"
    ));
    for wrong in ["#x", "", "[z-a]"] {
        run(&["snapshot", "--exclude", wrong]).code(3).remarks("cannot exclude");
    }
    let preview = run(&["snapshot", "-n", "--exclude", "modules", "--exclude-caches"]).ok().says("b.o").out;
    assert!(!preview.contains("modules") && !preview.contains("data"), "{preview}");
    run(&["snapshot", "--exclude", "modules", "--exclude-caches", "-t", "tagged"]).ok().says("in the store");
    let made = listed();
    assert!(made.contains("b.o") && made.contains("CACHEDIR.TAG"), "{made}");
    assert!(!made.contains("modules") && !made.contains("data"), "{made}");
    let again = ["snapshot", "--if-changed", "--exclude", "modules", "--exclude-caches"];
    run(&again).ok().says("Nothing changed");
    // One of some paths leaves out what the whole one did, and more.
    mount.sh("echo new > dir/new; echo newer > dir/newer");
    run(&["snapshot", "-n", "dir", "--exclude", "newer"]).ok().says("new");
    run(&["snapshot", "dir", "modules/pkg", "--exclude", "newer"]).code(2);
    run(&["snapshot", "dir", "--exclude", "newer"]).ok();
    let made = listed();
    assert!(made.contains("dir/new") && !made.contains("newer") && !made.contains("modules"), "{made}");
    run(&["status"]).code(1).says("dir/newer");
    // What is mounted on a directory is not the mount's.
    run(&["snapshot", "-x"]).ok();
    assert!(listed().contains("modules/pkg/index"));
    let status = run(&["status"]).ok();
    assert!(!status.err.contains("left out"), "{}", status.err);
}

#[test]
fn snapshots_of_a_mount_that_leave_something_out_are_undone_with_no_file_changed() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let run = |args: &[&str]| vellum(&mount.path, args);
    build(&mount.path);
    fs::write(mount.at("a.txt"), "second").unwrap();
    fs::write(mount.at("new"), "new").unwrap();
    let before = built(&mount.path);
    for words in [&LEAVING_OUT[..], &["snapshot", "-q", "a.txt"]] {
        let id = run(words).ok().out;
        run(&["undo"]).ok().says("the files stay as they are").says("is forgotten");
        run(&["show", id.trim()]).code(2);
        assert_eq!(fs::read_to_string(mount.at("a.txt")).unwrap(), "second");
        assert_eq!(fs::read_to_string(mount.at("new")).unwrap(), "new");
        assert_eq!(built(&mount.path), before);
        run(&["redo"]).ok();
        run(&["show", id.trim()]).ok();
        run(&["undo"]).ok();
    }
    world.run(&["operations", "--verify", "--all"]).ok();
}

#[test]
fn a_mount_that_is_killed_has_lost_nothing_of_what_was_left_out() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let run = |args: &[&str]| vellum(&mount.path, args);
    build(&mount.path);
    mount.sh("head -c 3000000 /dev/urandom > modules/large; sync -f .");
    let before = (built(&mount.path), fs::read(mount.at("modules/large")).unwrap());
    let first = run(&LEAVING_OUT).ok().out;
    let mut targets = vec![first.trim().to_owned()];
    for round in 0..6u64 {
        fs::write(mount.at("a.txt"), format!("round {round}")).unwrap();
        mount.sh("sync -f .");
        let target = targets[round as usize % targets.len()].clone();
        let pid = mount.pid();
        std::thread::scope(|scope| {
            // Each round, something else is under way.
            let words: Vec<&str> = match round % 3 {
                0 => vec!["restore", &target],
                1 => LEAVING_OUT.to_vec(),
                _ => vec!["restore", &target, "dir", "a.txt"],
            };
            let path = mount.path.clone();
            scope.spawn(move || drop(vellum(&path, &words)));
            std::thread::sleep(Duration::from_millis(15 + 25 * round));
            kill(pid, "-KILL");
        });
        detach_mount(&mount.path);
        mount.again(&["--worktree", "work"]).ok();
        let after = (built(&mount.path), fs::read(mount.at("modules/large")).unwrap());
        assert!(after == before, "round {round}: {}", after.0);
        // Commands go on from there.
        targets.push(run(&LEAVING_OUT).ok().out.trim().to_owned());
        run(&["restore", &targets[0]]).ok();
        run(&["status"]).ok();
        assert!((built(&mount.path), fs::read(mount.at("modules/large")).unwrap()) == before);
    }
    assert_in_no_snapshot(&mount.path);
    mount.umount().ok();
    world.run(&["gc", "run"]).ok();
    mount.again(&["--worktree", "work"]).ok();
    assert!((built(&mount.path), fs::read(mount.at("modules/large")).unwrap()) == before);
    mount.umount().ok();
    world.run(&["verify", "--all"]).ok();
}
