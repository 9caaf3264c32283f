//! Names and paths in a form for display: characters that are not printable are escaped, so that a name can neither
//! control a terminal nor forge a line of a log.

use std::fmt::{self, Write as _};

/// A path for messages: bytes that are not UTF-8 and control characters are escaped.
#[must_use]
pub fn format_path(path: impl AsRef<[u8]>) -> String {
    let path = path.as_ref();
    // The empty path is the root of a tree.
    if path.is_empty() {
        return "/".into();
    }
    let mut shown = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || is_invisible_char(c) {
                shown.extend(c.escape_default())
            } else {
                shown.push(c)
            }
        }
        for byte in chunk.invalid() {
            shown.push_str(&format!("\\x{byte:02x}"));
        }
    }
    shown
}

/// Characters that are invisible, reorder the text around them or break the line, and so make names look alike.
#[must_use]
pub fn is_invisible_char(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
    )
}

/// A name or path in the message of an error.
#[derive(Debug, Clone, Copy)]
pub struct EscapedPath<'a>(pub &'a [u8]);

impl fmt::Display for EscapedPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for char in chunk.valid().chars() {
                if char.is_control() || is_invisible_char(char) {
                    write!(f, "{}", char.escape_unicode())?;
                } else {
                    f.write_char(char)?;
                }
            }
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_names_cannot_steer_a_terminal() {
        let shown = EscapedPath("ü\x1b[2J\n\u{202e}".as_bytes()).to_string();
        assert_eq!(shown, "ü\\u{1b}[2J\\u{a}\\u{202e}");
        assert_eq!(EscapedPath(b"a\xffb").to_string(), "a\\xffb");
    }
}
