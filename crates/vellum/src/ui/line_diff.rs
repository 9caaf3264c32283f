//! Two texts compared line by line, and the hunks of a patch.
//!
//! Invariant: a hunk contains the lines of the texts, byte for byte. A line ends with a newline, as in git. Absent: the
//! search for the differences, which merges use too.

use std::io::{self, Write};
use std::ops::Range;
use std::time::{Duration, Instant};

use similar::{DiffOp, DiffTag, group_diff_ops};
use vellum_volume::merge::text::{diff_lines, split_lines};

/// Longest search for the shortest difference; a longer one is as right.
const SEARCH: Duration = Duration::from_secs(5);

/// Lines around a change.
const CONTEXT: usize = 3;

/// The difference of two texts.
pub struct LineDiff<'t> {
    old: Vec<&'t [u8]>,
    new: Vec<&'t [u8]>,
    steps: Vec<DiffOp>,
}

impl<'t> LineDiff<'t> {
    /// Compares two texts.
    pub fn compare_texts(old: &'t [u8], new: &'t [u8]) -> Self {
        let old = split_lines(old);
        let new = split_lines(new);
        // With a deadline, because two large texts that have little in common take very long; what is found late is a
        // larger diff, and no wrong one.
        let steps = diff_lines(&old, &new, Some(Instant::now() + SEARCH));
        Self { old, new, steps }
    }

    /// Lines that only the new text has.
    pub fn count_added(&self) -> u64 {
        self.changed_steps().map(|step| step.new_range().len() as u64).sum()
    }

    /// Lines that only the old text has.
    pub fn count_removed(&self) -> u64 {
        self.changed_steps().map(|step| step.old_range().len() as u64).sum()
    }

    fn changed_steps(&self) -> impl Iterator<Item = &DiffOp> {
        self.steps.iter().filter(|step| step.tag() != DiffTag::Equal)
    }

    /// Writes the hunks, below a header with the names of both sides; nothing if the texts are equal.
    pub fn write_hunks(&self, out: &mut impl Write, from: &str, to: &str) -> io::Result<()> {
        for (number, hunk) in self.list_hunks().iter().enumerate() {
            if number == 0 {
                write!(out, "--- {from}\n+++ {to}\n")?;
            }
            self.write_hunk(out, hunk)?;
        }
        Ok(())
    }

    /// The hunks, each with the lines around it.
    pub fn list_hunks(&self) -> Vec<LineHunk> {
        let hunks = group_diff_ops(self.steps.clone(), CONTEXT).into_iter();
        hunks.filter(|hunk| !hunk.is_empty()).map(|steps| LineHunk { steps }).collect()
    }

    /// Writes one of the hunks.
    pub fn write_hunk(&self, out: &mut impl Write, hunk: &LineHunk) -> io::Result<()> {
        let old = format_hunk_range(hunk.steps.iter().map(DiffOp::old_range));
        let new = format_hunk_range(hunk.steps.iter().map(DiffOp::new_range));
        writeln!(out, "@@ -{old} +{new} @@")?;
        for step in &hunk.steps {
            if step.tag() == DiffTag::Equal {
                write_lines(out, b' ', &self.old, step.old_range())?;
            } else {
                // In a unified diff, the lines that go stand before those that come.
                write_lines(out, b'-', &self.old, step.old_range())?;
                write_lines(out, b'+', &self.new, step.new_range())?;
            }
        }
        Ok(())
    }

    /// The old text with the hunks that were chosen.
    pub fn apply_hunks(&self, hunks: &[LineHunk], is_chosen: &[bool]) -> Vec<u8> {
        // Each change is in one hunk, and both are in the order of the text.
        let choices = hunks.iter().zip(is_chosen).flat_map(|(hunk, chosen)| {
            let changes = hunk.steps.iter().filter(|step| step.tag() != DiffTag::Equal);
            changes.map(|_| *chosen)
        });
        let mut choices = choices.chain(std::iter::repeat(false));
        let mut text = Vec::new();
        for step in &self.steps {
            let lines = match step.tag() != DiffTag::Equal && choices.next() == Some(true) {
                true => self.new.get(step.new_range()),
                false => self.old.get(step.old_range()),
            };
            text.extend(lines.unwrap_or_default().concat());
        }
        text
    }
}

/// Changes that are close together.
pub struct LineHunk {
    steps: Vec<DiffOp>,
}

/// The lines of one side that a hunk is about: its first, and how many. Of none it is the line before.
fn format_hunk_range(parts: impl Iterator<Item = Range<usize>>) -> String {
    let whole = parts.reduce(|whole, part| whole.start..part.end).unwrap_or_default();
    match whole.len() {
        0 => format!("{},0", whole.start),
        // As in GNU diff, a count of 1 is left out.
        1 => format!("{}", whole.start + 1),
        count => format!("{},{count}", whole.start + 1),
    }
}

fn write_lines(out: &mut impl Write, mark: u8, lines: &[&[u8]], which: Range<usize>) -> io::Result<()> {
    for line in lines.get(which).unwrap_or_default() {
        out.write_all(&[mark])?;
        out.write_all(line)?;
        if !line.ends_with(b"\n") {
            // 'patch' and 'git apply' know this mark. Without it, they would add a newline that the file does not
            // have.
            out.write_all(b"\n\\ No newline at end of file\n")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn hunks(old: &[u8], new: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        LineDiff::compare_texts(old, new).write_hunks(&mut out, "a/x", "b/x").unwrap();
        out
    }

    /// What `patch` makes of a text.
    fn apply(old: &[u8], patch: &[u8]) -> Vec<u8> {
        let old = split_lines(old);
        let mut made: Vec<u8> = Vec::new();
        let mut next = 0;
        for line in patch.split_inclusive(|byte| *byte == b'\n').skip(2) {
            match line[0] {
                b'@' => {
                    let text = std::str::from_utf8(line).unwrap();
                    let range = text.split(' ').nth(1).unwrap().trim_start_matches('-');
                    let mut numbers = range.split(',').map(|number| number.parse::<usize>().unwrap());
                    let start = numbers.next().unwrap();
                    let start = if numbers.next() == Some(0) { start } else { start - 1 };
                    made.extend(old[next..start].concat());
                    next = start;
                }
                b'\\' => assert_eq!(made.pop(), Some(b'\n')),
                b'+' => made.extend(&line[1..]),
                mark => {
                    assert!(line[1..].starts_with(old[next].strip_suffix(b"\n").unwrap_or(old[next])));
                    next += 1;
                    if mark == b' ' {
                        made.extend(&line[1..]);
                    }
                }
            }
        }
        made.extend(old[next..].concat());
        made
    }

    #[test]
    fn what_is_patched_is_the_new_text() {
        let mut random = 1_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for _ in 0..2000 {
            let mut text = || -> Vec<u8> {
                let lines =
                    (0..next(30)).map(|_| [b"a\n", b"b\n", b"c\n", b"\r\n"][next(4) as usize].to_vec());
                let mut text = lines.collect::<Vec<_>>().concat();
                if next(3) == 0 {
                    text.extend(b"end");
                }
                text
            };
            let old = text();
            let new = text();
            let patch = hunks(&old, &new);
            let made = if patch.is_empty() { old.clone() } else { apply_unterminated(&old, &patch) };
            assert_eq!(made, new, "{}", String::from_utf8_lossy(&patch));
        }
    }

    /// A removed last line without a newline is followed by the same note as an added one.
    fn apply_unterminated(old: &[u8], patch: &[u8]) -> Vec<u8> {
        let note = b"\\ No newline at end of file\n";
        let lines: Vec<_> = split_lines(patch);
        let kept = lines
            .iter()
            .enumerate()
            .filter(|(at, line)| !(*line == note && *at > 0 && lines[at - 1].first() == Some(&b'-')));
        apply(old, &kept.map(|(_, line)| *line).collect::<Vec<_>>().concat())
    }

    #[test]
    fn hunks_are_applied_one_by_one() {
        let old: Vec<u8> = (0..40).flat_map(|n| format!("{n}\n").into_bytes()).collect();
        let text = String::from_utf8(old.clone()).unwrap();
        let first = text.replace("\n3\n", "\nthree\n");
        let second = text.replace("\n30\n", "\n30\nmore\n");
        let both = first.replace("\n30\n", "\n30\nmore\n");
        let diff = LineDiff::compare_texts(&old, both.as_bytes());
        let hunks = diff.list_hunks();
        assert_eq!(hunks.len(), 2);
        for (chosen, made) in [
            ([false, false], &text),
            ([true, false], &first),
            ([false, true], &second),
            ([true, true], &both),
        ] {
            assert_eq!(diff.apply_hunks(&hunks, &chosen), made.as_bytes(), "{chosen:?}");
        }
    }

    #[test]
    fn lines_are_counted() {
        let diff = LineDiff::compare_texts(b"a\nb\nc\n", b"a\nx\ny\nc\nd");
        assert_eq!((diff.count_added(), diff.count_removed()), (3, 1));
        assert!(hunks(b"same\n", b"same\n").is_empty());
    }

    #[test]
    fn a_text_that_is_no_utf_8_is_not_changed_by_the_patch() {
        let patch = hunks(b"caf\xe9\n", b"caf\xe9s\n");
        assert_eq!(patch, b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-caf\xe9\n+caf\xe9s\n");
        let patch = hunks(b"a\rb\n", b"a\rc\n");
        assert_eq!(patch, b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\rb\n+a\rc\n");
    }
}
