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
        let disk = Self { dir: tempfile::tempdir().unwrap() };
        let image = disk.dir.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(mebibytes << 20).unwrap();
        run(&format!("mkfs.{kind}"), &["-q", text(&image)]);
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
