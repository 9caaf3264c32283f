//! Box plots: one row's runs on a scale of their own, which begins at zero, so that a small spread looks small.

use std::fmt::Write;

use super::{escape_html, format_figure};
use crate::report::BenchRow;
use crate::statistics::RunSummary;

/// Of the drawing.
const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 30.0;
/// Room for what stands at the ends.
const MARGIN: f64 = 6.0;
/// Where the box begins and ends, from above.
const TOP: f64 = 8.0;
const BOTTOM: f64 = 22.0;
const MIDDLE: f64 = 15.0;

/// The drawing of a row.
pub fn draw_box_plot(row: &BenchRow, summary: RunSummary) -> String {
    // Figures that are all 0 need a scale as well.
    let most = if summary.max > 0.0 { summary.max } else { 1.0 };
    // Bounded, since a figure below 0 would be drawn outside of the picture.
    let place = |figure: f64| MARGIN + (WIDTH - 2.0 * MARGIN) * (figure / most).clamp(0.0, 1.0);
    let RunSummary { min, lower, median, upper, max } = summary;
    let label = format!("{}: {} to {} {}", row.name, format_figure(min), format_figure(max), row.unit);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" aria-label=\"{}\">",
        escape_html(&label)
    );
    let left = place(lower);
    let right = place(upper);
    // Writing into a String does not fail.
    let _ = write!(
        svg,
        "<line class=\"grid\" x1=\"{MARGIN}\" x2=\"{0}\" y1=\"{BOTTOM}\" y2=\"{BOTTOM}\"/>\
         <line class=\"whisker\" x1=\"{1:.1}\" x2=\"{2:.1}\" y1=\"{MIDDLE}\" y2=\"{MIDDLE}\"/>\
         <rect class=\"box\" x=\"{left:.1}\" y=\"{TOP}\" width=\"{3:.1}\" height=\"{4}\"/>\
         <line class=\"median\" x1=\"{5:.1}\" x2=\"{5:.1}\" y1=\"{TOP}\" y2=\"{BOTTOM}\"/>",
        WIDTH - MARGIN,
        place(min),
        place(max),
        // A box without width is not drawn.
        (right - left).max(1.0),
        BOTTOM - TOP,
        place(median)
    );
    for (number, figure) in row.runs.iter().enumerate() {
        // Nor does this: it writes into the same String.
        let _ = write!(
            svg,
            "<circle class=\"run\" cx=\"{:.1}\" cy=\"{MIDDLE}\" r=\"2.5\"><title>run {}: {} {}</title></circle>",
            place(*figure),
            number + 1,
            format_figure(*figure),
            escape_html(&row.unit)
        );
    }
    svg + "</svg>"
}
