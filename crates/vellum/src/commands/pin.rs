//! `vellum pin`: keeps content on this machine, or a snapshot in the store.

pub mod snapshots;
pub mod target;

use std::ffi::OsString;

use serde::Serialize;
use vellum_types::ErrorKind;

use self::snapshots::NewPinArgs;
use self::target::PinTarget;
use crate::commands::pins;
use crate::context::CommandContext;
use crate::context::content::{ContentPaths, list_refused, report_refused};
use crate::error::{CommandOutcome, Result};
use crate::mounting::control::ContentReply;
use crate::ui::format;
use crate::ui::json::ProblemJson;

/// Keep a snapshot in the store, or the content of files on this machine
///
/// A pinned snapshot is not forgotten, on no machine and by no rule, before 'vellum unpin' or the end of the pin. Its data
/// stays with it. A push and a pull bring pins to the other store.
///
/// If TARGET is a path, its content is brought from a remote store to this machine as 'vellum hydrate' does, and is not
/// evicted from the cache before 'vellum unpin'. A pin that does not fit into the cache beside the others is refused. It
/// keeps the content that the path has now: pin again after changes.
///
/// 'vellum pins' (or 'vellum pin list') lists pins.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Snapshots, or files and directories
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,
    /// Every TARGET is a snapshot, also if there is a file of this name
    #[arg(long)]
    snapshot: bool,
    #[command(flatten)]
    new: NewPinArgs,
    /// Create one pin of content with this name, or replace the one that has it [default: one for each path, named after
    /// the worktree and the path]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["snapshot", "reason", "until"])]
    name: Option<String>,
    /// Use the content that this snapshot has at the paths
    #[arg(long, value_name = "SNAP", conflicts_with_all = ["snapshot", "reason", "until"])]
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
    let is_of_content = args.name.is_some() || args.from.is_some();
    let target = if is_of_content {
        PinTarget::Content
    } else {
        match PinTarget::find_target(context, &args.targets, args.snapshot) {
            // As other tools have it. What is called so comes first.
            Err(error) if args.targets == ["list"] && error.kind() == ErrorKind::NotFound => {
                return pins::run(&pins::Args {}, context);
            }
            found => found?,
        }
    };
    match target {
        PinTarget::Snapshots { volume, entries } => {
            snapshots::pin_snapshots(&args.new, &volume, &entries, context)
        }
        PinTarget::Content => {
            args.new.check_unused()?;
            pin_content(args, context)
        }
    }
}

fn pin_content(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let paths = ContentPaths::find_paths(context, &args.targets, args.from.as_deref())?;
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
