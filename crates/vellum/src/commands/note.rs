//! `vellum note`: notes and properties of snapshots that were made before.

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_volume::annotation::{AnnotationChange, AnnotationField, SnapshotAnnotation};

use crate::context::CommandContext;
use crate::context::names::SnapshotNames;
use crate::error::{CliError, CommandOutcome, Result};
use crate::ui::table::TextTable;
use crate::ui::{format, json};

/// Show or change the note and the properties of a snapshot
///
/// The snapshot itself does not change, nor does its id. 'vellum show' and 'vellum history' show the new note in place of
/// the one that the snapshot was made with; 'vellum history --where NAME=VALUE' finds properties. A push and a pull bring
/// them to the other store.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The snapshot
    #[arg(value_name = "SNAP")]
    snapshot: String,
    /// The new note; an empty one hides the present one
    #[arg(short = 'm', long = "note", alias = "message", value_name = "NOTE")]
    note: Option<String>,
    #[command(flatten)]
    properties: PropertyArgs,
    /// Take a property away; can be repeated
    #[arg(long, value_name = "NAME")]
    unset: Vec<String>,
}

/// Properties to set.
#[derive(Debug, clap::Args)]
pub struct PropertyArgs {
    /// Give the snapshot a property; can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_property)]
    set: Vec<TypedProperty>,
}

/// A property as it is typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypedProperty {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// Reads `NAME=VALUE`.
pub fn parse_property(typed: &str) -> Result<TypedProperty, String> {
    let (name, value) = typed.split_once('=').ok_or("a property is typed like NAME=VALUE")?;
    Ok(TypedProperty { name: name.into(), value: value.into() })
}

impl PropertyArgs {
    /// The change that they are, checked.
    pub fn to_change(&self) -> Result<AnnotationChange> {
        let set = self.set.iter().map(|property| (property.name.clone(), property.value.clone())).collect();
        let change = AnnotationChange { set, ..AnnotationChange::default() };
        change.check()?;
        Ok(change)
    }
}

#[derive(Serialize)]
struct NoteJson {
    snapshot: json::SnapshotJson,
    /// Null: that with which the snapshot was made.
    note: Option<SaidJson>,
    properties: Vec<PropertyJson>,
}

#[derive(Serialize)]
struct SaidJson {
    value: String,
    set: String,
    author: String,
    host: String,
}

#[derive(Serialize)]
struct PropertyJson {
    name: String,
    #[serde(flatten)]
    said: SaidJson,
}

impl SaidJson {
    fn new(field: &AnnotationField) -> Self {
        Self {
            value: field.value.clone().unwrap_or_default(),
            set: json::format_json_time(field.set),
            author: field.author.clone(),
            host: field.host.clone(),
        }
    }
}

/// Shows or changes.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let mut change = args.properties.to_change()?;
    change.note.clone_from(&args.note);
    change.unset = args.unset.iter().cloned().collect();
    // Either order would be a guess.
    if let Some(name) = change.unset.iter().find(|name| change.set.contains_key(*name)) {
        let message = format!("'{}' is set and unset", format_path(name));
        return Err(CliError::usage_error(message, ""));
    }
    let volume = context.open_volume()?;
    let entry = volume.resolve_snapshot(&args.snapshot)?;
    if !change.is_empty() {
        volume.annotate_snapshot(entry.id, &change)?;
    }
    let names = SnapshotNames::load_all(&volume)?;
    let none = SnapshotAnnotation::default();
    let annotation = names.annotation_of(&entry.id).unwrap_or(&none);
    let ui = &context.ui;
    if ui.is_json() {
        let properties = annotation
            .properties()
            .map(|(name, field)| PropertyJson { name: name.into(), said: SaidJson::new(field) })
            .collect();
        ui.print_json(&NoteJson {
            snapshot: names.to_snapshot_json(&entry),
            note: annotation.note().map(SaidJson::new),
            properties,
        })?;
        return Ok(CommandOutcome::Done);
    }
    if ui.voice.quiet && !change.is_empty() {
        return Ok(CommandOutcome::Done);
    }
    ui.print_line(names.describe_snapshot(&entry))?;
    let mut table = TextTable::default();
    let who = |field: &AnnotationField| {
        let who = format_path(format!("{}@{}", field.author, field.host));
        format!("{who}, {}", format::format_local_minute(field.set))
    };
    if let Some(note) = annotation.note() {
        table.add_row(["  note".into(), names.first_line_of_note(&entry), who(note)]);
    }
    for (name, field) in annotation.properties() {
        let value = field.value.as_deref().unwrap_or_default();
        let shown = if value.is_empty() { String::new() } else { format_path(value) };
        table.add_row([format!("  {}", format_path(name)), shown, who(field)]);
    }
    ui.print_lines(table.format_lines())?;
    Ok(CommandOutcome::Done)
}
