//! Disks of their own, for worlds that run out of space, lose power, or have bad blocks.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::mounting::{sh, wait_until};

/// Nothing reaches the disk any more (`FS_IOC_SHUTDOWN`).
const SHUTDOWN: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(b'X', 125);
/// Not even the filesystem's journal.
const LOSE_JOURNAL: u32 = 2;

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

    /// A filesystem with coarse times: `exfat`, `ntfs` or `vfat` through FUSE, `ext` with inodes that have no room for more.
    pub fn foreign(kind: &str) -> Self {
        let disk = Self { dir: tempfile::tempdir().unwrap() };
        let script = match kind {
            // It takes a device alone. The loop goes with the mount.
            "exfat" => {
                "mkfs.exfat image > out; loop=$(losetup -f --show image)
                mount.exfat-fuse $loop disk 2> out; losetup -d $loop"
            }
            "ntfs" => "mkfs.ntfs -F -Q image > out 2>&1; ntfs-3g image disk",
            "vfat" => "mkfs.vfat image > out 2>&1; fusefat -o rw+ image disk > out 2>&1",
            _ => "mkfs.ext4 -q -I 128 image > out 2>&1; mount -o loop image disk",
        };
        sh(
            disk.dir.path(),
            &format!("PATH=$PATH:/usr/sbin:/sbin; truncate -s 40M image; mkdir disk; {script}"),
        );
        disk
    }

    /// A filesystem that has room, and takes no more than a quota (btrfs; `statfs` does not tell).
    pub fn with_quota(mebibytes: u64) -> Self {
        let disk = Self::new("btrfs", 256);
        sh(
            &disk.path(),
            &format!(
                "PATH=$PATH:/usr/sbin:/sbin; btrfs quota enable .; btrfs qgroup limit {mebibytes}M 0/5 ."
            ),
        );
        disk
    }

    /// A filesystem in memory.
    pub fn in_memory(mebibytes: u64) -> Self {
        let disk = Self { dir: tempfile::tempdir().unwrap() };
        sh(disk.dir.path(), &format!("mkdir disk; mount -t tmpfs -o size={mebibytes}m tmpfs disk"));
        disk
    }

    /// A filesystem in memory that seems to have much room, and takes only so many files.
    pub fn with_files(most: u32) -> Self {
        let disk = Self { dir: tempfile::tempdir().unwrap() };
        sh(disk.dir.path(), &format!("mkdir disk; mount -t tmpfs -o size=64g,nr_inodes={most} tmpfs disk"));
        disk
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    /// A filesystem that notices blocks which are not what was written (btrfs): reading them is an I/O error.
    pub fn checked() -> Self {
        // Fewer it does not take.
        Self::new("btrfs", 256)
    }

    /// Spoils the blocks that begin so, of files of a filesystem that notices it. It is mounted anew.
    pub fn spoil(&self, beginning: &[u8]) {
        use std::os::unix::fs::FileExt;
        /// Content of files begins at multiples of this.
        const BLOCK: usize = 4096;
        sh(self.dir.path(), "umount disk");
        let image = self.dir.path().join("image");
        // A test beside this one may have taken the mount along into a namespace of its own, and with it what is cached.
        wait_until("the disk to be free", || {
            Command::new("losetup").arg("-j").arg(&image).output().unwrap().stdout.is_empty()
        });
        let image = std::fs::File::options().read(true).write(true).open(image).unwrap();
        let mut block = vec![0; 256 * BLOCK];
        let mut spoiled = 0;
        for start in (0..image.metadata().unwrap().len()).step_by(block.len()) {
            image.read_exact_at(&mut block, start).unwrap();
            for (number, _) in
                block.chunks(BLOCK).enumerate().filter(|(_, block)| block.starts_with(beginning))
            {
                // Far behind what it is found by.
                image.write_all_at(b"spoiled", start + (number * BLOCK + BLOCK / 2) as u64).unwrap();
                spoiled += 1;
            }
        }
        assert!(spoiled > 0, "no block begins so");
        self.mount_again();
    }

    /// What was not flushed to the disk is lost, and nothing works any more until it is mounted again.
    pub fn cut_power(&self) {
        let disk = std::fs::File::open(self.path()).unwrap();
        #[expect(unsafe_code, reason = "no safe call cuts a filesystem off its disk")]
        // SAFETY: the operation reads the number that it is given.
        unsafe {
            rustix::ioctl::ioctl(disk, rustix::ioctl::Setter::<SHUTDOWN, u32>::new(LOSE_JOURNAL)).unwrap();
        }
    }

    /// The power is back.
    pub fn mount_again(&self) {
        // A process that was killed is not gone at once; what is not mounted needs no wait. The table is asked, since a
        // filesystem without its disk answers nothing.
        sh(
            self.dir.path(),
            "for i in $(seq 100); do
                grep -q \" $PWD/disk \" /proc/self/mountinfo || break
                umount disk 2> /dev/null && break
                sleep 0.1
            done
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
