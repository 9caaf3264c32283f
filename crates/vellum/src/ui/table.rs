//! Columns that line up, whatever the width of what stands in them.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// How wide the columns of a table are, found from its rows without keeping any of them.
#[derive(Debug, Clone, Default)]
pub struct ColumnLayout {
    /// Columns of numbers, which stand on the right.
    numbers: Vec<usize>,
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

impl Default for CellLimit {
    fn default() -> Self {
        Self::OutOfLine(usize::MAX)
    }
}

impl CellLimit {
    fn width(self) -> usize {
        match self {
            Self::OutOfLine(width) | Self::NextLine(width) => width,
        }
    }
}

/// Columns between two columns of a table.
const GAP: usize = 2;

/// A column is not made narrower than this, if it was wider, columns of the terminal.
const SHORTENED_MIN: usize = 8;

/// How a table is made to fit on a terminal.
#[derive(Debug, Clone, Copy)]
pub struct TableFit<'a> {
    /// Columns that are left out while the others do not fit: the first of these first.
    pub optional: &'a [usize],
    /// Columns whose cells are then shortened: the first of these first.
    pub shortened: &'a [ShortenedColumn],
}

/// A column whose cells may be shortened.
#[derive(Debug, Clone, Copy)]
pub struct ShortenedColumn {
    number: usize,
    end: KeptEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeptEnd {
    Beginning,
    End,
}

impl ShortenedColumn {
    /// The beginnings of its cells stay, as of texts.
    pub const fn keep_beginning(number: usize) -> Self {
        Self { number, end: KeptEnd::Beginning }
    }

    /// The ends of its cells stay, as of paths.
    pub const fn keep_end(number: usize) -> Self {
        Self { number, end: KeptEnd::End }
    }
}

/// Rows of cells, which may be painted. Columns have text unless they are said to have numbers.
#[derive(Default)]
pub struct TextTable {
    layout: ColumnLayout,
    rows: Vec<Vec<String>>,
}

/// The columns of a terminal that a text takes; the codes that paint it take none.
fn visible_width(text: &str) -> usize {
    let mut parts = text.split('\x1b');
    let plain = parts.next().map_or(0, UnicodeWidthStr::width);
    plain + parts.filter_map(|part| part.split_once('m')).map(|(_, shown)| shown.width()).sum::<usize>()
}

/// A plain text that takes at most so many columns of a terminal: its end is replaced if it is longer.
pub fn shorten_to_width(text: String, columns: usize) -> String {
    if text.width() <= columns {
        return text;
    }
    let mut shown = String::new();
    for letter in text.chars() {
        // One column is left for what says that there is more.
        if shown.width() + letter.width().unwrap_or(0) >= columns {
            break;
        }
        shown.push(letter);
    }
    shown + "…"
}

/// A cell that takes at most so many columns; the codes that paint it stay.
fn shorten_cell(cell: &str, columns: usize, kept: KeptEnd) -> String {
    let mut excess = visible_width(cell).saturating_sub(columns);
    if excess == 0 {
        return cell.into();
    }
    // One more makes room for the mark.
    excess += 1;
    let mut room = columns.saturating_sub(1);
    let mut is_marked = false;
    let mut shown = String::new();
    // Codes for colours have no width, and are all kept: one that ends a colour must not be cut off with the text.
    let mut is_code = false;
    for letter in cell.chars() {
        is_code |= letter == '\x1b';
        let width = letter.width().unwrap_or(0);
        let is_shown = is_code
            || match kept {
                KeptEnd::Beginning => !is_marked && width <= room,
                KeptEnd::End => excess == 0,
            };
        if is_shown {
            shown.push(letter);
        } else if !is_marked {
            shown.push('…');
            is_marked = true;
        }
        if is_code {
            is_code = letter != 'm';
        } else {
            excess = excess.saturating_sub(width);
            room = room.saturating_sub(width);
        }
    }
    shown
}

impl ColumnLayout {
    /// Columns in which nothing was measured; `numbers` are those that stand on the right, counted from 0.
    pub fn new(numbers: impl IntoIterator<Item = usize>, limit: CellLimit) -> Self {
        Self { numbers: numbers.into_iter().collect(), widths: Vec::new(), limit }
    }

    /// Makes the columns as wide as the cells of a row, as far as the limit allows.
    pub fn measure_row(&mut self, row: &[String]) {
        self.widths.resize(row.len().max(self.widths.len()), 0);
        for (width, cell) in self.widths.iter_mut().zip(row) {
            let own = visible_width(cell);
            if own <= self.limit.width() {
                *width = own.max(*width);
            }
        }
    }

    /// A row, without blanks at the ends of its lines.
    pub fn format_row(&self, row: &[String]) -> String {
        let mut line = String::new();
        let mut gap = 0;
        let mut start = 0;
        let mut continues_below = false;
        for (number, (cell, width)) in row.iter().zip(&self.widths).enumerate() {
            let own = visible_width(cell);
            let padding = width.saturating_sub(own);
            let before = if self.numbers.contains(&number) { padding } else { 0 };
            if !cell.is_empty() {
                // The cell before this one was wider than its column: the row goes on below, in its own columns.
                if std::mem::take(&mut continues_below) {
                    line.push('\n');
                    gap = start;
                }
                line.extend(std::iter::repeat_n(' ', gap + before));
                line.push_str(cell);
                gap = padding - before + GAP;
                continues_below = own > *width && matches!(self.limit, CellLimit::NextLine(_));
            // A column that is empty in every row takes no room, and no gap either.
            } else if *width > 0 {
                gap += width + GAP;
            }
            start += if *width > 0 { width + GAP } else { 0 };
        }
        line
    }
}

impl TextTable {
    /// A table with these columns of numbers, counted from 0.
    pub fn new(numbers: impl IntoIterator<Item = usize>) -> Self {
        Self::with_limit(numbers, CellLimit::default())
    }

    /// A table in which a cell that is too wide does not widen its column.
    pub fn with_limit(numbers: impl IntoIterator<Item = usize>, limit: CellLimit) -> Self {
        Self { layout: ColumnLayout::new(numbers, limit), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn add_row<const N: usize>(&mut self, cells: [String; N]) {
        self.layout.measure_row(&cells);
        self.rows.push(cells.into());
    }

    /// Makes the table fit into the columns of a terminal, as far as they are known: no row is wrapped.
    pub fn fit_columns(&mut self, columns: Option<usize>, fit: &TableFit<'_>) {
        let Some(columns) = columns else { return };
        for optional in fit.optional {
            if self.total_width() <= columns {
                break;
            }
            self.rows.iter_mut().filter_map(|row| row.get_mut(*optional)).for_each(String::clear);
        }
        for ShortenedColumn { number, end } in fit.shortened {
            let excess = self.total_width().saturating_sub(columns);
            let widest = self.column_width(*number);
            let width = widest.saturating_sub(excess).max(SHORTENED_MIN);
            if excess > 0 && width < widest {
                for cell in self.rows.iter_mut().filter_map(|row| row.get_mut(*number)) {
                    *cell = shorten_cell(cell, width, *end);
                }
            }
        }
        // Measured again, because cells were shortened or emptied.
        self.layout.widths.clear();
        self.rows.iter().for_each(|row| self.layout.measure_row(row));
    }

    /// The width of the widest cell of a column.
    fn column_width(&self, number: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(number));
        cells.map(|cell| visible_width(cell)).max().unwrap_or(0)
    }

    /// The width of all columns, and what stands between them.
    fn total_width(&self) -> usize {
        let count = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths = (0..count).map(|number| self.column_width(number)).filter(|width| *width > 0);
        widths.map(|width| width + GAP).sum::<usize>().saturating_sub(GAP)
    }

    /// The rows, without blanks at the ends of their lines.
    pub fn format_lines(&self) -> Vec<String> {
        self.rows.iter().map(|row| self.layout.format_row(row)).collect()
    }
}

/// Named facts, one a line; a name that repeats is shown once.
#[derive(Default)]
pub struct FactList {
    table: TextTable,
    last: &'static str,
}

impl FactList {
    /// Adds one.
    pub fn add_fact(&mut self, name: &'static str, fact: impl Into<String>) {
        let shown = if self.last == name { "" } else { name };
        self.table.add_row([shown.into(), fact.into()]);
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
        let mut table = TextTable::new([1]);
        table.add_row(["a".into(), "1".into(), "x".into()]);
        table.add_row(["日本".into(), "".into(), "y".into()]);
        table.add_row(["bcd".into(), "100".into(), "".into()]);
        assert_eq!(table.format_lines(), ["a       1  x", "日本       y", "bcd   100"]);
    }

    #[test]
    fn long_texts_are_shortened_to_the_width_of_the_terminal() {
        assert_eq!(shorten_to_width("abcd".into(), 4), "abcd");
        assert_eq!(shorten_to_width("abcde".into(), 4), "abc…");
        assert_eq!(shorten_to_width("日本語".into(), 4), "日…");
    }

    #[test]
    fn on_a_narrow_terminal_columns_are_left_out_and_then_shortened() {
        let fitted = |columns: usize| {
            let mut table = TextTable::default();
            table.add_row(["id".into(), "2026-01-01".into(), "a/long/path/of/it".into(), "a note".into()]);
            table.add_row(["id".into(), "2026-01-02".into(), "\x1b[31mshort\x1b[0m".into(), "b".into()]);
            let shortened = [ShortenedColumn::keep_beginning(3), ShortenedColumn::keep_end(2)];
            table.fit_columns(Some(columns), &TableFit { optional: &[1], shortened: &shortened });
            table.format_lines()
        };
        assert!(fitted(41)[0].starts_with("id  2026-01-01  a/long/path/of/it  a note"));
        assert_eq!(fitted(40)[0], "id  a/long/path/of/it  a note");
        assert_eq!(fitted(29)[0], "id  a/long/path/of/it  a note");
        assert_eq!(fitted(20), ["id  …h/of/it  a note", "id  \x1b[31mshort\x1b[0m     b"]);
    }

    #[test]
    fn painted_cells_are_shortened_and_stay_painted() {
        let painted = "\x1b[31mabcdef\x1b[0m";
        assert_eq!(shorten_cell(painted, 4, KeptEnd::Beginning), "\x1b[31mabc…\x1b[0m");
        assert_eq!(shorten_cell(painted, 4, KeptEnd::End), "\x1b[31m…def\x1b[0m");
        assert_eq!(shorten_cell("日本語", 4, KeptEnd::Beginning), "日…");
        assert_eq!(shorten_cell("日本語", 4, KeptEnd::End), "…語");
        assert_eq!(shorten_cell("ab", 4, KeptEnd::End), "ab");
    }

    fn names_and_remarks(limit: CellLimit) -> Vec<String> {
        let mut table = TextTable::with_limit([], limit);
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
