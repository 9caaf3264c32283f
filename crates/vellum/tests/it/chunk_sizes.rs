//! `init --chunk-size`: how a volume cuts content, which it does for good.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;

use crate::mounting::Mount;
use crate::world::{World, noise, run};

/// As much content as makes several of the longest chunks.
const CONTENT: usize = 6 << 20;

fn world_with_chunks(size: &str) -> World {
    let world = World::empty();
    world.run(&["init", "--plain", "--chunk-size", size]).ok();
    world
}

fn count_chunks(world: &World, snapshot: &str, path: &str) -> u64 {
    world.json(&["show", snapshot, path])["file"]["chunks"].as_u64().unwrap()
}

fn info(world: &World) -> Value {
    world.json(&["info"])["chunk_bytes"].clone()
}

#[test]
fn volumes_with_other_sizes_have_other_numbers_of_chunks() {
    let counts: Vec<_> = ["8K", "64K", "100000", "1M"]
        .into_iter()
        .map(|size| {
            let world = world_with_chunks(size);
            world.write("large", noise(CONTENT));
            world.write("small", "small");
            world.snapshot("first");
            // A stream is cut like a file.
            let mut stream =
                world.command_at_home(&["snapshot", "-q", "--tag", "stream", "--from-stdin", "dump"]);
            stream.stdin(fs::File::open(world.tree().join("large")).unwrap());
            assert!(stream.output().unwrap().status.success());
            let count = count_chunks(&world, "first", "large");
            assert_eq!(count_chunks(&world, "stream", "dump"), count);
            world.remove("large");
            world.run(&["restore", "first"]).ok();
            assert_eq!(fs::read(world.tree().join("large")).unwrap(), noise(CONTENT));
            world.run(&["verify", "--all"]).ok();
            count
        })
        .collect();
    // About 6 MiB divided by the average.
    assert!((500..1200).contains(&counts[0]), "{counts:?}");
    assert!((60..150).contains(&counts[1]), "{counts:?}");
    assert!(counts[2] < counts[1] && counts[2] > counts[3], "{counts:?}");
    assert!((2..=12).contains(&counts[3]), "{counts:?}");
    // Without the option, the default.
    let world = World::new();
    world.write("large", noise(CONTENT));
    world.snapshot("first");
    assert_eq!(count_chunks(&world, "first", "large"), counts[1]);
    assert_eq!(info(&world)["average"], 64 << 10);
}

#[test]
fn what_is_written_to_a_mount_is_cut_as_a_snapshot_of_a_directory_cuts_it() {
    for size in ["8K", "1M"] {
        let world = world_with_chunks(size);
        world.write("large", noise(CONTENT));
        world.snapshot("first");
        let mount = Mount::new(&world, "work");
        fs::write(mount.at("large"), noise(CONTENT)).unwrap();
        // An overwritten part in the middle, and an end that is written later.
        fs::write(mount.at("other"), &noise(CONTENT)[..CONTENT / 2]).unwrap();
        let other = fs::OpenOptions::new().write(true).open(mount.at("other")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&other, b"changed", 1_000_000).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&other, &noise(CONTENT)[CONTENT / 2..], CONTENT as u64 / 2)
            .unwrap();
        drop(other);
        run(&mount.path, &["snapshot", "-q", "--tag", "mounted"], Stdio::null()).ok();
        run(&mount.path, &["flush"], Stdio::null()).ok();
        let count = count_chunks(&world, "first", "large");
        assert_eq!(count_chunks(&world, "mounted", "large"), count, "{size}");
        let mut expected = noise(CONTENT);
        expected[1_000_000..1_000_007].copy_from_slice(b"changed");
        assert_eq!(fs::read(mount.at("other")).unwrap(), expected);
        mount.umount().ok();
        // What is checked out again, and recorded again, is the same.
        world.run(&["restore", "mounted"]).ok();
        assert_eq!(fs::read(world.tree().join("other")).unwrap(), expected);
        world.write("copy", &expected);
        world.snapshot("copied");
        let stored = world.json(&["show", "copied"])["snapshot"]["stored"].as_u64().unwrap();
        assert!(stored < 1 << 20, "{size}: of what is there already, {stored} bytes were stored again");
        world.run(&["verify", "--all"]).ok();
    }
}

fn content_packs(world: &World) -> Vec<PathBuf> {
    let folders =
        fs::read_dir(world.tree().join(".vellum/store/packs")).unwrap().map(|entry| entry.unwrap().path());
    let packs = folders.flat_map(|folder| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
    // The ninth byte after magic and version is the kind of its blobs.
    packs.filter(|pack| fs::read(pack).unwrap()[12] == 1).collect()
}

#[test]
fn lost_content_is_made_anew_from_files_by_the_sizes_of_the_volume() {
    for size in ["8K", "1M"] {
        let world = world_with_chunks(size);
        world.write("large", noise(CONTENT));
        world.snapshot("first");
        // Cut anew from a place of which no snapshot knows.
        fs::rename(world.tree().join("large"), world.path("elsewhere")).unwrap();
        fs::create_dir(world.path("backup")).unwrap();
        fs::rename(world.path("elsewhere"), world.path("backup/found")).unwrap();
        content_packs(&world).iter().for_each(|pack| fs::remove_file(pack).unwrap());
        world.run(&["verify", "--all"]).code(1);
        world.run(&["verify", "--all", "--repair", "--from", "../backup"]).ok().says("Mended");
        world.run(&["verify", "--all"]).ok();
        world.run(&["restore", "first"]).ok();
        assert_eq!(fs::read(world.tree().join("large")).unwrap(), noise(CONTENT));
    }
}

#[test]
fn every_copy_of_a_volume_keeps_its_sizes() {
    let world = world_with_chunks("1M");
    world.write("large", noise(CONTENT));
    world.snapshot("first");
    let count = count_chunks(&world, "first", "large");
    let average = |dir: &str| {
        let ran = world.run_beside(dir, &["info", "--json"]).ok();
        serde_json::from_str::<Value>(&ran.out).unwrap()["chunk_bytes"]["average"].as_u64().unwrap()
    };
    world.run(&["remote", "add", "hub", "../hub"]).ok();
    world.run(&["push"]).ok();
    world.run_beside("", &["clone", "hub", "other", "--plain"]).ok();
    world.run(&["fork", "side", "--to", "../side"]).ok();
    for dir in ["other", "side"] {
        assert_eq!(average(dir), 1 << 20, "{dir}");
        // Equal content is not stored twice.
        fs::write(world.path(dir).join("copy"), noise(CONTENT)).unwrap();
        world.run_beside(dir, &["snapshot", "-q"]).ok();
        let shown = world.run_beside(dir, &["show", "HEAD", "copy", "--json"]).ok();
        let shown: Value = serde_json::from_str(&shown.out).unwrap();
        assert_eq!(shown["file"]["chunks"], count);
    }
    world.run(&["pull"]).ok();
    world.run(&["merge", "hub/other"]).ok();
    assert_eq!(fs::read(world.tree().join("copy")).unwrap(), noise(CONTENT));
    world.run(&["verify", "--all"]).ok();
    // A volume with other sizes is another one.
    fs::create_dir(world.path("small")).unwrap();
    world.run_beside("small", &["init", "--plain", "--chunk-size", "8K", "--store", "../store"]).ok();
    world.run(&["remote", "add", "small", "../store"]).code(3).remarks("another volume");
}

#[test]
fn a_volume_that_is_there_keeps_its_sizes() {
    let world = World::empty();
    world.run(&["init", "--plain", "--store", "../store", "--chunk-size", "128K"]).ok();
    let init = |dir: &str, args: &[&str]| {
        fs::create_dir_all(world.path(dir)).unwrap();
        world.run_beside(dir, &[&["init", "--plain", "--store", "../store"], args].concat())
    };
    let refused = init("two", &["--chunk-size", "64K"]).code(3);
    refused.remarks("cuts content into chunks of 128K on average").remarks("leave out --chunk-size");
    assert_eq!(fs::read_dir(world.path("two")).unwrap().count(), 0, "nothing was begun");
    init("two", &["--chunk-size", "128K"]).ok();
    init("three", &[]).ok();
    let shown = world.run_beside("three", &["info"]).ok();
    shown.says("Chunks").says("128.0 KiB on average, 32.0 KiB to 512.0 KiB");
    world.run(&["init", "../four", "--volume", ".", "--chunk-size", "128K"]).code(3);
}

#[test]
fn sizes_out_of_range_are_refused_before_anything_is_made() {
    let world = World::empty();
    for size in ["0", "3", "8191", "2M", "1025K", "10GiB", "-1", "many", "99999999999999999999G"] {
        let ran = world.run(&["init", "--plain", &format!("--chunk-size={size}")]).code(3);
        let expected = ["from 8.0 KiB to 1.0 MiB long on average", "a size is typed like"];
        assert!(expected.iter().any(|text| ran.err.contains(text)), "{size}: {}", ran.err);
        assert!(!world.has(".vellum"), "{size}");
    }
}

#[test]
fn the_size_is_shown_among_the_settings_and_cannot_be_set() {
    let world = world_with_chunks("256K");
    world.run_at_home(&["config", "get", "chunk-size"]).ok().says("256K");
    let all = world.run_at_home(&["config", "list", "--all"]).ok();
    let row = all.lines().into_iter().find(|line| line.starts_with("chunk-size")).unwrap().to_owned();
    assert!(row.contains("256K") && row.contains("volume") && row.contains("init --chunk-size"), "{row}");
    world.run_at_home(&["config", "list"]).ok().remarks("nothing is set");
    for command in [
        &["set", "chunk-size", "64K"][..],
        &["set", "--volume", "chunk-size", "64K"],
        &["unset", "chunk-size"],
    ] {
        let ran = world.run_at_home(&[&["config"], command].concat()).code(3);
        ran.remarks("chunk-size cannot be changed").remarks("'vellum init --chunk-size SIZE' chooses it");
    }
    fs::write(world.tree().join(".vellum/config.toml"), "chunk-size = \"64K\"\n").unwrap();
    world.run_at_home(&["config", "get", "chunk-size"]).code(3).remarks("cannot be set for a worktree");
    fs::remove_file(world.tree().join(".vellum/config.toml")).unwrap();
    // Outside of volumes, what a new one gets.
    let mut elsewhere = world.command_at_home(&["config", "get", "chunk-size"]);
    let output = elsewhere.current_dir(world.path("")).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "64K\n");
}
