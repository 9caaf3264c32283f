//! The archive of a pair: the state in which both sides agreed at the end of their last run.
//!
//! Invariant: the archive holds an entry only if both sides were seen to have it, or one was seen to take it from the
//! other; an entry that failed or changed meanwhile keeps its older record, or has none. So an archive can cause an
//! entry to be examined once too often, and never causes the deletion of an entry that was edited. Deliberately absent:
//! the encoding (see `codec`), and the place where archives are kept (see `store`).

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::model::listing::{
    ContentDigest, DirectoryBlock, EntryDetail, EntryFlags, ListingEntry, ListingEntryId, ListingError,
    NewListingEntry, TreeListing,
};

use super::TwoWayPair;
use super::state::{EntryFacts, EntryState};

/// The state in which both sides agreed.
#[derive(Debug, Clone)]
pub struct TwoWayArchive {
    /// The two ends.
    pub pair: TwoWayPair,
    /// The entries, as the first side had them. An entry with [`EntryFlags::IMPLIED`] was not agreed on itself; it is
    /// there because entries below it are.
    pub(super) tree: TreeListing,
    /// The second side's state of those entries whose attributes differ there.
    pub(super) second: HashMap<ListingEntryId, EntryState>,
    /// The hashes of attributes that the first side had.
    pub(super) marks: HashMap<ListingEntryId, u64>,
    /// The change times (`ctime`) of files, on each side.
    pub(super) stamps: HashMap<ListingEntryId, [u64; 2]>,
    /// Files that were written so shortly before their listing that a later edit may leave the same size and time.
    pub(super) unsure: HashSet<ListingEntryId>,
}

/// An entry to be put into an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgreedEntry {
    /// Its state on the first side.
    pub first: EntryState,
    /// Its state on the second side.
    pub second: EntryState,
    /// The target of a symlink.
    pub target: Box<[u8]>,
    /// The hash of a file whose content was read.
    pub digest: Option<ContentDigest>,
    /// The change time (`ctime`) on each side; 0 if unknown.
    pub stamps: [u64; 2],
    /// It was written so shortly before its listing that a later edit may leave the same size and time: the next run
    /// reads its content.
    pub unsure: bool,
    /// A directory that was not agreed on itself.
    pub implied: bool,
}

impl TwoWayArchive {
    /// An archive without entries.
    #[must_use]
    pub fn new(pair: TwoWayPair) -> Self {
        // The root is implied: the two roots were named by the user and need not have the same attributes.
        let root = NewListingEntry { flags: EntryFlags::IMPLIED, ..NewListingEntry::unknown_dir() };
        Self {
            pair,
            tree: TreeListing::new(&root, None),
            second: HashMap::new(),
            marks: HashMap::new(),
            stamps: HashMap::new(),
            unsure: HashSet::new(),
        }
    }

    /// The root.
    #[must_use]
    pub fn root(&self) -> ListingEntry<'_> {
        self.tree.root()
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tree.len() - 1
    }

    /// Whether it has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }

    /// The state of an entry on the first side, and on the second; None for an entry that was not agreed on itself.
    #[must_use]
    pub fn entry_facts(&self, entry: ListingEntry<'_>) -> Option<[EntryFacts<'_>; 2]> {
        let entry = self.tree.get(entry.id()).filter(|entry| !entry.flags().contains(EntryFlags::IMPLIED))?;
        let mut first = EntryFacts::from_entry(entry);
        first.state.mark = self.marks.get(&entry.id()).copied().unwrap_or(0);
        let stamps = self.stamps.get(&entry.id()).copied().unwrap_or_default();
        (first.stamp, first.unsure) = (stamps[0], self.unsure.contains(&entry.id()));
        // Most entries are equal on both sides, so the second side is stored only where it differs. This
        // keeps the archive of a large tree small in memory.
        let mut second = first;
        second.stamp = stamps[1];
        second.state = self.second.get(&entry.id()).copied().unwrap_or(first.state);
        Some([first, second])
    }

    /// The recorded facts of an entry, to be put into another archive.
    #[must_use]
    pub fn agreed_entry(&self, entry: ListingEntry<'_>) -> AgreedEntry {
        match self.entry_facts(entry) {
            Some([first, second]) => AgreedEntry {
                first: first.state,
                second: second.state,
                target: first.target.into(),
                digest: first.digest.copied(),
                stamps: [first.stamp, second.stamp],
                unsure: first.unsure,
                implied: false,
            },
            None => AgreedEntry::new_implied(),
        }
    }

    /// Adds the entries of a directory, in the order of their names; returns the number of the first.
    pub fn attach_entries(
        &mut self,
        dir: ListingEntryId,
        entries: &[(&[u8], AgreedEntry)],
    ) -> Result<ListingEntryId, ListingError> {
        let mut block = DirectoryBlock::with_capacity(entries.len());
        for (name, agreed) in entries {
            block.push(name, &agreed.to_new_entry(), agreed.to_entry_detail())?;
        }
        let first = self.tree.attach_block(dir, &mut block)?;
        // The entries of a directory are consecutive, so the number of each follows from that of the first.
        for (place, (_, agreed)) in entries.iter().enumerate() {
            let id = ListingEntryId::from_u32(first.as_u32() + u32::try_from(place).unwrap_or(u32::MAX));
            self.record_agreed(id.ok_or(ListingError::TooLarge)?, agreed);
        }
        Ok(first)
    }

    /// The same archive without the entries at these paths, and without everything below them.
    pub(super) fn without_entries(&self, paths: &BTreeSet<Vec<u8>>) -> Result<Self, ListingError> {
        let mut kept = Self::new(self.pair);
        // The list is its own queue: directories are numbered in the order in which they are read from a file.
        let mut dirs = vec![(self.root(), ListingEntryId::ROOT)];
        let mut next = 0;
        while let Some((dir, id)) = dirs.get(next).copied() {
            next += 1;
            let children: Vec<ListingEntry<'_>> =
                dir.children().filter(|child| !paths.contains(&child.path())).collect();
            let entries: Vec<(&[u8], AgreedEntry)> =
                children.iter().map(|child| (child.name(), self.agreed_entry(*child))).collect();
            let first = kept.attach_entries(id, &entries)?;
            for (place, child) in children.iter().enumerate().filter(|(_, child)| child.is_dir()) {
                dirs.push((*child, first.offset_by(u32::try_from(place).unwrap_or(u32::MAX))));
            }
        }
        Ok(kept)
    }

    fn record_agreed(&mut self, id: ListingEntryId, agreed: &AgreedEntry) {
        if agreed.second != agreed.first {
            self.second.insert(id, agreed.second);
        }
        // The mark of the second side needs no table: it is part of its state, which is stored above if it
        // differs.
        if agreed.first.mark != 0 {
            self.marks.insert(id, agreed.first.mark);
        }
        if agreed.stamps != [0; 2] {
            self.stamps.insert(id, agreed.stamps);
        }
        if agreed.unsure {
            self.unsure.insert(id);
        }
        if let Some(digest) = agreed.digest {
            self.tree.set_content_digest(id, digest);
        }
    }
}

impl PartialEq for TwoWayArchive {
    fn eq(&self, other: &Self) -> bool {
        // The tables can have a different order and hold the same facts. The bytes are canonical.
        self.pair == other.pair && self.encode() == other.encode()
    }
}

impl AgreedEntry {
    /// A directory that is only there because entries below it are.
    #[must_use]
    pub fn new_implied() -> Self {
        let state = EntryState {
            kind: vellum_types::FileKind::Dir,
            mode: 0o755,
            uid: 0,
            gid: 0,
            size: 0,
            mtime: vellum_types::UnixTime::default(),
            rdev: 0,
            mark: 0,
        };
        let digest = None;
        let stamps = [0; 2];
        let unsure = false;
        Self { first: state, second: state, target: Box::default(), digest, stamps, unsure, implied: true }
    }

    fn to_new_entry(&self) -> NewListingEntry {
        let EntryState { kind, mode, uid, gid, size, mtime, .. } = self.first;
        let flags = EntryFlags::default().union_if(EntryFlags::IMPLIED, self.implied);
        NewListingEntry { kind, mode, uid, gid, size, mtime, flags }
    }

    fn to_entry_detail(&self) -> Option<EntryDetail> {
        let plain = self.target.is_empty() && self.first.rdev == 0;
        (!plain).then(|| EntryDetail {
            target: self.target.clone(),
            rdev: self.first.rdev,
            ..EntryDetail::default()
        })
    }
}
