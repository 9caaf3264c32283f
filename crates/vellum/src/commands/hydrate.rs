//! `vellum hydrate`: brings content to this machine.

use std::ffi::OsString;

use serde::Serialize;

use crate::context::CommandContext;
use crate::context::content::{ContentPaths, list_refused, report_refused};
use crate::error::{CommandOutcome, Result};
use crate::mounting::control::ContentReply;
use crate::ui::format;
use crate::ui::json::ProblemJson;

/// Bring the content of files from a remote store to this machine
///
/// In a mount whose store is in a service, content is fetched when it is read. This fetches all of it at and below PATH, so
/// that it can be read without the service, until the cache needs the room ('vellum pin' keeps it). If it is interrupted,
/// run it again: what was fetched is not fetched twice.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files and directories
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Only names and attributes
    #[arg(long)]
    metadata_only: bool,
    /// The content that this snapshot has at PATH
    #[arg(long, value_name = "SNAP")]
    from: Option<String>,
}

/// What was fetched, as JSON shows it.
#[derive(Serialize)]
struct HydrateJson {
    files: u64,
    bytes: u64,
    fetched: u64,
    local: bool,
    refused: Vec<ProblemJson>,
}

/// Fetches.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let paths = ContentPaths::find_paths(context, &args.paths, args.from.as_deref())?;
    let done = paths.hydrate(context, args.metadata_only, None)?;
    let refused = list_refused(&done.refused);
    let ui = &context.ui;
    let outcome = report_refused(context, &refused)?;
    if ui.is_json() {
        let ContentReply { files, bytes, moved, is_local, .. } = done;
        ui.print_json(&HydrateJson { files, bytes, fetched: moved, local: is_local, refused })?;
    } else if done.is_local {
        ui.print_note("the store is a directory of this machine: everything is here")?;
    } else if !ui.voice.quiet {
        let what = if args.metadata_only { "Names and attributes of" } else { "The content of" };
        ui.print_line(format!(
            "{what} {}: {}, of which {} were fetched",
            format::format_count(done.files, "file"),
            format::format_size(done.bytes),
            format::format_size(done.moved)
        ))?;
    }
    Ok(outcome)
}
