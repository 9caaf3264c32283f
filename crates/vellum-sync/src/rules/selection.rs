//! `--files-from`: a list of paths to be transferred.
//!
//! Invariant: no path of the list leads out of the source: leading slashes and `.` are dropped, `..` is resolved within
//! the source. Unlisted entries are neither transferred nor removed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::error::RuleError;

/// Most paths of a list.
const LISTED_MAX: usize = 10_000_000;

/// What is transferred of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ListedPath {
    /// Nothing of its own: it is above a listed path.
    Parent,
    /// The entry itself.
    Itself,
    /// The entry and its children (it was written with a trailing slash), without the entries of subdirectories.
    Content,
}

/// The paths that take part.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedPaths {
    #[serde(with = "pairs")]
    paths: BTreeMap<Vec<u8>, ListedPath>,
    /// `-r`: directories are transferred with everything in them.
    recursive: bool,
    /// The root itself takes part, although not all of its entries do.
    #[serde(default)]
    with_root: bool,
    /// Listed paths that do not exist at the source are deleted at the destination.
    #[serde(default)]
    deletes_missing: bool,
}

/// Serialises a map as a list of pairs: keys in JSON are strings, and paths need not be.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::ListedPath;

    type Paths = BTreeMap<Vec<u8>, ListedPath>;

    pub fn serialize<S: Serializer>(paths: &Paths, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(paths)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Paths, D::Error> {
        Ok(Vec::<(Vec<u8>, ListedPath)>::deserialize(from)?.into_iter().collect())
    }
}

impl ListedPaths {
    /// Parses a list. With `nul`, paths are separated by NUL and there are no comments.
    pub fn parse(text: &[u8], nul: bool, recursive: bool) -> Result<Self, RuleError> {
        let ends = |byte: &u8| if nul { *byte == 0 } else { matches!(byte, b'\n' | b'\r') };
        let mut selection = Self { recursive, ..Self::default() };
        for line in text.split(ends) {
            // rsync treats `;` and `#` as comments in lists that are separated by lines only.
            if line.is_empty() || (!nul && matches!(line.first(), Some(b'#' | b';'))) {
                continue;
            }
            if line.contains(&0) {
                return Err(RuleError::syntax_error(line, "a path contains a NUL"));
            }
            selection.add_line(line)?;
        }
        Ok(selection)
    }

    fn add_line(&mut self, line: &[u8]) -> Result<(), RuleError> {
        let mut path: Vec<&[u8]> = Vec::new();
        for component in line.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => {}
                // `..` is resolved within the source and stops at its root, so no line can name something
                // above it.
                b".." => drop(path.pop()),
                name => path.push(name),
            }
        }
        let content = line.ends_with(b"/") || line.ends_with(b"/.") || line == b".";
        // The directories on the way are needed to reach the path, and are transferred without their other
        // content.
        for depth in 1..path.len() {
            self.add_path(path.get(..depth).unwrap_or_default().join(&b'/'), ListedPath::Parent);
        }
        self.add_path(path.join(&b'/'), if content { ListedPath::Content } else { ListedPath::Itself });
        if self.paths.len() > LISTED_MAX {
            return Err(RuleError::TooMany { what: "listed paths", limit: LISTED_MAX });
        }
        Ok(())
    }

    fn add_path(&mut self, path: Vec<u8>, listed: ListedPath) {
        let known = self.paths.entry(path).or_insert(listed);
        // A path can be listed, and be on the way to another one. The stronger meaning wins.
        *known = listed.max(*known);
    }

    /// The same list with converted paths.
    #[must_use]
    pub fn convert_paths(&self, convert: &dyn Fn(&[u8]) -> Vec<u8>) -> Self {
        let mut converted = Self { paths: BTreeMap::new(), ..self.clone() };
        for (path, listed) in &self.paths {
            converted.add_path(convert(path), *listed);
        }
        converted
    }

    /// The union of this list and another one.
    #[must_use]
    pub fn merge_with(mut self, other: Self) -> Self {
        for (path, listed) in other.paths {
            self.add_path(path, listed);
        }
        self.recursive |= other.recursive;
        self.with_root |= other.with_root;
        self.deletes_missing |= other.deletes_missing;
        self
    }

    /// The same list; with `deletes_missing`, listed paths that do not exist at the source may be deleted at the
    /// destination.
    #[must_use]
    pub fn deleting_missing(self, deletes_missing: bool) -> Self {
        Self { deletes_missing, ..self }
    }

    /// Whether an entry of the destination may be deleted: its directory is transferred with all entries, or it was
    /// listed itself and that suffices.
    #[must_use]
    pub fn may_remove(&self, dir: &[u8], path: &[u8]) -> bool {
        let is_listed = || self.paths.get(path).is_some_and(|listed| *listed != ListedPath::Parent);
        self.contains_content_of(dir) || self.deletes_missing && is_listed()
    }

    /// The same list with the root itself.
    #[must_use]
    pub fn with_root(self) -> Self {
        Self { with_root: true, ..self }
    }

    /// Whether the root itself takes part.
    #[must_use]
    pub fn contains_root(&self) -> bool {
        self.with_root || self.contains_content_of(b"")
    }

    /// The first line of a list with a `/./`, which marks the part of a path that is kept.
    #[must_use]
    pub fn find_marked_line(text: &[u8], nul: bool) -> Option<&[u8]> {
        let ends = |byte: &u8| if nul { *byte == 0 } else { matches!(byte, b'\n' | b'\r') };
        let mut lines = text.split(ends).filter(|line| nul || !matches!(line.first(), Some(b'#' | b';')));
        lines.find(|line| line.windows(3).any(|bytes| bytes == b"/./"))
    }

    /// The listed paths, without those above them.
    pub fn listed(&self) -> impl Iterator<Item = &[u8]> {
        let all =
            self.paths.iter().filter(|(path, listed)| **listed != ListedPath::Parent && !path.is_empty());
        all.map(|(path, _)| &path[..])
    }

    /// Names in the directory at `dir` that are listed, or above a listed path.
    #[must_use]
    pub fn find_names_in(&self, dir: &[u8]) -> Vec<Vec<u8>> {
        let prefix = if dir.is_empty() { Vec::new() } else { [dir, b"/"].concat() };
        // The map is sorted, so all paths below a directory follow its prefix.
        let below = self.paths.range(prefix.clone()..).map_while(|(path, _)| path.strip_prefix(&prefix[..]));
        below.filter(|name| !name.is_empty() && !name.contains(&b'/')).map(<[u8]>::to_vec).collect()
    }

    /// Whether the entry at `path` is transferred.
    #[must_use]
    pub fn contains_path(&self, path: &[u8]) -> bool {
        path.is_empty() || self.paths.contains_key(path) || self.contains_content_of(parent_path(path))
    }

    /// Whether the entry at `path` is above one that is transferred.
    #[must_use]
    pub fn contains_below(&self, path: &[u8]) -> bool {
        self.paths.get(path) == Some(&ListedPath::Parent)
    }

    /// Whether the entry at `path` has to be a directory, or a symlink to one.
    #[must_use]
    pub fn is_dir_only(&self, path: &[u8]) -> bool {
        let deeper = [path, b"/"].concat();
        let below =
            || self.paths.range(deeper.clone()..).next().is_some_and(|(path, _)| path.starts_with(&deeper));
        match self.paths.get(path) {
            Some(ListedPath::Parent | ListedPath::Content) => true,
            Some(ListedPath::Itself) => below(),
            None => false,
        }
    }

    /// Whether all entries of the directory at `dir` are transferred, so that `--delete` may remove others.
    #[must_use]
    pub fn contains_content_of(&self, dir: &[u8]) -> bool {
        if self.paths.get(dir) == Some(&ListedPath::Content) {
            return true;
        }
        if !self.recursive {
            return false;
        }
        let mut above = dir;
        loop {
            if matches!(self.paths.get(above), Some(ListedPath::Itself | ListedPath::Content)) {
                return true;
            }
            if above.is_empty() {
                return false;
            }
            above = parent_path(above);
        }
    }
}

fn parent_path(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').and_then(|slash| path.get(..slash)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_takes_what_it_names_and_the_way_there() {
        let listed = ListedPaths::parse(b"/a/b/c\n# no\n\nd/\n./e\n", false, false).unwrap();
        for path in ["a", "a/b", "a/b/c", "d", "d/x", "e"] {
            assert!(listed.contains_path(path.as_bytes()), "{path}");
        }
        for path in ["a/x", "a/b/c/d", "d/x/y", "e/f", "no"] {
            assert!(!listed.contains_path(path.as_bytes()), "{path}");
        }
        let deep = ListedPaths::parse(b"a/b", false, true).unwrap();
        assert!(deep.contains_path(b"a/b/c/d") && !deep.contains_path(b"a/c"));
        assert!(deep.contains_content_of(b"a/b/c") && !deep.contains_content_of(b"a"));
    }

    #[test]
    fn no_line_leads_out_of_the_source() {
        let listed = ListedPaths::parse(b"../../etc/passwd\0#x\0a/../../b\0", true, false).unwrap();
        assert!(
            listed.contains_path(b"etc/passwd") && listed.contains_path(b"#x") && listed.contains_path(b"b")
        );
        assert!(!listed.contains_path(b".."));
    }
}
