//! `vellum status`: where the worktree stands, and what changed since.

use std::ffi::OsString;
use std::path::Path;

use serde::Serialize;
use vellum_volume::Volume;
use vellum_volume::history::HistoryEntry;
use vellum_volume::session::now;
use vellum_volume::tree::show;

use super::snapshot::warn_of_interrupted;
use crate::compare::ComparedSnapshots;
use crate::context::CommandContext;
use crate::context::mounted::MountProcess;
use crate::context::names::SnapshotNames;
use crate::error::{CliError, CommandOutcome, Result};
use crate::mounting::control::{ControlReply, ControlRequest};
use crate::ui::changes::{self, ChangeCounts, ChangeDetail, GroupedChange, collapse, list};
use crate::ui::format;
use crate::ui::json::{self, ProblemJson};
use crate::ui::progress::ProgressTask;

/// Show what changed since the last snapshot
///
/// A added, M modified, R renamed, D deleted; then what differs beside the content. A new directory stands for all
/// that is in it, unless --all is given. Exits with 1 if anything changed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these paths
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// List what is in new and deleted directories too
    #[arg(short, long)]
    all: bool,
}

#[derive(Serialize)]
struct StatusJson<'a> {
    worktree: &'a str,
    directory: String,
    head: Option<json::SnapshotJson>,
    clean: bool,
    counts: ChangeCounts,
    changes: Vec<changes::ChangeJson>,
    problems: Vec<ProblemJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupted_restore: Option<&'a InterruptedJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mount: Option<&'a MountStatusJson>,
    leases: Vec<json::LeaseJson>,
}

/// What can be told of a mounted worktree while its store cannot be had.
#[derive(Serialize)]
struct StorelessStatusJson<'a> {
    worktree: &'a str,
    directory: String,
    /// The last one.
    snapshot: Option<&'a str>,
    clean: bool,
    /// Snapshots that are not in the store.
    waiting: u64,
    /// Why the changes are not listed.
    unlisted: String,
    mount: &'a MountStatusJson,
}

#[derive(Serialize)]
struct InterruptedJson {
    target: String,
    safety: Option<String>,
}

/// What stands where, to be told.
struct WorktreePosition<'a> {
    volume: &'a Volume,
    directory: &'a Path,
    head: Option<HistoryEntry>,
    interrupted: Option<InterruptedJson>,
    mount: Option<MountStatusJson>,
}

/// What a mounted worktree has not put into the store yet.
#[derive(Serialize)]
struct MountStatusJson {
    log_bytes: u64,
    log_limit: u64,
    failure: Option<String>,
}

/// Shows it.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    if let Some(process) = context.mount_process()? {
        return of_mount(args, context, &process);
    }
    let worktree = context.worktree()?;
    let paths = context.paths(worktree.root()).parse_all(&args.paths)?;
    let compared = context
        .watch(ProgressTask { first: "Scanning", verb: "Comparing", item: "file" }, |meter| {
            ComparedSnapshots::with_directory(&worktree, None, &paths, meter)
        })
        .map_err(|error| error.or_resume("nothing was changed"))?;
    if !context.ui.json() {
        warn_of_interrupted(context, &worktree)?;
    }
    let interrupted = worktree.interrupted_restore()?.map(|found| InterruptedJson {
        target: found.target.to_string(),
        safety: found.safety.map(|id| id.to_string()),
    });
    let (volume, directory) = (&worktree.volume, worktree.root());
    let head = worktree.head()?;
    tell(args, context, &WorktreePosition { volume, directory, head, interrupted, mount: None }, compared)
}

/// The worktree is mounted: what changed is put into the store and compared there. Without the store, what its process
/// knows is told.
fn of_mount(args: &Args, context: &CommandContext, process: &MountProcess) -> Result<CommandOutcome> {
    process.sync()?;
    let found = process.clone().open().and_then(|mounted| Ok((mounted.now()?, mounted)));
    let (now, mounted) = match found {
        Ok(found) => found,
        Err(error) if error.is_of_store() => return without_store(context, process, &error),
        Err(error) => return Err(error),
    };
    let paths = context.paths(&mounted.mountpoint).parse_all(&args.paths)?;
    let head = mounted.head()?;
    let mount = mount_of(process)?;
    let volume = &mounted.volume;
    let from = head.as_ref().map_or(volume.empty_root(), |entry| entry.record.root);
    let compared = ComparedSnapshots::trees(volume, (from, now), None, &paths)?;
    let directory = &mounted.mountpoint;
    let standing = WorktreePosition { volume, directory, head, interrupted: None, mount: Some(mount) };
    tell(args, context, &standing, compared)
}

/// What the process of the mount knows while the store cannot be had.
fn without_store(context: &CommandContext, process: &MountProcess, why: &CliError) -> Result<CommandOutcome> {
    let answer = process.ask(&ControlRequest::Status)?;
    let outcome = CommandOutcome::findings(answer.changed);
    let mount = mount_from(&answer);
    let ui = &context.ui;
    if ui.json() {
        ui.object(&StorelessStatusJson {
            worktree: &process.worktree,
            directory: process.mountpoint.display().to_string(),
            snapshot: answer.head.as_deref(),
            clean: !answer.changed,
            waiting: answer.waiting,
            unlisted: why.to_string(),
            mount: &mount,
        })?;
        return Ok(outcome);
    }
    let name = ui.style.cyan(&process.worktree);
    let id = answer.head.as_deref().map(|id| ui.style.yellow(format::short(id)));
    ui.note(match id {
        Some(id) => format!("Worktree {name} at {id}"),
        None => format!("Worktree {name} without a snapshot"),
    })?;
    print_log(context, &MountStatusJson { failure: None, ..mount })?;
    if answer.waiting > 0 {
        ui.note(format!("{} kept here until the store is back", format::count(answer.waiting, "snapshot")))?;
    }
    ui.warn(format!("the store cannot be used, work goes on here: {why}"))?;
    ui.note(if answer.changed {
        "something changed since the last snapshot; what it is can be listed when the store is back"
    } else {
        "nothing changed since"
    })?;
    Ok(outcome)
}

fn mount_of(process: &MountProcess) -> Result<MountStatusJson> {
    Ok(mount_from(&process.ask(&ControlRequest::Status)?))
}

fn mount_from(answer: &ControlReply) -> MountStatusJson {
    MountStatusJson {
        log_bytes: answer.log_bytes,
        log_limit: answer.log_limit,
        failure: answer.failure.clone(),
    }
}

fn tell(
    args: &Args,
    context: &CommandContext,
    standing: &WorktreePosition<'_>,
    compared: ComparedSnapshots<'_>,
) -> Result<CommandOutcome> {
    let outcome = CommandOutcome::findings(!compared.changes.is_empty() || !compared.problems.is_empty());
    if context.ui.json() {
        report(context, standing, compared)?;
    } else {
        print(args, context, standing, &compared)?;
    }
    Ok(outcome)
}

/// Who has which mounted worktree of the volume.
fn leases(volume: &Volume) -> Result<Vec<json::LeaseJson>> {
    let (worktrees, _) = volume.read_worktrees()?;
    Ok(worktrees.iter().filter_map(|(name, head)| json::LeaseJson::of(name, head)).collect())
}

fn tell_lease(context: &CommandContext, lease: &json::LeaseJson) -> Result<()> {
    let json::LeaseJson { host, process, mountpoint, ends, .. } = lease;
    let ends = format::local_time(*ends);
    let name = context.ui.style.cyan(&lease.worktree);
    let what = match mountpoint {
        Some(place) => format!("is mounted on {} by", show(place.as_bytes())),
        None => "is open in".into(),
    };
    let host = show(host.as_bytes());
    let until = if lease.ends.secs < now().secs { "did not renew it after" } else { "has it until" };
    context.ui.note(format!("{name} {what} process {process} on {host}, which {until} {ends}"))
}

fn report(
    context: &CommandContext,
    standing: &WorktreePosition<'_>,
    compared: ComparedSnapshots<'_>,
) -> Result<()> {
    let names = SnapshotNames::load(standing.volume)?;
    names.warn_of_damaged(&context.ui)?;
    context.ui.object(&StatusJson {
        worktree: &standing.volume.worktree.worktree,
        directory: standing.directory.display().to_string(),
        head: standing.head.as_ref().map(|entry| names.json(entry)),
        clean: compared.changes.is_empty(),
        counts: ChangeCounts::of(&compared.changes),
        changes: compared.changes.iter().map(changes::ChangeJson::from).collect(),
        problems: compared.problems,
        interrupted_restore: standing.interrupted.as_ref(),
        mount: standing.mount.as_ref(),
        leases: leases(standing.volume)?,
    })
}

fn print_log(context: &CommandContext, mount: &MountStatusJson) -> Result<()> {
    let (ui, MountStatusJson { log_bytes, log_limit, failure }) = (&context.ui, mount);
    ui.note(format!("Write log: {} of {}", format::size(*log_bytes), format::size(*log_limit)))?;
    match failure {
        Some(failure) => ui.warn(format!("the store does not take what was written: {failure}")),
        None => Ok(()),
    }
}

fn print(
    args: &Args,
    context: &CommandContext,
    standing: &WorktreePosition<'_>,
    compared: &ComparedSnapshots<'_>,
) -> Result<()> {
    let ui = &context.ui;
    let names = SnapshotNames::load(standing.volume)?;
    names.warn_of_damaged(&context.ui)?;
    let name = ui.style.cyan(&standing.volume.worktree.worktree);
    let head = &standing.head;
    let stands = match head {
        Some(entry) => format!("at {}", names.describe(entry)),
        None => "without a snapshot".into(),
    };
    ui.note(format!("Worktree {name} {stands}"))?;
    if let Some(mount) = &standing.mount {
        print_log(context, mount)?;
    }
    ui.warn_of(&compared.problems)?;
    let shown = if args.all {
        compared.changes.iter().map(GroupedChange::one).collect()
    } else {
        collapse(&compared.changes)
    };
    let shown = compared.shown(shown);
    let paths = context.paths(standing.directory);
    for line in list(ui.style, &shown, ChangeDetail::Aspects, |path| paths.show(path)) {
        ui.line(line)?;
    }
    match (compared.changes.is_empty(), head) {
        (true, _) if !compared.problems.is_empty() => {}
        (true, Some(_)) => ui.note("nothing changed since")?,
        (true, None) => ui.note("and nothing to record")?,
        (false, _) => ui.note(ChangeCounts::of(&compared.changes))?,
    }
    // Who has which worktree comes behind what was asked.
    leases(standing.volume)?.iter().try_for_each(|lease| tell_lease(context, lease))
}
