//! `vellum tag`: names for snapshots.

use serde::Serialize;
use vellum_types::SnapshotId;
use vellum_volume::tree::show;

use crate::context::CommandContext;
use crate::context::names::{SnapshotNames, first_line, warn_of_damaged};
use crate::error::{CommandOutcome, Result};
use crate::ui::format;
use crate::ui::table::{ColumnAlignment, TableCell, TextTable};

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
    /// Take names away; the snapshots stay
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
        Command::Add { name, snapshot } => add(name, snapshot, context),
        Command::List => list(context),
        Command::Remove { names } => remove(names, context),
    }
}

fn add(name: &str, snapshot: &str, context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.volume()?;
    let entry = volume.resolve(snapshot)?;
    volume.add_tag(name, entry.id)?;
    let names = SnapshotNames::load(&volume)?;
    report(context, vec![(name.into(), entry.id)], |item| {
        format!("{} is snapshot {}", item.name, names.describe(&entry))
    })
}

fn remove(removed: &[String], context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.volume()?;
    let mut targets = Vec::with_capacity(removed.len());
    for name in removed {
        match volume.remove_tag(name)? {
            Some(target) => targets.push((name.clone(), target)),
            None if context.ui.voice.quiet || context.ui.json() => {}
            None => context
                .ui
                .note(format!("removed the tag {}, which was damaged or lost", show(name.as_bytes())))?,
        }
    }
    report(context, targets, |item| {
        let short = format::short(&item.snapshot);
        format!("Removed the tag {}; it was snapshot {short}", item.name)
    })
}

fn report(
    context: &CommandContext,
    tags: Vec<(String, SnapshotId)>,
    line: impl Fn(&TagJson) -> String,
) -> Result<CommandOutcome> {
    let tags = tags.into_iter().map(|(name, id)| TagJson { name, snapshot: id.to_string() }).collect();
    let listing = TagListJson { tags };
    if context.ui.json() {
        context.ui.object(&listing)?;
    } else if !context.ui.voice.quiet {
        for item in &listing.tags {
            context.ui.line(line(item))?;
        }
    }
    Ok(CommandOutcome::Done)
}

fn list(context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.volume()?;
    let (tags, damaged) = volume.read_tags()?;
    let ui = &context.ui;
    warn_of_damaged(ui, &damaged)?;
    if ui.json() {
        return report(context, tags, |_| String::new());
    }
    let names = SnapshotNames::load(&volume)?;
    let mut table = TextTable::new(&[ColumnAlignment::Left; 4]);
    for (name, id) in &tags {
        let (time, note) = match volume.catalog.get(id) {
            Ok(record) => (format::local_time(record.time), first_line(&record.note)),
            Err(error) => (String::new(), format!("({error})")),
        };
        let cells: [TableCell; 4] = [
            TableCell::painted(name, |text| ui.style.cyan(text)),
            TableCell::painted(&names.short(id), |text| ui.style.yellow(text)),
            time.into(),
            note.into(),
        ];
        table.row(cells);
    }
    for line in table.lines() {
        ui.line(line)?;
    }
    if tags.is_empty() {
        ui.note("no tags yet: 'vellum tag add NAME [SNAP]' makes one")?;
    }
    Ok(CommandOutcome::Done)
}
