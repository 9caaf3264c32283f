//! `vellum mdtest`: how fast names are in a tree of directories.

use std::path::PathBuf;

use vellum_bench::mdtest::{self, MdtestParameters};

use super::bench;
use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result, ResumeHint};
use crate::ui::progress::ProgressTask;

/// Measure metadata operations: create, stat, open, list and remove a tree of files
///
/// Works in a directory of its own in PATH, which it removes in any case. Each thread has a tree of its own.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory
    path: PathBuf,
    /// Depth of the tree
    #[arg(long, value_name = "N", default_value_t = 2)]
    depth: u32,
    /// Directories in each directory
    #[arg(long, value_name = "N", default_value_t = 5)]
    branch: u64,
    /// Files in each directory
    #[arg(long, value_name = "N", default_value_t = 20)]
    files: u64,
    /// Number of threads
    #[arg(short = 'p', long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Number of runs
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: usize,
}

/// Measures.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let path = context.resolve_local_path(&args.path);
    let Args { depth, branch, files, threads, runs, .. } = *args;
    let parameters = MdtestParameters { depth, branch, files, threads, runs };
    let task = ProgressTask { first: "Measuring", verb: "Measuring", item: "name" };
    let report = context
        .run_with_progress(task, |meter| mdtest::run_mdtest(&path, &parameters, meter))
        .with_resume_hint(bench::REMOVED)?;
    bench::print_bench_result(&context.ui, &report)?;
    Ok(CommandOutcome::Done)
}
