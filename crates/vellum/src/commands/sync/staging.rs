//! `--temp-dir` and `--partial-dir`: where the directories are that are typed as paths from DST.
//!
//! Invariant: a directory that lies in the destination is known as such, so that no run deletes it. Deliberately absent:
//! opening them (see `vellum_sync::local::receive`).

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use vellum_sync::model::options::SyncOptions;
use vellum_volume::own_place::resolve_existing_path;

use super::args::WriteArgs;
use super::ends::check_option_dir;
use super::sources::OpenedSources;
use crate::error::{CliError, Result};

/// Directories for files that are not complete, as typed.
pub struct StagingArgs {
    /// `--temp-dir`
    pub temp: Option<Vec<u8>>,
    /// `--partial-dir`
    pub partial: Option<Vec<u8>>,
}

/// The temporary directory and the partial directory as typed.
pub fn parse_staging_dirs(typed: &WriteArgs) -> Result<StagingArgs> {
    let temp = typed.temp_dir.clone().map(OsStringExt::into_vec);
    let partial = typed.partial_dir.clone().map(OsStringExt::into_vec);
    if temp.as_ref().is_some_and(Vec::is_empty) {
        return Err(CliError::usage_error("--temp-dir needs a directory", "for example --temp-dir /var/tmp"));
    }
    // A relative directory is created beside each file, so that it cannot be a path of several names.
    let is_name = |dir: &[u8]| !dir.is_empty() && !dir.contains(&b'/') && dir != b"." && dir != b"..";
    if partial.as_ref().is_some_and(|dir| !dir.starts_with(b"/") && !is_name(dir)) {
        return Err(CliError::usage_error(
            "--partial-dir takes one name, or an absolute path",
            "for example --partial-dir .partial",
        ));
    }
    Ok(StagingArgs { temp, partial })
}

/// The options with the temporary directory as a path from the directory into which is written.
pub fn resolve_staging_options(options: Arc<SyncOptions>, opened: &OpenedSources) -> Arc<SyncOptions> {
    let Some(typed) = &options.writing.temp_dir else { return options };
    let is_absolute = typed.starts_with(b"/");
    let temp_dir = match opened.into.remote {
        // What goes into DST under the name of a directory has DST above it.
        _ if !is_absolute && !opened.top.is_empty() => [b"../", &typed[..]].concat(),
        None if is_absolute => {
            let real_temp = resolve_existing_path(Path::new(OsStr::from_bytes(typed)));
            let below = real_temp.strip_prefix(resolve_existing_path(&opened.into.path)).ok();
            below
                .map_or_else(|| typed.clone(), |below| Path::new(".").join(below).into_os_string().into_vec())
        }
        _ => return options,
    };
    let mut options = (*options).clone();
    options.writing.temp_dir = Some(temp_dir);
    Arc::new(options)
}

/// Refuses directories that Vellum keeps for itself.
pub fn check_staging_dirs(options: &SyncOptions, destination: &Path) -> Result<()> {
    let writing = &options.writing;
    [&writing.temp_dir, &writing.partial_dir]
        .into_iter()
        .flatten()
        .try_for_each(|dir| check_option_dir(&destination.join(OsStr::from_bytes(dir))))
}
