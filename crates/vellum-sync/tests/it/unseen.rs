//! New directories that are filled before anybody sees them.

use std::ffi::CStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use vellum_sync::model::options::SyncOptions;

use crate::disk::Disk;
use crate::run::{everything, plan, sync};
use crate::trees::{difference, facts};

/// Files of each directory: enough for it to be filled unseen.
const FILES: usize = 20;
const TEMP: &str = ".vellum-tmp-0123456789abcdef";

struct Pair(tempfile::TempDir);

impl Pair {
    /// A source with a directory of small files.
    fn new() -> Self {
        let pair = Self(tempfile::tempdir().unwrap());
        fs::create_dir(pair.to("")).unwrap();
        pair.fill("d");
        pair
    }

    fn fill(&self, dir: &str) {
        fs::create_dir_all(self.from(dir)).unwrap();
        for n in 0..FILES {
            fs::write(self.from(&format!("{dir}/f{n:02}")), n.to_string()).unwrap();
        }
    }

    fn from(&self, name: &str) -> PathBuf {
        self.0.path().join("from").join(name)
    }

    fn to(&self, name: &str) -> PathBuf {
        self.0.path().join("to").join(name)
    }

    fn equal(&self) {
        if let Some(text) = difference(&facts(&self.from("")), &facts(&self.to(""))) {
            panic!("{text}");
        }
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn without_attributes() -> SyncOptions {
    let mut options = everything();
    (options.preserve.xattrs, options.preserve.acls) = (false, false);
    options
}

/// Waits until what was written before can be told from what is written from now on.
fn settle(file: &Path) {
    let ctime = fs::metadata(file).unwrap();
    let changed = std::time::UNIX_EPOCH
        + std::time::Duration::new(ctime.ctime().unsigned_abs(), ctime.ctime_nsec().try_into().unwrap());
    while changed.elapsed().is_ok_and(|since| since.as_millis() < 200) {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn files_of_all_ages_and_kinds_arrive_in_new_directories() {
    let pair = Pair::new();
    settle(&pair.from("d/f00"));
    // These were changed too lately to be looked at but once; those are large, links, or have several names.
    pair.fill("young");
    pair.fill("mixed");
    fs::write(pair.from("mixed/large"), vec![7; 3 << 20]).unwrap();
    fs::write(pair.from("mixed/empty"), "").unwrap();
    symlink("nowhere", pair.from("mixed/link")).unwrap();
    fs::hard_link(pair.from("mixed/f00"), pair.from("mixed/again")).unwrap();
    fs::set_permissions(pair.from("mixed/f01"), fs::Permissions::from_mode(0o4751)).unwrap();
    std::os::unix::fs::chown(pair.from("mixed/f02"), Some(1234), Some(2345)).unwrap();
    pair.fill("mixed/below/deep");
    assert_eq!(sync(&pair.from(""), &pair.to(""), &everything()).problems, []);
    pair.equal();
    assert!(plan(&pair.from(""), &pair.to(""), &everything()).plan.is_empty());
}

#[test]
fn what_vanishes_or_becomes_something_else_is_left_out_of_its_directory_alone() {
    let pair = Pair::new();
    settle(&pair.from("d/f00"));
    let planned = plan(&pair.from(""), &pair.to(""), &without_attributes());
    for (name, kind, device) in [
        ("f03", FileType::Fifo, 0),
        ("f04", FileType::CharacterDevice, makedev(1, 5)),
        ("f05", FileType::Unknown, 0),
    ] {
        fs::remove_file(pair.from("d").join(name)).unwrap();
        if kind != FileType::Unknown {
            mknodat(CWD, pair.from("d").join(name), kind, Mode::from(0o600), device).unwrap();
        }
    }
    fs::remove_file(pair.from("d/f06")).unwrap();
    symlink("f07", pair.from("d/f06")).unwrap();
    fs::write(pair.from("d/f08"), "of another length").unwrap();
    let report = planned.carry_out().unwrap();
    let reported: Vec<_> =
        report.problems.iter().map(|problem| (&problem.path[..], problem.vanished)).collect();
    let expected: [(&[u8], bool); 4] =
        [(b"d/f03", false), (b"d/f04", false), (b"d/f05", true), (b"d/f06", false)];
    assert_eq!(reported, expected);
    assert_eq!(names(&pair.to("")), ["d"]);
    assert_eq!(names(&pair.to("d")).len(), FILES - 4);
    assert_eq!(fs::read(pair.to("d/f08")).unwrap(), b"of another length");
}

#[test]
fn on_a_full_disk_the_directory_has_what_fitted_and_nothing_torn() {
    let pair = Pair::new();
    let disk = Disk::in_memory(1);
    for n in 0..100 {
        fs::write(pair.from(&format!("d/g{n:03}")), vec![2; 50_000]).unwrap();
    }
    let report = sync(&pair.from(""), &disk.path(), &without_attributes());
    assert!((1..10).contains(&report.problems.len()), "{report:?}");
    assert_eq!(names(&disk.path()), ["d"]);
    for name in names(&disk.path().join("d")) {
        let len = fs::metadata(disk.path().join("d").join(&name)).unwrap().len();
        assert_eq!(len, fs::metadata(pair.from("d").join(&name)).unwrap().len(), "{name}");
    }
    disk.remount("size=64m");
    assert_eq!(sync(&pair.from(""), &disk.path(), &without_attributes()).problems, []);
    assert_eq!(names(&disk.path().join("d")).len(), FILES + 100);
}

#[test]
fn what_a_directory_hands_on_to_new_ones_reaches_all_that_is_in_them() {
    const ACCESS: &CStr = c"system.posix_acl_access";
    const DEFAULT: &CStr = c"system.posix_acl_default";
    let pair = Pair::new();
    let to = pair.to("");
    let set = std::process::Command::new("setfacl").args(["-d", "-m", "u:1000:rwx"]).arg(&to).status();
    assert!(set.unwrap().success());
    std::os::unix::fs::chown(&to, None, Some(4321)).unwrap();
    fs::set_permissions(&to, fs::Permissions::from_mode(0o2775)).unwrap();
    let mut options = without_attributes();
    (options.preserve.modes, options.preserve.owners, options.preserve.groups) = (false, false, false);
    assert_eq!(sync(&pair.from(""), &to, &options).problems, []);
    // As whoever makes them by hand gets them.
    fs::create_dir(to.join("by hand")).unwrap();
    fs::write(to.join("by hand/f"), "x").unwrap();
    let look = |path: &str, name: &CStr| {
        let mut value = [0; 256];
        let len = rustix::fs::lgetxattr(to.join(path), name, &mut value).unwrap();
        value[..len].to_vec()
    };
    assert_eq!(look("d", DEFAULT), look("by hand", DEFAULT));
    for n in 0..FILES {
        let path = format!("d/f{n:02}");
        let users = |acl: &[u8]| acl.len();
        assert_eq!(users(&look(&path, ACCESS)), users(&look("by hand/f", ACCESS)));
        assert_eq!(fs::metadata(to.join(&path)).unwrap().gid(), 4321);
    }
    assert_eq!(fs::metadata(to.join("d")).unwrap().gid(), 4321);
}

#[test]
fn the_directory_that_another_run_fills_stays_and_that_of_a_killed_one_goes() {
    let pair = Pair::new();
    sync(&pair.from(""), &pair.to(""), &everything());
    fs::create_dir(pair.to(TEMP)).unwrap();
    fs::write(pair.to(TEMP).join("f"), "half").unwrap();
    symlink(pair.from("d"), pair.to(TEMP).join("link")).unwrap();
    let used = fs::File::open(pair.to(TEMP)).unwrap();
    used.lock().unwrap();
    sync(&pair.from(""), &pair.to(""), &everything());
    assert_eq!(fs::read(pair.to(TEMP).join("f")).unwrap(), b"half");
    drop(used);
    sync(&pair.from(""), &pair.to(""), &everything());
    pair.equal();
    assert_eq!(names(&pair.from("d")).len(), FILES);
}

#[test]
fn a_symlink_that_looks_like_what_a_killed_run_left_is_not_followed() {
    let pair = Pair::new();
    let victim = pair.0.path().join("victim");
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("f"), "precious").unwrap();
    symlink(&victim, pair.to(TEMP)).unwrap();
    sync(&pair.from(""), &pair.to(""), &everything());
    assert_eq!(fs::read(victim.join("f")).unwrap(), b"precious");
}

#[test]
fn a_name_that_is_taken_meanwhile_keeps_what_it_has_and_gets_the_rest() {
    let pair = Pair::new();
    pair.fill("e");
    let planned = plan(&pair.from(""), &pair.to(""), &without_attributes());
    fs::create_dir(pair.to("d")).unwrap();
    fs::write(pair.to("d/f00"), "theirs").unwrap();
    symlink(pair.0.path(), pair.to("e")).unwrap();
    let report = planned.carry_out().unwrap();
    let reported: Vec<_> = report.problems.iter().map(|problem| problem.path.clone()).collect();
    for path in [&b"d"[..], b"d/f00", b"e"] {
        assert!(reported.contains(&path.to_vec()), "{report:?}");
    }
    assert_eq!(fs::read(pair.to("d/f00")).unwrap(), b"theirs");
    assert_eq!(names(&pair.to("d")).len(), FILES);
    // Nothing went where the symlink leads, and nothing is left.
    assert_eq!(names(pair.0.path()), ["from", "to"]);
    assert_eq!(names(&pair.to("")), ["d", "e"]);
}
