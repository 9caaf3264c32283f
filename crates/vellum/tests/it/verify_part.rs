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

fn record_path(world: &World, id: &str) -> PathBuf {
    world.tree().join(".vellum/store/snapshots").join(id)
}

#[test]
fn a_damaged_record_is_found_by_one_of_the_samples_and_when_it_is_new() {
    let world = world_with_packs(4);
    let id = world.run(&["snapshot", "-q", "-m", "last"]).ok().out.trim().to_owned();
    let sound = fs::read(record_path(&world, &id)).unwrap();
    let mut damaged = sound.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let put = |bytes: &[u8]| {
        fs::remove_file(record_path(&world, &id)).unwrap();
        fs::write(record_path(&world, &id), bytes).unwrap();
    };
    put(&damaged);
    let object = format!("snapshots/{id}");
    let found: Vec<_> =
        (0..4).map(|_| world.run(&["verify", "--sample", "25%"])).filter(|ran| ran.code == 1).collect();
    assert_eq!(found.len(), 1, "each record is looked at by one of them");
    assert!(found[0].out.contains(&object), "{}", found[0].out);
    put(&sound);
    world.run(&["verify", "--since-last"]).ok();
    world.write("file", noise(50_000));
    let id = world.run(&["snapshot", "-q"]).ok().out.trim().to_owned();
    let mut damaged = fs::read(record_path(&world, &id)).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    fs::remove_file(record_path(&world, &id)).unwrap();
    fs::write(record_path(&world, &id), damaged).unwrap();
    world.run(&["verify", "--since-last"]).code(1).says(&format!("snapshots/{id}"));
}

#[test]
fn a_lost_record_is_found_by_each_run() {
    let world = world_with_packs(3);
    let id = world.run(&["history", "-n", "1", "--json"]).ok().out;
    let id = serde_json::from_str::<serde_json::Value>(&id).unwrap()["snapshots"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    fs::remove_file(record_path(&world, &id)).unwrap();
    for args in [["--sample", "1%"].as_slice(), &["--since-last"], &["--since-last"]] {
        world.run(&[&["verify"], args].concat()).code(1).says(&format!("snapshots/{id}")).says("missing");
    }
}

#[test]
fn what_a_new_tree_names_has_to_be_there() {
    let world = world_with_packs(2);
    let pack = packs(&world).into_iter().max_by_key(|pack| fs::metadata(pack).unwrap().len()).unwrap();
    fs::remove_file(pack).unwrap();
    // Nothing but the trees knows of the lost content now.
    world.run(&["verify", "--rebuild-index"]).ok();
    world.run(&["verify", "--since-last"]).code(1).says("not in the store").says("file");
    world.run(&["verify", "--all"]).code(1).says("not in the store");
}

#[test]
fn what_was_repaired_is_no_damage_any_more() {
    let world = world_with_packs(1);
    let pack = packs(&world).into_iter().max_by_key(|pack| fs::metadata(pack).unwrap().len()).unwrap();
    let mut bytes = fs::read(&pack).unwrap();
    bytes[500] ^= 1;
    fs::remove_file(&pack).unwrap();
    fs::write(&pack, bytes).unwrap();
    world.run(&["verify", "--all"]).code(1);
    world.run(&["verify", "--all", "--repair"]).ok().says("Mended");
    // The damaged pack is there until it is collected, and nothing is read from it.
    for args in [&["verify", "--all"][..], &["verify", "--since-last"], &["verify", "--sample", "100%"]] {
        let ran = world.run(args).ok();
        assert!(!ran.err.contains("other object") && !ran.err.contains("rebuild-index"), "{}", ran.err);
    }
    world.run(&["gc", "run"]).ok();
    world.run(&["verify", "--all"]).ok();
}
