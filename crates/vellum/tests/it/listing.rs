//! How the directories of a mount list: places that hold, and a kernel that remembers what it may.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;

use rustix::fs::{Dir, Mode, OFlags, open, openat};

use crate::mounting::{Mount, wait_until};
use crate::world::{World, run};

/// So many names take several answers to list.
const MANY: usize = 4000;

fn stand_in(path: &Path) -> OwnedFd {
    open(path, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap()
}

/// What lists whoever stands in a directory.
fn names(dir: impl AsFd) -> BTreeSet<String> {
    let again = openat(dir, ".", OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap();
    read(&mut Dir::new(again).unwrap()).into_iter().map(|(name, _)| name).collect()
}

/// The names that are left, each with the place behind it.
fn read(dir: &mut Dir) -> Vec<(String, i64)> {
    let named =
        |entry: rustix::fs::DirEntry| (entry.file_name().to_str().unwrap().to_owned(), entry.offset());
    let all = std::iter::from_fn(|| dir.read()).map(|entry| named(entry.unwrap()));
    all.filter(|(name, _)| name != "." && name != "..").collect()
}

fn fill(mount: &Mount<'_>, count: usize) -> BTreeSet<String> {
    mount.sh(&format!("mkdir d; for i in $(seq {count}); do : > d/stays-$i; done"));
    (1..=count).map(|number| format!("stays-{number}")).collect()
}

#[test]
fn what_stays_is_listed_once_while_others_come_and_go() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    let stays = fill(&mount, MANY);
    mount.sh(&format!("for i in $(seq {MANY}); do : > d/goes-$i; done"));
    let mut dir = Dir::new(stand_in(&mount.at("d"))).unwrap();
    let mut met = Vec::new();
    let mut steps = 0;
    while let Some(entry) = dir.read() {
        let name = entry.unwrap().file_name().to_str().unwrap().to_owned();
        steps += 1;
        if steps <= MANY {
            fs::remove_file(mount.at("d").join(format!("goes-{steps}"))).unwrap();
            fs::write(mount.at("d").join(format!("comes-{steps}")), "").unwrap();
            // Somebody else who lists it meanwhile keeps nobody from reading on.
            if steps % 1000 == 0 {
                assert!(names(stand_in(&mount.at("d"))).is_superset(&stays));
            }
        }
        met.extend(Some(name).filter(|name| name.starts_with("stays")));
    }
    assert_eq!(met.len(), MANY, "nothing is met twice");
    assert_eq!(met.into_iter().collect::<BTreeSet<_>>(), stays);
}

#[test]
fn places_hold_after_the_kernel_has_forgotten_the_listing() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    let all = fill(&mount, MANY);
    let mut dir = Dir::new(stand_in(&mount.at("d"))).unwrap();
    let listed = read(&mut dir);
    assert_eq!(listed.iter().map(|(name, _)| name.clone()).collect::<BTreeSet<_>>(), all);
    let (middle, place) = listed[MANY / 2].clone();
    for (name, _) in &listed[MANY / 2 + 1..][..100] {
        fs::remove_file(mount.at("d").join(name)).unwrap();
    }
    fs::remove_file(mount.at("d").join(&middle)).unwrap();
    // Clean pages, those of directories among them.
    fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
    dir.seek(place).unwrap();
    let rest: Vec<_> = read(&mut dir).into_iter().map(|(name, _)| name).collect();
    let expected: Vec<_> = listed[MANY / 2 + 101..].iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(rest, expected);
    dir.rewind();
    assert_eq!(read(&mut dir).len(), MANY - 101);
}

#[test]
fn a_directory_that_does_not_change_is_listed_by_the_kernel() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    let mut all = fill(&mount, MANY);
    let list = || names(stand_in(&mount.at("d")));
    assert_eq!(list(), all);
    assert!(mount.request_count("readdir") > 2);
    // Unless somebody lets the machine drop all caches just then.
    wait_until("the kernel lists it by itself", || {
        let before = mount.request_count("readdir");
        (0..10).for_each(|_| assert_eq!(list(), all));
        mount.request_count("readdir") == before
    });
    fs::rename(mount.at("d/stays-1"), mount.at("d/moved")).unwrap();
    all.remove("stays-1");
    all.insert("moved".into());
    assert_eq!(list(), all);
}

#[test]
fn who_stands_in_a_directory_lists_what_it_is_after_restores() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    let vellum = |args: &[&str]| run(&mount.path, args, Stdio::null()).ok();
    mount.sh("mkdir -p listed unlisted");
    let [listed, unlisted] = ["listed", "unlisted"].map(|name| stand_in(&mount.at(name)));
    let both = |name: &str| {
        let lists = |path: &str| fs::write(mount.at(path).join(name), "").unwrap();
        ["listed", "unlisted"].into_iter().for_each(lists);
    };
    both("first");
    vellum(&["snapshot", "-t", "first"]);
    both("second");
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(names(&listed), set(&["first", "second"]));
    for round in ["one", "two"] {
        vellum(&["restore", "first"]);
        assert_eq!(names(&listed), set(&["first"]));
        assert_eq!(names(&unlisted), set(&["first"]));
        // It is another directory to the kernel than the one that paths lead to.
        both(round);
        assert_eq!(names(&listed), set(&["first", round]));
        assert_eq!(names(&unlisted), set(&["first", round]));
        fs::remove_file(mount.at("listed/first")).unwrap();
        assert_eq!(names(&listed), set(&[round]));
        assert_eq!(names(stand_in(&mount.at("listed"))), set(&[round]));
    }
}

#[test]
fn a_new_snapshot_is_listed_at_once() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let snapshots = stand_in(&mount.at(".vellum/snapshots"));
    let before = names(&snapshots).len();
    for number in 1..4 {
        run(&mount.path, &["snapshot", "-t", &format!("tag-{number}")], Stdio::null()).ok();
        run(&mount.path, &["flush"], Stdio::null()).ok();
        assert!(names(stand_in(&mount.at(".vellum/snapshots"))).contains(&format!("tag-{number}")));
        assert_eq!(names(&snapshots).len(), before + 2 * number);
    }
}
