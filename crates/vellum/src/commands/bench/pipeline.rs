//! `vellum bench pipeline`: from bytes to sealed packs, and what is saved on the way.

use std::path::PathBuf;

use vellum_bench::pipeline::{self, FileKindSavings, PipelineParameters};

use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result, ResumeHint};
use crate::ui::format::{self, parse_size};
use crate::ui::progress::ProgressTask;
use crate::ui::table::TextTable;

/// Measure chunking, hashing, compressing, sealing and the whole; with PATHS, what is saved by kind of file
///
/// Nothing is stored, so that the figures are the processor's. 'whole' is what a first snapshot does with content.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files and directories; kinds of files are distinguished by the extensions of their names
    #[arg(value_name = "PATHS")]
    paths: Vec<PathBuf>,
    /// Bytes that go through at once
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "64K,1M,10M", value_parser = parse_size)]
    sizes: Vec<u64>,
    /// Threads of the last rows [default: as many as there are processors]
    #[arg(short = 'p', long, value_name = "N")]
    threads: Option<usize>,
    /// Number of runs
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: usize,
}

/// Measures.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let paths = args.paths.iter().map(|path| context.resolve_local_path(path)).collect();
    let threads = args.threads.unwrap_or(processors);
    let parameters = PipelineParameters { sizes: args.sizes.clone(), threads, runs: args.runs, paths };
    let task = ProgressTask { first: "Measuring", verb: "Measuring", item: "piece" };
    let found = context
        .run_with_progress(task, |meter| pipeline::run_pipeline_bench(&parameters, meter))
        .with_resume_hint("nothing was changed")?;
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&found)?;
        return Ok(CommandOutcome::Done);
    }
    super::figures::print_bench_report(ui, &found.report)?;
    if !found.kinds.is_empty() {
        ui.print_line("")?;
        let mut table = TextTable::new(1..5);
        let head = ["kind", "files", "size", "not twice", "and compressed"];
        table.add_row(head.map(String::from));
        found.kinds.iter().for_each(|kind| table.add_row(file_kind_cells(kind)));
        ui.print_lines(table.format_lines())?;
    }
    if found.unread > 0 {
        ui.print_warning(format!("{} could not be read", format::format_count(found.unread, "file")))?;
    }
    Ok(CommandOutcome::Done)
}

fn file_kind_cells(kind: &FileKindSavings) -> [String; 5] {
    let part = |bytes: u64| {
        // There may be none but empty files of a kind.
        let percent = bytes as f64 * 100.0 / (kind.bytes.max(1)) as f64;
        format!("{} ({percent:.0} %)", format::format_size(bytes))
    };
    [
        vellum_host::escape::format_path(&kind.kind),
        format::format_number(kind.files),
        format::format_size(kind.bytes),
        part(kind.unique),
        part(kind.compressed),
    ]
}
