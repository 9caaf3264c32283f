//! `vellum verify`

use std::fs;
use std::path::{Path, PathBuf};

use crate::world::{World, noise};

fn packs(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(packs(&path)) } else { found.push(path) }
    }
    found
}

#[test]
fn a_sound_volume_is_intact() {
    let world = World::with_snapshot();
    world.write("big", vec![7; 100_000]);
    world.snapshot("big");
    world.run(&["verify"]).ok().says("All is intact").says("1 snapshot").says(" stored)");
    world.run(&["verify", "first"]).ok();
    world.run(&["verify", "--all"]).ok().says("2 snapshots");
    world.run(&["verify", "--metadata-only"]).ok().says("without the content");
    world.run(&["verify", "first", "--all"]).code(3);
    World::new().run(&["verify"]).code(2).remarks("none was made yet");
}

#[test]
fn damage_is_named_with_the_files_it_hits() {
    let world = World::with_snapshot();
    let noise = noise(100_000);
    world.write("dir/noise", noise);
    world.snapshot("noise");
    let store = world.tree().join(".vellum/store/packs");
    let pack = packs(&store).into_iter().max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = fs::read(&pack).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::set_permissions(&pack, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    fs::write(&pack, bytes).unwrap();
    world.run(&["verify"]).code(1).says("dir/noise").says("Damaged");
    world.run(&["verify", "--all"]).code(1).says("dir/noise");
    world.run(&["cat", "HEAD", "dir/noise"]).code(2);
    let value = world.json(&["verify"]);
    assert_eq!(value["sound"], false);
    assert!(value["findings"][0]["affected"][0]["paths"][0].as_str().unwrap().contains("dir/noise"));
}
