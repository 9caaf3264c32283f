//! Basis directories: rsync makes the same of the same trees, and each pitfall by name.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use vellum_sync::model::options::{BasisUsage, CompareMethod, SyncOptions};
use vellum_sync::plan::StepAction;

use crate::run::{everything, plan, plan_from};
use crate::trees::{build, cases, difference, facts, tree_with};

const USES: [(BasisUsage, &str); 3] = [
    (BasisUsage::Link, "--link-dest"),
    (BasisUsage::Copy, "--copy-dest"),
    (BasisUsage::LeaveOut, "--compare-dest"),
];

fn set_time(path: &Path, secs: i64, nanos: i64) {
    let time = Timespec { tv_sec: secs, tv_nsec: nanos };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Makes some entries of a tree other than they were: by `choices`, in the order of paths.
fn change(root: &Path, choices: &[u8]) {
    let paths: Vec<PathBuf> = facts(root).into_keys().filter(|path| path != Path::new("")).collect();
    for (path, choice) in paths.iter().zip(choices.iter().cycle()) {
        let path = root.join(path);
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        match choice {
            0 if found.is_dir() => fs::remove_dir_all(&path).unwrap(),
            0 => fs::remove_file(&path).unwrap(),
            1 if !found.is_symlink() => {
                let mode = found.permissions().mode() ^ 0o040;
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
            2 if !found.is_dir() => set_time(&path, 1_234_567, 0),
            3 if found.is_file() => {
                fs::write(&path, vec![b'x'; found.len() as usize]).unwrap();
                set_time(&path, found.mtime(), found.mtime_nsec());
            }
            _ => {}
        }
    }
}

/// Which entries of a tree are files of another one.
fn shared(tree: &Path, basis: &Path) -> BTreeMap<PathBuf, bool> {
    let inode = |path: &Path| fs::symlink_metadata(path).ok().map(|found| found.ino());
    let dirs = facts(tree).into_iter().filter(|(_, facts)| facts.kind != 'd');
    dirs.map(|(path, _)| {
        let is_shared = inode(&tree.join(&path)) == inode(&basis.join(&path));
        (path, is_shared)
    })
    .collect()
}

/// Not xattrs, which this rsync compares with the wrong file when several basis directories have it.
fn both(checksum: bool) -> (SyncOptions, Vec<&'static str>) {
    let mut options = everything();
    options.preserve.acls = false;
    options.preserve.xattrs = false;
    options.preserve.hard_links = false;
    let mut words = vec!["-rltpgoD"];
    if checksum {
        options.compare.by = CompareMethod::Content;
        words.push("-c");
    }
    (options, words)
}

proptest! {
    #![proptest_config(cases(36))]

    #[test]
    fn rsync_takes_the_same_from_basis_directories(
        source in tree_with(1),
        choices in proptest::collection::vec(proptest::collection::vec(0_u8..8, 1..12), 1..3),
        usage in 0..USES.len(),
        checksum in any::<bool>(),
    ) {
        let (usage, word) = USES[usage];
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        build(&source, &at("from"));
        let mut basis = Vec::new();
        for (number, choices) in choices.iter().enumerate() {
            let path = at(&format!("basis{number}"));
            build(&source, &path);
            change(&path, choices);
            basis.push(path);
        }
        fs::create_dir(at("ours")).unwrap();
        fs::create_dir(at("theirs")).unwrap();
        let (options, words) = both(checksum);
        let paths: Vec<&Path> = basis.iter().map(|path| &**path).collect();
        let planned = plan_from(&at("from"), &at("ours"), &options, usage, &paths);
        prop_assert_eq!(planned.carry_out().unwrap().problems, []);
        let mut rsync = Command::new("rsync");
        rsync.args(&words).args(paths.iter().map(|path| format!("{word}={}", path.display())));
        let ran = rsync.arg(format!("{}/", at("from").display())).arg(at("theirs")).output().unwrap();
        prop_assume!(ran.status.success());
        let comparable = |name: &str| {
            let mut found = facts(&at(name));
            found.iter_mut().for_each(|(path, facts)| facts.first.clone_from(path));
            found
        };
        if let Some(text) = difference(&comparable("theirs"), &comparable("ours")) {
            panic!("{words:?} {word}: {text}");
        }
        for path in &paths {
            prop_assert_eq!(shared(&at("theirs"), path), shared(&at("ours"), path), "{} {:?}", word, words);
        }
        // What is there stays as it is, and nothing is to do any more.
        if usage != BasisUsage::LeaveOut {
            let again = plan_from(&at("from"), &at("ours"), &options, usage, &paths);
            prop_assert_eq!(again.shown(), []);
        }
    }
}

/// `from/f` and an equal `old/f`, and an empty destination.
fn one_file() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["from", "old", "to"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    for name in ["from/f", "old/f"] {
        fs::write(dir.path().join(name), "content").unwrap();
        set_time(&dir.path().join(name), 1_000_000, 0);
    }
    dir
}

#[test]
fn a_later_run_changes_no_attribute_of_a_basis_directory() {
    let dir = one_file();
    let at = |name: &str| dir.path().join(name);
    let run = || plan_from(&at("from"), &at("to"), &everything(), BasisUsage::Link, &[&at("old")]);
    run().carry_out().unwrap();
    let inode = |name: &str| fs::metadata(at(name)).unwrap().ino();
    assert_eq!(inode("to/f"), inode("old/f"));
    let before = fs::metadata(at("old/f")).unwrap().permissions();
    fs::set_permissions(at("from/f"), fs::Permissions::from_mode(0o600)).unwrap();
    run().carry_out().unwrap();
    assert_eq!(fs::metadata(at("to/f")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(at("old/f")).unwrap().permissions(), before);
    assert_ne!(inode("to/f"), inode("old/f"));
    assert!(run().plan.is_empty());
}

#[test]
fn what_is_gone_from_a_basis_directory_comes_from_the_source() {
    for (usage, action) in
        [(BasisUsage::Link, StepAction::LinkBasis(0)), (BasisUsage::Copy, StepAction::CopyBasis(0))]
    {
        let dir = one_file();
        let at = |name: &str| dir.path().join(name);
        let planned = plan_from(&at("from"), &at("to"), &everything(), usage, &[&at("old")]);
        assert!(planned.shown().iter().any(|(_, planned, ..)| *planned == action));
        fs::remove_file(at("old/f")).unwrap();
        assert_eq!(planned.carry_out().unwrap().problems, []);
        assert_eq!(fs::read(at("to/f")).unwrap(), b"content");
    }
}

#[test]
fn names_of_one_file_stay_names_of_one_file() {
    for (usage, _) in USES {
        let dir = one_file();
        let at = |name: &str| dir.path().join(name);
        fs::hard_link(at("from/f"), at("from/g")).unwrap();
        plan_from(&at("from"), &at("to"), &everything(), usage, &[&at("old")]).carry_out().unwrap();
        if usage == BasisUsage::LeaveOut {
            assert!(!at("to/f").exists() && at("to/g").exists());
            continue;
        }
        let inode = |name: &str| fs::metadata(at(name)).unwrap().ino();
        assert_eq!(inode("to/f"), inode("to/g"));
        assert_eq!(inode("to/f") == inode("old/f"), usage == BasisUsage::Link);
        assert!(plan(&at("from"), &at("to"), &everything()).plan.is_empty());
    }
}
