//! What programs take for granted on a local filesystem, on a mount: each of these was met by a public suite.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::mounting::{Mount, sh};
use crate::world::World;

/// Where the C programs are.
const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/posix");

/// Runs a command as a user who owns nothing.
const AS_USER: &str = "setpriv --reuid 1001 --regid 1001 --clear-groups";

/// A mount on which set-id bits count.
fn mount_with_suid(world: &World) -> Mount<'_> {
    let mount = Mount::new(world, "work");
    let status = Command::new("mount").args(["-o", "remount,bind,suid"]).arg(&mount.path).status();
    assert!(status.unwrap().success());
    mount
}

#[test]
fn what_was_written_beside_the_pages_is_read_through_them() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    let program = world.path("stale");
    sh(&world.path(""), &format!("cc -O1 -pthread -o {} {PROGRAMS}/stale.c", program.display()));
    let stale = program.display();
    mount.sh(&format!("timeout 120 {stale} $PWD/file 2000"));
    // The first read of a file can begin while the first write is carried out.
    mount.sh(&format!("for i in $(seq 60); do timeout 60 {stale} $PWD/file-$i 3; done"));
}

#[test]
fn a_set_id_program_that_another_user_changes_does_not_run_as_its_owner() {
    let world = World::new();
    let mount = mount_with_suid(&world);
    mount.sh("cp /usr/bin/id program; chmod 777 .");
    for change in [
        "dd if=/usr/bin/id of=program bs=64k conv=notrunc status=none",
        "dd if=/usr/bin/id of=program bs=4k oflag=direct conv=notrunc status=none",
        "fallocate -l 200K program",
        "fallocate -n -l 200K program",
    ] {
        let who = mount.sh(&format!(
            "chmod 6777 program; {AS_USER} ./program -u; {AS_USER} {change}; {AS_USER} ./program -u"
        ));
        assert_eq!(who, "0\n1001\n", "{change}");
        assert_eq!(mount.sh("stat -c %a program"), "777\n", "{change}");
    }
}

#[test]
fn set_id_bits_go_and_stay_as_on_a_local_filesystem() {
    let world = World::new();
    let mount = mount_with_suid(&world);
    let local = world.path("local");
    fs::create_dir(&local).unwrap();
    let script = format!(
        "chmod 777 .
        try() {{
            rm -f file; head -c 10000 /dev/zero > file; chown 1001:${{3:-1001}} file; chmod $1 file
            $2 > /dev/null; stat -c \"$1 $2: %a\" file
        }}
        for mode in 6666 6676 6766 6777 2755; do
            try $mode 'fallocate -l 20000 file'
            try $mode '{AS_USER} fallocate -l 20000 file'
            try $mode '{AS_USER} fallocate -p -o 0 -l 4096 file'
            try $mode '{AS_USER} fallocate -z -o 0 -l 4096 file'
            try $mode '{AS_USER} truncate -s 5 file'
            try $mode '{AS_USER} setfacl -m u:1002:r file'
            try $mode '{AS_USER} setfacl -m u:1002:r file' 2000
            try $mode 'setfacl -m u:1002:r file' 2000
        done"
    );
    assert_eq!(mount.sh(&script), sh(&local, &script));
}

/// What can be done in directories that are gone, line by line.
fn in_removed_directories(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut note = |what: &str, done: Result<String, Errno>| lines.push(format!("{what}: {done:?}"));
    let make = |name: &str| fs::create_dir(root.join(name)).unwrap();
    let open = |name: &str| -> OwnedFd {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        rustix::fs::open(root.join(name), flags, Mode::empty()).unwrap()
    };
    make("removed");
    let removed = open("removed");
    fs::remove_dir(root.join("removed")).unwrap();
    make("new");
    make("replaced");
    let replaced = open("replaced");
    fs::rename(root.join("new"), root.join("replaced")).unwrap();
    for (what, dir) in [("removed", &removed), ("replaced", &replaced)] {
        let done = |done: rustix::io::Result<()>| done.map(|()| String::new());
        note(what, rustix::fs::fchmod(dir, Mode::from_raw_mode(0o711)).map(|()| String::new()));
        let stat = rustix::fs::fstat(dir).map(|stat| format!("{:o} {}", stat.st_mode, stat.st_nlink));
        note("stat", stat);
        note("sync", done(rustix::fs::fsync(dir)));
        note("open", rustix::fs::openat(dir, ".", OFlags::RDONLY, Mode::empty()).map(|_| String::new()));
        let flags = OFlags::CREATE | OFlags::WRONLY;
        note("create", rustix::fs::openat(dir, "x", flags, Mode::RUSR).map(|_| String::new()));
        note("mkdir", done(rustix::fs::mkdirat(dir, "x", Mode::RWXU)));
        note("find", rustix::fs::statat(dir, "x", AtFlags::empty()).map(|_| String::new()));
        note("up", rustix::fs::statat(dir, "..", AtFlags::empty()).map(|stat| format!("{:o}", stat.st_mode)));
    }
    let stand = "mkdir stood; cd stood; rmdir ../stood; stat -c %h .; ls -A | wc -l; touch x 2>&1 || true; chmod 700 .";
    note("stand", Ok(sh(root, stand)));
    lines
}

#[test]
fn a_directory_that_is_gone_can_be_used_as_on_a_local_filesystem_by_whom_it_is_open() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    let local = world.path("local");
    for root in [&local, &mount.path] {
        let _ = fs::create_dir(root);
        fs::create_dir(root.join("in")).unwrap();
    }
    assert_eq!(in_removed_directories(&mount.at("in")), in_removed_directories(&local.join("in")));
    // A new one of the name is another one.
    fs::create_dir(mount.at("in/removed")).unwrap();
    assert_eq!(fs::metadata(mount.at("in/removed")).unwrap().nlink(), 2);
}

/// Takes and opens file handles: `take FILE` prints one, `open MOUNT HANDLE` what the file holds.
const HANDLES: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("len", ctypes.c_uint), ("kind", ctypes.c_int), ("bytes", ctypes.c_ubyte * 128)]
handle = Handle(len=128)
if sys.argv[1] == "take":
    number = ctypes.c_int()
    if libc.name_to_handle_at(-100, sys.argv[2].encode(), ctypes.byref(handle), ctypes.byref(number), 0):
        sys.exit(os.strerror(ctypes.get_errno()))
    print(handle.kind, bytes(handle.bytes[:handle.len]).hex())
else:
    data = bytes.fromhex(sys.argv[4])
    handle = Handle(len=len(data), kind=int(sys.argv[3]))
    ctypes.memmove(handle.bytes, data, len(data))
    root = os.open(sys.argv[2], os.O_RDONLY)
    fd = libc.open_by_handle_at(root, ctypes.byref(handle), os.O_RDONLY)
    if fd < 0:
        print(os.strerror(ctypes.get_errno()))
    else:
        try:
            print(os.read(fd, 100).decode(), end="")
        except IsADirectoryError:
            print(*sorted(os.listdir(fd)))
"#;

#[test]
fn a_file_handle_opens_what_it_was_taken_of_whoever_forgot_it_meanwhile() {
    let world = World::new();
    fs::write(world.path("handles.py"), HANDLES).unwrap();
    let mount = Mount::new(&world, "work");
    let script = world.path("handles.py");
    let take = |name: &str| mount.sh(&format!("python3 {} take {name}", script.display())).trim().to_owned();
    let open = |handle: &str| mount.sh(&format!("python3 {} open . {handle}", script.display()));
    mount.sh("mkdir -p a/b; echo content > a/b/file; echo gone > a/gone");
    let [file, dir, gone] = ["a/b/file", "a/b", "a/gone"].map(take);
    assert_eq!([open(&file), open(&dir)], ["content\n", "file\n"]);
    // Nothing of it is known to the kernel any more.
    mount.umount().ok();
    mount.again(&["--allow-other"]).ok();
    assert_eq!([open(&file), open(&dir)], ["content\n", "file\n"]);
    mount.sh("rm a/gone; mv a/b/file a/b/moved");
    mount.umount().ok();
    mount.again(&["--allow-other"]).ok();
    assert_eq!([open(&file), open(&dir)], ["content\n", "moved\n"]);
    assert_eq!(open(&gone), "Stale file handle\n");
}

#[test]
fn more_room_than_there_is_cannot_be_set_aside() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    let file = File::create(mount.at("file")).unwrap();
    let room = rustix::fs::statvfs(&mount.path).unwrap();
    let beyond = (room.f_bavail + (1 << 20)) * room.f_frsize;
    for flags in [FallocateFlags::empty(), FallocateFlags::KEEP_SIZE] {
        assert_eq!(rustix::fs::fallocate(&file, flags, 0, beyond), Err(Errno::NOSPC));
    }
    assert_eq!(file.metadata().unwrap().len(), 0);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1 << 20);
}

#[test]
fn holes_take_no_blocks() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    let mut file = OpenOptions::new().create_new(true).write(true).open(mount.at("sparse")).unwrap();
    file.seek(SeekFrom::Start(10 << 20)).unwrap();
    file.write_all(&[7; 8192]).unwrap();
    file.sync_all().unwrap();
    fs::write(mount.at("full"), [7; 100_000]).unwrap();
    let blocks = |name: &str| fs::metadata(mount.at(name)).unwrap().blocks();
    mount.sh("chmod 600 sparse; sync -f .");
    assert_eq!([blocks("sparse"), blocks("full")], [16, 196]);
    mount.sh("truncate -s 0 full; truncate -s 1G full");
    assert_eq!(blocks("full"), 0);
    drop(file);
    // Out of the store, and in a snapshot.
    mount.umount().ok();
    mount.again(&["--allow-other"]).ok();
    assert_eq!([blocks("sparse"), blocks("full")], [16, 0]);
    world.run(&["-C", mount.path.to_str().unwrap(), "snapshot", "--tag", "one"]).ok();
    assert_eq!(blocks(".vellum/snapshots/one/sparse"), 16);
}

#[test]
fn a_whiteout_is_left_where_a_name_was_moved_from() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    fs::write(mount.at("from"), "text").unwrap();
    rustix::fs::renameat_with(CWD, mount.at("from"), CWD, mount.at("to"), RenameFlags::WHITEOUT).unwrap();
    assert_eq!(fs::read_to_string(mount.at("to")).unwrap(), "text");
    let left = fs::symlink_metadata(mount.at("from")).unwrap();
    assert!(left.file_type().is_char_device() && left.rdev() == 0 && left.nlink() == 1);
}

#[test]
fn overlayfs_stands_on_a_mount() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    mount.sh("mkdir lower upper inner merged; echo one > lower/one; echo two > lower/two; mkdir lower/dir");
    let options = format!("lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/inner", mount.path.display());
    let merged = mount.at("merged");
    let status =
        Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(&merged).status();
    assert!(status.unwrap().success(), "this test needs overlayfs");
    let output = sh(&merged, "mv one three; rm two; echo more >> three; mv dir moved || true; ls; cat three");
    sh(&mount.path, "umount merged");
    assert!(
        output.contains("three\n") && output.ends_with("one\nmore\n") && !output.contains("two"),
        "{output}"
    );
    assert_eq!(mount.sh("cat lower/one; stat -c %F upper/two"), "one\ncharacter special file\n");
}

#[test]
fn a_file_has_no_flags_and_gets_none() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    fs::write(mount.at("file"), "text").unwrap();
    let output = mount.sh("lsattr file; lsattr -d .; chattr +i file 2>&1 || true");
    assert!(output.starts_with("----") && output.contains("not supported"), "{output}");
    fs::write(mount.at("file"), "other").unwrap();
}

#[test]
fn reading_changes_nothing_in_a_mount_that_is_read_only() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    mount.sh("echo text > file; touch -d '2 days ago' file; mkdir dir; touch -d '2 days ago' dir");
    mount.umount().ok();
    mount.again(&["--read-only"]).ok();
    let times = || ["file", "dir"].map(|name| fs::metadata(mount.at(name)).unwrap().atime());
    let before = times();
    mount.sh("cat file; ls dir");
    assert_eq!(times(), before);
}
