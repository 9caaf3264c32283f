//! Text patches in git's extended format: `git apply` and `patch -p1` take them.
//!
//! What a patch cannot express (owners, times, extended attributes, directories, special files, binary content) stands
//! in lines that begin with `#`, which both skip; nothing is left out silently.

use std::io::{self, Write};

use vellum_host::escape::is_invisible_char;
use vellum_types::FileKind;
use vellum_volume::diff::{ChangeKind, ChangeSide, FileChange};

use super::changes;
use super::line_diff::LineDiff;

/// Bytes at the beginning of a file in which a NUL means that it is no text: what git looks at.
const TEXT_PROBE: usize = 8000;

/// The content of one side.
pub enum PatchContent {
    /// All of it, and the mode bits.
    Whole {
        /// Bytes; a symlink's target.
        bytes: Vec<u8>,
        /// Mode bits.
        mode: u32,
    },
    /// More than anyone reads in a patch.
    TooLarge,
    /// A directory, a device, a fifo, a socket.
    None,
}

impl PatchContent {
    /// The content, if it is a text.
    pub fn as_text(&self) -> Option<&[u8]> {
        match self {
            // Git, too, takes content for binary if a NUL is near its beginning.
            Self::Whole { bytes, .. } if !bytes.iter().take(TEXT_PROBE).any(|byte| *byte == 0) => Some(bytes),
            Self::Whole { .. } | Self::TooLarge | Self::None => None,
        }
    }

    fn file_mode(&self) -> Option<u32> {
        match self {
            Self::Whole { mode, .. } => Some(*mode),
            Self::TooLarge | Self::None => None,
        }
    }
}

/// Lines added and removed; none if a side is no text.
pub fn count_changed_lines(old: &PatchContent, new: &PatchContent) -> Option<(u64, u64)> {
    let old = text_or_empty(old)?;
    let new = text_or_empty(new)?;
    let diff = LineDiff::compare_texts(old, new);
    Some((diff.count_added(), diff.count_removed()))
}

fn text_or_empty(content: &PatchContent) -> Option<&[u8]> {
    match content {
        // A side that does not exist has no lines.
        PatchContent::None => Some(b""),
        content => content.as_text(),
    }
}

/// Writes the patch of one file.
pub fn write_patch(
    out: &mut impl Write,
    change: &FileChange,
    old: &PatchContent,
    new: &PatchContent,
) -> io::Result<()> {
    // Git's format of patches knows files and symlinks, and a change of one into the other only as two changes.
    let is_patchable = |side: &Option<ChangeSide>| {
        side.as_ref().is_none_or(|side| matches!(side.kind, FileKind::File | FileKind::Symlink))
    };
    let same_kind =
        change.old.as_ref().zip(change.new.as_ref()).is_none_or(|(old, new)| old.kind == new.kind);
    let name = quote_git_path(b"", change.path());
    let words = changes::aspect_words(change.aspects);
    if !is_patchable(&change.old) || !is_patchable(&change.new) || !same_kind {
        return write_unpatchable_note(out, change, &name, &words);
    }
    let beside: Vec<_> =
        words.iter().copied().filter(|word| matches!(*word, "owner" | "xattr" | "time")).collect();
    let only_beside = change.kind == ChangeKind::Modified && beside.len() == words.len();
    // A patch cannot express these differences, and a header without a change in it would be refused.
    if !change.aspects.content && only_beside {
        return writeln!(out, "# {name}: {} differs", beside.join(", "));
    }
    write_patch_header(out, change, old, new)?;
    write_patch_hunks(out, change, old, new)
}

fn write_unpatchable_note(
    out: &mut impl Write,
    change: &FileChange,
    name: &str,
    words: &[&str],
) -> io::Result<()> {
    let noun = |side: &Option<ChangeSide>| {
        side.as_ref().map_or("nothing", |side| vellum_volume::tree::file_kind_name(side.kind))
    };
    let old = noun(&change.old);
    let new = noun(&change.new);
    // 'git apply' and 'patch' pass over lines that are no part of a patch.
    match (&change.old, change.kind) {
        (_, ChangeKind::Added) => writeln!(out, "# {name}: {new} was added"),
        (_, ChangeKind::Deleted) => writeln!(out, "# {name}: {old} was deleted"),
        (Some(side), ChangeKind::Renamed) => {
            writeln!(out, "# {name}: {new} was renamed from {}", quote_git_path(b"", &side.path))
        }
        _ if old != new => writeln!(out, "# {name}: {old} became {new}"),
        _ => writeln!(out, "# {name}: {} of {new} differs", words.join(", ")),
    }
}

fn write_patch_header(
    out: &mut impl Write,
    change: &FileChange,
    old: &PatchContent,
    new: &PatchContent,
) -> io::Result<()> {
    let path = |side: &Option<ChangeSide>| side.as_ref().map_or(change.path(), |side| &side.path).to_vec();
    let old_path = path(&change.old);
    let new_path = path(&change.new);
    writeln!(out, "diff --git {} {}", quote_git_path(b"a/", &old_path), quote_git_path(b"b/", &new_path))?;
    let full = |side: &Option<ChangeSide>, mode: Option<u32>| {
        let link = side.as_ref().is_some_and(|side| side.kind == FileKind::Symlink);
        // Git has one mode for all symlinks.
        if link { "120000".into() } else { format!("100{:03o}", mode.unwrap_or(0o644) & 0o777) }
    };
    let old_mode = full(&change.old, old.file_mode());
    let new_mode = full(&change.new, new.file_mode());
    match change.kind {
        ChangeKind::Added => writeln!(out, "new file mode {new_mode}")?,
        ChangeKind::Deleted => writeln!(out, "deleted file mode {old_mode}")?,
        ChangeKind::Modified | ChangeKind::Renamed if old_mode != new_mode => {
            writeln!(out, "old mode {old_mode}\nnew mode {new_mode}")?;
        }
        ChangeKind::Modified | ChangeKind::Renamed => {}
    }
    if change.kind == ChangeKind::Renamed {
        writeln!(
            out,
            "rename from {}\nrename to {}",
            quote_git_path(b"", &old_path),
            quote_git_path(b"", &new_path)
        )?;
    }
    Ok(())
}

fn write_patch_hunks(
    out: &mut impl Write,
    change: &FileChange,
    old: &PatchContent,
    new: &PatchContent,
) -> io::Result<()> {
    let label = |side: &Option<ChangeSide>, prefix: &[u8]| match side {
        // By this name, 'git apply' and 'patch' recognise a side that does not exist.
        None => "/dev/null".into(),
        Some(side) => {
            let name = quote_git_path(prefix, &side.path);
            // A tab ends a name that has blanks in it, as in git.
            if name.contains(' ') { format!("{name}\t") } else { name }
        }
    };
    let from = label(&change.old, b"a/");
    let to = label(&change.new, b"b/");
    if matches!((old, new), (PatchContent::TooLarge, _) | (_, PatchContent::TooLarge)) {
        return writeln!(out, "# {from} and {to} differ, and are too large for a patch");
    }
    let (Some(old), Some(new)) = (text_or_empty(old), text_or_empty(new)) else {
        // The sentence that git writes: programs that read patches look for it.
        return writeln!(out, "Binary files {} and {} differ", from.trim_end(), to.trim_end());
    };
    LineDiff::compare_texts(old, new).write_hunks(out, &from, &to)
}

/// A patch with its lines coloured by what they are.
pub fn paint_patch(patch: &[u8]) -> Vec<u8> {
    let mut painted = Vec::with_capacity(patch.len() * 5 / 4);
    for line in patch.split_inclusive(|byte| *byte == b'\n') {
        let code: &[u8] = match line.first() {
            Some(b'+') => b"\x1b[32m",
            Some(b'-') => b"\x1b[31m",
            Some(b'@') => b"\x1b[36m",
            Some(b'#') => b"\x1b[2m",
            // A backslash begins the remark that the last line has no line feed.
            Some(b' ' | b'\\') | None => b"",
            Some(_) => b"\x1b[1m",
        };
        // The colour ends before the line feed, so that no pager carries it into the next line.
        let (text, end) = match line.strip_suffix(b"\n") {
            Some(text) => (text, &b"\n"[..]),
            None => (line, &b""[..]),
        };
        let reset: &[u8] = if code.is_empty() { b"" } else { b"\x1b[0m" };
        painted.extend([code, text, reset, end].into_iter().flatten());
    }
    painted
}

/// A path as git writes it in patches: in quotes, with octal escapes, if it has characters that need them.
fn quote_git_path(prefix: &[u8], path: &[u8]) -> String {
    let full = [prefix, path].concat();
    // What a terminal would not show is escaped as well: git reads every byte in octal.
    match std::str::from_utf8(&full) {
        Ok(text)
            if !text.chars().any(|c| c.is_control() || is_invisible_char(c) || matches!(c, '"' | '\\')) =>
        {
            return text.into();
        }
        _ => {}
    }
    let mut quoted = String::from("\"");
    for byte in full {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', char::from(byte)]),
            b'\n' => quoted.push_str("\\n"),
            b'\t' => quoted.push_str("\\t"),
            0x20..=0x7e => quoted.push(char::from(byte)),
            other => quoted.push_str(&format!("\\{other:03o}")),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use vellum_types::Ino;
    use vellum_volume::diff::ChangeAspects;

    fn side(path: &str, kind: FileKind) -> Option<ChangeSide> {
        Some(ChangeSide { path: path.into(), ino: Ino(2), kind, size: 0 })
    }

    fn whole(text: &str, mode: u32) -> PatchContent {
        PatchContent::Whole { bytes: text.into(), mode }
    }

    fn patch(change: &FileChange, old: &PatchContent, new: &PatchContent) -> String {
        let mut out = Vec::new();
        write_patch(&mut out, change, old, new)
            .map(|()| String::from_utf8_lossy(&out).into_owned())
            .unwrap_or_default()
    }

    #[test]
    fn a_modified_file_has_hunks_and_modes() {
        let aspects = ChangeAspects { content: true, mode: true, ..ChangeAspects::default() };
        let old = side("x", FileKind::File);
        let new = side("x", FileKind::File);
        let change = FileChange { kind: ChangeKind::Modified, old, new, aspects };
        let text = patch(&change, &whole("a\nb\n", 0o644), &whole("a\nc", 0o755));
        let expected = "diff --git a/x b/x\nold mode 100644\nnew mode 100755\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn an_added_file_comes_from_nothing() {
        let change = FileChange {
            kind: ChangeKind::Added,
            old: None,
            new: side("n", FileKind::File),
            aspects: ChangeAspects::default(),
        };
        let text = patch(&change, &PatchContent::None, &whole("a\n", 0o644));
        assert_eq!(
            text,
            "diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+a\n"
        );
    }

    #[test]
    fn what_a_patch_cannot_say_is_remarked() {
        let aspects = ChangeAspects { mode: true, ..ChangeAspects::default() };
        let old = side("d", FileKind::Dir);
        let new = side("d", FileKind::Dir);
        let change = FileChange { kind: ChangeKind::Modified, old, new, aspects };
        assert_eq!(
            patch(&change, &PatchContent::None, &PatchContent::None),
            "# d: mode of a directory differs\n"
        );
        let aspects = ChangeAspects { time: true, ..ChangeAspects::default() };
        let old = side("f", FileKind::File);
        let new = side("f", FileKind::File);
        let change = FileChange { kind: ChangeKind::Modified, old, new, aspects };
        assert_eq!(patch(&change, &whole("", 0), &whole("", 0)), "# f: time differs\n");
    }

    #[test]
    fn odd_names_are_quoted_as_git_does() {
        assert_eq!(quote_git_path(b"a/", b"plain name"), "a/plain name");
        assert_eq!(quote_git_path(b"a/", "é".as_bytes()), "a/é");
        assert_eq!(quote_git_path(b"", b"a\n\"\xff"), "\"a\\n\\\"\\377\"");
    }
}
