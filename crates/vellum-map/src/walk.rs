//! Every node of a map, each once, parents first and otherwise in the order of keys.

use std::sync::Arc;

use vellum_types::BlobId;

use crate::error::MapError;
use crate::node::MapNode;
use crate::path::{check_follows, load_child};
use crate::source::{MapRoot, NodeSource};

/// Visits the nodes of a map.
///
/// `wants` is called before a node is read; a node that it refuses is not read, and nothing below it is visited. A
/// collector refuses what it has marked already (and so walks several maps that share nodes, each node once); given
/// levels, a caller can stop above the leaves and share these out among threads. The level of the root is not known
/// before it is read: `wants` is called with None for it.
pub fn walk_nodes<S, W, V, E>(source: &S, root: &MapRoot, mut wants: W, mut visit: V) -> Result<(), E>
where
    S: NodeSource + ?Sized,
    W: FnMut(&BlobId, Option<u8>) -> bool,
    V: FnMut(&BlobId, &Arc<MapNode>) -> Result<(), E>,
    E: From<MapError>,
{
    if !wants(&root.0, None) {
        return Ok(());
    }
    let top = source.load_node(&root.0)?;
    visit(&root.0, &top)?;
    let mut frames = vec![WalkFrame::new(top, &mut wants)];
    while let Some(frame) = frames.last_mut() {
        let Some(index) = frame.next_child(source) else {
            frames.pop();
            continue;
        };
        let Some((id, node)) = load_child(source, &frame.node, index)? else { continue };
        // The nearest key to the left of this child stands in the lowest node on the path that was not entered at its
        // first child.
        let before = frames.iter().rev().find(|frame| frame.at > 0);
        if let Some(key) = before.and_then(|frame| frame.node.key(frame.at - 1)) {
            check_follows(id, &node, key)?;
        }
        visit(&id, &node)?;
        if !node.is_leaf() {
            frames.push(WalkFrame::new(node, &mut wants));
        }
    }
    Ok(())
}

struct WalkFrame {
    node: Arc<MapNode>,
    /// Positions of the children that are wanted.
    wanted: Vec<usize>,
    next: usize,
    /// Position of the child that was entered last.
    at: usize,
}

impl WalkFrame {
    fn new(node: Arc<MapNode>, wants: &mut impl FnMut(&BlobId, Option<u8>) -> bool) -> Self {
        let level = node.level().checked_sub(1);
        let wanted = (0..node.len())
            .filter(|index| node.child(*index).is_some_and(|child| wants(&child.id, level)))
            .collect();
        Self { node, wanted, next: 0, at: 0 }
    }

    fn next_child(&mut self, source: &(impl NodeSource + ?Sized)) -> Option<usize> {
        if self.next == 0 {
            // All wanted children are announced at once, before the first is read, so that a distant source can fetch
            // them together.
            let ids: Vec<BlobId> = self
                .wanted
                .iter()
                .filter_map(|index| self.node.child(*index))
                .map(|child| child.id)
                .collect();
            source.prefetch_nodes(&ids);
        }
        let index = *self.wanted.get(self.next)?;
        self.next += 1;
        self.at = index;
        Some(index)
    }
}
