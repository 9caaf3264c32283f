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

/// Rows of cells. A cell is measured as plain text and may be painted.
pub struct TextTable {
    aligns: Vec<ColumnAlignment>,
    limit: usize,
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

impl TextTable {
    /// A table with these columns.
    pub fn new(aligns: &[ColumnAlignment]) -> Self {
        Self { aligns: aligns.to_vec(), limit: usize::MAX, rows: Vec::new() }
    }

    /// Cells wider than this push the rest of their own row aside, not that of all others.
    pub fn with_max_cell_width(mut self, width: usize) -> Self {
        self.limit = width;
        self
    }

    /// Adds a row.
    pub fn add_row(&mut self, cells: impl IntoIterator<Item = TableCell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The lines, without blanks at their ends.
    pub fn format_lines(&self) -> Vec<String> {
        let widths: Vec<usize> = (0..self.aligns.len())
            .map(|column| {
                self.rows
                    .iter()
                    .filter_map(|row| row.get(column))
                    .map(|cell| cell.width)
                    .filter(|width| *width <= self.limit)
                    .max()
            })
            .map(Option::unwrap_or_default)
            .collect();
        self.rows.iter().map(|row| self.format_row(row, &widths)).collect()
    }

    fn format_row(&self, row: &[TableCell], widths: &[usize]) -> String {
        let mut line = String::new();
        let mut gap = 0;
        for ((cell, align), width) in row.iter().zip(&self.aligns).zip(widths) {
            let padding = width.saturating_sub(cell.width);
            let (before, after) = match align {
                ColumnAlignment::Left => (0, padding),
                ColumnAlignment::Right => (padding, 0),
            };
            if !cell.text.is_empty() {
                line.extend(std::iter::repeat_n(' ', gap + before));
                line.push_str(&cell.text);
                gap = after + 2;
            } else if *width > 0 {
                gap += width + 2;
            }
        }
        line
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

    #[test]
    fn one_long_cell_does_not_push_all_others_aside() {
        let mut table =
            TextTable::new(&[ColumnAlignment::Left, ColumnAlignment::Left]).with_max_cell_width(4);
        table.add_row(["abc".into(), "x".into()]);
        table.add_row(["abcdefgh".into(), "y".into()]);
        assert_eq!(table.format_lines(), ["abc  x", "abcdefgh  y"]);
    }
}
