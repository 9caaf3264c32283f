//! What other tools got wrong, one test each.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use vellum_sync::SyncError;
use vellum_sync::model::options::{BackupLocation, DeleteOptions, DeletePhase, DeltaMode, SyncOptions};
use vellum_sync::plan::{StepAction, SyncPlan};

use crate::disk::Disk;
use crate::run::{everything, plan, sync};
use crate::trees::{difference, facts};

struct Pair {
    dir: tempfile::TempDir,
}

impl Pair {
    fn new() -> Self {
        let pair = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(pair.from("")).unwrap();
        fs::create_dir(pair.to("")).unwrap();
        pair
    }

    fn from(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("from").join(name)
    }

    fn to(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("to").join(name)
    }

    fn outside(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn sync(&self, options: &SyncOptions) -> vellum_sync::local::receive::SyncReport {
        sync(&self.from(""), &self.to(""), options)
    }

    fn equal(&self) {
        if let Some(text) = difference(&facts(&self.from("")), &facts(&self.to(""))) {
            panic!("{text}");
        }
    }
}

fn deleting() -> SyncOptions {
    SyncOptions {
        delete: DeleteOptions { when: DeletePhase::After, force: true, ..DeleteOptions::default() },
        ..everything()
    }
}

fn write(path: &Path, content: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

#[test]
fn a_symlink_at_the_destination_is_replaced_not_followed() {
    let pair = Pair::new();
    write(&pair.outside("victim/f"), "theirs");
    write(&pair.from("dir/f"), "ours");
    write(&pair.from("file"), "ours");
    symlink(pair.outside("victim"), pair.to("dir")).unwrap();
    symlink(pair.outside("victim/f"), pair.to("file")).unwrap();
    assert_eq!(pair.sync(&deleting()).problems, []);
    assert_eq!(fs::read_to_string(pair.outside("victim/f")).unwrap(), "theirs");
    pair.equal();
}

#[test]
fn a_directory_exchanged_for_a_symlink_after_the_listing_leads_nowhere() {
    let pair = Pair::new();
    write(&pair.from("dir/f"), "ours");
    write(&pair.to("dir/old"), "x");
    fs::create_dir(pair.outside("victim")).unwrap();
    let planned = plan(&pair.from(""), &pair.to(""), &everything());
    fs::rename(pair.to("dir"), pair.outside("moved")).unwrap();
    symlink(pair.outside("victim"), pair.to("dir")).unwrap();
    let report = planned.carry_out().unwrap();
    assert!(!report.problems.is_empty());
    assert_eq!(fs::read_dir(pair.outside("victim")).unwrap().count(), 0);
}

#[test]
fn a_destination_that_is_itself_a_symlink_is_legitimate() {
    let pair = Pair::new();
    write(&pair.from("f"), "x");
    symlink(pair.to(""), pair.outside("link")).unwrap();
    sync(&pair.from(""), &pair.outside("link"), &everything());
    pair.equal();
}

#[test]
fn names_of_255_bytes_and_of_any_bytes_are_replaced() {
    use std::os::unix::ffi::OsStrExt;
    let pair = Pair::new();
    for name in [&[b'n'; 255][..], b"\xff\x80", b"new\nline", b"-rf", b"\x1b[2J"] {
        let name = std::ffi::OsStr::from_bytes(name);
        write(&pair.from("").join(name), "new and longer");
        write(&pair.to("").join(name), "old");
    }
    assert_eq!(pair.sync(&deleting()).problems, []);
    pair.equal();
}

#[test]
fn an_edit_within_the_same_second_and_of_the_same_size_is_seen() {
    let pair = Pair::new();
    write(&pair.from("f"), "one");
    pair.sync(&everything());
    let before = fs::metadata(pair.from("f")).unwrap();
    write(&pair.from("f"), "two");
    let time = before.modified().unwrap() + std::time::Duration::from_nanos(1);
    fs::File::options().write(true).open(pair.from("f")).unwrap().set_modified(time).unwrap();
    pair.sync(&everything());
    assert_eq!(fs::read_to_string(pair.to("f")).unwrap(), "two");
}

#[test]
fn a_file_with_other_names_is_never_written_in_place() {
    let pair = Pair::new();
    write(&pair.from("f"), "new content");
    write(&pair.to("f"), "old");
    fs::hard_link(pair.to("f"), pair.outside("backup")).unwrap();
    let mut options = everything();
    options.writing.in_place = true;
    pair.sync(&options);
    assert_eq!(fs::read_to_string(pair.outside("backup")).unwrap(), "old");
    pair.equal();
}

#[test]
fn in_place_writes_only_what_differs() {
    let pair = Pair::new();
    let mut content = vec![7; 4 << 20];
    write(&pair.to("f"), &content);
    content[1 << 20] = 8;
    content.extend([9; 1000]);
    write(&pair.from("f"), &content);
    let mut options = everything();
    options.writing.in_place = true;
    let number = fs::metadata(pair.to("f")).unwrap().ino();
    let report = pair.sync(&options);
    assert_eq!(fs::metadata(pair.to("f")).unwrap().ino(), number);
    assert!(report.written <= 128 << 10, "{report:?}");
    pair.equal();
}

/// The bits were lost with the change of owner that followed.
#[test]
fn a_backup_of_a_file_written_in_place_keeps_owner_and_mode() {
    let pair = Pair::new();
    write(&pair.to("f"), "old");
    std::os::unix::fs::chown(pair.to("f"), Some(1000), Some(1000)).unwrap();
    fs::set_permissions(pair.to("f"), fs::Permissions::from_mode(0o6755)).unwrap();
    write(&pair.from("f"), "new content");
    let mut options = everything();
    options.writing.in_place = true;
    options.writing.backup = Some(BackupLocation { dir: None, suffix: b"~".to_vec() });
    pair.sync(&options);
    let kept = fs::metadata(pair.to("f~")).unwrap();
    assert_eq!((kept.uid(), kept.gid(), kept.mode() & 0o7777), (1000, 1000, 0o6755));
    assert_eq!(fs::read_to_string(pair.to("f~")).unwrap(), "old");
}

#[test]
fn appending_sends_the_end_alone() {
    let pair = Pair::new();
    write(&pair.to("f"), vec![1; 2 << 20]);
    write(&pair.from("f"), [vec![1; 2 << 20], vec![2; 5000]].concat());
    let mut options = everything();
    options.writing.append = true;
    assert_eq!(pair.sync(&options).written, 5000);
    pair.equal();
}

#[test]
fn set_id_bits_do_not_lend_the_privileges_of_another() {
    let pair = Pair::new();
    write(&pair.from("f"), "x");
    std::os::unix::fs::chown(pair.from("f"), Some(1000), Some(1000)).unwrap();
    fs::set_permissions(pair.from("f"), fs::Permissions::from_mode(0o6755)).unwrap();
    let mut options = everything();
    (options.preserve.owners, options.preserve.groups) = (false, false);
    pair.sync(&options);
    assert_eq!(fs::metadata(pair.to("f")).unwrap().mode() & 0o7777, 0o755);
    assert!(plan(&pair.from(""), &pair.to(""), &options).plan.is_empty());
    pair.sync(&everything());
    assert_eq!(fs::metadata(pair.to("f")).unwrap().mode() & 0o7777, 0o6755);
}

#[test]
fn files_and_directories_take_each_others_place() {
    let pair = Pair::new();
    write(&pair.from("was_dir"), "x");
    write(&pair.to("was_dir/deep/f"), "x");
    write(&pair.from("was_file/deep/f"), "x");
    write(&pair.to("was_file"), "x");
    assert_eq!(pair.sync(&deleting()).problems, []);
    pair.equal();
}

#[test]
fn a_tree_deeper_than_any_path_is_copied_and_deleted() {
    use vellum_host::beneath::HeldDir;
    let pair = Pair::new();
    let name = [b'n'; 200];
    let mut here = HeldDir::open_root(&pair.from("")).unwrap();
    for _ in 0..30 {
        here.create_dir(&name, 0o755).unwrap();
        here = here.open_dir(&name).unwrap();
    }
    here.create_file(b"bottom", 0o644).unwrap();
    assert_eq!(pair.sync(&deleting()).problems, []);
    assert!(plan(&pair.from(""), &pair.to(""), &deleting()).plan.is_empty());
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(sync(empty.path(), &pair.to(""), &deleting()).problems, []);
    assert_eq!(fs::read_dir(pair.to("")).unwrap().count(), 0);
}

#[test]
fn directory_times_come_last() {
    let pair = Pair::new();
    write(&pair.from("d/e/f"), "x");
    for path in ["d/e", "d", ""] {
        let dir = fs::File::open(pair.from(path)).unwrap();
        dir.set_modified(std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000, 5)).unwrap();
    }
    pair.sync(&everything());
    pair.equal();
}

#[test]
fn times_before_1970_and_after_2106_survive() {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    let pair = Pair::new();
    for (name, tv_sec) in [("old", -2_000_000_000), ("new", 5_000_000_000)] {
        write(&pair.from(name), "x");
        let time = Timespec { tv_sec, tv_nsec: 123_456_789 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, pair.from(name), &times, AtFlags::empty()).unwrap();
    }
    pair.sync(&everything());
    pair.equal();
    assert!(plan(&pair.from(""), &pair.to(""), &everything()).plan.is_empty());
}

#[test]
fn holes_stay_holes_and_zeros_become_some_if_asked() {
    let pair = Pair::new();
    let file = fs::File::create(pair.from("holes")).unwrap();
    file.set_len(64 << 20).unwrap();
    write(&pair.from("zeros"), vec![0; 4 << 20]);
    pair.sync(&everything());
    assert!(fs::metadata(pair.to("holes")).unwrap().blocks() < 100);
    let mut options = everything();
    options.preserve.sparse = true;
    options.compare.by = vellum_sync::model::options::CompareMethod::Nothing;
    pair.sync(&options);
    assert!(fs::metadata(pair.to("zeros")).unwrap().blocks() < 100);
    pair.equal();
}

#[test]
fn fifos_and_devices_are_made_and_never_opened() {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    let pair = Pair::new();
    mknodat(CWD, pair.from("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    mknodat(CWD, pair.from("null"), FileType::CharacterDevice, Mode::RUSR, makedev(1, 3)).unwrap();
    // A fifo without a writer would wait for ever.
    mknodat(CWD, pair.to("file"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    write(&pair.from("file"), "x");
    assert_eq!(pair.sync(&deleting()).problems, []);
    pair.equal();
}

#[test]
fn what_changes_during_the_run_is_told_and_the_old_file_stays() {
    let pair = Pair::new();
    write(&pair.from("gone"), "x");
    write(&pair.from("there"), "x");
    let planned = plan(&pair.from(""), &pair.to(""), &everything());
    fs::remove_file(pair.from("gone")).unwrap();
    let report = planned.carry_out().unwrap();
    assert_eq!(report.problems.len(), 1);
    assert!(report.problems[0].vanished);
    assert!(pair.to("there").exists());
}

#[test]
fn a_name_that_is_taken_meanwhile_is_not_overwritten() {
    let pair = Pair::new();
    write(&pair.from("f"), "ours");
    write(&pair.to("extra"), "x");
    let planned = plan(&pair.from(""), &pair.to(""), &deleting());
    write(&pair.to("f"), "theirs");
    let report = planned.carry_out().unwrap();
    assert_eq!(fs::read_to_string(pair.to("f")).unwrap(), "theirs");
    // Not everything was written: nothing is deleted.
    assert!(pair.to("extra").exists());
    assert_eq!(report.problems.len(), 2);
}

/// Names that a folding filesystem takes for one: a letter large and small, and composed and decomposed.
const FOLDED: [[&str; 2]; 2] = [["Name", "name"], ["caf\u{e9}", "cafe\u{301}"]];

#[test]
fn names_that_differ_in_case_or_form_alone_are_told_where_they_are_one() {
    for [one, other] in FOLDED {
        let pair = Pair::new();
        write(&pair.from(one), "one");
        write(&pair.from(other), "two");
        write(&pair.to("extra"), "x");
        // What a run sees of a destination that folds names: both are free, and one is taken once the other is there.
        let planned = plan(&pair.from(""), &pair.to(""), &deleting());
        write(&pair.to(other), "one");
        let report = planned.carry_out().unwrap();
        assert_eq!(report.problems.len(), 2, "{report:?}");
        let reported = |problem: &vellum_sync::local::receive::SyncProblem| {
            problem.message.contains("two names for one")
        };
        assert!(report.problems.iter().any(reported), "{report:?}");
        assert_eq!(fs::read_to_string(pair.to(other)).unwrap(), "one");
        assert!(pair.to("extra").exists(), "nothing is deleted");
    }
}

#[test]
fn a_filesystem_that_folds_names_takes_one_of_two() {
    let disk = Disk::folding_case(16);
    let to = disk.path().join("to");
    let pair = Pair::new();
    for [one, other] in FOLDED {
        write(&pair.from(one), "one");
        write(&pair.from(other), "two");
    }
    let report = sync(&pair.from(""), &to, &everything());
    // A kernel without case folding has both names, and no problem.
    let folds = Disk::can_fold_case();
    let (problems, names) = if folds { (FOLDED.len(), FOLDED.len()) } else { (0, 2 * FOLDED.len()) };
    assert_eq!(report.problems.len(), problems, "{report:?}");
    assert_eq!(fs::read_dir(&to).unwrap().count(), names);
    assert!(report.problems.iter().all(|problem| problem.message.contains("two names for one")));
}

#[test]
fn a_temporary_file_of_a_killed_run_is_taken_away_and_one_in_use_stays() {
    let pair = Pair::new();
    write(&pair.from("d/f"), "x");
    pair.sync(&everything());
    write(&pair.to("d/.vellum-tmp-0123456789abcdef"), "left");
    write(&pair.to(".vellum-tmp-fedcba9876543210"), "in use");
    let used = fs::File::open(pair.to(".vellum-tmp-fedcba9876543210")).unwrap();
    used.lock().unwrap();
    pair.sync(&everything());
    assert!(!pair.to("d/.vellum-tmp-0123456789abcdef").exists());
    assert!(pair.to(".vellum-tmp-fedcba9876543210").exists());
    drop(used);
    pair.sync(&everything());
    pair.equal();
}

#[test]
fn a_full_destination_keeps_old_files_and_begins_nothing_more() {
    let disk = Disk::in_memory(1);
    let pair = Pair::new();
    write(&disk.path().join("a"), "old");
    write(&disk.path().join("z"), "extra");
    write(&pair.from("a"), vec![1; 2 << 20]);
    for n in 0..100 {
        write(&pair.from(&format!("b{n}")), vec![2; 50_000]);
    }
    let mut options = deleting();
    options.preserve.xattrs = false;
    options.preserve.acls = false;
    options.effort.jobs = Some(1);
    let report = sync(&pair.from(""), &disk.path(), &options);
    assert_eq!(fs::read_to_string(disk.path().join("a")).unwrap(), "old");
    assert!(disk.path().join("z").exists());
    assert!(report.problems.len() < 10, "{report:?}");
    let names = fs::read_dir(disk.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!names.into_iter().any(|name| name.to_string_lossy().starts_with(".vellum-tmp")));
    // With room, it goes on.
    disk.remount("size=64m");
    assert_eq!(sync(&pair.from(""), &disk.path(), &options).problems, []);
    assert_eq!(fs::read(disk.path().join("a")).unwrap().len(), 2 << 20);
}

#[test]
fn a_read_only_destination_is_told_once() {
    let disk = Disk::in_memory(1);
    disk.remount("ro");
    let pair = Pair::new();
    for n in 0..100 {
        write(&pair.from(&format!("d{n}/f")), "x");
    }
    let report = sync(&pair.from(""), &disk.path(), &everything());
    assert!((1..5).contains(&report.problems.len()), "{report:?}");
}

#[test]
fn more_names_than_a_file_may_have_become_copies() {
    // ext4 allows 65,000 names of a file; memory knows no end.
    const NAMES: usize = 65_010;
    let memory = Disk::in_memory(64);
    let disk = Disk::new("ext4", 64);
    write(&memory.path().join("0"), "x");
    for n in 1..NAMES {
        fs::hard_link(memory.path().join("0"), memory.path().join(n.to_string())).unwrap();
    }
    let to = disk.path().join("to");
    fs::create_dir(&to).unwrap();
    let mut options = everything();
    (options.preserve.xattrs, options.preserve.acls) = (false, false);
    assert_eq!(sync(&memory.path(), &to, &options).problems, []);
    assert_eq!(fs::read_dir(&to).unwrap().count(), NAMES);
    assert_eq!(fs::metadata(to.join("0")).unwrap().nlink(), 65_000);
}

#[test]
fn blocks_are_shared_where_the_filesystem_can() {
    let disk = Disk::new("btrfs", 256);
    let from = disk.path().join("from");
    let to = disk.path().join("to");
    fs::create_dir(&to).unwrap();
    write(&from.join("f"), vec![7; 8 << 20]);
    let report = sync(&from, &to, &everything());
    assert_eq!((report.written, report.spared), (0, 8 << 20));
    // Of an old file only what differs is written, if that is asked for.
    let mut content = vec![7; 8 << 20];
    content[1 << 20..(1 << 20) + 1000].fill(8);
    write(&from.join("f"), &content);
    let mut options = everything();
    options.writing.delta = DeltaMode::Always;
    let report = sync(&from, &to, &options);
    assert!(report.written <= 128 << 10, "{report:?}");
    assert_eq!(fs::read(to.join("f")).unwrap(), content);
}

#[test]
fn other_filesystems_are_not_entered_if_that_is_asked_for() {
    let pair = Pair::new();
    let disk = Disk::in_memory(1);
    write(&disk.path().join("inner"), "x");
    write(&pair.from("mnt/below"), "x");
    fs::create_dir(pair.to("mnt")).unwrap();
    disk.also_at(&pair.from("mnt"));
    disk.also_at(&pair.to("mnt"));
    write(&pair.from("f"), "x");
    let mut options = deleting();
    options.one_filesystem = true;
    let report = pair.sync(&options);
    let mounted = disk.path().join("inner").exists();
    disk.gone_from(&pair.from("mnt"));
    disk.gone_from(&pair.to("mnt"));
    assert_eq!(report.problems, []);
    assert!(mounted && pair.to("f").exists());
    assert_eq!(fs::read_dir(pair.to("mnt")).unwrap().count(), 0);
}

#[test]
fn acls_come_along_and_go_along() {
    let pair = Pair::new();
    write(&pair.from("d/f"), "x");
    let setfacl = |args: &[&str], path: &Path| {
        assert!(std::process::Command::new("setfacl").args(args).arg(path).status().unwrap().success());
    };
    setfacl(&["-m", "u:1000:rwx"], &pair.from("d/f"));
    setfacl(&["-d", "-m", "g:1000:rx"], &pair.from("d"));
    pair.sync(&everything());
    pair.equal();
    setfacl(&["-b"], &pair.from("d/f"));
    setfacl(&["-b", "-k"], &pair.from("d"));
    pair.sync(&everything());
    pair.equal();
    assert!(plan(&pair.from(""), &pair.to(""), &everything()).plan.is_empty());
}

#[test]
fn a_new_name_of_an_old_file_costs_no_copy() {
    let pair = Pair::new();
    write(&pair.from("b"), vec![3; 1 << 20]);
    pair.sync(&everything());
    fs::hard_link(pair.from("b"), pair.from("a")).unwrap();
    assert_eq!(pair.sync(&everything()).written, 0);
    pair.equal();
}

#[test]
fn renamed_files_are_renamed() {
    let pair = Pair::new();
    write(&pair.from("old/big"), vec![5; 1 << 20]);
    write(&pair.from("old/other"), vec![6; 1 << 20]);
    pair.sync(&everything());
    fs::create_dir(pair.from("new")).unwrap();
    fs::rename(pair.from("old/big"), pair.from("new/name")).unwrap();
    let mut options = deleting();
    options.detect_renames = true;
    let planned = plan(&pair.from(""), &pair.to(""), &options);
    assert!(planned.plan.steps.iter().any(|step| step.action == StepAction::Rename));
    assert_eq!(planned.carry_out().unwrap().written, 0);
    pair.equal();
}

#[test]
fn backups_keep_what_was_there_and_are_not_deleted() {
    let pair = Pair::new();
    write(&pair.from("f"), "new");
    write(&pair.to("f"), "older");
    write(&pair.to("g"), "gone");
    let mut options = deleting();
    options.writing.backup = Some(BackupLocation { dir: None, suffix: b"~".to_vec() });
    pair.sync(&options);
    assert_eq!(fs::read_to_string(pair.to("f~")).unwrap(), "older");
    assert_eq!(fs::read_to_string(pair.to("g~")).unwrap(), "gone");
    assert!(!pair.to("g").exists());
    pair.sync(&options);
    assert!(pair.to("g~").exists());
}

#[test]
fn what_arrived_of_a_large_file_is_taken_up() {
    let pair = Pair::new();
    write(&pair.from("f"), vec![4; 8 << 20]);
    let mut options = everything();
    options.writing.partial_dir = Some(b".partial".to_vec());
    // As a killed run leaves it: one of its blocks is not what the source has.
    let mut arrived = vec![4; 4 << 20];
    arrived[100] = 9;
    write(&pair.to(".partial/f"), arrived);
    let report = pair.sync(&options);
    assert!(report.written <= (4 << 20) + (64 << 10), "{report:?}");
    assert!(!pair.to(".partial").exists());
    pair.equal();
}

#[test]
fn a_refused_plan_is_not_carried_out() {
    let pair = Pair::new();
    write(&pair.to("f"), "x");
    let mut options = deleting();
    options.delete.force = false;
    let planned = plan(&pair.from(""), &pair.to(""), &options);
    assert!(matches!(planned.carry_out(), Err(SyncError::Refused(_))));
    assert!(pair.to("f").exists());
}

#[test]
fn delta_keeps_to_what_differs_where_blocks_can_be_shared() {
    // On a filesystem without shared blocks it is a whole copy, and right all the same.
    let pair = Pair::new();
    let mut content = vec![7; 4 << 20];
    write(&pair.to("f"), &content);
    content[12345] = 1;
    content.truncate(3 << 20);
    write(&pair.from("f"), &content);
    let mut options = everything();
    options.writing.delta = DeltaMode::Always;
    options.writing.verify = true;
    assert_eq!(pair.sync(&options).problems, []);
    pair.equal();
}

#[test]
fn plans_do_not_depend_on_the_order_of_the_walk() {
    let pair = Pair::new();
    for n in 0..50 {
        write(&pair.from(&format!("d{n}/f")), "x");
        if n > 0 {
            fs::hard_link(pair.from("d0/f"), pair.from(&format!("d{n}/l"))).unwrap();
        }
    }
    let shown = |plan: &SyncPlan| {
        plan.steps.iter().map(|step| (step.phase, step.action, step.what)).collect::<Vec<_>>()
    };
    let first = shown(&plan(&pair.from(""), &pair.to(""), &everything()).plan);
    for _ in 0..5 {
        assert_eq!(shown(&plan(&pair.from(""), &pair.to(""), &everything()).plan), first);
    }
}
