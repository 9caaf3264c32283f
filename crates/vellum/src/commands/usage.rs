//! `vellum usage`: what snapshots, worktrees and paths take of the store.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_store::RequestPurpose;
use vellum_volume::usage::{GroupUsage, UsageGroup, UsageReport, measure_usage};
use vellum_volume::{Volume, VolumeError};

use crate::context::CommandContext;
use crate::context::place::SnapshotPath;
use crate::error::{CommandOutcome, Result};
use crate::ui::format;
use crate::ui::progress::ProgressTask;
use crate::ui::table::{ShortenedColumn, TableFit, TextTable};

const TASK: ProgressTask =
    ProgressTask { first: "Reading the index", verb: "Walking snapshots", item: "node" };

/// What the row of those who read is called.
const READERS: &str = "mounts and views";

/// Measure what snapshots take of the store
///
/// Prints for each NAME: the bytes of its files, the bytes in the store that it needs, how much of that nothing else needs
/// and how much is shared, and what would be freed if its snapshots were forgotten. Of several, the last line has them
/// together. Without NAME, each worktree is measured, what mounts and views read, and what nothing needs.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A snapshot, a worktree with all its snapshots, or a path in the last snapshot; a path that is also a name is
    /// typed as ./PATH
    #[arg(value_name = "NAME")]
    names: Vec<OsString>,
}

#[derive(Serialize)]
struct UsageJson<'a> {
    groups: Vec<NamedUsageJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    together: Option<&'a GroupUsage>,
    needed: u64,
    unneeded: u64,
}

#[derive(Serialize)]
struct NamedUsageJson<'a> {
    name: &'a str,
    kind: &'static str,
    #[serde(flatten)]
    usage: &'a GroupUsage,
}

/// A group as it was typed.
struct NamedGroup {
    name: String,
    group: UsageGroup,
}

impl NamedGroup {
    fn kind_name(&self) -> &'static str {
        match self.group {
            UsageGroup::Snapshots(_) => "snapshot",
            UsageGroup::Worktree(_) => "worktree",
            UsageGroup::Path { .. } => "path",
            UsageGroup::Readers => "readers",
        }
    }
}

/// Measures them.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    // It reads the nodes of all trees: counted as upkeep, these requests do not look like those of users.
    RequestPurpose::Upkeep.set_for_process();
    let volume = context.open_volume()?;
    let worktrees = list_worktree_names(&volume)?;
    let mut named: Vec<NamedGroup> = if args.names.is_empty() {
        let all = worktrees.into_iter();
        let all = all.map(|name| NamedGroup { name: name.clone(), group: UsageGroup::Worktree(name) });
        all.chain([NamedGroup { name: READERS.into(), group: UsageGroup::Readers }]).collect()
    } else {
        let find = |typed| find_group(typed, &worktrees, &volume, context);
        args.names.iter().map(find).collect::<Result<_>>()?
    };
    let groups: Vec<_> = named.iter().map(|named| named.group.clone()).collect();
    let mut report = context.run_with_progress(TASK, |meter| measure_usage(&volume, &groups, meter))?;
    // Nearly always nobody reads a snapshot, and the row would say nothing.
    let readers = named.iter().position(|named| matches!(named.group, UsageGroup::Readers));
    if let Some(row) = readers
        && report.groups.get(row).is_some_and(|usage| usage.stored == 0)
    {
        named.remove(row);
        report.groups.remove(row);
    }
    print_usage(&named, &report, context)?;
    Ok(CommandOutcome::Done)
}

/// The worktrees that there are, and those that made snapshots.
fn list_worktree_names(volume: &Volume) -> Result<BTreeSet<String>> {
    let (heads, _) = volume.list_readable_worktrees()?;
    let mut names: BTreeSet<String> = heads.into_iter().map(|(name, _)| name).collect();
    for (_, record) in volume.catalog.load_all_records()? {
        if !names.contains(&record.worktree) {
            names.insert(record.worktree.clone());
        }
    }
    Ok(names)
}

fn find_group(
    typed: &OsString,
    worktrees: &BTreeSet<String>,
    volume: &Volume,
    context: &CommandContext,
) -> Result<NamedGroup> {
    let name = format_path(typed.as_bytes());
    let as_path = || -> Result<UsageGroup> {
        let found = SnapshotPath::find_path(context, volume, "HEAD", Some(typed))?;
        Ok(UsageGroup::Path { snapshot: found.entry, ino: found.ino })
    };
    let text = typed.to_str().filter(|text| !(text.starts_with('.') || text.starts_with('/')));
    let Some(text) = text else {
        return Ok(NamedGroup { name, group: as_path()? });
    };
    // A worktree comes before a snapshot of its name: all its snapshots are meant, and not only the last one.
    if worktrees.contains(text) {
        return Ok(NamedGroup { name, group: UsageGroup::Worktree(text.into()) });
    }
    let group = match volume.resolve_snapshot(text) {
        Ok(entry) => UsageGroup::Snapshots(vec![entry.id]),
        // What is no path either is named as an unknown snapshot.
        Err(
            error @ (VolumeError::UnknownSnapshot(_)
            | VolumeError::NoSnapshotThere { .. }
            | VolumeError::BadExpression { .. }),
        ) => as_path().map_err(|_| error)?,
        Err(error) => return Err(error.into()),
    };
    Ok(NamedGroup { name, group })
}

fn print_usage(named: &[NamedGroup], report: &UsageReport, context: &CommandContext) -> Result<()> {
    let ui = &context.ui;
    if ui.is_json() {
        let groups = named.iter().zip(&report.groups).map(|(named, usage)| NamedUsageJson {
            name: &named.name,
            kind: named.kind_name(),
            usage,
        });
        return ui.print_json(&UsageJson {
            groups: groups.collect(),
            together: report.together.as_ref(),
            needed: report.needed,
            unneeded: report.unneeded,
        });
    }
    let mut table = TextTable::new(1..8);
    table.add_row(
        ["", "snapshots", "files", "stored", "unique", "shared", "freed", "after repacking"].map(Into::into),
    );
    for (named, usage) in named.iter().zip(&report.groups) {
        table.add_row(format_usage_row(&named.name, usage));
    }
    if let Some(together) = &report.together {
        table.add_row(format_usage_row("together", together));
    }
    let shortened = [ShortenedColumn::keep_beginning(0)];
    table.fit_columns(ui.output_columns(), &TableFit { optional: &[5, 7, 1, 2], shortened: &shortened });
    ui.print_lines(table.format_lines())?;
    let needed = format::format_size(report.needed);
    ui.print_line(format!("Needed: {needed}; by nothing: {}", format::format_size(report.unneeded)))?;
    let held = report.together.iter().chain(&report.groups).find_map(|usage| usage.freed);
    if let Some(held) = held.map(|freed| freed.held).filter(|held| *held > 0) {
        let held = format::format_count(held, "snapshot");
        ui.print_note(format!("'freed' leaves out {held} on which a worktree stands"))?;
    }
    Ok(())
}

fn format_usage_row(name: &str, usage: &GroupUsage) -> [String; 8] {
    let size = format::format_size;
    let freed = |bytes: Option<u64>| bytes.map_or("-".into(), size);
    [
        name.into(),
        format::format_number(usage.snapshots),
        size(usage.logical),
        size(usage.stored),
        size(usage.unique),
        size(usage.shared),
        freed(usage.freed.map(|freed| freed.at_once)),
        freed(usage.freed.map(|freed| freed.after_repacking)),
    ]
}
