//! `--fake-super`: which of the two ends keeps owners, modes and special files in extended attributes.

use std::sync::Arc;

use vellum_sync::model::options::{StoredStatSides, SyncOptions};

use super::args::Args;
use super::sources::OpenedSources;
use crate::error::{CliError, Result};

/// What `-M` may hand to the other side.
const FAKE_SUPER: &str = "--fake-super";
const SUPER: &str = "--super";

/// Sets which ends keep metadata in attributes. Between two directories of this host `--fake-super` is about both, as with
/// rsync; with another host it is about this one, and `-M--fake-super` about the other.
pub fn set_stored_stat_sides(
    options: &Arc<SyncOptions>,
    args: &Args,
    opened: &OpenedSources,
) -> Result<Arc<SyncOptions>> {
    let here = args.preserve.fake_super;
    let there = has_remote_option(args, FAKE_SUPER);
    let is_real_there = has_remote_option(args, SUPER);
    // On one host, rsync starts its receiver as the other side, so that -M is about the destination.
    let (source, destination) = match (opened.remotes.is_empty(), opened.into.remote.is_some()) {
        (true, _) => (here, (here || there) && !is_real_there),
        (false, true) => (here, there),
        (false, false) => (there, here),
    };
    if !source && !destination {
        return Ok(Arc::clone(options));
    }
    let mut options = SyncOptions::clone(options);
    let preserve = &mut options.preserve;
    preserve.stored_stat = StoredStatSides { source, destination };
    if preserve.acls {
        return Err(CliError::usage_error("--fake-super does not keep ACLs", "leave out --acls"));
    }
    // The attribute has fields for all three: one that was not copied would be recorded wrongly.
    if destination && !(preserve.owners && preserve.groups && preserve.modes) {
        let message = "--fake-super keeps owners, groups and modes, and some of them are not copied";
        return Err(CliError::usage_error(message, "give -a, or -o, -g and -p"));
    }
    Ok(Arc::new(options))
}

/// The same where a source is listed alone, wherever it is.
pub fn set_stored_stat_source(options: &Arc<SyncOptions>, args: &Args) -> Arc<SyncOptions> {
    let mut options = SyncOptions::clone(options);
    options.preserve.stored_stat.source = args.preserve.fake_super || has_remote_option(args, FAKE_SUPER);
    Arc::new(options)
}

fn has_remote_option(args: &Args, wanted: &str) -> bool {
    args.preserve.remote_option.iter().any(|option| option == wanted)
}

/// Refuses what `--fake-super` does not go with, and other options for the other side.
pub fn check_fake_super(args: &Args) -> Result<()> {
    let preserve = &args.preserve;
    if let Some(other) =
        preserve.remote_option.iter().find(|option| ![FAKE_SUPER, SUPER].contains(&option.as_str()))
    {
        let message = format!(
            "--remote-option does not take '{other}': the other side is given all other options anyway"
        );
        return Err(CliError::usage_error(message, "it takes only --fake-super and --super"));
    }
    if !(preserve.fake_super || has_remote_option(args, FAKE_SUPER)) {
        return Ok(());
    }
    if args.two_way.two_way || args.delete.remove_source_files {
        let message = "--fake-super has no meaning with --two-way and --remove-source-files";
        return Err(CliError::usage_error(message, "leave one of them out"));
    }
    Ok(())
}
