//! Keeping replaced and deleted entries: in their own directory, in a backup directory, or in the trash.
//!
//! Invariant: an entry loses its name only after its old version has another; on another filesystem that is a durable
//! copy.

use jiff::Timestamp;
use rustix::io::Errno;
use vellum_host::beneath::HeldDir;

use super::elsewhere;
use super::file::is_link_refused;
use crate::error::Result;
use crate::local::scan::TRASH_DIR;
use crate::model::options::WriteOptions;

/// Mode of directories that are created for kept versions, which other users may not read.
const PRIVATE: u32 = 0o700;

/// The destination of kept versions.
pub(crate) struct BackupKeeper {
    /// The directory; None: the directory of the new version.
    dir: Option<HeldDir>,
    suffix: Vec<u8>,
}

impl BackupKeeper {
    /// Opens the directory that the options select; None if nothing is kept.
    pub fn new(root: &HeldDir, writing: &WriteOptions) -> Result<Option<Self>> {
        // The directory is named by the time of the run, so versions of different runs do not replace each
        // other.
        if writing.trash {
            let dir = create_unique_dir(&create_path(root, TRASH_DIR)?, &format_timestamp())?;
            return Ok(Some(Self { dir: Some(dir), suffix: Vec::new() }));
        }
        let Some(backup) = &writing.backup else { return Ok(None) };
        let dir = match &backup.dir {
            None => None,
            Some(path) if path.starts_with(b"/") => {
                use std::os::unix::ffi::OsStrExt;
                Some(open_or_create_dir(std::path::Path::new(std::ffi::OsStr::from_bytes(path)))?)
            }
            Some(path) => Some(create_path(root, path)?),
        };
        Ok(Some(Self { dir, suffix: backup.suffix.clone() }))
    }

    /// Keeps an entry that will be replaced: it gets a second name.
    pub fn keep_replaced(&self, dir: &HeldDir, name: &[u8], path: &[u8]) -> Result<()> {
        let (to, kept) = self.open_backup_dir(dir, name, path)?;
        // A hard link leaves the old version under its own name until the new one replaces it there: no
        // moment without either.
        match dir.link_replacing(name, &to, &kept) {
            // The old version was removed meanwhile, so there is nothing to keep.
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) if is_link_refused(&error) => elsewhere::copy_entry(dir, name, &to, &kept),
            other => Ok(other?),
        }
    }

    /// Keeps an entry that will be deleted: it is moved.
    pub fn keep_deleted(&self, dir: &HeldDir, name: &[u8], path: &[u8]) -> Result<()> {
        let (to, kept) = self.open_backup_dir(dir, name, path)?;
        match dir.rename(name, &to, &kept) {
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) if error.errno() == Some(Errno::XDEV) => {
                // The copy is durable when this returns, so the original can go.
                elsewhere::copy_entry(dir, name, &to, &kept)?;
                Ok(dir.unlink(name)?)
            }
            other => Ok(other?),
        }
    }

    /// Keeps a copy with a temporary name in `dir` as the old version of `name`.
    pub fn keep_copy(&self, dir: &HeldDir, temp: &[u8], name: &[u8], path: &[u8]) -> Result<()> {
        let (to, kept) = self.open_backup_dir(dir, name, path)?;
        match dir.rename(temp, &to, &kept) {
            Err(error) if error.errno() == Some(Errno::XDEV) => {
                elsewhere::copy_entry(dir, temp, &to, &kept)?;
                Ok(dir.unlink(temp)?)
            }
            other => Ok(other?),
        }
    }

    /// The directory and the name for the kept version of a path.
    fn open_backup_dir(&self, dir: &HeldDir, name: &[u8], path: &[u8]) -> Result<(HeldDir, Vec<u8>)> {
        let kept = [name, &self.suffix].concat();
        let Some(root) = &self.dir else { return Ok((dir.clone(), kept)) };
        let parent = path.get(..path.len().saturating_sub(name.len())).unwrap_or_default();
        // The directories of the path are created again in the backup, so versions of different directories
        // do not meet.
        Ok((create_path(root, parent)?, kept))
    }
}

/// Opens the directory at an absolute path; missing directories are created.
fn open_or_create_dir(path: &std::path::Path) -> Result<HeldDir> {
    match (HeldDir::open_trusted_root(path), path.parent(), path.file_name()) {
        (Err(error), Some(parent), Some(name)) if error.is_not_found() => {
            create_path(&open_or_create_dir(parent)?, name.as_encoded_bytes())
        }
        (opened, _, _) => Ok(opened?),
    }
}

/// Creates a directory of this name, or of the name and a number: after the clock was set back a name can recur, and
/// the versions of an earlier run may not be replaced.
fn create_unique_dir(dir: &HeldDir, name: &str) -> Result<HeldDir> {
    let mut number = 1_u64;
    loop {
        let name = if number == 1 { name.to_owned() } else { format!("{name}-{number}") };
        match dir.create_dir(name.as_bytes(), PRIVATE) {
            Ok(()) => return Ok(dir.open_dir(name.as_bytes())?),
            Err(error) if error.errno() == Some(Errno::EXIST) => number += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Opens the directory at a path below another; missing directories are created.
pub(super) fn create_path(root: &HeldDir, path: &[u8]) -> Result<HeldDir> {
    let mut here = root.clone();
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
        match here.create_dir(name, PRIVATE) {
            Ok(()) => {}
            // Another thread or run creates the same directories. If the name is no directory, opening it
            // below fails.
            Err(error) if error.errno() == Some(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        here = here.open_dir(name)?;
    }
    Ok(here)
}

/// The current time in UTC, as a name.
fn format_timestamp() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H-%M-%S.%3fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_that_comes_again_has_a_directory_of_its_own() {
        let temp = tempfile::tempdir().unwrap();
        let root = HeldDir::open_root(temp.path()).unwrap();
        for name in ["then", "then-2", "then-3"] {
            create_unique_dir(&root, "then").unwrap();
            assert!(temp.path().join(name).is_dir(), "{name}");
        }
    }
}
