//! From the nodes of a walk, in the order in which they happened to be visited, to a tree in pre-order.

use vellum_types::FileKind;

use super::tree::{DirRecord, Entry, GONE, NONE, Tree, UNCHANGED};
use super::walk::{Done, Node, Outcome};
use crate::meta::Stat;
use crate::statcache::StatCache;

/// Builds the tree.
pub(super) fn build(mut done: Done, root_stat: Stat, cache: Option<StatCache>) -> Tree {
    apply_outcomes(&mut done.nodes);
    let dirs = number(done.nodes);
    let mut problems = done.problems;
    problems.sort_by(|a, b| a.path.cmp(&b.path));
    Tree { root_stat, dirs, cache, problems }
}

/// Corrects the entries of directories that turned out to be something else, or gone.
fn apply_outcomes(nodes: &mut [Node]) {
    let mut thinned = Vec::new();
    for number in 0..nodes.len() {
        let Node { parent, entry, outcome, .. } = nodes[number];
        if parent == NONE {
            continue;
        }
        let entry = &mut nodes[parent as usize].listing.entries[entry as usize];
        match outcome {
            Outcome::AsSeen => {}
            Outcome::Became(stat) => become_other(entry, stat),
            Outcome::Gone => {
                entry.flags |= GONE;
                thinned.push(parent);
            }
        }
    }
    for parent in thinned {
        nodes[parent as usize].listing.entries.retain(|entry| entry.flags & GONE == 0);
    }
}

fn become_other(entry: &mut Entry, stat: Stat) {
    entry.stat = stat;
    entry.flags &= !UNCHANGED;
    if stat.kind != FileKind::Dir {
        entry.child = NONE;
    }
}

/// Puts the directories in pre-order and makes parents and children point to each other by their new numbers.
fn number(mut nodes: Vec<Node>) -> Vec<DirRecord> {
    let mut dirs: Vec<DirRecord> = Vec::with_capacity(nodes.len());
    // Node, its new parent, its place there.
    let mut stack = vec![(0, NONE, 0)];
    while let Some((node, parent, entry)) = stack.pop() {
        let number = dirs.len() as u32;
        if let Some(dir) = dirs.get_mut(parent as usize) {
            dir.entries[entry as usize].child = number;
        }
        let listing = &mut nodes[node as usize].listing;
        let entries = std::mem::take(&mut listing.entries).into_boxed_slice();
        let names = std::mem::take(&mut listing.names).into_boxed_slice();
        let children = (0..).zip(&entries).filter(|(_, entry)| entry.child != NONE);
        let first = stack.len();
        stack.extend(children.map(|(place, entry)| (entry.child, number, place)));
        stack[first..].reverse();
        let coverage = std::mem::replace(&mut listing.coverage, super::tree::Coverage::Unread);
        let (cached, left_out) = (listing.cached, listing.left_out);
        dirs.push(DirRecord { parent, entry, entries, names, coverage, cached, left_out });
    }
    dirs
}
