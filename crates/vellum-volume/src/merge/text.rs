//! Three-way merges of text, line by line.
//!
//! Invariants: the result does not depend on the order of the sides but for the order of labelled versions in a
//! conflict; a change of one side alone is in the result; equal changes of both sides are one. Lines keep their bytes,
//! line ends included. Deliberately absent: a deadline of merges, which would make the result depend on the machine;
//! other algorithms than Myers'.

use std::ops::Range;
use std::time::Instant;

use similar::algorithms::{Capture, Compact, IdentifyDistinct, Replace, myers};
use similar::{DiffOp, DiffTag};

/// Longest file that is merged line by line, bytes. Longer ones are seldom text that people edit.
pub const TEXT_MAX: u64 = 16 << 20;

/// Bytes at the beginning of a file in which a NUL tells that it is no text: what git looks at.
const TEXT_PROBE: usize = 8000;

/// What a version is called in conflict markers.
#[derive(Debug, Clone, Copy)]
pub struct TextVersion<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Its name.
    pub label: &'a str,
}

/// A merged text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergedText {
    /// Its bytes, with markers around what conflicts.
    pub bytes: Vec<u8>,
    /// Regions that both versions changed differently.
    pub conflicts: usize,
}

/// Whether a file looks like text.
#[must_use]
pub fn is_text(bytes: &[u8]) -> bool {
    !bytes.iter().take(TEXT_PROBE).any(|byte| *byte == 0)
}

/// Whether a text has lines that look like the markers of a conflict.
#[must_use]
pub fn has_conflict_markers(bytes: &[u8]) -> bool {
    let mut has_start = false;
    let mut has_end = false;
    for line in bytes.split(|byte| *byte == b'\n') {
        has_start |= line.starts_with(b"<<<<<<< ");
        // In this order, and without the line `=======`, which underlines titles in many texts.
        has_end |= has_start && line.starts_with(b">>>>>>> ");
    }
    has_end
}

/// A region in which one version differs from the base: lines of the base, and lines of the version.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ChangedRegion {
    base: Range<usize>,
    version: Range<usize>,
}

/// One version while it is merged: its lines, and the regions that were not merged yet.
struct VersionCursor<'a> {
    lines: Vec<&'a [u8]>,
    regions: std::vec::IntoIter<ChangedRegion>,
    next: Option<ChangedRegion>,
    /// Lines of the version less lines of the base, up to the regions that were merged.
    shift: isize,
}

impl<'a> VersionCursor<'a> {
    fn new(base: &[&'a [u8]], bytes: &'a [u8]) -> Self {
        let lines = split_lines(bytes);
        let mut regions = find_changed_regions(&diff_lines(base, &lines, None)).into_iter();
        let next = regions.next();
        Self { lines, regions, next, shift: 0 }
    }

    /// Takes the next region into a group that ends at `end`, if it overlaps or touches that.
    fn take_touching(&mut self, end: &mut usize) -> bool {
        // Adjacent changes are one region, too: no common line between them shows that they are independent.
        let Some(region) = self.next.take_if(|region| region.base.start <= *end) else { return false };
        *end = (*end).max(region.base.end);
        self.shift += signed_len(&region.version) - signed_len(&region.base);
        self.next = self.regions.next();
        true
    }

    /// The lines that this version has in place of lines of the base. `before` is the shift at the beginning.
    fn lines_for(&self, base: &Range<usize>, before: isize) -> &[&'a [u8]] {
        let start = base.start.saturating_add_signed(before);
        let end = base.end.saturating_add_signed(self.shift);
        self.lines.get(start..end).unwrap_or_default()
    }
}

fn signed_len(range: &Range<usize>) -> isize {
    isize::try_from(range.len()).unwrap_or(isize::MAX)
}

/// Splits a text into lines, each with its line end.
#[must_use]
pub fn split_lines(bytes: &[u8]) -> Vec<&[u8]> {
    bytes.split_inclusive(|byte| *byte == b'\n').collect()
}

/// Compares two texts line by line. If the deadline passes, the differences are correct but not the shortest.
#[must_use]
pub fn diff_lines(old: &[&[u8]], new: &[&[u8]], deadline: Option<Instant>) -> Vec<DiffOp> {
    // The parts of `similar` are combined here: its `TextDiff` and `capture_diff_slices` choose the algorithm at run
    // time, which compiles all of them into the program for each type of line. Equal lines get equal numbers, which
    // are compared faster than lines.
    let numbers = IdentifyDistinct::<u32>::new(old, 0..old.len(), new, 0..new.len());
    let old_numbers = numbers.old_lookup();
    let new_numbers = numbers.new_lookup();
    let mut steps = Compact::new(Replace::new(Capture::new()), old_numbers, new_numbers);
    let Ok(()) = myers::diff_deadline(
        &mut steps,
        old_numbers,
        numbers.old_range(),
        new_numbers,
        numbers.new_range(),
        deadline,
    );
    steps.into_inner().into_inner().into_ops()
}

fn find_changed_regions(ops: &[DiffOp]) -> Vec<ChangedRegion> {
    let mut regions: Vec<ChangedRegion> = Vec::new();
    for op in ops.iter().filter(|op| op.tag() != DiffTag::Equal) {
        let region = ChangedRegion { base: op.old_range(), version: op.new_range() };
        // Operations without an equal line between them are one change, even if the comparison reports a deletion and an
        // insertion.
        match regions.last_mut() {
            Some(last) if last.base.end == region.base.start && last.version.end == region.version.start => {
                last.base.end = region.base.end;
                last.version.end = region.version.end;
            }
            Some(_) | None => regions.push(region),
        }
    }
    regions
}

/// Merges two versions of a text.
#[must_use]
pub fn merge_texts(base: &[u8], first: TextVersion<'_>, second: TextVersion<'_>) -> MergedText {
    let lines = split_lines(base);
    let mut a = VersionCursor::new(&lines, first.bytes);
    let mut b = VersionCursor::new(&lines, second.bytes);
    let mut merged = MergedText { bytes: Vec::new(), conflicts: 0 };
    let mut at = 0;
    loop {
        let starts = [&a.next, &b.next].into_iter().flatten().map(|region| region.base.start);
        let Some(start) = starts.min() else { break };
        push_lines(&mut merged.bytes, lines.get(at..start).unwrap_or_default());
        // With the shifts before the region, its first line is found in each version, and with those after it, its
        // last.
        let a_before = a.shift;
        let b_before = b.shift;
        let mut end = start;
        let mut is_from_a = false;
        let mut is_from_b = false;
        loop {
            // A region that is taken may reach further, so that it touches another one of the other version.
            let has_a = a.take_touching(&mut end);
            let has_b = b.take_touching(&mut end);
            is_from_a |= has_a;
            is_from_b |= has_b;
            if !has_a && !has_b {
                break;
            }
        }
        let region = start..end;
        let a_lines = a.lines_for(&region, a_before);
        let b_lines = b.lines_for(&region, b_before);
        match (is_from_a, is_from_b) {
            (true, false) => push_lines(&mut merged.bytes, a_lines),
            // A region is never of neither: then it comes from the second alone.
            (false, _) => push_lines(&mut merged.bytes, b_lines),
            (true, true) if a_lines == b_lines => push_lines(&mut merged.bytes, a_lines),
            (true, true) => {
                merged.conflicts += 1;
                let a = RegionLines { label: first.label, lines: a_lines };
                let b = RegionLines { label: second.label, lines: b_lines };
                push_conflict(&mut merged.bytes, &a, &b);
            }
        }
        at = end;
    }
    push_lines(&mut merged.bytes, lines.get(at..).unwrap_or_default());
    merged
}

fn push_lines(out: &mut Vec<u8>, lines: &[&[u8]]) {
    lines.iter().for_each(|line| out.extend_from_slice(line));
}

/// What a version has in a region.
struct RegionLines<'a> {
    label: &'a str,
    lines: &'a [&'a [u8]],
}

/// Writes both versions of a region, but for the lines that both begin or end with.
fn push_conflict(out: &mut Vec<u8>, first: &RegionLines<'_>, second: &RegionLines<'_>) {
    let mut a = first.lines;
    let mut b = second.lines;
    while let (Some((x, a_rest)), Some((y, b_rest))) = (a.split_first(), b.split_first())
        && x == y
    {
        out.extend_from_slice(x);
        a = a_rest;
        b = b_rest;
    }
    let mut tail = Vec::new();
    while let (Some((x, a_rest)), Some((y, b_rest))) = (a.split_last(), b.split_last())
        && x == y
    {
        tail.push(*x);
        a = a_rest;
        b = b_rest;
    }
    // A marker begins a line: the last line of a version may have no newline.
    end_line(out);
    out.extend_from_slice(format!("<<<<<<< {}\n", first.label).as_bytes());
    push_lines(out, a);
    end_line(out);
    out.extend_from_slice(b"=======\n");
    push_lines(out, b);
    end_line(out);
    out.extend_from_slice(format!(">>>>>>> {}\n", second.label).as_bytes());
    tail.iter().rev().for_each(|line| out.extend_from_slice(line));
}

/// A marker begins a line, also after one that had no end.
fn end_line(out: &mut Vec<u8>) {
    if out.last().is_some_and(|last| *last != b'\n') {
        out.push(b'\n');
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]
mod tests;
