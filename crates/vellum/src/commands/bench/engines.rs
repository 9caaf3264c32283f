//! `vellum bench engines`: snapshots, restores and forks, mounted and checked out.

use std::path::PathBuf;

use vellum_bench::engines::{self, EngineBenchParameters};

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};
use crate::ui::format::parse_size;
use crate::ui::progress::ProgressTask;

/// Measure snapshots, restores and forks: mounted, by sharing blocks, by copying, from the store
///
/// Creates worktrees of every size with every number of files in a directory of its own in PATH, which it removes in
/// any case. What does not work on that filesystem is left out.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory [default: this one]
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// Bytes of each worktree
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "16M,64M,256M", value_parser = parse_size)]
    sizes: Vec<u64>,
    /// Number of files of each worktree
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "100,1000")]
    counts: Vec<u64>,
    /// Number of runs
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: usize,
}

/// Measures.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    // The bench measures whole commands of this program, with the start of a process for each, as users run them.
    let program = std::env::current_exe().map_err(CliError::io_error("find", "this program"))?;
    let sizes = args.sizes.clone();
    let counts = args.counts.clone();
    let runs = args.runs;
    let parameters = EngineBenchParameters { sizes, counts, runs, program };
    let path =
        args.path.as_ref().map_or_else(|| context.cwd.clone(), |path| context.resolve_local_path(path));
    let task = ProgressTask { first: "Measuring", verb: "Measuring", item: "command" };
    let (report, left_out) = context
        .run_with_progress(task, |meter| engines::run_engine_bench(&path, &parameters, meter))
        .with_resume_hint(super::REMOVED)?;
    super::print_bench_result(&context.ui, &report)?;
    for remark in left_out {
        context.ui.print_warning(format!("left out: {remark}"))?;
    }
    Ok(CommandOutcome::Done)
}
