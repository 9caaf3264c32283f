//! `vellum sync` from a disk with bad blocks: reading some files fails half-way.

use std::fs;
use std::path::{Path, PathBuf};

use crate::disk::Disk;
use crate::other_host::Host;
use crate::world::{Ran, World, noise};

/// What a bad block begins with.
const BAD: &[u8] = b"the block that begins with this is bad";

/// So much of a file is readable, and so much follows behind the bad block.
const HALF: usize = 1 << 20;

/// A disk with a source of four files: two are whole, one has a bad block in its middle, one at its beginning. A
/// destination has an old version of all that is bad, and a file more.
struct Damaged {
    disk: Disk,
}

impl Damaged {
    fn new(to: &Path) -> Self {
        let disk = Disk::checked();
        let from = disk.path().join("src");
        fs::create_dir_all(from.join("dir")).unwrap();
        let bad = |before: usize, behind: usize| [&noise(before)[..], BAD, &noise(behind)[..]].concat();
        fs::write(from.join("big"), bad(HALF, HALF)).unwrap();
        fs::write(from.join("dir/small"), bad(0, 20_000)).unwrap();
        fs::write(from.join("dir/whole"), noise(3 * HALF)).unwrap();
        fs::write(from.join("other"), "other").unwrap();
        disk.spoil(BAD);
        assert_eq!(fs::read(from.join("big")).unwrap_err().raw_os_error(), Some(5), "EIO");
        fs::create_dir_all(to.join("dir")).unwrap();
        for (name, content) in [("big", "old"), ("dir/small", "old"), ("extra", "extra")] {
            fs::write(to.join(name), content).unwrap();
        }
        Self { disk }
    }

    fn from(&self) -> PathBuf {
        self.disk.path().join("src")
    }

    /// Takes the bad files away.
    fn mend(&self) {
        for name in ["big", "dir/small"] {
            fs::remove_file(self.from().join(name)).unwrap();
            fs::write(self.from().join(name), "new").unwrap();
        }
    }
}

/// A run told of the bad files and of nothing else, and deleted nothing.
fn assert_told(ran: Ran) {
    let ran = ran.code(1).remarks("big").remarks("dir/small").remarks("nothing was deleted");
    assert_eq!(ran.err.matches("Input/output error").count(), 2, "{}", ran.err);
    assert!(!ran.err.contains("whole") && !ran.err.contains("other"), "{}", ran.err);
}

/// All that could be read is there, what could not be is as it was, and nothing else is there.
fn assert_the_rest_is_there(from: &Path, to: &Path) {
    for name in ["dir/whole", "other"] {
        assert!(fs::read(from.join(name)).unwrap() == fs::read(to.join(name)).unwrap(), "{name}");
    }
    for (name, content) in [("big", "old"), ("dir/small", "old"), ("extra", "extra")] {
        assert_eq!(fs::read_to_string(to.join(name)).unwrap(), content, "{name}");
    }
    for (dir, count) in [(to.to_path_buf(), 4), (to.join("dir"), 2)] {
        let names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), count, "{names:?}");
    }
}

fn assert_mended(to: &Path) {
    for name in ["big", "dir/small"] {
        assert_eq!(fs::read_to_string(to.join(name)).unwrap(), "new", "{name}");
    }
    assert!(!to.join("extra").exists());
}

#[test]
fn what_cannot_be_read_keeps_its_old_version_and_all_else_goes() {
    let world = World::empty();
    let to = world.tree().join("dst");
    let damaged = Damaged::new(&to);
    let from = format!("{}/", damaged.from().display());
    let sync = |more: &[&str]| world.run(&[&["sync", "-a", "--delete"], more, &[&from, "dst"]].concat());
    for more in
        [&[][..], &["-c"], &["--resume"], &["--partial-dir=.partial"], &["-S"], &["-W"], &["--verify"]]
    {
        assert_told(sync(more));
        assert_the_rest_is_there(&damaged.from(), &to);
    }
    damaged.mend();
    sync(&[]).ok();
    assert_mended(&to);
}

#[test]
fn what_the_other_host_cannot_read_keeps_its_old_version_and_all_else_comes() {
    let host = Host::new();
    let to = host.world.tree().join("dst");
    let damaged = Damaged::new(&to);
    let from = format!("here:{}/", damaged.from().display());
    for more in [&["-a", "--delete"][..], &["-ac", "--delete"], &["-a", "--delete", "--partial-dir=.partial"]]
    {
        assert_told(host.sync(&[more, &[&from, "dst"]].concat()));
        assert_the_rest_is_there(&damaged.from(), &to);
    }
    damaged.mend();
    host.sync(&["-a", "--delete", &from, "dst"]).ok();
    assert_mended(&to);
}

#[test]
fn what_cannot_be_read_here_keeps_its_old_version_on_the_other_host() {
    let host = Host::new();
    let to = host.world.tree().join("dst");
    let damaged = Damaged::new(&to);
    let from = format!("{}/", damaged.from().display());
    let far = host.at("dst");
    for more in [&["-a", "--delete"][..], &["-ac", "--delete"], &["-a", "--delete", "--partial-dir=.partial"]]
    {
        assert_told(host.sync(&[more, &[&from, &far]].concat()));
        assert_the_rest_is_there(&damaged.from(), &to);
    }
    damaged.mend();
    host.sync(&["-a", "--delete", &from, &far]).ok();
    assert_mended(&to);
}

/// A version that nobody can read goes nowhere, and nothing goes over it unless a rule says so.
#[test]
fn both_ways_what_cannot_be_read_stays_on_both_sides() {
    let world = World::empty();
    let to = world.tree().join("dst");
    let damaged = Damaged::new(&to);
    let from = damaged.from().display().to_string();
    let both = || world.run_at_home(&["sync", "--two-way", "--conflict", "source", &from, "dst"]);
    let ran = both().code(1).remarks("Input/output error");
    assert!(ran.err.contains("big") && ran.err.contains("dir/small"), "{}", ran.err);
    for (name, content) in [("big", "old"), ("dir/small", "old"), ("extra", "extra"), ("other", "other")] {
        assert_eq!(fs::read_to_string(to.join(name)).unwrap(), content, "{name}");
    }
    assert!(damaged.from().join("extra").exists());
    damaged.mend();
    both().ok();
    for name in ["big", "dir/small"] {
        assert_eq!(fs::read_to_string(to.join(name)).unwrap(), "new", "{name}");
    }
}
