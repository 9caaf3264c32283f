//! The listing of one side: every entry of a tree with its attributes, compact, in one arena.
//!
//! Invariant: the entries of a directory are contiguous, sorted by the bytes of their names, and come after their
//! directory; so a number alone identifies an entry, and two listings are compared in one pass over both. An entry
//! takes 48 bytes and its name; rare facts (the target of a symlink, the number of a device, extended attributes) are
//! stored apart. Deliberately absent: how a listing is made (see `scan`), and what is done with it (see `plan`).

mod build;
mod entry;
mod granularity;

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};
use vellum_types::{FileKind, UnixTime};

pub use build::{DirectoryBlock, ListingError, NewListingEntry};
pub use entry::{EntryDetail, EntryFlags, ListingEntry, ListingEntryId};
pub use granularity::TimeGranularity;

use entry::EntryRecord;

/// The BLAKE3 hash of a file's content.
pub type ContentDigest = [u8; 32];
/// The hashes of several files, in their order; None for one that could not be read.
pub type ContentDigests = Vec<Option<ContentDigest>>;

/// The names of owners and groups, by number: on another host the same names may have other numbers.
/// They are sent as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerNames {
    /// Users.
    pub users: BTreeMap<u32, String>,
    /// Groups.
    pub groups: BTreeMap<u32, String>,
    /// Of a destination: the receiving user, unless it is root.
    #[serde(default)]
    pub receiver: Option<crate::model::options::UnprivilegedReceiver>,
}

/// Something that could not be listed. While the source has one, nothing is deleted at the destination.
/// It is sent as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnlistedEntry {
    /// Its path from the root.
    pub path: Vec<u8>,
    /// The reason.
    pub message: String,
    /// It was there when its directory was read, and has been removed since: reported, but no error.
    pub vanished: bool,
}

/// A listed tree.
#[derive(Debug, Clone)]
pub struct TreeListing {
    records: Vec<EntryRecord>,
    names: Vec<u8>,
    details: Vec<EntryDetail>,
    digests: HashMap<ListingEntryId, ContentDigest>,
    /// Symlinks that were followed: they are listed as their targets.
    followed: HashSet<ListingEntryId>,
    /// Content digests by entry number; shorter than the entries, or empty, where none were requested.
    stamps: Vec<u64>,
    /// When the listing began, by the clock of its host; only if change stamps were requested.
    pub begun: Option<UnixTime>,
    /// The resolution of the filesystem's times, as far as the listed times show it.
    pub granularity: TimeGranularity,
    /// What could not be listed.
    pub unlisted: Vec<UnlistedEntry>,
    /// Of files with several names: the device and the inode number of each link group, beginning with the first group.
    /// Empty where these numbers mean nothing, as those of another host.
    pub(crate) linked_files: Vec<(u64, u64)>,
    /// Paths at which a later source has another entry than an earlier one, whose entry is used.
    pub shadowed: Vec<Vec<u8>>,
    /// Temporary files that a killed run may have left; not among the entries.
    pub leftovers: Vec<Vec<u8>>,
    /// The names of owners and groups; empty if they were not requested.
    pub owners: OwnerNames,
}

impl TreeListing {
    /// Every entry, the root first, and each directory before its entries.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = ListingEntry<'_>> {
        (0..self.records.len())
            .map(|index| ListingEntry { listing: self, id: ListingEntryId::from_index(index) })
    }

    /// The number of entries, including the root.
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

    /// The entry of a number; None if the number is too large, which one from elsewhere may be.
    #[must_use]
    pub fn get(&self, id: ListingEntryId) -> Option<ListingEntry<'_>> {
        (id.index() < self.records.len()).then_some(ListingEntry { listing: self, id })
    }

    /// The entry of a number that this listing assigned.
    ///
    /// # Panics
    ///
    /// Panics if this listing has no entry of that number.
    #[must_use]
    pub fn entry(&self, id: ListingEntryId) -> ListingEntry<'_> {
        assert!(id.index() < self.records.len(), "a number of another listing");
        ListingEntry { listing: self, id }
    }

    /// The entry at a path from the root, if there is one.
    #[must_use]
    pub fn find_path(&self, path: &[u8]) -> Option<ListingEntry<'_>> {
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        names.try_fold(self.root(), |here, name| here.find_child(name))
    }

    /// Replaces the owners and groups of entries by the given numbers.
    pub(crate) fn renumber_owners(&mut self, users: &HashMap<u32, u32>, groups: &HashMap<u32, u32>) {
        if users.is_empty() && groups.is_empty() {
            return;
        }
        for record in &mut self.records {
            record.uid = users.get(&record.uid).copied().unwrap_or(record.uid);
            record.gid = groups.get(&record.gid).copied().unwrap_or(record.gid);
        }
    }

    /// The hash of a file's content, if it was computed.
    #[must_use]
    pub fn content_digest(&self, id: ListingEntryId) -> Option<&ContentDigest> {
        self.digests.get(&id)
    }

    /// Records the hash of a file's content.
    pub fn set_content_digest(&mut self, id: ListingEntryId, digest: ContentDigest) {
        self.digests.insert(id, digest);
    }

    /// Sets the modification time of an entry whose time was not known when it was listed.
    pub(crate) fn set_mtime(&mut self, id: ListingEntryId, mtime: UnixTime) {
        if let Some(record) = self.records.get_mut(id.index()) {
            (record.secs, record.nanos) = (mtime.secs, mtime.nanos.min(999_999_999));
        }
    }

    /// Whether the entry is a symlink that was followed; unknown, and false, for a listing received from another host.
    #[must_use]
    pub fn is_followed(&self, id: ListingEntryId) -> bool {
        self.followed.contains(&id)
    }

    /// Records that the entry is a symlink that was followed.
    pub(crate) fn set_followed(&mut self, id: ListingEntryId) {
        self.followed.insert(id);
    }

    /// The change time of an entry as a number that can be compared; 0 if it is unknown.
    #[must_use]
    pub fn change_stamp(&self, id: ListingEntryId) -> u64 {
        self.stamps.get(id.index()).copied().unwrap_or(0)
    }

    /// Records the change time of an entry.
    pub fn set_change_stamp(&mut self, id: ListingEntryId, stamp: u64) {
        // The vector is as long as the listing as soon as one stamp is set, so that it grows seldom.
        if self.stamps.len() <= id.index() {
            self.stamps.resize(self.records.len().max(id.index() + 1), 0);
        }
        if let Some(slot) = self.stamps.get_mut(id.index()) {
            *slot = stamp;
        }
    }

    /// All change stamps, by entry number.
    #[must_use]
    pub fn change_stamps(&self) -> &[u64] {
        &self.stamps
    }

    /// Adds the change stamps of another host; those without an entry are ignored.
    pub fn set_change_stamps(&mut self, mut stamps: Vec<u64>) {
        // The stamps come from another host and may be more than the entries.
        stamps.truncate(self.records.len());
        self.stamps = stamps;
    }

    /// Whether everything was listed: no directory was left unread.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.unlisted.iter().all(|unlisted| unlisted.vanished)
    }

    /// The number of regular files and the sum of their sizes.
    #[must_use]
    pub fn count_files(&self) -> (u64, u64) {
        let files = self.iter().filter(|entry| entry.kind() == FileKind::File);
        files.fold((0, 0), |(count, bytes), file| (count + 1, bytes + file.size()))
    }
}

#[cfg(test)]
mod tests;
