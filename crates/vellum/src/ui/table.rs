//! Columns that line up, whatever the width of what stands in them.

use unicode_width::UnicodeWidthStr;

/// On which side a column's text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnAlignment {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// How wide the columns of a table are, found from its rows without keeping any of them.
#[derive(Debug, Clone)]
pub struct ColumnLayout {
    aligns: Vec<ColumnAlignment>,
    widths: Vec<usize>,
    limit: CellLimit,
}

/// From which width on a cell does not widen its column, columns of the terminal; and what becomes of its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellLimit {
    /// The rest of the row follows, out of line: each row is one line.
    OutOfLine(usize),
    /// The rest of the row stands on the next line, in its columns.
    NextLine(usize),
}

impl CellLimit {
    fn width(self) -> usize {
        match self {
            Self::OutOfLine(width) | Self::NextLine(width) => width,
        }
    }
}

/// Rows of cells. A cell is measured as plain text and may be painted.
pub struct TextTable {
    layout: ColumnLayout,
    rows: Vec<Vec<TableCell>>,
}

/// What stands in one place of a table.
pub struct TableCell {
    width: usize,
    text: String,
}

impl TableCell {
    /// A cell whose text is painted by `paint`.
    pub fn from_painted(plain: &str, paint: impl FnOnce(&str) -> String) -> Self {
        Self { width: plain.width(), text: paint(plain) }
    }
}

impl<T: Into<String>> From<T> for TableCell {
    fn from(text: T) -> Self {
        let text = text.into();
        Self { width: text.width(), text }
    }
}

impl ColumnLayout {
    /// Columns in which nothing was measured.
    pub fn new(aligns: &[ColumnAlignment], limit: CellLimit) -> Self {
        Self { aligns: aligns.to_vec(), widths: vec![0; aligns.len()], limit }
    }

    /// Makes the columns as wide as the cells of a row, as far as the limit allows.
    pub fn measure_row(&mut self, row: &[TableCell]) {
        for (width, cell) in self.widths.iter_mut().zip(row) {
            if cell.width <= self.limit.width() {
                *width = cell.width.max(*width);
            }
        }
    }

    /// A row, without blanks at the ends of its lines.
    pub fn format_row(&self, row: &[TableCell]) -> String {
        let mut line = String::new();
        let mut gap = 0;
        let mut start = 0;
        let mut continues_below = false;
        for ((cell, align), width) in row.iter().zip(&self.aligns).zip(&self.widths) {
            let padding = width.saturating_sub(cell.width);
            let (before, after) = match align {
                ColumnAlignment::Left => (0, padding),
                ColumnAlignment::Right => (padding, 0),
            };
            if !cell.text.is_empty() {
                // The cell before this one was wider than its column: the row goes on below, in its own columns.
                if std::mem::take(&mut continues_below) {
                    line.push('\n');
                    gap = start;
                }
                line.extend(std::iter::repeat_n(' ', gap + before));
                line.push_str(&cell.text);
                gap = after + 2;
                continues_below = cell.width > *width && matches!(self.limit, CellLimit::NextLine(_));
            // A column that is empty in every row takes no room, and no gap either.
            } else if *width > 0 {
                gap += width + 2;
            }
            start += if *width > 0 { width + 2 } else { 0 };
        }
        line
    }
}

impl TextTable {
    /// A table with these columns.
    pub fn new(aligns: &[ColumnAlignment]) -> Self {
        Self::with_limit(aligns, CellLimit::OutOfLine(usize::MAX))
    }

    /// A table in which a cell that is too wide does not widen its column.
    pub fn with_limit(aligns: &[ColumnAlignment], limit: CellLimit) -> Self {
        Self { layout: ColumnLayout::new(aligns, limit), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn add_row(&mut self, cells: impl IntoIterator<Item = TableCell>) {
        let row: Vec<_> = cells.into_iter().collect();
        self.layout.measure_row(&row);
        self.rows.push(row);
    }

    /// The rows, without blanks at the ends of their lines.
    pub fn format_lines(&self) -> Vec<String> {
        self.rows.iter().map(|row| self.layout.format_row(row)).collect()
    }
}

/// Named facts, one a line; a name that repeats is shown once.
pub struct FactList {
    table: TextTable,
    last: &'static str,
}

impl Default for FactList {
    fn default() -> Self {
        Self { table: TextTable::new(&[ColumnAlignment::Left, ColumnAlignment::Left]), last: "" }
    }
}

impl FactList {
    /// Adds one.
    pub fn add_fact(&mut self, name: &'static str, fact: impl Into<String>) {
        let shown = if self.last == name { "" } else { name };
        self.table.add_row([shown.into(), fact.into().into()]);
        self.last = name;
    }

    /// The lines.
    pub fn format_lines(&self) -> Vec<String> {
        self.table.format_lines()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_also_with_wide_and_empty_cells() {
        let mut table =
            TextTable::new(&[ColumnAlignment::Left, ColumnAlignment::Right, ColumnAlignment::Left]);
        table.add_row(["a".into(), "1".into(), "x".into()]);
        table.add_row(["日本".into(), "".into(), "y".into()]);
        table.add_row(["bcd".into(), "100".into(), "".into()]);
        assert_eq!(table.format_lines(), ["a       1  x", "日本       y", "bcd   100"]);
    }

    fn names_and_remarks(limit: CellLimit) -> Vec<String> {
        let mut table = TextTable::with_limit(&[ColumnAlignment::Left; 3], limit);
        table.add_row(["M".into(), "abc".into(), "x".into()]);
        table.add_row(["R".into(), "abcdefgh".into(), "y".into()]);
        table.add_row(["R".into(), "日本".into(), "z".into()]);
        table.add_row(["R".into(), "日本語".into(), "".into()]);
        table.format_lines()
    }

    #[test]
    fn one_long_cell_does_not_push_all_others_aside() {
        let lines = names_and_remarks(CellLimit::OutOfLine(4));
        assert_eq!(lines, ["M  abc   x", "R  abcdefgh  y", "R  日本  z", "R  日本語"]);
    }

    #[test]
    fn what_follows_a_long_cell_stands_in_its_column_on_the_next_line() {
        let lines = names_and_remarks(CellLimit::NextLine(4));
        assert_eq!(lines, ["M  abc   x", "R  abcdefgh\n         y", "R  日本  z", "R  日本語"]);
    }
}
