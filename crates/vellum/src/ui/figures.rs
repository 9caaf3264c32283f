//! Rows of a bench as people read them: the median with how far the runs are apart, and the grade.

use vellum_bench::BenchReport;
use vellum_bench::expectation::{ExpectationGrade, GradedFigure, RECORDED_ON};
use vellum_bench::report::BenchRow;

use super::UserInterface;
use super::style::TextStyle;
use super::table::TextTable;
use crate::error::Result;

/// Prints what was measured, on what, and the rows.
pub fn print_bench_report(ui: &UserInterface, report: &BenchReport) -> Result<()> {
    let machine = &report.machine;
    ui.print_line(format!("{}, {} of it, Linux {}", machine.processor, machine.cores, machine.kernel))?;
    let what: Vec<_> = ["path", "store", "filesystem", "device"]
        .iter()
        .filter_map(|name| report.target.get(*name))
        .map(vellum_host::escape::format_path)
        .collect();
    ui.print_line(what.join(", "))?;
    ui.print_line("")?;
    let mut table = TextTable::new([1, 3]);
    for row in &report.rows {
        table.add_row(bench_row_cells(ui.style, row));
    }
    ui.print_lines(table.format_lines())?;
    // A grade means little without the machine whose figures it compares with.
    if report.rows.iter().any(|row| row.graded.is_some()) {
        ui.print_note(format!("expected: what {RECORDED_ON} did, scaled to how fast this machine is"))?;
    }
    // With more processes than cores, the bench did not have the machine to itself.
    if machine.load > machine.cores as f64 {
        ui.print_warning(format!(
            "the machine was busy before the run ({} processes on {} cores): the figures may be too low",
            machine.load, machine.cores
        ))?;
    }
    Ok(())
}

fn bench_row_cells(style: TextStyle, row: &BenchRow) -> [String; 5] {
    let Some(summary) = row.summarize_runs() else { return [(); 5].map(|()| String::new()) };
    let spread = match row.runs.len() {
        // A single run says nothing about how much runs differ.
        0 | 1 => String::new(),
        _ => format!("± {:.0} %", summary.relative_spread() * 100.0),
    };
    let grade = row.graded.as_ref().map_or_else(String::new, |graded| graded_cell(style, graded));
    [row.name.as_str().into(), format_figure(summary.median), row.unit.as_str().into(), spread, grade]
}

fn graded_cell(style: TextStyle, graded: &GradedFigure) -> String {
    let (word, paint): (_, fn(TextStyle, &str) -> String) = match graded.grade {
        ExpectationGrade::Green => ("green", TextStyle::paint_green),
        ExpectationGrade::Yellow => ("yellow", TextStyle::paint_yellow),
        ExpectationGrade::Red => ("red", TextStyle::paint_red),
    };
    let text = format!("{word} (expected {})", format_figure(graded.expected));
    paint(style, &text)
}

/// A figure with the digits that count.
pub fn format_figure(figure: f64) -> String {
    match figure.abs() {
        size if size >= 1000.0 => super::format::format_number(figure.round() as u64),
        size if size >= 100.0 => format!("{figure:.0}"),
        size if size >= 10.0 => format!("{figure:.1}"),
        size if size >= 1.0 => format!("{figure:.2}"),
        _ => format!("{figure:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_that_count() {
        let shown = [1234.5, 123.45, 12.345, 1.2345, 0.012345, 0.0].map(format_figure);
        assert_eq!(shown, ["1,235", "123", "12.3", "1.23", "0.0123", "0.0000"]);
    }
}
