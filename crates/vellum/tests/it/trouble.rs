//! Mounts in trouble: a store that is away, a disk that is full, damage, a process that is held, people who may not.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::disk::Disk;
use crate::mounting::{Mount, hold, kill, sh, wait_until};
use crate::world::{Ran, World, noise, run};

fn inside(mount: &Mount<'_>, args: &[&str]) -> Ran {
    run(&mount.path, args, Stdio::null())
}

/// Runs a shell as another user; its exit code and what it printed.
fn as_user(dir: &Path, script: &str) -> (i32, String) {
    let user = ["--reuid=1234", "--regid=1234", "--clear-groups", "bash", "-c"];
    let done = Command::new("setpriv").args(user).arg(script).current_dir(dir).output().unwrap();
    let said = [done.stdout, done.stderr].concat();
    (done.status.code().unwrap(), String::from_utf8_lossy(&said).into_owned())
}

/// Bytes of a file's own.
fn bytes(number: usize, len: usize) -> Vec<u8> {
    noise(len + number * 1000).split_off(number * 1000)
}

/// A volume with its store on a disk of its own, and two files that are in the store alone.
fn with_store_apart(disk: &Disk) -> World {
    let world = World::empty();
    let store = disk.path().join("store");
    world.run(&["init", "--plain", "--store", store.to_str().unwrap()]).ok();
    world.write("old", bytes(1, 200_000));
    world.write("other", bytes(2, 200_000));
    world.snapshot("first");
    world
}

#[test]
fn while_the_store_is_away_everything_goes_on_and_then_it_gets_what_it_missed() {
    let disk = Disk::in_memory(100);
    let world = with_store_apart(&disk);
    let mount = Mount::new(&world, "work");
    sh(&disk.path(), "mv store/packs store/away; mount -o remount,ro .");
    assert_eq!(fs::read(mount.at("old")).unwrap_err().raw_os_error(), Some(5));
    for number in 0..20 {
        let mut file = File::create(mount.at(&format!("new-{number}"))).unwrap();
        file.write_all(&bytes(number, 50_000)).unwrap();
        file.sync_all().unwrap();
    }
    fs::rename(mount.at("old"), mount.at("renamed")).unwrap();
    let id = inside(&mount, &["snapshot", "-q"]).ok().out.trim().to_owned();
    fs::write(mount.at("new-0"), "changed").unwrap();
    inside(&mount, &["flush"]).code(2).remarks("Read-only file system");
    let ran = inside(&mount, &["status"]).code(1).remarks("Read-only file system");
    assert!(format!("{}{}", ran.out, ran.err).contains("Write log: "));
    sh(&disk.path(), "mount -o remount,rw .; mv store/away store/packs; mount -o remount,ro .");
    assert_eq!(fs::read(mount.at("renamed")).unwrap(), bytes(1, 200_000), "the store can be read again");
    // Whatever becomes of the process meanwhile.
    kill(mount.pid(), "-KILL");
    wait_until("it is dead", || mount.is_dead());
    // Without the lease nobody mounts.
    mount.again(&[]).code(2).remarks("Read-only file system");
    sh(&disk.path(), "mount -o remount,rw .");
    mount.again(&[]).ok();
    assert_eq!(fs::read(mount.at("new-7")).unwrap(), bytes(7, 50_000));
    assert_eq!(fs::read(mount.at("other")).unwrap(), bytes(2, 200_000));
    inside(&mount, &["flush"]).ok();
    inside(&mount, &["restore", &id]).ok();
    assert_eq!(fs::read(mount.at("new-0")).unwrap(), bytes(0, 50_000));
    mount.umount().ok();
    world.run(&["verify", "--all"]).ok();
    assert_eq!(world.run(&["cat", &id, "new-19"]).ok().raw, bytes(19, 50_000));
}

#[test]
fn without_its_store_nothing_is_mounted_and_that_is_said() {
    let disk = Disk::in_memory(100);
    let world = with_store_apart(&disk);
    let mount = Mount::place(&world, "work");
    let store = disk.path().join("store");
    fs::rename(&store, disk.path().join("away")).unwrap();
    mount.again(&[]).code(2).remarks(store.to_str().unwrap());
    fs::rename(disk.path().join("away"), &store).unwrap();
    mount.again(&[]).ok();
    assert_eq!(fs::read(mount.at("old")).unwrap(), bytes(1, 200_000));
}

/// Writes and syncs files until there is no room; gives how many were acknowledged.
fn fill(mount: &Mount<'_>, first: usize) -> usize {
    for number in first.. {
        let written = File::create(mount.at(&format!("{number}"))).and_then(|mut file| {
            file.write_all(&bytes(number % 100, 300_000))?;
            file.sync_all()
        });
        match written {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(28), "file {number}: {error}");
                return number;
            }
        }
        assert!(number < 1000, "it never gets full");
    }
    unreachable!()
}

#[test]
fn a_full_disk_is_an_error_to_the_program_and_loses_nothing_acknowledged() {
    let disk = Disk::in_memory(24);
    let apart = Disk::in_memory(100);
    let world = World::on(&disk.path());
    let store = apart.path().join("store");
    world.run(&["init", "--plain", "--store", store.to_str().unwrap()]).ok();
    let mount = Mount::place(&world, "work");
    // It would take what is written, and nothing would get full.
    mount.again(&["--log-limit", "1G"]).ok();
    sh(&apart.path(), "mount -o remount,ro .");
    let done = fill(&mount, 0);
    let check = |upto: usize| {
        for number in 0..upto {
            let read = fs::read(mount.at(&format!("{number}"))).unwrap();
            assert!(read == bytes(number % 100, 300_000), "file {number} of {upto}");
        }
    };
    check(done);
    disk.grow(60);
    // What could not be written is gone from the kernel as well: the file is written anew.
    let more = fill(&mount, done);
    assert!(more > done + 10, "it goes on when there is room: {more} after {done}");
    check(more);
    kill(mount.pid(), "-KILL");
    wait_until("it is dead", || mount.is_dead());
    disk.grow(120);
    sh(&apart.path(), "mount -o remount,rw .");
    mount.again(&[]).ok();
    check(more);
    inside(&mount, &["flush"]).ok();
    inside(&mount, &["snapshot", "-q"]).ok();
    mount.umount().ok();
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn damage_hits_the_file_that_it_is_in_and_is_named_in_the_log() {
    let world = World::new();
    for number in 0..3 {
        world.write(&format!("{number}"), bytes(number * 50, 40_000));
    }
    world.snapshot("first");
    let needle = &bytes(50, 40_000)[20_000..20_064];
    let packs = sh(&world.tree(), "find .vellum/store/packs -type f");
    let mut hit = 0;
    for pack in packs.lines().map(|pack| world.tree().join(pack)) {
        let mut content = fs::read(&pack).unwrap();
        if let Some(at) = content.windows(needle.len()).position(|window| window == needle) {
            content[at] ^= 1;
            fs::write(&pack, content).unwrap();
            hit += 1;
        }
    }
    assert_eq!(hit, 1, "what does not compress stands in one pack as it is");
    let mount = Mount::new(&world, "work");
    let mut content = Vec::new();
    let read = File::open(mount.at("1")).unwrap().read_to_end(&mut content);
    assert_eq!(read.unwrap_err().raw_os_error(), Some(5));
    for number in [0, 2] {
        assert_eq!(fs::read(mount.at(&format!("{number}"))).unwrap(), bytes(number * 50, 40_000));
    }
    let log = fs::read_to_string(world.tree().join(".vellum/live/work/daemon.log")).unwrap();
    assert!(log.contains("cannot be read: chunk") && log.contains("authentication failed"), "{log}");
    // It can be replaced.
    fs::write(mount.at("1"), "new").unwrap();
    inside(&mount, &["snapshot", "-q"]).ok();
    assert_eq!(fs::read_to_string(mount.at("1")).unwrap(), "new");
}

#[test]
fn a_process_that_is_held_keeps_its_worktree_and_goes_on() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let pid = mount.pid();
    hold(pid);
    let other = Mount::place(&world, "other");
    other.again(&["--worktree", "work"]).code(2).remarks(&format!("by process {pid}"));
    let path = mount.at("x");
    let waiting = std::thread::spawn(move || fs::write(path, "written while it was held"));
    // However long: nobody answers.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(!waiting.is_finished());
    kill(pid, "-CONT");
    waiting.join().unwrap().unwrap();
    kill(pid, "-STOP");
    kill(pid, "-KILL");
    wait_until("it is dead", || mount.is_dead());
    mount.again(&[]).ok();
    assert_eq!(fs::read_to_string(mount.at("a.txt")).unwrap(), "one\ntwo\nthree\n");
    assert!(mount.at("x").exists());
}

#[test]
fn the_control_channel_is_its_owners_alone() {
    let world = World::with_snapshot();
    sh(&world.path(""), "chmod 755 . tree");
    let mount = Mount::new(&world, "work");
    let binary = env!("CARGO_BIN_EXE_vellum");
    let before = inside(&mount, &["history", "--all"]).ok().out;
    for command in ["snapshot", "restore first --discard", "flush", "status"] {
        let (code, said) = as_user(&mount.path, &format!("{binary} {command}"));
        assert!(code == 2 && said.contains("error:"), "{command}: {code} {said}");
        let (code, said) = as_user(&mount.path, &format!("unshare -U -r {binary} {command}"));
        assert!(code != 0, "{command} in a user namespace: {said}");
    }
    let sockets = sh(&world.tree(), "find .vellum -type s");
    assert!(!sockets.is_empty());
    for socket in sockets.lines().map(|socket| world.tree().join(socket)) {
        let connect = format!("import socket as s; s.socket(s.AF_UNIX).connect('{}')", socket.display());
        let (code, said) = as_user(Path::new("/"), &format!("python3 -c \"{connect}\""));
        assert!(code != 0 && said.contains("PermissionError"), "{said}");
    }
    assert_eq!(inside(&mount, &["history", "--all"]).ok().out, before);
}

#[test]
fn another_user_reads_nothing_through_the_cache_after_a_change_of_mode() {
    let world = World::with_snapshot();
    sh(&world.path(""), "chmod 755 .");
    let mount = Mount::new(&world, "work");
    fs::write(mount.at("secret"), "for a moment").unwrap();
    mount.sh("mkdir d; echo deep > d/f; chmod 755 . d; chmod 644 secret d/f");
    for _ in 0..2 {
        assert_eq!(as_user(&mount.path, "cat secret d/f").0, 0);
    }
    mount.sh("chmod 600 secret; chmod 700 d");
    for name in ["secret", "d/f"] {
        let (code, said) = as_user(&mount.path, &format!("cat {name}"));
        assert!(code != 0 && said.contains("Permission denied"), "{said}");
    }
}

#[test]
fn large_and_many_extended_attributes_do_no_harm() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    let program = "import os, errno
open('f', 'w').close()
os.setxattr('f', 'user.big', b'x' * 65536)
assert os.getxattr('f', 'user.big') == b'x' * 65536
try:
    os.setxattr('f', 'user.more', b'x' * 65537)
except OSError as e:
    assert e.errno in (errno.E2BIG, errno.ERANGE), e
for n in range(1000):
    os.setxattr('f', f'user.{n:06}', str(n).encode())
# Their names together have a limit, as the kernel takes lists of 64 KiB at most: long ones reach it soon, and each new one
# is weighed with all that are there.
many, long = 0, lambda n: f'user.{n:0>240}'
try:
    for many in range(100000):
        os.setxattr('f', long(many), str(many).encode())
except OSError as e:
    assert e.errno == errno.ENOSPC and many > 200, (e, many)
assert len(os.listxattr('f')) == many + 1001
assert all(os.getxattr('f', f'user.{n:06}') == str(n).encode() for n in range(1000))
assert all(os.getxattr('f', long(n)) == str(n).encode() for n in range(many))";
    fs::write(world.path("program"), program).unwrap();
    mount.sh(&format!("python3 {}", world.path("program").display()));
    inside(&mount, &["snapshot", "-q"]).ok();
    mount.umount().ok();
    mount.again(&[]).ok();
    mount.sh("python3 -c \"import os; assert os.getxattr('f', 'user.000999') == b'999'; os.remove('f')\"");
    world.run(&["verify", "--all"]).ok();
}

#[test]
fn forks_keep_permissions() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    mount.sh("echo x > f; mkdir d; chmod 4750 f; chown 12:34 f; chmod 3771 d; setfacl -m u:77:r f; setfacl -d -m g:88:rx d");
    let other = Mount::place(&world, "try");
    inside(&mount, &["fork", "try", "--mount", other.path.to_str().unwrap()]).ok();
    let look = "stat -c '%n %a %u %g' f d; getfacl -n f d";
    assert_eq!(other.sh(look), mount.sh(look));
}

#[test]
fn memory_mapped_beyond_a_truncation_is_a_bus_error_and_no_more() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    let program = "import mmap, os, signal, sys
f = open('m', 'w+b'); f.truncate(8192); m = mmap.mmap(f.fileno(), 8192); m[5000] = 7; f.truncate(100)
signal.signal(signal.SIGBUS, signal.SIG_DFL)
m[5000] = 1";
    fs::write(world.path("program"), program).unwrap();
    mount.sh(&format!("! python3 {}; test $(stat -c %s m) = 100", world.path("program").display()));
    assert_eq!(fs::read(mount.at("m")).unwrap(), vec![0; 100]);
}
