//! A place in a stored tree: the nodes from the root down to one level, and the way on from there.
//!
//! Invariant: every node that a path hands out was checked against its entry in the parent (level, last key,
//! count) and against the keys before it. So a path through a hostile tree goes strictly forward and ends.

use std::sync::Arc;

use vellum_types::BlobId;

use crate::error::MapError;
use crate::node::{ChildDescription, MapNode};
use crate::source::NodeSource;

/// Loads the child at a position, and checks it against its entry in the parent. None past the last child.
pub(crate) fn load_child<S: NodeSource + ?Sized>(
    source: &S,
    parent: &MapNode,
    index: usize,
) -> Result<Option<(BlobId, Arc<MapNode>)>, MapError> {
    let Some(child) = parent.child(index) else { return Ok(None) };
    let node = source.load_node(&child.id)?;
    check_child(parent, &child, &node)?;
    Ok(Some((child.id, node)))
}

fn check_child(parent: &MapNode, child: &ChildDescription<'_>, node: &MapNode) -> Result<(), MapError> {
    check_level(parent, child.id, node)?;
    // A search follows these claims of the parent. With a false one, the tree would hide keys, or count others than it has.
    let what = if node.last_key() != Some(child.last_key) {
        "its last key is another"
    } else if node.total_keys() != child.count {
        "its number of keys is another"
    } else {
        return Ok(());
    };
    Err(MapError::Misplaced { id: child.id, what })
}

/// Checks that a node is one level below its parent: no chain of nodes is endless.
pub(crate) fn check_level(parent: &MapNode, id: BlobId, node: &MapNode) -> Result<(), MapError> {
    if node.level().checked_add(1) == Some(parent.level()) {
        Ok(())
    } else {
        Err(MapError::Misplaced { id, what: "its level is not one below" })
    }
}

/// Checks that a node that follows `before` has only greater keys.
pub(crate) fn check_follows(id: BlobId, node: &MapNode, before: &[u8]) -> Result<(), MapError> {
    match node.key(0) {
        Some(first) if first <= before => {
            Err(MapError::Misplaced { id, what: "its first key is not above the keys before it" })
        }
        _ => Ok(()),
    }
}

#[derive(Debug)]
struct PathFrame {
    node: Arc<MapNode>,
    index: usize,
}

/// Stands on a node of one level (the floor), between two, or at the end.
#[derive(Debug)]
pub(crate) struct NodePath {
    floor: u8,
    /// Inner nodes above the floor with the child to go to; empty if the root is at the floor.
    frames: Vec<PathFrame>,
    /// The node that it stands on; None until it is loaded, or when it was stepped over.
    current: Option<Arc<MapNode>>,
    /// All was stepped over.
    ended: bool,
}

impl NodePath {
    /// Stands before the first node of level `floor`, which must not be above the root's.
    pub(crate) fn new(top: Arc<MapNode>, floor: u8) -> Self {
        let mut path = Self { floor, frames: Vec::new(), current: None, ended: false };
        if top.level() <= floor {
            path.current = Some(top);
        } else {
            path.frames.push(PathFrame { node: top, index: 0 });
        }
        path
    }

    /// The node it stands on, or None at the end.
    pub(crate) fn current_node<S: NodeSource + ?Sized>(
        &mut self,
        source: &S,
    ) -> Result<Option<Arc<MapNode>>, MapError> {
        if self.current.is_none() && !self.ended {
            self.descend_to_floor(source, |_| 0)?;
        }
        Ok(self.current.clone())
    }

    /// Goes forward to the node in whose range `key` falls: the first whose last key is not below it, or else the
    /// last one that was not stepped over.
    pub(crate) fn seek_key<S: NodeSource + ?Sized>(
        &mut self,
        source: &S,
        key: &[u8],
    ) -> Result<Option<Arc<MapNode>>, MapError> {
        let covers = |node: &MapNode| node.last_key().is_some_and(|last| last >= key);
        // The node that is loaded covers the key: a sequence of near keys needs no search from above.
        if self.ended || self.current.as_deref().is_some_and(covers) {
            return Ok(self.current.clone());
        }
        // The root is at the floor, and there is no other node.
        if self.frames.is_empty() {
            return Ok(self.current.clone());
        }
        // Only as far up as necessary: a higher node covers the key, or is the root.
        while self.frames.len() > 1 && !self.frames.last().is_some_and(|frame| covers(&frame.node)) {
            self.frames.pop();
        }
        if let Some(frame) = self.frames.last_mut() {
            let last = frame.node.len().saturating_sub(1);
            // Never backwards: nodes before the position were handed out or stepped over.
            frame.index = frame.node.lower_bound(key).clamp(frame.index.min(last), last);
        }
        self.current = None;
        self.descend_to_floor(source, |node| node.lower_bound(key).min(node.len().saturating_sub(1)))?;
        Ok(self.current.clone())
    }

    /// Leaves the current node behind, without loading the next.
    pub(crate) fn skip_current(&mut self) {
        self.current = None;
        while let Some(frame) = self.frames.last_mut() {
            frame.index += 1;
            if frame.index < frame.node.len() {
                return;
            }
            self.frames.pop();
        }
        self.ended = true;
    }

    /// Loads nodes down to the floor; `choose` returns the child to take in each inner node that is new.
    fn descend_to_floor<S: NodeSource + ?Sized>(
        &mut self,
        source: &S,
        choose: impl Fn(&MapNode) -> usize,
    ) -> Result<(), MapError> {
        // Below the floor nothing is needed. If a node has no child at the position, the tree has ended.
        while let Some(frame) = self.frames.last() {
            let Some((id, node)) = load_child(source, &frame.node, frame.index)? else { break };
            if let Some(before) = self.preceding_key() {
                check_follows(id, &node, before)?;
            }
            if node.level() <= self.floor {
                self.current = Some(node);
                return Ok(());
            }
            let index = choose(&node);
            self.frames.push(PathFrame { node, index });
        }
        self.ended = true;
        Ok(())
    }

    /// The last key before the child that the lowest frame points to.
    fn preceding_key(&self) -> Option<&[u8]> {
        let frame = self.frames.iter().rev().find(|frame| frame.index > 0)?;
        frame.node.key(frame.index - 1)
    }
}
