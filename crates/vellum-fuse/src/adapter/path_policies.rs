//! Hydration policies of a mounted worktree: whether a read may fetch content, by the path of what is read.
//!
//! Invariant: what is decided for a node is decided by its path, once, and forgotten when a name may have changed, so that
//! reads resolve no paths. A file with several names has the policy of the one that its inode records.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use vellum_volume::hydration_policy::{HydrationPolicies, HydrationPolicy};

/// Nodes that are remembered, a count: some MiB. Then all are decided anew.
const NODES_MAX: usize = 1 << 16;

/// The policies of a mount, which its process may replace while it is used.
#[derive(Debug, Default)]
pub struct PathPolicies {
    current: RwLock<Arc<HydrationPolicies>>,
    /// Whether any path has the policy `never`: without one, reads look no further.
    has_never: AtomicBool,
    decided: Mutex<DecidedNodes>,
    /// Paths with the policy `never` that were reported.
    reported: Mutex<HashSet<Vec<u8>>>,
}

/// Nodes of which is known whether their content is never fetched.
#[derive(Debug, Default)]
struct DecidedNodes {
    /// Increased whenever all are forgotten.
    generation: u64,
    nodes: HashMap<u64, bool>,
}

impl PathPolicies {
    /// The policies that a mount begins with.
    #[must_use]
    pub fn new(policies: HydrationPolicies) -> Self {
        let shared = Self::default();
        shared.replace_policies(policies);
        shared
    }

    /// The policies as they are now.
    #[must_use]
    pub fn current_policies(&self) -> Arc<HydrationPolicies> {
        self.current.read().clone()
    }

    /// Replaces all policies. Reads that begin later obey them.
    pub fn replace_policies(&self, policies: HydrationPolicies) {
        let has_never = !policies.list_paths_with(HydrationPolicy::Never).is_empty();
        *self.current.write() = Arc::new(policies);
        self.has_never.store(has_never, Ordering::Release);
        self.forget_nodes();
    }

    /// Decides anew for all nodes: names have changed.
    pub fn forget_nodes(&self) {
        // Nothing is remembered before there is a policy to obey.
        let mut decided = self.decided.lock();
        decided.generation += 1;
        decided.nodes.clear();
    }

    /// Whether the content of a node is never fetched; `find_path` is called if that is not known. A node without a path
    /// has no policy.
    pub(super) fn is_never_fetched(&self, node: u64, find_path: impl FnOnce() -> Option<Vec<u8>>) -> bool {
        if !self.has_never.load(Ordering::Acquire) {
            return false;
        }
        let generation = {
            let decided = self.decided.lock();
            if let Some(is_never) = decided.nodes.get(&node) {
                return *is_never;
            }
            decided.generation
        };
        let Some(path) = find_path() else { return false };
        let is_never = self.current.read().find_policy(&path).is_some_and(|(_, policy)| policy.is_never());
        let mut decided = self.decided.lock();
        // Otherwise a name, or a policy, may have changed since the path was read.
        if decided.generation == generation {
            if decided.nodes.len() >= NODES_MAX {
                decided.nodes.clear();
            }
            decided.nodes.insert(node, is_never);
        }
        is_never
    }

    /// The path whose policy forbids to fetch what is at `path`, if that was not reported yet.
    pub(super) fn note_refusal(&self, path: &[u8]) -> Option<Vec<u8>> {
        let policies = self.current_policies();
        let (deciding, policy) = policies.find_policy(path)?;
        let is_new = policy.is_never() && self.reported.lock().insert(deciding.to_vec());
        is_new.then(|| deciding.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn never(path: &[u8]) -> HydrationPolicies {
        let mut policies = HydrationPolicies::default();
        policies.set_policy(path, HydrationPolicy::Never);
        policies
    }

    #[test]
    fn a_path_is_resolved_once_for_a_node_until_names_or_policies_change() {
        let policies = PathPolicies::default();
        assert!(!policies.is_never_fetched(7, || panic!("there is no policy")));
        policies.replace_policies(never(b"a"));
        assert!(policies.is_never_fetched(7, || Some(b"a/b".to_vec())));
        assert!(policies.is_never_fetched(7, || panic!("it is known")));
        assert!(!policies.is_never_fetched(8, || Some(b"b".to_vec())));
        policies.forget_nodes();
        assert!(!policies.is_never_fetched(7, || Some(b"c/b".to_vec())));
        policies.replace_policies(never(b"c"));
        assert!(policies.is_never_fetched(7, || Some(b"c/b".to_vec())));
        assert!(!policies.is_never_fetched(9, || None));
    }

    #[test]
    fn what_is_decided_while_names_change_is_not_remembered() {
        let policies = PathPolicies::new(never(b"a"));
        let during = || {
            policies.forget_nodes();
            Some(b"a/b".to_vec())
        };
        assert!(policies.is_never_fetched(7, during));
        assert!(!policies.is_never_fetched(7, || Some(b"b".to_vec())));
    }

    #[test]
    fn each_path_is_reported_once() {
        let policies = PathPolicies::new(never(b"a"));
        assert_eq!(policies.note_refusal(b"a/b"), Some(b"a".to_vec()));
        assert_eq!(policies.note_refusal(b"a/c"), None);
        assert_eq!(policies.note_refusal(b"b"), None);
    }
}
