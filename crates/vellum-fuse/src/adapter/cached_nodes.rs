//! Which nodes the kernel may have cached something of.
//!
//! Invariant: a node takes one bit, since node ids that are in use at the same time are close together.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use parking_lot::Mutex;

/// A set of nodes of which the kernel may have cached something: the listing of a directory, or pages of a file.
#[derive(Debug, Default)]
pub struct KernelCachedNodes(Mutex<BTreeMap<u64, u64>>);

/// Bits of a word.
const WORD: u64 = u64::BITS as u64;

impl KernelCachedNodes {
    /// Adds a node.
    pub fn record_node(&self, node: u64) {
        *self.0.lock().entry(node / WORD).or_default() |= 1 << (node % WORD);
    }

    /// Whether the kernel may have cached something of a node.
    pub fn contains_node(&self, node: u64) -> bool {
        self.0.lock().get(&(node / WORD)).is_some_and(|bits| bits & 1 << (node % WORD) != 0)
    }

    /// Removes a node that the kernel has forgotten.
    pub fn remove_node(&self, node: u64) {
        if let Entry::Occupied(mut word) = self.0.lock().entry(node / WORD) {
            *word.get_mut() &= !(1 << (node % WORD));
            // Empty words go, so that the table does not grow with all nodes that ever were in use.
            if *word.get() == 0 {
                word.remove();
            }
        }
    }

    /// Returns all nodes, and removes them.
    pub fn take_all_nodes(&self) -> impl Iterator<Item = u64> + use<> {
        let words = std::mem::take(&mut *self.0.lock());
        let nodes = |(word, bits): (u64, u64)| {
            (0..WORD).filter(move |bit| bits & 1 << bit != 0).map(move |bit| word * WORD + bit)
        };
        words.into_iter().flat_map(nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembered_directories_are_told_once() {
        let remembered = KernelCachedNodes::default();
        let nodes = [1, 2, 63, 64, 1 << 40, u64::MAX];
        nodes.into_iter().chain([2]).for_each(|node| remembered.record_node(node));
        assert_eq!(remembered.take_all_nodes().collect::<Vec<_>>(), nodes);
        assert_eq!(remembered.take_all_nodes().count(), 0);
    }

    #[test]
    fn what_is_forgotten_is_not_remembered() {
        let remembered = KernelCachedNodes::default();
        [3, 4, 64].into_iter().for_each(|node| remembered.record_node(node));
        remembered.remove_node(3);
        remembered.remove_node(5);
        remembered.remove_node(64);
        assert_eq!([3, 4, 64].map(|node| remembered.contains_node(node)), [false, true, false]);
        assert_eq!(remembered.0.lock().len(), 1);
    }
}
