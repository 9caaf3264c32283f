//! One pattern of rsync's language, and whether a path matches it.
//!
//! Invariant: matching takes at most time in proportion to the length of the path times that of the pattern: all
//! positions of the pattern that the path can be at are tracked together, without backtracking. Deliberately absent:
//! the effect of a match.

use super::wild::WildcardPattern;

/// A parsed pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RulePattern {
    body: PatternBody,
    reach: PatternReach,
    dir_only: bool,
    /// It ends in `***`: it matches a directory and its contents.
    slash_after: bool,
    /// It begins with `**`: a slash is put before the path, so that `**/` can match nothing.
    slash_before: bool,
    /// It begins with a slash: it is matched from the directory of its rule on.
    anchored: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PatternBody {
    Literal(Vec<u8>),
    Wild(WildcardPattern),
}

/// The part of a path that the pattern is matched against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PatternReach {
    /// The last component.
    Name,
    /// This number of last components.
    Last(usize),
    /// The whole path.
    Whole,
    /// The whole path, and each part of it after a slash.
    AfterAnySlash,
}

impl RulePattern {
    pub(super) fn new(text: &[u8]) -> Self {
        // The pattern `/` alone keeps its slash.
        let (text, dir_only) = match text {
            [rest @ .., b'/'] if !rest.is_empty() => (rest, true),
            _ => (text, false),
        };
        let wild = text.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['));
        let stars = wild.then(|| text.windows(2).position(|pair| pair == b"**")).flatten();
        let slash_after = stars.is_some() && text.ends_with(b"***");
        let slash_before = stars == Some(0);
        let slashes = text.iter().filter(|byte| **byte == b'/').count();
        let (text, anchored) = match text {
            [b'/', rest @ ..] => (rest, true),
            _ => (text, false),
        };
        // rsync's rules: without a slash a pattern is compared with the name; with slashes it is compared
        // with as many of the last components; a leading slash, or `**` at the start, compares the whole
        // path.
        let reach = match (slashes, stars) {
            (0, None) => PatternReach::Name,
            _ if anchored || slash_before => PatternReach::Whole,
            (slashes, None) => PatternReach::Last(slashes + 1),
            (_, Some(_)) => PatternReach::AfterAnySlash,
        };
        // A backslash escapes only in a pattern with wildcards, as in rsync.
        let body = if wild {
            PatternBody::Wild(WildcardPattern::new(text))
        } else {
            PatternBody::Literal(text.to_vec())
        };
        Self { body, reach, dir_only, slash_after, slash_before, anchored }
    }

    /// Whether it begins with a slash.
    pub(super) fn is_anchored(&self) -> bool {
        self.anchored
    }

    /// Whether it is matched against more than the last component.
    pub(super) fn needs_path(&self) -> bool {
        self.reach != PatternReach::Name
    }

    /// Whether it matches the entry at `path`, relative to the directory of its rule.
    pub(super) fn matches_path(&self, path: &[u8], is_dir: bool) -> bool {
        if path.is_empty() || (self.dir_only && !is_dir) {
            return false;
        }
        let text = match self.reach {
            PatternReach::Name => last_components(path, 1),
            PatternReach::Last(count) => last_components(path, count),
            PatternReach::Whole | PatternReach::AfterAnySlash => Some(path),
        };
        let Some(text) = text else { return false };
        match &self.body {
            PatternBody::Literal(literal) => literal == text,
            PatternBody::Wild(wild) => {
                let before: &[u8] = if self.slash_before { b"/" } else { b"" };
                let after: &[u8] = if self.slash_after && is_dir { b"/" } else { b"" };
                wild.matches_pieces([before, text, after], self.reach == PatternReach::AfterAnySlash)
            }
        }
    }
}

/// The last `count` components of `path`; None if it has fewer.
fn last_components(path: &[u8], count: usize) -> Option<&[u8]> {
    let mut slashes = path.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    match slashes.by_ref().take(count).collect::<Vec<_>>().as_slice() {
        found if found.len() == count => path.get(found.last()? + 1..),
        found if found.len() + 1 == count => Some(path),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(pattern: &str, path: &str, is_dir: bool) -> bool {
        RulePattern::new(pattern.as_bytes()).matches_path(path.as_bytes(), is_dir)
    }

    #[test]
    fn patterns_reach_as_far_as_their_slashes() {
        assert!(holds("foo", "a/foo", false));
        assert!(!holds("/foo", "a/foo", false));
        assert!(holds("a/foo", "x/a/foo", false));
        assert!(!holds("x/a/foo", "a/foo", false));
        assert!(holds("foo/", "a/foo", true) && !holds("foo/", "a/foo", false));
        assert!(holds("*.o", "a/b.o", false) && !holds("/*.o", "a/b.o", false));
        assert!(holds("a/*/c", "x/a/b/c", false) && !holds("a/*/c", "a/b/b/c", false));
    }

    #[test]
    fn two_stars_cross_slashes() {
        assert!(holds("**/foo", "foo", false) && holds("**/foo", "a/b/foo", false));
        assert!(holds("/foo/**/bar", "foo/x/y/bar", false) && !holds("/foo/**/bar", "foo/bar", false));
        assert!(holds("foo/**", "x/foo/a/b", false) && !holds("foo/**", "x/foo", true));
    }

    #[test]
    fn three_stars_take_the_directory_along() {
        assert!(holds("foo/***", "foo", true) && holds("foo/***", "foo/a/b", false));
        assert!(!holds("foo/***", "foo", false));
        assert!(holds("*/***/", "foo", true));
    }

    #[test]
    fn a_backslash_escapes_where_there_is_a_wildcard() {
        assert!(holds("a\\b", "a\\b", false));
        assert!(holds("a\\b*", "abc", false) && !holds("a\\b*", "a\\bc", false));
        assert!(holds("\\*x?", "*xy", false) && !holds("\\*x?", "axy", false));
    }
}
