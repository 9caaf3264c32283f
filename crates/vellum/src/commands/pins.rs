//! `vellum pins`: which snapshots stay in the store, and what stays on this machine.

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_store::{PackCache, PinListing};
use vellum_types::UnixTime;

use crate::commands::pin::snapshots::{SnapshotPinJson, SnapshotPinList};
use crate::commands::pin::target::open_unsettled_volume;
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::ui::table::{ShortenedColumn, TableFit, TextTable};
use crate::ui::{format, json};

/// List which snapshots are pinned, and what is pinned on this machine
#[derive(Debug, clap::Args)]
pub struct Args {}

#[derive(Serialize)]
struct PinsJson {
    pins: Vec<PinJson>,
    /// Null if the store does not answer.
    snapshots: Option<Vec<SnapshotPinJson>>,
    damaged: Vec<String>,
}

#[derive(Serialize)]
struct PinJson {
    name: String,
    worktree: String,
    content: String,
    created: String,
    bytes: u64,
    /// Bytes of it that are not here: the pinning was interrupted, or they were removed.
    missing: u64,
}

/// Lists them.
pub fn run(_args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let (_, cache) = context.find_pack_cache()?;
    let ui = &context.ui;
    // A store in a directory has no cache, and so no pins.
    let listing = cache.as_ref().map_or(Ok(PinListing::default()), PackCache::list_pins);
    let folder = cache.as_ref().map_or_else(String::new, |cache| cache.folder().display().to_string());
    let PinListing { pins, damaged } = listing.map_err(CliError::io_error("read", folder))?;
    let created = |secs: u64| UnixTime { secs: i64::try_from(secs).unwrap_or(i64::MAX), nanos: 0 };
    let mut table = TextTable::new([1]);
    let mut listed = Vec::new();
    for pin in pins {
        let bytes = pin.pieces.wanted_bytes();
        let missing = cache.as_ref().map_or(0, |cache| cache.missing_pieces(&pin.pieces).wanted_bytes());
        let state = match missing {
            0 => "here".to_owned(),
            missing => format!("{} missing: pin it again", format::format_size(missing)),
        };
        table.add_row([
            format_path(&pin.name),
            format::format_size(bytes),
            format::format_local_minute(created(pin.created)),
            state,
        ]);
        listed.push(PinJson {
            name: pin.name,
            worktree: pin.worktree,
            content: pin.content,
            created: json::format_json_time(created(pin.created)),
            bytes,
            missing,
        });
    }
    let damaged: Vec<_> = damaged.iter().map(|path| path.display().to_string()).collect();
    // A damaged pin keeps nothing here, which users would otherwise notice only without a connection.
    let outcome = CommandOutcome::from_findings(!damaged.is_empty());
    let snapshots =
        match open_unsettled_volume(context).and_then(|volume| SnapshotPinList::load(&volume, context)) {
            Ok(snapshots) => Some(snapshots),
            // Without a connection, what is here matters most.
            Err(error) if error.is_store_failure() => {
                ui.print_warning(format!("pinned snapshots are not listed: {error}"))?;
                None
            }
            Err(error) => return Err(error),
        };
    if ui.is_json() {
        ui.print_json(&PinsJson { pins: listed, snapshots: snapshots.map(|found| found.json), damaged })?;
        return Ok(outcome);
    }
    let shortened = [ShortenedColumn::keep_end(0)];
    table.fit_columns(ui.output_columns(), &TableFit { optional: &[2], shortened: &shortened });
    ui.print_lines(table.format_lines())?;
    let lines = snapshots.map(|found| found.lines).unwrap_or_default();
    if listed.is_empty() && lines.is_empty() {
        ui.print_note("nothing is pinned: 'vellum pin PATH' pins content, 'vellum pin SNAP' a snapshot")?;
    }
    ui.print_lines(lines)?;
    for path in damaged {
        ui.print_warning(format!(
            "{path} was a pin, is damaged, and pins nothing: remove the file, and pin again"
        ))?;
    }
    Ok(outcome)
}
