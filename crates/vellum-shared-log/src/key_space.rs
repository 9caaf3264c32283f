//! The name under which an engine keeps the log of a worktree.

use std::fmt;

/// Longest part of a name, bytes.
const PART_MAX: usize = 128;

/// The volume and the worktree of a log, as the engine sees them: ids or keyed hashes, not names that people gave. Both
/// are ASCII letters, digits, `-` and `_`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LogKeySpace {
    volume: String,
    worktree: String,
}

impl LogKeySpace {
    /// Returns None if a part has other characters, or is empty or longer than 128 bytes.
    #[must_use]
    pub fn new(volume: &str, worktree: &str) -> Option<Self> {
        let is_part = |part: &str| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            (1..=PART_MAX).contains(&part.len()) && part.bytes().all(is_plain)
        };
        let is_valid = is_part(volume) && is_part(worktree);
        is_valid.then(|| Self { volume: volume.to_owned(), worktree: worktree.to_owned() })
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> &str {
        &self.volume
    }

    /// The worktree.
    #[must_use]
    pub fn worktree(&self) -> &str {
        &self.worktree
    }
}

impl fmt::Display for LogKeySpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.volume, self.worktree)
    }
}

#[cfg(test)]
mod tests {
    use super::LogKeySpace;

    #[test]
    fn no_part_can_be_another_name() {
        assert!(LogKeySpace::new("a-1_B", "b").is_some());
        for part in ["", "a/b", "a}b", "a b", "ä", "a.b", &"a".repeat(129)] {
            assert!(LogKeySpace::new(part, "b").is_none(), "{part}");
            assert!(LogKeySpace::new("a", part).is_none(), "{part}");
        }
    }
}
