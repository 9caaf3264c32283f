//! How much is written: what a filesystem has less room for afterwards, not what we say of it.

use std::fs;
use std::path::{Path, PathBuf};

use vellum_sync::model::options::{BackupLocation, DeltaMode, SyncOptions};

use crate::disk::Disk;
use crate::run::{everything, sync};

/// A file of which 1 MiB changes in the middle.
const LEN: usize = 24 << 20;
const CHANGED: usize = 1 << 20;
/// What may be written for that: blocks that differ in part, and what the filesystem notes.
const WRITTEN_MAX: u64 = 3 << 19;

/// Two versions of the file, one in a directory beside the disk, one on it.
struct Versions {
    disk: Disk,
    beside: tempfile::TempDir,
    new: Vec<u8>,
}

impl Versions {
    fn on(kind: &str) -> Self {
        let disk = Disk::new(kind, 512);
        let beside = tempfile::tempdir().unwrap();
        // Blocks that are not like each other, and no zeros.
        let old = (0..LEN).map(|at| (at / 4096 * 31 + at % 251) as u8 | 1).collect::<Vec<_>>();
        let mut new = old.clone();
        new[LEN / 2..LEN / 2 + CHANGED].iter_mut().for_each(|byte| *byte ^= 0xf0);
        let versions = Self { disk, beside, new };
        fs::create_dir(versions.to()).unwrap();
        fs::write(versions.to().join("f"), &old).unwrap();
        // Written within one tick of the clock, both would have one time.
        let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        fs::File::options()
            .write(true)
            .open(versions.to().join("f"))
            .unwrap()
            .set_modified(long_ago)
            .unwrap();
        fs::write(versions.from().join("f"), &versions.new).unwrap();
        versions
    }

    fn from(&self) -> &Path {
        self.beside.path()
    }

    fn to(&self) -> PathBuf {
        self.disk.path().join("to")
    }

    /// Bytes that are in use on the disk.
    fn used(&self) -> u64 {
        let dir = fs::File::open(self.disk.path()).unwrap();
        rustix::fs::syncfs(&dir).unwrap();
        let stat = rustix::fs::fstatvfs(&dir).unwrap();
        (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    }

    /// Synchronises; how much more is in use, with the old version kept.
    fn growth(&self, mut options: SyncOptions) -> u64 {
        options.writing.backup = Some(BackupLocation { dir: None, suffix: b"~".to_vec() });
        let before = self.used();
        let report = sync(self.from(), &self.to(), &options);
        assert_eq!(report.problems, []);
        let new = if self.from().join("a").exists() { 1 << 20 } else { 0 };
        let is_little = report.written <= WRITTEN_MAX + new;
        assert!(is_little || options.writing.delta != DeltaMode::Always, "{report:?}");
        assert!(fs::read(self.to().join("f")).unwrap() == self.new);
        assert!(fs::read(self.to().join("f~")).unwrap() != self.new);
        self.used().saturating_sub(before)
    }
}

fn always() -> SyncOptions {
    let mut options = everything();
    options.writing.delta = DeltaMode::Always;
    options
}

#[test]
fn of_a_changed_file_xfs_is_given_what_differs() {
    let grown = Versions::on("xfs").growth(always());
    assert!(grown <= WRITTEN_MAX, "{grown}");
}

#[test]
fn of_a_changed_file_btrfs_is_given_what_differs() {
    let grown = Versions::on("btrfs").growth(always());
    assert!(grown <= WRITTEN_MAX, "{grown}");
}

/// Something is put into the middle of the file, or taken out of it; what is behind it is shared where it is now.
fn of_a_moved_file_little_is_written(kind: &str) {
    let versions = Versions::on(kind);
    let old = fs::read(versions.to().join("f")).unwrap();
    let middle = LEN / 2 + 1000;
    let inserted = [&old[..middle], &[0xee; 4096], &old[middle..]].concat();
    let removed = [&inserted[..4321], &inserted[4321 + 3 * 4096..]].concat();
    // What moved by less than a block is written.
    let odd = [&removed[..LEN / 2], b"odd", &removed[LEN / 2..]].concat();
    for (content, is_little) in [(inserted, true), (removed, true), (odd, false)] {
        fs::write(versions.from().join("f"), &content).unwrap();
        let mut options = always();
        options.writing.backup = Some(BackupLocation { dir: None, suffix: b"~".to_vec() });
        let before = versions.used();
        let report = sync(versions.from(), &versions.to(), &options);
        assert_eq!(report.problems, []);
        assert_eq!(versions.used().saturating_sub(before) <= WRITTEN_MAX, is_little, "on the disk");
        // What was kept the last time is replaced, and its blocks would count as room.
        fs::remove_file(versions.to().join("f~")).unwrap();
        assert!(fs::read(versions.to().join("f")).unwrap() == content);
        assert_eq!(report.written <= WRITTEN_MAX, is_little, "{report:?}");
        assert_eq!(report.written + report.spared, content.len() as u64);
    }
}

#[test]
fn of_what_moved_within_a_file_xfs_shares_the_blocks() {
    of_a_moved_file_little_is_written("xfs");
}

#[test]
fn of_what_moved_within_a_file_btrfs_shares_the_blocks() {
    of_a_moved_file_little_is_written("btrfs");
}

/// That the source's blocks cannot be shared says nothing about those of the old version.
#[test]
fn a_file_from_elsewhere_does_not_keep_the_next_from_sharing() {
    let versions = Versions::on("btrfs");
    fs::write(versions.from().join("a"), vec![5; 1 << 20]).unwrap();
    let mut options = always();
    options.effort.jobs = Some(1);
    assert!(versions.growth(options) <= WRITTEN_MAX + (1 << 20));
}

#[test]
fn without_shared_blocks_a_changed_file_is_written_whole_unless_in_place() {
    let versions = Versions::on("ext4");
    let mut options = everything();
    options.writing.delta = DeltaMode::Auto;
    assert!(versions.growth(options) >= LEN as u64);
    // Back again, over what is there.
    let mut options = always();
    options.writing.in_place = true;
    fs::write(versions.from().join("f"), fs::read(versions.to().join("f~")).unwrap()).unwrap();
    fs::remove_file(versions.to().join("f~")).unwrap();
    let report = sync(versions.from(), &versions.to(), &options);
    assert!((CHANGED as u64..=WRITTEN_MAX).contains(&report.written), "{report:?}");
    assert!(fs::read(versions.to().join("f")).unwrap() == fs::read(versions.from().join("f")).unwrap());
}

#[test]
fn a_large_file_that_takes_anothers_name_on_ext4_is_whole() {
    // It is written back while it is copied; beside a size that ends with a step, one that does not.
    let disk = Disk::new("ext4", 256);
    let from = disk.path().join("from");
    let to = disk.path().join("to");
    fs::create_dir_all(&from).unwrap();
    fs::create_dir_all(&to).unwrap();
    for (name, len) in [("even", 24 << 20), ("odd", (17 << 20) + 4321)] {
        fs::write(from.join(name), (0..len).map(|at: usize| (at % 253) as u8).collect::<Vec<_>>()).unwrap();
        fs::write(to.join(name), vec![1; 10 << 20]).unwrap();
    }
    assert_eq!(sync(&from, &to, &everything()).problems, []);
    for name in ["even", "odd"] {
        assert!(fs::read(from.join(name)).unwrap() == fs::read(to.join(name)).unwrap(), "{name}");
    }
}
