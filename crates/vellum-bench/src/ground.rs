//! A directory of a bench's own, in the directory that is measured.
//!
//! Invariant: however the bench ends, short of being killed, what it made is removed, and only that: names that do not
//! begin with [`PREFIX`] were made by somebody else and stay, with the directory around them.

use std::collections::BTreeMap;
use std::os::linux::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::StatVfsMountFlags;
use vellum_host::beneath::{BeneathError, HeldDir};
use vellum_host::mount_table::{FilesystemDevice, read_mounts};

use crate::error::{BenchError, Result};

/// How every name begins that a bench makes.
pub const PREFIX: &str = "bench-";

/// Bytes that must stay free beside what a bench writes: for metadata, and for others.
const SPARE: u64 = 16 << 20;

/// How often a directory is tried to be removed into which another host may still write, and the pause between.
const REMOVALS_MAX: u32 = 40;
const REMOVAL_PAUSE: Duration = Duration::from_millis(50);

/// A directory that a bench made.
#[derive(Debug)]
pub struct BenchDirectory {
    parent: HeldDir,
    name: Vec<u8>,
    dir: HeldDir,
    path: String,
    removed: bool,
}

impl BenchDirectory {
    /// Makes one in the directory at `path`, if `needed` bytes fit there.
    pub fn create_in(path: &Path, needed: u64) -> Result<Self> {
        let shown = format_plain_path(path);
        let fail = |source| BenchError::Ground { path: shown.clone(), source };
        let parent = HeldDir::open_root(path).map_err(fail)?;
        let space = rustix::fs::fstatvfs(&parent)
            .map_err(|errno| BenchError::io_error("read the free space of", shown.clone())(errno.into()))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        // A directory that cannot be written to fails later with its own error.
        let is_writable = !space.f_flag.contains(StatVfsMountFlags::RDONLY);
        if is_writable && needed > 0 && free < needed.saturating_add(SPARE) {
            return Err(BenchError::Space { path: shown, free, needed: needed.saturating_add(SPARE) });
        }
        let name = random_name("vellum-bench")?.into_bytes();
        // Other users must not put anything into it while it is measured.
        parent.create_dir(&name, 0o700).map_err(fail)?;
        let dir = match parent.open_dir_to_read(&name) {
            Ok(dir) => dir,
            Err(error) => {
                // It was made just now, so it is empty, and no other program knows it.
                let _ = parent.remove_dir(&name);
                return Err(fail(error));
            }
        };
        Ok(Self { parent, name, dir, path: shown, removed: false })
    }

    /// The one that another host made in the directory at `path`, which is the same directory there.
    pub fn open_existing(path: &Path, name: &str) -> Result<Self> {
        let shown = format_plain_path(path);
        let fail = |source| BenchError::Ground { path: shown.clone(), source };
        let parent = HeldDir::open_root(path).map_err(fail)?;
        let name = name.as_bytes().to_vec();
        let dir = parent.open_dir_to_read(&name).map_err(fail)?;
        Ok(Self { parent, name, dir, path: shown, removed: false })
    }

    /// Its name in the directory that is measured.
    #[must_use]
    pub fn name(&self) -> String {
        String::from_utf8_lossy(&self.name).into_owned()
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &HeldDir {
        &self.dir
    }

    /// Where it is.
    #[must_use]
    pub fn full_path(&self) -> std::path::PathBuf {
        Path::new(&self.path).join(String::from_utf8_lossy(&self.name).as_ref())
    }

    /// A failure in it, reported as one of the directory that is measured.
    pub fn to_bench_error(&self, source: BeneathError) -> BenchError {
        BenchError::Ground { path: self.path.clone(), source }
    }

    /// Makes a directory in it.
    pub fn create_dir(&self, name: &str) -> Result<HeldDir> {
        let made = self.dir.create_dir(name.as_bytes(), 0o755);
        made.and_then(|()| self.dir.open_dir_to_read(name.as_bytes()))
            .map_err(|error| self.to_bench_error(error))
    }

    /// Removes what is in it.
    pub fn remove_contents(&self) -> Result<()> {
        remove_bench_entries(&self.dir).map(drop).map_err(|error| self.to_bench_error(error))
    }

    /// Removes it, and reports a failure.
    pub fn remove_dir(mut self) -> Result<()> {
        // Set first, so that dropping it does not try again what failed.
        self.removed = true;
        self.try_remove_dir()
    }

    /// From now on somebody else sees to it that it is removed.
    pub fn leave_to_others(&mut self) {
        self.removed = true;
    }

    /// Removes it while others may still make something in it. It is no failure if it is gone.
    pub fn remove_shared_dir(&self) -> Result<()> {
        for _ in 1..REMOVALS_MAX {
            match self.try_remove_dir() {
                Ok(()) => return Ok(()),
                Err(BenchError::Ground { source, .. }) if source.is_not_found() => {
                    // Something in it, or the directory itself: the next try finds out.
                    if self.parent.stat(&self.name).is_err_and(|error| error.is_not_found()) {
                        return Ok(());
                    }
                }
                // The directory is not empty, for example: whoever still writes into it has a moment to end.
                Err(_) => {}
            }
            std::thread::sleep(REMOVAL_PAUSE);
        }
        self.try_remove_dir()
    }

    fn try_remove_dir(&self) -> Result<()> {
        let emptied = remove_bench_entries(&self.dir).map_err(|error| self.to_bench_error(error))?;
        // Something in it is not of the bench, which must not remove it.
        if !emptied {
            return Err(BenchError::NotEmpty(self.full_path().display().to_string()));
        }
        self.parent.remove_dir(&self.name).map_err(|error| self.to_bench_error(error))
    }
}

impl Drop for BenchDirectory {
    fn drop(&mut self) {
        if !self.removed {
            // The bench has failed already, and reports why.
            let _ = self.try_remove_dir();
        }
    }
}

/// A unique name.
pub fn random_name(stem: &str) -> Result<String> {
    // 48 bits, so that no two benches in one directory have the same name.
    let mut bytes = [0; 6];
    getrandom::fill(&mut bytes).map_err(|error| {
        BenchError::io_error("read", "random numbers")(std::io::Error::other(error.to_string()))
    })?;
    let random: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{stem}-{random}"))
}

/// Removes what a bench made in a directory. Returns whether the directory is empty then.
fn remove_bench_entries(dir: &HeldDir) -> Result<bool, BeneathError> {
    let mut all = true;
    for listed in dir.read_names()?.iter() {
        if !listed.name.starts_with(PREFIX.as_bytes()) {
            all = false;
        } else if listed.is_dir == Some(false) {
            dir.unlink(listed.name)?;
        } else {
            match dir.open_dir_to_read(listed.name) {
                Ok(below) if remove_bench_entries(&below)? => dir.remove_dir(listed.name)?,
                Ok(_) => all = false,
                // Not every filesystem tells the kind with the name. Then trying to open it does.
                Err(error) if error.is_not_a_directory() => dir.unlink(listed.name)?,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(all)
}

/// A path without the dots that only say "here".
fn format_plain_path(path: &Path) -> String {
    path.components().collect::<std::path::PathBuf>().display().to_string()
}

/// A path, its filesystem and what that lies on.
#[must_use]
pub fn describe_target(path: &Path) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::from([("path".to_owned(), format_plain_path(path))]);
    // A path that cannot be read has no device, and the report goes without these facts.
    let device = std::fs::metadata(path).map(|metadata| metadata.st_dev()).unwrap_or_default();
    let device = FilesystemDevice { major: rustix::fs::major(device), minor: rustix::fs::minor(device) };
    // The last one that matches is the one that is seen.
    let found = read_mounts().unwrap_or_default().into_iter().rev().find(|mount| mount.device == device);
    if let Some(mount) = found {
        facts.insert("filesystem".into(), mount.kind);
        facts.insert("device".into(), mount.source);
    }
    facts
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_a_bench_made_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("bench-mine"), "mine").unwrap();
        let ground = BenchDirectory::create_in(dir.path(), 0).unwrap();
        fs::create_dir_all(ground.full_path().join("bench-a/bench-b")).unwrap();
        fs::write(ground.full_path().join("bench-a/bench-b/bench-c"), "x").unwrap();
        std::os::unix::fs::symlink(dir.path(), ground.full_path().join("bench-link")).unwrap();
        drop(ground);
        let left: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["bench-mine"]);
    }

    #[test]
    fn what_others_put_into_its_directory_stays() {
        let dir = tempfile::tempdir().unwrap();
        let ground = BenchDirectory::create_in(dir.path(), 0).unwrap();
        let place = ground.full_path();
        fs::create_dir_all(place.join("bench-a")).unwrap();
        fs::write(place.join("bench-a/letter"), "x").unwrap();
        fs::write(place.join("bench-b"), "x").unwrap();
        assert!(matches!(ground.remove_dir(), Err(BenchError::NotEmpty(_))));
        assert!(place.join("bench-a/letter").exists());
        assert!(!place.join("bench-b").exists());
    }

    #[test]
    fn the_place_is_told_without_dots() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            describe_target(&dir.path().join(".")).get("path"),
            describe_target(dir.path()).get("path")
        );
    }

    #[test]
    fn a_disk_that_would_be_filled_is_refused_before_anything_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let error = BenchDirectory::create_in(dir.path(), u64::MAX / 2).unwrap_err();
        assert!(matches!(error, BenchError::Space { .. }), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
