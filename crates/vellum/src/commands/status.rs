//! `vellum status`: where the worktree stands, and what changed since.

mod clients;

use std::ffi::OsString;
use std::path::Path;

use serde::Serialize;
use vellum_checkout::AbsentSummary;
use vellum_host::escape::format_path;
use vellum_types::UnixTime;
use vellum_volume::diff::FileChange;
use vellum_volume::history::HistoryEntry;
use vellum_volume::merge::{MergeProgress, MergeStage};
use vellum_volume::remote::{Remote, RemoteStanding, compare_with_remote};
use vellum_volume::session::current_time;
use vellum_volume::{Volume, VolumeError};

use super::snapshot::exclude::print_exclusions;
use super::snapshot::warn_about_interrupted;
use crate::compare::ComparedSnapshots;
use crate::context::CommandContext;
use crate::context::mounted::MountProcess;
use crate::context::names::SnapshotNames;
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};
use crate::mounting::control::{ControlReply, ControlRequest};
use crate::mounting::trash::TrashFigures;
use crate::ui::changes::list::{ChangeDetail, CollapsedDirs};
use crate::ui::changes::{self, ChangeCounts};
use crate::ui::format;
use crate::ui::json::{self, ProblemJson};
use crate::ui::progress::ProgressTask;

/// Show what changed since the last snapshot
///
/// A: added, M: modified, R: renamed, D: deleted; then what else differs besides the content. A new or deleted
/// directory is listed as one line with the number of entries in it, unless --all is given. Exits with 1 if anything
/// changed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these paths
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// Also list the contents of new and deleted directories
    #[arg(short, long)]
    all: bool,
    /// Ask each remote where its worktree of the same name is
    #[arg(long)]
    remote: bool,
    /// Show instead who mounts the shared worktree: the sessions of its clients
    #[arg(long, conflicts_with_all = ["paths", "all", "remote"])]
    clients: bool,
}

#[derive(Serialize)]
struct StatusJson<'a> {
    worktree: &'a str,
    directory: String,
    head: Option<json::SnapshotJson>,
    clean: bool,
    counts: ChangeCounts,
    #[serde(serialize_with = "changes::serialize_changes")]
    changes: &'a [FileChange],
    problems: Vec<ProblemJson>,
    /// What is absent, if the checkout is partial.
    #[serde(skip_serializing_if = "Option::is_none")]
    absent: Option<AbsentJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupted_restore: Option<&'a InterruptedJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    merge: Option<MergeStatusJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mount: Option<&'a MountStatusJson>,
    leases: Vec<json::LeaseJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remotes: Option<Vec<RemoteStandingJson>>,
}

/// What is absent from a partial checkout.
#[derive(Serialize)]
struct AbsentJson {
    paths: u64,
    /// Null if only some paths were looked at.
    files: Option<u64>,
    bytes: Option<u64>,
}

impl From<AbsentSummary> for AbsentJson {
    fn from(absent: AbsentSummary) -> Self {
        let AbsentSummary { paths, content } = absent;
        Self {
            paths,
            files: content.map(|content| content.files),
            bytes: content.map(|content| content.bytes),
        }
    }
}

fn describe_absent(absent: &AbsentSummary) -> String {
    // The files are counted only if the whole worktree was compared.
    let content = absent.content.map_or_else(String::new, |content| {
        format!(
            " with {}, {},",
            format::format_count(content.files, "file"),
            format::format_size(content.bytes)
        )
    });
    let paths = format::format_count(absent.paths, "path");
    let are = if absent.paths == 1 { "is" } else { "are" };
    format!(
        "partial checkout: {paths}{content} {are} absent; 'vellum hydrate PATH' brings back what is needed"
    )
}

/// How far the worktree and a remote's worktree of the same name are apart.
#[derive(Serialize)]
struct RemoteStandingJson {
    remote: String,
    /// Where it is there.
    snapshot: Option<String>,
    ahead: u64,
    behind: u64,
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

/// A merge that is under way.
#[derive(Serialize)]
struct MergeStatusJson {
    name: String,
    theirs: String,
    stage: MergeStage,
    /// Conflicts that nobody has decided on.
    open: usize,
}

impl From<MergeProgress> for MergeStatusJson {
    fn from(progress: MergeProgress) -> Self {
        let open = progress.open_conflicts().count();
        let MergeProgress { name, theirs, stage, .. } = progress;
        Self { name, theirs: theirs.to_string(), stage, open }
    }
}

fn print_merge(context: &CommandContext, merge: &MergeStatusJson) -> Result<()> {
    let MergeStatusJson { name, stage, open, .. } = merge;
    let state = match stage {
        MergeStage::Saving | MergeStage::Storing | MergeStage::Applying => "was interrupted".into(),
        MergeStage::Resolving => {
            format!("is under way, with {} to resolve", format::format_count(*open as u64, "conflict"))
        }
        MergeStage::Aborting => "is being taken back".into(),
    };
    context.ui.print_warning(format!(
        "a merge of {name} {state}: 'vellum merge --continue' finishes it, 'vellum merge --abort' aborts it"
    ))
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
    /// Snapshots that are not in the store.
    waiting: u64,
    /// Since when something is acknowledged and not in the store.
    #[serde(serialize_with = "json::serialize_time")]
    unpublished_since: Option<UnixTime>,
    failure: Option<String>,
    /// Whether the mount takes over what other machines do.
    follows: bool,
    /// Why it does not, at the moment.
    follow_problem: Option<String>,
    /// What is in the trash, if that is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    trash: Option<TrashFigures>,
    /// What of a store in a service is kept on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    cache: Option<CacheStatusJson>,
}

#[derive(Serialize)]
struct CacheStatusJson {
    bytes: u64,
    limit: u64,
    pinned: u64,
    nodes: CacheNodesJson,
    /// Whether requests to the store are switched off.
    offline: bool,
}

#[derive(Serialize)]
struct CacheNodesJson {
    bytes: u64,
    limit: u64,
}

/// Shows it.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    if args.clients {
        return clients::list_clients(context);
    }
    if let Some(process) = context.find_mount_process()? {
        return report_mount_status(args, context, &process);
    }
    let worktree = context.open_worktree()?;
    let paths = context.paths_at_root(worktree.root_path()).parse_paths(&args.paths)?;
    let compared = context
        .run_with_progress(ProgressTask { first: "Scanning", verb: "Comparing", item: "file" }, |meter| {
            ComparedSnapshots::compare_dir(&worktree, None, &paths, meter)
        })
        .with_resume_hint("nothing was changed")?;
    // In JSON, this is a field of the result.
    if !context.ui.is_json() {
        warn_about_interrupted(context, &worktree)?;
        print_exclusions(context, worktree.exclusions())?;
    }
    let interrupted = worktree.find_interrupted_restore()?.map(|found| InterruptedJson {
        target: found.target.to_string(),
        safety: found.safety.map(|id| id.to_string()),
    });
    let volume = &worktree.volume;
    let directory = worktree.root_path();
    let head = worktree.head_snapshot()?;
    report_status(
        args,
        context,
        &WorktreePosition { volume, directory, head, interrupted, mount: None },
        compared,
    )
}

/// The worktree is mounted: what changed is put into the store and compared there. Without the store, what its process
/// knows is told.
fn report_mount_status(
    args: &Args,
    context: &CommandContext,
    process: &MountProcess,
) -> Result<CommandOutcome> {
    // Otherwise, what programs have written within the last seconds would not count as a change.
    process.sync_filesystem()?;
    // Any of these steps may need the store, and fail without it.
    let found = process
        .clone()
        .open_volume()
        .and_then(|mounted| Ok((mounted.publish_tree_excluding(None)?, mounted)));
    let (now, mounted) = match found {
        Ok(found) => found,
        Err(error) if error.is_store_failure() => return report_storeless_status(context, process, &error),
        Err(error) => return Err(error),
    };
    let paths = context.paths_at_root(&mounted.mountpoint).parse_paths(&args.paths)?;
    let head = mounted.published_head()?;
    // After everything was published, so that the figures do not count what is in the store by now.
    let mount = query_mount_status(context, process)?;
    let volume = &mounted.volume;
    let from = head.as_ref().map_or(volume.empty_root(), |entry| entry.record.root);
    let compared = ComparedSnapshots::compare_trees(volume, from, now.root, None, &paths)?;
    if !context.ui.is_json() {
        print_exclusions(context, &now.exclusions)?;
    }
    let directory = &mounted.mountpoint;
    let standing = WorktreePosition { volume, directory, head, interrupted: None, mount: Some(mount) };
    report_status(args, context, &standing, compared)
}

/// What the process of the mount knows while the store cannot be had.
fn report_storeless_status(
    context: &CommandContext,
    process: &MountProcess,
    why: &CliError,
) -> Result<CommandOutcome> {
    let answer = process.send_request(&ControlRequest::Status)?;
    // The exit code is that of a status with the store: whether something changed is known without it.
    let outcome = CommandOutcome::from_findings(answer.changed);
    let mount = mount_status_from_reply(context, &answer);
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&StorelessStatusJson {
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
    let name = ui.style.paint_cyan(&process.worktree);
    let id = answer.head.as_deref().map(|id| ui.style.paint_yellow(format::shorten_id(id)));
    ui.print_note(match id {
        Some(id) => format!("Worktree {name} at {id}"),
        None => format!("Worktree {name} without a snapshot"),
    })?;
    // The failure of publishing has the cause that the warning below names: it is told once.
    print_write_log(context, &MountStatusJson { failure: None, ..mount })?;
    if answer.waiting > 0 {
        ui.print_note(format!(
            "{} kept locally until the store is reachable",
            format::format_count(answer.waiting, "snapshot")
        ))?;
    }
    ui.print_warning(format!("the store is unreachable, and work continues locally: {why}"))?;
    ui.print_note(if answer.changed {
        "something changed since the last snapshot; the changes can be listed when the store is reachable"
    } else {
        "nothing changed since"
    })?;
    Ok(outcome)
}

fn query_mount_status(context: &CommandContext, process: &MountProcess) -> Result<MountStatusJson> {
    Ok(mount_status_from_reply(context, &process.send_request(&ControlRequest::Status)?))
}

fn mount_status_from_reply(context: &CommandContext, answer: &ControlReply) -> MountStatusJson {
    // A cache that cannot be used is no matter of the worktree: 'vellum cache' says what is wrong with it.
    let cache = context.find_pack_cache().ok().and_then(|(_, cache)| cache);
    let cache = cache.and_then(|cache| Some((cache.summarize().ok()?, cache.is_offline().ok()?)));
    MountStatusJson {
        cache: cache.map(|(found, offline)| CacheStatusJson {
            bytes: found.content.bytes,
            limit: found.content.limit,
            pinned: found.pinned,
            nodes: CacheNodesJson { bytes: found.nodes.bytes, limit: found.nodes.limit },
            offline,
        }),
        log_bytes: answer.log_bytes,
        log_limit: answer.log_limit,
        waiting: answer.waiting,
        unpublished_since: answer.unpublished_since.map(|secs| UnixTime { secs, nanos: 0 }),
        failure: answer.failure.clone(),
        follows: answer.follows,
        follow_problem: answer.follow_problem.clone(),
        trash: Some(answer.trash).filter(|trash| trash.days > 0),
    }
}

fn report_status(
    args: &Args,
    context: &CommandContext,
    standing: &WorktreePosition<'_>,
    compared: ComparedSnapshots<'_>,
) -> Result<CommandOutcome> {
    // As with diff and grep, scripts learn by the exit code whether there are differences.
    let outcome =
        CommandOutcome::from_findings(!compared.changes.is_empty() || !compared.problems.is_empty());
    if context.ui.is_json() {
        print_status_json(args, context, standing, compared)?;
    } else {
        print_status(args, context, standing, &compared)?;
    }
    Ok(outcome)
}

/// Who has which mounted worktree of the volume.
fn list_leases(names: &SnapshotNames) -> Vec<json::LeaseJson> {
    let leases = names.worktrees().iter();
    leases.filter_map(|(name, head)| json::LeaseJson::from_worktree_head(name, head)).collect()
}

fn print_lease(context: &CommandContext, lease: &json::LeaseJson) -> Result<()> {
    let json::LeaseJson { host, process, mountpoint, ends, .. } = lease;
    let ends = format::format_local_time(*ends);
    let name = context.ui.style.paint_cyan(&lease.worktree);
    let what = match mountpoint {
        Some(place) => format!("is mounted on {} by", format_path(place)),
        None => "is open in".into(),
    };
    let host = format_path(host);
    // The holder of a lease that ran out may be alive, without a connection to the store. Only whoever takes the
    // worktree over decides that it is gone.
    let until = if lease.ends.secs < current_time().secs { "did not renew it after" } else { "has it until" };
    context.ui.print_note(format!("{name} {what} process {process} on {host}, which {until} {ends}"))
}

fn print_status_json(
    args: &Args,
    context: &CommandContext,
    standing: &WorktreePosition<'_>,
    compared: ComparedSnapshots<'_>,
) -> Result<()> {
    let names = SnapshotNames::load_all(standing.volume)?;
    names.warn_about_damaged(&context.ui)?;
    // Remotes are asked before printing, so that a failure is an error and not half an object.
    let remotes = args.remote.then(|| compare_with_remotes(standing.volume)).transpose()?;
    context.ui.print_json(&StatusJson {
        worktree: &standing.volume.worktree.worktree,
        directory: standing.directory.display().to_string(),
        head: standing.head.as_ref().map(|entry| names.to_snapshot_json(entry)),
        clean: compared.changes.is_empty(),
        counts: ChangeCounts::from_changes(&compared.changes),
        changes: &compared.changes,
        problems: compared.problems,
        absent: compared.absent.map(AbsentJson::from),
        interrupted_restore: standing.interrupted.as_ref(),
        merge: standing.volume.read_merge_progress()?.map(MergeStatusJson::from),
        mount: standing.mount.as_ref(),
        leases: list_leases(&names),
        remotes: remotes.map(|remotes| {
            let item = |(remote, found): (Remote, RemoteStanding)| RemoteStandingJson {
                remote: remote.name,
                snapshot: found.there.map(|id| id.to_string()),
                ahead: found.ahead,
                behind: found.behind,
            };
            remotes.into_iter().map(item).collect()
        }),
    })
}

fn compare_with_remotes(volume: &Volume) -> Result<Vec<(Remote, RemoteStanding)>> {
    let remotes = volume.list_remotes()?;
    if remotes.is_empty() {
        return Err(VolumeError::NoRemotes.into());
    }
    let compare = |remote: Remote| {
        let found = compare_with_remote(volume, &remote)?;
        Ok((remote, found))
    };
    remotes.into_iter().map(compare).collect()
}

fn describe_standing(remote: &Remote, standing: &RemoteStanding) -> String {
    let count = |snapshots| format::format_count(snapshots, "snapshot");
    let name = &remote.name;
    match *standing {
        RemoteStanding { is_read_only: true, ahead, behind, .. } => match (ahead, behind) {
            (_, 0) => format!("{name}: nothing new there"),
            (0, _) => format!("{name}: {} newer there", count(behind)),
            _ => format!("{name}: diverged, {} here and {} there", count(ahead), count(behind)),
        },
        RemoteStanding { there: None, ahead: 0, .. } => format!("{name}: nothing was pushed there"),
        RemoteStanding { there: None, ahead, .. } => {
            format!("{name}: nothing was pushed there; {} to push", count(ahead))
        }
        RemoteStanding { ahead: 0, behind: 0, .. } => format!("{name}: up to date"),
        RemoteStanding { ahead, behind: 0, .. } => format!("{name}: {} to push", count(ahead)),
        RemoteStanding { ahead: 0, behind, .. } => format!("{name}: {} newer there", count(behind)),
        RemoteStanding { ahead, behind, .. } => {
            format!("{name}: diverged, {} here and {} there", count(ahead), count(behind))
        }
    }
}

fn print_write_log(context: &CommandContext, mount: &MountStatusJson) -> Result<()> {
    let ui = &context.ui;
    let MountStatusJson {
        log_bytes,
        log_limit,
        waiting: _,
        unpublished_since,
        failure,
        follows,
        follow_problem,
        trash,
        cache,
    } = mount;
    // A time and not an amount: what matters is how old the changes are that a lost disk would take along.
    let age = unpublished_since.map_or_else(String::new, |since| {
        format!("; the oldest change that is not in the store was made {}", format::format_age(since))
    });
    ui.print_note(format!(
        "Write log: {} of {}{age}",
        format::format_size(*log_bytes),
        format::format_size(*log_limit)
    ))?;
    let percent = log_bytes / (log_limit / 100).max(1);
    if percent >= vellum_fs::log::NEARLY_FULL {
        ui.print_warning(format!(
            "the write log is {percent} % full: when it is full, writes wait until the store accepts its content"
        ))?;
    }
    if let Some(TrashFigures { days, entries, bytes }) = trash {
        ui.print_note(format!(
            "Trash: {}, {}, kept for {}",
            format::format_count(*entries, "entry"),
            format::format_size(*bytes),
            format::format_count((*days).into(), "day")
        ))?;
    }
    if let Some(CacheStatusJson { bytes, limit, pinned, nodes, offline }) = cache {
        ui.print_note(format!(
            "On this machine: {} of at most {}, and names of {} of at most {}; up to {} are pinned",
            format::format_size(*bytes),
            format::format_size(*limit),
            format::format_size(nodes.bytes),
            format::format_size(nodes.limit),
            format::format_size(*pinned)
        ))?;
        // Shown with each status, because a user who forgot about it would wait for uploads that never begin.
        if *offline {
            ui.print_note("offline: no requests are sent to the store; 'vellum offline off' ends that")?;
        }
    }
    match follow_problem {
        Some(problem) => ui.print_warning(format!("not following other machines: {problem}"))?,
        None if *follows => ui.print_note("Following other machines while nobody works here")?,
        None => {}
    }
    match failure {
        Some(failure) => ui.print_warning(format!("cannot write to the store: {failure}")),
        None => Ok(()),
    }
}

fn print_status(
    args: &Args,
    context: &CommandContext,
    standing: &WorktreePosition<'_>,
    compared: &ComparedSnapshots<'_>,
) -> Result<()> {
    let ui = &context.ui;
    let names = SnapshotNames::load_all(standing.volume)?;
    names.warn_about_damaged(&context.ui)?;
    let name = ui.style.paint_cyan(&standing.volume.worktree.worktree);
    let head = &standing.head;
    let stands = match head {
        Some(entry) => format!("at {}", names.describe_snapshot(entry)),
        None => "without a snapshot".into(),
    };
    ui.print_note(format!("Worktree {name} {stands}"))?;
    if let Some(absent) = &compared.absent {
        ui.print_note(describe_absent(absent))?;
    }
    if let Some(merge) = standing.volume.read_merge_progress()? {
        print_merge(context, &merge.into())?;
    }
    if let Some(mount) = &standing.mount {
        print_write_log(context, mount)?;
    }
    ui.print_problems(&compared.problems)?;
    let collapsed = if args.all { CollapsedDirs::None } else { CollapsedDirs::AddedAndDeleted };
    let paths = context.paths_at_root(standing.directory);
    ui.print_change_list(compared, collapsed, ChangeDetail::Aspects, |path| paths.format_path(path))?;
    match (compared.changes.is_empty(), head) {
        // What could not be read may have changed.
        (true, _) if !compared.problems.is_empty() => {}
        (true, Some(_)) => ui.print_note("nothing changed since")?,
        (true, None) => ui.print_note("and nothing to record")?,
        (false, _) => {
            ui.print_note(changes::format_counts(&ChangeCounts::from_changes(&compared.changes)))?
        }
    }
    // At the end, because a remote may take long to answer, or fail: everything else has been printed by then.
    if args.remote {
        for (remote, found) in compare_with_remotes(standing.volume)? {
            ui.print_note(describe_standing(&remote, &found))?;
        }
    }
    // Who has which worktree comes behind what was asked.
    list_leases(&names).iter().try_for_each(|lease| print_lease(context, lease))
}
