//! `vellum profile`

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::mounting::{Mount, wait_until};
use crate::world::World;

const LOG: &str = "\
1.000000 [uid:0,gid:0,pid:1] lookup (1,\"a.txt\"): ok 2,0100644,3 <0.000100>
1.100000 [uid:0,gid:0,pid:1] read (2,4096,0): ok 3 <0.002000>
2.000000 [uid:5,gid:5,pid:2] read (3,4096,0): Input/output error (os error 5) <0.004000>
";

#[test]
fn a_log_that_was_kept_is_replayed() {
    let world = World::empty();
    fs::write(world.path("log"), LOG).unwrap();
    let report = world.json(&["profile", "../log"]);
    assert_eq!(report["requests"], 3);
    let read = &report["operations"][0];
    assert_eq!(
        (read["operation"].as_str(), read["count"].as_u64(), read["failed"].as_u64()),
        (Some("read"), Some(2), Some(1))
    );
    assert!((read["total"].as_f64().unwrap() - 0.006).abs() < 1e-9);
    assert_eq!(report["slowest"][0]["about"], "3");
    assert_eq!(world.json(&["profile", "../log", "--uid", "5"])["requests"], 1);
    assert_eq!(world.json(&["profile", "../log", "--pid", "1"])["requests"], 2);
    world.run(&["profile", "../log"]).ok().says("read").says("98.4 %").says("1,\"a.txt\"");
    // By the log's own time: the first two, then the last.
    let tables = world.run(&["profile", "../log", "--interval", "0.5", "--json", "--files", "0"]).ok().out;
    assert_eq!(tables.matches("\"requests\"").count(), 2, "{tables}");
}

#[test]
fn a_log_that_was_cut_off_is_told_with_its_line() {
    let world = World::empty();
    fs::write(world.path("log"), &LOG[..LOG.len() - 20]).unwrap();
    let ran = world.run(&["profile", "../log"]).code(1).remarks("line 3 of the log is damaged");
    ran.says("lookup");
    fs::write(world.path("log"), "").unwrap();
    assert_eq!(world.json(&["profile", "../log"])["requests"], 0);
    world.run(&["profile", "../missing"]).code(2).remarks("missing");
    world.run(&["profile", "."]).code(3).remarks("is not a mount");
    fs::write(world.path("other"), "root:x:0:0\nuser:x:1000:1000\n").unwrap();
    world.run(&["profile", "../other"]).code(3).remarks("no line of").remarks("access log");
}

/// A command that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One of every kind of request, but for those that the kernel has no need of (`getattr` where there is `statx`).
const ALL: &str = r#"
import os
os.mkdir("all")
os.chdir("all")
os.mkdir("d")
fd = os.open("file, (x)", os.O_RDWR | os.O_CREAT)
os.write(fd, b"x" * 8192)
os.fdatasync(fd)
os.posix_fallocate(fd, 16384, 4096)
os.lseek(fd, 0, os.SEEK_HOLE)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
os.pread(fd, 4096, 4096)
to = os.open("to", os.O_RDWR | os.O_CREAT)
os.copy_file_range(fd, to, 4096, 4096, 0)
os.close(os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600))
os.mknod("pipe", 0o010644)
os.symlink("to", "symlink")
os.readlink("symlink")
os.link("to", "link")
os.setxattr("to", "user.a", b"value")
os.getxattr("to", "user.a")
os.listxattr("to")
os.removexattr("to", "user.a")
os.chmod("to", 0o600)
os.listdir(".")
os.rename("link", "renamed")
os.unlink("renamed")
os.rmdir("d")
os.statvfs(".")
fd = os.open(".", os.O_RDONLY)
os.fsync(fd)
"#;

#[test]
fn every_request_is_logged_with_what_it_was_asked_with() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let log = world.path("log");
    let child = Command::new("cat")
        .arg(mount.at(".vellum/accesslog"))
        .stdout(fs::File::create(&log).unwrap())
        .spawn()
        .map(Running);
    let number = Cell::new(0);
    wait_until("the log is read", || {
        fs::write(mount.at(&format!("file-{}", number.get())), "x").unwrap();
        number.set(number.get() + 1);
        log.metadata().unwrap().len() > 0
    });
    mount.sh(&format!("python3 -c '{ALL}'"));
    mount.umount().ok();
    assert!(child.unwrap().0.wait().unwrap().success());
    let text = fs::read_to_string(&log).unwrap();
    for shown in [
        "lookup (",
        "mkdir (",
        "mknod (",
        "symlink (",
        "readlink (",
        "link (",
        "rename (",
        "unlink (",
        "rmdir (",
        "tmpfile (",
        "readdir (",
        "setattr (",
        "setxattr (",
        "getxattr (",
        "listxattr (",
        "removexattr (",
        "statfs (",
        "fsyncdir (",
        ",8192,0,0x",
        "fsync (",
        "fallocate (",
        "lseek (",
        "read (",
        "copy_file_range (",
        r#","file, (x)""#,
        r#","user.a",5,"#,
    ] {
        assert!(text.contains(shown), "{shown}\n{text}");
    }
    let report = world.json(&["profile", "../log"]);
    assert_eq!((report["damaged_lines"].as_u64(), report["dropped"].as_u64()), (Some(0), Some(0)), "{text}");
}

#[test]
fn a_mount_is_followed_until_it_ends() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let mut child = Command::new(env!("CARGO_BIN_EXE_vellum"))
        .args(["profile", "--interval", "0.1", "--json"])
        .arg(&mount.path)
        .stdout(Stdio::piped())
        .spawn()
        .map(Running)
        .unwrap();
    let out = child.0.stdout.take().unwrap();
    let seen = Arc::new(AtomicBool::new(false));
    let reader = {
        let seen = seen.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                assert!(!line.contains("damaged_lines\": 1"), "{line}");
                seen.fetch_or(line.contains("\"write\""), Ordering::Relaxed);
            }
        })
    };
    // It takes a moment until the log is read.
    let number = Cell::new(0);
    wait_until("a write is told", || {
        fs::write(mount.at(&format!("file-{}", number.get())), "x").unwrap();
        number.set(number.get() + 1);
        seen.load(Ordering::Relaxed)
    });
    mount.umount().ok();
    assert!(child.0.wait().unwrap().success());
    reader.join().unwrap();
}

/// The names of slowest files, from the tables of a profile that is followed while `work` is done again and again, until
/// all of `wanted` are among them.
fn wait_for_profiled_paths(mount: &Mount, work: &str, wanted: &[String]) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_vellum"))
        .args(["profile", "--interval", "0.1", "--files", "50", "--json"])
        .arg(&mount.path)
        .stdout(Stdio::piped())
        .spawn()
        .map(Running)
        .unwrap();
    let out = child.0.stdout.take().unwrap();
    let seen = Arc::new(Mutex::new(BTreeSet::<String>::new()));
    let reader = {
        let seen = seen.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Some(path) = line.trim().strip_prefix("\"path\": ") {
                    seen.lock().unwrap().insert(serde_json::from_str(path.trim_end_matches(',')).unwrap());
                }
            }
        })
    };
    wait_until("the paths are told", || {
        mount.sh(work);
        wanted.iter().all(|path| seen.lock().unwrap().contains(path))
    });
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    reader.join().unwrap();
}

#[test]
fn files_of_the_mount_and_of_its_snapshots_are_told_by_their_paths() {
    let world = World::with_snapshot();
    let odd = "a \u{e9}\n\"b\"";
    world.write(odd, "x");
    world.write("second/dir/file", "x");
    let second =
        world.json(&["snapshot", "-m", "second", "--json"])["snapshot"]["id"].as_str().unwrap().to_owned();
    world.run(&["tag", "add", "v1", "HEAD~1"]).ok();
    let mount = Mount::new(&world, "work");
    // Names that are not there, and attributes, are remembered by the kernel; extended attributes are not.
    let work = format!(
        "echo x > dir/new; rm dir/new; getfattr -d dir/b.txt a*
         getfattr -d .vellum/snapshots/v1/dir/deep/c.bin .vellum/snapshots/{second}/second/dir/file"
    );
    let wanted = [
        "dir/new".to_owned(),
        "dir/b.txt".to_owned(),
        odd.to_owned(),
        ".vellum/snapshots/v1/dir/deep/c.bin".to_owned(),
        format!(".vellum/snapshots/{second}/second/dir/file"),
    ];
    wait_for_profiled_paths(&mount, &work, &wanted);
    // Who may not search a directory learns no name in it that way.
    assert_eq!(mount.at(".vellum/paths").metadata().unwrap().mode() & 0o777, 0o500);
    let number = mount.at("dir/b.txt").metadata().unwrap().ino();
    assert_eq!(fs::read(mount.at(&format!(".vellum/paths/{number}"))).unwrap(), b"dir/b.txt");
    assert_eq!(fs::read(mount.at(".vellum/paths/1")).unwrap(), b"");
    for unknown in ["0", "x", "99999999", "-1", ""] {
        let path = mount.at(".vellum/paths").join(unknown);
        assert!(fs::read(path).is_err(), "{unknown}");
    }
}

#[test]
fn files_of_a_mounted_snapshot_are_told_by_their_paths() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "old");
    mount.again(&["--snapshot", "first"]).ok();
    let work = "getfattr -d . dir/deep/c.bin";
    wait_for_profiled_paths(&mount, work, &["dir/deep/c.bin".to_owned(), String::new()]);
}
