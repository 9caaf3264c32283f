//! Sets of paths, each of which stands for what lies under it too.
//!
//! Invariant: a question costs as much as its path is long, however many paths are in the set: a shell may expand a
//! pattern to very many.

use std::collections::HashSet;

/// Some paths, with all that lies under them.
#[derive(Debug, Clone, Default)]
pub struct PathScopes<'a> {
    scopes: HashSet<&'a [u8]>,
    /// The paths and all that are above them.
    above: HashSet<&'a [u8]>,
}

impl<'a> PathScopes<'a> {
    /// A set of these paths from the root. The empty path stands for everything.
    pub fn new(paths: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut set = Self::default();
        for path in paths {
            set.scopes.insert(path);
            // Those above a path that is known already are known, too.
            let _ = list_ancestors(path).try_for_each(|at| set.above.insert(at).then_some(()));
        }
        set
    }

    /// Whether a path is one of them, or lies under one.
    #[must_use]
    pub fn contains(&self, path: &[u8]) -> bool {
        self.find_covering(path).next().is_some()
    }

    /// Those of them that a path is or lies under.
    pub fn find_covering(&self, path: &[u8]) -> impl Iterator<Item = &'a [u8]> {
        list_ancestors(path).filter_map(|at| self.scopes.get(at).copied())
    }

    /// Whether one of them is a path, or lies under it.
    #[must_use]
    pub fn reaches_into(&self, path: &[u8]) -> bool {
        self.above.contains(path)
    }
}

/// A path and all that are above it, from itself to the empty one.
fn list_ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(Some(path), |at| match at.iter().rposition(|byte| *byte == b'/') {
        Some(end) => at.get(..end),
        None => (!at.is_empty()).then_some(&[]),
    })
}

#[cfg(test)]
mod tests {
    use super::super::is_path_within;
    use super::*;

    #[test]
    fn a_set_of_scopes_answers_as_each_of_them_does() {
        let paths: [&[u8]; 7] = [b"", b"a", b"a/b", b"a/b/c", b"ab", b"b/c/d", b"a/c"];
        let sets: [&[&[u8]]; 6] = [&[], &[b""], &[b"a/b"], &[b"a", b"a/b"], &[b"b/c", b"ab"], &[b"a/b/c/d"]];
        for scopes in sets {
            let set = PathScopes::new(scopes.iter().copied());
            for path in paths {
                let covering = scopes.iter().filter(|scope| is_path_within(path, scope)).count();
                assert_eq!(set.find_covering(path).count(), covering, "{scopes:?} {path:?}");
                assert_eq!(set.contains(path), covering > 0, "{scopes:?} {path:?}");
                let within = scopes.iter().any(|scope| is_path_within(scope, path));
                assert_eq!(set.reaches_into(path), within, "{scopes:?} {path:?}");
            }
        }
    }
}
