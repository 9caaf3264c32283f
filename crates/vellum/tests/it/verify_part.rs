//! `vellum verify --sample` and `--since-last`

use std::fs;
use std::path::PathBuf;

use crate::world::{World, noise};

/// A volume with a pack of content and a pack of nodes for each of some snapshots.
fn world_with_packs(snapshots: usize) -> World {
    let world = World::new();
    for number in 0..snapshots {
        add_snapshot(&world, number);
    }
    world
}

fn add_snapshot(world: &World, number: usize) {
    world.write("file", &noise((number + 1) * 100_000)[number * 100_000..]);
    world.run(&["snapshot", "-q"]).ok();
}

fn sample(world: &World, percent: &str) -> serde_json::Value {
    world.json(&["verify", "--sample", percent])["part"].clone()
}

fn packs(world: &World) -> Vec<PathBuf> {
    let folder = world.tree().join(".vellum/store/packs");
    let folders = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    folders.flat_map(|folder| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path())).collect()
}

#[test]
fn samples_see_everything_in_turn() {
    let world = world_with_packs(8);
    let all = packs(&world).len() as u64;
    let mut seen = 0;
    let mut runs = 0;
    loop {
        let part = sample(&world, "25%");
        assert_eq!(part["of"], all);
        seen += part["packs"].as_u64().unwrap();
        runs += 1;
        if part["left"] == 0 {
            break;
        }
    }
    assert_eq!(seen, all, "each pack once");
    assert!(runs <= 4, "{runs}");
    // The next run begins anew.
    assert!(sample(&world, "25%")["packs"].as_u64().unwrap() > 0);
    world.run(&["verify", "--sample", "0"]).code(3).remarks("5%");
    world.run(&["verify", "--sample", "5%"]).ok().says("Intact").remarks("next runs");
}

#[test]
fn a_damaged_pack_is_found_by_one_of_the_samples_and_by_each_run_after_it() {
    let world = world_with_packs(6);
    let pack = packs(&world).into_iter().max_by_key(|pack| fs::metadata(pack).unwrap().len()).unwrap();
    let mut bytes = fs::read(&pack).unwrap();
    bytes[500] ^= 1;
    fs::remove_file(&pack).unwrap();
    fs::write(&pack, bytes).unwrap();
    let found = |_: &u32| world.run(&["verify", "--sample", "20%"]).code == 1;
    let first = (1..=6).find(found).expect("five runs see everything");
    assert!(first <= 6);
    // It is named with the files that it hits.
    world.run(&["verify", "--since-last"]).code(1).says("file").remarks("--repair");
    world.run(&["verify", "--since-last"]).code(1);
}

#[test]
fn a_missing_pack_is_found_by_each_run() {
    let world = world_with_packs(6);
    world.run(&["verify", "--all"]).ok();
    fs::remove_file(&packs(&world)[0]).unwrap();
    world.run(&["verify", "--sample", "10%"]).code(1).says("missing");
    world.run(&["verify", "--since-last"]).code(1).says("missing");
}

#[test]
fn what_was_found_intact_is_not_read_again_since() {
    let world = world_with_packs(3);
    let since = || world.json(&["verify", "--since-last"])["part"]["packs"].as_u64().unwrap();
    let all = packs(&world).len() as u64;
    assert_eq!(since(), all);
    assert_eq!(since(), 0);
    add_snapshot(&world, 3);
    assert_eq!(since(), packs(&world).len() as u64 - all);
    // A verification of everything counts, too.
    add_snapshot(&world, 4);
    world.run(&["verify", "--all"]).ok();
    assert_eq!(since(), 0);
    // The notes are a hint.
    fs::write(world.tree().join(".vellum/verified.json"), "junk").unwrap();
    assert_eq!(since(), packs(&world).len() as u64);
}
