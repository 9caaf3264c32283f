//! What a walk below a path has still to visit, in order: a directory, then what is in it by name.
//!
//! Of each entry that waits only its name is kept, and how much of the path at hand comes before it: whole paths would
//! take memory with the square of the depth.

use vellum_types::Dentry;

/// The entries that a walk has still to visit, and the path of the one that it visits.
#[derive(Debug, Default)]
pub struct PathStack {
    path: Vec<u8>,
    pending: Vec<PendingEntry>,
}

#[derive(Debug)]
struct PendingEntry {
    /// Bytes of the path at hand that are its directory's.
    above: usize,
    name: Vec<u8>,
    dentry: Dentry,
}

impl PathStack {
    /// Adds what is in the directory at the path at hand, to be visited next and in this order. At first this path is
    /// empty: a walk begins with one entry under its path, or with all entries of a directory.
    pub fn push_entries(&mut self, entries: Vec<(Vec<u8>, Dentry)>) {
        let above = self.path.len();
        let pend = |(name, dentry)| PendingEntry { above, name, dentry };
        // In reverse, because the last one is taken first.
        self.pending.extend(entries.into_iter().rev().map(pend));
    }

    /// Goes on to the next entry. Returns None if all were visited.
    pub fn next_entry(&mut self) -> Option<Dentry> {
        let PendingEntry { above, name, dentry } = self.pending.pop()?;
        self.path.truncate(above);
        // A walk that begins at the root begins with an entry without a name.
        if !self.path.is_empty() && !name.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(&name);
        Some(dentry)
    }

    /// The path of the entry that is visited.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use vellum_types::{FileKind, Ino};

    use super::*;

    fn entry(name: &str, ino: u64, kind: FileKind) -> (Vec<u8>, Dentry) {
        (name.into(), Dentry { ino: Ino(ino), kind })
    }

    #[test]
    fn a_directory_comes_before_its_entries_and_these_by_name() {
        let mut names = PathStack::default();
        names.push_entries(vec![entry("", 1, FileKind::Dir)]);
        let mut visited = Vec::new();
        while let Some(dentry) = names.next_entry() {
            visited.push(String::from_utf8_lossy(names.path()).into_owned());
            match dentry.ino.0 {
                1 => names.push_entries(vec![entry("a", 2, FileKind::Dir), entry("b", 3, FileKind::File)]),
                2 => names.push_entries(vec![entry("x", 4, FileKind::Dir), entry("y", 5, FileKind::File)]),
                _ => {}
            }
        }
        assert_eq!(visited, ["", "a", "a/x", "a/y", "b"]);
    }
}
