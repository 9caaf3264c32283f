//! Differences as a list for people: a line each, in columns.
//!
//! Invariant: the list is formatted twice, once to measure the columns and once to print, and no line is kept: of a
//! million differences none takes memory here. It needs the order of `StateComparison`: by path, byte by byte.

use vellum_types::FileKind;
use vellum_volume::diff::{ChangeKind, ChangeSide, FileChange};

use super::{aspect_words, change_letter, paint_change};
use crate::error::Result;
use crate::ui::format;
use crate::ui::style::TextStyle;
use crate::ui::table::{CellLimit, ColumnLayout};

/// What is said of a path that counts as deleted because it is ignored from now on.
const IGNORED: &str = "(ignored now)";

/// Columns of a terminal that stay free for what stands around names: letters before them, most remarks behind them.
const BESIDE_NAMES: usize = 30;

/// The name column is not narrower than this on any terminal, columns.
const NARROWEST_NAMES: usize = 20;

/// The name column where the output is not a terminal, columns: wide enough for nearly all names, and so narrow that
/// one name at the limit of the system does not fill a million lines with blanks.
const NAMES_IN_FILES: usize = 120;

/// How wide a column of names may be on a terminal of some width, or in a file.
pub fn limit_name_column(terminal: Option<usize>) -> CellLimit {
    match terminal {
        Some(columns) => CellLimit::NextLine(columns.saturating_sub(BESIDE_NAMES).max(NARROWEST_NAMES)),
        None => CellLimit::OutOfLine(NAMES_IN_FILES),
    }
}

/// Which directories are one line that stands for all that came or went with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CollapsedDirs {
    /// None: each entry has its line.
    None,
    /// Deleted ones.
    Deleted,
    /// New and deleted ones.
    AddedAndDeleted,
}

impl CollapsedDirs {
    fn contains_kind(self, kind: ChangeKind) -> bool {
        match self {
            Self::None => false,
            Self::Deleted => kind == ChangeKind::Deleted,
            Self::AddedAndDeleted => matches!(kind, ChangeKind::Added | ChangeKind::Deleted),
        }
    }
}

/// What a list shows of each difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeDetail {
    /// In which respects it differs.
    Aspects,
    /// Sizes too.
    Sizes,
}

/// A list of differences.
#[derive(Clone, Copy)]
pub struct ChangeList<'a> {
    /// The differences, sorted by path.
    pub changes: &'a [FileChange],
    /// What is left out.
    pub collapsed: CollapsedDirs,
    /// What is said of each.
    pub detail: ChangeDetail,
    /// Colours.
    pub style: TextStyle,
    /// Columns of the terminal; None if the list goes elsewhere.
    pub terminal: Option<usize>,
}

impl ChangeList<'_> {
    /// Prints the list. `show` turns a path into what the user would type; `is_ignored` returns whether something
    /// deleted is there, and ignored.
    pub fn print_lines(
        &self,
        show: impl Fn(&[u8]) -> String,
        is_ignored: impl Fn(&FileChange) -> bool,
        mut print: impl FnMut(String) -> Result<()>,
    ) -> Result<()> {
        let mut layout = ColumnLayout::new([], limit_name_column(self.terminal));
        for (change, _) in self.list_changes() {
            // Remarks are in the last column, behind which nothing has to be aligned, so that they are not
            // measured.
            layout.measure_row(&self.format_cells(change, &show, ""));
        }
        // They are found a second time and not kept: there may be millions.
        for (change, below) in self.list_changes() {
            let mut remark = format_remark(change, below, self.detail);
            if change.kind == ChangeKind::Deleted && is_ignored(change) {
                remark = if remark.is_empty() { IGNORED.into() } else { format!("{remark} {IGNORED}") };
            }
            print(layout.format_row(&self.format_cells(change, &show, &remark)))?;
        }
        Ok(())
    }

    fn list_changes(&self) -> CollapsedChanges<'_> {
        CollapsedChanges {
            rest: self.changes,
            open: OpenDirs { collapsed: self.collapsed, dirs: Vec::new() },
        }
    }

    fn format_cells(&self, change: &FileChange, show: impl Fn(&[u8]) -> String, remark: &str) -> [String; 3] {
        let paint = |text: &str| paint_change(self.style, change.kind, text);
        let slash = if is_dir(change) { "/" } else { "" };
        let mut name = format!("{}{slash}", show(change.path()));
        if let (ChangeKind::Renamed, Some(old)) = (change.kind, &change.old) {
            name = format!("{}{slash} -> {name}", show(&old.path));
        }
        [paint(change_letter(change.kind)), paint(&name), self.style.paint_dim(remark)]
    }
}

fn is_dir(change: &FileChange) -> bool {
    let side = change.new.as_ref().or(change.old.as_ref());
    side.is_some_and(|side| side.kind == FileKind::Dir)
}

/// The differences that have a line, each with the number of those below it that have none.
struct CollapsedChanges<'a> {
    rest: &'a [FileChange],
    open: OpenDirs<'a>,
}

impl<'a> Iterator for CollapsedChanges<'a> {
    type Item = (&'a FileChange, u64);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (change, rest) = self.rest.split_first()?;
            self.rest = rest;
            let is_covered = self.open.is_covered(change);
            self.open.push_dir(change);
            if !is_covered {
                return Some((change, self.open.collapsed.count_below(change, rest)));
            }
        }
    }
}

impl CollapsedDirs {
    /// How many of the differences that follow a directory's own have no line because it stands for them.
    fn count_below(self, top: &FileChange, rest: &[FileChange]) -> u64 {
        let mut open = OpenDirs { collapsed: self, dirs: Vec::new() };
        open.push_dir(top);
        if open.dirs.is_empty() {
            return 0;
        }
        // Not all that follows is below it: 'a-b' sorts between 'a' and 'a/b'.
        let is_below = |path: &[u8]| path.strip_prefix(top.path()).is_some_and(|rest| rest.starts_with(b"/"));
        let first = rest.partition_point(|change| change.path().iter().lt(top.path().iter().chain(b"/")));
        let mut count = 0;
        for change in rest.iter().skip(first).take_while(|change| is_below(change.path())) {
            // A directory that has a line of its own stands for what is below it.
            if open.is_covered(change) {
                open.push_dir(change);
                count += 1;
            }
        }
        count
    }
}

/// Directories that stand for what is below them, as long as something below them can follow. Each path is the
/// beginning of the next one, so there are never more than a path has bytes (twice, for two kinds).
struct OpenDirs<'a> {
    collapsed: CollapsedDirs,
    dirs: Vec<(&'a [u8], ChangeKind)>,
}

impl<'a> OpenDirs<'a> {
    /// Whether the directory above the next difference stands for it.
    fn is_covered(&mut self, change: &FileChange) -> bool {
        let path = change.path();
        // All that sorts from the directory's name up to its last entry begins with its name and, at most, a slash.
        let is_open = |dir: &[u8]| {
            path.strip_prefix(dir).is_some_and(|rest| rest.first().is_none_or(|next| *next <= b'/'))
        };
        while self.dirs.pop_if(|(dir, _)| !is_open(dir)).is_some() {}
        let slash = path.iter().rposition(|byte| *byte == b'/');
        self.dirs.iter().any(|(dir, kind)| Some(dir.len()) == slash && *kind == change.kind)
    }

    /// A directory is to stand for what is below it.
    fn push_dir(&mut self, change: &'a FileChange) {
        if self.collapsed.contains_kind(change.kind) && is_dir(change) {
            self.dirs.push((change.path(), change.kind));
        }
    }
}

fn format_remark(change: &FileChange, below: u64, detail: ChangeDetail) -> String {
    let mut parts = Vec::new();
    if below > 0 {
        parts.push(format!("with {} in it", format::format_count(below, "entry")));
    }
    if detail == ChangeDetail::Sizes {
        parts.extend(format_size_change(change));
    }
    let mut words = aspect_words(change.aspects);
    // A change of content brings a new time with it: only what is worth a word gets one.
    if change.aspects.content {
        words.retain(|word| *word != "time");
    }
    // The letter M alone says that the content differs.
    let obvious = change.kind == ChangeKind::Modified && words == ["content"];
    if !words.is_empty() && !obvious {
        parts.push(words.join(", "));
    }
    parts.join("; ")
}

fn format_size_change(change: &FileChange) -> Option<String> {
    let size = |side: &Option<ChangeSide>| {
        side.as_ref().filter(|side| side.kind == FileKind::File).map(|side| side.size)
    };
    match (size(&change.old), size(&change.new)) {
        (Some(old), Some(new)) if old != new => {
            Some(format!("{} -> {}", format::format_size(old), format::format_size(new)))
        }
        (_, Some(size)) | (Some(size), None) => Some(format::format_size(size)),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests;
