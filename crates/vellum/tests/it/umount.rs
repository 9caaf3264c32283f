//! `vellum umount`

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::disk::Disk;
use crate::hydrate::read_state;
use crate::mounting::{Mount, hold, kill, sh, wait_until};
use crate::world::{World, noise, run};

#[test]
fn what_is_not_a_mount_is_refused() {
    let world = World::with_snapshot();
    world.run(&["umount", "dir"]).code(3).remarks("no Vellum volume is mounted on").remarks("vellum mounts");
    world.run(&["umount", "/proc"]).code(3).remarks("no Vellum volume is mounted on /proc");
    world.run(&["umount", "../nowhere"]).code(3).remarks("no Vellum volume");
}

#[test]
fn a_mount_in_use_stays() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let file = fs::File::open(mount.at("a.txt")).unwrap();
    mount.umount().code(2).remarks("is in use").remarks("fuser -vm");
    assert!(mount.at("a.txt").exists());
    drop(file);
    mount.umount().ok();
}

#[test]
fn what_was_written_is_there_at_once_for_the_next_mount() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    for round in 0..5 {
        fs::write(mount.at("counter"), format!("{round}")).unwrap();
        mount.umount().ok();
        mount.again(&[]).ok();
        assert_eq!(fs::read_to_string(mount.at("counter")).unwrap(), format!("{round}"));
    }
}

#[test]
fn a_dead_mount_is_taken_away() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let pid = mount.pid().to_string();
    std::process::Command::new("kill").args(["-KILL", &pid]).status().unwrap();
    while fs::read_dir(&mount.path).is_ok() {
        std::thread::yield_now();
    }
    mount.umount().ok().says("its process had died");
    assert!(fs::read_dir(&mount.path).is_ok());
}

#[test]
fn the_report_is_json() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let value = world.json(&["umount", mount.path.to_str().unwrap()]);
    assert_eq!(value["mountpoint"], mount.path.to_str().unwrap());
    assert_eq!(value["was_dead"], false);
}

/// A process in a mount namespace of its own, until this is dropped.
struct Elsewhere(Child);

impl Elsewhere {
    /// Runs a shell there, and waits until it stands where it is to be: then it has made the file `ready`.
    fn start(script: &str, ready: &Path) -> Self {
        let script = format!("{script}; touch {}; exec sleep 600", ready.display());
        let child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "bash", "-c", &script])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the other namespace is there", || ready.exists());
        Self(child)
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_store_that_takes_nothing_is_told_and_what_waits_goes_there_later() {
    let disk = Disk::in_memory(64);
    let world = World::empty();
    let store = disk.path().join("store");
    world.run(&["init", "--plain", "--store", store.to_str().unwrap()]).ok();
    world.write("a.txt", "a");
    world.snapshot("first");
    let mount = Mount::new(&world, "work");
    fs::write(mount.at("new"), noise(200_000)).unwrap();
    sh(&disk.path(), "mount -o remount,ro .");
    let inside = |args: &[&str]| run(&mount.path, args, Stdio::null());
    let asked = std::time::SystemTime::now();
    inside(&["snapshot", "--tag", "kept", "--wait"])
        .code(2)
        .says("kept here")
        .remarks("Read-only file system");
    // Its age is shown from outside, too.
    let shown = || {
        let mounts = world.json(&["mounts"]);
        let mounts = mounts["mounts"].as_array().unwrap().clone();
        let here =
            mounts.iter().find(|item| item["mountpoint"] == mount.path.to_str().unwrap()).unwrap().clone();
        here["unpublished_seconds"].as_u64().unwrap()
    };
    wait_until("it is two seconds old", || shown() >= 2);
    assert!(shown() <= asked.elapsed().unwrap().as_secs() + 1);
    let text = fs::read_to_string(mount.at(".vellum/stats")).unwrap();
    assert!(text.contains("vellum_unpublished_age_seconds "), "{text}");
    world.run(&["mounts"]).ok().says("not all in the store for");
    let output = mount.umount().code(1).says("Unmounted");
    output
        .remarks("the worktree work is not whole in the store (1 snapshot and")
        .remarks("Read-only file system")
        .remarks(&format!("kept in {}", world.tree().join(".vellum/live/work").display()));
    sh(&disk.path(), "mount -o remount,rw .");
    // The command that was named.
    mount.again(&["--worktree", "work"]).ok();
    mount.umount().ok();
    world.run(&["cat", "kept", "new"]).ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn snapshot_and_status_work_while_the_store_is_away() {
    let disk = Disk::in_memory(64);
    let world = World::empty();
    let store = disk.path().join("store");
    world.run(&["init", "--plain", "--store", store.to_str().unwrap()]).ok();
    world.write("a.txt", "a");
    world.snapshot("first");
    let mount = Mount::new(&world, "work");
    let inside = |args: &[&str]| run(&mount.path, args, Stdio::null());
    fs::rename(&store, disk.path().join("away")).unwrap();
    // Who has it open still must not put anything into it, either.
    sh(&disk.path(), "mount -o remount,ro .");
    fs::write(mount.at("new"), "new").unwrap();
    let output = inside(&["status"]).code(1).remarks("the store is unreachable").remarks("Write log:");
    output.remarks("something changed since the last snapshot");
    inside(&["snapshot", "-m", "away", "--tag", "two"]).ok().says("kept here");
    inside(&["status"])
        .ok()
        .remarks("nothing changed since")
        .remarks("1 snapshot kept locally")
        .remarks("the oldest change that is not in the store was made");
    let output = run(&mount.path, &["--json", "status"], Stdio::null()).ok();
    let output: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!((&output["clean"], &output["waiting"]), (&true.into(), &1.into()));
    assert!(output["mount"]["unpublished_since"].as_str().unwrap().starts_with("20"), "{output}");
    sh(&disk.path(), "mount -o remount,rw .");
    fs::rename(disk.path().join("away"), &store).unwrap();
    fs::write(mount.at("newer"), "newer").unwrap();
    inside(&["snapshot", "--tag", "three", "--wait"]).ok().says("in the store");
    assert_eq!(inside(&["cat", "two", "new"]).ok().out, "new");
    let output = run(&mount.path, &["--json", "mounts"], Stdio::null()).ok();
    assert!(
        output.out.contains("\"unpublished_seconds\":0") || output.out.contains("\"unpublished_seconds\": 0")
    );
}

#[test]
fn a_large_new_file_is_written_while_the_store_cannot_be_read() {
    let disk = Disk::in_memory(64);
    let world = World::empty();
    let store = disk.path().join("store");
    world.run(&["init", "--plain", "--store", store.to_str().unwrap()]).ok();
    // A tree of several nodes, so that not all of it is in memory.
    sh(
        &world.tree(),
        "for d in $(seq 60); do mkdir d$d; for f in $(seq 60); do echo $d.$f > d$d/$f; done; done",
    );
    world.snapshot("first");
    let mount = Mount::new(&world, "work");
    // What is read of the packs from now on fails.
    sh(&store, "for pack in $(find packs -type f); do truncate -s 0 $pack; done");
    assert!(fs::read(mount.at("d30/30")).is_err(), "it is in memory: the test proves nothing");
    mount.sh("mkdir new new/deeper; head -c 3000000 /dev/urandom > new/deeper/big; echo x > new/small; cat new/small");
    mount.sh("cp new/deeper/big top; cmp top new/deeper/big; mv top new/; rm new/top; sync new/deeper/big");
}

#[test]
fn a_damaged_root_directory_does_not_keep_the_mount() {
    let world = World::with_snapshot();
    let before: Vec<_> = packs(&world);
    // Another root, in a pack of its own.
    sh(&world.tree(), "for i in $(seq 2000); do echo $i > $i; done");
    world.snapshot("second");
    let mount = Mount::place(&world, "work");
    world.run(&["restore", "-q", "first"]).ok();
    world.snapshot("third");
    mount.again(&[]).ok();
    for pack in packs(&world).iter().filter(|pack| !before.contains(pack)) {
        let len = fs::metadata(pack).unwrap().len();
        fs::File::options().write(true).open(pack).unwrap().set_len(len / 2).unwrap();
    }
    // Whatever it makes of that.
    run(&mount.path, &["restore", "second"], Stdio::null());
    let output = mount.umount();
    assert!(matches!(output.code, 0 | 1), "{}{}", output.out, output.err);
    assert!(!mount.is_mounted());
}

fn packs(world: &World) -> Vec<std::path::PathBuf> {
    let listed = sh(&world.tree(), "find .vellum/store/packs -type f");
    listed.lines().map(|line| world.tree().join(line)).collect()
}

#[test]
fn another_namespace_that_only_shows_the_mount_does_not_keep_it() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let pid = mount.pid();
    let _elsewhere = Elsewhere::start("true", &world.path("ready"));
    fs::write(mount.at("new"), "new").unwrap();
    let begun = Instant::now();
    mount.umount().ok().says("Unmounted").remarks("in another mount namespace");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert!(!Path::new(&format!("/proc/{pid}/exe")).exists(), "the process is there still");
    mount.again(&[]).ok();
    assert_eq!(fs::read_to_string(mount.at("new")).unwrap(), "new");
}

#[test]
fn who_uses_a_mount_in_another_namespace_is_named_and_lazy_lets_them_finish() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let pid = mount.pid();
    let elsewhere = Elsewhere::start(&format!("cd {}", mount.path.display()), &world.path("ready"));
    let name = format!("process {} (sleep)", elsewhere.0.id());
    wait_until("it sleeps", || mount.umount().err.contains(&name));
    mount
        .umount()
        .code(2)
        .remarks("in use in another mount namespace")
        .remarks(&name)
        .remarks("umount --lazy");
    assert!(mount.at("a.txt").exists());
    // The command that was named.
    let lazy = world.run(&["umount", "--lazy", mount.path.to_str().unwrap()]).ok();
    lazy.says("Unmounted").remarks(&name);
    assert!(!mount.is_mounted());
    mount.again(&[]).code(2).remarks(&format!("served by process {pid}")).remarks(&format!("kill {pid}"));
    drop(elsewhere);
    wait_until("it has ended", || mount.again(&[]).code == 0);
}

#[test]
fn a_signal_ends_a_mount_that_another_namespace_uses() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let pid = mount.pid();
    let used = format!("cd {}; exec 3> used; echo kept >&3", mount.path.display());
    let _elsewhere = Elsewhere::start(&used, &world.path("ready"));
    kill(pid, "-TERM");
    wait_until("the process has ended", || !Path::new(&format!("/proc/{pid}/exe")).exists());
    mount.again(&[]).ok();
    assert_eq!(fs::read_to_string(mount.at("used")).unwrap(), "kept\n");
    let log = fs::read_to_string(world.tree().join(".vellum/live/work/daemon.log")).unwrap();
    assert!(log.contains("held by process"), "{log}");
}

#[test]
fn a_mount_that_is_bound_over_its_own_state_directory_goes_on() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let state = world.tree().join(".vellum");
    sh(&world.tree(), &format!("mount --bind {} {}", mount.path.display(), state.display()));
    wait_until("it was taken away", || state.join("worktree").exists() || state.join("live").exists());
    fs::write(mount.at("new"), "new").unwrap();
    run(&mount.path, &["snapshot", "--tag", "two"], Stdio::null()).ok();
    mount.umount().ok();
    assert_eq!(world.run(&["cat", "two", "new"]).ok().out, "new");
}

#[test]
fn below_a_bind_of_a_directory_the_volume_is_found() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let bind = world.path("bind");
    fs::create_dir(&bind).unwrap();
    sh(&world.tree(), &format!("mount --bind {} {}", mount.at("dir").display(), bind.display()));
    fs::write(bind.join("new"), "new").unwrap();
    let inside = |args: &[&str]| run(&bind, args, Stdio::null());
    inside(&["status"]).code(1).says("A  new");
    inside(&["snapshot", "--tag", "two", "new"]).ok();
    assert_eq!(inside(&["cat", "two", "new"]).ok().out, "new");
    let bound = world.run(&["umount", bind.to_str().unwrap()]).ok();
    bound.remarks(&format!("still mounted on {}", mount.path.display()));
    assert!(mount.at("dir/new").exists());
    mount.umount().ok();
}

#[test]
fn after_the_systems_umount_it_is_mounted_again_at_once() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    for round in 0..3 {
        fs::write(mount.at("big"), noise(4 << 20)).unwrap();
        // 'vellum mounts' of another test may look into it at this moment.
        let path = mount.path.display();
        sh(
            &world.tree(),
            &format!("for try in $(seq 50); do umount {path} && exit; sleep 0.1; done; exit 1"),
        );
        let ran = mount.again(&[]);
        assert_eq!(ran.code, 0, "round {round}: {}", ran.err);
    }
    assert_eq!(fs::read(mount.at("big")).unwrap(), noise(4 << 20));
}

#[test]
fn a_process_that_dies_while_it_publishes_is_no_success() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    fs::write(mount.at("new"), "not in the store").unwrap();
    let pid = mount.pid();
    // No ref of the store can be replaced while its lock is held: the process cannot finish publishing.
    let lock = fs::File::open(world.tree().join(".vellum/store/.lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let umount = Command::new(env!("CARGO_BIN_EXE_vellum"))
        .args(["umount", mount.path.to_str().unwrap()])
        .current_dir(world.tree())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("it is unmounted", || !mount.is_mounted());
    kill(pid, "-KILL");
    let output = umount.wait_with_output().unwrap();
    drop(lock);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the process of the mount died before"), "{said}");
    // What was acknowledged is there again.
    mount.again(&["--worktree", "work"]).ok();
    assert_eq!(fs::read_to_string(mount.at("new")).unwrap(), "not in the store");
    mount.umount().ok();
}

#[test]
fn a_signal_unmounts_as_soon_as_something_is_mounted() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "work");
    for _ in 0..5 {
        let mut server = Command::new(env!("CARGO_BIN_EXE_vellum"))
            .args(["mount", "--foreground"])
            .arg(&mount.path)
            .current_dir(world.tree())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while !mount.is_mounted() {
            assert!(server.try_wait().unwrap().is_none(), "it has ended");
        }
        kill(i32::try_from(server.id()).unwrap(), "-TERM");
        assert_eq!(server.wait().unwrap().code(), Some(0));
        assert!(!mount.is_mounted());
    }
}

#[test]
fn what_a_killed_mount_left_is_published_by_the_next_one_without_a_write() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    fs::write(mount.at("left"), noise(200_000)).unwrap();
    fs::File::open(mount.at("left")).unwrap().sync_all().unwrap();
    kill(mount.pid(), "-KILL");
    wait_until("it is dead", || mount.is_dead());
    mount.again(&[]).ok();
    // Of files of a mount whose process was killed nothing else tells: the age of what is unpublished begins anew.
    wait_until("it is published", || read_state(&mount.at("left")) == "here");
    assert_eq!(fs::read(mount.at("left")).unwrap(), noise(200_000));
}

#[test]
fn a_mount_whose_process_is_stopped_is_detached_and_publishes_when_it_goes_on() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "work");
    // A request that a ring delivered to a stopped process keeps whoever made it from ending.
    mount.again(&["--no-io-uring"]).ok();
    fs::write(mount.at("new.txt"), "new\n").unwrap();
    let pid = mount.pid();
    hold(pid);
    mount.umount().code(2).remarks("does not answer").remarks("umount --lazy");
    mount.again(&[]).code(2).remarks("a volume is already mounted on");
    let lazy = world.run(&["umount", "--lazy", mount.path.to_str().unwrap()]);
    lazy.ok().says("Unmounted").remarks("its process does not answer");
    assert!(!mount.at("new.txt").exists());
    kill(pid, "-CONT");
    wait_until("its process has ended", || !Path::new(&format!("/proc/{pid}")).exists());
    mount.again(&[]).ok();
    assert_eq!(fs::read_to_string(mount.at("new.txt")).unwrap(), "new\n");
    mount.umount().ok();
}
