//! The nodes that the client's kernel knows, and how often the server has counted each for this client.
//!
//! Invariant: the server is told that a node is forgotten when the kernel has forgotten each answer that named it, and no
//! answer that is kept names it; and then as often as the server counted it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use vellum_fuse::visit_named_nodes;

/// The nodes.
#[derive(Debug, Default)]
pub struct KnownNodes(HashMap<u64, NodeCounts>);

/// How often a node is counted.
#[derive(Debug, Clone, Copy, Default)]
struct NodeCounts {
    by_kernel: u64,
    by_server: u64,
}

impl KnownNodes {
    /// Counts the nodes that an answer names.
    pub fn record_answer(&mut self, opcode: u32, answer: &[u8]) {
        visit_named_nodes(opcode, answer, |node| {
            let counts = self.0.entry(node).or_default();
            counts.by_kernel += 1;
            counts.by_server += 1;
        });
    }

    /// Counts the nodes that an answer names which the server does not know of.
    pub fn record_cached_answer(&mut self, opcode: u32, answer: &[u8]) {
        visit_named_nodes(opcode, answer, |node| {
            if let Some(counts) = self.0.get_mut(&node) {
                // The server has counted it for another answer, and is told to forget that only when the kernel has
                // forgotten this one.
                counts.by_kernel += 1;
            }
        });
    }

    /// Whether the server holds a node for this client.
    pub fn knows(&self, node: u64) -> bool {
        self.0.contains_key(&node)
    }

    /// The kernel has forgotten so many answers that named a node. Gives whether it does not know the node any more.
    pub fn forget(&mut self, node: u64, times: u64) -> bool {
        let Some(counts) = self.0.get_mut(&node) else { return false };
        // A kernel never forgets more than it was told; if it did, the node would be held no longer than it knows it.
        counts.by_kernel = counts.by_kernel.saturating_sub(times);
        counts.by_kernel == 0
    }

    /// No answer that is kept names a node. Gives how often the server is to count it less, if the kernel does not know it,
    /// either.
    pub fn release(&mut self, node: u64) -> Option<u64> {
        let Entry::Occupied(entry) = self.0.entry(node) else { return None };
        (entry.get().by_kernel == 0).then(|| entry.remove().by_server)
    }

    /// All nodes, for a server that counts each once from now on.
    pub fn count_anew(&mut self) -> Vec<u64> {
        self.0.values_mut().for_each(|counts| counts.by_server = 1);
        self.0.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup_answer(node: u64) -> [u8; 128] {
        let mut answer = [0; 128];
        answer[..8].copy_from_slice(&node.to_le_bytes());
        answer
    }

    #[test]
    fn the_server_is_told_when_the_kernel_has_forgotten_a_node() {
        let mut known = KnownNodes::default();
        (0..3).for_each(|_| known.record_answer(1, &lookup_answer(7)));
        assert!(!known.forget(7, 1));
        assert_eq!(known.release(7), None);
        assert!(known.forget(7, 2));
        assert!(known.knows(7));
        assert_eq!([known.release(7), known.release(7)], [Some(3), None]);
        assert!(!known.forget(7, 1));
    }

    #[test]
    fn answers_of_the_client_itself_are_counted_for_the_kernel_alone() {
        let mut known = KnownNodes::default();
        known.record_answer(1, &lookup_answer(7));
        known.record_cached_answer(1, &lookup_answer(7));
        assert_eq!([known.forget(7, 1), known.forget(7, 1)], [false, true]);
        // As long as an answer is kept, the kernel may learn of the node again.
        known.record_cached_answer(1, &lookup_answer(7));
        assert_eq!(known.release(7), None);
        assert!(known.forget(7, 1));
        assert_eq!(known.release(7), Some(1));
        known.record_cached_answer(1, &lookup_answer(7));
        assert!(!known.knows(7));
    }

    #[test]
    fn a_new_session_counts_each_node_once() {
        let mut known = KnownNodes::default();
        (0..3).for_each(|_| known.record_answer(1, &lookup_answer(7)));
        assert_eq!(known.count_anew(), [7]);
        known.record_answer(1, &lookup_answer(7));
        assert!(known.forget(7, 4));
        assert_eq!(known.release(7), Some(2));
        assert!(known.count_anew().is_empty());
    }
}
