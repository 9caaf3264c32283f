//! `vellum history`: snapshots, and the versions of files, newest first.

mod operands;
mod versions;

use std::ffi::OsString;

use serde::Serialize;
use unicode_width::UnicodeWidthStr;
use vellum_host::escape::format_path;
use vellum_volume::Volume;
use vellum_volume::history::{HistoryEntry, find_nearest_ancestors, list_history};
use vellum_volume::record::SnapshotOrigin;
use vellum_volume::revision_range::{RangeStart, RevisionRange};
use vellum_volume::versions::{HistoryStep, PathHistory};
use vellum_volume::volume::is_outside_line;

use self::operands::HistoryOperands;
use self::versions::list_versions;
use crate::commands::note::{TypedProperty, parse_property};
use crate::context::CommandContext;
use crate::context::names::SnapshotNames;
use crate::error::{CommandOutcome, Result};
use crate::ui::graph::HistoryGraph;
use crate::ui::table::{ShortenedColumn, TableFit, TextTable, shorten_to_width};
use crate::ui::{format, json};

/// List snapshots or the versions of files, newest first
///
/// Lists the ancestors of this worktree's state, or with --all every snapshot in the volume. The columns are: id,
/// local time, number of changed files, note, and in brackets HEAD, worktrees and tags.
///
/// Of a PATH its versions are listed: the snapshots in which its content, mode, owner, extended attributes or place
/// changed, with its size there. Behind a rename it is followed under the name that it had before, also if a directory above
/// it was renamed. Of a directory, changes to what is in it count.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only ancestors of SNAP; with A..B, those of B that are no ancestors of A; then PATHs
    #[arg(value_name = "SNAP|A..B|PATH")]
    operands: Vec<OsString>,
    /// PATHs, behind '--', which are never taken for snapshots
    #[arg(last = true, value_name = "PATH")]
    files: Vec<OsString>,
    /// Show at most N; 0 shows all
    #[arg(short, long, value_name = "N", default_value_t = 20)]
    number: usize,
    /// Only those whose note contains TEXT, ignoring case
    #[arg(long, value_name = "TEXT")]
    grep: Option<String>,
    /// Only those with this tag, anywhere in the volume; '*' matches anything
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
    /// Only those that changed something at or under PATH
    #[arg(long, value_name = "PATH")]
    path: Option<OsString>,
    /// Only those with this property ('vellum note'); can be repeated
    #[arg(long = "where", value_name = "NAME=VALUE", value_parser = parse_property)]
    properties: Vec<TypedProperty>,
    /// All snapshots of the volume, not only the ancestors of this worktree's state
    #[arg(short, long)]
    all: bool,
    /// Draw the graph of parents
    #[arg(long, conflicts_with_all = ["grep", "tag", "path", "properties"])]
    graph: bool,
}

/// Columns between two columns of the table.
const GAP: usize = 2;
/// Fewest columns of a note, however narrow the terminal is.
const NOTE_MIN: usize = 8;

#[derive(Serialize)]
struct HistoryJson {
    snapshots: Vec<json::SnapshotJson>,
    more: bool,
}

/// Lists the snapshots.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.open_volume()?;
    // Tags name their snapshots: the store is not asked for the list of all.
    let names = if args.tag.is_some() {
        SnapshotNames::load_known(&volume)?
    } else {
        SnapshotNames::load_all(&volume)?
    };
    names.warn_about_damaged(&context.ui)?;
    let path =
        args.path.as_ref().map(|path| context.paths_for_volume(&volume)?.parse_path(path)).transpose()?;
    let operands = HistoryOperands::read_operands(args, &volume, context)?;
    let filter = HistoryFilter { args, volume: &volume, names: &names, path, range: operands.range };
    if !operands.files.is_empty() {
        return list_versions(&filter, operands, context);
    }
    let (shown, more) = filter.select_entries()?;
    let ui = &context.ui;
    if ui.is_json() {
        let snapshots = shown.iter().map(|entry| names.to_snapshot_json(entry)).collect();
        ui.print_json(&HistoryJson { snapshots, more })?;
        return Ok(CommandOutcome::Done);
    }
    if args.graph {
        print_graph(context, &volume, &names, &shown)?;
    } else {
        ui.print_lines(history_table(context, &names, &shown).format_lines())?;
    }
    if shown.is_empty() {
        ui.print_note(if names.len() == 0 {
            "no snapshot yet: 'vellum snapshot' makes one"
        } else {
            "none"
        })?;
    } else if more {
        let all = if args.all { "--all " } else { "" };
        ui.print_note(format!("older ones: vellum history {all}-n {}", args.number.saturating_mul(5)))?;
    }
    if filter.range.is_none() {
        report_newer_snapshots(args, context, &volume)?;
    }
    Ok(CommandOutcome::Done)
}

/// After a restore of an older snapshot, the history begins there.
fn report_newer_snapshots(args: &Args, context: &CommandContext, volume: &Volume) -> Result<()> {
    if args.all || args.tag.is_some() {
        return Ok(());
    }
    match volume.count_newer_than_head()? {
        0 => Ok(()),
        newer => context
            .ui
            .print_note(format!("{} newer: vellum history --all", format::format_number(newer as u64))),
    }
}

struct HistoryFilter<'a> {
    args: &'a Args,
    volume: &'a Volume,
    names: &'a SnapshotNames,
    path: Option<Vec<u8>>,
    range: Option<RevisionRange>,
}

/// Snapshots, newest first.
type HistoryEntryWalk<'a> = Box<dyn Iterator<Item = vellum_volume::Result<HistoryEntry>> + Send + 'a>;

impl HistoryFilter<'_> {
    /// The snapshots to show, and whether there are more.
    fn select_entries(&self) -> Result<(Vec<HistoryEntry>, bool)> {
        let limit = self.limit();
        // An error passes the filter, so that it is reported.
        let noted = self
            .walk_entries()?
            .filter(|entry| entry.as_ref().map_or(true, |entry| self.matches_annotation(entry)));
        let Some(path) = &self.path else { return take_entries(noted, limit) };
        let steps = noted.map(|entry| self.path_history_step(entry?));
        take_entries(PathHistory::new(self.volume, path, steps), limit)
    }

    /// How many are shown.
    fn limit(&self) -> usize {
        if self.args.number == 0 { usize::MAX } else { self.args.number }
    }

    /// All snapshots that are asked for, whatever they are called. Ancestors are read one after another, as far as they
    /// are shown.
    fn walk_entries(&self) -> Result<HistoryEntryWalk<'_>> {
        Ok(if let Some(pattern) = &self.args.tag {
            Box::new(self.find_tagged_entries(pattern)?.into_iter().map(Ok))
        } else if self.args.all {
            Box::new(list_history(&self.volume.catalog)?.into_iter().map(Ok))
        } else {
            let range = match self.range {
                Some(range) => range,
                None => RevisionRange { first: None, last: self.volume.read_head()? },
            };
            Box::new(self.volume.walk_range(range, RangeStart::Excluded)?)
        })
    }

    /// Tags are few, and contain the ids of their snapshots: no history is walked for them.
    fn find_tagged_entries(&self, pattern: &str) -> Result<Vec<HistoryEntry>> {
        let ids = self.names.find_tagged(|tag| matches_pattern(pattern, tag));
        let mut entries = Vec::with_capacity(ids.len());
        for id in ids {
            entries.push(HistoryEntry { id, record: self.volume.catalog.get_record(&id)? });
        }
        // The tags come from a map, in no order: the newest snapshot is listed first, as in every history.
        entries.sort_unstable_by(|a, b| b.cmp(a));
        Ok(entries)
    }

    fn matches_annotation(&self, entry: &HistoryEntry) -> bool {
        let note = self.names.note_of(entry);
        let has_text =
            self.args.grep.as_ref().is_none_or(|text| note.to_lowercase().contains(&text.to_lowercase()));
        let annotation = self.names.annotation_of(&entry.id);
        let has_property = |wanted: &TypedProperty| {
            annotation.and_then(|found| found.get_property(&wanted.name)) == Some(&wanted.value)
        };
        has_text && self.args.properties.iter().all(has_property)
    }

    /// A snapshot with what the history shows before it.
    fn path_history_step(&self, entry: HistoryEntry) -> vellum_volume::Result<HistoryStep> {
        // The nearest one that is still there: the parent itself may have been forgotten.
        let before = match find_nearest_ancestors(&self.volume.catalog, self.names.ids(), &entry)?.first() {
            Some(parent) => Some(self.volume.catalog.get_record(parent)?.root),
            None => None,
        };
        Ok(HistoryStep { entry, before })
    }
}

/// The first of some snapshots, and whether there are more.
fn take_entries(
    entries: impl Iterator<Item = vellum_volume::Result<HistoryEntry>>,
    limit: usize,
) -> Result<(Vec<HistoryEntry>, bool)> {
    let mut shown = Vec::new();
    for entry in entries {
        let entry = entry?;
        // One more than is shown is read, to see whether there are more.
        if shown.len() == limit {
            return Ok((shown, true));
        }
        shown.push(entry);
    }
    Ok((shown, false))
}

fn history_table(context: &CommandContext, names: &SnapshotNames, entries: &[HistoryEntry]) -> TextTable {
    let mut table = TextTable::new([2]);
    for entry in entries {
        table.add_row(history_cells(context, names, entry));
    }
    let shortened = [ShortenedColumn::keep_beginning(3)];
    table.fit_columns(context.ui.output_columns(), &TableFit { optional: &[2], shortened: &shortened });
    table
}

fn history_cells(context: &CommandContext, names: &SnapshotNames, entry: &HistoryEntry) -> [String; 4] {
    let record = &entry.record;
    let columns = context.ui.output_columns();
    let id = names.short_id(&entry.id);
    // On a narrow terminal, seconds are worth less than the note.
    let time = match context.ui.is_narrow() {
        true => format::format_local_minute(record.time),
        false => format::format_local_time(record.time),
    };
    let changed = format!("{} changed", format::format_number(record.statistics.changed));
    let used = id.len() + time.len() + changed.len() + 3 * GAP;
    let room = columns.map(|columns| columns.saturating_sub(used));
    let description = format_description(context, names, entry, room);
    [context.ui.style.paint_yellow(&id), time, changed, description]
}

/// The note, and what else the snapshot is called. The note is shortened to what fits into `room` columns, if that is known.
fn format_description(
    context: &CommandContext,
    names: &SnapshotNames,
    entry: &HistoryEntry,
    room: Option<usize>,
) -> String {
    let style = context.ui.style;
    let mut labels = names.snapshot_labels(&entry.id);
    // No worktree's name tells whose it is.
    if is_outside_line(&entry.record.worktree) {
        labels.insert(0, format_path(&entry.record.worktree));
    }
    let labels = if labels.is_empty() { String::new() } else { format!("[{}]", labels.join(", ")) };
    let mut note = names.first_line_of_note(entry);
    if let Some(room) = room {
        note = shorten_to_width(note, room.saturating_sub(labels.width() + 1).max(NOTE_MIN));
    }
    let mut parts = Vec::with_capacity(2);
    match (note.is_empty(), entry.record.origin) {
        (false, _) => parts.push(note),
        // Nobody wrote a note for it: without this, a row that the user did not ask for would explain nothing.
        (true, SnapshotOrigin::Safety) => parts.push(style.paint_dim("(before a restore)")),
        (true, SnapshotOrigin::User) => {}
    }
    if !labels.is_empty() {
        parts.push(style.paint_cyan(&labels));
    }
    parts.join(" ")
}

fn print_graph(
    context: &CommandContext,
    volume: &Volume,
    names: &SnapshotNames,
    entries: &[HistoryEntry],
) -> Result<()> {
    let mut graph = HistoryGraph::default();
    for entry in entries {
        let parents = find_nearest_ancestors(&volume.catalog, names.ids(), entry)?;
        let rows = graph.add_entry(entry.id, &parents);
        context.ui.print_lines(rows.before)?;
        let id = context.ui.style.paint_yellow(&names.short_id(&entry.id));
        let time = format::format_local_time(entry.record.time);
        let used = rows.node.width() + names.short_id(&entry.id).len() + time.len() + 3 * GAP;
        let room = context.ui.output_columns().map(|columns| columns.saturating_sub(used));
        let description = format_description(context, names, entry, room);
        // Without a note and names, blanks would be left at the end.
        context.ui.print_line(format!("{}  {id}  {time}  {description}", rows.node).trim_end())?;
        context.ui.print_lines(rows.after)?;
    }
    Ok(())
}

/// Whether `*` in the pattern can stand for something that makes it equal to the name.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name.strip_prefix(head).is_some_and(|rest| {
            // '*' may stand for nothing, and for all of the rest.
            rest.char_indices()
                .map(|(at, _)| at)
                .chain([rest.len()])
                .any(|at| matches_pattern(tail, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::matches_pattern;

    #[test]
    fn stars_stand_for_anything() {
        assert!(matches_pattern("v1", "v1") && !matches_pattern("v1", "v10"));
        assert!(matches_pattern("v*", "v") && matches_pattern("v*", "v10") && !matches_pattern("v*", "w10"));
        assert!(matches_pattern("*-é*", "a-éb") && !matches_pattern("*x", "a"));
    }
}
