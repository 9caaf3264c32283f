//! `mount.vellum`, as the system's mount(8) runs it, and `vellum mount -o`.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use crate::mounting::{Mount, hold, kill, wait_until};
use crate::world::{Ran, World, profile};

/// Runs a shell in a mount namespace in which the helper is installed and fstab has these lines. Mounts that it leaves end with
/// it.
fn run_installed(world: &World, fstab: &str, script: &str) -> Output {
    let sbin = world.path("sbin");
    if !sbin.exists() {
        fs::create_dir(&sbin).unwrap();
        for name in ["mount.vellum", "mount.fuse.vellum"] {
            symlink(env!("CARGO_BIN_EXE_vellum"), sbin.join(name)).unwrap();
        }
    }
    fs::write(world.path("fstab"), fstab).unwrap();
    // mount(8) looks for helpers in /sbin. What else is there is of no use here.
    let prepare = format!(
        "set -eu; mount --bind {} /usr/sbin; [ /sbin -ef /usr/sbin ] || mount --bind /usr/sbin /sbin
         mount --bind {} /etc/fstab; trap 'umount -l $HERE/mnt 2> /dev/null || true' EXIT\n",
        sbin.display(),
        world.path("fstab").display()
    );
    Command::new("unshare")
        .args(["--mount", "bash", "-c", &(prepare + script)])
        .current_dir("/")
        .env_clear()
        .envs(profile())
        .env("PATH", "/usr/bin:/bin")
        .env("HERE", world.path(""))
        .env("VOLUME", world.tree())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// The same; it has to succeed. Gives what it printed.
#[track_caller]
fn sh_installed(world: &World, fstab: &str, script: &str) -> String {
    Ran::of(&[script], run_installed(world, fstab, script)).ok().out
}

/// The helper by itself, with next to no environment.
fn run_helper(args: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_vellum"))
        .arg0("/sbin/mount.vellum")
        .args(args)
        .current_dir("/")
        .env_clear()
        .envs(profile())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    Ran::of(args, output)
}

#[test]
fn mount_of_the_system_mounts_and_umount_ends_it() {
    let world = World::with_snapshot();
    fs::create_dir(world.path("mnt")).unwrap();
    // The process of a mount publishes after the unmount, and a mount in the meantime says so.
    let script = "
        mount_again() { until mount $* 2> $HERE/said; do grep -q 'again in a while' $HERE/said; done; }
        for type in vellum fuse.vellum; do
            mount_again -t $type $VOLUME $HERE/mnt
            findmnt -no SOURCE,FSTYPE $HERE/mnt
            cat $HERE/mnt/dir/b.txt
            echo $type > $HERE/mnt/$type
            umount $HERE/mnt
            mount_again -t $type -o ro $VOLUME $HERE/mnt
            cat $HERE/mnt/$type
            ! touch $HERE/mnt/x 2> /dev/null
            umount $HERE/mnt
        done";
    let out = sh_installed(&world, "", script);
    let shown = format!("{} fuse.vellum", world.tree().display());
    assert_eq!(out.lines().collect::<Vec<_>>(), [&*shown, "b", "vellum", &*shown, "b", "fuse.vellum"]);
}

#[test]
fn a_line_of_fstab_mounts_once() {
    let world = World::with_snapshot();
    world.write("a.txt", "later");
    world.snapshot("second");
    fs::create_dir(world.path("mnt")).unwrap();
    let line = |options: &str| {
        format!("{} {} vellum {options} 0 0\n", world.tree().display(), world.path("mnt").display())
    };
    let fstab = line(
        "noauto,user,nofail,_netdev,x-systemd.requires=network-online.target,comment=mine,snapshot=first",
    );
    let script = "
        mount $HERE/mnt
        cat $HERE/mnt/a.txt
        findmnt -no OPTIONS $HERE/mnt
        umount $HERE/mnt";
    let out = sh_installed(&world, &fstab, script);
    assert!(out.starts_with("one\ntwo\nthree\n"), "{out}");
    let options: Vec<_> = out.lines().last().unwrap().split(',').collect();
    for option in ["ro", "noexec", "nosuid", "nodev"] {
        assert!(options.contains(&option), "{out}");
    }
    let script = "mount -a; mount -a; grep -c \" $HERE/*mnt \" /proc/self/mountinfo; cat $HERE/mnt/a.txt; umount $HERE/mnt";
    assert_eq!(sh_installed(&world, &line("defaults,timeout=1m"), script), "1\nlater");
}

#[test]
fn a_volume_whose_key_is_elsewhere_is_mounted_with_a_key_file() {
    let world = World::empty();
    fs::create_dir(world.path("mnt")).unwrap();
    fs::write(world.path("secret"), "a secret of some length\n").unwrap();
    fs::write(world.path("wrong"), "another secret\n").unwrap();
    world.run(&["init", "--key-file", "../secret"]).ok();
    world.write("a.txt", "one");
    world.snapshot("first");
    let key = world.tree().join(".vellum/key");
    fs::rename(&key, world.path("key")).unwrap();
    let line = |options: &str| {
        format!("{} {} vellum noauto,{options} 0 0\n", world.tree().display(), world.path("mnt").display())
    };
    let fails = |options: &str, why: &str| {
        let output = run_installed(&world, &line(options), "mount $HERE/mnt");
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(32) && err.contains(why), "{options}: {err}");
    };
    fails("defaults", "key-file=FILE");
    fails(&format!("nofail,key-file={}", world.path("wrong").display()), "opens");
    fails(&format!("key-file={}", world.path("nothing").display()), "nothing");
    let script = "
        mount $HERE/mnt; cat $HERE/mnt/a.txt; echo two > $HERE/mnt/b.txt; umount $HERE/mnt
        until mount $HERE/mnt 2> $HERE/said; do grep -q 'again in a while' $HERE/said; done
        cat $HERE/mnt/b.txt; umount $HERE/mnt";
    let options = format!("key-file={}", world.path("secret").display());
    assert_eq!(sh_installed(&world, &line(&options), script), "onetwo\n");
    assert!(!key.exists());
    // A key that is there is taken, whatever the file holds.
    fs::rename(world.path("key"), &key).unwrap();
    let options = format!("key-file={}", world.path("wrong").display());
    let script = "
        until mount $HERE/mnt 2> $HERE/said; do grep -q 'again in a while' $HERE/said; done
        cat $HERE/mnt/b.txt; umount $HERE/mnt";
    assert_eq!(sh_installed(&world, &line(&options), script), "two\n");
}

#[test]
fn mount_all_goes_on_without_a_volume_that_is_away() {
    let world = World::with_snapshot();
    fs::create_dir(world.path("mnt")).unwrap();
    let away = world.path("away");
    let line =
        |options: &str| format!("{} {} vellum {options} 0 0\n", away.display(), world.path("mnt").display());
    let output = run_installed(&world, &line("nofail"), "mount -a");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && err.contains("warning: nothing was mounted on"), "{err}");
    let output = run_installed(&world, &line("defaults"), "mount -a");
    assert_eq!(output.status.code(), Some(32), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn exit_codes_are_those_of_mount() {
    let world = World::empty();
    fs::create_dir(world.path("store")).unwrap();
    let store = world.path("store/s");
    world.run(&["init", "--plain", "--store", store.to_str().unwrap()]).ok();
    world.write("a.txt", "one");
    world.snapshot("first");
    let mount = Mount::place(&world, "mnt");
    let dir = world.tree();
    let [dir, at] = [dir.to_str().unwrap(), mount.path.to_str().unwrap()];
    let with = |options: &str| run_helper(&[dir, at, "-o", options]);
    run_helper(&[]).code(1).remarks("Usage: mount.vellum");
    run_helper(&["--help"]).ok().says("worktree=NAME");
    with("rw,readonly").code(1).remarks("'readonly' is not valid").remarks("hint: Usage: mount.vellum");
    with("timeout=soon").code(1).remarks("30d");
    with("worktree=a,snapshot=first").code(1).remarks("a worktree and a snapshot");
    with("worktree=other,nofail").code(32).remarks("no worktree 'other'");
    with("snapshot=other,nofail").code(32).remarks("no snapshot, tag or worktree is called 'other'");
    run_helper(&[dir, "/nowhere", "-o", "nofail"]).code(32).remarks("does not exist");
    // The disk of the store is away.
    fs::rename(world.path("store"), world.path("elsewhere")).unwrap();
    with("rw").code(32).remarks("error:");
    with("rw,nofail").ok().remarks("as 'nofail' allows");
    fs::rename(world.path("elsewhere"), world.path("store")).unwrap();
    run_helper(&[dir, at, "-f", "-o", "rw"]).ok();
    assert!(!mount.is_mounted(), "it was only to check its options");
    // As mount(8) passes them on.
    let ran = run_helper(&[dir, at, "-s", "-n", "-v", "-t", "fuse.vellum", "-o", "rw,readonly"]).ok();
    assert!(ran.says("Mounted the new worktree mnt").err.is_empty());
    with("rw").code(32).remarks("already mounted");
}

#[test]
fn a_store_that_does_not_answer_holds_up_nobody_for_longer_than_the_deadline() {
    let world = World::with_snapshot();
    // A disk that hangs: the process behind it does nothing.
    let disk = Mount::new(&world, "disk");
    let store = disk.at("store");
    let near = world.path("near");
    let near = near.to_str().unwrap();
    world.run(&["init", "--plain", near, "--store", store.to_str().unwrap()]).ok();
    let mount = Mount::place(&world, "mnt");
    let pid = disk.pid();
    hold(pid);
    let at = mount.path.to_str().unwrap();
    let late = run_helper(&[near, at, "-o", "timeout=1s"]);
    let optional = run_helper(&[near, at, "-o", "timeout=1s,nofail"]);
    kill(pid, "-CONT");
    late.code(32).remarks("not ready within");
    optional.ok().remarks("warning: nothing was mounted");
    run_helper(&[near, at, "-o", "timeout=1m"]).ok();
    mount.umount().ok();
}

#[test]
fn options_of_mount_are_those_of_fstab() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "mnt");
    mount.again(&["-o", "ro,snapshot=first", "-o", "noexec"]).ok().says("read-only");
    let options = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = options.lines().find(|line| line.split(' ').nth(4) == mount.path.to_str()).unwrap();
    assert!(line.split(' ').nth(5).unwrap().split(',').any(|option| option == "noexec"), "{line}");
    assert!(line.contains(" vellum:"), "{line}");
    mount.umount().ok();
    mount.again(&["-o", "snapshot=first", "--snapshot", "other"]).code(3).remarks("'other' and 'first'");
    mount.again(&["-o", "snapshot=first", "--temporary"]).code(3).remarks("leave out --temporary");
    mount.again(&["-o", "timeout=5s", "--foreground"]).code(3).remarks("leave out --foreground");
    mount.again(&["-o", "readonly"]).code(3).remarks("worktree=NAME");
    mount.again(&["-o", "noatime", "--shared", "x"]).code(3).remarks("leave out 'noatime'");
    let away = world.path("away");
    let args = ["mount", "-o", "nofail", away.to_str().unwrap(), mount.path.to_str().unwrap()];
    world.run(&args).ok().remarks("as 'nofail' allows");
    assert!(!mount.is_mounted());
}

#[test]
fn with_noatime_reading_changes_no_access_time() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "mnt");
    mount.again(&["-o", "noatime"]).ok();
    fs::write(mount.at("new"), "content").unwrap();
    // The last access is before the last change: relatime would record the next one.
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    fs::File::open(mount.at("new")).unwrap().set_times(fs::FileTimes::new().set_accessed(old)).unwrap();
    fs::read(mount.at("new")).unwrap();
    fs::read_dir(&mount.path).unwrap().for_each(drop);
    assert_eq!(fs::metadata(mount.at("new")).unwrap().accessed().unwrap(), old);
    mount.umount().ok();
}

#[test]
fn a_copy_of_the_program_by_the_name_of_the_helper_mounts() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "mnt");
    let helper = world.path("mount.vellum");
    // By a process of its own: a child that another test starts meanwhile would inherit the file, open for writing, and the
    // kernel executes no such file.
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_vellum")).arg(&helper).status().unwrap().success());
    let output = Command::new(&helper).args([&world.tree(), &mount.path]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    wait_until("mounted", || mount.is_mounted());
}
