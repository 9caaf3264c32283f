//! `vellum bench compare`: two reports, and whether the second is worse.

use std::path::{Path, PathBuf};

use vellum_bench::BenchReport;
use vellum_bench::compare::{ComparedRow, ComparisonVerdict, ReportComparison, compare_reports};

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::ui::figures::format_figure;
use crate::ui::style::TextStyle;
use crate::ui::table::TextTable;

/// Largest report, bytes: far above any that a bench writes.
const REPORT_MAX: u64 = 64 << 20;

/// Compare two results of one bench: OK or REGRESSION, row by row
///
/// A row is a regression if its median is worse by more than the tolerance and by more than the spread of its runs in
/// both reports. Exits with 1 if there is one.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What 'vellum bench --json' (or 'mdtest', or 'objbench') wrote before
    #[arg(value_name = "BASE.json")]
    base: PathBuf,
    /// What it wrote now
    #[arg(value_name = "NEW.json")]
    new: PathBuf,
    /// Tolerated change in per cent; for rows with fewer than three runs it is at least 25
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0)]
    tolerance: f64,
}

/// Compares.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    // The range also excludes NaN, with which every comparison would be false and no row a regression.
    if !(0.0..=1000.0).contains(&args.tolerance) {
        return Err(CliError::usage_error("a tolerance is 0 to 1000 percent", ""));
    }
    let base = read_bench_report(context, &args.base)?;
    let new = read_bench_report(context, &args.new)?;
    let comparison = compare_reports(&base, &new, args.tolerance / 100.0)?;
    // A script that has to fail after a regression does so by the exit code.
    let outcome = CommandOutcome::from_findings(comparison.count_regressions() > 0);
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&comparison)?;
        return Ok(outcome);
    }
    print_comparison(context, &comparison)?;
    Ok(outcome)
}

fn read_bench_report(context: &CommandContext, path: &Path) -> Result<BenchReport> {
    use std::io::Read;
    let shown = path.display().to_string();
    let path = context.resolve_local_path(path);
    let mut json = Vec::new();
    let file = std::fs::File::open(path).map_err(CliError::io_error("open", shown.clone()))?;
    // A longer file is cut here, and then fails to parse.
    file.take(REPORT_MAX).read_to_end(&mut json).map_err(CliError::io_error("read", shown.clone()))?;
    Ok(BenchReport::parse_json(&shown, &json)?)
}

fn print_comparison(context: &CommandContext, comparison: &ReportComparison) -> Result<()> {
    let ui = &context.ui;
    let mut table = TextTable::new([1, 2, 4]);
    for row in &comparison.rows {
        table.add_row(comparison_cells(ui.style, row));
    }
    ui.print_lines(table.format_lines())?;
    for (names, side) in [(&comparison.only_base, "first"), (&comparison.only_new, "second")] {
        if !names.is_empty() {
            ui.print_warning(format!("only the {side} has: {}", names.join(", ")))?;
        }
    }
    // Not refused: the same bench on two machines is compared on purpose at times.
    if comparison.elsewhere {
        ui.print_warning("the reports are of different machines or directories: a comparison says little")?;
    }
    Ok(())
}

fn comparison_cells(style: TextStyle, row: &ComparedRow) -> [String; 6] {
    let (word, paint): (_, fn(TextStyle, &str) -> String) = match row.verdict {
        ComparisonVerdict::Ok => ("OK", TextStyle::paint_green),
        ComparisonVerdict::Regression => ("REGRESSION", TextStyle::paint_red),
    };
    let tolerance = format!("(down to -{:.0} % is noise)", row.tolerance * 100.0);
    [
        row.name.as_str().into(),
        format_figure(row.base),
        format_figure(row.new),
        row.unit.as_str().into(),
        format!("{:+.0} %", row.change * 100.0),
        format!("{} {}", paint(style, word), style.paint_dim(&tolerance)),
    ]
}
