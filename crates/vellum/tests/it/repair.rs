//! `vellum verify --repair`

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::mounting::Mount;
use crate::world::{World, copy_dir, noise};

/// Two snapshots in several packs: a large file that the second changed, small ones, and one that only the first has.
fn world_with_packs() -> World {
    let world = World::new();
    world.write("large", noise(400_000));
    world.write("dir/gone", &noise(900_000)[600_000..]);
    world.write("dir/small", "small");
    world.snapshot("first");
    world.write("large", &noise(450_000)[50_000..]);
    world.remove("dir/gone");
    world.snapshot("second");
    world
}

fn packs(world: &World) -> BTreeSet<PathBuf> {
    let folder = world.tree().join(".vellum/store/packs");
    let folders = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    folders.flat_map(|folder| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path())).collect()
}

/// Whether a pack has content, and no nodes: the ninth of its first bytes after magic and version says so.
fn has_chunks(pack: &Path) -> bool {
    vellum_types::BlobKind::from_byte(fs::read(pack).unwrap()[12]) == Some(vellum_types::BlobKind::Chunk)
}

/// Damages all blobs of a pack, and nothing else of it.
fn damage_blobs(pack: &Path) {
    let mut bytes = fs::read(pack).unwrap();
    let footer: [u8; 4] = bytes[bytes.len() - 8..][..4].try_into().unwrap();
    let table_at = bytes.len() - 8 - u32::from_le_bytes(footer) as usize;
    bytes[30..table_at].iter_mut().step_by(50).for_each(|byte| *byte ^= 1);
    fs::remove_file(pack).unwrap();
    fs::write(pack, bytes).unwrap();
}

fn damage(pack: &Path) {
    let mut bytes = fs::read(pack).unwrap();
    bytes[30..].iter_mut().step_by(50).for_each(|byte| *byte ^= 1);
    fs::remove_file(pack).unwrap();
    fs::write(pack, bytes).unwrap();
}

/// One snapshot, with several chunks in one pack and several nodes in another, and all of it on a remote.
fn world_of_two_packs() -> World {
    let world = World::new();
    world.write("large", noise(400_000));
    for number in 0..400 {
        world.write(&format!("dir/{number:0>100}"), "");
    }
    world.snapshot("first");
    world.run(&["remote", "add", "origin", "../remote"]).ok();
    world.run(&["push"]).ok();
    world
}

/// Changes one bit of a pack; `at` counts from its end if it is negative.
fn flip_bit(pack: &Path, at: isize) {
    let mut bytes = fs::read(pack).unwrap();
    let at = if at < 0 { bytes.len().checked_add_signed(at).unwrap() } else { at.unsigned_abs() };
    bytes[at] ^= 1;
    fs::remove_file(pack).unwrap();
    fs::write(pack, bytes).unwrap();
}

/// In the first blob of a pack: behind its header.
const IN_FIRST_BLOB: isize = 40;

fn expect_sound_now_and_when_collected(world: &World, damaged: &Path) {
    world.run(&["verify", "--all"]).ok();
    world.run(&["verify", "--sample", "100%"]).ok();
    world.run(&["verify", "--since-last"]).ok();
    // Nothing was deleted.
    assert!(damaged.exists());
    world.run(&["gc", "run"]).ok();
    assert!(!damaged.exists());
    world.run(&["verify", "--all"]).ok();
    world.run(&["verify", "first"]).ok();
}

#[test]
fn what_the_repair_of_one_snapshot_mended_is_not_named_again() {
    let world = world_of_two_packs();
    for pack in packs(&world) {
        flip_bit(&pack, IN_FIRST_BLOB);
        world.run(&["verify", "--all"]).code(1);
        world.run(&["verify", "--repair"]).ok().says("Mended").remarks("not needed any more");
        expect_sound_now_and_when_collected(&world, &pack);
    }
}

#[test]
fn two_damaged_packs_are_mended_together_and_one_after_the_other() {
    let world = world_of_two_packs();
    let damaged = packs(&world);
    damaged.iter().for_each(|pack| flip_bit(pack, IN_FIRST_BLOB));
    world.run(&["verify", "--repair"]).ok();
    world.run(&["verify", "--all"]).ok();
    // The packs that took their places. Those of before are there still, and their tables can be read.
    for pack in packs(&world).difference(&damaged) {
        flip_bit(pack, IN_FIRST_BLOB);
        world.run(&["verify", "--repair"]).ok().says("Mended");
        world.run(&["verify", "--all"]).ok();
    }
    world.run(&["gc", "run"]).ok();
    assert!(damaged.iter().all(|pack| !pack.exists()));
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_part_that_was_repaired_is_not_named_again() {
    for part in [&["--sample", "100%"][..], &["--since-last"]] {
        let world = world_of_two_packs();
        for pack in packs(&world) {
            // Found intact before, it is not new.
            let _ = fs::remove_file(world.tree().join(".vellum/verified.json"));
            flip_bit(&pack, IN_FIRST_BLOB);
            let ran = world.run(&[&["verify"], part].concat()).code(1);
            ran.says(pack.file_name().unwrap().to_str().unwrap());
            world.run(&[&["verify", "--repair"], part].concat()).ok().says("Mended");
            expect_sound_now_and_when_collected(&world, &pack);
        }
    }
}

#[test]
fn a_pack_with_a_damaged_header_table_or_footer_is_replaced() {
    let world = world_of_two_packs();
    for at in [0, -10, -1] {
        for pack in packs(&world) {
            flip_bit(&pack, at);
            // All that the snapshot needs can be read.
            world.run(&["verify", "--repair"]).ok();
            world.run(&["verify", "--all"]).code(1).says("packs/");
            world.run(&["verify", "--all", "--repair"]).ok();
            expect_sound_now_and_when_collected(&world, &pack);
        }
    }
}

#[test]
fn content_that_is_lost_keeps_its_pack_in_the_report_and_what_was_mended_is_not_named() {
    let world = World::new();
    world.write("gone", noise(300_000));
    world.write("kept", &noise(700_000)[400_000..]);
    world.snapshot("first");
    world.remove("gone");
    world.snapshot("second");
    let pack = packs(&world).into_iter().find(|pack| has_chunks(pack)).unwrap();
    damage_blobs(&pack);
    world.run(&["verify", "--repair"]).ok().says("Mended");
    let ran = world.run(&["verify", "--all"]).code(1).says("packs/").says("gone");
    assert!(!ran.out.contains("kept"), "{}", ran.out);
}

#[test]
fn each_lost_pack_is_mended_from_a_remote() {
    let world = world_with_packs();
    world.run(&["remote", "add", "origin", "../remote"]).ok();
    world.run(&["push"]).ok();
    for pack in packs(&world) {
        fs::remove_file(&pack).unwrap();
        world.run(&["verify", "--all"]).code(1).remarks("--repair");
        world.run(&["verify", "--all", "--repair"]).ok().says("Mended").says("remote 'origin'");
        world.run(&["verify", "--all"]).ok();
        for snapshot in ["first", "second"] {
            world.run(&["export", snapshot, "--to", &format!("../out-{snapshot}")]).ok();
            fs::remove_dir_all(world.path(&format!("out-{snapshot}"))).unwrap();
        }
    }
}

#[test]
fn each_damaged_pack_is_mended_and_collected() {
    let world = world_with_packs();
    world.run(&["remote", "add", "origin", "../remote"]).ok();
    world.run(&["push"]).ok();
    for pack in packs(&world) {
        damage(&pack);
        world.run(&["verify", "--all"]).code(1);
        let ran = world.run(&["verify", "--all", "--repair"]).ok().says("All is intact");
        ran.remarks("not needed any more");
        // Nothing was deleted.
        assert!(pack.exists());
        world.run(&["gc", "run"]).ok();
        assert!(!pack.exists());
        world.run(&["verify", "--all"]).ok();
    }
}

#[test]
fn lost_content_is_found_in_the_files_of_the_worktree() {
    let world = world_with_packs();
    // Somewhere else than the snapshots have it.
    fs::rename(world.tree().join("large"), world.tree().join("moved")).unwrap();
    for pack in packs(&world).iter().filter(|pack| has_chunks(pack)) {
        fs::remove_file(pack).unwrap();
    }
    let ran = world.run(&["verify", "second", "--repair"]).ok();
    ran.says("Mended").says("files of");
    world.run(&["verify", "second"]).ok();
    // The file that only the first snapshot had is nowhere.
    let ran = world.run(&["verify", "--all", "--repair"]).code(1);
    ran.says("dir: 1 of 2 files").remarks("--from PLACE");
}

#[test]
fn other_places_are_searched_on_request_and_wrong_files_are_named() {
    let world = world_with_packs();
    for pack in packs(&world).iter().filter(|pack| has_chunks(pack)) {
        fs::remove_file(pack).unwrap();
    }
    fs::create_dir_all(world.path("backup/dir")).unwrap();
    fs::write(world.path("backup/dir/gone"), noise(310_000)).unwrap();
    world.run(&["verify", "first", "--repair", "--from", "../backup"]).code(1).says("backup/dir/gone");
    // Under another name.
    fs::write(world.path("backup/copy"), &noise(900_000)[600_000..]).unwrap();
    fs::write(world.path("backup/older"), noise(400_000)).unwrap();
    world.run(&["verify", "--all", "--repair", "--from", "../backup"]).ok().says("files of");
    world.run(&["verify", "--all"]).ok();
    world.run(&["verify", "--repair", "--from", "../nowhere"]).code(3).remarks("is no directory");
}

#[test]
fn a_copied_worktree_and_a_copied_store_are_places_too() {
    for (place, from) in [(".", "../copy"), (".vellum/store", "../copy")] {
        let world = world_with_packs();
        copy_dir(&world.tree().join(place), &world.path("copy"));
        for pack in packs(&world) {
            fs::remove_file(pack).unwrap();
        }
        world.write("large", "other");
        world.run(&["verify", "--all", "--repair", "--from", from]).ok().says("Mended").says("copy");
        world.run(&["verify", "--all"]).ok();
    }
}

#[test]
fn packs_that_no_index_knows_are_found() {
    let world = world_with_packs();
    let index = world.tree().join(".vellum/store/index");
    for entry in fs::read_dir(&index).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    fs::remove_dir_all(world.tree().join(".vellum/index")).unwrap();
    world.run(&["verify", "--all"]).code(1);
    world.run(&["verify", "--all", "--repair"]).ok().says("that the index did not know");
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_repair_beside_a_mount_mends_what_the_mount_needs() {
    let world = world_with_packs();
    world.run(&["remote", "add", "origin", "../remote"]).ok();
    world.run(&["push"]).ok();
    let mount = Mount::new(&world, "live");
    for pack in packs(&world).iter().filter(|pack| has_chunks(pack)) {
        fs::remove_file(pack).unwrap();
    }
    world.run(&["verify", "--all", "--repair"]).ok().says("Mended");
    assert!(fs::read(mount.at("large")).unwrap() == noise(450_000)[50_000..]);
    fs::write(mount.at("new"), "new").unwrap();
    mount.umount().ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn each_lost_pack_is_stored_again_by_the_next_snapshot_which_says_so() {
    let world = World::new();
    for number in 0..2 {
        world.write(&format!("file-{number}"), &noise(400_000)[number * 100_000..]);
        world.run(&["snapshot", "-q"]).ok();
    }
    for (number, pack) in packs(&world).into_iter().enumerate() {
        let is_content = has_chunks(&pack);
        fs::remove_file(&pack).unwrap();
        // The file whose content is lost is touched and not changed: its content is read, and found in the index.
        for file in ["file-0", "file-1"] {
            fs::File::open(world.tree().join(file))
                .unwrap()
                .set_modified(std::time::SystemTime::now())
                .unwrap();
        }
        let tag = format!("healed-{number}");
        let ran = world.run(&["snapshot", "--tag", &tag]).ok();
        if is_content {
            ran.remarks("stored again");
        }
        world.run(&["verify", &tag]).ok();
    }
}

#[test]
fn an_intact_volume_is_not_changed() {
    let world = world_with_packs();
    let before = packs(&world);
    let report = world.json(&["verify", "--all", "--repair"]);
    assert_eq!(report["sound"], true);
    assert_eq!(report["repair"]["mended"].as_array().unwrap().len(), 0);
    assert_eq!(packs(&world), before);
}
