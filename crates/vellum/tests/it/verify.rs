//! `vellum verify`

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::mounting::Mount;
use crate::world::{World, noise, run};

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

/// The packs of a store, the largest first.
fn by_size(world: &World) -> Vec<PathBuf> {
    let mut all = packs(&world.tree().join(".vellum/store/packs"));
    all.sort_by_key(|path| std::cmp::Reverse(fs::metadata(path).unwrap().len()));
    all
}

fn stored_bytes(world: &World) -> u64 {
    world.json(&["info"])["stored_bytes"].as_u64().unwrap()
}

#[test]
fn content_of_a_lost_pack_is_stored_again_by_a_snapshot_of_a_touched_file() {
    let world = World::with_snapshot();
    world.write("noise", noise(300_000));
    world.snapshot("noise");
    fs::remove_file(&by_size(&world)[0]).unwrap();
    let before = stored_bytes(&world);
    fs::File::open(world.tree().join("noise")).unwrap().set_modified(std::time::SystemTime::now()).unwrap();
    world.run(&["snapshot"]).ok().remarks("stored again");
    assert!(stored_bytes(&world) - before > 290_000);
    assert_eq!(world.run(&["cat", "HEAD", "noise"]).ok().raw, noise(300_000));
    assert_eq!(
        world.run(&["cat", "noise", "noise"]).ok().raw,
        noise(300_000),
        "the old snapshot has it, too"
    );
    world.run(&["verify"]).ok();
    world.run(&["snapshot"]).ok().says("nothing changed");
}

#[test]
fn what_a_lost_or_damaged_pack_held_is_stored_again_by_the_next_snapshot() {
    for harm in ["removed", "cut", "flipped"] {
        for which in 0..3 {
            let world = World::with_snapshot();
            world.write("noise", noise(300_000));
            for number in 0..300 {
                world.write(
                    &format!("many/dir-{}/file-{number}", number % 3),
                    format!("{number}").repeat(3000),
                );
            }
            world.snapshot("many");
            let Some(pack) = by_size(&world).into_iter().nth(which) else { continue };
            let bytes = fs::read(&pack).unwrap();
            fs::remove_file(&pack).unwrap();
            match harm {
                "removed" => {}
                "cut" => fs::write(&pack, &bytes[..bytes.len() / 2]).unwrap(),
                _ => {
                    let mut bytes = bytes.clone();
                    bytes[40..].iter_mut().step_by(50).for_each(|byte| *byte ^= 1);
                    fs::write(&pack, bytes).unwrap();
                }
            }
            world.run(&["verify", "--all"]).code(1).says("Damaged");
            world.run(&["snapshot", "--tag", "whole"]).ok();
            world.run(&["verify", "whole"]).ok();
            let to = world.path("restored");
            world.run(&["export", "whole", "--to", to.to_str().unwrap()]).ok();
            let differing = std::process::Command::new("diff")
                .args(["-r", "--exclude=.vellum"])
                .args([&world.tree(), &to])
                .output()
                .unwrap();
            assert!(differing.status.success(), "{harm} {which}: {differing:?}");
            world.run(&["snapshot"]).ok().says("nothing changed");
            // A collection keeps the new copies.
            world.write("later", "later");
            world.snapshot("later");
            let _ = world.run(&["gc", "run"]);
            world.run(&["verify", "later"]).ok();
            world.run(&["verify", "whole"]).ok();
        }
    }
}

/// Removes a pack, or flips bytes in it so that its length stays.
fn damage_pack(pack: &Path, harm: &str) {
    let mut bytes = fs::read(pack).unwrap();
    fs::remove_file(pack).unwrap();
    if harm == "flipped" {
        bytes[40..].iter_mut().step_by(50).for_each(|byte| *byte ^= 1);
        fs::write(pack, bytes).unwrap();
    }
}

fn assert_same_tree(one: &Path, other: &Path, which: &str) {
    let differing = std::process::Command::new("diff")
        .args(["-r", "--exclude=.vellum"])
        .args([one, other])
        .output()
        .unwrap();
    assert!(differing.status.success(), "{which}: {differing:?}");
}

#[test]
fn what_a_failed_read_finds_damaged_is_stored_again_without_a_verification() {
    for harm in ["removed", "flipped"] {
        for which in 0..3 {
            let world = World::with_snapshot();
            world.write("noise", noise(300_000));
            for number in 0..300 {
                world.write(
                    &format!("many/dir-{}/file-{number}", number % 3),
                    format!("{number}").repeat(3000),
                );
            }
            world.snapshot("many");
            let Some(pack) = by_size(&world).into_iter().nth(which) else { continue };
            damage_pack(&pack, harm);
            // Nobody knows of it yet: what is there can be recorded.
            world.write("new", "new");
            world.run(&["snapshot", "--tag", "before"]).ok();
            // A read that fails tells later writers.
            let first = world.path("first");
            let _ = world.run(&["export", "before", "--to", first.to_str().unwrap()]);
            world.run(&["snapshot", "--tag", "after"]).ok();
            let again = world.path("again");
            world.run(&["export", "after", "--to", again.to_str().unwrap()]).ok();
            assert_same_tree(&world.tree(), &again, &format!("{harm} {which}"));
            world.run(&["verify", "after"]).ok();
            world.run(&["snapshot"]).ok().says("nothing changed");
        }
    }
}

#[test]
fn on_a_mount_what_is_written_again_after_a_failed_read_is_stored_again() {
    for harm in ["removed", "flipped"] {
        let world = World::new();
        let mount = Mount::new(&world, "work");
        let content = noise(3_000_000);
        fs::write(mount.at("noise"), &content).unwrap();
        fs::write(mount.at("other"), "other").unwrap();
        run(&mount.path, &["snapshot", "--tag", "one"], Stdio::null()).ok();
        mount.umount().ok();
        damage_pack(&by_size(&world)[0], harm);
        mount.again(&[]).ok();
        assert_eq!(fs::read(mount.at("noise")).unwrap_err().raw_os_error(), Some(5), "{harm}");
        // The rest works, and so does writing the same content once more, in this process or in the next.
        fs::write(mount.at("other"), "changed").unwrap();
        run(&mount.path, &["snapshot", "--tag", "two"], Stdio::null()).ok();
        if harm == "flipped" {
            mount.umount().ok();
            mount.again(&[]).ok();
        }
        fs::write(mount.at("noise"), &content).unwrap();
        run(&mount.path, &["snapshot", "--tag", "three"], Stdio::null()).ok();
        // It is stored again once, not by each later publication.
        run(&mount.path, &["flush"], Stdio::null()).ok();
        let stored = stored_bytes(&world);
        fs::remove_file(mount.at("noise")).unwrap();
        run(&mount.path, &["snapshot"], Stdio::null()).ok();
        mount.umount().ok();
        mount.again(&[]).ok();
        fs::write(mount.at("noise"), &content).unwrap();
        run(&mount.path, &["snapshot"], Stdio::null()).ok();
        mount.umount().ok();
        let again = stored_bytes(&world) - stored;
        assert!(again < 300_000, "{harm}: {again} bytes");
        let to = world.path("restored");
        world.run(&["export", "three", "--to", to.to_str().unwrap()]).ok();
        assert!(fs::read(to.join("noise")).unwrap() == content, "{harm}");
        assert_eq!(fs::read_to_string(to.join("other")).unwrap(), "changed");
        world.run(&["verify", "three"]).ok();
    }
}

#[test]
fn a_tree_whose_nodes_are_lost_is_not_mounted_and_the_directory_is_recorded_anew() {
    for harm in ["removed", "flipped"] {
        let world = World::with_snapshot();
        for number in 0..300 {
            world.write(&format!("many/file-{number}"), format!("{number}").repeat(3000));
        }
        world.snapshot("many");
        by_size(&world).iter().for_each(|pack| damage_pack(pack, harm));
        let mount = Mount::place(&world, "work");
        assert_eq!(mount.again(&[]).code, 2, "{harm}");
        assert!(!mount.is_mounted());
        // No verification has told of it: reading has. Bytes that nobody has read are found damaged by an export.
        world.run(&["snapshot", "--tag", "partly"]).ok();
        let _ = world.run(&["export", "partly", "--to", world.path("partly").to_str().unwrap()]);
        world.run(&["snapshot", "--tag", "whole"]).ok();
        let to = world.path("restored");
        world.run(&["export", "whole", "--to", to.to_str().unwrap()]).ok();
        assert_same_tree(&world.tree(), &to, harm);
        world.run(&["verify", "whole"]).ok();
        mount.again(&[]).ok();
        assert_same_tree(&world.tree(), &mount.path, harm);
    }
}

#[test]
fn a_lost_pack_of_many_files_is_told_in_a_few_lines_with_the_summary_first() {
    let world = World::new();
    for number in 0..400 {
        world.write(&format!("dir-{}/file-{number}", number % 4), noise(5_000 + number));
    }
    world.snapshot("one");
    world.write("more", "more");
    world.snapshot("two");
    fs::remove_file(&by_size(&world)[0]).unwrap();
    let ran = world.run(&["verify", "--all"]).code(1);
    let lines: Vec<_> = ran.out.lines().collect();
    assert!(lines[0].starts_with("Damaged: "), "{}", ran.out);
    assert!(lines.len() < 12, "{}", ran.out);
    for number in 0..4 {
        let line =
            lines.iter().find(|line| line.contains(&format!("dir-{number}: 100 files, in 2 snapshots")));
        assert!(line.is_some(), "{}", ran.out);
    }
    assert!(world.run(&["verify", "--all", "--verbose"]).code(1).out.lines().count() > 400);
}

#[test]
fn something_else_in_the_place_of_an_object_is_damage() {
    for folder in ["snapshots", "packs", "index", "refs/tag"] {
        for kind in ["directory", "full directory", "symlink", "fifo"] {
            let world = World::with_snapshot();
            let path = packs(&world.tree().join(".vellum/store").join(folder)).remove(0);
            let aside = world.path("aside");
            fs::rename(&path, &aside).unwrap();
            match kind {
                "directory" => fs::create_dir(&path).unwrap(),
                "full directory" => fs::create_dir_all(path.join("sub")).unwrap(),
                "symlink" => std::os::unix::fs::symlink(&aside, &path).unwrap(),
                _ => {
                    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
                    assert!(made.success());
                }
            }
            // What is known locally does not hide it.
            let name = path.file_name().unwrap().to_str().unwrap();
            world.run(&["verify", "--all"]).code(1).says(name).says("Damaged");
            if path.is_dir() && !path.is_symlink() {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            }
            .unwrap();
            fs::rename(&aside, &path).unwrap();
            world.run(&["verify", "--all"]).ok();
        }
    }
}

/// The only pack of a worktree's store that holds chunks and was not there before.
fn new_chunk_pack(world: &World, before: &[PathBuf]) -> PathBuf {
    by_size(world).into_iter().find(|pack| !before.contains(pack)).unwrap()
}

#[test]
fn damage_of_what_only_a_trash_or_a_publication_needs_is_named_by_path() {
    for harm in ["removed", "flipped"] {
        let world = World::with_snapshot();
        let mount = Mount::place(&world, "work");
        mount.again(&["--trash-days", "7"]).ok();
        let before = by_size(&world);
        mount.sh("mkdir deep; head -c 3000000 /dev/urandom > deep/trashed");
        run(&mount.path, &["flush"], Stdio::null()).ok();
        let trashed = new_chunk_pack(&world, &before);
        mount.sh("rm deep/trashed");
        run(&mount.path, &["snapshot"], Stdio::null()).ok();
        run(&mount.path, &["flush"], Stdio::null()).ok();
        let before = by_size(&world);
        mount.sh("head -c 2000000 /dev/urandom > deep/published");
        run(&mount.path, &["flush"], Stdio::null()).ok();
        let published = new_chunk_pack(&world, &before);
        mount.umount().ok();
        world.run(&["verify", "--all"]).ok();
        damage_pack(&trashed, harm);
        let ran = world.run(&["verify", "--all", "--verbose"]).code(1);
        let ran = ran.says("in the trash of 'work': deep/trashed");
        assert!(!ran.out.contains("published"), "{}", ran.out);
        world.run(&["verify", "--all"]).code(1).says("deep: 1 file, in the trash of 'work'");
        damage_pack(&published, harm);
        world.run(&["verify", "--all", "--verbose"]).code(1).says("in worktree 'work': deep/published");
        let report = world.json(&["verify", "--all"]);
        let affected: Vec<_> = report["findings"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|finding| finding["affected"].as_array().unwrap())
            .collect();
        let has = |key: &str, path: &str| {
            affected.iter().any(|tree| tree[key] == "work" && tree["paths"][0] == path && tree["count"] == 1)
        };
        assert!(has("trash", "deep/trashed") && has("worktree", "deep/published"), "{report:#}");
        assert!(affected.iter().all(|tree| tree.get("snapshot").is_none()), "{report:#}");
    }
}

#[test]
fn a_lost_or_damaged_index_is_made_anew_as_the_hint_says() {
    for harm in ["removed", "flipped"] {
        let world = World::with_snapshot();
        world.write("noise", noise(300_000));
        world.snapshot("noise");
        let index = packs(&world.tree().join(".vellum/store/index"));
        assert!(!index.is_empty());
        index.iter().for_each(|object| damage_pack(object, harm));
        // Nor is there a copy.
        fs::remove_dir_all(world.tree().join(".vellum/index")).unwrap();
        let hint = "vellum verify --rebuild-index";
        world.run(&["verify", "--all"]).code(1).remarks(hint);
        for command in [&["cat", "noise", "noise"][..], &["gc", "run"]] {
            world.run(command).code(2).remarks(hint);
        }
        let command: Vec<_> = hint.split(' ').skip(1).collect();
        world.run(&command).ok().says("Made the index anew: ").says(" in ");
        world.run(&["verify", "--all"]).ok();
        assert_eq!(world.run(&["cat", "noise", "noise"]).ok().raw, noise(300_000), "{harm}");
        world.run(&["gc", "run"]).ok();
        world.write("more", "more");
        world.snapshot("more");
        world.run(&["verify", "--all"]).ok();
        // A pack that cannot be read is left out, and named.
        let pack = by_size(&world).remove(0);
        let bytes = fs::read(&pack).unwrap();
        fs::remove_file(&pack).unwrap();
        fs::write(&pack, &bytes[..bytes.len() / 2]).unwrap();
        let name = pack.file_name().unwrap().to_str().unwrap();
        world.run(&["verify", "--rebuild-index"]).code(1).says(name).says("is left out");
        world.run(&["verify", "--rebuild-index", "--all"]).code(3);
    }
}

#[test]
fn an_index_is_not_made_anew_while_somebody_writes() {
    let world = World::with_snapshot();
    let sessions = world.tree().join(".vellum/store/sessions");
    fs::create_dir_all(&sessions).unwrap();
    fs::write(sessions.join("00112233445566778899aabbccddeeff"), "junk").unwrap();
    world.run(&["verify", "--rebuild-index"]).code(2).remarks("sessions/00112233445566778899aabbccddeeff");
}
