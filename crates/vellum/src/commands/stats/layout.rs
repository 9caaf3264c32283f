//! Figures in groups, on as many columns as the terminal has.
//!
//! Invariant: a figure stands whole on one line, unless it alone is wider than the terminal.

use unicode_width::UnicodeWidthStr;

/// Columns in front of figures: the name of their group, or nothing.
const LABEL: usize = 9;
/// Between two figures of a line.
const GAP: &str = "   ";

/// Figures that belong together.
pub struct FigureGroup {
    /// What they are called.
    pub label: &'static str,
    /// The figures.
    pub figures: Vec<String>,
}

impl FigureGroup {
    /// A group of these figures.
    pub fn new(label: &'static str, figures: impl IntoIterator<Item = String>) -> Self {
        Self { label, figures: figures.into_iter().collect() }
    }

    /// Its lines, none of which is wider than `columns` if that can be.
    pub fn format_lines(&self, columns: usize) -> Vec<String> {
        let mut lines = Vec::new();
        let mut line = format!("{:<LABEL$}", self.label);
        let mut is_empty = true;
        for figure in &self.figures {
            let width = line.width() + GAP.len() + figure.width();
            if !is_empty && width > columns {
                lines.push(std::mem::replace(&mut line, " ".repeat(LABEL)));
                is_empty = true;
            }
            if !is_empty {
                line.push_str(GAP);
            }
            line.push_str(figure);
            is_empty = false;
        }
        lines.push(line);
        lines
    }
}

/// The end of a text that is wider than `columns`: of a path, that tells most.
pub fn keep_end(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let starts = text.char_indices().map(|(start, _)| start);
    let mut rests = starts.filter_map(|start| text.get(start..));
    let kept = rests.find(|rest| rest.width() < columns).unwrap_or_default();
    format!("…{kept}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_do_not_fit_go_to_the_next_line() {
        let group = FigureGroup::new("store", ["received 1.0K/s".to_owned(), "sent 2.0K/s".to_owned()]);
        assert_eq!(group.format_lines(80), ["store    received 1.0K/s   sent 2.0K/s"]);
        assert_eq!(group.format_lines(38), ["store    received 1.0K/s   sent 2.0K/s"]);
        assert_eq!(group.format_lines(37), ["store    received 1.0K/s", "         sent 2.0K/s"]);
        assert_eq!(group.format_lines(5), ["store    received 1.0K/s", "         sent 2.0K/s"]);
    }

    #[test]
    fn of_a_long_text_the_end_is_kept() {
        assert_eq!(keep_end("/mnt/work", 9), "/mnt/work");
        assert_eq!(keep_end("/mnt/work", 6), "…/work");
        assert_eq!(keep_end("日本語", 5), "…本語");
    }
}
