//! `vellum history`: snapshots, newest first.

use serde::Serialize;
use vellum_types::SnapshotId;
use vellum_volume::history::{AncestorWalk, HistoryEntry, all};
use vellum_volume::record::SnapshotOrigin;
use vellum_volume::versions::{HistoryStep, PathHistory};
use vellum_volume::{Volume, VolumeError};

use crate::context::CommandContext;
use crate::context::names::{SnapshotNames, first_line};
use crate::error::{CommandOutcome, Result};
use crate::ui::graph::HistoryGraph;
use crate::ui::table::{ColumnAlignment, TableCell, TextTable};
use crate::ui::{format, json};

/// List snapshots, newest first
///
/// Those that this worktree came from, or with --all every one in the volume. The columns are: id, local time, how
/// many files changed, the note, and in brackets HEAD, worktrees and tags.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show N at most; 0 shows all
    #[arg(short, long, value_name = "N", default_value_t = 20)]
    number: usize,
    /// Only those whose note contains TEXT, in whatever case
    #[arg(long, value_name = "TEXT")]
    grep: Option<String>,
    /// Only those with this tag, wherever in the volume; '*' stands for anything
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
    /// Only those that changed something at or under PATH
    #[arg(long, value_name = "PATH")]
    path: Option<std::ffi::OsString>,
    /// All snapshots of the volume, not only those that this worktree came from
    #[arg(short, long)]
    all: bool,
    /// Draw which snapshot came from which
    #[arg(long, conflicts_with_all = ["grep", "tag", "path"])]
    graph: bool,
}

#[derive(Serialize)]
struct HistoryJson {
    snapshots: Vec<json::SnapshotJson>,
    more: bool,
}

/// Lists the snapshots.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.volume()?;
    let names =
        if args.tag.is_some() { SnapshotNames::load_known(&volume)? } else { SnapshotNames::load(&volume)? };
    names.warn_of_damaged(&context.ui)?;
    let path = args.path.as_ref().map(|path| context.paths_of(&volume)?.parse(path)).transpose()?;
    let filter = HistoryFilter { args, volume: &volume, names: &names, path };
    let (shown, more) = filter.select()?;
    let ui = &context.ui;
    if ui.json() {
        let snapshots = shown.iter().map(|entry| names.json(entry)).collect();
        ui.object(&HistoryJson { snapshots, more })?;
        return Ok(CommandOutcome::Done);
    }
    if args.graph {
        draw(context, &volume, &names, &shown)?;
    } else {
        for line in table(context, &names, &shown).lines() {
            ui.line(line)?;
        }
    }
    if shown.is_empty() {
        ui.note(if names.len() == 0 { "no snapshot yet: 'vellum snapshot' makes one" } else { "none" })?;
    } else if more {
        ui.note(format!("older ones: vellum history -n {}", args.number.saturating_mul(5)))?;
    }
    tell_of_newer(args, context, &volume)?;
    Ok(CommandOutcome::Done)
}

/// After a restore of an older snapshot, the history begins there.
fn tell_of_newer(args: &Args, context: &CommandContext, volume: &Volume) -> Result<()> {
    if args.all || args.tag.is_some() {
        return Ok(());
    }
    match volume.count_newer_than_head()? {
        0 => Ok(()),
        newer => context.ui.note(format!("{} newer: vellum history --all", format::number(newer as u64))),
    }
}

struct HistoryFilter<'a> {
    args: &'a Args,
    volume: &'a Volume,
    names: &'a SnapshotNames,
    path: Option<Vec<u8>>,
}

impl HistoryFilter<'_> {
    /// The snapshots to show, and whether there are more.
    fn select(&self) -> Result<(Vec<HistoryEntry>, bool)> {
        let limit = if self.args.number == 0 { usize::MAX } else { self.args.number };
        let catalog = &self.volume.catalog;
        let entries: Box<dyn Iterator<Item = _>> = if let Some(pattern) = &self.args.tag {
            Box::new(self.tagged(pattern)?.into_iter().map(Ok))
        } else if self.args.all {
            Box::new(all(catalog)?.into_iter().map(Ok))
        } else {
            Box::new(AncestorWalk::of(catalog, self.volume.head()?)?)
        };
        let noted = entries.filter(|entry| entry.as_ref().map_or(true, |entry| self.has_text(entry)));
        let Some(path) = &self.path else { return take(noted, limit) };
        let steps = noted.map(|entry| self.step(entry?));
        take(PathHistory::new(self.volume, path, steps), limit)
    }

    /// Tags are few, and say where their snapshots are: no history is walked for them.
    fn tagged(&self, pattern: &str) -> Result<Vec<HistoryEntry>> {
        let ids = self.names.tagged(|tag| matches(pattern, tag));
        let mut entries = Vec::with_capacity(ids.len());
        for id in ids {
            entries.push(HistoryEntry { id, record: self.volume.catalog.get(&id)? });
        }
        entries.sort_unstable_by(|a, b| b.cmp(a));
        Ok(entries)
    }

    fn has_text(&self, entry: &HistoryEntry) -> bool {
        let note = &entry.record.note;
        self.args.grep.as_ref().is_none_or(|text| note.to_lowercase().contains(&text.to_lowercase()))
    }

    /// A snapshot with what the history shows before it.
    fn step(&self, entry: HistoryEntry) -> vellum_volume::Result<HistoryStep> {
        let before = match parents_shown(self.volume, self.names.ids(), &entry)?.first() {
            Some(parent) => Some(self.volume.catalog.get(parent)?.root),
            None => None,
        };
        Ok(HistoryStep { entry, before })
    }
}

/// The first of some snapshots, and whether there are more.
fn take(
    entries: impl Iterator<Item = vellum_volume::Result<HistoryEntry>>,
    limit: usize,
) -> Result<(Vec<HistoryEntry>, bool)> {
    let mut shown = Vec::new();
    for entry in entries {
        let entry = entry?;
        if shown.len() == limit {
            return Ok((shown, true));
        }
        shown.push(entry);
    }
    Ok((shown, false))
}

/// The nearest ancestors that were not forgotten, on the first parent's line first.
fn parents_shown(
    volume: &Volume,
    live: &[SnapshotId],
    entry: &HistoryEntry,
) -> vellum_volume::Result<Vec<SnapshotId>> {
    let mut found = Vec::new();
    let mut met = std::collections::HashSet::new();
    let mut queue: Vec<_> = entry.record.parents.iter().rev().copied().collect();
    while let Some(id) = queue.pop() {
        if !met.insert(id) {
            continue;
        }
        if live.binary_search(&id).is_ok() {
            found.push(id);
            continue;
        }
        match volume.catalog.get(&id) {
            Ok(record) => queue.extend(record.parents.iter().rev()),
            Err(VolumeError::MissingRecord(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn table(context: &CommandContext, names: &SnapshotNames, entries: &[HistoryEntry]) -> TextTable {
    let mut table = TextTable::new(&[
        ColumnAlignment::Left,
        ColumnAlignment::Left,
        ColumnAlignment::Right,
        ColumnAlignment::Left,
    ]);
    for entry in entries {
        table.row(cells(context, names, entry));
    }
    table
}

fn cells(context: &CommandContext, names: &SnapshotNames, entry: &HistoryEntry) -> [TableCell; 4] {
    let style = context.ui.style;
    let record = &entry.record;
    [
        TableCell::painted(&names.short(&entry.id), |text| style.yellow(text)),
        format::local_time(record.time).into(),
        format!("{} changed", format::number(record.statistics.changed)).into(),
        description(context, names, entry).into(),
    ]
}

fn description(context: &CommandContext, names: &SnapshotNames, entry: &HistoryEntry) -> String {
    let style = context.ui.style;
    let note = first_line(&entry.record.note);
    let mut parts = Vec::with_capacity(2);
    match (note.is_empty(), entry.record.origin) {
        (false, _) => parts.push(note),
        (true, SnapshotOrigin::Safety) => parts.push(style.dim("(before a restore)")),
        (true, SnapshotOrigin::User) => {}
    }
    let labels = names.labels(&entry.id);
    if !labels.is_empty() {
        parts.push(style.cyan(&format!("[{}]", labels.join(", "))));
    }
    parts.join(" ")
}

fn draw(
    context: &CommandContext,
    volume: &Volume,
    names: &SnapshotNames,
    entries: &[HistoryEntry],
) -> Result<()> {
    let mut graph = HistoryGraph::default();
    for entry in entries {
        let parents = parents_shown(volume, names.ids(), entry)?;
        let rows = graph.add(entry.id, &parents);
        for line in rows.before {
            context.ui.line(line)?;
        }
        let id = context.ui.style.yellow(&names.short(&entry.id));
        let time = format::local_time(entry.record.time);
        let description = description(context, names, entry);
        context.ui.line(format!("{}  {id}  {time}  {description}", rows.node).trim_end())?;
        for line in rows.after {
            context.ui.line(line)?;
        }
    }
    Ok(())
}

/// Whether `*` in the pattern can stand for something that makes it equal to the name.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name.strip_prefix(head).is_some_and(|rest| {
            rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| matches(tail, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_stand_for_anything() {
        assert!(matches("v1", "v1") && !matches("v1", "v10"));
        assert!(matches("v*", "v") && matches("v*", "v10") && !matches("v*", "w10"));
        assert!(matches("*-é*", "a-éb") && !matches("*x", "a"));
    }
}
