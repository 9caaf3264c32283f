//! `vellum sync --two-way`: what changed on either side since both agreed goes to the other.
//!
//! Invariant: the archive is locked before either side is looked at, and written after everything is done. Deliberately
//! absent: what is decided about an entry (see `vellum_sync::two_way`).

mod ask;
mod report;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use vellum_host::ProgressMeter;
use vellum_host::beneath::BeneathError;
use vellum_host::escape::format_path;
use vellum_host::process::host_name;
use vellum_sync::ends::SyncSide;
use vellum_sync::ends::local::LocalEnd;
use vellum_sync::model::options::{AttributeRewrites, CompareMethod, FollowSymlinks, SyncOptions};
use vellum_sync::remote::session::ServerRole;
use vellum_sync::rules::SyncFilters;
use vellum_sync::two_way::{
    ConflictRule, FarDirectory, FoundArchive, LockedArchive, TwoWayArchive, TwoWayEnd, TwoWayListings,
    TwoWayPair, TwoWayPlan, TwoWayReport, TwoWayRequest, TwoWaySide, TwoWaySync,
};
use vellum_volume::state::find_user_state_dir;

use super::args::Args;
use super::ends::{self, EndpointArg};
use super::patience::RetryBudget;
use super::{AGAIN, TASK, remote, worktree_file_path};
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};

/// Both directions.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Two-way and continuous runs")]
pub struct TwoWayArgs {
    /// Copy changes of each side to the other, including deletions
    #[arg(long)]
    pub two_way: bool,
    /// How to resolve changes of both sides
    #[arg(
        long,
        value_name = "RULE",
        requires = "two_way",
        default_value = "keep-both",
        hide_default_value = true
    )]
    pub conflict: ConflictArg,
}

/// How to resolve changes of both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ConflictArg {
    /// The later change replaces the earlier one, which goes to the trash
    Newer,
    /// The larger file replaces the smaller one, which goes to the trash
    Larger,
    /// The first side's replaces the second's, which goes to the trash
    Source,
    /// The second side's replaces the first's, which goes to the trash
    Dest,
    /// The later change keeps the name, the other one is renamed (the default)
    KeepBoth,
    /// Ask on the terminal
    Ask,
}

impl ConflictArg {
    fn to_rule(self) -> ConflictRule {
        match self {
            Self::Newer => ConflictRule::Newer,
            Self::Larger => ConflictRule::Larger,
            Self::Source => ConflictRule::Source,
            Self::Dest => ConflictRule::Dest,
            Self::KeepBoth => ConflictRule::KeepBoth,
            Self::Ask => ConflictRule::Ask,
        }
    }
}

/// A run that was planned, and perhaps carried out.
struct TwoWayRun {
    sight: TwoWayListings,
    plan: TwoWayPlan,
    done: Option<TwoWayReport>,
    /// The pair has no archive, and why not if it should have one.
    first: Option<Option<String>>,
    /// Whether nothing is printed if there was nothing to do.
    hides_idle: bool,
}

/// Brings two directories together.
pub fn run(
    args: &Args,
    options: &SyncOptions,
    filters: &Arc<SyncFilters>,
    context: &CommandContext,
    hides_idle: bool,
) -> Result<CommandOutcome> {
    let [first, second] = args.ends.as_slice() else {
        return Err(CliError::usage_error("--two-way takes two sides", "vellum sync --two-way A B"));
    };
    let mut options = validate_options(options, filters)?;
    // Checked before anything is listed, which may take long.
    if asks_about_conflicts(args) && !context.ui.can_prompt() {
        let message = "--conflict ask asks on a terminal, and there is none";
        return Err(CliError::usage_error(message, "choose another rule, for example --conflict keep-both"));
    }
    let sides = TwoWayEndpoints::new([first, second], context)?;
    if sides.has_remote() {
        options = remote::adapt_remote_options(&options, false);
    } else {
        remote::refuse_remote_options(args)?;
    }
    // Locked until the run has ended: of two runs of one pair at the same time, the later archive would lack what the
    // other run did.
    let archive_file = LockedArchive::open(&archive_dir()?, sides.archive_pair())?;
    let (archive, first) = match archive_file.load_archive()? {
        FoundArchive::Archive(archive) => (*archive, None),
        FoundArchive::Nothing => (TwoWayArchive::new(sides.archive_pair()), Some(None)),
        // Without an archive nothing counts as deleted: a damaged one costs conflicts, and never files.
        FoundArchive::Unusable(why) => {
            (TwoWayArchive::new(sides.archive_pair()), Some(Some(why.to_string())))
        }
    };
    let ends = sides.open_endpoints(first.is_some(), args)?;
    let rules =
        [sides.filter_judge(filters, TwoWaySide::First)?, sides.filter_judge(filters, TwoWaySide::Second)?];
    let request = TwoWayRequest {
        options,
        rule: args.two_way.conflict.to_rule(),
        answers: Default::default(),
        held: Default::default(),
        labels: sides.version_labels(),
        hidden: Default::default(),
    };
    let mut two_way = TwoWaySync { ends: [&*ends[0], &*ends[1]], rules, request };
    let ran = execute_two_way(&mut two_way, &archive, &archive_file, args, context)?;
    report::report_two_way_run(&TwoWayRun { first, hides_idle, ..ran }, &sides, args, context)
}

fn asks_about_conflicts(args: &Args) -> bool {
    args.two_way.conflict == ConflictArg::Ask && !args.show.dry_run
}

fn execute_two_way(
    two_way: &mut TwoWaySync<'_>,
    archive: &TwoWayArchive,
    archive_file: &LockedArchive,
    args: &Args,
    context: &CommandContext,
) -> Result<TwoWayRun> {
    let loud = args.show.progress || args.show.partial_progress;
    // One budget for both parts: --retries counts for the whole run.
    let mut patience = RetryBudget::new(&two_way.request.options);
    let looked = context.run_with_forced_progress(TASK, loud, |meter| {
        loop {
            let looked = scan_and_plan(two_way, archive, meter);
            if looked.is_ok()
                || meter.is_stopped()
                || !patience.should_retry(two_way.connection_health(), false, meter)
            {
                return looked;
            }
        }
    });
    let (sight, mut plan) = looked.with_resume_hint(AGAIN)?;
    // Nothing has been done by now: the user may take any time to answer, or stop here.
    if asks_about_conflicts(args) && plan.open_conflicts().next().is_some() {
        two_way.request.answers = ask::ask_about_conflicts(&plan, &sight, context)?;
        plan = two_way.build_plan(archive, &sight)?;
    }
    if args.show.dry_run {
        return Ok(TwoWayRun { sight, plan, done: None, first: None, hides_idle: false });
    }
    // The archive is a copy, because it moves on with each attempt.
    let mut work =
        TwoWayExecution { two_way, archive: archive.clone(), archive_file, report: TwoWayReport::default() };
    let done = context.run_with_forced_progress(TASK, loud, |meter: &ProgressMeter| {
        let mut outcome = work.perform_plan(&sight, &plan, meter);
        // After a cut, entries that failed are tried again, too: what the other side was still writing can have been in
        // the way.
        while !meter.is_stopped() {
            let failed = outcome.is_ok() && work.report.has_problems();
            if !patience.should_retry(work.two_way.connection_health(), failed, meter) {
                break;
            }
            outcome = work.retry_plan(meter);
        }
        outcome
    });
    done.with_resume_hint(AGAIN)?;
    Ok(TwoWayRun { sight, plan, done: Some(work.report), first: None, hides_idle: false })
}

fn scan_and_plan(
    two_way: &mut TwoWaySync<'_>,
    archive: &TwoWayArchive,
    meter: &ProgressMeter,
) -> vellum_sync::Result<(TwoWayListings, TwoWayPlan)> {
    let sight = two_way.collect_listings(archive, meter)?;
    let plan = two_way.build_plan(archive, &sight)?;
    Ok((sight, plan))
}

/// A run that is carried out, in as many attempts as its connections need.
struct TwoWayExecution<'w, 'e> {
    two_way: &'w mut TwoWaySync<'e>,
    archive: TwoWayArchive,
    archive_file: &'w LockedArchive,
    report: TwoWayReport,
}

impl TwoWayExecution<'_, '_> {
    fn perform_plan(
        &mut self,
        sight: &TwoWayListings,
        plan: &TwoWayPlan,
        meter: &ProgressMeter,
    ) -> vellum_sync::Result<()> {
        // The run can be killed between the renames and the rest. An attempt after a lost connection begins with
        // this archive, too.
        if let Some(before) = plan.archive_before_renames(&self.archive)? {
            self.archive_file.save_archive(&before)?;
            self.archive = before;
        }
        let (report, after) = self.two_way.execute_plan(&self.archive, sight, plan, meter)?;
        self.report.merge_later(report);
        // An empty archive is written, too: with it, the next run is no first run.
        if let Some(after) = after.filter(|after| self.archive.is_empty() || *after != self.archive) {
            self.archive_file.save_archive(&after)?;
            self.archive = after;
        }
        Ok(())
    }

    /// Does what is left to do: what arrived is on both sides, and not sent again.
    fn retry_plan(&mut self, meter: &ProgressMeter) -> vellum_sync::Result<()> {
        let (sight, plan) = scan_and_plan(self.two_way, &self.archive, meter)?;
        self.perform_plan(&sight, &plan, meter)
    }
}

/// The options of a two-way run; some of a one-way run have no meaning here.
fn validate_options(options: &SyncOptions, filters: &SyncFilters) -> Result<SyncOptions> {
    let compare = &options.compare;
    let writing = &options.writing;
    // Refused and not ignored, because the user would rely on them. Most of these let the sides differ on purpose,
    // which the next run would take for a change of one side.
    let senseless = [
        (
            matches!(compare.by, CompareMethod::Size | CompareMethod::Nothing),
            "--size-only and --ignore-times",
        ),
        (
            compare.update || compare.existing || compare.ignore_existing,
            "--update, --existing and --ignore-existing",
        ),
        (writing.temp_dir.is_some() || writing.delays_names, "--temp-dir and --delay-updates"),
        (writing.in_place || writing.append, "--in-place, --append and --append-verify"),
        (
            options.preserve.follow != FollowSymlinks::Never || options.preserve.safe_links,
            "--copy-links and its like",
        ),
        (options.delete.missing, "--delete-missing-args"),
        (options.preserve.keep_dir_links, "--keep-dirlinks"),
        (options.preserve.prune_empty, "--prune-empty-dirs"),
        (options.basis.is_some(), "--link-dest, --copy-dest and --compare-dest"),
        (options.changes != AttributeRewrites::default(), "--chmod, --chown, --usermap and --groupmap"),
        (!options.preserve.recursive || !options.preserve.times, "--no-recursive and --no-times"),
        (options.delete.excluded || filters.selection.is_some(), "--delete-excluded and --files-from"),
    ];
    if let Some((_, names)) = senseless.iter().find(|(is, _)| *is) {
        let message = format!("{names} have no meaning with --two-way");
        return Err(CliError::usage_error(message, "leave them out"));
    }
    Ok(SyncOptions { stamps: true, ..options.clone() })
}

/// Where archives are kept.
fn archive_dir() -> Result<PathBuf> {
    let message = "there is no place for the archive: neither XDG_STATE_HOME nor HOME is set";
    let dir = find_user_state_dir().ok_or_else(|| CliError::usage_error(message, "set one of them"))?;
    Ok(dir.join("sync"))
}

/// The two directories.
struct TwoWayEndpoints {
    typed: [String; 2],
    places: [EndpointLocation; 2],
}

/// Where a side is.
#[derive(Debug, PartialEq, Eq)]
enum EndpointLocation {
    /// A directory of this host, without symlinks.
    Here(PathBuf),
    /// A directory of another host, as typed.
    There { host: OsString, path: OsString },
}

impl TwoWayEndpoints {
    fn new(typed: [&OsString; 2], context: &CommandContext) -> Result<Self> {
        let [first, second] = typed.map(|typed| resolve_location(typed, context));
        let places = [first?, second?];
        if let [EndpointLocation::Here(a), EndpointLocation::Here(b)] = &places
            // Otherwise each run would copy a directory into itself.
            && (a.starts_with(b) || b.starts_with(a))
        {
            let message = format!("the directories '{}' and '{}' overlap", a.display(), b.display());
            return Err(CliError::usage_error(message, "neither side may lie in the other"));
        }
        Ok(Self { typed: typed.map(|typed| format_path(typed.as_bytes())), places })
    }

    /// Who they are, whatever was typed.
    fn archive_pair(&self) -> TwoWayPair {
        let [first, second] = self.places.each_ref().map(|place| match place {
            EndpointLocation::Here(path) => {
                // Several hosts may share a home directory and so the archives in it. The name of the host keeps
                // their directories apart.
                [host_name().as_bytes(), b":", path.as_os_str().as_bytes()].concat()
            }
            EndpointLocation::There { host, path } => {
                // As typed, because this host cannot know which symlinks the path has there; another spelling is another
                // pair, with a first run of its own.
                [b"ssh:", host.as_bytes(), b":", path.as_bytes()].concat()
            }
        });
        TwoWayPair::from_names(&first, &second)
    }

    /// What each is called in names of kept versions.
    fn version_labels(&self) -> [String; 2] {
        self.places.each_ref().map(|place| match place {
            EndpointLocation::Here(_) => host_name(),
            EndpointLocation::There { host, .. } => {
                let host = host.to_string_lossy();
                // The account has no place in the name of a file that both sides will have.
                host.rsplit('@').next().unwrap_or_default().to_owned()
            }
        })
    }

    fn open_endpoints(&self, first: bool, args: &Args) -> Result<[Box<dyn TwoWayEnd>; 2]> {
        let open = |place: &EndpointLocation| -> Result<Box<dyn TwoWayEnd>> {
            match place {
                EndpointLocation::Here(path) => {
                    ends::refuse_reserved_dir(path)?;
                    // A side that is gone after a first run is probably not mounted: made anew, it would be empty,
                    // and all that it held would count as deleted.
                    if first && !args.show.dry_run && !path.exists() {
                        let object = format!("the directory '{}'", path.display());
                        let made = ends::create_trusted_dir(path, 0).map_err(BeneathError::into_io_error);
                        made.map_err(CliError::io_error("make", object))?;
                    }
                    Ok(Box::new(LocalEnd::open_destination(path)?))
                }
                EndpointLocation::There { host, path } => {
                    let connect = |role| remote::connect_remote(host, path, role, args);
                    Ok(Box::new(FarDirectory::new(
                        // A server has one role for each connection, and a two-way run reads and writes on both
                        // sides.
                        connect(ServerRole::Source)?,
                        connect(ServerRole::Destination)?,
                    )))
                }
            }
        };
        let [first, second] = self.places.each_ref().map(open);
        Ok([first?, second?])
    }

    fn has_remote(&self) -> bool {
        self.places.iter().any(|place| matches!(place, EndpointLocation::There { .. }))
    }

    fn filter_judge(
        &self,
        filters: &Arc<SyncFilters>,
        which: TwoWaySide,
    ) -> Result<Arc<dyn vellum_sync::local::scan::EntryFilter>> {
        let root = match which.select_from(&self.places) {
            EndpointLocation::Here(path) => path.as_os_str().as_bytes(),
            EndpointLocation::There { path, .. } => path.as_bytes(),
        };
        Ok(filters.create_filter(SyncSide::Source, root).map_err(vellum_sync::SyncError::from)?)
    }
}

/// The directory that was typed.
fn resolve_location(typed: &OsString, context: &CommandContext) -> Result<EndpointLocation> {
    match EndpointArg::parse_endpoint(typed, context) {
        EndpointArg::Path(path) => {
            Ok(EndpointLocation::Here(resolve_new_path(&context.resolve_local_path(Path::new(&path)))?))
        }
        EndpointArg::Volume { directory, snapshot: None, path } => Ok(EndpointLocation::Here(
            resolve_new_path(&context.resolve_local_path(Path::new(&worktree_file_path(&directory, &path))))?,
        )),
        EndpointArg::Volume { snapshot: Some(snapshot), .. } => {
            let message = format!("the snapshot {snapshot} never changes: nothing can be brought to it");
            Err(CliError::usage_error(message, "a worktree is written to: VOLUME:/PATH"))
        }
        EndpointArg::Host { host, path } => Ok(EndpointLocation::There { host, path }),
    }
}

/// A path without symlinks; its last name may be one of what does not exist.
fn resolve_new_path(path: &Path) -> Result<PathBuf> {
    let wrap = || {
        CliError::io_error("find", format!("the directory '{}'", format_path(path.as_os_str().as_bytes())))
    };
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Err(error), Some(parent), Some(name)) if error.kind() == std::io::ErrorKind::NotFound => {
            let real = parent.canonicalize().map_err(wrap())?;
            ends::check_same_trusted_dir(parent, &real)?;
            Ok(real.join(name))
        }
        (found, _, _) => {
            let real = found.map_err(wrap())?;
            ends::check_same_trusted_dir(path, &real)?;
            Ok(real)
        }
    }
}
