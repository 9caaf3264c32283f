//! From what was typed to what it means.

use std::os::unix::ffi::OsStringExt;

use rustix::process::geteuid;
use vellum_sync::local::receive::read_umask;
use vellum_sync::model::options::{
    AttributeRewrites, BackupLocation, CompareMethod, CompareOptions, DeleteLimit, DeleteOptions,
    DeletePhase, DeltaMode, EffortOptions, FollowSymlinks, PreserveOptions, StoredStatSides, SymlinkHandling,
    SyncOptions, WriteOptions,
};

use super::args::{self, Args};
use super::{basis, chmod, staging};
use crate::error::{CliError, Result};

/// Nanoseconds of a second.
const NANOS: f64 = 1e9;

/// The options of the run.
pub fn parse_sync_options(args: &Args) -> Result<SyncOptions> {
    Ok(SyncOptions {
        preserve: parse_preserve(args),
        compare: parse_compare(&args.which)?,
        delete: parse_delete(&args.delete)?,
        writing: parse_write_options(args)?,
        basis: basis::parse_basis_dirs(&args.writing)?,
        changes: parse_attribute_changes(&args.preserve)?,
        effort: parse_effort(&args.effort)?,
        detect_renames: args.which.detect_renames,
        one_filesystem: args.preserve.one_file_system,
        // As with rsync, --delete-missing-args means --ignore-missing-args, too.
        ignore_missing: args.which.ignore_missing_args || args.delete.delete_missing_args,
        // A source is removed only if it is still what was copied, which its stamp shows.
        stamps: args.delete.remove_source_files,
        moves: args.delete.remove_source_files,
    })
}

fn parse_preserve(args: &Args) -> PreserveOptions {
    let typed = &args.preserve;
    let any = [
        typed.recursive,
        typed.links,
        typed.perms,
        typed.times,
        typed.group,
        typed.owner,
        typed.devices_specials,
        typed.devices,
        typed.specials,
        typed.no_recursive,
        typed.dirs,
    ];
    // Without a word about it, everything that makes a copy one.
    let archive = typed.archive || !any.contains(&true);
    // In a run both ways each side receives; else it is known when the destination was listed.
    let privileged = !args.two_way.two_way || geteuid().is_root();
    PreserveOptions {
        recursive: (archive || typed.recursive) && !typed.no_recursive,
        times: (archive || typed.times) && !typed.no_times,
        // Old versions beside the new ones move the times of directories in each run.
        omit_dir_times: typed.omit_dir_times || args.delete.backup && args.delete.backup_dir.is_none(),
        omit_link_times: typed.omit_link_times,
        // As with rsync, --acls means --perms, too: the mode of a file with an ACL shows a part of that ACL.
        modes: (archive || typed.perms || typed.acls) && !typed.no_perms,
        executability: typed.executability,
        // Nobody else may give files away, and a difference that cannot be mended is none to tell each time.
        owners: (archive || typed.owner || typed.usermap.is_some()) && !typed.no_owner && privileged,
        groups: (archive || typed.group || typed.groupmap.is_some()) && !typed.no_group && privileged,
        receiver: None,
        numeric_ids: typed.numeric_ids,
        // What was named by its whole path is reached through directories, and they are made.
        dirs: typed.dirs || args.places.relative || args.rules.has_path_lists(),
        prune_empty: args.which.prune_empty_dirs,
        bare_way: args.places.no_implied_dirs,
        follow: parse_follow_mode(typed),
        keep_dir_links: typed.keep_dirlinks,
        dir_links: Vec::new(),
        safe_links: typed.safe_links,
        symlinks: if (archive || typed.links) && !typed.no_links {
            SymlinkHandling::Keep
        } else {
            SymlinkHandling::Skip
        },
        devices: (archive || typed.devices_specials || typed.devices)
            && !(typed.no_devices || typed.no_devices_specials)
            && privileged,
        specials: (archive || typed.devices_specials || typed.specials)
            && !(typed.no_specials || typed.no_devices_specials),
        hard_links: typed.hard_links,
        xattrs: typed.xattrs,
        acls: typed.acls,
        // Known when the ends are.
        stored_stat: StoredStatSides::default(),
        atimes: typed.atimes,
        sparse: typed.sparse,
    }
}

/// Whether a directory that is named itself is copied alone, without what is in it (`-d`).
pub fn copies_dirs_alone(typed: &args::PreserveArgs) -> bool {
    typed.dirs && (typed.no_recursive || !(typed.archive || typed.recursive))
}

/// Which symlinks are followed.
pub fn parse_follow_mode(typed: &args::PreserveArgs) -> FollowSymlinks {
    match (typed.copy_links, typed.copy_unsafe_links, typed.copy_dirlinks) {
        (true, _, _) => FollowSymlinks::Always,
        (_, true, _) => FollowSymlinks::Outside,
        (_, _, true) => FollowSymlinks::Dirs,
        _ => FollowSymlinks::Never,
    }
}

fn parse_compare(typed: &args::SelectionArgs) -> Result<CompareOptions> {
    let by = match (typed.ignore_times, typed.checksum, typed.size_only) {
        (true, _, _) => CompareMethod::Nothing,
        (_, true, _) => CompareMethod::Content,
        (_, _, true) => CompareMethod::Size,
        _ => CompareMethod::SizeAndTime,
    };
    let window = typed.modify_window.unwrap_or(0.0);
    // The range excludes NaN, too, and all that 64 bits of nanoseconds cannot express.
    if !(0.0..=1e9).contains(&window) {
        return Err(CliError::usage_error(
            format!("'{window}' is not a number of seconds"),
            "--modify-window=1",
        ));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be in range")]
    let modify_window = (window * NANOS) as u64;
    let update = typed.update;
    let existing = typed.existing;
    let ignore_existing = typed.ignore_existing;
    Ok(CompareOptions { by, modify_window, update, existing, ignore_existing })
}

fn parse_delete(typed: &args::DeleteArgs) -> Result<DeleteOptions> {
    // As with rsync, --delete-excluded alone means --delete, too.
    let when = match (typed.delete_before, typed.delete || typed.delete_after || typed.delete_excluded) {
        (true, _) => DeletePhase::Before,
        (_, true) => DeletePhase::After,
        _ => DeletePhase::Never,
    };
    let max = typed.max_delete.as_ref().map(|typed| parse_delete_limit(typed)).transpose()?;
    let force = typed.force_delete;
    let excluded = typed.delete_excluded;
    let obstacles = typed.force;
    let missing = typed.delete_missing_args;
    Ok(DeleteOptions { when, max, force, excluded, missing, obstacles })
}

fn parse_delete_limit(typed: &str) -> Result<DeleteLimit> {
    let parsed = match typed.strip_suffix('%') {
        Some(share) => share.parse().ok().filter(|share| *share <= 100).map(DeleteLimit::Percent),
        None => typed.parse().ok().map(DeleteLimit::Entries),
    };
    parsed.ok_or_else(|| {
        CliError::usage_error(
            format!("'{typed}' is not a limit on deletions"),
            "--max-delete=100 or --max-delete=10%",
        )
    })
}

fn parse_write_options(args: &Args) -> Result<WriteOptions> {
    let typed = &args.writing;
    let kept = &args.delete;
    let delta = match typed.delta {
        Some(args::DeltaArg::Always) => DeltaMode::Always,
        Some(args::DeltaArg::Never) => DeltaMode::Never,
        None if typed.whole_file => DeltaMode::Never,
        None if typed.no_whole_file => DeltaMode::Always,
        Some(args::DeltaArg::Auto) | None => DeltaMode::Auto,
    };
    let dir = kept.backup_dir.clone().map(OsStringExt::into_vec);
    // As with rsync: beside the files, backups need a suffix to have a name of their own; in another directory they
    // need none.
    let suffix = match (&kept.suffix, &dir) {
        (Some(suffix), _) => suffix.clone().into_vec(),
        (None, Some(_)) => Vec::new(),
        (None, None) => b"~".to_vec(),
    };
    // With '..', a backup could be written to a place that a later run copies, and so be backed up again.
    let bad = |bytes: &[u8]| bytes.split(|byte| *byte == b'/').any(|name| name == b"..");
    if suffix.contains(&b'/') || dir.is_none() && suffix.is_empty() || dir.as_deref().is_some_and(bad) {
        let message = "a backup needs a place of its own: a suffix without '/', or a directory without '..'";
        return Err(CliError::usage_error(message, "for example --suffix .old, or --backup-dir DIR"));
    }
    if typed.delay_updates && (typed.in_place || typed.append || typed.append_verify) {
        let message = "--delay-updates has no meaning where files are written over in place";
        return Err(CliError::usage_error(message, "leave out --in-place, --append or --append-verify"));
    }
    let staging = staging::parse_staging_dirs(typed)?;
    // As with rsync, --backup-dir means --backup, too.
    let backup = (kept.backup || dir.is_some()).then_some(BackupLocation { dir, suffix });
    Ok(WriteOptions {
        delta,
        in_place: typed.in_place,
        append: typed.append || typed.append_verify,
        append_compared: typed.append_verify,
        partial_dir: staging.partial,
        temp_dir: staging.temp,
        delays_names: typed.delay_updates,
        // As with rsync, -P is short for --partial and --progress.
        resume: typed.resume || args.show.partial_progress,
        backup,
        trash: kept.trash,
        unchanged: false,
        fsync: typed.fsync,
        verify: typed.verify,
    })
}

fn parse_attribute_changes(typed: &args::PreserveArgs) -> Result<AttributeRewrites> {
    let mut modes = Vec::new();
    for typed in &typed.chmod {
        modes.extend(chmod::parse_mode_changes(typed, read_umask())?);
    }
    let (owner, group) =
        typed.chown.as_ref().map_or(Ok((None, None)), |typed| chmod::parse_owner_and_group(typed))?;
    // Refused by rsync as well: its --chown is another form of the two maps.
    if (typed.usermap.is_some() && owner.is_some()) || (typed.groupmap.is_some() && group.is_some()) {
        return Err(CliError::usage_error(
            "--chown cannot be combined with --usermap or --groupmap",
            "give one of them",
        ));
    }
    let rules = |typed: &Option<String>| {
        typed.as_ref().map_or(Ok(Vec::new()), |typed| chmod::parse_owner_rules(typed))
    };
    let users = rules(&typed.usermap)?;
    let groups = rules(&typed.groupmap)?;
    Ok(AttributeRewrites { modes, owner, group, users, groups })
}

fn parse_effort(typed: &args::EffortArgs) -> Result<EffortOptions> {
    let rate = |typed: &String| {
        // A rate can be typed as it is printed, with '/s'.
        let size = typed.strip_suffix("/s").unwrap_or(typed);
        // As with rsync, a number alone counts kibibytes.
        let text = match size.ends_with(|last: char| last.is_ascii_digit()) {
            true => format!("{size}K"),
            false => size.to_owned(),
        };
        vellum_sync::rules::parse_size(&text).ok_or_else(|| {
            CliError::usage_error(format!("'{typed}' is not a rate"), "--bwlimit=500K, --bwlimit=1.5M")
        })
    };
    // As with rsync, 0 means no limit.
    let bandwidth = typed.bwlimit.as_ref().map(rate).transpose()?.filter(|rate| *rate > 0);
    let timeout = typed.timeout.filter(|seconds| *seconds > 0).map(|seconds| u64::from(seconds) * 1000);
    Ok(EffortOptions { jobs: typed.jobs, bandwidth, retries: typed.retries, timeout })
}
