//! `vellum fork`: a new checked-out worktree of the same volume.

use std::path::{Path, PathBuf};

use serde::Serialize;
use vellum_checkout::{ForkEngine, ForkReport, ForkRequest};
use vellum_library::live;
use vellum_volume::VolumeError;

use super::mount;
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};
use crate::interrupt;
use crate::mounting::control::ControlRequest;
use crate::mounting::mountpoint;
use crate::ui::format;
use crate::ui::json::ProblemJson;
use crate::ui::progress::ProgressTask;

/// Create another worktree from a snapshot
///
/// Files that are unchanged in this directory are cloned if the filesystem supports it (reflinks take no time and
/// no space), else copied. All other files are written from the store.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the new worktree
    name: String,
    /// Check it out in this directory, which must be empty or not exist
    #[arg(long, value_name = "DIR", required_unless_present = "mount")]
    to: Option<PathBuf>,
    /// Mount it on this directory, which must be empty; the time does not depend on the number of files
    #[arg(long, value_name = "DIR", conflicts_with_all = ["to", "engine"])]
    mount: Option<PathBuf>,
    /// The snapshot to start from [default: this worktree's current snapshot; of a mounted worktree its present
    /// state]
    #[arg(long, value_name = "SNAP")]
    from: Option<String>,
    /// Use only this method, and fail if it does not work
    #[arg(long, value_enum, conflicts_with = "mount")]
    engine: Option<ForkEngineArg>,
}

/// Ways to make a file of the new worktree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ForkEngineArg {
    /// Share the blocks of the file in this directory
    Reflink,
    /// Copy the file in this directory
    Copy,
    /// Write it from the store
    Chunks,
}

impl From<ForkEngineArg> for ForkEngine {
    fn from(name: ForkEngineArg) -> Self {
        match name {
            ForkEngineArg::Reflink => Self::Reflink,
            ForkEngineArg::Copy => Self::Copy,
            ForkEngineArg::Chunks => Self::Chunks,
        }
    }
}

#[derive(Serialize)]
struct ForkJson {
    name: String,
    directory: String,
    snapshot: String,
    reflinked: u64,
    copied: u64,
    from_chunks: u64,
    bytes: u64,
    problems: Vec<ProblemJson>,
}

/// Forks.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    if let Some(mountpoint) = &args.mount {
        return fork_to_mount(args, context, mountpoint);
    }
    if context.open_mounted_worktree()?.is_some() {
        return Err(CliError::usage_error(
            "a mounted worktree has no plain files to clone",
            "'--mount DIR' forks it without copying; for plain files: 'vellum init --store', then 'vellum restore'",
        ));
    }
    let worktree = context.open_worktree()?;
    let from = worktree.volume.resolve_snapshot(args.from.as_deref().unwrap_or("HEAD"))?;
    let to = context.resolve_local_path(args.to.as_deref().unwrap_or(Path::new("")));
    let id = from.id;
    let engine = args.engine.map(ForkEngine::from);
    let request = ForkRequest { name: args.name.clone(), to: to.clone(), from, engine };
    let done = context
        .run_with_progress(ProgressTask { first: "Scanning", verb: "Forking", item: "file" }, |meter| {
            worktree.fork_worktree(&request, meter)
        })
        .with_resume_hint("nothing was kept: 'vellum fork' again begins anew")?;
    // Only now does the directory exist, so that its path can be shown without symlinks, as other commands show it.
    let to = to.canonicalize().unwrap_or(to);
    let problems: Vec<_> = done.problems.iter().map(ProblemJson::from).collect();
    let outcome = CommandOutcome::from_findings(!problems.is_empty());
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&ForkJson {
            name: args.name.clone(),
            directory: to.display().to_string(),
            snapshot: id.to_string(),
            reflinked: done.reflinked,
            copied: done.copied,
            from_chunks: done.from_chunks,
            bytes: done.bytes,
            problems,
        })?;
        return Ok(outcome);
    }
    ui.print_problems(&problems)?;
    if !ui.voice.quiet {
        let short = worktree.volume.short_id(&id)?;
        ui.print_line(format!(
            "Worktree {} in {} starts from {short}",
            ui.style.paint_cyan(&args.name),
            to.display()
        ))?;
        ui.print_line(format_fork_methods(&done))?;
    }
    Ok(outcome)
}

/// The new worktree is mounted: it stands on the tree of a snapshot, or on what a mounted one holds; no file is touched.
fn fork_to_mount(args: &Args, context: &CommandContext, mountpoint: &Path) -> Result<CommandOutcome> {
    let here = context.open_mounted_worktree()?;
    // Checked here for a message before anything is prepared. If another process takes the name meanwhile, creating
    // the worktree fails.
    let there = match &here {
        Some(here) => here.volume.read_worktree_head(&args.name)?,
        None => context.open_volume()?.read_worktree_head(&args.name)?,
    };
    if there.is_some() {
        return Err(VolumeError::Exists { kind: "worktree", name: args.name.clone() }.into());
    }
    mountpoint::prepare_mountpoint(&mountpoint::resolve_mountpoint(
        &context.resolve_local_path(mountpoint),
    )?)?;
    // From here on there is something to be taken back. Once it is mounted the fork is whole, and stays.
    let stop_flag = interrupt::install_signal_handlers();
    let volume = match (here, &args.from) {
        (Some(here), None) => {
            // Pages that programs have written, and the kernel has not handed over yet, belong into the fork.
            here.sync_filesystem()?;
            here.send_request(&ControlRequest::Fork { name: args.name.clone() })?;
            here.volume
        }
        (Some(here), Some(typed)) => {
            // The name may mean a snapshot that the mount has made and not published yet.
            here.send_request(&ControlRequest::Settle)?;
            live::create_live_worktree(
                &here.volume,
                &args.name,
                Some(here.volume.resolve_snapshot(typed)?.id),
            )?;
            here.volume
        }
        (None, typed) => {
            let volume = context.open_volume()?;
            let from = match typed {
                Some(typed) => Some(volume.resolve_snapshot(typed)?.id),
                None => volume.read_head()?,
            };
            live::create_live_worktree(&volume, &args.name, from)?;
            volume
        }
    };
    let request = mount::Args::for_worktree(volume.state.root(), mountpoint, &args.name);
    let stopped = || CliError::Stopped { resume: "nothing was kept: 'vellum fork' again begins anew".into() };
    let done =
        if interrupt::is_stop_requested(&stop_flag) { Err(stopped()) } else { mount::run(&request, context) };
    // The process that was to serve it has got the signal, too.
    done.map_err(|error| if interrupt::is_stop_requested(&stop_flag) { stopped() } else { error })
        .inspect_err(|_| {
            // Why it could not be mounted is what the user wants to know. One that is mounted after all is not removed.
            let _ = live::remove_live_worktree(&volume, &args.name);
        })
}

/// How many files were made in which way.
fn format_fork_methods(done: &ForkReport) -> String {
    let all = [
        (done.reflinked, "cloned (reflink)"),
        (done.copied, "copied"),
        (done.from_chunks, "written from the store"),
    ];
    let new = done.copied + done.from_chunks;
    let space = match (new, done.reflinked) {
        (0, 0) => "",
        (0, _) => ", shared with this directory until either changes",
        (_, 0) => ", all of it new on that disk ('--mount' would take none)",
        (_, _) => {
            ", the cloned ones shared with this directory until either changes ('--mount' would take no space)"
        }
    };
    let parts: Vec<_> = all
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, way)| format!("{} {way}", format::format_number(count)))
        .collect();
    let files = if parts.is_empty() { "no files".into() } else { parts.join(", ") };
    format!("Files: {files}; {}{space}", format::format_size(done.bytes))
}
