//! Commands of a user who stands in a mount.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use crate::mounting::{Mount, wait_until};
use crate::world::{Ran, World, run};

/// Runs the binary in the mount.
fn inside(mount: &Mount<'_>, args: &[&str]) -> Ran {
    run(&mount.path, args, Stdio::null())
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn a_snapshot_is_made_compared_and_restored() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    inside(&mount, &["status"]).ok().remarks("nothing changed since");
    fs::write(mount.at("a.txt"), "edited\n").unwrap();
    fs::write(mount.at("new"), "new\n").unwrap();
    let ran = inside(&mount, &["status"]).code(1);
    assert!(ran.out.contains("M  a.txt") && ran.out.contains("A  new"), "{}", ran.out);
    inside(&mount, &["snapshot", "-m", "second", "--tag", "two"]).ok();
    inside(&mount, &["status"]).ok();
    fs::remove_file(mount.at("new")).unwrap();
    fs::rename(mount.at("dir"), mount.at("moved")).unwrap();
    let ran = inside(&mount, &["diff", "two", "--name-status"]).code(1);
    assert_eq!(ran.lines(), ["R\tdir\tmoved", "D\tnew"]);
    assert_eq!(inside(&mount, &["cat", "two", "new"]).ok().out, "new\n");
    inside(&mount, &["restore", "first"]).ok().says("Restored").remarks("undoes it");
    assert_eq!(read(mount.at("a.txt")), "one\ntwo\nthree\n");
    assert!(!mount.at("moved").exists() && mount.at("dir/deep/c.bin").exists());
    inside(&mount, &["status"]).ok();
    let history = inside(&mount, &["history", "--all"]).ok();
    assert!(history.out.contains("before the restore of"), "{}", history.out);
    inside(&mount, &["verify", "--all"]).ok();
}

#[test]
fn what_the_kernel_has_cached_is_forgotten_by_a_restore() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    fs::write(mount.at("a.txt"), "longer than it was before, by far\n").unwrap();
    fs::write(mount.at("dir/b.txt"), "other\n").unwrap();
    assert!(!mount.at("gone").exists() && !mount.at("dir/gone").exists());
    inside(&mount, &["snapshot", "--tag", "edited"]).ok();
    fs::write(mount.at("gone"), "x").unwrap();
    fs::write(mount.at("dir/gone"), "x").unwrap();
    inside(&mount, &["snapshot", "--tag", "more"]).ok();
    for _ in 0..3 {
        inside(&mount, &["restore", "first"]).ok();
        assert_eq!(read(mount.at("a.txt")), "one\ntwo\nthree\n");
        assert_eq!(read(mount.at("dir/b.txt")), "b\n");
        assert!(!mount.at("gone").exists() && !mount.at("dir/gone").exists());
        assert_eq!(fs::read_dir(mount.at("dir")).unwrap().count(), 2);
        inside(&mount, &["restore", "more"]).ok();
        assert_eq!(read(mount.at("a.txt")), "longer than it was before, by far\n");
        assert_eq!(read(mount.at("dir/b.txt")), "other\n");
        assert_eq!((read(mount.at("gone")), read(mount.at("dir/gone"))), ("x".into(), "x".into()));
    }
}

#[test]
fn a_snapshot_outlives_the_process_that_made_it() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    fs::write(mount.at("big"), vec![7; 3_000_000]).unwrap();
    let id = inside(&mount, &["-q", "snapshot"]).ok().out.trim().to_owned();
    fs::write(mount.at("big"), "not this").unwrap();
    mount.sh("sync -f .");
    let killed = std::process::Command::new("kill").args(["-KILL", &mount.pid().to_string()]).status();
    assert!(killed.unwrap().success());
    wait_until("the process is gone", || fs::metadata(mount.at("big")).is_err());
    mount.again(&[]).ok();
    assert_eq!(read(mount.at("big")), "not this");
    inside(&mount, &["restore", &id]).ok();
    assert_eq!(fs::read(mount.at("big")).unwrap(), vec![7; 3_000_000]);
    mount.umount().ok();
    world.run(&["verify", "--all"]).ok();
    assert_eq!(world.run(&["cat", &id, "big"]).ok().raw, vec![7; 3_000_000]);
}

#[test]
fn a_fork_is_mounted_beside_it_and_goes_its_own_way() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    fs::write(mount.at("shared"), "both have it").unwrap();
    let large = vec![9; 3_000_000];
    fs::write(mount.at("large"), &large).unwrap();
    let other = Mount::place(&world, "try");
    inside(&mount, &["fork", "try", "--mount", other.path.to_str().unwrap()]).ok();
    assert_eq!(read(other.at("shared")), "both have it");
    assert!(fs::read(other.at("large")).unwrap() == large);
    inside(&other, &["status"]).code(1).says("shared");
    fs::write(other.at("shared"), "only here").unwrap();
    fs::remove_file(mount.at("large")).unwrap();
    inside(&mount, &["flush"]).ok();
    assert!(fs::read(other.at("large")).unwrap() == large);
    assert_eq!(read(mount.at("shared")), "both have it");
    inside(&other, &["snapshot", "-m", "of the fork"]).ok();
    inside(&other, &["flush"]).ok();
    let history = world.run(&["history", "--all"]).ok();
    assert!(history.out.contains("of the fork"), "{}", history.out);
    inside(&other, &["diff", "--name-status", "first", "HEAD"]).code(1).says("large");
    inside(&mount, &["verify", "--all"]).ok();
    inside(&mount, &["fork", "try", "--mount", other.path.to_str().unwrap()])
        .code(2)
        .remarks("exists already");
    // A fork outlives the process, and the machine, that made it.
    other.umount().ok();
    other.again(&[]).ok();
    assert_eq!(read(other.at("shared")), "only here");
}

#[test]
fn what_cannot_be_done_in_a_mount_is_refused_with_another_way() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    inside(&mount, &["fork", "x", "--to", "/tmp/nowhere"]).code(3).remarks("--mount");
    inside(&mount, &["restore", "nothing"]).code(2);
    world.run(&["flush"]).code(3).remarks("not a mounted worktree");
}

#[test]
fn paths_are_restored_and_the_rest_stays() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    fs::write(mount.at("a.txt"), "later").unwrap();
    fs::write(mount.at("dir/b.txt"), "later").unwrap();
    fs::write(mount.at("dir/new"), "new").unwrap();
    fs::remove_dir_all(mount.at("dir/deep")).unwrap();
    let open = File::open(mount.at("dir/b.txt")).unwrap();
    // What the kernel remembers of the directory is no more right.
    assert_eq!(fs::read_dir(mount.at("dir")).unwrap().count(), 2);
    assert!(!mount.at("dir/deep/c.bin").exists());
    let plan = inside(&mount, &["restore", "-n", "first", "dir"]).code(1);
    assert!(plan.out.contains("dir/new") && !plan.out.contains("a.txt"), "{}", plan.out);
    inside(&mount, &["restore", "first", "dir/deep/c.bin"]).ok().remarks("undoes it");
    assert_eq!(fs::read(mount.at("dir/deep/c.bin")).unwrap(), [0, 1, 2, 255]);
    assert_eq!(read(mount.at("dir/b.txt")), "later");
    inside(&mount, &["restore", "first", "dir"]).ok();
    assert_eq!(read(mount.at("dir/b.txt")), "b\n");
    assert!(!mount.at("dir/new").exists());
    let mut listed: Vec<_> = fs::read_dir(mount.at("dir")).unwrap().map(|e| e.unwrap().file_name()).collect();
    listed.sort();
    assert_eq!(listed, ["b.txt", "deep"]);
    assert_eq!(read(mount.at("a.txt")), "later");
    let mut text = [0; 5];
    open.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"later");
    inside(&mount, &["restore", "first", "dir/none"])
        .code(2)
        .remarks("'dir/none' is neither in the worktree");
    inside(&mount, &["restore", "first", "."]).ok();
    inside(&mount, &["diff", "first", "--name-status"]).ok();
    inside(&mount, &["verify", "--all"]).ok();
}

#[test]
fn what_is_open_keeps_what_it_had_when_the_worktree_is_restored() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let content = vec![7; 300_000];
    fs::write(mount.at("a.txt"), "later").unwrap();
    fs::write(mount.at("new"), &content).unwrap();
    let mut file = File::open(mount.at("a.txt")).unwrap();
    let mut new = File::open(mount.at("new")).unwrap();
    let nameless = File::options().read(true).write(true).create_new(true).open(mount.at("gone")).unwrap();
    (&nameless).write_all(b"nameless").unwrap();
    fs::remove_file(mount.at("gone")).unwrap();
    for discard in [&["restore", "first"][..], &["restore", "--discard", "first"]] {
        inside(&mount, discard).ok();
        assert_eq!(fs::read_to_string(mount.at("a.txt")).unwrap(), "one\ntwo\nthree\n");
        assert!(!mount.at("new").exists());
        for _ in 0..2 {
            // Not from the kernel's memory, and also once all that is left is in the store.
            fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
            let mut text = String::new();
            let mut bytes = Vec::new();
            file.rewind().unwrap();
            file.read_to_string(&mut text).unwrap();
            new.rewind().unwrap();
            new.read_to_end(&mut bytes).unwrap();
            assert_eq!(text, "later");
            assert!(bytes == content);
            let mut bytes = [0; 8];
            nameless.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!(&bytes, b"nameless");
            inside(&mount, &["flush"]).ok();
        }
        // What it had is past: it cannot be changed any more, and is told so.
        let changed = File::options().append(true).open(mount.at("a.txt")).unwrap();
        (&changed).write_all(b"present").unwrap();
        (&nameless).write_all(b"lost").unwrap();
        assert!(nameless.sync_all().is_err());
        assert!(fs::read_to_string(mount.at("a.txt")).unwrap().ends_with("present"));
    }
    drop((file, new, nameless));
    inside(&mount, &["flush"]).ok();
    inside(&mount, &["verify", "--all"]).ok();
}

#[test]
fn who_stands_in_a_directory_sees_what_it_is_after_a_restore() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    fs::write(mount.at("dir/later"), "later").unwrap();
    let vellum = env!("CARGO_BIN_EXE_vellum");
    mount.sh(&format!("cd dir && ls > /dev/null && {vellum} restore first && ! test -e later && test \"$(ls)\" = $'b.txt\\ndeep' && cat b.txt > /dev/null"));
}

#[test]
fn another_worktree_is_mounted_from_within_and_both_are_listed() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let other = Mount::place(&world, "other");
    inside(&mount, &["mount", other.path.to_str().unwrap()]).ok().says("the new worktree other");
    assert_eq!(read(other.at("a.txt")), "one\ntwo\nthree\n");
    let status = inside(&mount, &["status"]).ok();
    assert!(!status.err.contains(".000000000Z"), "{}", status.err);
    other.umount().ok();
    let list = world.run(&["worktree", "list"]).ok();
    assert!(list.out.contains("other") && !list.out.contains("not there any more"), "{}", list.out);
}

#[test]
fn a_snapshot_is_below_the_virtual_directory_as_soon_as_it_is_told() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    for round in 0..10 {
        fs::write(mount.at("file"), format!("{round}")).unwrap();
        fs::write(mount.at("big"), crate::world::noise(300_000)).unwrap();
        let tag = format!("round{round}");
        let id = inside(&mount, &["snapshot", "-q", "--tag", &tag]).ok().out.trim().to_owned();
        let snapshots = mount.at(".vellum/snapshots");
        if round % 2 == 0 {
            let listed: Vec<_> =
                fs::read_dir(&snapshots).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert!(
                listed.iter().any(|name| *name == *tag) && listed.iter().any(|name| *name == *id),
                "{listed:?}"
            );
        }
        assert_eq!(read(snapshots.join(&tag).join("file")), format!("{round}"));
        assert_eq!(read(snapshots.join(&id).join("file")), format!("{round}"));
    }
}
