//! Directory entries that one state has and the other lacks, until they are paired or reported.
//!
//! There may be millions, so they are kept in one sorted list instead of a tree, and the list gives memory back while
//! it is consumed.

use vellum_types::{Dentry, Ino};

/// A name in a directory.
pub type DirectoryLink = (Ino, Vec<u8>);

/// After this many consumed entries, memory is given back.
const SHRINK_INTERVAL: usize = 1 << 16;

/// Entries without a counterpart in the other state, sorted by directory and name.
#[derive(Default)]
pub struct UnpairedEntries {
    /// Without a value once it was taken.
    entries: Vec<(DirectoryLink, Option<Dentry>)>,
}

impl UnpairedEntries {
    /// Adds an entry, in any order; [`Self::sort_entries`] has to follow.
    pub fn push_entry(&mut self, link: DirectoryLink, dentry: Dentry) {
        self.entries.push((link, Some(dentry)));
    }

    /// Sorts the entries, and drops those that were added twice.
    pub fn sort_entries(&mut self) {
        self.entries.sort_by(|a, b| a.0.cmp(&b.0));
        // The entries of a directory that is split are added as a whole, also those that the comparison added before.
        self.entries.dedup_by(|a, b| a.0 == b.0);
    }

    /// Returns the entries that were not taken, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&DirectoryLink, Dentry)> {
        self.entries.iter().filter_map(|(link, dentry)| Some((link, (*dentry)?)))
    }

    /// Returns whether all were taken. Takes time for each that was.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Counts the entries that were not taken.
    pub fn count_entries(&self) -> usize {
        self.iter().count()
    }

    /// Takes the entry of a name; None if there is none, or it was taken.
    pub fn take_entry(&mut self, link: &DirectoryLink) -> Option<Dentry> {
        let index = self.entries.binary_search_by(|(other, _)| other.cmp(link)).ok()?;
        // The name stays in the list: its removal would move all entries behind it, for each of a million pairs.
        self.entries.get_mut(index)?.1.take()
    }

    /// Takes the last entry that was not taken.
    pub fn pop_entry(&mut self) -> Option<(DirectoryLink, Dentry)> {
        loop {
            let (link, dentry) = self.entries.pop()?;
            // Each entry that is taken becomes a change, which needs memory of its own. A vector keeps its capacity,
            // so that without this both lists would be held whole at the end.
            if self.entries.len().is_multiple_of(SHRINK_INTERVAL) {
                self.entries.shrink_to_fit();
            }
            if let Some(dentry) = dentry {
                return Some((link, dentry));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use vellum_types::FileKind;

    use super::*;

    #[test]
    fn what_was_taken_does_not_come_again() {
        let mut entries = UnpairedEntries::default();
        let link = |name: &str| (Ino::ROOT, name.as_bytes().to_vec());
        for (number, name) in ["c", "a", "b", "a"].iter().enumerate() {
            let dentry = Dentry { ino: Ino(10 + number as u64), kind: FileKind::File };
            entries.push_entry(link(name), dentry);
        }
        entries.sort_entries();
        assert_eq!(entries.count_entries(), 3);
        assert_eq!(entries.take_entry(&link("b")).map(|dentry| dentry.ino), Some(Ino(12)));
        assert_eq!(entries.take_entry(&link("b")), None);
        assert_eq!(entries.take_entry(&link("d")), None);
        let names: Vec<_> = std::iter::from_fn(|| entries.pop_entry()).map(|(link, _)| link.1).collect();
        assert_eq!(names, [b"c", b"a"]);
        assert!(entries.is_empty());
    }
}
