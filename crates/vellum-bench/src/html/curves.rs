//! Lines through points, between two axes.

use std::fmt::Write;

use super::{escape_html, format_figure};
use crate::report::BenchCurve;

/// How a value becomes a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AxisScale {
    /// From zero, evenly.
    Linear,
    /// By powers; only what is above zero has a place.
    Powers,
}

/// Of the drawing.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 220.0;
/// Room for what stands beside and below the axes.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const ABOVE: f64 = 10.0;
const BELOW: f64 = 34.0;

/// Marks on an axis.
const TICKS: u32 = 4;

/// One axis: from which value to which, and how.
struct ChartAxis {
    scale: AxisScale,
    from: f64,
    to: f64,
}

impl ChartAxis {
    fn from_values(scale: AxisScale, values: impl Iterator<Item = f64> + Clone) -> Self {
        let most = values.clone().fold(0.0, f64::max);
        let least = values.fold(f64::INFINITY, f64::min);
        match scale {
            // An axis from 0 to 0 would divide by zero.
            AxisScale::Linear => Self { scale, from: 0.0, to: if most > 0.0 { most } else { 1.0 } },
            // A single value stands in the middle.
            AxisScale::Powers if most <= least => Self { scale, from: least / 2.0, to: most * 2.0 },
            AxisScale::Powers => Self { scale, from: least, to: most },
        }
    }

    /// Where a value is between the ends, 0 to 1.
    fn position_of(&self, value: f64) -> f64 {
        match self.scale {
            AxisScale::Linear => (value - self.from) / (self.to - self.from),
            AxisScale::Powers => (value / self.from).ln() / (self.to / self.from).ln(),
        }
    }

    /// The value at a part.
    fn value_at(&self, part: f64) -> f64 {
        match self.scale {
            AxisScale::Linear => self.from + part * (self.to - self.from),
            AxisScale::Powers => self.from * (self.to / self.from).powf(part),
        }
    }
}

/// A curve with its axes; None if it has nothing to show.
pub fn draw_curve(curve: &BenchCurve, scale: AxisScale) -> Option<String> {
    // A value of 0 has no place on a logarithmic axis. Such a point is left out, so that the others can be
    // drawn.
    let drawn: Vec<_> = curve.points.iter().copied().filter(|(x, y)| is_drawable(*x, *y, scale)).collect();
    if drawn.is_empty() {
        return None;
    }
    let across = ChartAxis::from_values(scale, drawn.iter().map(|(x, _)| *x));
    let up = ChartAxis::from_values(scale, drawn.iter().map(|(_, y)| *y));
    let mut svg = format!(
        "<figure><figcaption>{0}: {1} against {2}</figcaption>\n\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" aria-label=\"{0}\">",
        escape_html(&curve.name),
        escape_html(&curve.y_unit),
        escape_html(&curve.x_unit)
    );
    svg += &draw_axes(&across, &up, &curve.x_unit);
    let places: Vec<_> =
        drawn.iter().map(|point| (x_coordinate(&across, point.0), y_coordinate(&up, point.1))).collect();
    let path: Vec<_> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    // Writing into a String does not fail.
    let _ = write!(svg, "<polyline class=\"line\" points=\"{}\"/>", path.join(" "));
    for ((x, y), point) in places.iter().zip(&drawn) {
        let _ = write!(
            svg,
            "<circle class=\"point\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"><title>{} {}: {} {}</title></circle>",
            format_figure(point.0),
            escape_html(&curve.x_unit),
            format_figure(point.1),
            escape_html(&curve.y_unit)
        );
    }
    Some(svg + "</svg></figure>\n")
}

fn is_drawable(x: f64, y: f64, scale: AxisScale) -> bool {
    x.is_finite() && y.is_finite() && (scale == AxisScale::Linear || (x > 0.0 && y > 0.0))
}

fn x_coordinate(axis: &ChartAxis, value: f64) -> f64 {
    LEFT + axis.position_of(value) * (WIDTH - LEFT - RIGHT)
}

fn y_coordinate(axis: &ChartAxis, value: f64) -> f64 {
    // In SVG, y grows downwards.
    HEIGHT - BELOW - axis.position_of(value) * (HEIGHT - ABOVE - BELOW)
}

fn draw_axes(across: &ChartAxis, up: &ChartAxis, unit: &str) -> String {
    let right = WIDTH - RIGHT;
    let bottom = HEIGHT - BELOW;
    let mut svg = format!("<path class=\"axis\" d=\"M{LEFT} {ABOVE}V{bottom}H{right}\"/>");
    for tick in 0..=TICKS {
        let part = f64::from(tick) / f64::from(TICKS);
        let x = x_coordinate(across, across.value_at(part));
        let y = y_coordinate(up, up.value_at(part));
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            LEFT - 6.0,
            // Text stands on its base line: about half the height of the digits brings their middle to the line of the grid.
            y + 4.0,
            format_figure(up.value_at(part)),
            bottom + 15.0,
            format_figure(across.value_at(part))
        );
    }
    let _ = write!(
        svg,
        "<text x=\"{right}\" y=\"{}\" text-anchor=\"end\">{}</text>",
        HEIGHT - 4.0,
        escape_html(unit)
    );
    svg
}
