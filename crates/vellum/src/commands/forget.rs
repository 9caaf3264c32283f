//! `vellum forget`: takes snapshots out of the history.

use serde::Serialize;

use crate::context::CommandContext;
use crate::context::names::SnapshotNames;
use crate::error::{CommandOutcome, Result};

/// Remove snapshots from the history
///
/// The next 'vellum gc run' frees the data that only they hold. A worktree's current snapshot and tagged snapshots
/// cannot be forgotten.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The snapshots
    #[arg(value_name = "SNAP", required = true)]
    snapshots: Vec<String>,
}

#[derive(Serialize)]
struct ForgetJson {
    forgotten: Vec<String>,
}

/// Forgets them.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.open_volume()?;
    // Loaded first: what was forgotten has no short id any more.
    let names = SnapshotNames::load_all(&volume)?;
    // All names are resolved before the first snapshot is forgotten: 'HEAD~1 HEAD~2' must not change its meaning
    // meanwhile.
    let mut entries = Vec::with_capacity(args.snapshots.len());
    for typed in &args.snapshots {
        let entry = volume.resolve_snapshot(typed)?;
        if !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    let ui = &context.ui;
    for entry in &entries {
        volume.forget_snapshot(&entry.id)?;
        if !ui.is_json() && !ui.voice.quiet {
            ui.print_line(format!("Forgot {}", names.describe_snapshot(entry)))?;
        }
    }
    if ui.is_json() {
        ui.print_json(&ForgetJson { forgotten: entries.iter().map(|entry| entry.id.to_string()).collect() })?;
    } else {
        ui.print_note("'vellum gc run' frees what only they held")?;
    }
    Ok(CommandOutcome::Done)
}
