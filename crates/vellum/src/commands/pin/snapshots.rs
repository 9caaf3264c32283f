//! Pins of snapshots: made, taken away, listed.

use serde::Serialize;
use vellum_types::UnixTime;
use vellum_volume::history::HistoryEntry;
use vellum_volume::snapshot_pin::{NewSnapshotPin, SnapshotPin};
use vellum_volume::{Volume, resolve};

use crate::context::CommandContext;
use crate::context::names::{describe_snapshot, warn_about_damaged_refs};
use crate::error::{CliError, CommandOutcome, Result};
use crate::ui::table::{ShortenedColumn, TableFit, TextTable};
use crate::ui::{format, json};

/// What is said of a pin of a snapshot.
#[derive(Debug, clap::Args)]
pub struct NewPinArgs {
    /// Why the snapshot is pinned: shown to whoever would forget it
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// When the pin of the snapshot ends: after a time, as in 30d, or at a date, as 2027-05-01 [default: never]
    #[arg(long, value_name = "WHEN", value_parser = parse_end)]
    until: Option<UnixTime>,
}

impl NewPinArgs {
    /// Fails if one was typed.
    pub fn check_unused(&self) -> Result<()> {
        if self.reason.is_none() && self.until.is_none() {
            return Ok(());
        }
        Err(CliError::usage_error(
            "--reason and --until are for pins of snapshots, and this is a path",
            "'--snapshot NAME' pins a snapshot",
        ))
    }
}

/// A moment in the future: `30d`, or a date.
fn parse_end(typed: &str) -> Result<UnixTime, String> {
    let now = vellum_host::clock::current_time();
    if let Ok(duration) = format::parse_duration(typed) {
        let secs = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
        return Ok(UnixTime { secs: now.secs.saturating_add(secs), nanos: 0 });
    }
    let wrong = || "a moment in the future is typed like 30d, 2027-05-01 or '2027-05-01 13:30'".to_owned();
    resolve::parse_moment(typed).filter(|moment| *moment > now).ok_or_else(wrong)
}

#[derive(Serialize)]
struct SnapshotPinsJson {
    snapshots: Vec<SnapshotPinJson>,
}

/// A pin of a snapshot.
#[derive(Serialize)]
pub struct SnapshotPinJson {
    snapshot: String,
    author: String,
    host: String,
    reason: String,
    created: String,
    until: Option<String>,
}

impl SnapshotPinJson {
    fn new(id: String, pin: SnapshotPin) -> Self {
        Self {
            snapshot: id,
            author: pin.author,
            host: pin.host,
            reason: pin.reason,
            created: json::format_json_time(pin.set),
            until: pin.until.map(json::format_json_time),
        }
    }
}

/// Pins them.
pub fn pin_snapshots(
    args: &NewPinArgs,
    volume: &Volume,
    entries: &[HistoryEntry],
    context: &CommandContext,
) -> Result<CommandOutcome> {
    let new = NewSnapshotPin { reason: args.reason.clone().unwrap_or_default(), until: args.until };
    for entry in entries {
        volume.pin_snapshot(entry.id, new.clone())?;
        if !context.ui.is_json() && !context.ui.voice.quiet {
            let end = args.until.map(|until| format!(" until {}", format::format_local_minute(until)));
            let snapshot = describe_snapshot(volume, entry)?;
            context.ui.print_line(format!("Pinned {snapshot}{}", end.unwrap_or_default()))?;
        }
    }
    if context.ui.is_json() {
        let mut snapshots = SnapshotPinList::load(volume, context)?.json;
        snapshots.retain(|pin| entries.iter().any(|entry| entry.id.to_string() == pin.snapshot));
        context.ui.print_json(&SnapshotPinsJson { snapshots })?;
    }
    Ok(CommandOutcome::Done)
}

/// The pins of snapshots that are in force.
pub struct SnapshotPinList {
    /// For programs.
    pub json: Vec<SnapshotPinJson>,
    /// For people.
    pub lines: Vec<String>,
}

impl SnapshotPinList {
    /// Lists them; warns about those that cannot be read.
    pub fn load(volume: &Volume, context: &CommandContext) -> Result<Self> {
        let (mut pins, damaged) = volume.list_readable_pins()?;
        warn_about_damaged_refs(&context.ui, &damaged)?;
        let now = vellum_host::clock::current_time();
        // An expired pin keeps nothing any more, although its ref may still be there.
        pins.retain(|(_, pin)| pin.is_in_force(now));
        let mut table = TextTable::default();
        for (id, pin) in &pins {
            let short = id.parse().ok().map(|id| volume.short_id(&id)).transpose()?;
            let end = pin.until.map(|until| format!("until {}", format::format_local_minute(until)));
            table.add_row([
                format!("snapshot {}", short.unwrap_or_default()),
                end.unwrap_or_default(),
                format::format_local_minute(pin.set),
                pin.describe(),
            ]);
        }
        let shortened = [ShortenedColumn::keep_beginning(3)];
        let fit = TableFit { optional: &[2], shortened: &shortened };
        table.fit_columns(context.ui.output_columns(), &fit);
        let json = pins.into_iter().map(|(id, pin)| SnapshotPinJson::new(id, pin)).collect();
        Ok(Self { json, lines: table.format_lines() })
    }
}
