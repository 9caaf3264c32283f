//! `vellum tag`: names for snapshots.

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_types::SnapshotId;

use crate::context::CommandContext;
use crate::context::names::{SnapshotNames, first_note_line, warn_about_damaged_refs};
use crate::error::{CommandOutcome, Result};
use crate::ui::format;
use crate::ui::table::{ShortenedColumn, TableFit, TextTable};

/// Name snapshots
///
/// A tagged snapshot cannot be forgotten before the tag is removed.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Give a snapshot a name
    Add {
        /// The name
        name: String,
        /// The snapshot
        #[arg(value_name = "SNAP", default_value = "HEAD")]
        snapshot: String,
    },
    /// List all tags
    List,
    /// Remove tags; the snapshots stay
    Remove {
        /// The names
        #[arg(required = true)]
        names: Vec<String>,
    },
}

#[derive(Serialize)]
struct TagListJson {
    tags: Vec<TagJson>,
}

#[derive(Serialize)]
struct TagJson {
    name: String,
    snapshot: String,
}

/// Adds, lists or removes.
pub fn run(command: &Command, context: &CommandContext) -> Result<CommandOutcome> {
    match command {
        Command::Add { name, snapshot } => add_tag(name, snapshot, context),
        Command::List => list_tags(context),
        Command::Remove { names } => remove_tags(names, context),
    }
}

fn add_tag(name: &str, snapshot: &str, context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.open_volume()?;
    let entry = volume.resolve_snapshot(snapshot)?;
    volume.add_tag(name, entry.id)?;
    let names = SnapshotNames::load_all(&volume)?;
    report_tags(context, vec![(name.into(), entry.id)], |item| {
        format!("{} is snapshot {}", item.name, names.describe_snapshot(&entry))
    })
}

fn remove_tags(removed: &[String], context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.open_volume()?;
    let mut targets = Vec::with_capacity(removed.len());
    for name in removed {
        match volume.remove_tag(name)? {
            Some(target) => targets.push((name.clone(), target)),
            // A damaged tag has no target that could be reported, but is removed nevertheless.
            None if context.ui.voice.quiet || context.ui.is_json() => {}
            None => context
                .ui
                .print_note(format!("removed the tag {}, which was damaged or lost", format_path(name)))?,
        }
    }
    report_tags(context, targets, |item| {
        let short = format::shorten_id(&item.snapshot);
        format!("Removed the tag {}; it was snapshot {short}", item.name)
    })
}

fn report_tags(
    context: &CommandContext,
    tags: Vec<(String, SnapshotId)>,
    line: impl Fn(&TagJson) -> String,
) -> Result<CommandOutcome> {
    let tags = tags.into_iter().map(|(name, id)| TagJson { name, snapshot: id.to_string() }).collect();
    let listing = TagListJson { tags };
    if context.ui.is_json() {
        context.ui.print_json(&listing)?;
    } else if !context.ui.voice.quiet {
        for item in &listing.tags {
            context.ui.print_line(line(item))?;
        }
    }
    Ok(CommandOutcome::Done)
}

fn list_tags(context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.open_volume()?;
    let (tags, damaged) = volume.list_readable_tags()?;
    let ui = &context.ui;
    warn_about_damaged_refs(ui, &damaged)?;
    if ui.is_json() {
        return report_tags(context, tags, |_| String::new());
    }
    let names = SnapshotNames::load_all(&volume)?;
    let mut table = TextTable::default();
    for (name, id) in &tags {
        let (time, note) = match volume.catalog.get_record(id) {
            Ok(record) => (format::format_local_time(record.time), first_note_line(&record.note)),
            // The tag itself can be read, so that it is listed with what is wrong with its snapshot.
            Err(error) => (String::new(), format!("({error})")),
        };
        table.add_row([ui.style.paint_cyan(name), ui.style.paint_yellow(&names.short_id(id)), time, note]);
    }
    let shortened = [ShortenedColumn::keep_beginning(3), ShortenedColumn::keep_beginning(0)];
    table.fit_columns(ui.output_columns(), &TableFit { optional: &[], shortened: &shortened });
    ui.print_lines(table.format_lines())?;
    if tags.is_empty() {
        ui.print_note("no tags yet: 'vellum tag add NAME [SNAP]' makes one")?;
    }
    Ok(CommandOutcome::Done)
}
