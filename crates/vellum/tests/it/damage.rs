//! Packs that are lost or damaged, and what is stored again without a verification: in a checkout, and in a mount.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use vellum_types::BlobKind;
use vellum_volume::Volume;
use vellum_volume::state::StateDir;

use crate::mounting::Mount;
use crate::world::{World, noise};

/// What happens to packs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PackHarm {
    Removed,
    Flipped,
}

const CASES: [(PackHarm, BlobKind); 4] = [
    (PackHarm::Removed, BlobKind::Chunk),
    (PackHarm::Removed, BlobKind::Node),
    (PackHarm::Flipped, BlobKind::Chunk),
    (PackHarm::Flipped, BlobKind::Node),
];

/// A worktree with a file of many chunks, and many small files, in one snapshot.
fn world_with_packs() -> World {
    let world = World::new();
    world.write("noise", noise(3_000_000));
    for number in 0..600 {
        world.write(&format!("dir-{}/file-{number}", number % 7), format!("{number} ").repeat(2000));
    }
    world.snapshot("first");
    world
}

/// The packs of a kind that the index knows.
fn packs(world: &World, kind: BlobKind) -> BTreeSet<PathBuf> {
    let volume = Volume::open(&StateDir::find_enclosing(&world.tree()).unwrap()).unwrap();
    let store = world.tree().join(".vellum/store");
    let mut found = BTreeSet::new();
    volume.blobs.for_each_entry(|_, place| {
        if place.kind == kind {
            found.insert(store.join(vellum_store::pack::pack_key(&place.pack).as_str()));
        }
    });
    found
}

fn hurt(packs: &BTreeSet<PathBuf>, harm: PackHarm) {
    assert!(!packs.is_empty());
    for pack in packs {
        let mut bytes = fs::read(pack).unwrap();
        fs::remove_file(pack).unwrap();
        if harm == PackHarm::Flipped {
            // Closer than any compressed chunk is long, so that each is hit, wherever it lies.
            bytes[40..].iter_mut().step_by(16).for_each(|byte| *byte ^= 1);
            fs::write(pack, bytes).unwrap();
        }
    }
}

/// Contents by path.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(path) = pending.pop() {
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                _ if path.ends_with(".vellum") => {}
                true => pending.push(path),
                false => drop(found.insert(path.strip_prefix(dir).unwrap().into(), fs::read(&path).unwrap())),
            }
        }
    }
    found
}

/// Whether an export of a snapshot is whole and equals the directory; one that is not whole says so.
fn exports_whole(world: &World, snapshot: &str, dir: &Path) -> bool {
    let to = world.path("exported");
    let _ = fs::remove_dir_all(&to);
    let ran = world.run(&["export", snapshot, "--to", to.to_str().unwrap()]);
    if ran.code == 0 {
        assert!(files(&to) == files(dir), "an export that succeeds is whole");
    }
    ran.code == 0
}

#[test]
fn an_export_that_fails_lets_the_next_snapshot_store_again_what_is_damaged() {
    for (harm, kind) in CASES {
        let world = world_with_packs();
        hurt(&packs(&world, kind), harm);
        assert!(!exports_whole(&world, "HEAD", &world.tree()), "{harm:?} {kind:?}");
        world.run(&["snapshot", "--tag", "whole"]).ok();
        assert!(exports_whole(&world, "whole", &world.tree()), "{harm:?} {kind:?}");
        world.run(&["verify", "whole"]).ok();
        world.run(&["snapshot"]).ok().says("nothing changed");
    }
}

#[test]
fn a_snapshot_that_relied_on_a_damaged_pack_is_followed_by_one_that_is_whole() {
    for (harm, kind) in CASES {
        let world = world_with_packs();
        hurt(&packs(&world, kind), harm);
        world.write("dir-3/edited", "edited");
        world.run(&["snapshot", "--tag", "second"]).ok();
        if !exports_whole(&world, "second", &world.tree()) {
            assert_eq!(harm, PackHarm::Flipped, "nobody can know of these bytes before they are read");
            world.run(&["snapshot", "--tag", "third"]).ok();
            assert!(exports_whole(&world, "third", &world.tree()), "{harm:?} {kind:?}");
        }
        world.run(&["verify", "HEAD"]).ok();
    }
}

#[test]
fn one_flipped_byte_that_a_command_met_is_stored_again() {
    for command in ["cat", "restore", "view"] {
        let world = world_with_packs();
        let pack = packs(&world, BlobKind::Chunk).into_iter().next().unwrap();
        let mut bytes = fs::read(&pack).unwrap();
        // Each chunk of the file is hit, and the reader stops at the first.
        bytes[40..].iter_mut().step_by(3000).for_each(|byte| *byte ^= 1);
        fs::remove_file(&pack).unwrap();
        fs::write(&pack, bytes).unwrap();
        match command {
            "cat" => drop(world.run(&["cat", "HEAD", "noise"]).code(2)),
            "restore" => {
                let kept = fs::read(world.tree().join("noise")).unwrap();
                world.remove("noise");
                assert_ne!(world.run(&["restore", "HEAD", "noise"]).code, 0);
                world.write("noise", kept);
            }
            _ => {
                let view = Mount::place(&world, "view");
                view.again(&["--snapshot", "first"]).ok();
                assert_eq!(fs::read(view.at("noise")).unwrap_err().raw_os_error(), Some(5));
                view.umount().ok();
            }
        }
        world.run(&["snapshot", "--tag", "whole"]).ok();
        assert!(exports_whole(&world, "whole", &world.tree()), "{command}");
    }
}

#[test]
fn what_was_stored_again_is_read_anew_by_no_later_snapshot() {
    let world = world_with_packs();
    hurt(&packs(&world, BlobKind::Chunk), PackHarm::Flipped);
    assert!(!exports_whole(&world, "HEAD", &world.tree()));
    let note = world.tree().join(".vellum/lost.json");
    assert!(note.exists());
    world.run(&["snapshot"]).ok();
    assert!(!note.exists(), "nothing is lost any more");
}

#[test]
fn content_that_a_mount_found_damaged_is_stored_again_when_it_is_written_again() {
    for harm in [PackHarm::Removed, PackHarm::Flipped] {
        let world = world_with_packs();
        let mount = Mount::new(&world, "work");
        hurt(&packs(&world, BlobKind::Chunk), harm);
        let error = fs::read(mount.at("noise")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(5), "{harm:?}");
        fs::write(mount.at("again"), noise(3_000_000)).unwrap();
        mount.sh("mkdir new; echo new > new/file");
        let run = |args: &[&str]| crate::world::run(&mount.path, args, std::process::Stdio::null());
        run(&["snapshot", "--tag", "mended"]).ok();
        run(&["flush"]).ok();
        assert_eq!(fs::read(mount.at("noise")).unwrap(), noise(3_000_000), "{harm:?}");
        assert_eq!(world.run(&["cat", "mended", "again"]).ok().raw, noise(3_000_000));
        assert_eq!(world.run(&["cat", "first", "noise"]).ok().raw, noise(3_000_000), "older ones, too");
        // The other files of the damaged packs are as they were: an error, until their content comes back.
        assert!(fs::read(mount.at("dir-6/file-300")).is_err(), "{harm:?}");
        world.run(&["snapshot", "--tag", "whole"]).ok();
        assert!(exports_whole(&world, "whole", &world.tree()), "{harm:?}");
        mount.umount().ok();
    }
}

#[test]
fn damage_that_another_process_met_is_known_to_the_writers_of_a_mount() {
    let world = world_with_packs();
    let mount = Mount::new(&world, "work");
    hurt(&packs(&world, BlobKind::Chunk), PackHarm::Flipped);
    world.run(&["cat", "first", "noise"]).code(2);
    fs::write(mount.at("again"), noise(3_000_000)).unwrap();
    mount.umount().ok();
    assert_eq!(world.run(&["cat", "first", "noise"]).ok().raw, noise(3_000_000));
}

#[test]
fn a_mount_goes_on_while_packs_of_its_tree_are_lost_or_damaged() {
    for harm in [PackHarm::Removed, PackHarm::Flipped] {
        let world = world_with_packs();
        let mount = Mount::new(&world, "work");
        let before = files(&mount.path);
        let run = |args: &[&str]| crate::world::run(&mount.path, args, std::process::Stdio::null());
        hurt(&packs(&world, BlobKind::Node), harm);
        // The process has read these nodes. What is written is kept and published.
        fs::write(mount.at("new"), "new").unwrap();
        run(&["snapshot", "--tag", "second"]).ok();
        run(&["flush"]).ok();
        assert_eq!(fs::read_to_string(mount.at("new")).unwrap(), "new");
        // A snapshot that relies on nodes that are lost says so when it is read.
        let mut now = before;
        now.insert("new".into(), b"new".into());
        assert!(files(&mount.path) == now, "{harm:?}");
        exports_whole(&world, "second", &mount.path);
        // The directory has everything: its next snapshot is whole.
        world.run(&["snapshot", "--tag", "whole"]).ok();
        assert!(exports_whole(&world, "whole", &world.tree()), "{harm:?}");
        mount.umount().ok();
    }
}
