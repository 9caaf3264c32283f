//! The answer about a node: its attributes, and how long the kernel may cache them.
//!
//! Invariant: a file of the live worktree is held for each answer that names it, until the kernel forgets the answer.

use rustix::io::Errno;
use vellum_fs::{BareInode, Epoch, FsError, LiveFilesystem, Result, StateReader};
use vellum_types::{FileKind, Ino, InodeAttr};

use super::LONG_TIMEOUT;
use super::convert::to_node_attributes;
use crate::node::NodePlace;
use crate::wire::EntryAnswer;

/// An inode of the state that `node` belongs to.
pub(super) fn sibling_place(node: u64, ino: Ino) -> NodePlace {
    match NodePlace::from_node(node) {
        NodePlace::Snapshot(slot, _) => NodePlace::Snapshot(slot, ino),
        NodePlace::Main(epoch, _) => NodePlace::Main(epoch, ino),
        NodePlace::Virtual(_) => NodePlace::Main(Epoch::default(), ino),
    }
}

/// Names a node of the current state to the kernel. A file is held until the kernel forgets it.
pub(super) fn hold_live_entry(fs: &LiveFilesystem, node: &BareInode) -> Result<EntryAnswer> {
    // The epoch is taken once. A restore cannot begin meanwhile, because each request has entered its epoch.
    let epoch = fs.epochs().current_epoch();
    let entry = new_bare_entry(fs, NodePlace::Main(epoch, node.ino), node)?;
    // Only files: a directory that is removed while it is open is empty, and its attributes are kept elsewhere
    // (`removed`); other kinds have no content that a program could still read.
    if node.bare.attr.kind == FileKind::File {
        fs.epochs().hold_inode(epoch, node.ino)?;
    }
    Ok(entry)
}

/// The entry of a node of the current state. Holes do not count as stored.
pub(super) fn new_bare_entry(fs: &LiveFilesystem, place: NodePlace, node: &BareInode) -> Result<EntryAnswer> {
    build_entry(place, &node.bare.attr, fs.content().stored_bytes_of_bare(node.ino, &node.bare)?)
}

/// The entry of a node of a state. Holes do not count as stored.
pub(super) fn new_state_entry(
    state: &dyn StateReader<FsError>,
    place: NodePlace,
    ino: Ino,
    attr: &InodeAttr,
) -> Result<EntryAnswer> {
    build_entry(place, attr, state.stored_bytes(ino, attr)?)
}

/// The entry of a node without holes, or whose holes do not matter.
pub(super) fn new_plain_entry(place: NodePlace, attr: &InodeAttr) -> Result<EntryAnswer> {
    build_entry(place, attr, attr.size)
}

fn build_entry(place: NodePlace, attr: &InodeAttr, stored: u64) -> Result<EntryAnswer> {
    // Numbers of inodes have 48 bits in a node id. A larger one cannot be named to the kernel.
    let node = place.to_node().ok_or(Errno::OVERFLOW)?;
    Ok(EntryAnswer {
        attr: to_node_attributes(node, attr, stored),
        generation: attr.generation,
        timeout: LONG_TIMEOUT,
    })
}
