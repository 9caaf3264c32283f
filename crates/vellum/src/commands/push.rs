//! `vellum push`: snapshots go to a remote.

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_volume::Volume;
use vellum_volume::refs::{NamedRefKind, RefKind};
use vellum_volume::remote::{PushReport, PushRequest, PushedRef, RefPushOutcome, Remote, push_snapshots};

use crate::context::CommandContext;
use crate::context::names::SnapshotNames;
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};
use crate::ui::format;
use crate::ui::progress::ProgressTask;

/// Send snapshots to a remote
///
/// Without SNAP, sends the worktree's current snapshot and all before it, and moves the remote's worktree of the same
/// name there. Only what the remote lacks is sent, as it is stored here; it is neither decrypted nor compressed again. If
/// the command is interrupted, run it again: what arrived is not sent twice.
///
/// The remote's worktree moves only to a snapshot that descends from the one where it is. Otherwise the two have
/// diverged: nothing is changed, and the exit code is 1.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The remote [default: origin, or the only one]
    remote: Option<String>,
    /// Send these instead of the current snapshot; a tag or another worktree is moved there as well
    #[arg(value_name = "SNAP", conflicts_with = "all")]
    snapshots: Vec<String>,
    /// Send all snapshots and all worktrees
    #[arg(long)]
    all: bool,
    /// Send all tags as well
    #[arg(long)]
    tags: bool,
    /// Print what would be sent, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct PushJson {
    remote: String,
    dry_run: bool,
    refs: Vec<PushedRefJson>,
    /// Snapshots that the remote lacked.
    snapshots: u64,
    blobs: u64,
    packs: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct PushedRefJson {
    kind: &'static str,
    name: String,
    snapshot: String,
    outcome: &'static str,
    /// What the remote's ref named before, or names against what was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    there: Option<String>,
}

/// Sends.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.open_volume()?;
    // Others would take conflicts for work that was finished.
    volume.check_no_merge()?;
    let remote = volume.find_remote(args.remote.as_deref())?;
    let request = resolve_request(args, &volume)?;
    let task = ProgressTask { first: "Comparing", verb: "Sending", item: "blob" };
    let done = context
        .run_with_progress(task, |meter| push_snapshots(&volume, &remote, &request, meter))
        .with_resume_hint("run the command again: what arrived is not sent twice")?;
    report_push(context, &volume, &remote, args.dry_run, &done)
}

fn resolve_request(args: &Args, volume: &Volume) -> Result<PushRequest> {
    let mut request = PushRequest { is_dry_run: args.dry_run, ..PushRequest::default() };
    if args.all {
        request.worktrees = volume.list_worktrees()?.into_iter().map(|(name, _)| name).collect();
        request.is_everything = true;
    } else if args.snapshots.is_empty() {
        request.worktrees.push(volume.worktree.worktree.clone());
        // Checked before the remote is asked, which may take long.
        if volume.read_head()?.is_none() {
            return Err(CliError::usage_error(
                "there is nothing to send: this worktree has no snapshot yet",
                "'vellum snapshot' makes one",
            ));
        }
    }
    for typed in &args.snapshots {
        // Resolved in any case: a word that names nothing must fail before anything is sent.
        let id = volume.resolve_snapshot(typed)?.id;
        // The name of a worktree or a tag is sent as a ref, so that the remote has the name too. Any other expression
        // sends the snapshot alone.
        if volume.read_worktree_head(typed).is_ok_and(|head| head.is_some()) {
            request.worktrees.push(typed.clone());
        } else if volume.refs.get_ref(RefKind::Tag, typed).is_ok_and(|tag| tag.is_some()) {
            request.tags.push(typed.clone());
        } else {
            request.snapshots.push(id);
        }
    }
    if args.tags {
        // All tags include those that were typed.
        request.tags = volume.list_tags()?.into_iter().map(|(name, _)| name).collect();
    }
    Ok(request)
}

fn outcome_name(outcome: &RefPushOutcome) -> &'static str {
    // Programs read these names, so that they stay if a variant is renamed.
    match outcome {
        RefPushOutcome::Created => "created",
        RefPushOutcome::Moved(_) => "moved",
        RefPushOutcome::Unchanged => "unchanged",
        RefPushOutcome::Ahead(_) => "ahead",
        RefPushOutcome::Diverged(_) => "diverged",
        RefPushOutcome::Taken(_) => "taken",
        RefPushOutcome::Attached { .. } => "attached",
        RefPushOutcome::NameInUse => "name_in_use",
    }
}

impl PushedRefJson {
    fn new(pushed: &PushedRef) -> Self {
        // Only with these outcomes does the remote have another snapshot than this machine, or had it before.
        let there = match &pushed.outcome {
            RefPushOutcome::Moved(id)
            | RefPushOutcome::Ahead(id)
            | RefPushOutcome::Diverged(id)
            | RefPushOutcome::Taken(id) => Some(id.to_string()),
            RefPushOutcome::Created
            | RefPushOutcome::Unchanged
            | RefPushOutcome::Attached { .. }
            | RefPushOutcome::NameInUse => None,
        };
        Self {
            kind: pushed.kind.display_name(),
            name: pushed.name.clone(),
            snapshot: pushed.snapshot.to_string(),
            outcome: outcome_name(&pushed.outcome),
            there,
        }
    }
}

fn report_push(
    context: &CommandContext,
    volume: &Volume,
    remote: &Remote,
    dry_run: bool,
    done: &PushReport,
) -> Result<CommandOutcome> {
    let ui = &context.ui;
    // A ref that did not move is a finding for the exit code, even if all snapshots arrived.
    let outcome = CommandOutcome::from_findings(!done.refs.iter().all(|pushed| pushed.outcome.is_success()));
    let sent = &done.sent;
    if ui.is_json() {
        ui.print_json(&PushJson {
            remote: remote.name.clone(),
            dry_run,
            refs: done.refs.iter().map(PushedRefJson::new).collect(),
            snapshots: sent.snapshots,
            blobs: sent.blobs,
            packs: sent.packs,
            bytes: sent.bytes,
        })?;
        return Ok(outcome);
    }
    let names = SnapshotNames::load_all(volume)?;
    let is_refused = |pushed: &&PushedRef| !pushed.outcome.is_success();
    if !ui.voice.quiet {
        let count = format::format_count(sent.snapshots, "snapshot");
        let name = &remote.name;
        ui.print_line(match (dry_run, sent.snapshots) {
            (_, 0) => format!("The remote {name} lacks no snapshot"),
            (true, _) => format!("Would send {count} to {name}"),
            (false, _) => format!("Sent {count} to {name}: {}", format::format_size(sent.bytes)),
        })?;
        for pushed in done.refs.iter().filter(|pushed| !is_refused(pushed)) {
            ui.print_line(format!("  {}", describe_ref(&names, pushed)))?;
        }
    }
    // Also with --quiet: the command exits with 1 because of these.
    for pushed in done.refs.iter().filter(is_refused) {
        ui.print_warning(describe_ref(&names, pushed))?;
        ui.print_note(suggest_remedy(remote, pushed))?;
    }
    Ok(outcome)
}

fn describe_ref(names: &SnapshotNames, pushed: &PushedRef) -> String {
    let short = |id| names.short_id(id);
    let subject = format!("{} {}", pushed.kind.display_name(), pushed.name);
    let here = short(&pushed.snapshot);
    match &pushed.outcome {
        RefPushOutcome::Created => format!("{subject}: new, {here}"),
        RefPushOutcome::Moved(old) => format!("{subject}: {} -> {here}", short(old)),
        RefPushOutcome::Unchanged => format!("{subject}: {here}, as before"),
        RefPushOutcome::Ahead(there) => {
            format!("{subject}: {}, which is newer than {here}", short(there))
        }
        RefPushOutcome::Diverged(there) => {
            format!("{subject} has diverged: it is at {} there and at {here} here", short(there))
        }
        RefPushOutcome::Taken(there) => {
            format!("{subject} is snapshot {} there and {here} here", short(there))
        }
        RefPushOutcome::Attached { host, place } => format!(
            "{subject} is that of the directory {}:{} there, which alone moves it",
            format_path(host),
            format_path(place)
        ),
        RefPushOutcome::NameInUse => match pushed.kind {
            NamedRefKind::Worktree => format!("{subject} was not sent: a tag there has this name"),
            NamedRefKind::Tag => format!("{subject} was not sent: a worktree there has this name"),
        },
    }
}

/// What to do about a ref that did not move.
fn suggest_remedy(remote: &Remote, PushedRef { kind, name, outcome, .. }: &PushedRef) -> String {
    let remote = &remote.name;
    match (kind, outcome) {
        (NamedRefKind::Worktree, RefPushOutcome::Diverged(_)) => {
            format!("'vellum pull {remote}' fetches what is there, as '{remote}/{name}'")
        }
        (NamedRefKind::Worktree, _) => {
            format!("'vellum worktree rename {name} NEW' gives it another name here")
        }
        (NamedRefKind::Tag, _) => {
            "a tag is never moved: give the snapshot another one with 'vellum tag add'".into()
        }
    }
}
