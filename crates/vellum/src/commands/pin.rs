//! `vellum pin`: brings content to this machine, and keeps it there.

use std::ffi::OsString;

use serde::Serialize;

use crate::context::CommandContext;
use crate::context::content::{ContentPaths, list_refused, report_refused};
use crate::error::{CommandOutcome, Result};
use crate::mounting::control::ContentReply;
use crate::ui::format;
use crate::ui::json::ProblemJson;

/// Bring the content of files from a remote store to this machine, and keep it there
///
/// Fetches as 'vellum hydrate' does. Pinned content is not evicted from the cache before 'vellum unpin'. A pin that
/// does not fit into the cache beside the others is refused. It keeps the content that PATH has now: pin again after
/// changes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files and directories
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Create one pin with this name, or replace the one that has it [default: one for each PATH, named after the
    /// worktree and PATH]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Use the content that this snapshot has at PATH
    #[arg(long, value_name = "SNAP")]
    from: Option<String>,
}

#[derive(Serialize)]
struct PinListJson {
    pins: Vec<NewPinJson>,
}

#[derive(Serialize)]
struct NewPinJson {
    name: String,
    files: u64,
    bytes: u64,
    fetched: u64,
    local: bool,
    refused: Vec<ProblemJson>,
}

/// Pins.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let paths = ContentPaths::find_paths(context, &args.paths, args.from.as_deref())?;
    let pins = match &args.name {
        Some(name) => vec![(name.clone(), paths)],
        None => paths.name_pins(),
    };
    let ui = &context.ui;
    let mut outcome = CommandOutcome::Done;
    let mut listed = Vec::new();
    for (name, paths) in pins {
        let done = paths.hydrate(context, false, Some(&name))?;
        let refused = list_refused(&done.refused);
        // What one pin left out counts for the exit code, whatever became of those after it.
        outcome = outcome.max(report_refused(context, &refused)?);
        let ContentReply { files, bytes, moved, is_local, .. } = done;
        if ui.is_json() {
            listed.push(NewPinJson { name, files, bytes, fetched: moved, local: is_local, refused });
        } else if is_local {
            ui.print_note(
                "the store is a directory of this machine: everything is here, and nothing is pinned",
            )?;
        } else if !ui.voice.quiet {
            ui.print_line(format!(
                "Pinned '{}': {}, {}, of which {} were fetched",
                vellum_host::escape::format_path(&name),
                format::format_count(files, "file"),
                format::format_size(bytes),
                format::format_size(moved)
            ))?;
        }
    }
    if ui.is_json() {
        ui.print_json(&PinListJson { pins: listed })?;
    }
    Ok(outcome)
}
