//! Where old versions go, if that is named by a whole path.
//!
//! Invariant: a backup directory that lies in the destination is known as such, so that no run deletes what is in it.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use vellum_sync::model::options::{BackupLocation, SyncOptions};
use vellum_volume::own_place::resolve_existing_path;

use super::ends::check_option_dir;
use crate::error::Result;

/// The options with the backup directory as a path from the destination, if it lies there.
pub fn relativize_backup_dir(options: &Arc<SyncOptions>, destination: &Path) -> Arc<SyncOptions> {
    let dir = options.writing.backup.as_ref().and_then(|backup| backup.dir.as_deref());
    let dir = dir
        .filter(|dir| dir.starts_with(b"/"))
        .map(|dir| resolve_existing_path(Path::new(OsStr::from_bytes(dir))));
    let below =
        dir.and_then(|dir| Some(dir.strip_prefix(resolve_existing_path(destination)).ok()?.to_path_buf()));
    let Some(below) = below.filter(|below| !below.as_os_str().is_empty()) else { return Arc::clone(options) };
    let mut options = (**options).clone();
    let suffix = options.writing.backup.map(|backup| backup.suffix).unwrap_or_default();
    options.writing.backup = Some(BackupLocation { dir: Some(below.into_os_string().into_vec()), suffix });
    Arc::new(options)
}

/// Refuses a backup directory that Vellum keeps for itself.
pub fn check_backup_dir(options: &SyncOptions, destination: &Path) -> Result<()> {
    let dir = options.writing.backup.as_ref().and_then(|backup| backup.dir.as_deref());
    dir.map_or(Ok(()), |dir| check_option_dir(&destination.join(OsStr::from_bytes(dir))))
}
