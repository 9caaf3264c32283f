//! A report as one page: box plots of the runs, throughput while time passes, cost against files and bytes.
//!
//! Invariant: the page is whole in itself. It names no address, holds no script and draws with what every browser has,
//! so that it shows the same without a network and years later. What comes from a report is escaped.

mod boxes;
mod curves;

use std::fmt::Write;

use crate::expectation::ExpectationGrade;
use crate::report::{BenchReport, BenchRow};

/// How the page looks; light and dark as the reader has it.
const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2430;--dim:#66717f;--paper:#fff;--rule:#d8dee6;--mark:#2b6cb0;--fill:#bcd6f2}
@media(prefers-color-scheme:dark){:root{--ink:#e4e9f0;--dim:#98a4b3;--paper:#12161c;--rule:#303844;--mark:#7db5ee;--fill:#24405f}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:62rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin-bottom:0}h2{font-size:1.1rem;margin-top:2rem}
p,dl,figcaption{color:var(--dim)}dl{display:grid;grid-template-columns:max-content 1fr;gap:0 1rem}dd{margin:0;color:var(--ink)}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--rule)}
td.number{text-align:right;font-variant-numeric:tabular-nums}
figure{margin:1rem 0}svg{max-width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:var(--dim)}
.axis,.whisker{stroke:var(--dim);fill:none}.grid{stroke:var(--rule)}.box{fill:var(--fill);stroke:var(--mark)}
.median{stroke:var(--mark);stroke-width:2.5}.run,.point{fill:var(--mark)}.line{fill:none;stroke:var(--mark);stroke-width:2}
.green{color:#2f855a}.yellow{color:#b7791f}.red{color:#c53030}
";

/// The page of a report.
#[must_use]
pub fn render_page(report: &BenchReport) -> String {
    let title = format!("Vellum bench: {}", report.bench);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{0}</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
        escape_html(&title)
    );
    page += &render_facts(report);
    page += &render_section(
        "Runs",
        "Each mark is a run; the box holds the middle half, its line is the median.",
        &render_table(report),
    );
    let curves = |kind: curves::AxisScale, list: &[crate::report::BenchCurve]| -> String {
        list.iter().filter_map(|curve| curves::draw_curve(curve, kind)).collect()
    };
    page += &render_section(
        "Throughput over time",
        "The last run, all threads together.",
        &curves(curves::AxisScale::Linear, &report.timelines),
    );
    page += &render_section(
        "Cost by size",
        "Both axes are logarithmic: a slope of 1 means linear cost.",
        &curves(curves::AxisScale::Powers, &report.scaling),
    );
    page + "</body>\n</html>\n"
}

fn render_section(title: &str, words: &str, content: &str) -> String {
    // Not every bench has curves, and a heading without anything below it says nothing.
    if content.is_empty() {
        return String::new();
    }
    format!("<section>\n<h2>{title}</h2>\n<p>{words}</p>\n{content}</section>\n")
}

fn render_facts(report: &BenchReport) -> String {
    let machine = &report.machine;
    let mut text = String::from("<dl>\n");
    let mut add = |name: &str, fact: &str| {
        // Writing into a String does not fail.
        let _ = writeln!(text, "<dt>{}</dt><dd>{}</dd>", escape_html(name), escape_html(fact));
    };
    for (name, fact) in &report.target {
        add(name, fact);
    }
    add("processor", &format!("{}, {} of it", machine.processor, machine.cores));
    add("kernel", &machine.kernel);
    add("load before", &machine.load.to_string());
    let yardsticks = machine.yardsticks;
    add("copies memory at", &format!("{} MiB/s", format_figure(yardsticks.copy)));
    add("system calls", &format!("{} a second", format_figure(yardsticks.calls)));
    for (name, number) in &report.parameters {
        add(&name.replace('_', " "), &number.to_string());
    }
    text + "</dl>\n"
}

fn render_table(report: &BenchReport) -> String {
    let mut text = String::new();
    for row in &report.rows {
        let Some(summary) = row.summarize_runs() else { continue };
        // Writing into a String does not fail.
        let _ = writeln!(
            text,
            "<tr><td>{}</td><td class=\"number\">{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape_html(&row.name),
            format_figure(summary.median),
            escape_html(&row.unit),
            render_grade(row),
            boxes::draw_box_plot(row, summary)
        );
    }
    if text.is_empty() {
        return text;
    }
    format!(
        "<table>\n<tr><th></th><th>median</th><th></th><th>expected</th><th>runs</th></tr>\n{text}</table>\n"
    )
}

fn render_grade(row: &BenchRow) -> String {
    let Some(graded) = &row.graded else { return String::new() };
    let class = match graded.grade {
        ExpectationGrade::Green => "green",
        ExpectationGrade::Yellow => "yellow",
        ExpectationGrade::Red => "red",
    };
    format!(
        "<span class=\"{class}\" title=\"recorded on {}, scaled to this machine\">{class}</span> ({})",
        escape_html(&graded.recorded_on),
        format_figure(graded.expected)
    )
}

/// A figure with three digits that count.
fn format_figure(figure: f64) -> String {
    match figure.abs() {
        0.0 => "0".into(),
        size if size >= 100.0 => format!("{figure:.0}"),
        size if size >= 10.0 => format!("{figure:.1}"),
        size if size >= 1.0 => format!("{figure:.2}"),
        _ => format!("{figure:.3e}"),
    }
}

/// Text as HTML has it, in elements and in attributes.
fn escape_html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use crate::report::{BenchCurve, BetterDirection};

    use super::*;

    fn report() -> BenchReport {
        let target = [("path".to_owned(), "/tmp/<script>alert('x')</script>".to_owned())].into();
        let mut report = BenchReport::new("filesystem", target, &[("runs", 3)]);
        [3.0, 1.0, 2.0]
            .into_iter()
            .for_each(|figure| report.add_figure("big & write", "MiB/s", BetterDirection::Higher, figure));
        let curve = |points: &[(f64, f64)]| BenchCurve {
            name: "c".into(),
            x_unit: "s".into(),
            y_unit: "MiB/s".into(),
            points: points.to_vec(),
        };
        report.timelines = vec![curve(&[(0.0, 1.0), (1.0, 2.0)])];
        report.scaling = vec![curve(&[(1.0, 0.01), (1000.0, 10.0)]), curve(&[])];
        report
    }

    #[test]
    fn everything_is_drawn_and_what_comes_from_outside_is_escaped() {
        let page = render_page(&report());
        for mark in
            ["class=\"box\"", "class=\"median\"", "class=\"line\"", "class=\"point\"", "big &amp; write"]
        {
            assert!(page.contains(mark), "{mark}");
        }
        assert_eq!(page.matches("class=\"run\"").count(), 3);
        assert_eq!(page.matches("class=\"line\"").count(), 2);
        assert!(!page.contains("<script"));
        assert!(!page.contains("=\"NaN") && !page.contains("=\"inf") && !page.contains(">inf"));
    }

    #[test]
    fn no_address_is_named() {
        let page = render_page(&report());
        for word in ["http:", "https:", "//", "url(", "@import", "src="] {
            assert!(!page.contains(word), "{word}");
        }
    }

    #[test]
    fn an_empty_report_is_a_page() {
        let page = render_page(&BenchReport::new("x", Default::default(), &[]));
        assert!(page.ends_with("</html>\n") && !page.contains("<table>"));
    }
}
