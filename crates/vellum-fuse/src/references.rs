//! The nodes that a kernel knows: which answers name them, and what it has forgotten since.
//!
//! Whoever forwards requests, and whoever answers them, counts the same answers, so that both know what is still held when
//! a connection or one of the two ends.
//!
//! Invariant: nothing is released more often than it was named.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::wire::{Opcode, visit_listed_entries};

/// Bytes of the node id at the start of an entry.
const NODE_LEN: usize = 8;

/// How often each node was named by an answer, and not forgotten since.
#[derive(Debug, Default)]
pub struct NodeReferences(HashMap<u64, u64>);

impl NodeReferences {
    /// Counts the nodes that an answer names.
    pub fn record_answer(&mut self, opcode: u32, answer: &[u8]) {
        visit_named_nodes(opcode, answer, |node| self.add(node, 1));
    }

    /// Counts a node so many times more.
    pub fn add(&mut self, node: u64, times: u64) {
        let count = self.0.entry(node).or_default();
        *count = count.saturating_add(times);
    }

    /// Counts a node so many times less; gives how often it was counted of these times.
    pub fn release(&mut self, node: u64, times: u64) -> u64 {
        let Entry::Occupied(mut entry) = self.0.entry(node) else { return 0 };
        let released = times.min(*entry.get());
        *entry.get_mut() -= released;
        // Otherwise the table would grow with every node that the kernel ever knew.
        if *entry.get() == 0 {
            entry.remove();
        }
        released
    }

    /// How often a node is counted.
    #[must_use]
    pub fn count_of(&self, node: u64) -> u64 {
        self.0.get(&node).copied().unwrap_or(0)
    }

    /// How many nodes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = u64> {
        self.0.keys().copied()
    }

    /// Takes all nodes, with how often each is counted.
    pub fn take_all(&mut self) -> impl Iterator<Item = (u64, u64)> + use<> {
        std::mem::take(&mut self.0).into_iter()
    }
}

/// Calls `visit` for each node that a successful answer names, as often as the kernel counts it. Bytes that are no answer
/// to such a request name what they can be read as.
pub fn visit_named_nodes(opcode: u32, answer: &[u8], mut visit: impl FnMut(u64)) {
    match Opcode::from_number(opcode) {
        Some(
            Opcode::Lookup
            | Opcode::Symlink
            | Opcode::Mknod
            | Opcode::Mkdir
            | Opcode::Link
            | Opcode::Create
            | Opcode::Tmpfile,
        ) => {
            let node = answer.first_chunk::<NODE_LEN>().map_or(0, |node| u64::from_ne_bytes(*node));
            // Node 0: the name does not exist, which the kernel may cache.
            if node != 0 {
                visit(node);
            }
        }
        Some(Opcode::Readdirplus) => visit_listed_entries(answer, |node, name| {
            // The kernel does not count what it knows already.
            if node != 0 && !matches!(name, b"." | b"..") {
                visit(node);
            }
        }),
        Some(_) | None => {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use vellum_types::{FileKind, InodeAttr};

    use super::*;
    use crate::adapter::convert::to_node_attributes;
    use crate::wire::{EntryAnswer, ListingAnswer, NameInAnswer, SmallAnswer};

    const LOOKUP: u32 = 1;
    const READDIRPLUS: u32 = 44;

    fn entry(node: u64) -> EntryAnswer {
        let attr = to_node_attributes(node, &InodeAttr::new(FileKind::File, 0o644), 0);
        EntryAnswer { attr, generation: 0, timeout: Duration::ZERO }
    }

    #[test]
    fn an_entry_names_its_node_and_a_missing_name_names_none() {
        let mut references = NodeReferences::default();
        references.record_answer(LOOKUP, SmallAnswer::for_entry(&entry(7)).answer_body());
        references.record_answer(LOOKUP, SmallAnswer::for_entry(&entry(7)).answer_body());
        references.record_answer(LOOKUP, SmallAnswer::for_entry(&entry(0)).answer_body());
        references.record_answer(LOOKUP, &[1, 2]);
        assert_eq!((references.count_of(7), references.len()), (2, 1));
        assert_eq!([references.release(7, 1), references.release(7, 5), references.release(7, 1)], [1, 1, 0]);
        assert!(references.is_empty());
    }

    #[test]
    fn a_listing_names_all_but_the_dots() {
        let mut listing = ListingAnswer::new(4096);
        for (name, node) in [(&b"."[..], 1), (b"..", 1), (b"a", 5), (b"a long name", 6), (b"b", 5)] {
            let named = NameInAnswer { name, node, mode: 0o100_000, next: 1 };
            assert!(listing.add_name_with_entry(named, &entry(node)));
        }
        let mut references = NodeReferences::default();
        references.record_answer(READDIRPLUS, &listing.into_bytes());
        let mut all: Vec<_> = references.take_all().collect();
        all.sort_unstable();
        assert_eq!(all, [(5, 2), (6, 1)]);
    }

    proptest! {
        #[test]
        fn any_answer_can_be_read(opcode in 0u32..60, answer in prop::collection::vec(any::<u8>(), 0..600)) {
            visit_named_nodes(opcode, &answer, |node| assert_ne!(node, 0));
        }
    }
}
