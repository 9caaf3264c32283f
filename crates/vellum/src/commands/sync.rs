//! `vellum sync`: one directory made what another one is, here, on another host, or in a snapshot.

mod args;
mod backups;
mod basis;
mod chmod;
mod ends;
mod fake_super;
mod iconv;
mod itemize;
mod line_format;
mod list_only;
mod log;
mod meaning;
mod objects;
mod patience;
mod profile;
mod remote;
mod report;
mod rsync;
mod rules;
mod snapshot;
mod sources;
mod staging;
mod two_way;
mod watch;
mod whole_source;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use vellum_host::ProgressMeter;
use vellum_host::escape::format_path;
use vellum_sync::SyncError;
use vellum_sync::ends::remote::RemoteEnd;
use vellum_sync::ends::stored_stat::StoredStatSource;
use vellum_sync::ends::{ListingRequest, SourceEnd, SyncEnd, SyncSide};
use vellum_sync::local::moving;
use vellum_sync::local::receive::{DestinationEnd, StagingDirectories, SyncJob, SyncReport};
use vellum_sync::model::listing::{EntryFlags, ListingEntryId, TreeListing};
use vellum_sync::model::options::{DeletePhase, FollowSymlinks, SyncOptions};
use vellum_sync::model::owners;
use vellum_sync::plan::{SyncPlan, find_dir_links, find_undecided_files};
use vellum_sync::two_way::ConnectionHealth;

pub use args::{Args, profile_config_path};

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};
use crate::ui::progress::ProgressTask;
use ends::{DestinationEndpoint, SourceEndpoint};
use iconv::ShownRun;
use line_format::{LineFormat, SyncDirection};
use list_only::SourceLister;
use log::SyncLog;
use patience::RetryBudget;
use report::SyncRun;
use sources::{OpenedSources, RelativePath, SourceArg};

/// What to do after a stop.
const AGAIN: &str = "run the command again: it goes on where it stopped";

const TASK: ProgressTask = ProgressTask { first: "Listing", verb: "Synchronising", item: "step" };

/// What a run found on both sides, what it planned, and what came of it if it was carried out.
struct PlannedRun {
    from: TreeListing,
    to: TreeListing,
    plan: SyncPlan,
    done: Option<SyncReport>,
}

/// The listings of all directories of a run.
struct ListedTrees {
    from: TreeListing,
    to: TreeListing,
    basis: basis::Found,
}

/// The command line with the options of the profile that was named, if one was.
pub fn expand_named_profile(
    args: &Args,
    typed: impl Iterator<Item = OsString>,
) -> Result<Option<Vec<OsString>>> {
    args.show.profile.as_ref().map(|name| profile::expand_profile(name, typed)).transpose()
}

/// Synchronises.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    // A server is told its paths through the connection, and its command line has none.
    if !args.effort.server {
        whole_source::check_whole_sources(args, context)?;
    }
    match (args.effort.server, args.watch.watch) {
        (true, _) => remote::run_sync_server(),
        (false, _) if objects::names_service(args) => objects::run(args, context),
        (false, true) => watch::run(args, context),
        (false, false) => run_once(args, context, false),
    }
}

/// One run. `hides_idle`: nothing is printed if there was nothing to do.
fn run_once(args: &Args, context: &CommandContext, hides_idle: bool) -> Result<CommandOutcome> {
    if args.effort.credentials.is_some() {
        let message = "--credentials is for services, and both ends are elsewhere";
        return Err(CliError::usage_error(message, "vellum sync SRC s3://BUCKET/PREFIX --credentials NAME"));
    }
    args.rsync.refuse_unsupported()?;
    let typed_ends = split_typed_ends(args)?;
    fake_super::check_fake_super(args)?;
    iconv::parse_name_charsets(args)?;
    let options = Arc::new(meaning::parse_sync_options(args)?);
    let mut filters =
        args.rules.load_filters(context, args.preserve.recursive, args.delete.delete_excluded)?;
    filters.selection = filters.selection.map(|listed| listed.deleting_missing(options.delete.missing));
    let filters = Arc::new(filters);
    if args.two_way.two_way {
        refuse_one_way_options(args)?;
        return two_way::run(args, &options, &filters, context, hides_idle);
    }
    if options.delete.when != DeletePhase::Never && !(options.preserve.recursive) {
        return Err(CliError::usage_error("--delete requires recursion", "give -r or -a too"));
    }
    if options.moves {
        check_move_options(&options)?;
    }
    let source_args = typed_ends
        .sources
        .iter()
        .map(|typed| SourceArg::parse_source(typed, args, context))
        .collect::<Result<Vec<_>>>()?;
    check_destination_args(&source_args, args, &options)?;
    let Some(destination) = typed_ends.destination else {
        let is_listed = |source_arg: &SourceArg| !(options.ignore_missing && source_arg.is_missing(context));
        let source_args: Vec<SourceArg> = source_args.into_iter().filter(is_listed).collect();
        if source_args.is_empty() {
            return Ok(CommandOutcome::Done);
        }
        let options = fake_super::set_stored_stat_source(&options, args);
        return SourceLister { options: &options, filters: &filters, args, context }
            .list_sources(&source_args);
    };
    if let Some(typed) = &args.show.out_format {
        LineFormat::parse_format("--out-format", typed)?;
    }
    let log = SyncLog::open_log(&args.show, context)?;
    let base = sources::SourceSettings { options: &options, filters: &filters };
    let opened = sources::open_sources(&source_args, destination, base, args, context)?;
    let pair = SyncPair { opened, log, hides_idle };
    // No source exists, which an option allows: the destination is not even created.
    if pair.opened.is_nothing && !options.delete.missing {
        return Ok(CommandOutcome::Done);
    }
    if pair.opened.remotes.is_empty() {
        remote::refuse_remote_options(args)?;
    }
    if pair.opened.into.remote.is_none() {
        backups::check_backup_dir(&options, &pair.opened.into.path)?;
        staging::check_staging_dirs(&options, &pair.opened.into.path)?;
    }
    if let Some(log) = &pair.log {
        log.log_start(&pair.opened.words, args.show.dry_run)?;
    }
    let options = fake_super::set_stored_stat_sides(&options, args, &pair.opened)?;
    let outcome = pair.run_pair(args, &pair.adapt_options(&options), context);
    // A failure must be in the log, too, whose readers do not see the terminal.
    if let Some(log) = &pair.log {
        log.log_failure(&outcome, &context.ui)?;
    }
    outcome
}

/// What the command line names, as it was typed.
struct TypedEnds<'a> {
    sources: &'a [OsString],
    /// None: the sources are only listed.
    destination: Option<&'a OsString>,
}

fn split_typed_ends(args: &Args) -> Result<TypedEnds<'_>> {
    let message = "a source and a destination are needed";
    match args.ends.as_slice() {
        [] => Err(CliError::usage_error(message, "vellum sync SRC DST")),
        sources @ [_] if args.show.list_only => Ok(TypedEnds { sources, destination: None }),
        [_] => {
            let hint = "vellum sync SRC DST; 'vellum sync --list-only SRC' lists what is there";
            Err(CliError::usage_error(message, hint))
        }
        [sources @ .., destination] => {
            Ok(TypedEnds { sources, destination: Some(destination).filter(|_| !args.show.list_only) })
        }
    }
}

/// Refuses what cannot be meant for two sides that change each other.
fn refuse_one_way_options(args: &Args) -> Result<()> {
    if args.places.relative || args.places.mkpath || args.delete.remove_source_files {
        let message = "--relative, --mkpath and --remove-source-files have no meaning with --two-way";
        return Err(CliError::usage_error(message, "leave them out"));
    }
    if args.show.out_format.is_some() || args.show.log_file.is_some() {
        let message = "--out-format and --log-file are for one direction, not for --two-way";
        return Err(CliError::usage_error(message, "use --itemize, or --json for programs"));
    }
    Ok(())
}

/// Refuses what cannot be meant by where things are to go.
fn check_destination_args(source_args: &[SourceArg], args: &Args, options: &SyncOptions) -> Result<()> {
    if args.rules.has_path_lists() && args.rsync.flattens {
        let message = "--no-relative has no meaning with --files-from: listed paths keep their directories";
        return Err(CliError::usage_error(message, "leave it out"));
    }
    let is_whole = args.places.relative && source_args.iter().any(|source_arg| source_arg.named.is_none());
    if is_whole && !args.rules.has_path_lists() && !options.preserve.recursive && !args.preserve.dirs {
        return Err(CliError::usage_error(
            "the source is a directory, and neither -r nor -d is given",
            "give -r or -d",
        ));
    }
    Ok(())
}

/// Refuses what would take away more than was copied.
fn check_move_options(options: &SyncOptions) -> Result<()> {
    if options.delete.when != DeletePhase::Never {
        let message =
            "with --delete, what --remove-source-files took away would be deleted at the destination";
        return Err(CliError::usage_error(message, "give one of them"));
    }
    if options.preserve.follow != FollowSymlinks::Never {
        let message = "--remove-source-files does not take away what symlinks lead to";
        return Err(CliError::usage_error(message, "leave out -L, -k and the like"));
    }
    Ok(())
}

/// Refuses one directory as both ends; of two that lie one in the other, the inner one is not entered.
fn check_nesting(
    from: &SourceEndpoint,
    into: &mut DestinationEndpoint,
    typed: &OsString,
    context: &CommandContext,
) -> Result<[Option<(u64, u64)>; 2]> {
    use std::os::unix::fs::MetadataExt;
    // Directories on two hosts cannot lie in each other.
    let Some(source) = from.path.as_ref().filter(|_| into.remote.is_none()) else {
        return Ok([None, None]);
    };
    let base = context.resolve_local_path(std::path::Path::new(typed)).canonicalize().ok();
    let target = into.path.canonicalize().ok();
    if target.as_ref() == Some(source) {
        let shown = format_path(ends::argument_bytes(typed));
        return Err(CliError::usage_error(
            format!("source and destination are one directory, '{shown}'"),
            "",
        ));
    }
    let number = |path: &std::path::Path| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    // The typed directory comes first: where SRC goes into it under its own name, it is the outer one of the two.
    let inner =
        [base, target.clone()].into_iter().flatten().find(|path| path.starts_with(source) && path != source);
    // By device and inode number: the listing recognises the directory under any name.
    let avoided = inner.as_deref().and_then(number);
    let outer = target.filter(|target| source.starts_with(target)).and_then(|_| number(source));
    Ok([avoided, outer])
}

/// What is synchronised in one go.
struct SyncPair {
    opened: OpenedSources,
    log: Option<SyncLog>,
    /// Whether nothing is printed if there was nothing to do.
    hides_idle: bool,
}

impl SyncPair {
    fn run_pair(
        &self,
        args: &Args,
        options: &Arc<SyncOptions>,
        context: &CommandContext,
    ) -> Result<CommandOutcome> {
        let loud = args.show.wants_progress();
        let done =
            context.run_with_forced_progress(TASK, loud, |meter| self.run_with_retries(args, options, meter));
        let PlannedRun { mut from, mut to, mut plan, mut done } = done.with_resume_hint(AGAIN)?;
        if let Some(conversion) = self.opened.display_conversion() {
            ShownRun { from: &mut from, to: &mut to, plan: &mut plan, done: done.as_mut() }
                .convert_names(conversion);
        }
        let run = SyncRun {
            words: self.opened.words.clone(),
            from: &from,
            to: &to,
            plan: &plan,
            done: done.as_ref(),
            direction: self.direction(),
            notes: Vec::new(),
            hides_idle: self.hides_idle,
        };
        run.log_and_report(self.log.as_ref(), args, context)
    }

    fn direction(&self) -> SyncDirection {
        if self.opened.is_from_remote() { SyncDirection::Receive } else { SyncDirection::Send }
    }

    /// The options as they are for these ends.
    fn adapt_options(&self, options: &Arc<SyncOptions>) -> Arc<SyncOptions> {
        let adapted = match self.opened.remotes.is_empty() {
            false => Arc::new(remote::adapt_remote_options(options, self.opened.is_single)),
            true => backups::relativize_backup_dir(options, &self.opened.into.path),
        };
        staging::resolve_staging_options(basis::resolve_basis_options(adapted, &self.opened), &self.opened)
    }

    /// Works, and again from the start if the connection was lost: what arrived is there, and not sent again.
    fn run_with_retries(
        &self,
        args: &Args,
        options: &Arc<SyncOptions>,
        meter: &ProgressMeter,
    ) -> vellum_sync::Result<PlannedRun> {
        // Made outside of the loop: the retries count for the run, and not for each attempt.
        let mut patience = RetryBudget::new(options);
        loop {
            let outcome = self.run_attempt(args, options, meter);
            let remotes = &self.opened.remotes;
            let lines = ConnectionHealth {
                cuts: remotes.iter().map(RemoteEnd::count_disconnects).sum(),
                is_lost: remotes.iter().any(RemoteEnd::is_lost),
            };
            let failed =
                matches!(&outcome, Ok(PlannedRun { done: Some(report), .. }) if !report.problems.is_empty());
            // A request to stop counts more than the tries that are left.
            if meter.is_stopped() || !patience.should_retry(lines, failed, meter) {
                return outcome;
            }
        }
    }

    fn run_attempt(
        &self,
        args: &Args,
        options: &Arc<SyncOptions>,
        meter: &ProgressMeter,
    ) -> vellum_sync::Result<PlannedRun> {
        let OpenedSources { source, into, .. } = &self.opened;
        let source = &**source;
        // A run that was cut off may have made it.
        let is_missing = into.is_new && !into.path.is_dir();
        let present = if is_missing { None } else { Some(into.open_existing()?) };
        let mut trees = self.list_all_trees(present.as_deref(), options, meter)?;
        let options = &self.relist_dir_links(present.as_deref(), &mut trees, options, meter)?;
        let ListedTrees { mut from, mut to, basis } = trees;
        let options = owners::map_owners(&mut from, &to, options)?;
        // Declared out here, because the reference to it has to outlive the match.
        let stored;
        let (source, options): (&dyn SourceEnd, _) = match options.preserve.stored_stat.destination {
            true => {
                let (encoded, options) = StoredStatSource::encode_listing(source, &mut from, &options);
                stored = encoded;
                (&stored, options)
            }
            false => (source, options),
        };
        let options = &options;
        // Content is compared only where sizes and times leave open whether files differ.
        let (ours, theirs) = find_undecided_files(&from, &to, options);
        collect_digests(source, &mut from, &ours, meter)?;
        if let Some(present) = &present {
            collect_digests(&**present, &mut to, &theirs, meter)?;
        }
        let missing = match options.delete.missing {
            true => self.opened.missing_from(&from),
            false => Vec::new(),
        };
        let mut plan = SyncPlan::without_missing(&from, &to, &basis.listings, &missing, options);
        plan.remarks.extend(basis.missing);
        if args.show.dry_run {
            return Ok(PlannedRun { from, to, plan, done: None });
        }
        // Refused before the destination is made.
        if let Some(refusal) = &plan.refusal {
            return Err(SyncError::Refused(refusal.clone()));
        }
        // With --existing nothing is created, so the destination is not created either.
        if present.is_none() && options.compare.existing && plan.is_empty() {
            return Ok(PlannedRun { from, to, plan, done: Some(SyncReport::default()) });
        }
        let target = match present {
            Some(present) => present,
            // A rule leaves out all that was named: nothing is made for it.
            None if from.root().flags().contains(EntryFlags::WITHHELD) => {
                return Ok(PlannedRun { from, to, plan, done: Some(SyncReport::default()) });
            }
            None => {
                // Before the destination is made, so that a run that is refused leaves nothing behind.
                StagingDirectories::check_dirs(&into.path, &options.writing)?;
                into.open_or_create()?
            }
        };
        let job = SyncJob { plan: &plan, source, from: &from, to: &to, options };
        let mut report = target.execute_plan(&job, meter)?;
        // When the destination has everything: whatever cuts the run off, each file is at one of the ends at least.
        moving::remove_moved_entries(&job, &mut report, meter)?;
        Ok(PlannedRun { from, to, plan, done: Some(report) })
    }

    /// Lists the source, the destination, if it is there, and the basis directories.
    fn list_all_trees(
        &self,
        present: Option<&dyn DestinationEnd>,
        options: &Arc<SyncOptions>,
        meter: &ProgressMeter,
    ) -> vellum_sync::Result<ListedTrees> {
        let list_destination = || match present {
            Some(present) => {
                present.list_entries(&self.new_list_request(SyncSide::Destination, options)?, meter)
            }
            None => Ok(DestinationEndpoint::empty_listing()),
        };
        if options.basis.is_some() {
            // The end that has the destination lists one directory after the other, and that last into which it writes.
            let mut from = self.list_source_files(options, meter)?;
            let wish = self.new_list_request(SyncSide::Destination, options)?;
            let source = &*self.opened.source;
            let basis = basis::list_basis_dirs(&self.opened.into, &wish, source, &mut from, meter)?;
            return Ok(ListedTrees { from, to: list_destination()?, basis });
        }
        // Both sides are listed at the same time: on two disks, or two hosts, that takes as long as the slower one.
        std::thread::scope(|scope| {
            let to = scope.spawn(list_destination);
            let from = self.list_source_files(options, meter);
            // A thread that panicked has no result, and has printed why.
            let to = to.join().unwrap_or(Err(SyncError::Stopped));
            Ok(ListedTrees { from: from?, to: to?, basis: basis::Found::default() })
        })
    }

    /// Lists the destination anew as long as there are symlinks that count as directories; the options then name them.
    fn relist_dir_links(
        &self,
        present: Option<&dyn DestinationEnd>,
        trees: &mut ListedTrees,
        options: &Arc<SyncOptions>,
        meter: &ProgressMeter,
    ) -> vellum_sync::Result<Arc<SyncOptions>> {
        let mut options = Arc::clone(options);
        let Some(present) = present else { return Ok(options) };
        loop {
            // Each round finds the symlinks behind those that the preceding round found: it ends when there are no
            // more.
            let found = find_dir_links(&trees.from, &trees.to, &options.preserve);
            let known = &options.preserve.dir_links;
            let new: Vec<_> = found.into_iter().filter(|path| !known.contains(path)).collect();
            if new.is_empty() {
                return Ok(options);
            }
            let mut preserve = options.preserve.clone();
            preserve.dir_links.extend(new);
            options = Arc::new(SyncOptions { preserve, ..(*options).clone() });
            let request = self.new_list_request(SyncSide::Destination, &options)?;
            trees.to = present.list_entries(&request, meter)?;
        }
    }

    fn list_source_files(
        &self,
        options: &Arc<SyncOptions>,
        meter: &ProgressMeter,
    ) -> vellum_sync::Result<TreeListing> {
        let listing =
            self.opened.source.list_entries(&self.new_list_request(SyncSide::Source, options)?, meter)?;
        // With --relative, the path is a part of the source: only the listing shows that it is not there.
        let is_missing = |named: &&RelativePath| {
            listing.find_path(&self.opened.convert_planned_path(&named.path)).is_none()
        };
        for named in self.opened.named.iter().filter(is_missing) {
            if !options.ignore_missing && !named.is_excluded(&self.opened.filters)? {
                let what = "cannot read the source";
                let why = "it is not there".to_owned();
                return Err(SyncError::End { what, path: named.path.clone(), why });
            }
        }
        Ok(listing)
    }

    fn new_list_request(
        &self,
        side: SyncSide,
        options: &Arc<SyncOptions>,
    ) -> vellum_sync::Result<ListingRequest> {
        let OpenedSources { root, into, avoid: [source, destination], top, remotes, .. } = &self.opened;
        let root = match side {
            SyncSide::Source => root.as_ref().map(|root| root.as_os_str().as_bytes()).unwrap_or_default(),
            SyncSide::Destination => into.path.as_os_str().as_bytes(),
        };
        Ok(ListingRequest {
            side,
            options: options.clone(),
            rules: self.opened.filters_of(side).create_named_filter(side, root, top)?,
            top: top.clone(),
            avoid: if side == SyncSide::Source { *source } else { *destination },
            // The names of owners are needed by maps and by another host. Between two directories of this host, the
            // numbers mean the same users.
            owners: match side {
                SyncSide::Source => {
                    let has_rules = !(options.changes.users.is_empty() && options.changes.groups.is_empty());
                    has_rules || !remotes.is_empty() && !options.preserve.numeric_ids
                }
                SyncSide::Destination => true,
            },
        })
    }
}

/// Notes what files hash to of which the plan has to know it.
fn collect_digests(
    end: &(impl SyncEnd + ?Sized),
    listing: &mut TreeListing,
    files: &[ListingEntryId],
    meter: &ProgressMeter,
) -> vellum_sync::Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    for (id, digest) in files.iter().zip(end.hash_files(listing, files, meter)?) {
        if let Some(digest) = digest {
            listing.set_content_digest(*id, digest);
        }
    }
    Ok(())
}

/// A path in a worktree, from its root.
fn worktree_file_path(directory: &std::path::Path, path: &OsString) -> OsString {
    let mut typed = directory.as_os_str().to_os_string();
    typed.push("/");
    let slashes = path.as_bytes().iter().take_while(|byte| **byte == b'/').count();
    // Byte by byte: a name that is not UTF-8 stays what it is.
    typed.push(OsStr::from_bytes(path.as_bytes().get(slashes..).unwrap_or_default()));
    typed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_text_is_the_same_in_a_worktree() {
        let path = OsStr::from_bytes(b"//dir/\xff name").to_os_string();
        let file = worktree_file_path(std::path::Path::new("/tree"), &path);
        assert_eq!(file.as_bytes(), b"/tree/dir/\xff name");
    }
}
