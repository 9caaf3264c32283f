//! `vellum sync` with filesystems of other systems: without hard links, owners and modes, with coarse times.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::disk::Disk;
use crate::other_host::Host;
use crate::world::{World, noise};

const KINDS: [&str; 3] = ["exfat", "ntfs", "ext"];

fn fill(world: &World) {
    for number in 0..40 {
        world.write(&format!("src/dir/f{number}"), format!("file {number}\n").repeat(number));
        // Each has a fraction of its own.
        age(&world.tree().join(format!("src/dir/f{number}")), 100_000 + number as u64);
    }
    world.write("src/dir/deep/er/file", "deep");
    world.write("src/big", noise(2_500_000));
    world.write("src/empty", "");
}

/// Gives a file a time that no coarse filesystem keeps.
fn age(path: &Path, secs: u64) {
    let odd = Duration::new(1_600_000_001 + secs, 123_456_789);
    fs::File::options().write(true).open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH + odd).unwrap();
}

/// All files below a directory, with what is in them.
fn content(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => pending.push(entry.path()),
                false => found
                    .push((entry.path().strip_prefix(root).unwrap().into(), fs::read(entry.path()).unwrap())),
            }
        }
    }
    found.sort();
    found
}

fn assert_same(world: &World, disk: &Disk) {
    assert!(content(&world.tree().join("src")) == content(&disk.path().join("src")));
}

#[test]
fn new_files_go_to_filesystems_without_hard_links_and_the_second_run_is_idle() {
    for kind in KINDS {
        let disk = Disk::foreign(kind);
        let world = World::empty();
        let to = disk.path().display().to_string();
        fill(&world);
        world.run(&["sync", "-rt", "src", &to]).ok().says("Done: ");
        assert_same(&world, &disk);
        world.run(&["sync", "-rt", "--delete", "src", &to]).ok().says("Nothing to do");
        world.write("src/dir/f7", "another text");
        world.write("src/dir/new", "new");
        world.remove("src/dir/f8");
        world.run(&["sync", "-rt", "--delete", "src", &to]).ok().says("1 made, 1 updated");
        assert_same(&world, &disk);
        world.run(&["sync", "-rt", "--delete", "src", &to]).ok().says("Nothing to do");
    }
}

/// An edit that keeps the size and moves the time by more than the filesystem rounds is seen.
#[test]
fn every_way_of_writing_works_without_hard_links() {
    const WAYS: [&[&str]; 7] = [
        &["--in-place"],
        &["--resume"],
        &["--partial-dir=.kept"],
        &["--backup"],
        &["--backup-dir=old", "--delete"],
        &["--trash", "--delete"],
        &["--verify", "--fsync", "--delete"],
    ];
    for (kind, way) in ["exfat", "ntfs"].into_iter().flat_map(|kind| WAYS.map(|way| (kind, way))) {
        let disk = Disk::foreign(kind);
        let world = World::empty();
        let to = disk.path().join("src").display().to_string();
        let run = || world.run(&[&["sync", "-rt"], way, &["src/", &to]].concat());
        fill(&world);
        run().ok();
        assert_same(&world, &disk);
        run().ok().says("Nothing to do");
        world.write("src/dir/f20", "x".repeat(180));
        world.write("src/big", noise(2_600_000));
        world.remove("src/dir/f21");
        run().ok();
        run().ok().says("Nothing to do");
        for path in ["src/dir/f20", "src/big"] {
            assert!(fs::read(world.tree().join(path)).unwrap() == fs::read(disk.path().join(path)).unwrap());
        }
        let kept = match way[0] {
            "--backup" => Some("src/dir/f20~"),
            "--backup-dir=old" => Some("src/old/dir/f20"),
            _ => None,
        };
        if let Some(kept) = kept {
            assert_eq!(fs::read_to_string(disk.path().join(kept)).unwrap(), "file 20\n".repeat(20));
        }
        assert_eq!(disk.path().join("src/dir/f21").exists(), !way.contains(&"--delete"), "{kind} {way:?}");
    }
}

#[test]
fn further_names_of_a_file_become_copies_without_hard_links() {
    let disk = Disk::foreign("exfat");
    let world = World::empty();
    fill(&world);
    fs::hard_link(world.tree().join("src/big"), world.tree().join("src/dir/again")).unwrap();
    fs::hard_link(world.tree().join("src/big"), world.tree().join("src/dir/third")).unwrap();
    let to = disk.path().display().to_string();
    let run = || world.run(&["sync", "-rtH", "src", &to]).ok();
    let note = "2 hard links became files of their own: the destination's filesystem has no hard links";
    let noted = run().remarks(note);
    assert_eq!(noted.err.lines().count(), 1, "{}", noted.err);
    assert_same(&world, &disk);
    // They are not copied again.
    let output = world.json(&["sync", "-rtH", "--json", "src", &to]);
    assert_eq!((&output["unlinked"], &output["written_bytes"]), (&2.into(), &0.into()), "{output}");
    // What changed is.
    world.write("src/big", noise(2_600_000));
    run().remarks(note);
    assert_same(&world, &disk);
}

#[test]
fn a_second_run_without_hard_links_finds_nothing_to_do_and_keeps_no_other_backup() {
    let disk = Disk::foreign("exfat");
    let world = World::empty();
    fill(&world);
    fs::hard_link(world.tree().join("src/big"), world.tree().join("src/dir/again")).unwrap();
    let to = disk.path().display().to_string();
    for way in [&["--backup"][..], &["--backup-dir=old"], &["--backup", "--suffix=.old"], &[]] {
        let run = |more: &[&str]| world.run(&[&["sync", "-rtH"], way, more, &["src", &to]].concat()).ok();
        run(&[]);
        let listed = content(&disk.path());
        for _ in 0..2 {
            run(&[]).says("Nothing to do: 47 entries are the same");
            assert!(content(&disk.path()) == listed, "{way:?}");
        }
        let output = world.json(&[&["sync", "-rtH", "--json"], way, &["src", &to]].concat());
        let numbers = ["made", "updated", "attributes", "written_bytes"].map(|field| output[field].as_u64());
        assert_eq!(numbers, [Some(0); 4], "{output}");
    }
    // The version that another replaces is kept once, with what it had.
    let before = fs::read(world.tree().join("src/big")).unwrap();
    world.write("src/big", noise(2_600_000));
    world.run(&["sync", "-rtH", "--backup", "src", &to]).ok().says("1 updated");
    assert_same_but_backups(&world, &disk, &before);
}

fn assert_same_but_backups(world: &World, disk: &Disk, before: &[u8]) {
    for path in ["src/big", "src/dir/again"] {
        assert!(fs::read(world.tree().join(path)).unwrap() == fs::read(disk.path().join(path)).unwrap());
        assert!(fs::read(disk.path().join(format!("{path}~"))).unwrap() == before, "{path}");
    }
}

#[test]
fn another_host_says_that_it_has_no_hard_links() {
    let disk = Disk::foreign("exfat");
    let host = Host::new();
    host.world.write("src/one", "one");
    fs::hard_link(host.world.tree().join("src/one"), host.world.tree().join("src/two")).unwrap();
    let to = format!("here:{}", disk.path().display());
    host.sync(&["-rtH", "src", &to]).ok().remarks("1 hard link became a file of its own");
    assert_same(&host.world, &disk);
}

#[test]
fn files_go_over_ssh_to_filesystems_without_hard_links() {
    for kind in ["exfat", "ntfs"] {
        let disk = Disk::foreign(kind);
        let host = Host::new();
        fill(&host.world);
        let to = format!("here:{}", disk.path().display());
        host.sync(&["-rt", "src", &to]).ok();
        assert_same(&host.world, &disk);
        host.sync(&["-rt", "src", &to]).ok().says("Nothing to do");
        fs::create_dir(host.world.tree().join("src/moved")).unwrap();
        fs::rename(host.world.tree().join("src/big"), host.world.tree().join("src/moved/big")).unwrap();
        host.sync(&["-rt", "--delete", "--detect-renames", "src", &to]).ok().says("renamed");
        assert_same(&host.world, &disk);
        host.sync(&["-rt", &format!("{to}/src/"), "back"]).ok();
        assert!(content(&host.world.tree().join("back")) == content(&disk.path().join("src")));
    }
}

#[test]
fn both_ways_coarse_times_make_no_conflict() {
    for kind in KINDS {
        let disk = Disk::foreign(kind);
        let world = World::empty();
        fill(&world);
        let there = disk.path().join("src");
        fs::create_dir(&there).unwrap();
        let to = there.display().to_string();
        let run = || world.run_at_home(&["sync", "--two-way", "-rt", "src", &to]);
        run().ok();
        assert_same(&world, &disk);
        run().ok().says("Nothing to do");
        // Of one size with what was there.
        world.write("src/dir/f3", "FILE 3\n".repeat(3));
        fs::write(there.join("dir/f4"), "FILE 4\n".repeat(4)).unwrap();
        fs::write(there.join("dir/new"), "new").unwrap();
        fs::remove_file(there.join("dir/f5")).unwrap();
        let ran = run().ok();
        assert!(!ran.out.contains("conflict") && !ran.err.contains("conflict"), "{}", ran.out);
        assert_same(&world, &disk);
        assert_eq!(world.read("src/dir/f4"), "FILE 4\n".repeat(4));
        assert!(world.has("src/dir/new") && !world.has("src/dir/f5"));
        run().ok().says("Nothing to do");
    }
}

/// An unpacked archive has round times on filesystems that keep nanoseconds: nothing is rounded there.
#[test]
fn an_edit_within_the_second_is_seen_where_all_times_are_round() {
    let world = World::empty();
    for path in ["src/a", "src/b", "dst/a", "dst/b"] {
        world.write(path, "text");
        let round = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000);
        fs::File::options().write(true).open(world.tree().join(path)).unwrap().set_modified(round).unwrap();
    }
    world.write("src/a", "TEXT");
    let later = SystemTime::UNIX_EPOCH + Duration::new(1_600_000_000, 400_000_000);
    fs::File::options().write(true).open(world.tree().join("src/a")).unwrap().set_modified(later).unwrap();
    world.run(&["sync", "-rt", "src/", "dst"]).ok().says("1 updated");
    assert_eq!(world.read("dst/a"), "TEXT");
}

/// Few, and no new directory that is filled before it has its name: Debian's driver of FAT loses what is in a directory
/// that it renames, and in directories of some dozen files it leaves the beginning of a name behind.
fn fill_few(world: &World) {
    for number in 0..3 {
        world.write(&format!("src/f{number}"), format!("file {number}\n"));
        age(&world.tree().join(format!("src/f{number}")), 100_000 + number);
    }
    for number in 0..3 {
        world.write(&format!("src/dir/f{number}"), format!("text {number}\n"));
        age(&world.tree().join(format!("src/dir/f{number}")), 200_000 + number);
    }
}

/// Seconds of the last change of a file, as FAT keeps them.
fn even_seconds(path: &Path) -> u64 {
    let time = fs::metadata(path).unwrap().modified().unwrap();
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() / 2 * 2
}

/// FAT through FUSE: its rename gives a file the present as its time.
#[test]
fn times_are_kept_where_a_rename_loses_them_and_the_second_run_is_idle() {
    const WAYS: [&[&str]; 3] = [&["-rt"], &["-rt", "--delay-updates"], &["-rt", "--resume"]];
    for way in WAYS {
        let disk = Disk::foreign("vfat");
        let world = World::empty();
        let to = disk.path().display().to_string();
        let run = || world.run(&[&["sync"], way, &["src", &to]].concat());
        fill_few(&world);
        run().ok();
        assert_same(&world, &disk);
        run().ok().says("Nothing to do");
        world.write("src/f1", "another text");
        age(&world.tree().join("src/f1"), 300_001);
        world.write("src/dir/new", "new");
        age(&world.tree().join("src/dir/new"), 300_003);
        run().ok().says("1 made, 1 updated");
        run().ok().says("Nothing to do");
        for path in ["src/f0", "src/f1", "src/dir/f2", "src/dir/new"] {
            let (from, to) = (world.tree().join(path), disk.path().join(path));
            assert_eq!(fs::read(&from).unwrap(), fs::read(&to).unwrap());
            assert_eq!(even_seconds(&from), even_seconds(&to), "{way:?} {path}");
        }
    }
}

#[test]
fn both_ways_an_edit_within_two_seconds_is_no_conflict_where_a_rename_loses_times() {
    let disk = Disk::foreign("vfat");
    let world = World::empty();
    fill_few(&world);
    let there = disk.path().join("src");
    fs::create_dir(&there).unwrap();
    let to = there.display().to_string();
    let run = || world.run_at_home(&["sync", "--two-way", "-rt", "src", &to]);
    run().ok();
    assert_same(&world, &disk);
    run().ok().says("Nothing to do");
    // At an odd second and its fraction, which is one moment for FAT with the time before.
    world.write("src/f0", "edited here");
    age(&world.tree().join("src/f0"), 100_000);
    fs::write(there.join("f1"), "edited there").unwrap();
    fs::write(there.join("dir/new"), "new").unwrap();
    let ran = run().ok();
    assert!(!ran.out.contains("conflict") && !ran.err.contains("conflict"), "{}", ran.out);
    assert_same(&world, &disk);
    assert_eq!((world.read("src/f0"), world.read("src/f1")), ("edited here".into(), "edited there".into()));
    run().ok().says("Nothing to do");
}
