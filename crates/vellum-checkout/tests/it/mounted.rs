//! Filesystems made for one test: loop mounts and small tmpfs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A filesystem that is mounted as long as this lives.
pub struct Mounted {
    temp: tempfile::TempDir,
}

impl Mounted {
    /// A new filesystem in a file, of the kind that `mkfs.<kind>` makes.
    pub fn on_loop(kind: &str, mebibytes: u64) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let image = temp.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(mebibytes << 20).unwrap();
        run(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&image));
        let mounted = Self { temp };
        std::fs::create_dir(mounted.path()).unwrap();
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(mounted.path()));
        mounted
    }

    /// A filesystem in memory of a fixed size.
    pub fn in_memory(kibibytes: u64) -> Self {
        let mounted = Self { temp: tempfile::tempdir().unwrap() };
        std::fs::create_dir(mounted.path()).unwrap();
        let size = format!("size={kibibytes}k");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(mounted.path()));
        mounted
    }

    pub fn path(&self) -> PathBuf {
        self.temp.path().join("mounted")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = |args: &[&str]| {
            Command::new("umount").args(args).arg(self.path()).status().is_ok_and(|status| status.success())
        };
        if !unmounted(&["-q"]) {
            // Something still holds a file of it: it goes when that goes.
            unmounted(&["-q", "-l"]);
        }
    }
}

/// Fills what is left of a filesystem, but for some bytes; gives the file that does it.
pub fn fill_up(dir: &Path, leave: u64) -> PathBuf {
    let path = dir.join("ballast");
    let free = || {
        let stat = rustix::fs::statvfs(dir).unwrap();
        stat.f_bavail * stat.f_frsize
    };
    std::fs::write(&path, vec![0xaa; usize::try_from(free().saturating_sub(leave)).unwrap()]).unwrap();
    path
}

#[track_caller]
fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
