//! `vellum snapshot PATH...` in a mount.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use crate::mounting::Mount;
use crate::world::{Ran, World, run};

fn vellum(mount: &Mount<'_>, args: &[&str]) -> Ran {
    run(&mount.path, args, Stdio::null())
}

/// Records these paths; gives where the snapshot is shown.
fn record(mount: &Mount<'_>, paths: &[&str]) -> String {
    let id = vellum(mount, &[&["snapshot", "-q"], paths].concat()).ok().out;
    format!(".vellum/snapshots/{}", id.trim())
}

#[test]
fn these_paths_are_recorded_and_the_rest_is_as_the_last_snapshot_had_it() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let times =
        |path: String| fs::metadata(mount.at(&path)).map(|meta| (meta.mtime(), meta.mtime_nsec())).unwrap();
    let first = ".vellum/snapshots/first";
    mount.sh(
        "echo ONE > a.txt; echo B > dir/b.txt; echo new > dir/new; ln dir/new dir/link; rm dir/deep/c.bin
         mkdir -p fresh/sub; echo f > fresh/sub/f; echo other > fresh/other; head -c 300000 /dev/urandom > dir/big",
    );
    let second = record(&mount, &["dir", "fresh/sub/f"]);
    let read = |path: &str| fs::read(mount.at(&format!("{second}/{path}"))).ok();
    assert_eq!(read("a.txt").unwrap(), b"one\ntwo\nthree\n");
    assert_eq!(read("dir/b.txt").unwrap(), b"B\n");
    assert_eq!(read("dir/big"), fs::read(mount.at("dir/big")).ok());
    assert_eq!(read("fresh/sub/f").unwrap(), b"f\n");
    assert!(read("fresh/other").is_none() && read("dir/deep/c.bin").is_none());
    assert!(mount.at(&format!("{second}/dir/deep")).is_dir());
    let meta = |path: &str| fs::metadata(mount.at(&format!("{second}/{path}"))).unwrap();
    assert_eq!((meta("dir/new").ino(), meta("dir/new").nlink()), (meta("dir/link").ino(), 2));
    assert_eq!(times(format!("{second}/dir")), times("dir".into()));
    assert_eq!(times(format!("{second}/fresh/sub")), times("fresh/sub".into()));
    assert_eq!(
        times(second.clone()),
        times(first.into()),
        "something was made in the root, which is not recorded"
    );
    // The worktree has everything still, and the rest is not recorded yet.
    assert_eq!(fs::read(mount.at("fresh/other")).unwrap(), b"other\n");
    let status = vellum(&mount, &["status"]).code(1).out;
    assert!(status.contains("a.txt") && status.contains("fresh/other"), "{status}");
    assert!(!status.contains("dir/") && !status.contains("sub/f"), "{status}");
    let history = vellum(&mount, &["history"]).ok().out;
    assert!(history.lines().count() >= 2 && history.contains("first"), "{history}");
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn recorded_path_by_path_nothing_is_left() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    mount.sh(
        "echo 1 > a.txt; mv dir moved; mkdir dir; echo 2 > dir/b.txt; chmod 700 moved/deep; ln -s a.txt link
         setfattr -n user.mark -v yes moved/deep; mkfifo fifo; touch -d 2001-02-03 moved; rm -r moved/b.txt",
    );
    let shown = record(&mount, &["a.txt", "dir", "moved", "link", "fifo"]);
    vellum(&mount, &["status"]).ok();
    assert_eq!(mount.sh(&format!("getfattr --only-values -n user.mark {shown}/moved/deep")), "yes");
    assert_eq!(
        mount.sh(&format!("stat -c %a:%F {shown}/moved/deep {shown}/fifo | head -1")),
        "700:directory\n"
    );
    // Of a path that is gone, that is recorded.
    mount.sh("rm -r moved a.txt");
    record(&mount, &["moved"]);
    let status = vellum(&mount, &["status"]).code(1).out;
    assert!(status.contains("a.txt") && !status.contains("moved"), "{status}");
    // All of it, by its own name.
    record(&mount, &["."]);
    vellum(&mount, &["status"]).ok();
    // The next one, and a checked-out directory, go on from there.
    let last = vellum(&mount, &["snapshot", "-q", "--tag", "last"]).ok().out;
    assert!(!last.is_empty());
    vellum(&mount, &["flush"]).ok();
    world.run(&["restore", "last"]).ok();
    assert!(world.has("fifo") && !world.has("a.txt"));
}

#[test]
fn what_means_nothing_is_refused() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    vellum(&mount, &["snapshot", "nowhere"]).code(2).remarks("nowhere");
    mount.sh("rm -r dir");
    vellum(&mount, &["snapshot", "dir/b.txt"]).code(2).remarks("name that directory");
    record(&mount, &["dir"]);
    vellum(&mount, &["status"]).ok();
}
