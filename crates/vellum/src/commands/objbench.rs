//! `vellum objbench`: whether an object store keeps what Vellum relies on, and how fast it is.

use std::time::Duration;

use vellum_bench::BenchError;
use vellum_bench::objects::{
    self, BenchStore, CheckedPromise, ObjectBenchFindings, ObjectBenchParameters, StoreVerdict,
};
use vellum_host::escape::format_path;

use super::bench;
use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result, ResumeHint};
use crate::interrupt;
use crate::store_args::CredentialsArgs;
use crate::ui::format::{self, parse_size};
use crate::ui::progress::ProgressTask;
use crate::ui::{UserInterface, figures};

/// Test an object store: which guarantees it keeps, and how fast it is
///
/// Works in a folder of its own, which it removes in any case, as it does a store that did not exist before. Exits
/// with 1 if a guarantee does not hold, and reports whether Vellum works without it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The store: a directory, or an address as 'vellum init --store' takes it
    #[arg(value_name = "URL")]
    url: String,
    #[command(flatten)]
    credentials: CredentialsArgs,
    /// Bytes of a small object
    #[arg(long, value_name = "SIZE", default_value = "128K", value_parser = parse_size)]
    small_object_size: u64,
    /// Number of small objects; 0: none
    #[arg(long, value_name = "N", default_value_t = 100)]
    small_objects: u64,
    /// Bytes of all big objects together; 0: none
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    big_object_size: u64,
    /// Bytes of one big object
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = parse_size)]
    block_size: u64,
    /// Number of parallel requests
    #[arg(short = 'p', long, value_name = "N", default_value_t = 4)]
    threads: usize,
    /// Number of runs
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: usize,
    /// Report guarantees that take longer than S seconds to hold
    #[arg(long, value_name = "S", default_value_t = 5)]
    patience: u64,
}

/// Tries the store.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let parameters = ObjectBenchParameters {
        small_object_size: args.small_object_size,
        small_objects: args.small_objects,
        big_object_size: args.big_object_size,
        block_size: args.block_size,
        threads: args.threads,
        runs: args.runs,
        patience: Duration::from_secs(args.patience),
    };
    // From here on there may be a store that has to go again.
    let _asked = interrupt::install_signal_handlers();
    let location = args.credentials.locate_store(&args.url, &context.cwd).map_err(BenchError::from)?;
    // What it makes is removed when it is dropped, after a failure as well.
    let container = BenchStore::open_or_create(&location).map_err(BenchError::from)?;
    let task = ProgressTask { first: "Trying", verb: "Trying", item: "request" };
    let found = context
        .run_with_progress(task, |meter| objects::run_object_bench(&*container.store, &parameters, meter))
        .with_resume_hint(bench::REMOVED)?;
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&found)?;
    } else {
        if container.is_new() {
            ui.print_line("created the store, which is removed at the end")?;
        }
        print_findings(ui, &found)?;
    }
    // A limited store is a finding, too: whoever chooses a store has to look at what it lacks.
    Ok(CommandOutcome::from_findings(found.verdict != StoreVerdict::Fit))
}

fn print_findings(ui: &UserInterface, found: &ObjectBenchFindings) -> Result<()> {
    for promise in &found.promises {
        ui.print_lines(describe_promise(ui, promise))?;
    }
    ui.print_line(match found.verdict {
        StoreVerdict::Fit => ui.style.paint_green("Vellum can use this store"),
        StoreVerdict::Limited => {
            ui.style.paint_yellow("Vellum can use this store, and works without what is missing")
        }
        StoreVerdict::Unfit => ui.style.paint_red("Vellum cannot use this store"),
    })?;
    if found.report.rows.is_empty() {
        return Ok(());
    }
    ui.print_line("")?;
    figures::print_bench_report(ui, &found.report)
}

fn describe_promise(ui: &UserInterface, promise: &CheckedPromise) -> Vec<String> {
    let style = ui.style;
    // Of one width, so that the promises stand in one column.
    let state = match (promise.holds, promise.livable) {
        (true, _) => style.paint_green("holds  "),
        (false, true) => style.paint_yellow("missing"),
        (false, false) => style.paint_red("BROKEN "),
    };
    let mut lines = vec![format!("{state}  {}", promise.promise)];
    if promise.slow {
        let took = format::format_duration(Duration::from_secs_f64(promise.seconds));
        lines.push(format!("         slow: {took}; Vellum works, and each operation waits for it"));
    }
    lines.extend(promise.problem.as_ref().map(|problem| format!("         {}", format_path(problem))));
    if let Some(consequence) = promise.consequence {
        let weight = if promise.livable { "Vellum works without it" } else { "Vellum requires it" };
        lines.push(format!("         {weight}: {consequence}"));
    }
    lines
}
