//! Filesystems of their own, mounted as long as they live.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A filesystem in a file or in memory.
pub struct Disk {
    dir: TempDir,
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

impl Disk {
    /// A filesystem in a file, of the kind that `mkfs.<kind>` makes.
    pub fn new(kind: &str, mebibytes: u64) -> Self {
        Self::made(kind, &[], mebibytes)
    }

    /// Whether this kernel knows directories that fold case.
    pub fn can_fold_case() -> bool {
        Path::new("/sys/fs/ext4/features/casefold").exists()
    }

    /// An ext4 with a directory `to` that folds case, as far as this kernel can.
    pub fn folding_case(mebibytes: u64) -> Self {
        let folds = Self::can_fold_case();
        let disk = Self::made("ext4", if folds { &["-O", "casefold"] } else { &[] }, mebibytes);
        let to = disk.path().join("to");
        std::fs::create_dir(&to).unwrap();
        if folds {
            run("chattr", &["+F", text(&to)]);
        }
        disk
    }

    /// An ext4 that takes what is written to it, and cannot keep much of it: its file is on a filesystem without room,
    /// which shows when it is synced.
    pub fn losing_writes(backing: &Self) -> Self {
        let dir = tempfile::tempdir_in(backing.path()).unwrap();
        Self::made_in(dir, "ext4", &["-O", "^has_journal"], 64)
    }

    fn made(kind: &str, features: &[&str], mebibytes: u64) -> Self {
        Self::made_in(tempfile::tempdir().unwrap(), kind, features, mebibytes)
    }

    fn made_in(dir: TempDir, kind: &str, features: &[&str], mebibytes: u64) -> Self {
        let disk = Self { dir };
        let image = disk.dir.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(mebibytes << 20).unwrap();
        run(&format!("mkfs.{kind}"), &[&["-q"], features, &[text(&image)]].concat());
        std::fs::create_dir(disk.path()).unwrap();
        run("mount", &["-o", "loop", text(&image), text(&disk.path())]);
        disk
    }

    /// A filesystem in memory.
    pub fn in_memory(mebibytes: u64) -> Self {
        let disk = Self { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir(disk.path()).unwrap();
        let options = format!("size={mebibytes}m,nr_inodes=100000");
        run("mount", &["-t", "tmpfs", "-o", &options, "tmpfs", text(&disk.path())]);
        disk
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    /// Changes how it is mounted.
    pub fn remount(&self, options: &str) {
        run("mount", &["-o", &format!("remount,{options}"), text(&self.path())]);
    }

    /// Mounts it at another place, too.
    pub fn also_at(&self, place: &Path) {
        run("mount", &["--bind", text(&self.path()), text(place)]);
    }

    /// Takes it away from there.
    pub fn gone_from(&self, place: &Path) {
        run("umount", &["-l", text(place)]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).output();
    }
}
