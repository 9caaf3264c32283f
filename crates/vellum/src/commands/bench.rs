//! `vellum bench`: how fast a directory is, ours or not; and what compares such figures.

mod cluster;
mod compare;
mod engines;
mod pipeline;

use std::path::{Path, PathBuf};

use vellum_bench::filesystem::{self, FilesystemBenchParameters};
use vellum_bench::{BenchReport, html};

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};
use crate::ui::format::parse_size;
use crate::ui::progress::ProgressTask;
use crate::ui::{UserInterface, figures};

/// Measure a directory: big files, small files, names
///
/// Works in a directory of its own in PATH, which it removes in any case. Grades compare the figures with those of a
/// local filesystem, scaled to the speed of this machine. Cold reads are reads of files whose pages were just dropped
/// from the kernel's cache.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The directory [default: this one]
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// Number of threads, each with its own files
    #[arg(short = 'p', long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Bytes of each big file; 0: none
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    big_file_size: u64,
    /// Bytes of each small file
    #[arg(long, value_name = "SIZE", default_value = "128K", value_parser = parse_size)]
    small_file_size: u64,
    /// Number of small files and names per thread; 0: none
    #[arg(long, value_name = "N", default_value_t = 100)]
    small_file_count: u64,
    /// Bytes of one read or write
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_size)]
    io_size: u64,
    /// Number of runs
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: usize,
    /// Write a page with charts to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// What is done with figures, and other benches.
#[derive(Debug, clap::Subcommand)]
enum Command {
    Cluster(cluster::Args),
    Engines(engines::Args),
    Pipeline(pipeline::Args),
    Compare(compare::Args),
}

/// What the message of every stopped bench adds.
pub const REMOVED: &str = "what the bench had made was removed";

/// Measures, or runs the subcommand.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    match &args.command {
        Some(Command::Cluster(args)) => cluster::run(args, context),
        Some(Command::Engines(args)) => engines::run(args, context),
        Some(Command::Pipeline(args)) => pipeline::run(args, context),
        Some(Command::Compare(args)) => compare::run(args, context),
        None => measure_filesystem(args, context),
    }
}

fn measure_filesystem(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let page = args.html.as_deref().map(|page| context.resolve_local_path(page));
    // Checked before the measurement, which takes long.
    if let Some(page) = &page {
        check_page_parent(page)?;
    }
    let path =
        args.path.as_ref().map_or_else(|| context.cwd.clone(), |path| context.resolve_local_path(path));
    let parameters = FilesystemBenchParameters {
        threads: args.threads,
        big_file_size: args.big_file_size,
        small_file_size: args.small_file_size,
        small_file_count: args.small_file_count,
        io_size: args.io_size,
        runs: args.runs,
    };
    let task = ProgressTask { first: "Measuring", verb: "Measuring", item: "operation" };
    let report = context
        .run_with_progress(task, |meter| filesystem::run_filesystem_bench(&path, &parameters, meter))
        .with_resume_hint(REMOVED)?;
    // Before anything is printed, so that a reader who goes away does not cost the page.
    if let Some(page) = &page {
        write_html_page(page, &report)?;
    }
    print_bench_result(&context.ui, &report)?;
    Ok(CommandOutcome::Done)
}

/// The result of a bench, as it is wanted.
pub fn print_bench_result(ui: &UserInterface, report: &BenchReport) -> Result<()> {
    if ui.is_json() { ui.print_json(report) } else { figures::print_bench_report(ui, report) }
}

/// Refuses a place for a page where none can be, before hours of measuring.
fn check_page_parent(page: &Path) -> Result<()> {
    let folder = page.parent().unwrap_or(page);
    if folder.is_dir() && !page.is_dir() {
        return Ok(());
    }
    let message = format!("no page can be written to {}", page.display());
    Err(CliError::usage_error(message, "name a file in a directory that exists"))
}

fn write_html_page(page: &Path, report: &BenchReport) -> Result<()> {
    std::fs::write(page, html::render_page(report))
        .map_err(CliError::io_error("write", page.display().to_string()))
}
