//! The directory that something is to be mounted on.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::MountingError;
use super::table;
use crate::error::{CliError, Result};
use crate::probe::is_mount_answering;

/// The absolute path of a typed mountpoint, without symlinks above it. The directory itself is not looked at: a mount
/// whose process is gone refuses even that.
pub fn resolve_mountpoint(typed: &Path) -> Result<PathBuf> {
    let missing = || MountingError::Missing(typed.into());
    let (Some(parent), Some(name)) = (typed.parent(), typed.file_name()) else {
        // `/`, or a path that ends in `..`.
        return typed.canonicalize().map_err(|_| missing().into());
    };
    let parent = parent.canonicalize().map_err(|_| missing())?;
    let path = parent.join(name);
    // The kernel would ask a mount's process, which may be stopped.
    if table::find_mount_at(&path)?.is_some() {
        return Ok(path);
    }
    match path.symlink_metadata() {
        // A symlink to a mountpoint stands for it: the kernel follows it when it mounts.
        Ok(found) if found.is_symlink() => path.canonicalize().map_err(|_| missing().into()),
        _ => Ok(path),
    }
}

/// Makes sure that something can be mounted here. What a killed process left mounted is taken away.
pub fn prepare_mountpoint(mountpoint: &Path) -> Result<()> {
    // The kernel's table comes first: any access to a mount whose process is gone fails with ENOTCONN.
    if let Some(mount) = table::find_mount_at(mountpoint)? {
        if !table::is_vellum_mount(&mount) || !is_dead_or_dying(&mount) {
            let what = if table::is_vellum_mount(&mount) { "a volume".into() } else { mount.kind };
            return Err(MountingError::Mounted { what, mountpoint: mountpoint.into() }.into());
        }
        // Another mount may lie beneath the one that was just detached.
        vellum_fuse::detach_mount(mountpoint).map_err(MountingError::from)?;
        return prepare_mountpoint(mountpoint);
    }
    match mountpoint.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(MountingError::Missing(mountpoint.into()).into());
        }
        Err(error) => return Err(CliError::io_error("look at", mountpoint.display().to_string())(error)),
        Ok(found) if !found.is_dir() => return Err(MountingError::NotDirectory(mountpoint.into()).into()),
        Ok(_) => {}
    }
    let mut entries =
        mountpoint.read_dir().map_err(CliError::io_error("list", mountpoint.display().to_string()))?;
    // The mount would hide what is in the directory.
    if entries.next().is_some() {
        return Err(MountingError::NotEmpty(mountpoint.into()).into());
    }
    Ok(())
}

/// How long the kernel may take to end the mount of a process that was killed.
const TEARDOWN: Duration = Duration::from_millis(2500);

/// How often this is checked.
const TEARDOWN_STEP: Duration = Duration::from_millis(10);

/// Whether no process serves a mount. A process that was killed a moment ago still has it until the kernel has closed
/// what it had open: that is waited for.
fn is_dead_or_dying(mount: &table::MountTableEntry) -> bool {
    // One that is stopped is not dead, and would hold up whoever asks it more.
    if !is_mount_answering(&mount.mountpoint) {
        return false;
    }
    let start = Instant::now();
    while !mount.is_dead() {
        // An answer shows that a process serves the mount.
        if table::read_mount_file(mount).is_ok() || start.elapsed() > TEARDOWN {
            return false;
        }
        std::thread::sleep(TEARDOWN_STEP);
    }
    true
}
