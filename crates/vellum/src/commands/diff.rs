//! `vellum diff`: what differs between two snapshots, or a snapshot and the directory.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use serde::Serialize;
use vellum_checkout::{CheckoutError, CheckoutWorktree};
use vellum_host::escape::format_path;
use vellum_types::FileKind;
use vellum_volume::diff::{ChangeKind, FileChange};
use vellum_volume::history::HistoryEntry;
use vellum_volume::{Volume, VolumeError};

use crate::compare::ComparedSnapshots;
use crate::context::CommandContext;
use crate::context::mounted::MountedWorktree;
use crate::error::{CliError, CommandOutcome, Result};
use crate::ui::changes::list::{ChangeDetail, CollapsedDirs, limit_name_column};
use crate::ui::changes::{self, ChangeCounts};
use crate::ui::json::ProblemJson;
use crate::ui::progress::ProgressTask;
use crate::ui::table::TextTable;
use crate::ui::{format, patch};

/// Compare snapshots, or a snapshot with the directory as it is now
///
/// FROM is the snapshot before [default: this worktree's current snapshot]; TO the one after [default: the
/// directory as it is now]. A..B means A and B; without one of them, the worktree's current snapshot. An argument that
/// names a snapshot is one, any other is a path; after '--' all are paths.
///
/// Without an option, lists each difference (A: added, M: modified, R: renamed, D: deleted) with sizes, and what
/// else differs besides the content. A deleted directory is listed as one line with the number of entries in it,
/// unless --all is given. Exits with 1 if there are differences.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Snapshots and paths
    #[arg(value_name = "FROM] [TO] [PATH")]
    words: Vec<OsString>,
    /// Also list the contents of deleted directories
    #[arg(short, long)]
    all: bool,
    /// Count lines added and removed in each file
    #[arg(long)]
    stat: bool,
    /// Letters and names only, separated by a tab: for scripts
    #[arg(long, conflicts_with = "stat")]
    name_status: bool,
    /// Show the differing lines, in the format of 'git apply' and 'patch -p1'
    #[arg(short, long, conflicts_with_all = ["stat", "name_status", "json"])]
    patch: bool,
    /// Paths, whatever else they could name
    #[arg(last = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

#[derive(Serialize)]
struct DiffJson<'a> {
    from: Option<String>,
    to: Option<String>,
    counts: ChangeCounts,
    #[serde(serialize_with = "changes::serialize_changes")]
    changes: &'a [FileChange],
    problems: Vec<ProblemJson>,
}

/// What the words meant.
struct DiffOperands {
    from: Option<HistoryEntry>,
    to: Option<HistoryEntry>,
    paths: Vec<Vec<u8>>,
}

/// Compares.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    if let Some(mounted) = context.open_mounted_worktree()? {
        // This publishes the waiting snapshots: the words that follow may name one of them.
        let head = mounted.published_head()?;
        let meant = resolve_operands(args, context, &mounted.volume, &mounted.mountpoint, head)?;
        let compared = compare_in_mount(&mounted, &meant)?;
        return report_changes(args, context, &meant, &mounted.mountpoint, compared);
    }
    let worktree = context.open_worktree()?;
    let meant =
        resolve_operands(args, context, &worktree.volume, worktree.root_path(), worktree.head_snapshot()?)?;
    let compared = compare_operands(context, &worktree, &meant)?;
    report_changes(args, context, &meant, worktree.root_path(), compared)
}

fn report_changes(
    args: &Args,
    context: &CommandContext,
    meant: &DiffOperands,
    root: &Path,
    compared: ComparedSnapshots<'_>,
) -> Result<CommandOutcome> {
    // A path may exist on one side only, so that whether it exists at all is known after the comparison.
    for path in &meant.paths {
        if !compared.contains_path(path) {
            return Err(unknown_word_error(context, &format_path(path)));
        }
    }
    // As with diff, differences are a finding.
    let outcome =
        CommandOutcome::from_findings(!compared.changes.is_empty() || !compared.problems.is_empty());
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&DiffJson {
            from: meant.from.as_ref().map(|entry| entry.id.to_string()),
            to: meant.to.as_ref().map(|entry| entry.id.to_string()),
            counts: ChangeCounts::from_changes(&compared.changes),
            changes: &compared.changes,
            problems: compared.problems,
        })?;
        return Ok(outcome);
    }
    ui.print_problems(&compared.problems)?;
    print_changes(args, context, root, &compared)?;
    Ok(outcome)
}

fn unknown_word_error(context: &CommandContext, word: &str) -> CliError {
    CliError::usage_error(
        format!("'{word}' is neither a snapshot nor a path on either side"),
        "'vellum history --all' lists snapshots; paths are relative to the directory you stand in",
    )
    .with_suggestion(
        context.find_near_name(word, |_| true).or_else(|| context.find_near_head_path(word.as_bytes())),
    )
}

fn resolve_operands(
    args: &Args,
    context: &CommandContext,
    volume: &Volume,
    root: &Path,
    head: Option<HistoryEntry>,
) -> Result<DiffOperands> {
    let paths = context.paths_at_root(root);
    let mut from = None;
    let mut to = None;
    let mut scope = Vec::new();
    for word in &args.words {
        if from.is_none()
            && scope.is_empty()
            && let Some(range) = resolve_range_word(context, volume, word)?
        {
            from = Some(range.from);
            to = Some(range.to);
            continue;
        }
        // Snapshots come first: behind the second one, or behind a path, each word is a path.
        let snapshot = if to.is_none() && scope.is_empty() {
            resolve_snapshot_word(context, volume, word)?
        } else {
            None
        };
        match snapshot {
            Some(entry) if from.is_none() => from = Some(entry),
            Some(entry) => to = Some(entry),
            None => scope.push(paths.parse_path(word)?),
        }
    }
    scope.extend(paths.parse_paths(&args.paths)?);
    Ok(DiffOperands { from: from.or(head), to, paths: scope })
}

/// The two ends of `A..B`, if a word is that and no file.
struct ComparedRange {
    from: HistoryEntry,
    to: HistoryEntry,
}

fn resolve_range_word(
    context: &CommandContext,
    volume: &Volume,
    word: &OsStr,
) -> Result<Option<ComparedRange>> {
    let Some((first, last)) = word.to_str().and_then(|text| text.split_once("..")) else { return Ok(None) };
    let is_file = context.cwd.join(word).symlink_metadata().is_ok();
    // '..' and '../x' are paths.
    if is_file || (first.is_empty() && (last.is_empty() || last.starts_with('/'))) {
        return Ok(None);
    }
    // As in git, the end that is missing is where the worktree stands.
    let resolve = |end: &str| volume.resolve_snapshot(if end.is_empty() { "HEAD" } else { end });
    match (resolve(first), resolve(last)) {
        (Ok(from), Ok(to)) => Ok(Some(ComparedRange { from, to })),
        // With one end that is a snapshot, the other one was meant as one.
        (Ok(_), Err(error)) if !first.is_empty() => Err(error.into()),
        (Err(error), Ok(_)) if !last.is_empty() => Err(error.into()),
        (Ok(_) | Err(_), Ok(_) | Err(_)) => Ok(None),
    }
}

/// The snapshot that a word names, if any. A word that names a file too means neither for certain.
fn resolve_snapshot_word(
    context: &CommandContext,
    volume: &Volume,
    word: &OsStr,
) -> Result<Option<HistoryEntry>> {
    // Names of snapshots are UTF-8, so that this can only be a path.
    let Some(text) = word.to_str() else { return Ok(None) };
    let is_file = context.cwd.join(word).symlink_metadata().is_ok();
    match volume.resolve_snapshot(text) {
        // A whole id means the snapshot, even if a file has that name.
        Ok(entry) if is_file && entry.id.to_string() != text => Err(CliError::usage_error(
            format!("'{}' names both a snapshot and a file: {}", format_path(text), entry.id),
            format!("'vellum diff -- {text}' means the file; the whole id means the snapshot"),
        )),
        Ok(entry) => Ok(Some(entry)),
        Err(VolumeError::NoSnapshotThere { .. }) if text == "HEAD" && !is_file => {
            Err(CliError::usage_error("there is no snapshot yet", "'vellum snapshot' makes one"))
        }
        // A word with '~', '^' or '@' that is no file was meant as a snapshot: the error about the snapshot says more than
        // that it is no path either.
        Err(VolumeError::UnknownSnapshot(_) | VolumeError::NoSnapshotThere { .. })
            if !text.contains(['~', '^', '@']) || is_file =>
        {
            Ok(None)
        }
        Err(VolumeError::BadExpression { .. }) if is_file => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn compare_operands<'a>(
    context: &CommandContext,
    worktree: &'a CheckoutWorktree,
    meant: &DiffOperands,
) -> Result<ComparedSnapshots<'a>> {
    match (&meant.from, &meant.to) {
        (Some(from), Some(to)) => {
            let lines = Some((from.id, to.id));
            ComparedSnapshots::compare_trees(
                &worktree.volume,
                from.record.root,
                to.record.root,
                lines,
                &meant.paths,
            )
        }
        (from, _) => {
            let task = ProgressTask { first: "Scanning", verb: "Comparing", item: "file" };
            context
                .run_with_progress(task, |meter| {
                    ComparedSnapshots::compare_dir(worktree, from.as_ref(), &meant.paths, meter)
                })
                .map_err(|error| match error {
                    // A word that names no snapshot was taken for a path: the message has to say that it is neither.
                    CliError::Checkout(CheckoutError::NoSuchPath { path, .. }) => {
                        unknown_word_error(context, &path)
                    }
                    other => other.with_resume_hint("nothing was changed"),
                })
        }
    }
}

/// The worktree is mounted: what is there now is put into the store and compared there.
fn compare_in_mount<'a>(mounted: &'a MountedWorktree, meant: &DiffOperands) -> Result<ComparedSnapshots<'a>> {
    let root = |entry: &Option<HistoryEntry>| entry.as_ref().map(|entry| entry.record.root);
    let from = root(&meant.from).unwrap_or_else(|| mounted.volume.empty_root());
    // Both trees are read from the store: the present state must be there first.
    let to = root(&meant.to).map_or_else(|| mounted.publish_current_tree(), Ok)?;
    let id = |entry: &Option<HistoryEntry>| entry.as_ref().map(|entry| entry.id);
    // The present state descends from the head: inode numbers are compared as those of the head are.
    let line = id(&meant.to).map_or_else(|| mounted.volume.read_head(), |id| Ok(Some(id)))?;
    ComparedSnapshots::compare_trees(&mounted.volume, from, to, id(&meant.from).zip(line), &meant.paths)
}

fn print_changes(
    args: &Args,
    context: &CommandContext,
    root: &Path,
    compared: &ComparedSnapshots<'_>,
) -> Result<()> {
    let paths = context.paths_at_root(root);
    let show = |path: &[u8]| paths.format_path(path);
    if args.patch {
        return print_patch(context, compared);
    }
    if args.name_status {
        for change in &compared.changes {
            context.ui.print_line(format_name_status(change, show))?;
        }
        return Ok(());
    }
    if args.stat {
        return print_stat(context, compared, show);
    }
    // A deleted directory stands for what was in it. Of a new one, each file is of interest.
    let collapsed = if args.all { CollapsedDirs::None } else { CollapsedDirs::Deleted };
    context.ui.print_change_list(compared, collapsed, ChangeDetail::Sizes, show)?;
    if !compared.changes.is_empty() {
        context.ui.print_note(changes::format_counts(&ChangeCounts::from_changes(&compared.changes)))?;
    }
    Ok(())
}

fn format_name_status(change: &FileChange, show: impl Fn(&[u8]) -> String) -> String {
    let letter = changes::change_letter(change.kind);
    // As git does it, columns are separated by tabs: names may have blanks in them.
    match (&change.old, change.kind) {
        (Some(old), ChangeKind::Renamed) => format!("{letter}\t{}\t{}", show(&old.path), show(change.path())),
        _ => format!("{letter}\t{}", show(change.path())),
    }
}

fn print_patch(context: &CommandContext, compared: &ComparedSnapshots<'_>) -> Result<()> {
    for change in &compared.changes {
        // One after the other: the contents of all files together may be more than fits into memory.
        let (old, new) = compared.read_change_contents(change)?;
        let mut text = Vec::new();
        patch::write_patch(&mut text, change, &old, &new).map_err(CliError::Output)?;
        let text = if context.ui.style.is_coloured() { patch::paint_patch(&text) } else { text };
        context.ui.write_bytes(&text)?;
    }
    Ok(())
}

fn print_stat(
    context: &CommandContext,
    compared: &ComparedSnapshots<'_>,
    show: impl Fn(&[u8]) -> String,
) -> Result<()> {
    let style = context.ui.style;
    let mut table = TextTable::with_limit([2, 3], limit_name_column(context.ui.output_columns()));
    let mut files = 0;
    let mut all_added = 0;
    let mut all_removed = 0;
    for change in &compared.changes {
        let is_dir = [&change.old, &change.new].into_iter().flatten().all(|side| side.kind == FileKind::Dir);
        // A directory that came or went has no lines of its own, and its files are listed.
        if is_dir && change.kind != ChangeKind::Renamed && !change.aspects.has_change() {
            continue;
        }
        files += 1;
        let (old, new) = if is_dir {
            (patch::PatchContent::None, patch::PatchContent::None)
        } else {
            compared.read_change_contents(change)?
        };
        let counted = patch::count_changed_lines(&old, &new);
        // What is no text has no lines that could be counted.
        let (added, removed) = counted.unwrap_or_default();
        all_added += added;
        all_removed += removed;
        let count = |sign: char, lines: u64| {
            if lines > 0 { format!("{sign}{}", format::format_number(lines)) } else { String::new() }
        };
        let remark = if counted.is_none() { "not text" } else { "" };
        table.add_row([
            changes::paint_change(style, change.kind, changes::change_letter(change.kind)),
            show(change.path()),
            style.paint_green(&count('+', added)),
            style.paint_red(&count('-', removed)),
            style.paint_dim(remark),
        ]);
    }
    context.ui.print_lines(table.format_lines())?;
    if files > 0 {
        let lines = format!(
            "{} added, {} removed",
            format::format_count(all_added, "line"),
            format::format_number(all_removed)
        );
        context.ui.print_line(format!("{}: {lines}", format::format_count(files, "file")))?;
    }
    Ok(())
}
