//! `vellum export`: part of a snapshot as a directory or a tar stream, without a worktree.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use serde::Serialize;
use vellum_checkout::export_tree;
use vellum_host::escape::format_path;
use vellum_types::FileKind;
use vellum_volume::Volume;

use super::ls::base_name;
use crate::archive::TarWriter;
use crate::context::CommandContext;
use crate::context::place::SnapshotPath;
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};
use crate::ui::json::ProblemJson;
use crate::ui::progress::ProgressTask;

const TASK: ProgressTask = ProgressTask { first: "Preparing", verb: "Exporting", item: "file" };

/// Write part of a snapshot to a directory or as a tar stream
///
/// Without --to and --tar, a tar stream goes to standard output: vellum export HEAD src | ssh host tar -x
///
/// The stream keeps nanoseconds, owners, links, devices and extended attributes (PAX format).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The snapshot
    #[arg(value_name = "SNAP")]
    snapshot: String,
    /// A file, or a directory, whose content is written [default: the current directory]
    path: Option<OsString>,
    /// Write to the directory DIR, which must be empty or not exist
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// Write a tar archive to FILE, which must not exist ('-': standard output)
    #[arg(long, value_name = "FILE", conflicts_with = "to")]
    tar: Option<PathBuf>,
}

#[derive(Serialize)]
struct ExportJson {
    snapshot: String,
    to: String,
    problems: Vec<ProblemJson>,
}

/// Exports.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let ui = &context.ui;
    // As with tar, '-' is standard output.
    let tar = args.tar.as_deref().filter(|file| *file != Path::new("-"));
    let to_stdout = args.to.is_none() && tar.is_none();
    // Bytes of files can change the settings of a terminal, and behind them no JSON object could be parsed.
    if to_stdout && (ui.is_output_terminal() || ui.is_json()) {
        let taken = if ui.is_json() { "taken by --json" } else { "a terminal" };
        let message = format!("a tar stream would go to standard output, which is {taken}");
        return Err(CliError::usage_error(message, "use --to DIR, --tar FILE, or a pipe"));
    }
    let volume = context.open_volume()?;
    let place = SnapshotPath::find_path(context, &volume, &args.snapshot, args.path.as_deref())?;
    let problems = match (&args.to, tar) {
        (Some(dir), _) => export_to_dir(context, &volume, &place, &context.resolve_local_path(dir))?,
        (None, Some(file)) => export_to_file(context, &volume, &place, &context.resolve_local_path(file))?,
        (None, None) => {
            let mut out = ui.output_writer();
            export_to_stream(context, &volume, &place, &mut *out, CliError::Output)?
        }
    };
    let target = args.to.as_deref().or(tar);
    let outcome = CommandOutcome::from_findings(!problems.is_empty());
    if let (true, Some(target)) = (ui.is_json(), target) {
        let snapshot = place.entry.id.to_string();
        let to = target.display().to_string();
        ui.print_json(&ExportJson { snapshot, to, problems })?;
        return Ok(outcome);
    }
    ui.print_problems(&problems)?;
    if let (Some(target), false) = (target, ui.voice.quiet) {
        let what =
            if place.path.is_empty() { String::new() } else { format!("'{}' of ", format_path(&place.path)) };
        ui.print_line(format!(
            "Exported {what}{} to {}",
            volume.short_id(&place.entry.id)?,
            target.display()
        ))?;
    }
    Ok(outcome)
}

fn export_to_dir(
    context: &CommandContext,
    volume: &Volume,
    place: &SnapshotPath,
    dir: &Path,
) -> Result<Vec<ProblemJson>> {
    let problems = context
        .run_with_progress(TASK, |meter| export_tree(volume, &place.tree, place.ino, dir, meter))
        .with_resume_hint("delete the directory and run the command again")?;
    Ok(problems.iter().map(ProblemJson::from).collect())
}

fn export_to_file(
    context: &CommandContext,
    volume: &Volume,
    place: &SnapshotPath,
    path: &Path,
) -> Result<Vec<ProblemJson>> {
    let shown = path.display().to_string();
    let blame = |error: io::Error| CliError::io_error("write", shown.clone())(error);
    // An existing file is not overwritten: if the export failed, neither the old archive nor the new one would be
    // left.
    let file = File::create_new(path).map_err(CliError::io_error("create", shown.clone()))?;
    // Success means that the archive survives a power failure: its source may be deleted next.
    let done = export_to_stream(context, volume, place, BufWriter::with_capacity(1 << 20, &file), blame)
        .and_then(|problems| file.sync_all().map(|()| problems).map_err(blame));
    done.inspect_err(|_| {
        // A torn archive must not be taken for a whole one.
        let _ = std::fs::remove_file(path);
    })
}

fn export_to_stream(
    context: &CommandContext,
    volume: &Volume,
    place: &SnapshotPath,
    out: impl io::Write,
    blame: impl Fn(io::Error) -> CliError,
) -> Result<Vec<ProblemJson>> {
    // Names in the archive of a directory are relative to it.
    let name = if place.attr.kind == FileKind::Dir { b"" } else { base_name(&place.path) };
    let sockets = context
        .run_with_progress(TASK, |meter| {
            TarWriter::new(volume, &place.tree, meter, out, blame).write_tree(place.ino, name)
        })
        .with_resume_hint("run the command again")?;
    let left_out = |path: &Vec<u8>| ProblemJson::new(path, "left out: a tar archive cannot contain sockets");
    Ok(sockets.iter().map(left_out).collect())
}
