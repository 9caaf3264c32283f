//! Disks of their own, for worlds that run out of space or lose power.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::mounting::sh;

/// A filesystem in a file or in memory, mounted as long as this lives.
pub struct Disk {
    dir: TempDir,
}

impl Disk {
    /// A filesystem in a file, of the kind that `mkfs.<kind>` makes.
    pub fn new(kind: &str, mebibytes: u64) -> Self {
        let disk = Self { dir: tempfile::tempdir().unwrap() };
        let script = format!(
            "truncate -s {mebibytes}M image; mkfs.{kind} -q image; mkdir disk; mount -o loop image disk"
        );
        sh(disk.dir.path(), &script);
        disk
    }

    /// A filesystem in memory.
    pub fn in_memory(mebibytes: u64) -> Self {
        let disk = Self { dir: tempfile::tempdir().unwrap() };
        sh(disk.dir.path(), &format!("mkdir disk; mount -t tmpfs -o size={mebibytes}m tmpfs disk"));
        disk
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    /// What was not flushed to the disk is lost, and nothing works any more until it is mounted again.
    pub fn cut_power(&self) {
        // FS_IOC_SHUTDOWN without flushing the journal.
        let program = "import fcntl, os, struct
fcntl.ioctl(os.open('disk', os.O_RDONLY), 0x8004587D, struct.pack('I', 2))";
        sh(self.dir.path(), &format!("python3 -c \"{program}\""));
    }

    /// The power is back.
    pub fn mount_again(&self) {
        // A process that was killed is not gone at once.
        sh(
            self.dir.path(),
            "for i in $(seq 100); do umount disk 2> /dev/null && break; sleep 0.1; done
            mount -o loop image disk",
        );
    }

    /// Makes one in memory larger.
    pub fn grow(&self, mebibytes: u64) {
        sh(Path::new("/"), &format!("mount -o remount,size={mebibytes}m {}", self.path().display()));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Something that holds a file of it may be about to end.
        let _ = Command::new("umount").arg("-l").arg(self.path()).output();
    }
}
