//! One pattern by itself, for searches by name: the language of the filter rules.

use super::pattern::RulePattern;

/// A pattern of `*`, `**`, `?` and `[`, as filter rules have it: without a slash it is compared with names, with slashes
/// with as many of a path's last components, and with a slash at its beginning with the whole path.
#[derive(Debug, Clone)]
pub struct NamePattern {
    whole: RulePattern,
    /// What the last component has to match; None if that depends on the rest of the path.
    last: Option<RulePattern>,
}

impl NamePattern {
    /// Parses a pattern. A malformed one matches nothing.
    #[must_use]
    pub fn new(text: &[u8]) -> Self {
        // A slash at the end asks for a directory, whose name is before it.
        let component = text.strip_suffix(b"/").unwrap_or(text);
        let component = component.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let crosses_slashes = component.windows(2).any(|pair| pair == b"**");
        // A class may contain a slash, so that what is behind it is no component.
        let is_separable = !crosses_slashes && !component.is_empty() && !text.contains(&b'[');
        Self { whole: RulePattern::new(text), last: is_separable.then(|| RulePattern::new(component)) }
    }

    /// Whether an entry of this name can match, whatever directory it is in.
    #[must_use]
    pub fn may_match_name(&self, name: &[u8]) -> bool {
        self.last.as_ref().is_none_or(|last| last.matches_path(name, true))
    }

    /// Whether the entry at `path` matches.
    #[must_use]
    pub fn matches_path(&self, path: &[u8], is_dir: bool) -> bool {
        self.whole.matches_path(path, is_dir)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_are_those_of_filter_rules() {
        let pdf = NamePattern::new(b"docs/**/*.pdf");
        assert!(pdf.may_match_name(b"a.pdf") && !pdf.may_match_name(b"a.txt"));
        assert!(pdf.matches_path(b"docs/old/a.pdf", false) && !pdf.matches_path(b"other/a.pdf", false));
        let dir = NamePattern::new(b"build/");
        assert!(dir.matches_path(b"a/build", true) && !dir.matches_path(b"a/build", false));
        assert!(NamePattern::new(b"/build").matches_path(b"build", false));
        assert!(!NamePattern::new(b"/build").matches_path(b"a/build", false));
    }

    proptest! {
        /// The name alone never excludes what the whole pattern matches.
        #[test]
        fn names_are_no_stricter_than_paths(pattern in "[ab*?/\\[\\]]{1,8}", path in "[ab]{1,3}(/[ab]{1,3}){0,3}", is_dir: bool) {
            let pattern = NamePattern::new(pattern.as_bytes());
            let name = path.rsplit('/').next().unwrap_or_default();
            if pattern.matches_path(path.as_bytes(), is_dir) {
                prop_assert!(pattern.may_match_name(name.as_bytes()));
            }
        }
    }
}
