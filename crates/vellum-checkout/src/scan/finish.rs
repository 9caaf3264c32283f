//! Builds a tree in pre-order from the nodes of a walk, whose order depends on the threads.

use vellum_host::metadata::FileStat;
use vellum_types::FileKind;

use super::tree::{GONE, NONE, ScanDirRecord, ScanEntry, ScanTree, UNCHANGED};
use super::walk::{FinishedWalk, VisitOutcome, WalkNode};
use crate::statcache::StatCache;

/// Builds the tree.
pub(super) fn build_scan_tree(
    mut done: FinishedWalk,
    root_stat: FileStat,
    cache: Option<StatCache>,
) -> ScanTree {
    apply_outcomes(&mut done.nodes);
    let dirs = number_dirs(done.nodes);
    let mut problems = done.problems;
    problems.sort_by(|a, b| a.path.cmp(&b.path));
    ScanTree { root_stat, dirs, cache, problems }
}

/// Corrects the entries of directories that were replaced or removed during the walk.
fn apply_outcomes(nodes: &mut [WalkNode]) {
    let mut thinned = Vec::new();
    for number in 0..nodes.len() {
        let WalkNode { parent, entry, outcome, .. } = nodes[number];
        if parent == NONE {
            continue;
        }
        let entry = &mut nodes[parent as usize].listing.entries[entry as usize];
        match outcome {
            VisitOutcome::AsSeen => {}
            VisitOutcome::Became(stat) => replace_entry(entry, stat),
            VisitOutcome::Gone => {
                entry.flags |= GONE;
                // Entries are removed after the loop, because nodes refer to entries of their parents by
                // position.
                thinned.push(parent);
            }
        }
    }
    for parent in thinned {
        nodes[parent as usize].listing.entries.retain(|entry| entry.flags & GONE == 0);
    }
}

fn replace_entry(entry: &mut ScanEntry, stat: FileStat) {
    entry.stat = stat;
    entry.flags &= !UNCHANGED;
    if stat.kind != FileKind::Dir {
        entry.child = NONE;
    }
}

/// Orders the directories in pre-order, and sets the references between parents and children to their new numbers.
fn number_dirs(mut nodes: Vec<WalkNode>) -> Vec<ScanDirRecord> {
    let mut dirs: Vec<ScanDirRecord> = Vec::with_capacity(nodes.len());
    // Node, its new parent, its place there.
    let mut stack = vec![(0, NONE, 0)];
    while let Some((node, parent, entry)) = stack.pop() {
        let number = dirs.len() as u32;
        // A parent is popped before its children are pushed, so its record is already in `dirs`. The root's
        // parent is out of range.
        if let Some(dir) = dirs.get_mut(parent as usize) {
            dir.entries[entry as usize].child = number;
        }
        let listing = &mut nodes[node as usize].listing;
        let entries = std::mem::take(&mut listing.entries).into_boxed_slice();
        let names = std::mem::take(&mut listing.names).into_boxed_slice();
        let children = (0..).zip(&entries).filter(|(_, entry)| entry.child != NONE);
        let first = stack.len();
        stack.extend(children.map(|(place, entry)| (entry.child, number, place)));
        // The stack gives back its last entry first; reversed, children are numbered in the order of their names.
        stack[first..].reverse();
        let coverage = std::mem::replace(&mut listing.coverage, super::tree::DirCoverage::Unread);
        let cached = listing.cached;
        let left_out = listing.left_out;
        dirs.push(ScanDirRecord { parent, entry, entries, names, coverage, cached, left_out });
    }
    dirs
}
