//! `vellum gc`

use std::fs;
use std::io::Read;
use std::process::Stdio;

use crate::mounting::{Mount, kill, wait_until};
use crate::world::{World, noise, run};

/// A volume with a forgotten snapshot that alone held some 200 kB.
fn with_garbage() -> World {
    let world = World::with_snapshot();
    let noise = noise(200_000);
    world.write("noise", noise);
    let id = world.run(&["snapshot", "-q"]).ok().out;
    world.remove("noise");
    world.snapshot("last");
    world.run(&["forget", id.trim()]).ok();
    world
}

#[test]
fn what_only_forgotten_snapshots_held_is_freed() {
    let world = with_garbage();
    let before = world.json(&["info"])["stored_bytes"].as_u64().unwrap();
    world.run(&["gc", "plan"]).ok().says("Needed by none: ").remarks("vellum gc run");
    assert_eq!(world.json(&["info"])["stored_bytes"].as_u64().unwrap(), before);
    world.run(&["gc", "run"]).ok().says("Freed");
    let after = world.json(&["info"])["stored_bytes"].as_u64().unwrap();
    assert!(before - after > 150_000, "{before} {after}");
    world.run(&["verify", "--all"]).ok();
    world.run(&["gc", "run"]).ok().says("Nothing to free");
}

#[test]
fn a_plan_can_be_approved() {
    let world = with_garbage();
    let plan = world.run(&["gc", "plan", "--json"]).ok().out;
    fs::write(world.path("plan"), &plan).unwrap();
    let value: serde_json::Value = serde_json::from_str(&plan).unwrap();
    assert!(value["freed"].as_u64().unwrap() > 150_000);
    world.run(&["gc", "run", "--plan", "../plan"]).ok().says("Freed");
    fs::write(world.path("plan"), "{}").unwrap();
    world.run(&["gc", "run", "--plan", "../plan"]).code(3).remarks("is not a plan");
}

#[test]
fn an_unreadable_session_is_named_with_a_way_out_and_does_not_block_for_ever() {
    let world = with_garbage();
    let sessions = world.tree().join(".vellum/store/sessions");
    fs::create_dir_all(&sessions).unwrap();
    for name in ["00112233445566778899aabbccddeeff", "collector"] {
        let session = sessions.join(name);
        fs::write(&session, "junk").unwrap();
        let object = format!("sessions/{name}");
        if name == "collector" {
            world
                .run(&["gc", "run"])
                .code(2)
                .remarks(&object)
                .remarks("24 hours")
                .remarks("--end-session collector");
        } else {
            world
                .run(&["gc", "run"])
                .ok()
                .says("Freed nothing: 1 other command")
                .says(&object)
                .remarks(&format!("vellum gc run --end-session {name}"));
            let waiting = &world.json(&["gc", "run"])["waiting"][0];
            assert_eq!(waiting["object"], object.as_str());
            assert!(waiting["problem"].as_str().unwrap().contains(&object));
        }
        world.run(&["verify", "--all"]).code(1).says(&object);
        world.run(&["gc", "run", "--end-session", "nobody"]).code(2).remarks("there is no session");
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(25 * 3600);
        fs::File::options().write(true).open(&session).unwrap().set_modified(old).unwrap();
        if name == "collector" {
            world.run(&["gc", "run"]).ok().says("Nothing to free");
        } else {
            world.run(&["gc", "run"]).ok().says("Freed");
        }
        assert!(!session.exists());
    }
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_lost_record_of_a_tagged_snapshot_costs_nothing_but_itself() {
    let world = World::with_snapshot();
    world.write("noise", noise(200_000));
    let lost = world.snapshot("tagged");
    world.remove("noise");
    world.snapshot("last");
    let record = world.tree().join(".vellum/store/snapshots").join(&lost);
    let kept = fs::read(&record).unwrap();
    fs::remove_file(&record).unwrap();
    let before = world.json(&["info"])["stored_bytes"].as_u64().unwrap();
    for command in [&["gc", "plan"][..], &["gc", "run"]] {
        world.run(command).code(2).remarks(&lost).remarks("is missing").remarks("the tag 'tagged' names it");
    }
    assert_eq!(world.json(&["info"])["stored_bytes"].as_u64().unwrap(), before);
    // The object is put back, as from a copy of the store.
    fs::write(&record, &kept).unwrap();
    world.run(&["gc", "run"]).ok().says("Nothing to free");
    world.run(&["verify", "--all"]).ok();
    fs::remove_file(&record).unwrap();
    let hint = format!("vellum gc run --without {lost}");
    world.run(&["gc", "run"]).code(2).remarks(&hint);
    world.run(&hint.split(' ').skip(1).collect::<Vec<_>>()).ok().says("Freed");
}

/// A file that is open in a mount, and that no snapshot has.
struct OpenFile<'w> {
    mount: Mount<'w>,
    open: fs::File,
    noise: Vec<u8>,
}

fn open_unsnapshotted_file(world: &World) -> OpenFile<'_> {
    let mount = Mount::new(world, "work");
    let noise = noise(3_000_000);
    fs::write(mount.at("open"), &noise).unwrap();
    mount.umount().ok();
    // Mounted again, nothing of it is in anybody's memory: the tree on which the worktree stands alone has it.
    mount.again(&["--allow-other"]).ok();
    let open = fs::File::open(mount.at("open")).unwrap();
    OpenFile { mount, open, noise }
}

#[test]
fn a_file_open_in_a_mount_outlives_a_restore_and_a_collection() {
    let world = World::with_snapshot();
    let OpenFile { mount, open, noise } = open_unsnapshotted_file(&world);
    run(&mount.path, &["restore", "--discard", "first"], Stdio::null()).ok();
    assert!(!mount.at("open").exists());
    mount.sh("echo more > more");
    run(&mount.path, &["flush"], Stdio::null()).ok();
    // From the checked-out directory: another process than the one that serves the mount.
    world.run(&["gc", "run"]).ok();
    let mut read = Vec::new();
    (&open).read_to_end(&mut read).unwrap();
    assert!(read == noise);
    assert_eq!(fs::read_to_string(mount.at("more")).unwrap(), "more\n");
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn a_file_open_in_a_mount_outlives_its_removal_and_a_collection() {
    let world = World::with_snapshot();
    let OpenFile { mount, open, noise } = open_unsnapshotted_file(&world);
    fs::remove_file(mount.at("open")).unwrap();
    for _ in 0..3 {
        mount.sh("echo more >> more");
        run(&mount.path, &["flush"], Stdio::null()).ok();
    }
    world.run(&["gc", "run"]).ok();
    let mut read = Vec::new();
    (&open).read_to_end(&mut read).unwrap();
    assert!(read == noise);
    drop(open);
    // Nobody can read it any more. The ref still names its tree when the first flush writes it.
    for _ in 0..2 {
        mount.sh("echo more >> more");
        run(&mount.path, &["flush"], Stdio::null()).ok();
    }
    assert!(world.json(&["gc", "run"])["freed"].as_u64().unwrap() > 2_000_000);
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn paths_restored_from_a_snapshot_that_is_forgotten_afterwards_outlive_a_collection() {
    let world = World::new();
    let noise = noise(3_000_000);
    world.write("dir/restored", &noise);
    let id = world.snapshot("gone");
    world.remove("dir/restored");
    world.snapshot("without");
    let mount = Mount::new(&world, "work");
    run(&mount.path, &["restore", "--discard", &id, "dir"], Stdio::null()).ok();
    world.run(&["tag", "remove", "gone"]).ok();
    world.run(&["forget", &id]).ok();
    let freed = || world.json(&["gc", "run"])["freed"].as_u64().unwrap();
    assert!(freed() < 2_000_000);
    // Nothing of it is in anybody's memory.
    kill(mount.pid(), "-KILL");
    wait_until("it is dead", || mount.is_dead());
    mount.again(&["--allow-other"]).ok();
    assert!(freed() < 2_000_000);
    assert!(fs::read(mount.at("dir/restored")).unwrap() == noise);
    // The fork has its layers, unpublished.
    let fork = Mount::place(&world, "fork");
    run(&mount.path, &["fork", "fork", "--mount", fork.path.to_str().unwrap()], Stdio::null()).ok();
    run(&mount.path, &["flush"], Stdio::null()).ok();
    assert!(freed() < 2_000_000);
    mount.umount().ok();
    world.run(&["verify", "--all"]).ok();
    mount.again(&["--allow-other"]).ok();
    mount.sh("rm dir/restored");
    for _ in 0..2 {
        mount.sh("echo more >> more");
        run(&mount.path, &["flush"], Stdio::null()).ok();
    }
    assert!(freed() < 2_000_000, "the fork needs it");
    assert!(fs::read(fork.at("dir/restored")).unwrap() == noise);
}

#[test]
fn a_stopped_writer_is_named_and_a_collection_that_waits_for_it_can_be_ended() {
    let world = with_garbage();
    let lock = world.tree().join(".vellum/store/.lock");
    // As a writer does that is stopped while it changes a ref.
    let mut holder =
        std::process::Command::new("flock").arg("-F").arg(&lock).args(["sleep", "600"]).spawn().unwrap();
    wait_until("the lock is held", || {
        let tried = std::process::Command::new("flock").arg("-n").arg(&lock).arg("true").status().unwrap();
        !tried.success()
    });
    let mut collecting = std::process::Command::new(env!("CARGO_BIN_EXE_vellum"))
        .args(["gc", "run"])
        .current_dir(world.tree())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = std::io::BufReader::new(collecting.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert!(line.contains(&format!("process {}", holder.id())) && line.contains("lock"), "{line}");
    kill(i32::try_from(collecting.id()).unwrap(), "-TERM");
    let ended = collecting.wait().unwrap();
    assert_eq!(ended.code(), Some(143));
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[test]
fn temporary_files_of_killed_commands_are_removed_when_they_are_old() {
    let world = World::with_snapshot();
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    let state = world.tree().join(".vellum");
    let names = ["seen.json.0123456789abcdef.tmp", "restore.json.0123456789abcdef.tmp"];
    for name in names {
        fs::write(state.join(name), "{}").unwrap();
    }
    world.run(&["gc", "run"]).ok();
    assert!(names.iter().all(|name| state.join(name).exists()), "another command may be writing them");
    for name in names {
        fs::File::options().write(true).open(state.join(name)).unwrap().set_modified(old).unwrap();
    }
    fs::write(state.join("mine.tmp"), "").unwrap();
    world.run(&["gc", "run"]).ok();
    assert!(!names.iter().any(|name| state.join(name).exists()));
    assert!(state.join("mine.tmp").exists());
}

#[test]
fn a_mount_that_published_often_gets_its_metadata_joined_while_it_is_read() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let long = "n".repeat(120);
    mount.sh(&format!("for d in {{0..89}}; do mkdir $d; touch $d/{long}-{{0..80}}; done"));
    for dir in 0..90 {
        mount.sh(&format!("chmod 600 {dir}/n*-40"));
        run(&mount.path, &["flush"], Stdio::null()).ok();
    }
    let packs = || {
        let info = run(&mount.path, &["info", "--store", "--json"], Stdio::null()).ok();
        serde_json::from_str::<serde_json::Value>(&info.out).unwrap()["metadata"].clone()
    };
    let before = packs();
    assert!(before["small_packs"].as_u64().unwrap() > 64, "{before}");
    run(&mount.path, &["info", "--store"], Stdio::null()).ok().says("Metadata").says("below 4 MiB");
    world.run(&["gc", "plan"]).ok().says("to be joined");
    // Nothing of the tree is in the memory of the process that serves it.
    mount.umount().ok();
    mount.again(&["--allow-other"]).ok();
    let listed = "find . -not -path './.vellum*' -printf '%m %p\\n' | sort | sha256sum";
    let done = world.json(&["gc", "run"]);
    // Those of which little is still needed are repacked in any case.
    let joined = ["joined_packs", "repacked_packs"].map(|field| done[field].as_u64().unwrap());
    assert!(joined[0] > 0 && joined.iter().sum::<u64>() > 60, "{done}");
    let after = mount.sh(listed);
    assert_eq!(mount.sh("ls */n* | wc -l").trim(), "7290");
    assert!(packs()["packs"].as_u64().unwrap() <= 3, "{}", packs());
    mount.umount().ok();
    mount.again(&["--allow-other"]).ok();
    assert_eq!(mount.sh(listed), after);
    mount.umount().ok();
    world.run(&["verify", "--all"]).ok();
    world.run(&["gc", "run"]).ok().says("Nothing to free");
}
