//! `vellum restore`: the directory, or paths in it, as they were in a snapshot.

mod interactive;
mod mounted;
mod mounted_choice;
mod mounted_plan;
mod plan_file;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::Serialize;
use vellum_checkout::{CheckoutWorktree, RestorePlan, RestoreReport, RestoreRequest, RestoreStep};
use vellum_types::SnapshotId;
use vellum_volume::history::HistoryEntry;
use vellum_volume::{Volume, VolumeError};

use self::interactive::restore_interactively;
use self::mounted::restore_in_mount;
use self::plan_file::{run_saved_plan, save_plan};
use crate::context::CommandContext;
use crate::context::names::describe_snapshot;
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};
use crate::heap;
use crate::hooks::{HookCall, HookFact, HookKind};
use crate::ui::format;
use crate::ui::json::{NameJson, ProblemJson};
use crate::ui::progress::ProgressTask;

/// Bring the directory, or paths in it, back to a snapshot
///
/// If files that no snapshot holds would be overwritten or deleted, a safety snapshot is created first, unless
/// --discard is given. Its id is printed: restoring it undoes this command.
///
/// If the command is interrupted, run it again to finish. Without PATHs, SNAP becomes the worktree's current
/// snapshot; with PATHs, the current snapshot stays the same. A PATH that the snapshot does not have is deleted.
///
/// With --only, the directory becomes a partial checkout: all other paths are absent, and snapshots take them from
/// the last snapshot. 'vellum hydrate' writes them again. Without --only, what is absent stays absent.
///
/// With --interactive, each change is shown, and restored if the answer is 'y'; '?' lists the answers. With --plan, what would
/// be done is written to a file, and nothing is changed; --run does exactly that, or nothing if something has changed since.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The snapshot
    #[arg(value_name = "SNAP", required_unless_present = "run")]
    snapshot: Option<String>,
    /// Only these paths
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// Keep only these paths in the directory; all others become absent
    #[arg(long, value_name = "PATH", num_args = 1.., conflicts_with = "paths")]
    only: Vec<OsString>,
    /// Print what would be done, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Ask for each file, and in texts for each change, whether it is restored
    #[arg(short, long, conflicts_with_all = ["only", "dry_run", "plan", "run"])]
    interactive: bool,
    /// Write what would be done to FILE, and change nothing
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    plan: Option<PathBuf>,
    /// Do what the plan in FILE says, if that is still the same
    #[arg(long, value_name = "FILE", conflicts_with_all = ["snapshot", "paths", "only", "dry_run", "discard", "plan"])]
    run: Option<PathBuf>,
    /// Overwrite and delete files even if no snapshot holds them
    #[arg(long)]
    discard: bool,
}

#[derive(Serialize)]
struct RestorePlanJson {
    target: String,
    dry_run: bool,
    steps: Vec<RestoreStepJson>,
    unsaved: Vec<NameJson>,
    problems: Vec<ProblemJson>,
}

#[derive(Serialize)]
struct RestoreStepJson {
    action: &'static str,
    #[serde(flatten)]
    name: NameJson,
}

#[derive(Serialize)]
struct RestoreJson {
    target: String,
    safety: Option<String>,
    written: u64,
    deleted: u64,
    bytes: u64,
    owners_not_set: u64,
    problems: Vec<ProblemJson>,
}

/// Restores.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    if let Some(mounted) = context.open_mounted_worktree()? {
        return restore_in_mount(args, context, &mounted);
    }
    heap::limit_command_heaps();
    // The plan in the file names its snapshot, so that it is not resolved from the arguments.
    if let Some(file) = &args.run {
        return run_saved_plan(file, context);
    }
    let worktree = context.open_worktree()?;
    let target = resolve_target(args, context, &worktree.volume)?;
    let is_look = args.dry_run || args.plan.is_some();
    if !is_look && !args.interactive {
        run_restore_hook(context, &worktree.volume, worktree.root_path(), target.id)?;
    }
    let typed = context.paths_at_root(worktree.root_path());
    let paths = typed.parse_paths(&args.paths)?;
    let only = typed.parse_paths(&args.only)?;
    let request = RestoreRequest { target: target.clone(), paths, only, discard: args.discard };
    if args.interactive {
        return restore_interactively(context, &worktree, &request);
    }
    // Locked before the plan is made: a plan is right only for the files and the head that it was made for.
    let lock = worktree.lock_worktree(context.lock_wait_notice())?;
    // A whole restore would move the worktree away from the merge. To restore single paths is a way to resolve
    // conflicts.
    if request.paths.is_empty() && !is_look {
        worktree.volume.check_no_merge()?;
    }
    let plan = plan_restore(context, &worktree, &request)?;
    if args.dry_run {
        return print_restore_plan(context, &worktree, &plan);
    }
    if let Some(file) = &args.plan {
        return save_plan(file, context, &worktree, &plan);
    }
    let done = execute_restore(context, &worktree, plan)?;
    // Printed without the lock: whoever reads the report may take any time, and other commands would wait.
    drop(lock);
    report_restore(context, &worktree, &target, &done)
}

/// Before the worktree is locked, because the commands that the hook runs may need it.
fn run_restore_hook(
    context: &CommandContext,
    volume: &Volume,
    directory: &Path,
    target: SnapshotId,
) -> Result<()> {
    let id = target.to_string();
    let facts = &[HookFact::worktree(&volume.worktree.worktree), HookFact::snapshot(&id)];
    HookCall { kind: HookKind::BeforeRestore, state: &volume.state, directory, facts }.run(context).map(drop)
}

fn plan_restore(
    context: &CommandContext,
    worktree: &CheckoutWorktree,
    request: &RestoreRequest,
) -> Result<RestorePlan> {
    let task = ProgressTask { first: "Scanning", verb: "Comparing", item: "file" };
    context
        .run_with_progress(task, |meter| worktree.plan_restore(request, meter))
        .with_resume_hint("nothing was changed")
}

fn execute_restore(
    context: &CommandContext,
    worktree: &CheckoutWorktree,
    plan: RestorePlan,
) -> Result<RestoreReport> {
    // Before the run, because this can fail, and the hint after an interruption needs it.
    let mut short = worktree.volume.short_id(&plan.request.target.id)?;
    if !plan.request.only.is_empty() {
        short.push_str(" --only PATH...");
    }
    let task = ProgressTask { first: "Preparing", verb: "Restoring", item: "file" };
    context
        .run_with_progress(task, |meter| worktree.execute_restore(plan, meter))
        .map_err(|error| CliError::from(error).with_resume_hint(resume_command(worktree, &short)))
}

/// Fills the directory of a new worktree; only with some paths, if any are named.
pub fn fill_worktree(
    context: &CommandContext,
    worktree: &CheckoutWorktree,
    target: &HistoryEntry,
    only: Vec<Vec<u8>>,
) -> Result<RestoreReport> {
    // As soon as the worktree exists, another command can use it.
    let _lock = worktree.lock_worktree(context.lock_wait_notice())?;
    let request = RestoreRequest { only, ..RestoreRequest::for_all(target) };
    let plan = plan_restore(context, worktree, &request)?;
    execute_restore(context, worktree, plan)
}

fn resolve_target(args: &Args, context: &CommandContext, volume: &Volume) -> Result<HistoryEntry> {
    let typed = args.snapshot.as_deref().unwrap_or_default();
    match volume.resolve_snapshot(typed) {
        Ok(entry) => Ok(entry),
        Err(VolumeError::UnknownSnapshot(_) | VolumeError::NoSnapshotThere { .. })
            // A usual slip, since other programs restore a file without naming a version.
            if context.cwd.join(typed).symlink_metadata().is_ok() =>
        {
            let message = format!("'{typed}' is a file, where the name of a snapshot belongs");
            Err(CliError::usage_error(
                message,
                format!("'vellum restore HEAD {typed}' restores it from the last snapshot"),
            ))
        }
        Err(error) => Err(error.into()),
    }
}

/// How to go on after a restore that was stopped.
fn resume_command(worktree: &CheckoutWorktree, short: &str) -> String {
    // The error that stopped the restore is the one to report: another from here would hide it.
    let safety = worktree.find_interrupted_restore().ok().flatten().and_then(|found| found.safety);
    match safety.and_then(|id| worktree.volume.short_id(&id).ok()) {
        Some(safety) => {
            format!("'vellum restore {short}' finishes the work, 'vellum restore {safety}' undoes it")
        }
        None => format!("'vellum restore {short}' finishes the work"),
    }
}

/// What a plan says of itself.
struct ShownPlan<'a> {
    request: &'a RestoreRequest,
    root: &'a Path,
    steps: &'a [RestoreStep],
    unsaved: &'a [Vec<u8>],
    problems: Vec<ProblemJson>,
}

fn print_restore_plan(
    context: &CommandContext,
    worktree: &CheckoutWorktree,
    plan: &RestorePlan,
) -> Result<CommandOutcome> {
    let shown = ShownPlan {
        request: &plan.request,
        root: worktree.root_path(),
        steps: &plan.list_steps()?,
        unsaved: &plan.unsaved,
        problems: plan.problems.iter().map(ProblemJson::from).collect(),
    };
    shown.print(context)
}

impl ShownPlan<'_> {
    fn print(self, context: &CommandContext) -> Result<CommandOutcome> {
        let ui = &context.ui;
        let Self { request, root, steps, unsaved, problems } = self;
        // What a restore would change is the finding: a script can ask whether the directory is as the snapshot.
        let outcome = CommandOutcome::from_findings(!steps.is_empty() || !problems.is_empty());
        if ui.is_json() {
            let step =
                |step: &RestoreStep| RestoreStepJson { action: step.verb(), name: NameJson::new(&step.path) };
            ui.print_json(&RestorePlanJson {
                target: request.target.id.to_string(),
                dry_run: true,
                steps: steps.iter().map(step).collect(),
                unsaved: unsaved.iter().map(|path| NameJson::new(path)).collect(),
                problems,
            })?;
            return Ok(outcome);
        }
        ui.print_problems(&problems)?;
        let paths = context.paths_at_root(root);
        for step in steps {
            ui.print_line(format!("{:<7}  {}", step.verb(), paths.format_path(&step.path)))?;
        }
        if steps.is_empty() {
            ui.print_note("nothing to do: the directory already matches the snapshot")?;
        }
        // With --discard nothing is kept, which the user has asked for.
        if !unsaved.is_empty() && !request.discard {
            let count = format::format_count(unsaved.len() as u64, "path");
            ui.print_note(format!("{count} that no snapshot holds would be snapshotted first"))?;
        }
        Ok(outcome)
    }
}

fn report_restore(
    context: &CommandContext,
    worktree: &CheckoutWorktree,
    target: &HistoryEntry,
    done: &RestoreReport,
) -> Result<CommandOutcome> {
    let ui = &context.ui;
    let problems: Vec<_> = done.problems.iter().map(ProblemJson::from).collect();
    let outcome = CommandOutcome::from_findings(!problems.is_empty());
    if ui.is_json() {
        ui.print_json(&RestoreJson {
            target: target.id.to_string(),
            safety: done.safety.map(|id| id.to_string()),
            written: done.written,
            deleted: done.deleted,
            bytes: done.bytes,
            owners_not_set: done.owners_not_set,
            problems,
        })?;
        return Ok(outcome);
    }
    ui.print_problems(&problems)?;
    if ui.voice.quiet {
        return Ok(outcome);
    }
    let what = match (done.written, done.deleted) {
        (0, 0) => "nothing had to change".into(),
        (written, deleted) => format!(
            "{} written, {}, {} deleted",
            format::format_number(written),
            format::format_size(done.bytes),
            format::format_number(deleted)
        ),
    };
    ui.print_line(format!("Restored {}: {what}", describe_snapshot(&worktree.volume, target)?))?;
    if let Some(safety) = &done.safety {
        let short = worktree.volume.short_id(safety)?;
        ui.print_line(format!(
            "What no snapshot held is in {}: 'vellum restore {short}' brings it back",
            ui.style.paint_yellow(&short)
        ))?;
    }
    ui.report_owners_not_set(done.owners_not_set)?;
    Ok(outcome)
}
