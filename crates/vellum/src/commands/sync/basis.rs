//! `--link-dest`, `--copy-dest`, `--compare-dest`: where the directories are that are typed as paths from DST, and what is
//! in them.
//!
//! Invariant: a directory that is not there is remarked on, and the run goes on without it, as with rsync.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use vellum_host::ProgressMeter;
use vellum_sync::ends::local::LocalEnd;
use vellum_sync::ends::{ListingRequest, SourceEnd, SyncEnd};
use vellum_sync::model::listing::{EntryFlags, TreeListing};
use vellum_sync::model::options::{
    BASIS_DIRS_MAX, Basis, BasisUsage, CompareMethod, SyncOptions, resolve_missing_path,
};
use vellum_sync::plan::{PlanRemark, find_undecided_in_basis};

use super::args::WriteArgs;
use super::collect_digests;
use super::ends::DestinationEndpoint;
use super::sources::OpenedSources;
use crate::error::{CliError, Result};

/// The directories as typed.
pub fn parse_basis_dirs(typed: &WriteArgs) -> Result<Option<Basis>> {
    let uses = [
        (BasisUsage::Link, &typed.link_dest),
        (BasisUsage::Copy, &typed.copy_dest),
        (BasisUsage::LeaveOut, &typed.compare_dest),
    ];
    // clap refuses two of the three together: the first that was given is the only one.
    let Some((usage, dirs)) = uses.into_iter().find(|(_, dirs)| !dirs.is_empty()) else { return Ok(None) };
    if dirs.len() > BASIS_DIRS_MAX {
        let message =
            format!("{} directories are given, and at most {BASIS_DIRS_MAX} are looked at", dirs.len());
        return Err(CliError::usage_error(message, "name the newest ones"));
    }
    Ok(Some(Basis { usage, dirs: dirs.iter().map(|dir| dir.clone().into_vec()).collect() }))
}

/// The options with paths that do not depend on DST any more. What goes into DST under the name of a directory is looked
/// for under the same name.
pub fn resolve_basis_options(options: Arc<SyncOptions>, opened: &OpenedSources) -> Arc<SyncOptions> {
    let Some(basis) = &options.basis else { return options };
    let root = match &opened.into.remote {
        Some(remote) => Path::new(OsStr::from_bytes(&remote.path())).to_path_buf(),
        None => opened.into.path.clone(),
    };
    // Typed paths are relative to DST. A directory that goes into DST under its own name has DST above it.
    let typed = if opened.top.is_empty() { &*root } else { root.parent().unwrap_or(&root) };
    let dirs = basis.dirs.iter().map(|dir| {
        let path = typed.join(OsStr::from_bytes(dir)).join(OsStr::from_bytes(&opened.top));
        path.into_os_string().into_vec()
    });
    let basis = Some(Basis { usage: basis.usage, dirs: dirs.collect() });
    Arc::new(SyncOptions { basis, ..(*options).clone() })
}

/// What is in the basis directories.
#[derive(Default)]
pub struct Found {
    pub listings: Vec<TreeListing>,
    /// Those that are not there.
    pub missing: Vec<PlanRemark>,
}

/// Lists the basis directories, and hashes there, and in the source, what is compared by content.
pub fn list_basis_dirs(
    into: &DestinationEndpoint,
    wish: &ListingRequest,
    source: &dyn SourceEnd,
    from: &mut TreeListing,
    meter: &ProgressMeter,
) -> vellum_sync::Result<Found> {
    let mut found = Found::default();
    let Some(basis) = &wish.options.basis else { return Ok(found) };
    for path in &basis.dirs {
        let listing = match &into.remote {
            Some(remote) => {
                let destination = remote.path();
                let name = remote.target_name();
                // A connection has one target: it is the basis directory while that is listed, and the destination
                // again before an error is returned.
                remote.set_target(path.clone(), None);
                let listed = list_basis_dir(remote, wish, source, from, meter);
                remote.set_target(destination, name);
                listed?
            }
            None => {
                match LocalEnd::open_destination(&resolve_missing_path(Path::new(OsStr::from_bytes(path)))) {
                    Ok(local) => list_basis_dir(&local, wish, source, from, meter)?,
                    Err(error) if error.kind() == vellum_types::ErrorKind::NotFound => {
                        DestinationEndpoint::empty_listing()
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        // A root that is only implied stands for a directory that does not exist.
        if listing.root().flags().contains(EntryFlags::IMPLIED) {
            found.missing.push(PlanRemark::BasisMissing { path: path.clone() });
        }
        found.listings.push(listing);
    }
    Ok(found)
}

fn list_basis_dir(
    end: &dyn SyncEnd,
    wish: &ListingRequest,
    source: &dyn SourceEnd,
    from: &mut TreeListing,
    meter: &ProgressMeter,
) -> vellum_sync::Result<TreeListing> {
    let mut listing = end.list_entries(wish, meter)?;
    if wish.options.compare.by == CompareMethod::Content {
        let (ours, theirs) = find_undecided_in_basis(from, &listing, &wish.options);
        collect_digests(source, from, &ours, meter)?;
        collect_digests(end, &mut listing, &theirs, meter)?;
    }
    Ok(listing)
}
