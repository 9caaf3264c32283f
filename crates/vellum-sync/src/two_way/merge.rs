//! The archive and both listings, merged into one tree.
//!
//! Invariant: a node stands after the node of its directory, and the nodes of one directory stand together, in the
//! order of names. So one pass forwards passes facts down and one pass backwards passes them up, at any depth of the
//! tree.

use crate::model::listing::{ListingEntry, ListingEntryId, TreeListing};
use crate::model::options::PreserveOptions;

use super::TwoWaySide;
use super::archive::TwoWayArchive;
use super::state::{ChangeExtent, EntryFacts};

/// The state of an entry on one side, compared with the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryStatus {
    /// It is not there, and is not in the archive.
    Absent,
    /// It is in the archive and not there.
    Deleted,
    /// It is there and not in the archive.
    New,
    /// It is there and in the archive.
    Known(ChangeExtent),
}

impl EntryStatus {
    pub fn is_present(self) -> bool {
        matches!(self, Self::New | Self::Known(_))
    }

    /// Whether it was created or edited here since both sides agreed.
    pub fn is_edited(self) -> bool {
        matches!(self, Self::New | Self::Known(ChangeExtent::Attributes | ChangeExtent::Content))
    }
}

/// One path of the merged tree.
#[derive(Debug, Clone, Copy)]
pub(super) struct MergedNode {
    /// The entry of the archive.
    pub archived: Option<ListingEntryId>,
    /// The entry of each side.
    pub sides: [Option<ListingEntryId>; 2],
    /// The state of each side's entry, compared with the archive's.
    pub standing: [EntryStatus; 2],
    /// Whether each side's entry is a file with its old size and time that may nevertheless have been written.
    pub doubtful: [bool; 2],
    /// The node of its directory; the root is its own.
    pub parent: usize,
    /// The index of the first node below it, and the number of such nodes.
    pub first: usize,
    pub count: usize,
}

/// The merged tree.
pub(super) struct ThreeWayTree<'a> {
    pub archive: &'a TwoWayArchive,
    pub listings: [&'a TreeListing; 2],
    pub nodes: Vec<MergedNode>,
}

impl<'a> ThreeWayTree<'a> {
    /// Merges all three.
    pub fn merge_listings(
        archive: &'a TwoWayArchive,
        listings: [&'a TreeListing; 2],
        preserve: &PreserveOptions,
    ) -> Self {
        let mut merged = Self { archive, listings, nodes: Vec::new() };
        let roots = [Some(archive.root()), Some(listings[0].root()), Some(listings[1].root())];
        merged.push_node(roots, 0, preserve);
        // The nodes are the queue of their own breadth-first walk, which puts the entries of a directory next
        // to each other and needs no recursion.
        let mut next = 0;
        while next < merged.nodes.len() {
            merged.enter_dir(next, preserve);
            next += 1;
        }
        merged
    }

    fn enter_dir(&mut self, place: usize, preserve: &PreserveOptions) {
        let first = self.nodes.len();
        let mut lists = self.node_entries(place).map(|entry| {
            // Where one of the three is a file and another a directory, the entries of the directory are
            // walked alone.
            entry.filter(ListingEntry::is_dir).into_iter().flat_map(|dir| dir.children()).peekable()
        });
        while let Some(name) = lists.iter_mut().filter_map(|list| list.peek().map(ListingEntry::name)).min() {
            let found = lists.each_mut().map(|list| list.next_if(|entry| entry.name() == name));
            // An entry that only the archive has was deleted on both sides: it is dropped with its subtree.
            if found[1].is_some() || found[2].is_some() {
                self.push_node(found, place, preserve);
            }
        }
        let count = self.nodes.len() - first;
        if let Some(node) = self.nodes.get_mut(place) {
            (node.first, node.count) = (first, count);
        }
    }

    fn push_node(&mut self, found: [Option<ListingEntry<'a>>; 3], parent: usize, preserve: &PreserveOptions) {
        let [archived, a, b] = found;
        let seen = archived.and_then(|entry| self.archive.entry_facts(entry));
        let standing = |which: TwoWaySide, entry: Option<ListingEntry<'_>>| match (&seen, entry) {
            (None, None) => EntryStatus::Absent,
            // A missing entry is a deletion only if the archive says that both sides had it. Without an
            // archive nothing is ever deleted.
            (Some(_), None) => EntryStatus::Deleted,
            (None, Some(_)) => EntryStatus::New,
            (Some(seen), Some(entry)) => EntryStatus::Known(
                // Each side is compared with its own earlier state. The other side may round times or lack
                // owners, which would look like changes.
                which.select_from(seen).compare_to(&EntryFacts::from_entry(entry), preserve),
            ),
        };
        let doubtful = |which: TwoWaySide, entry: Option<ListingEntry<'_>>| {
            seen.as_ref().zip(entry).is_some_and(|(seen, entry)| {
                which.select_from(seen).is_doubtful(&EntryFacts::from_entry(entry))
            })
        };
        self.nodes.push(MergedNode {
            archived: archived.map(|entry| entry.id()),
            sides: [a, b].map(|entry| entry.map(|entry| entry.id())),
            standing: [standing(TwoWaySide::First, a), standing(TwoWaySide::Second, b)],
            doubtful: [doubtful(TwoWaySide::First, a), doubtful(TwoWaySide::Second, b)],
            parent,
            first: 0,
            count: 0,
        });
    }

    /// The three entries of a node: the archive's and one of each side.
    fn node_entries(&self, place: usize) -> [Option<ListingEntry<'a>>; 3] {
        let archive = self.archive;
        let [a, b] = self.listings;
        let Some(node) = self.nodes.get(place) else { return [None; 3] };
        let known = node.archived.map(|id| archive.tree.entry(id));
        [known, node.sides[0].map(|id| a.entry(id)), node.sides[1].map(|id| b.entry(id))]
    }

    /// The entry of one side at a node.
    pub fn side_entry(&self, node: &MergedNode, which: TwoWaySide) -> Option<ListingEntry<'a>> {
        which.select_from(&node.sides).map(|id| which.select_from(&self.listings).entry(id))
    }

    /// The path of a node.
    pub fn node_path(&self, node: &MergedNode) -> Vec<u8> {
        let entry = TwoWaySide::BOTH.into_iter().find_map(|which| self.side_entry(node, which));
        entry.map(|entry| entry.path()).unwrap_or_default()
    }

    /// The nodes of the subtree that begins at one, itself the first.
    pub fn subtree_nodes(&self, place: usize) -> Vec<usize> {
        let mut found = vec![place];
        // The list is its own queue; trees can be deeper than the stack.
        let mut next = 0;
        while let Some(node) = found.get(next).and_then(|place| self.nodes.get(*place)) {
            found.extend(node.first..node.first + node.count);
            next += 1;
        }
        found
    }
}
