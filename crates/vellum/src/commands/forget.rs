//! `vellum forget`: takes snapshots out of the history.

use serde::Serialize;

use crate::context::CommandContext;
use crate::context::names::SnapshotNames;
use crate::error::{CommandOutcome, Result};

/// Take snapshots out of the history
///
/// What only they held is freed by the next 'vellum gc run'. A snapshot that a worktree stands on or a tag names
/// stays.
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
    let volume = context.volume()?;
    let names = SnapshotNames::load(&volume)?;
    // All are found before the first goes: 'HEAD~1 HEAD~2' means what it says.
    let mut entries = Vec::with_capacity(args.snapshots.len());
    for typed in &args.snapshots {
        let entry = volume.resolve(typed)?;
        if !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    let ui = &context.ui;
    for entry in &entries {
        volume.forget(&entry.id)?;
        if !ui.json() && !ui.voice.quiet {
            ui.line(format!("Forgot {}", names.describe(entry)))?;
        }
    }
    if ui.json() {
        ui.object(&ForgetJson { forgotten: entries.iter().map(|entry| entry.id.to_string()).collect() })?;
    } else {
        ui.note("'vellum gc run' frees what only they held")?;
    }
    Ok(CommandOutcome::Done)
}
