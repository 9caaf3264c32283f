//! Scans of selected paths.

use std::collections::BTreeMap;

use vellum_types::key::check_name;

use vellum_host::beneath::BeneathError;

/// A set of relative paths, each of which includes everything below it.
#[derive(Debug, Clone)]
pub struct PathSelection {
    nodes: Vec<SelectionNode>,
}

#[derive(Debug, Clone, Default)]
struct SelectionNode {
    whole: bool,
    children: BTreeMap<Box<[u8]>, u32>,
}

/// The selected part of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SelectedPart {
    /// All of it.
    Whole,
    /// The children of this node.
    Some(u32),
}

impl PathSelection {
    /// Selects these paths, which may come from a command line: `.` and empty components are ignored, `..` is refused.
    pub fn from_paths<'p>(paths: impl IntoIterator<Item = &'p [u8]>) -> Result<Self, BeneathError> {
        let mut selection = Self { nodes: vec![SelectionNode::default()] };
        for path in paths {
            selection.add_path(path)?;
        }
        Ok(selection)
    }

    fn add_path(&mut self, path: &[u8]) -> Result<(), BeneathError> {
        let mut here = 0;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
            check_name(name).map_err(|_| BeneathError::Name(path.into()))?;
            here = self.child_or_insert(here, name);
        }
        self.nodes[here].whole = true;
        Ok(())
    }

    fn child_or_insert(&mut self, parent: usize, name: &[u8]) -> usize {
        if let Some(child) = self.nodes[parent].children.get(name) {
            return *child as usize;
        }
        let child = self.nodes.len();
        self.nodes.push(SelectionNode::default());
        self.nodes[parent].children.insert(name.into(), child as u32);
        child
    }

    pub(super) fn is_everything(&self) -> bool {
        self.nodes.first().is_some_and(|root| root.whole)
    }

    /// The selected names in the directory of `node`, sorted, with the selected part of each.
    pub(super) fn selected_children(&self, node: u32) -> impl Iterator<Item = (&[u8], SelectedPart)> {
        let children = self.nodes.get(node as usize).into_iter().flat_map(|node| &node.children);
        children.map(|(name, child)| (&**name, self.part_of_node(*child)))
    }

    /// The selected part of an entry in the directory of `node`.
    pub(super) fn selected_child(&self, node: u32, name: &[u8]) -> Option<SelectedPart> {
        self.nodes.get(node as usize)?.children.get(name).map(|child| self.part_of_node(*child))
    }

    fn part_of_node(&self, node: u32) -> SelectedPart {
        match self.nodes.get(node as usize) {
            Some(selected) if !selected.whole => SelectedPart::Some(node),
            // Below a selected path, others that are selected make no difference.
            _ => SelectedPart::Whole,
        }
    }
}
