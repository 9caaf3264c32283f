//! `vellum mount`

use std::fs;
use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::mounting::{Mount, kill, sh, wait_until};
use crate::world::{World, noise, run};

fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

#[test]
fn a_new_worktree_starts_from_the_snapshot_and_keeps_what_is_written() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "work");
    mount.again(&[]).ok().says("Mounted the new worktree work on");
    assert_eq!(fs::read_to_string(mount.at("dir/b.txt")).unwrap(), "b\n");
    fs::write(mount.at("new.txt"), "new").unwrap();
    assert!(!world.has("new.txt"), "the checked-out worktree is another one");
    mount.umount().ok().says("Unmounted");
    assert!(fs::read_dir(&mount.path).unwrap().next().is_none());
    mount.again(&[]).ok().says("Mounted the worktree work on");
    assert_eq!(fs::read_to_string(mount.at("new.txt")).unwrap(), "new");
    assert_eq!(fs::read(mount.at("dir/deep/c.bin")).unwrap(), [0, 1, 2, 255]);
}

#[test]
fn a_volume_without_snapshots_mounts_empty() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    assert!(fs::read_dir(&mount.path).unwrap().next().is_none());
    fs::create_dir(mount.at("d")).unwrap();
    assert!(mount.at("d").is_dir());
}

#[test]
fn the_volume_may_be_named_and_several_worktrees_mounted_at_once() {
    let world = World::with_snapshot();
    let one = Mount::place(&world, "one");
    let two = Mount::place(&world, "two");
    for mount in [&one, &two] {
        let args = ["mount", world.tree().to_str().unwrap(), mount.path.to_str().unwrap()].map(String::from);
        crate::world::run(Path::new("/"), &args.each_ref().map(String::as_str), Stdio::null()).ok();
    }
    fs::write(one.at("a.txt"), "changed").unwrap();
    assert_eq!(fs::read_to_string(two.at("a.txt")).unwrap(), "one\ntwo\nthree\n");
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    mount.umount().ok();
    mount.again(&["--read-only"]).ok().says("read-only");
    let error = fs::write(mount.at("x"), "x").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
}

#[test]
fn a_snapshot_is_mounted_read_only_and_several_times() {
    let world = World::with_snapshot();
    world.write("a.txt", "later");
    let id = world.snapshot("second");
    let old = Mount::place(&world, "old");
    let new = Mount::place(&world, "new");
    old.again(&["--snapshot", "first"]).ok().says("Mounted the snapshot");
    new.again(&["--snapshot", &id]).ok();
    assert_eq!(fs::read_to_string(old.at("a.txt")).unwrap(), "one\ntwo\nthree\n");
    assert_eq!(fs::read_to_string(new.at("a.txt")).unwrap(), "later");
    let error = fs::write(new.at("a.txt"), "x").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(new.description()["snapshot"], id.as_str());
}

#[test]
fn mountpoints_that_will_not_do_are_refused() {
    let world = World::with_snapshot();
    let mount = |path: &str| world.run(&["mount", path]);
    mount("../nowhere").code(2).remarks("nowhere does not exist").remarks("mkdir");
    mount("../no/where").code(2).remarks("does not exist");
    mount("a.txt").code(3).remarks("a.txt is not a directory").remarks("empty directory");
    mount("dir").code(2).remarks("dir is not empty").remarks("empty directory");
    mount("/proc").code(2).remarks("proc is already mounted on /proc");
    // Nothing that was refused left a worktree behind.
    assert_eq!(world.json(&["worktree", "list"])["worktrees"].as_array().unwrap().len(), 1);
}

#[test]
fn a_mountpoint_that_is_in_use_is_refused() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    mount
        .again(&["--snapshot", "first"])
        .code(2)
        .remarks("a volume is already mounted on")
        .remarks("'vellum umount");
}

#[test]
fn a_second_writer_is_told_who_the_first_is() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let other = Mount::place(&world, "other");
    let held = format!("is mounted on {} by process {}", mount.path.display(), mount.pid());
    other.again(&["--worktree", "work"]).code(2).remarks(&held).remarks("vellum umount");
}

#[test]
fn worktrees_that_cannot_be_mounted_are_refused() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "mnt");
    let checked_out = format!("the worktree 'main' is checked out in {}", world.tree().display());
    mount.again(&["--worktree", "main"]).code(3).remarks(&checked_out).remarks("--snapshot");
    mount.again(&["--worktree", "other"]).code(2).remarks("no worktree 'other'").remarks("worktree list");
    mount.again(&["--snapshot", "other"]).code(2).remarks("other").remarks("vellum history");
    world.run(&["fork", "side", "--to", "../side"]).ok();
    let side = format!("checked out in {}", world.path("side").display());
    mount.again(&["--worktree", "side"]).code(3).remarks(&side);
    mount
        .again(&["--disk-cache", "1M"])
        .code(3)
        .remarks("the store is a directory")
        .remarks("leave out '--disk-cache'");
}

#[test]
fn a_directory_without_a_volume_is_refused() {
    let world = World::empty();
    fs::create_dir(world.path("mnt")).unwrap();
    world.run(&["mount", "../mnt"]).code(2).remarks("vellum init");
}

#[test]
fn failures_have_a_kind_in_json() {
    let world = World::with_snapshot();
    let ran = world.run(&["--json", "mount", "../nowhere"]).code(2);
    let value: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(value["error"]["kind"], "not_found");
    assert!(value["error"]["hint"].as_str().unwrap().contains("mkdir"));
}

#[test]
fn the_report_is_json() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "work");
    let value = world.json(&["mount", mount.path.to_str().unwrap()]);
    assert_eq!(value["worktree"], "work");
    assert_eq!(value["made"], true);
    assert_eq!(value["pid"].as_i64().unwrap(), i64::from(mount.pid()));
    let log = fs::read_to_string(value["log"].as_str().unwrap()).unwrap();
    assert!(log.contains("mounted on"), "{log}");
}

#[test]
fn a_foreground_mount_stays_until_it_is_ended() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "work");
    let mut child = Command::new(env!("CARGO_BIN_EXE_vellum"))
        .args(["mount", "--foreground", mount.path.to_str().unwrap()])
        .current_dir(world.tree())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("mounted", || is_mounted(&mount.path));
    assert!(child.try_wait().unwrap().is_none());
    fs::write(mount.at("x"), "x").unwrap();
    mount.umount().ok();
    assert!(child.wait().unwrap().success());
}

/// What systemd is told.
fn receive_notice(socket: &UnixDatagram) -> String {
    let mut notice = [0; 4096];
    let len = socket.recv(&mut notice).unwrap();
    String::from_utf8(notice[..len].to_vec()).unwrap()
}

#[test]
fn the_service_manager_is_told_when_a_mount_is_ready_and_when_it_ends() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "work");
    let path = world.path("notify");
    let name = format!("vellum-test-{}", std::process::id());
    let hidden = SocketAddr::from_abstract_name(&name).unwrap();
    let sockets = [
        (UnixDatagram::bind(&path).unwrap(), path.to_str().unwrap().to_owned()),
        (UnixDatagram::bind_addr(&hidden).unwrap(), format!("@{name}")),
    ];
    for (socket, address) in sockets {
        socket.set_read_timeout(Some(std::time::Duration::from_secs(120))).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_vellum"))
            .args(["mount", "--foreground", mount.path.to_str().unwrap()])
            .current_dir(world.tree())
            .env("NOTIFY_SOCKET", address)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        assert_eq!(receive_notice(&socket), format!("READY=1\nSTATUS=mounted on {}", mount.path.display()));
        assert!(is_mounted(&mount.path));
        fs::write(mount.at("x"), "x").unwrap();
        // As systemd ends a service.
        kill(i32::try_from(child.id()).unwrap(), "-TERM");
        assert!(receive_notice(&socket).starts_with("STOPPING=1\nSTATUS="));
        assert!(child.wait().unwrap().success());
        assert!(!is_mounted(&mount.path));
    }
}

#[test]
fn the_service_manager_hears_that_a_mount_works() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "work");
    let path = world.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(120))).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_vellum"))
        .args(["mount", "--foreground", mount.path.to_str().unwrap()])
        .current_dir(world.tree())
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "200000")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    assert!(receive_notice(&socket).starts_with("READY=1"));
    for _ in 0..3 {
        assert_eq!(receive_notice(&socket), "WATCHDOG=1");
    }
    kill(i32::try_from(child.id()).unwrap(), "-TERM");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_signal_unmounts_cleanly() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    fs::write(mount.at("x"), "kept").unwrap();
    kill(mount.pid(), "-TERM");
    wait_until("unmounted", || !is_mounted(&mount.path));
    wait_until("the worktree is free", || mount.again(&[]).code == 0);
    assert_eq!(fs::read_to_string(mount.at("x")).unwrap(), "kept");
}

#[test]
fn a_signal_takes_a_mount_in_use_out_of_sight() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let pid = mount.pid();
    let mut file = fs::File::create(mount.at("x")).unwrap();
    kill(pid, "-TERM");
    wait_until("out of sight", || !is_mounted(&mount.path));
    file.write_all(b"still there").unwrap();
    mount.again(&[]).code(2).remarks(&format!("by process {pid}"));
    drop(file);
    wait_until("the worktree is free", || mount.again(&[]).code == 0);
    assert_eq!(fs::read_to_string(mount.at("x")).unwrap(), "still there");
}

#[test]
fn a_killed_daemon_leaves_a_mountpoint_that_mount_repairs() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let mut synced = fs::File::create(mount.at("synced")).unwrap();
    synced.write_all(b"safe").unwrap();
    synced.sync_all().unwrap();
    kill(mount.pid(), "-KILL");
    wait_until("dead", || mount.is_dead());
    let listed = world.json(&["mounts"]);
    let ours = |item: &&serde_json::Value| item["mountpoint"] == mount.path.to_str().unwrap();
    assert_eq!(listed["mounts"].as_array().unwrap().iter().find(ours).unwrap()["dead"], true);
    let output = world.run(&["mounts"]).ok();
    let line = output.lines().into_iter().find(|line| line.contains(mount.path.to_str().unwrap())).unwrap();
    assert!(!line.split_whitespace().any(|word| word == "/"), "where its volume is nobody knows: {line}");
    mount.again(&[]).ok();
    assert_eq!(fs::read_to_string(mount.at("synced")).unwrap(), "safe");
    assert_eq!(fs::read_to_string(mount.at("a.txt")).unwrap(), "one\ntwo\nthree\n");
}

#[test]
fn without_the_kernels_device_mounting_says_so() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "work");
    // A mount namespace of its own, in which the device is nothing.
    let script = format!(
        "mount -t tmpfs none /dev && mknod /dev/null c 1 3 && exec {} mount {}",
        env!("CARGO_BIN_EXE_vellum"),
        mount.path.display()
    );
    let output = Command::new("unshare")
        .args(["--mount", "bash", "-c", &script])
        .current_dir(world.tree())
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("/dev/fuse cannot be opened") && err.contains("modprobe fuse"), "{err}");
}

#[test]
fn who_may_not_use_the_device_is_told() {
    let world = World::with_snapshot();
    fs::create_dir(world.tree().join("mnt")).unwrap();
    world.give_to(1234);
    let ran = world.run_as(1234, &["mount", "mnt"]).code(2);
    assert!(ran.err.contains("/dev/fuse") || ran.err.contains("fusermount3"), "{}", ran.err);
    assert!(ran.err.contains("hint:"), "{}", ran.err);
}

#[test]
fn what_root_mounts_in_a_users_directory_stays_the_users() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "work");
    world.give_to(1234);
    mount.again(&[]).ok();
    mount.sh("head -c 3000000 /dev/urandom > big; echo small > small; sync big");
    run(&mount.path, &["snapshot", "-q"], std::process::Stdio::null()).ok();
    // Killed, it leaves everything: the journal, the write log, the tokens.
    kill(mount.pid(), "-9");
    wait_until("the process is gone", || mount.is_dead());
    let others = sh(&world.tree().join(".vellum"), "find . \\( -type f -o -type d \\) ! -uid 1234");
    assert_eq!(others, "", "these are not the user's");
    world.run_as(1234, &["worktree", "rename", "work", "play"]).ok();
}

#[test]
fn who_is_not_root_mounts_with_the_helper() {
    let world = World::with_snapshot();
    fs::create_dir(world.tree().join("mnt")).unwrap();
    // The helper wants to know the user's name.
    world.give_to(65534);
    let vellum = env!("CARGO_BIN_EXE_vellum");
    let work = format!(
        "{vellum} snapshot -q > id && {vellum} mount -q mnt && echo hers > mnt/new && cat mnt/a.txt mnt/new && \
         ! {vellum} mount mnt && cp mnt/new out && {vellum} umount -q mnt && ls -A mnt"
    );
    // A mount namespace of its own, in which everybody may use the device, as on most machines.
    let script = format!(
        "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/fuse c 10 229 && \
         exec setpriv --reuid nobody --regid nogroup --clear-groups bash -c '{work}'"
    );
    let output =
        Command::new("unshare").args(["--mount", "bash", "-c", &script]).current_dir(world.tree()).output();
    let output = output.unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{out}\n{err}");
    assert_eq!(out, "one\ntwo\nthree\nhers\n");
    assert!(err.contains("already mounted") || err.contains("is mounted"), "{err}");
}

#[test]
fn a_mount_that_fails_late_leaves_nothing() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "work");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let is_clean = || {
        assert_eq!(world.json(&["worktree", "list"])["worktrees"].as_array().unwrap().len(), 1);
        assert!(!world.tree().join(".vellum/live/work").exists());
        assert!(!mount.is_mounted());
    };
    mount.again(&["--metrics", &port]).code(2).remarks("in use");
    is_clean();
    let script = format!(
        "mount -t tmpfs none /dev && mknod /dev/null c 1 3 && exec {} mount {}",
        env!("CARGO_BIN_EXE_vellum"),
        mount.path.display()
    );
    let mut without_device = Command::new("unshare");
    without_device.args(["--mount", "bash", "-c", &script]).current_dir(world.tree());
    assert_eq!(without_device.output().unwrap().status.code(), Some(2));
    is_clean();
    // One that exists gets its lease back.
    mount.again(&[]).ok();
    mount.umount().ok();
    assert_eq!(without_device.output().unwrap().status.code(), Some(2));
    assert_eq!(world.json(&["status"])["leases"].as_array().unwrap().len(), 0);
    mount.again(&[]).ok();
}

#[test]
fn a_temporary_mount_leaves_its_snapshots_and_nothing_else() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "scratch");
    mount.again(&["--temporary"]).ok().says("Mounted the temporary worktree scratch");
    fs::write(mount.at("new"), "new").unwrap();
    crate::world::run(&mount.path, &["snapshot", "--tag", "kept"], Stdio::null()).ok();
    fs::write(mount.at("lost"), "lost").unwrap();
    mount.umount().ok();
    let names = || {
        let listed = world.json(&["worktree", "list"]);
        listed["worktrees"].as_array().unwrap().iter().map(|item| item["name"].clone()).collect::<Vec<_>>()
    };
    wait_until("it is gone", || names() == ["main"]);
    assert!(!world.tree().join(".vellum/live/scratch").exists());
    assert_eq!(world.run(&["cat", "kept", "new"]).ok().out, "new");
    world.run(&["cat", "kept", "lost"]).code(2);
    // A worktree that is there already is nobody's to be removed.
    mount.again(&[]).ok();
    mount.umount().ok();
    mount.again(&["--temporary"]).code(2).remarks("exists already");
    assert_eq!(names(), ["main", "scratch"]);
}

#[test]
fn a_snapshot_that_was_mounted_leaves_nothing() {
    let world = World::with_snapshot();
    let one = Mount::place(&world, "one");
    let two = Mount::place(&world, "two");
    one.again(&["--snapshot", "first"]).ok();
    two.again(&["--snapshot", "first"]).ok();
    one.umount().ok();
    assert_eq!(fs::read_to_string(two.at("dir/b.txt")).unwrap(), "b\n");
    two.umount().ok();
    let live = world.tree().join(".vellum/live");
    wait_until("its folder is gone", || fs::read_dir(&live).unwrap().next().is_none());
    assert_eq!(world.json(&["worktree", "list"])["worktrees"].as_array().unwrap().len(), 1);
}

#[test]
fn worktrees_that_nobody_uses_are_told() {
    let world = World::with_snapshot();
    let used = Mount::new(&world, "used");
    let unused = Mount::new(&world, "unused");
    unused.umount().ok();
    let output = world.run(&["worktree", "list"]).ok();
    let line =
        |name: &str| output.lines().into_iter().find(|line| line.trim_start().starts_with(name)).unwrap();
    assert!(line("unused").contains("(unused, last mounted"), "{}", output.out);
    assert!(line("used").contains(&format!("(mounted on {})", used.path.display())), "{}", output.out);
    output.remarks("vellum worktree remove");
    world.run(&["worktree", "remove", "unused"]).ok();
    kill(used.pid(), "-KILL");
    wait_until("dead", || used.is_dead());
    // What is dead is mounted nowhere.
    let output = world.run(&["status"]).ok();
    assert!(!output.err.contains("is mounted"), "{}", output.err);
}

#[test]
fn what_others_have_mounted_comes_behind_what_was_asked() {
    let world = World::with_snapshot();
    let _mount = Mount::new(&world, "work");
    world.write("a.txt", "changed");
    let output = world.run(&["status"]).code(1);
    let last = output.err.lines().last().unwrap();
    assert!(last.contains("work is mounted on"), "{}", output.err);
}

#[test]
fn the_memory_of_a_mount_is_limited_and_cleared_while_it_runs() {
    let world = World::with_snapshot();
    world.write("large", noise(3 << 20));
    world.snapshot("large");
    let mount = Mount::place(&world, "work");
    mount.again(&["--inode-cache", "2M", "--cache-size", "4M"]).ok();
    let inside = |args: &[&str]| run(&mount.path, args, Stdio::null());
    let memory = |args: &[&str]| {
        let shown: serde_json::Value =
            serde_json::from_str(&inside(&[&["--json", "cache"], args].concat()).ok().out).unwrap();
        let of = |name: &str| ["bytes", "limit"].map(|key| shown["memory"][name][key].as_u64().unwrap());
        (of("content"), of("inodes"))
    };
    let _ = fs::read(mount.at("large")).unwrap();
    let (content, inodes) = memory(&[]);
    assert!(content[0] > 1 << 20 && content[1] == 4 << 20, "{content:?}");
    assert!(inodes[0] > 0 && inodes[1].abs_diff(2 << 20) < 4096, "{inodes:?}");
    let (content, inodes) = memory(&["--set-memory", "1M", "--set-inode-memory", "1M"]);
    assert!(content[0] <= 1 << 20 && content[1] == 1 << 20, "{content:?}");
    assert!(inodes[1].abs_diff(1 << 20) < 4096, "{inodes:?}");
    inside(&["cache", "--set-memory", "1"]).code(3).remarks("1M is the least");
    inside(&["cache", "--set-inode-memory", "1000K"]).code(3).remarks("1M is the least");
    let (content, inodes) = memory(&["--clear-memory"]);
    assert_eq!((content[0], inodes[0]), (0, 0));
    assert!(fs::read(mount.at("large")).unwrap() == noise(3 << 20));
    inside(&["cache"]).ok().says("In memory: content");
    world.run(&["cache", "--clear-memory"]).code(3).remarks("not a mounted worktree");
    let shown: serde_json::Value = world.json(&["cache"]);
    assert!(shown["memory"].is_null());
}
