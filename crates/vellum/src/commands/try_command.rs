//! `vellum try`: a command runs in a fork of the worktree, at the worktree's own path.

mod decide;
mod list;
mod place;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_types::ErrorKind;
use vellum_volume::{StateDir, Volume};

use self::decide::TryDecision;
use self::place::{
    check_copy_place, check_fork_place, find_submounts, report_outputs, report_submounts, suggest_copy,
};
use crate::compare::ComparedSnapshots;
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::experiment::fork::{TryFork, TryOrigin};
use crate::experiment::note::{CopyPlace, TryNote};
use crate::experiment::program::{ProgramEnd, TryProgram, WorktreeCover};
use crate::experiment::{TRY_VARIABLE, close_descriptors_at_exec};
use crate::mounting::daemon::DaemonStart;
use crate::ui::changes::list::{ChangeDetail, CollapsedDirs};
use crate::ui::changes::{self, ChangeCounts};

/// Run a command in a fork of this worktree, and decide afterwards what becomes of it
///
/// COMMAND finds the worktree at its usual path, with all that it holds now, and may change or delete anything in it:
/// only the fork changes. When it ends, its changes are listed, and you choose: apply them to the worktree, keep the
/// fork, or discard it. Without a terminal to ask on, the fork is kept. What others change in the worktree meanwhile
/// is merged when the changes are applied.
///
/// Exits with the status of COMMAND: 127 if it does not exist, 126 if it cannot be executed, 128 and the signal if one
/// ended it; with 1 if it ended with 0 and applying its changes found conflicts.
///
/// With --copy, COMMAND runs in a copy of the directory, which lies beside it: for where nothing can be mounted.
///
/// Only the worktree is protected: what COMMAND does elsewhere, and over the network, is done. Ignored files
/// ('.vellumignore') are not in the fork.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("decision").multiple(false))]
#[command(
    override_usage = "vellum try [OPTIONS] -- COMMAND...\n       vellum try --list\n       vellum try <--apply|--discard|--keep> NAME"
)]
pub struct Args {
    /// List the tries that were kept, run now or were killed
    #[arg(short, long, conflicts_with_all = ["decision", "command", "strict", "wait", "with_mounts", "keep_fds", "copy"])]
    list: bool,
    /// Apply the changes without asking; without COMMAND, those of the try NAME
    #[arg(long, value_name = "NAME", num_args = 0..=1, group = "decision")]
    apply: Option<Option<String>>,
    /// Discard the changes without listing them; without COMMAND, those of the try NAME
    #[arg(long, value_name = "NAME", num_args = 0..=1, group = "decision")]
    discard: Option<Option<String>>,
    /// Keep the fork as the worktree NAME; without COMMAND, the try NAME becomes a worktree
    #[arg(long, value_name = "NAME", group = "decision")]
    keep: Option<String>,
    /// Use a user namespace even as root, so that COMMAND cannot leave the try; refuse an input or output in the worktree
    #[arg(long)]
    strict: bool,
    /// Wait for what COMMAND leaves running; without it, this is killed when COMMAND ends
    #[arg(long)]
    wait: bool,
    /// Show in the try, read-only, what is mounted in the worktree
    #[arg(long)]
    with_mounts: bool,
    /// Let COMMAND inherit open files beside standard input, output and error; one in the worktree leads past the try
    #[arg(long, conflicts_with = "strict")]
    keep_fds: bool,
    /// Run COMMAND in a copy of this directory, at another path: it needs neither FUSE nor namespaces
    #[arg(long, requires = "command", conflicts_with_all = ["strict", "with_mounts"])]
    copy: bool,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A try whose command has ended.
#[derive(Serialize)]
struct TryJson<'a> {
    name: &'a str,
    of: &'a str,
    status: u8,
    base: Option<&'a str>,
    snapshot: Option<&'a str>,
    counts: Option<ChangeCounts>,
    decision: &'static str,
    worktree: Option<&'a str>,
    /// The directory of the fork, if it is a copy.
    copy: Option<String>,
    merges: Option<serde_json::Value>,
}

/// Tries, or decides about an earlier try.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    if args.list {
        return list::list_tries(context);
    }
    let is_run = !args.command.is_empty();
    let decision = match (&args.apply, &args.discard, &args.keep) {
        (Some(name), _, _) => Some((TryDecision::Apply, name.as_deref())),
        (None, Some(name), _) => Some((TryDecision::Discard, name.as_deref())),
        (None, None, Some(name)) => Some((TryDecision::KeepAs(name.clone()), Some(name.as_str()))),
        (None, None, None) => None,
    };
    match decision {
        Some((TryDecision::Apply | TryDecision::Discard, Some(_))) if is_run => Err(CliError::usage_error(
            "a name and a command cannot be given together",
            "'vellum try --apply -- COMMAND' runs a command; 'vellum try --apply NAME' applies an earlier try",
        )),
        Some((decision, _)) if is_run => run_command(args, Some(decision), context),
        None if is_run => run_command(args, None, context),
        Some((decision, Some(name))) => list::decide_about(name, &decision, context),
        Some((_, None)) | None => Err(CliError::usage_error(
            "there is no command to try",
            "'vellum try -- COMMAND' tries one; 'vellum try --list' lists earlier tries",
        )),
    }
}

fn run_command(
    args: &Args,
    decision: Option<TryDecision>,
    context: &CommandContext,
) -> Result<CommandOutcome> {
    if let Some(name) = std::env::var_os(TRY_VARIABLE) {
        let message = format!("this is the try {} already", name.display());
        return Err(CliError::usage_error(message, "run the command as it is, or end that try first"));
    }
    if !args.keep_fds {
        // Neither the process that serves the fork nor COMMAND gets what the caller has open.
        close_descriptors_at_exec();
    }
    let origin = TryOrigin::open(context)?;
    let state = origin.state()?;
    let mounts = check_place(args, &origin, &state, context)?;
    if let Some(TryDecision::KeepAs(name)) = &decision {
        check_name(&Volume::open(&state)?, name)?;
    }
    // On a device, the fork gets a name in the device's line, as all its worktrees do.
    let device = state.read_worktree_file()?.device;
    let mut note = TryNote::new(origin.worktree(), origin.root(), &args.command, device.as_deref());
    note.copy = args.copy.then(|| CopyPlace::beside(origin.root(), &note.name));
    let mut fork = TryFork::new(&state, note, context);
    // Before anything of the try exists, so that whatever a killed process leaves is found by its note.
    fork.write_note()?;
    let status = start_and_run(args, &origin, mounts, &mut fork, context);
    let status = status.inspect_err(|_| {
        if fork.note.status.is_none() {
            // That it could not be started is what the user wants to know; what cannot be removed is found by --list.
            let _ = fork.discard();
        }
    })?;
    finish(fork, status, decision, context)
}

/// Fails if a fork cannot stand in the place of the worktree; tells what leads past it. Returns the mounts to be shown in it.
fn check_place(
    args: &Args,
    origin: &TryOrigin,
    state: &StateDir,
    context: &CommandContext,
) -> Result<Vec<PathBuf>> {
    report_outputs(origin.root(), args.strict, context)?;
    if args.copy {
        check_copy_place(origin)?;
        return Ok(Vec::new());
    }
    check_fork_place(origin)?;
    let mounts = find_submounts(origin.root(), state)?;
    if args.with_mounts {
        return Ok(mounts);
    }
    report_submounts(&mounts, context)?;
    Ok(Vec::new())
}

/// A name that the fork cannot get must be known before the command runs.
fn check_name(volume: &Volume, name: &str) -> Result<()> {
    vellum_volume::refs::check_ref_name(name)?;
    match volume.read_worktree_head(name)? {
        None => Ok(()),
        Some(_) => Err(vellum_volume::VolumeError::Exists { kind: "worktree", name: name.into() }.into()),
    }
}

/// Makes the fork, and runs the command in it. Returns its exit status.
fn start_and_run(
    args: &Args,
    origin: &TryOrigin,
    mounts: Vec<PathBuf>,
    fork: &mut TryFork<'_>,
    context: &CommandContext,
) -> Result<u8> {
    let end = match args.copy {
        true => run_in_copy(args, origin, fork, context)?,
        false => run_in_mount(args, origin, mounts, fork, context)?,
    };
    if let Some(problem) = end.problem {
        context.ui.print_warning(problem)?;
    }
    // Written down before the result is recorded, which can fail: the try then counts as ended, and can be decided on
    // later.
    fork.note.status = Some(end.status);
    fork.write_note()?;
    Ok(end.status)
}

fn run_in_mount(
    args: &Args,
    origin: &TryOrigin,
    mounts: Vec<PathBuf>,
    fork: &mut TryFork<'_>,
    context: &CommandContext,
) -> Result<ProgramEnd> {
    // Its process opens the volume while the fork is made.
    let mount = fork.start_mount(DaemonStart::OnWord)?;
    let base = origin.make_fork(fork)?;
    fork.note.base = Some(base.to_string());
    let is_covered = fork.state().path().starts_with(origin.root());
    let view = is_covered.then(|| fork.note.make_state_view()).transpose()?;
    // Written again before the mount exists: the directory for the state, which lies outside of the try's folder, is
    // found by it.
    fork.write_note()?;
    mount.wait_until_ready().map_err(|error| suggest_copy(error, origin))?;
    let state = fork.state().clone();
    let cover = WorktreeCover {
        mount: fork.mountpoint(),
        worktree: origin.root(),
        state: view.map(|view| (state.path(), view)),
        mounts,
        strict: args.strict,
    };
    let end = build_program(args, fork, Some(cover), &context.cwd).run();
    // Before the result is looked at: the directory has to go whether or not the command could be run.
    fork.note.remove_state_view();
    end.map_err(
        |error| if error.kind() == ErrorKind::Unsupported { suggest_copy(error, origin) } else { error },
    )
}

fn run_in_copy(
    args: &Args,
    origin: &TryOrigin,
    fork: &mut TryFork<'_>,
    context: &CommandContext,
) -> Result<ProgramEnd> {
    let base = origin.make_fork(fork)?;
    fork.note.base = Some(base.to_string());
    fork.write_note()?;
    let place = fork.note.copy.as_ref().map(CopyPlace::path).unwrap_or_default();
    let shown = |path: &Path| format_path(path.as_os_str().as_encoded_bytes());
    let message = format!("the command runs in {}, and not in {}", shown(&place), shown(origin.root()));
    context.ui.print_warning(message)?;
    // Where the user stands in the worktree.
    let within = context.cwd.strip_prefix(origin.root()).unwrap_or(Path::new(""));
    build_program(args, fork, None, &place.join(within)).run()
}

fn build_program<'a>(
    args: &'a Args,
    fork: &'a TryFork<'_>,
    cover: Option<WorktreeCover<'a>>,
    directory: &'a Path,
) -> TryProgram<'a> {
    TryProgram {
        name: &fork.note.name,
        cover,
        directory,
        wait: args.wait,
        keeps_descriptors: args.keep_fds,
        command: &args.command,
    }
}

/// Lists what the command changed, and does what is wanted with it.
fn finish(
    mut fork: TryFork<'_>,
    status: u8,
    decision: Option<TryDecision>,
    context: &CommandContext,
) -> Result<CommandOutcome> {
    let how_to_go_on = decide::format_choices(&fork.note);
    let done = finish_fork(&mut fork, status, decision, context);
    done.map_err(|error| match error {
        CliError::Stopped { .. } => CliError::Stopped { resume: how_to_go_on },
        // The command has run, and its fork takes what room there is until it is decided on.
        error if error.kind() == ErrorKind::NoSpace => {
            let resume = format!("free space first, unless it is discarded; {how_to_go_on}");
            CliError::Unfinished { error: Box::new(error), resume }
        }
        other => other,
    })
}

fn finish_fork(
    fork: &mut TryFork<'_>,
    status: u8,
    decision: Option<TryDecision>,
    context: &CommandContext,
) -> Result<CommandOutcome> {
    let mut counts = None;
    if decision != Some(TryDecision::Discard) {
        let result = fork.seal()?;
        let volume = fork.open_volume()?;
        let compared = compare_try(&volume, fork, result)?;
        counts = Some(ChangeCounts::from_changes(&compared.changes));
        print_changes(&compared, fork, context)?;
    }
    let is_unchanged = decision != Some(TryDecision::Discard) && fork.note.result == fork.note.base;
    let decision = match decision {
        Some(decision) => decision,
        // Nothing is left to decide on.
        None if is_unchanged => TryDecision::Discard,
        None if context.ui.can_prompt() => decide::ask_decision(context)?,
        None => TryDecision::Keep,
    };
    let applied = decide::carry_out(fork, &decision, context)?;
    if context.ui.is_json() {
        let merges = applied.as_ref().map(|merges| serde_json::to_value(merges.as_json()));
        context.ui.print_json(&TryJson {
            name: &fork.note.name,
            of: &fork.note.of,
            status,
            base: fork.note.base.as_deref(),
            snapshot: fork.note.result.as_deref(),
            counts,
            decision: decision.name(),
            worktree: decision.worktree(&fork.note.name),
            copy: fork.note.copy.as_ref().map(CopyPlace::format_path),
            merges: merges.transpose().map_err(|error| CliError::Output(error.into()))?,
        })?;
    }
    let has_conflicts = applied.is_some_and(|merges| merges.has_findings());
    // The command's own failure counts more than conflicts: scripts that wrap a command in a try see its exit status.
    Ok(CommandOutcome::Program(if status == 0 && has_conflicts { 1 } else { status }))
}

/// What a try changed.
fn compare_try<'v>(
    volume: &'v Volume,
    fork: &TryFork<'_>,
    result: vellum_types::SnapshotId,
) -> Result<ComparedSnapshots<'v>> {
    let base = fork.note.base_id().unwrap_or(result);
    let root = |id| volume.catalog.get_record(id).map(|record| record.root);
    ComparedSnapshots::compare_trees(volume, root(&base)?, root(&result)?, Some((base, result)), &[])
}

fn print_changes(
    compared: &ComparedSnapshots<'_>,
    fork: &TryFork<'_>,
    context: &CommandContext,
) -> Result<()> {
    if context.ui.is_json() || context.ui.voice.quiet {
        return Ok(());
    }
    let paths = context.paths_at_root(&fork.note.place());
    let show = |path: &[u8]| paths.format_path(path);
    context.ui.print_change_list(compared, CollapsedDirs::Deleted, ChangeDetail::Sizes, show)?;
    match compared.changes.is_empty() {
        true => context.ui.print_note("the command changed nothing in the worktree"),
        false => {
            context.ui.print_note(changes::format_counts(&ChangeCounts::from_changes(&compared.changes)))
        }
    }
}
