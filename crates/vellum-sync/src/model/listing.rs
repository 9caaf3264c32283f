//! What is on one side: every entry of a tree with its attributes, compact, in one arena.
//!
//! Invariant: the entries of a directory stand side by side, sorted by the bytes of their names, and after their
//! directory; so a number alone names an entry, and two listings are compared by walking both once. An entry takes 48
//! bytes and its name; what few have (a symlink's target, a device's number, extended attributes) stands aside.
//! Deliberately absent: where a listing comes from (see `scan`), and what is done about it (see `plan`).

mod build;
mod entry;
mod granularity;

use std::collections::{BTreeMap, HashMap, HashSet};

use vellum_types::{FileKind, UnixTime};

pub use build::{DirectoryBlock, ListingError, NewListingEntry};
pub use entry::{EntryDetail, EntryFlags, ListingEntry, ListingEntryId};
pub use granularity::TimeGranularity;

use entry::EntryRecord;

/// The BLAKE3 hash of a file's content.
pub type ContentDigest = [u8; 32];

/// The names of owners and groups, by number: what a side calls them whose numbers may differ from the other's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnerNames {
    /// Users.
    pub users: BTreeMap<u32, String>,
    /// Groups.
    pub groups: BTreeMap<u32, String>,
    /// Of a destination: who receives there, if it is not root.
    pub receiver: Option<crate::model::options::UnprivilegedReceiver>,
}

/// Something that could not be listed. While there is one at the source, nothing is deleted at the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnlistedEntry {
    /// Its path from the root.
    pub path: Vec<u8>,
    /// Why.
    pub message: String,
    /// It was there when its directory was read, and is gone: no harm, but worth a word.
    pub vanished: bool,
}

/// A tree as it was found.
#[derive(Debug, Clone)]
pub struct TreeListing {
    records: Vec<EntryRecord>,
    names: Vec<u8>,
    details: Vec<EntryDetail>,
    digests: HashMap<ListingEntryId, ContentDigest>,
    /// Entries that are symlinks, listed as what they lead to.
    followed: HashSet<ListingEntryId>,
    /// By place; shorter, or empty, where nobody asked.
    stamps: Vec<u64>,
    /// When it was begun, by the clock of the host that it is of; if stamps were asked for.
    pub begun: Option<UnixTime>,
    /// How finely the filesystem keeps times, as far as those that it has tell.
    pub granularity: TimeGranularity,
    /// What could not be listed.
    pub unlisted: Vec<UnlistedEntry>,
    /// Of files with several names: the device and the inode of each group, from the first group on; empty where the
    /// numbers mean nothing, as those of another host.
    pub(crate) linked_files: Vec<(u64, u64)>,
    /// Paths at which one of several sources has something else than the earlier one whose entry is taken.
    pub shadowed: Vec<Vec<u8>>,
    /// Temporary files that a killed run may have left; not among the entries.
    pub leftovers: Vec<Vec<u8>>,
    /// What owners and groups are called; empty if nobody asked.
    pub owners: OwnerNames,
}

impl TreeListing {
    /// Every entry, the root first, directories before what is in them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = ListingEntry<'_>> {
        (0..self.records.len())
            .map(|index| ListingEntry { listing: self, id: ListingEntryId::from_index(index) })
    }

    /// How many entries there are, the root included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether the root has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.len() <= 1
    }

    /// The root, a directory with an empty name.
    #[must_use]
    pub fn root(&self) -> ListingEntry<'_> {
        ListingEntry { listing: self, id: ListingEntryId::ROOT }
    }

    /// The entry of this number; None for one that came from elsewhere and is too large.
    #[must_use]
    pub fn get(&self, id: ListingEntryId) -> Option<ListingEntry<'_>> {
        (id.index() < self.records.len()).then_some(ListingEntry { listing: self, id })
    }

    /// The entry of a number that this very listing gave.
    ///
    /// # Panics
    ///
    /// If it did not.
    #[must_use]
    pub fn entry(&self, id: ListingEntryId) -> ListingEntry<'_> {
        assert!(id.index() < self.records.len(), "a number of another listing");
        ListingEntry { listing: self, id }
    }

    /// The entry at a path from the root.
    #[must_use]
    pub fn find_path(&self, path: &[u8]) -> Option<ListingEntry<'_>> {
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        names.try_fold(self.root(), |here, name| here.find_child(name))
    }

    /// Gives entries the owners and groups that these numbers become.
    pub(crate) fn renumber_owners(&mut self, users: &HashMap<u32, u32>, groups: &HashMap<u32, u32>) {
        if users.is_empty() && groups.is_empty() {
            return;
        }
        for record in &mut self.records {
            record.uid = users.get(&record.uid).copied().unwrap_or(record.uid);
            record.gid = groups.get(&record.gid).copied().unwrap_or(record.gid);
        }
    }

    /// What the content of a file was found to be.
    #[must_use]
    pub fn content_digest(&self, id: ListingEntryId) -> Option<&ContentDigest> {
        self.digests.get(&id)
    }

    /// Notes what the content of a file was found to be.
    pub fn set_content_digest(&mut self, id: ListingEntryId, digest: ContentDigest) {
        self.digests.insert(id, digest);
    }

    /// Gives an entry the time that was found out later.
    pub(crate) fn set_mtime(&mut self, id: ListingEntryId, mtime: UnixTime) {
        if let Some(record) = self.records.get_mut(id.index()) {
            (record.secs, record.nanos) = (mtime.secs, mtime.nanos.min(999_999_999));
        }
    }

    /// Whether the entry is a symlink that was followed: a listing that came over the wire does not know.
    #[must_use]
    pub fn is_followed(&self, id: ListingEntryId) -> bool {
        self.followed.contains(&id)
    }

    /// Notes that the entry is a symlink that was followed.
    pub(crate) fn set_followed(&mut self, id: ListingEntryId) {
        self.followed.insert(id);
    }

    /// When anything of an entry was last changed, as a number to be compared; 0 if that is not known.
    #[must_use]
    pub fn change_stamp(&self, id: ListingEntryId) -> u64 {
        self.stamps.get(id.index()).copied().unwrap_or(0)
    }

    /// Notes when anything of an entry was last changed.
    pub fn set_change_stamp(&mut self, id: ListingEntryId, stamp: u64) {
        // The vector is as long as the listing as soon as one stamp is set, so that it grows seldom.
        if self.stamps.len() <= id.index() {
            self.stamps.resize(self.records.len().max(id.index() + 1), 0);
        }
        if let Some(slot) = self.stamps.get_mut(id.index()) {
            *slot = stamp;
        }
    }

    /// All stamps, by place.
    #[must_use]
    pub fn change_stamps(&self) -> &[u64] {
        &self.stamps
    }

    /// Takes stamps in that were told; those of entries that are not there do not count.
    pub fn set_change_stamps(&mut self, mut stamps: Vec<u64>) {
        // The stamps come from another host and may be more than the entries.
        stamps.truncate(self.records.len());
        self.stamps = stamps;
    }

    /// Whether all of it was seen: no directory was left unread.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.unlisted.iter().all(|unlisted| unlisted.vanished)
    }

    /// Regular files, and their bytes.
    #[must_use]
    pub fn count_files(&self) -> (u64, u64) {
        let files = self.iter().filter(|entry| entry.kind() == FileKind::File);
        files.fold((0, 0), |(count, bytes), file| (count + 1, bytes + file.size()))
    }
}

#[cfg(test)]
mod tests;
