//! `vellum snapshot`: records the directory as it is now.

pub mod exclude;
mod outside;
mod stream;

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Serialize;
use vellum_checkout::{CheckoutSnapshotRequest, CheckoutWorktree, SnapshotExclusions, SnapshotReport};
use vellum_types::limits::NOTE_MAX;
use vellum_volume::annotation::AnnotationChange;
use vellum_volume::diff::FileChange;
use vellum_volume::history::HistoryEntry;
use vellum_volume::merge::check_no_merge_in;
use vellum_volume::refs::{RefKind, check_ref_name};
use vellum_volume::{SnapshotOrigin, StateDir, Volume};

use self::exclude::ExcludeArgs;
use self::outside::snapshot_outside;
use self::stream::snapshot_stream;
use crate::commands::note::PropertyArgs;
use crate::compare::ComparedSnapshots;
use crate::context::CommandContext;
use crate::context::mounted::{MountProcess, MountedWorktree};
use crate::context::names::SnapshotNames;
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};
use crate::hooks::{HookCall, HookFact, HookKind};
use crate::mounting::control::ControlRequest;
use crate::ui::changes::list::{ChangeDetail, CollapsedDirs};
use crate::ui::changes::{self, ChangeCounts};
use crate::ui::format;
use crate::ui::json::{self, ProblemJson};
use crate::ui::progress::ProgressTask;

/// Record the directory as it is now
///
/// With PATHs, records these paths as they are now, and everything else as in the last snapshot. Paths that
/// .vellumignore matches (in the syntax of .gitignore) are left out.
///
/// What --exclude, --one-file-system and --exclude-caches leave out is not in the snapshot, even if the last one has it.
/// Until the next snapshot of the whole directory, 'vellum status' leaves it out too, and 'vellum restore' does not touch
/// it. In a mount, such a snapshot is stored before it is acknowledged.
///
/// With --from-stdin, the snapshot has one file with the content of standard input, and with --root, it is of another
/// directory. Both are in lines of their own, called HOST:NAME and HOST:DIR; this directory and its history stay as they are.
///
/// With --quiet, prints only the id of the new snapshot. Exits with 1 if something could not be read; everything
/// else is recorded.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these paths
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    #[command(flatten)]
    exclude: ExcludeArgs,
    /// Record DIR, which need not be a worktree, in a line of its own
    #[arg(long, value_name = "DIR", conflicts_with = "wait")]
    root: Option<PathBuf>,
    /// Record standard input as the file NAME, in a line of its own
    ///
    /// Whether the program that writes it has failed cannot be seen: use 'set -o pipefail', or --stdin-from-command.
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with_all = ["root", "dry_run", "if_changed", "wait", "patterns", "one_file_system", "exclude_caches"]
    )]
    from_stdin: Option<OsString>,
    /// With --from-stdin: run the command after '--', and record what it writes, if it succeeds
    #[arg(long, requires = "from_stdin")]
    stdin_from_command: bool,
    /// A note on what this is ('-': from standard input)
    #[arg(short = 'm', long = "note", alias = "message", value_name = "NOTE")]
    note: Option<String>,
    /// Tag the snapshot; can be repeated
    #[arg(short, long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    #[command(flatten)]
    properties: PropertyArgs,
    /// List what would be recorded, and record nothing
    #[arg(short = 'n', long, conflicts_with_all = ["note", "tags", "wait", "if_changed"])]
    dry_run: bool,
    /// Make no snapshot of what the last one holds already; tags and properties are given to that one
    #[arg(long)]
    if_changed: bool,
    /// In a mount: return when the snapshot is in the store
    ///
    /// Without it, a snapshot of a mount is kept locally, survives a power cut, and goes into the store in the background.
    /// With it, a service that does not answer is waited for: until Ctrl-C, or for the time of --retry-for.
    #[arg(long)]
    wait: bool,
}

#[derive(Serialize)]
struct SnapshotCreatedJson {
    snapshot: json::SnapshotJson,
    made: bool,
    unchanged: bool,
    problems: Vec<ProblemJson>,
}

/// A snapshot of a mounted worktree: its record is complete when its tree is stored.
#[derive(Serialize)]
struct MountSnapshotJson {
    snapshot: SnapshotNameJson,
    made: bool,
    published: bool,
}

/// What a snapshot would record.
#[derive(Serialize)]
struct SnapshotPreviewJson<'a> {
    dry_run: bool,
    counts: ChangeCounts,
    #[serde(serialize_with = "changes::serialize_changes")]
    changes: &'a [FileChange],
    problems: &'a [ProblemJson],
}

#[derive(Serialize)]
struct SnapshotNameJson {
    id: String,
}

/// Makes the snapshot.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    if let Some(name) = &args.from_stdin {
        return snapshot_stream(args, name, context);
    }
    if let Some(root) = &args.root {
        return snapshot_outside(args, root, context);
    }
    if args.dry_run {
        return preview_snapshot(args, context);
    }
    // What is no property fails at once, and not after the scan.
    let properties = args.properties.to_change()?;
    if let Some(process) = context.find_mount_process()? {
        return snapshot_mount(args, context, process, &properties);
    }
    let mut worktree = context.open_worktree()?;
    apply_exclusions(args, &mut worktree)?;
    let paths = context.paths_at_root(worktree.root_path()).parse_paths(&args.paths)?;
    let note = read_note(args)?;
    // A name that is taken fails at once, and not after the scan.
    check_new_tags(args, &worktree.volume)?;
    let volume = &worktree.volume;
    let directory = worktree.root_path();
    let hooks =
        SnapshotHooks { state: &volume.state, worktree: &volume.worktree.worktree, directory, context };
    // Without the lock, which commands that it runs may need.
    hooks.run_before()?;
    let lock = worktree.lock_worktree(context.lock_wait_notice())?;
    // A snapshot in the middle of a merge would take open conflicts for finished work.
    worktree.volume.check_no_merge()?;
    warn_about_interrupted(context, &worktree)?;
    let request = CheckoutSnapshotRequest {
        note,
        paths,
        origin: SnapshotOrigin::User,
        only_if_changed: args.if_changed,
    };
    let made = context
        .run_with_progress(ProgressTask { first: "Scanning", verb: "Recording", item: "file" }, |meter| {
            worktree.create_snapshot(&request, meter)
        })
        .with_resume_hint(
            "no snapshot was made; run the command again: what was stored already is not stored twice",
        )?;
    for tag in &args.tags {
        // Checked above, and created by somebody else meanwhile, a tag fails here; the snapshot is made, and in the
        // history.
        worktree.volume.add_tag(tag, made.id)?;
    }
    if !properties.is_empty() {
        worktree.volume.annotate_snapshot(made.id, &properties)?;
    }
    let new = made.is_new.then(|| made.id.to_string());
    let outcome = report_snapshot(context, &worktree.volume, made)?;
    // The hook that follows may run commands that need the lock.
    drop(lock);
    let hook = new.map_or(Ok(CommandOutcome::Done), |id| hooks.run_after(&id))?;
    Ok(outcome.max(hook))
}

/// The hooks of snapshots of a worktree.
struct SnapshotHooks<'a> {
    state: &'a StateDir,
    worktree: &'a str,
    directory: &'a Path,
    context: &'a CommandContext,
}

impl SnapshotHooks<'_> {
    fn run_before(&self) -> Result<()> {
        self.run_hook(HookKind::BeforeSnapshot, &[HookFact::worktree(self.worktree)]).map(drop)
    }

    fn run_after(&self, id: &str) -> Result<CommandOutcome> {
        self.run_hook(HookKind::AfterSnapshot, &[HookFact::worktree(self.worktree), HookFact::snapshot(id)])
    }

    fn run_hook(&self, kind: HookKind, facts: &[HookFact<'_>]) -> Result<CommandOutcome> {
        HookCall { kind, state: self.state, directory: self.directory, facts }.run(self.context)
    }
}

/// Lists what a snapshot would record.
fn preview_snapshot(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    if let Some(mounted) = context.open_mounted_worktree()? {
        let exclusions = mount_exclusions(args, &mounted)?;
        let head = mounted.published_head()?;
        let paths = context.paths_at_root(&mounted.mountpoint).parse_paths(&args.paths)?;
        let now = mounted.publish_tree_excluding(Some(exclusions))?.root;
        let before = head.as_ref().map_or_else(|| mounted.volume.empty_root(), |head| head.record.root);
        let lines = head.map(|head| (head.id, head.id));
        let compared = ComparedSnapshots::compare_trees(&mounted.volume, before, now, lines, &paths)?;
        let paths = context.paths_at_root(&mounted.mountpoint);
        return report_preview(context, &compared, |path| paths.format_path(path));
    }
    let mut worktree = context.open_worktree()?;
    apply_exclusions(args, &mut worktree)?;
    let paths = context.paths_at_root(worktree.root_path()).parse_paths(&args.paths)?;
    let task = ProgressTask { first: "Scanning", verb: "Comparing", item: "file" };
    let compared = context
        .run_with_progress(task, |meter| ComparedSnapshots::compare_dir(&worktree, None, &paths, meter))
        .map_err(|error| error.with_resume_hint("nothing was recorded"))?;
    let paths = context.paths_at_root(worktree.root_path());
    report_preview(context, &compared, |path| paths.format_path(path))
}

/// A snapshot of the whole directory says anew what is left out; one of some paths leaves out what the last whole one did, too.
fn apply_exclusions(args: &Args, worktree: &mut CheckoutWorktree) -> Result<()> {
    let given = args.exclude.to_exclusions();
    let exclusions = if args.paths.is_empty() { given } else { worktree.exclusions().join(&given) };
    Ok(worktree.exclude(exclusions)?)
}

/// What a snapshot of a mount leaves out: one of some paths leaves out what the last whole one did, too.
fn mount_exclusions(args: &Args, mounted: &MountedWorktree) -> Result<SnapshotExclusions> {
    let given = args.exclude.to_mount_exclusions()?;
    if args.paths.is_empty() {
        return Ok(given);
    }
    Ok(mounted.publish_tree_excluding(None)?.exclusions.join(&given))
}

fn report_preview(
    context: &CommandContext,
    compared: &ComparedSnapshots<'_>,
    show: impl Fn(&[u8]) -> String,
) -> Result<CommandOutcome> {
    let outcome = CommandOutcome::from_findings(!compared.problems.is_empty());
    let counts = ChangeCounts::from_changes(&compared.changes);
    let ui = &context.ui;
    if ui.is_json() {
        let changes = &compared.changes;
        let problems = &compared.problems;
        ui.print_json(&SnapshotPreviewJson { dry_run: true, counts, changes, problems })?;
        return Ok(outcome);
    }
    ui.print_problems(&compared.problems)?;
    ui.print_change_list(compared, CollapsedDirs::Deleted, ChangeDetail::Sizes, show)?;
    if compared.changes.is_empty() {
        ui.print_note("nothing changed")?;
    } else {
        ui.print_note(format!("would record: {}", changes::format_counts(&counts)))?;
    }
    Ok(outcome)
}

/// The worktree is mounted: its snapshot is made at once, and its tree is stored in the background; one of some paths, or
/// one that leaves something out, is stored before it is told.
fn snapshot_mount(
    args: &Args,
    context: &CommandContext,
    process: MountProcess,
    properties: &AnnotationChange,
) -> Result<CommandOutcome> {
    let exclusions = args.exclude.to_mount_exclusions()?;
    let paths = context.paths_at_root(&process.mountpoint).parse_paths(&args.paths)?;
    let note = read_note(args)?;
    let state = process.state_dir()?;
    check_no_merge_in(&state, &process.worktree)?;
    let process = check_mount_tags(args, process)?;
    let mounted = process.clone();
    let hooks =
        SnapshotHooks { state: &state, worktree: &mounted.worktree, directory: &mounted.mountpoint, context };
    hooks.run_before()?;
    // Pages that the kernel has not handed over yet belong into the snapshot.
    process.sync_filesystem()?;
    if args.if_changed
        && let Some(head) = find_unchanged_head(args, process.clone(), &paths)?
    {
        return report_unchanged_mount(args, context, process, &head, properties);
    }
    let tags = args.tags.clone();
    let request = ControlRequest::Snapshot { note, tags, paths, exclusions: Some(exclusions) };
    let answer = process.send_request(&request)?;
    let id = answer.snapshot.unwrap_or_default();
    let made = id.clone();
    annotate_mount_snapshot(context, &process, &id, properties)?;
    let waits = answer.waiting > 0;
    // What was made is reported even if it cannot be stored now.
    let settled = (waits && args.wait).then(|| process.send_until_stored(&ControlRequest::Settle, context));
    let waits = waits && !matches!(settled, Some(Ok(_)));
    let ui = &context.ui;
    if ui.is_json() {
        let snapshot = SnapshotNameJson { id };
        ui.print_json(&MountSnapshotJson { snapshot, made: true, published: !waits })?;
    } else if ui.voice.quiet {
        // With --quiet, scripts get the id and nothing else.
        ui.print_line(id)?;
    } else {
        let short = ui.style.paint_yellow(format::shorten_id(&id));
        let place =
            if waits { "kept here; it goes into the store in the background" } else { "in the store" };
        ui.print_line(format!("Snapshot {short}: {place}"))?;
    }
    let outcome = hooks.run_after(&made)?;
    // Only now: the hook has run, because the snapshot exists, whatever became of the store.
    settled.transpose().map(|_| outcome)
}

/// The last snapshot of a mount, if what would be recorded is what it holds.
fn find_unchanged_head(
    args: &Args,
    process: MountProcess,
    paths: &[Vec<u8>],
) -> Result<Option<HistoryEntry>> {
    let mounted = process.open_volume()?;
    let exclusions = mount_exclusions(args, &mounted)?;
    let Some(head) = mounted.published_head()? else { return Ok(None) };
    let now = mounted.publish_tree_excluding(Some(exclusions))?.root;
    // Both trees are of one line: an inode number that both have is the same file.
    let lines = Some((head.id, head.id));
    let compared = ComparedSnapshots::compare_trees(&mounted.volume, head.record.root, now, lines, paths)?;
    Ok(compared.changes.is_empty().then_some(head))
}

fn report_unchanged_mount(
    args: &Args,
    context: &CommandContext,
    process: MountProcess,
    head: &HistoryEntry,
    properties: &AnnotationChange,
) -> Result<CommandOutcome> {
    let volume = process.open_volume()?.volume;
    args.tags.iter().try_for_each(|tag| volume.add_tag(tag, head.id))?;
    if !properties.is_empty() {
        volume.annotate_snapshot(head.id, properties)?;
    }
    let ui = &context.ui;
    if ui.is_json() {
        let snapshot = SnapshotNameJson { id: head.id.to_string() };
        ui.print_json(&MountSnapshotJson { snapshot, made: false, published: true })?;
        return Ok(CommandOutcome::Done);
    }
    print_unchanged(context, &volume, head)?;
    Ok(CommandOutcome::Done)
}

/// Says that no snapshot was made, because the last one holds everything.
fn print_unchanged(context: &CommandContext, volume: &Volume, head: &HistoryEntry) -> Result<()> {
    if context.ui.voice.quiet {
        return context.ui.print_line(head.id);
    }
    context.ui.print_line(format!("Nothing changed since snapshot {}", volume.short_id(&head.id)?))
}

fn read_note(args: &Args) -> Result<String> {
    let Some(typed) = &args.note else { return Ok(String::new()) };
    let mut note = typed.clone().into_bytes();
    if typed == "-" {
        note.clear();
        // One byte more than is allowed shows that the note is too long.
        let read = std::io::stdin().lock().take(NOTE_MAX as u64 + 1).read_to_end(&mut note);
        read.map_err(CliError::io_error("read", "the note from standard input"))?;
    }
    // Checked before it is decoded: a note that is too long may have been cut within a character.
    if note.len() > NOTE_MAX {
        return Err(CliError::usage_error(
            format!("the note is longer than {}", format::format_size(NOTE_MAX as u64)),
            "",
        ));
    }
    let note = String::from_utf8(note).map_err(|_| CliError::usage_error("the note is not UTF-8", ""))?;
    Ok(note.trim_end().into())
}

/// Properties are refs, and need no record: the snapshot may still be on its way into the store.
fn annotate_mount_snapshot(
    context: &CommandContext,
    process: &MountProcess,
    id: &str,
    properties: &AnnotationChange,
) -> Result<()> {
    if properties.is_empty() {
        return Ok(());
    }
    let unknown = || CliError::usage_error("the mount gave the snapshot no id", "'vellum history' shows it");
    let parsed = id.parse().map_err(|_| unknown())?;
    let annotate = |volume: &Volume| Ok(volume.annotate_snapshot(parsed, properties)?);
    let done = process.clone().open_volume().and_then(|mounted| annotate(&mounted.volume));
    if done.is_err() {
        let way =
            format!("the snapshot {id} was made; 'vellum note {id} --set NAME=VALUE' gives it properties");
        context.ui.print_note(way)?;
    }
    done
}

/// The same for a mount. Whether a store that is away has the tag cannot be told: a snapshot does not wait for that.
fn check_mount_tags(args: &Args, process: MountProcess) -> Result<MountProcess> {
    if args.tags.is_empty() {
        return Ok(process);
    }
    args.tags.iter().try_for_each(|tag| check_ref_name(tag))?;
    // To open the volume takes the process, which is needed even if the store is away.
    let again = process.clone();
    match process.open_volume().and_then(|mounted| check_new_tags(args, &mounted.volume)) {
        Err(error) if !error.is_store_failure() => Err(error),
        Ok(()) | Err(_) => Ok(again),
    }
}

/// Before the work, not after it.
fn check_new_tags(args: &Args, volume: &Volume) -> Result<()> {
    for tag in &args.tags {
        check_ref_name(tag)?;
        if volume.refs.get_ref(RefKind::Tag, tag)?.is_some() {
            let hint = format!("'vellum tag remove {tag}' takes it away; no snapshot was made");
            return Err(CliError::usage_error(format!("the tag '{tag}' exists already"), hint));
        }
        volume.check_new_tag(tag)?;
    }
    Ok(())
}

/// What a half-done restore left is no state that anyone made.
pub fn warn_about_interrupted(context: &CommandContext, worktree: &CheckoutWorktree) -> Result<()> {
    if let Some(path) = worktree.read_hydrating_paths()?.iter().next() {
        let path = context.paths_at_root(worktree.root_path()).format_path(path);
        let message = format!("a hydration was interrupted: 'vellum hydrate {path}' finishes it");
        context.ui.print_warning(message)?;
    }
    let Some(interrupted) = worktree.find_interrupted_restore()? else { return Ok(()) };
    let short = |id| worktree.volume.short_id(id);
    let target = short(&interrupted.target)?;
    let undo = match &interrupted.safety {
        Some(safety) => format!(", 'vellum restore {}' undoes it", short(safety)?),
        None => String::new(),
    };
    context.ui.print_warning(format!(
        "a restore of {target} was interrupted, and the directory is a mixture: 'vellum restore {target}' finishes it{undo}"
    ))
}

fn report_snapshot(
    context: &CommandContext,
    volume: &Volume,
    made: SnapshotReport,
) -> Result<CommandOutcome> {
    let problems: Vec<_> = made.problems.iter().map(ProblemJson::from).collect();
    let outcome = CommandOutcome::from_findings(!problems.is_empty());
    let ui = &context.ui;
    let entry = HistoryEntry { id: made.id, record: made.record.into() };
    if ui.is_json() {
        let names = SnapshotNames::load_all(volume)?;
        ui.print_json(&SnapshotCreatedJson {
            snapshot: names.to_snapshot_json(&entry),
            made: made.is_new,
            unchanged: made.unchanged,
            problems,
        })?;
        return Ok(outcome);
    }
    ui.print_problems(&problems)?;
    if !made.is_new {
        print_unchanged(context, volume, &entry)?;
        return Ok(outcome);
    }
    if ui.voice.quiet {
        ui.print_line(entry.id)?;
        return Ok(outcome);
    }
    let stats = &entry.record.statistics;
    let id = ui.style.paint_yellow(&volume.short_id(&entry.id)?);
    let holds =
        format!("{}, {}", format::format_count(stats.files, "file"), format::format_size(stats.bytes));
    let news = if made.unchanged {
        "nothing changed".into()
    } else {
        format!(
            "{} changed, {} stored",
            format::format_number(stats.changed),
            format::format_size(stats.stored)
        )
    };
    ui.print_line(format!("Snapshot {id}: {holds}; {news}"))?;
    // A store that lost some data may have lost more: this is the moment to find out.
    if made.renewed > 0 {
        let pieces = format::format_count(made.renewed, "blob");
        ui.print_note(format!(
            "stored again {pieces} that the store had lost; 'vellum verify --all' says what else is missing or damaged"
        ))?;
    }
    if !problems.is_empty() {
        ui.print_warning(format!(
            "{} could not be recorded as they are",
            format::format_count(problems.len() as u64, "path")
        ))?;
    }
    Ok(outcome)
}
