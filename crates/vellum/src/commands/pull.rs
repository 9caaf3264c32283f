//! `vellum pull`: snapshots come from a remote.

use serde::Serialize;
use vellum_volume::Volume;
use vellum_volume::remote::{PullReport, PullRequest, PulledRef, Remote, pull_content, pull_snapshots};
use vellum_volume::transfer::TransferReport;

use crate::context::CommandContext;
use crate::context::names::SnapshotNames;
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};
use crate::ui::format;
use crate::ui::progress::ProgressTask;

/// Fetch snapshots from a remote
///
/// Fetches the snapshots that the remote's worktrees and tags name, and all snapshots before them, unless they are
/// here already. No file, worktree or tag here is changed: 'REMOTE/NAME' names what was fetched, as in 'vellum diff
/// HEAD origin/main' or 'vellum restore origin/main'. If the command is interrupted, run it again: what arrived is
/// not fetched twice.
///
/// In a clone that was made with --mount from a store over https://, snapshots come without their content, which is
/// fetched when it is read. With --content, all content of all snapshots is copied into the clone's own store, and
/// nothing is read from that store any more.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The remote [default: origin, or the only one]
    remote: Option<String>,
    /// Fetch all snapshots of the remote, also those that no worktree and no tag of it names
    #[arg(long)]
    all: bool,
    /// Print what would be fetched, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Copy the content that only the store which was cloned has, and need that store no more
    #[arg(long, conflicts_with_all = ["remote", "all", "dry_run"])]
    content: bool,
}

#[derive(Serialize)]
struct PullJson {
    remote: String,
    dry_run: bool,
    /// Refs of the remote that changed since it was seen last.
    refs: Vec<PulledRefJson>,
    /// Snapshots that were missing here.
    snapshots: u64,
    blobs: u64,
    packs: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct PulledContentJson {
    blobs: u64,
    packs: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct PulledRefJson {
    kind: &'static str,
    name: String,
    old: Option<String>,
    new: Option<String>,
}

/// Fetches.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.open_volume()?;
    if args.content {
        return fetch_content(context, &volume);
    }
    let remote = volume.find_remote(args.remote.as_deref())?;
    let request = PullRequest { is_everything: args.all, is_dry_run: args.dry_run };
    let task = ProgressTask { first: "Comparing", verb: "Fetching", item: "blob" };
    let done = context
        .run_with_progress(task, |meter| pull_snapshots(&volume, &remote, request, meter))
        .with_resume_hint("run the command again: what arrived is not fetched twice")?;
    report_pull(context, &volume, &remote, args.dry_run, &done)?;
    Ok(CommandOutcome::Done)
}

/// Makes the volume independent of the store from which its content is fetched.
fn fetch_content(context: &CommandContext, volume: &Volume) -> Result<CommandOutcome> {
    let task = ProgressTask { first: "Comparing", verb: "Fetching", item: "blob" };
    let TransferReport { snapshots: _, blobs, packs, bytes } =
        context.run_with_progress(task, |meter| pull_content(volume, meter)).map_err(|error| {
            CliError::from(error).with_resume_hint("run the command again: what arrived is not fetched twice")
        })?;
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&PulledContentJson { blobs, packs, bytes })?;
    } else if !ui.voice.quiet {
        ui.print_line(format!("Fetched {}: all content is here now", format::format_size(bytes)))?;
    }
    Ok(CommandOutcome::Done)
}

fn report_pull(
    context: &CommandContext,
    volume: &Volume,
    remote: &Remote,
    dry_run: bool,
    done: &PullReport,
) -> Result<()> {
    let ui = &context.ui;
    let fetched = &done.fetched;
    if ui.is_json() {
        let refs = done.refs.iter().map(|pulled| PulledRefJson {
            kind: pulled.kind.display_name(),
            name: pulled.name.clone(),
            old: pulled.old.map(|id| id.to_string()),
            new: pulled.new.map(|id| id.to_string()),
        });
        return ui.print_json(&PullJson {
            remote: remote.name.clone(),
            dry_run,
            refs: refs.collect(),
            snapshots: fetched.snapshots,
            blobs: fetched.blobs,
            packs: fetched.packs,
            bytes: fetched.bytes,
        });
    }
    if ui.voice.quiet {
        return Ok(());
    }
    let name = &remote.name;
    let count = format::format_count(fetched.snapshots, "snapshot");
    ui.print_line(match (dry_run, fetched.snapshots) {
        (_, 0) => format!("The remote {name} has no snapshot that is not here"),
        (true, _) => format!("Would fetch {count} from {name}"),
        (false, _) => format!("Fetched {count} from {name}: {}", format::format_size(fetched.bytes)),
    })?;
    // Read after the fetch, because a short id may need more letters by now.
    let names = SnapshotNames::load_all(volume)?;
    for PulledRef { kind, name: reference, old, new } in &done.refs {
        let subject = format!("{} {name}/{reference}", kind.display_name());
        let short = |id| names.short_id(id);
        ui.print_line(match (old, new) {
            (None, Some(new)) => format!("  {subject}: new, {}", short(new)),
            (Some(old), Some(new)) => format!("  {subject}: {} -> {}", short(old), short(new)),
            (_, None) => format!("  {subject}: removed there"),
        })?;
    }
    Ok(())
}
