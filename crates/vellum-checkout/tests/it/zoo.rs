//! A tree with everything in it that a filesystem can hold.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};

/// Depth of the deepest directory, with names that make its path longer than the kernel's `PATH_MAX`.
const DEPTH: usize = 1000;

/// Fills an empty directory. Needs root and a filesystem with ACLs, extended attributes and holes.
pub fn fill(root: &Path) {
    names(root);
    modes_and_owners(root);
    links(root);
    sparse(root);
    attributes(root);
    specials(root);
    deep(root);
    large(root);
    times(root);
}

fn names(root: &Path) {
    let dir = root.join("names");
    std::fs::create_dir(&dir).unwrap();
    let longest = [b'n'; 255];
    let names: [&[u8]; 8] =
        [b"new\nline", b"\xff\xfe not UTF-8", b"\x1b[31mred", b" ", b"-rf", b"*", b"\xe2\x80\xae", &longest];
    for name in names {
        std::fs::write(dir.join(std::ffi::OsStr::from_bytes(name)), name).unwrap();
    }
    std::fs::create_dir(dir.join(std::ffi::OsStr::from_bytes(&[b'D'; 255]))).unwrap();
    std::fs::create_dir(dir.join("empty dir")).unwrap();
    std::fs::write(dir.join("empty"), "").unwrap();
    // The state of a volume is left out at the root only.
    std::fs::write(dir.join(".vellum"), "a file of that name").unwrap();
}

fn modes_and_owners(root: &Path) {
    let dir = root.join("modes");
    std::fs::create_dir(&dir).unwrap();
    for mode in [0o0000, 0o0200, 0o0444, 0o0640, 0o0777, 0o1644, 0o2755, 0o4755, 0o6711, 0o7777] {
        for kind in ["file", "dir"] {
            let path = dir.join(format!("{kind}-{mode:04o}"));
            match kind {
                "file" => std::fs::write(&path, format!("{mode}")).unwrap(),
                _ => std::fs::create_dir(&path).unwrap(),
            }
            own(&path, 1000 + mode, 2000 + mode);
            fs::chmod(&path, Mode::from_raw_mode(mode)).unwrap();
        }
    }
    std::fs::write(dir.join("highest owner"), "").unwrap();
    own(&dir.join("highest owner"), u32::MAX - 1, u32::MAX - 1);
}

fn own(path: &Path, uid: u32, gid: u32) {
    let uid = Uid::from_raw(uid);
    let gid = Gid::from_raw(gid);
    fs::chownat(fs::CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn links(root: &Path) {
    let dir = root.join("links");
    std::fs::create_dir_all(dir.join("other/place")).unwrap();
    symlink("../names", dir.join("to a directory")).unwrap();
    symlink("nowhere/at all", dir.join("dangling")).unwrap();
    symlink("/etc/passwd", dir.join("absolute")).unwrap();
    symlink("loop", dir.join("loop")).unwrap();
    // XFS holds no longer ones.
    symlink("x".repeat(1023), dir.join("longest")).unwrap();
    own(&dir.join("dangling"), 77, 88);
    std::fs::write(dir.join("one"), vec![7; 100_000]).unwrap();
    std::fs::hard_link(dir.join("one"), dir.join("other/two")).unwrap();
    std::fs::hard_link(dir.join("one"), dir.join("other/place/three")).unwrap();
    std::fs::hard_link(dir.join("one"), root.join("names/four")).unwrap();
    std::fs::hard_link(dir.join("dangling"), dir.join("other/dangling")).unwrap();
    std::fs::write(dir.join("small"), "small").unwrap();
    std::fs::hard_link(dir.join("small"), dir.join("tiny")).unwrap();
}

fn sparse(root: &Path) {
    let dir = root.join("sparse");
    std::fs::create_dir(&dir).unwrap();
    let make = |name: &str, size: u64, data: &[(u64, usize)]| {
        let file = File::create(dir.join(name)).unwrap();
        file.set_len(size).unwrap();
        for (offset, len) in data {
            file.write_all_at(&vec![1 + (offset % 7) as u8; *len], *offset).unwrap();
        }
    };
    make("all hole", 5 << 30, &[]);
    make("small hole", 3000, &[]);
    make("hole first", 200_000, &[(131_072, 68_928)]);
    make("hole last", 3 << 20, &[(0, 65_536)]);
    make("hole in the middle", 300_000, &[(0, 4096), (262_144, 37_856)]);
    make("data at the end of much", 1 << 40, &[(1 << 39, 10), ((1 << 40) - 5, 5)]);
    let many: Vec<_> = (0..60).map(|n| (n * 16_384, 4096)).collect();
    make("many", 1_000_003, &many);
    File::create(dir.join("zeros")).unwrap().write_all_at(&vec![0; 50_000], 0).unwrap();
}

fn attributes(root: &Path) {
    let dir = root.join("attributes");
    std::fs::create_dir(&dir).unwrap();
    for name in ["file", "acl file", "capable"] {
        std::fs::write(dir.join(name), name).unwrap();
    }
    for name in ["dir", "acl dir"] {
        std::fs::create_dir(dir.join(name)).unwrap();
    }
    symlink("file", dir.join("link")).unwrap();
    let set = |name: &str, key: &str, value: &[u8]| {
        fs::lsetxattr(dir.join(name), key, value, XattrFlags::empty()).unwrap();
    };
    set("file", "user.empty", b"");
    set("file", "user.not text", b"\0\xff\n");
    set("file", "user.large", &[3; 1500]);
    set("dir", "user.of a directory", b"x");
    set("link", "trusted.of a link", b"y");
    set("capable", "security.capability", b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    let acl = |args: &[&str], name: &str| {
        let done = Command::new("setfacl").args(args).arg(dir.join(name)).status().unwrap();
        assert!(done.success());
    };
    acl(&["-m", "u:1234:rw,g:4321:r,m::rw"], "acl file");
    acl(&["-m", "u:1234:rwx,d:u:1234:rwx,d:g:99:r,d:m::rwx"], "acl dir");
    std::fs::write(dir.join("acl dir/heir"), "").unwrap();
    std::fs::create_dir(dir.join("acl dir/heiress")).unwrap();
    std::fs::write(dir.join("acl dir/disinherited"), "").unwrap();
    acl(&["-b"], "acl dir/disinherited");
}

fn specials(root: &Path) {
    let dir = root.join("specials");
    std::fs::create_dir(&dir).unwrap();
    let make = |name: &str, kind, mode, device| {
        fs::mknodat(fs::CWD, dir.join(name), kind, Mode::from_raw_mode(mode), device).unwrap();
    };
    make("fifo", FileType::Fifo, 0o640, 0);
    make("null", FileType::CharacterDevice, 0o666, fs::makedev(1, 3));
    make("far device", FileType::CharacterDevice, 0o600, fs::makedev(300, 70_000));
    make("disk", FileType::BlockDevice, 0o660, fs::makedev(7, 250));
    // A socket's name must be short to be bound.
    let short = tempfile::tempdir_in("/tmp").unwrap();
    drop(UnixListener::bind(short.path().join("s")).unwrap());
    if std::fs::rename(short.path().join("s"), dir.join("socket")).is_err() {
        make("socket", FileType::Socket, 0o755, 0);
    }
}

fn deep(root: &Path) {
    let open = |dir: &OwnedFd| {
        fs::mkdirat(dir, "some depth", Mode::from_raw_mode(0o755)).unwrap();
        fs::openat(dir, "some depth", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap()
    };
    std::fs::create_dir(root.join("deep")).unwrap();
    let mut here = fs::open(root.join("deep"), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..DEPTH {
        here = open(&here);
    }
    let flags = OFlags::WRONLY | OFlags::CREATE;
    let bottom = File::from(fs::openat(&here, "bottom", flags, Mode::from_raw_mode(0o600)).unwrap());
    bottom.write_all_at(b"down here", 0).unwrap();
}

/// Files of several chunks: compressible, incompressible, longer than what is read at once.
fn large(root: &Path) {
    let mut state = 1;
    let noise: Vec<u8> = std::iter::repeat_with(|| crate::chance::step(&mut state).to_le_bytes())
        .flatten()
        .take(9 << 20)
        .collect();
    std::fs::write(root.join("noise"), &noise).unwrap();
    std::fs::write(root.join("text"), "all work and no play\n".repeat(40_000)).unwrap();
    std::fs::write(root.join("limit"), &noise[..4096]).unwrap();
    std::fs::write(root.join("over the limit"), &noise[..4097]).unwrap();
}

/// Times of all kinds, the directories' last.
fn times(root: &Path) {
    let set = |path: &Path, secs, nanos| set_time(path, secs, nanos);
    set(&root.join("names/empty"), -1, 999_999_999);
    set(&root.join("text"), -1_500_000_000, 123_456_789);
    set(&root.join("links/dangling"), 1, 1);
    set(&root.join("specials/fifo"), 0, 0);
    set(&root.join("specials/null"), 4_294_967_296, 7);
    set(&root.join("noise"), 5_000_000_000, 987_654_321);
    for (number, dir) in
        ["names", "modes", "links", "sparse", "attributes", "specials", "deep"].iter().enumerate()
    {
        set(&root.join(dir), 4_300_000_000 + number as i64, 500_000_001);
    }
    fs::chmod(root, Mode::from_raw_mode(0o751)).unwrap();
    set(root, 1_234_567_890, 42);
}

/// Sets the access and modification time of a path itself.
pub fn set_time(path: &Path, secs: i64, nanos: i64) {
    let time = Timespec { tv_sec: secs, tv_nsec: nanos };
    let times = Timestamps { last_access: time, last_modification: time };
    fs::utimensat(fs::CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}
