//! Mounts of volumes among those of this host.

use std::io;
use std::path::Path;

use vellum_fuse::MountFile;
use vellum_host::{exposition, mount_table};

pub use vellum_host::mount_table::{FilesystemDevice, MountTableEntry, read_process_mounts};

use crate::error::{CliError, Result};

/// What the kernel calls mounts of volumes.
const KIND: &str = "fuse.vellum";

/// Whether a mount is a volume's.
pub fn is_vellum_mount(mount: &MountTableEntry) -> bool {
    mount.kind == KIND
}

/// Reads what a volume's mount reports about itself. Fails if its process is gone.
pub fn read_mount_file(mount: &MountTableEntry) -> io::Result<MountFile> {
    let text = std::fs::read(mount.mountpoint.join(".vellum/mount.json"))?;
    serde_json::from_slice(&text).map_err(io::Error::other)
}

/// Reads what the filesystem of a mount reports about itself, by whichever mount of it shows that: a bind mount may show a
/// directory of it only, and something may be mounted over the file.
pub fn read_file_of_device(mount: &MountTableEntry) -> Result<io::Result<MountFile>> {
    let own = read_mount_file(mount);
    if own.is_ok() {
        return Ok(own);
    }
    let others = read_mounts()?;
    let whole = others.iter().filter(|other| other.device == mount.device && other.is_whole_filesystem());
    Ok(whole.map(read_mount_file).find(io::Result::is_ok).unwrap_or(own))
}

/// The filesystem that a directory is on; None if that cannot be told.
pub fn find_device(dir: &Path) -> Option<FilesystemDevice> {
    let number = rustix::fs::stat(dir).ok()?.st_dev;
    Some(FilesystemDevice { major: rustix::fs::major(number), minor: rustix::fs::minor(number) })
}

/// For how many seconds a mount has had something that is not in the store; `None` if this is unknown.
pub fn read_unpublished_age(mount: &MountTableEntry) -> Option<u64> {
    let text = std::fs::read_to_string(mount.mountpoint.join(".vellum/stats")).ok()?;
    let samples = exposition::parse_samples(&text);
    samples.get("vellum_unpublished_age_seconds").map(|seconds| seconds.max(0.0) as u64)
}

/// All mounts, in the order in which they were made.
pub fn read_mounts() -> Result<Vec<MountTableEntry>> {
    mount_table::read_mounts().map_err(CliError::io_error("read", "/proc/self/mountinfo"))
}

/// What is seen at a path: the last that was mounted there.
pub fn find_mount_at(mountpoint: &Path) -> Result<Option<MountTableEntry>> {
    // Mounts are listed in the order in which they were made, and a later one covers an earlier one.
    Ok(read_mounts()?.into_iter().rev().find(|mount| mount.mountpoint == mountpoint))
}
