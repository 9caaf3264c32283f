//! Paths of nodes, for who reads the access log: of the mounted state, of snapshots below `.vellum/snapshots`, and of
//! virtual files with fixed names.
//!
//! Absent: further names of a file with several links, and paths of what has no name any more.

use std::sync::Arc;

use rustix::io::Errno;
use vellum_fs::{LiveFilesystem, Result};
use vellum_types::Ino;
use vellum_volume::tree::DEPTH_MAX;

use super::{FuseAdapter, InodeOwner};
use crate::node::NodePlace;

impl FuseAdapter {
    /// The path from the mountpoint of the node with this number, in decimal digits.
    pub(super) fn find_node_path(&self, number: &[u8]) -> Result<Vec<u8>> {
        let node = std::str::from_utf8(number).ok().and_then(|text| text.parse().ok()).ok_or(Errno::NOENT)?;
        match (self.inode_owner(node)?, NodePlace::from_node(node)) {
            (InodeOwner::Live(fs, ino), _) => live_path(fs, ino),
            (InodeOwner::Frozen(tree, ino), NodePlace::Snapshot(slot, _)) => {
                let mut path = self.virt.snapshot_path(slot).ok_or(Errno::NOENT)?;
                let below = tree.inode_path(ino)?;
                if !below.is_empty() {
                    path.push(b'/');
                    path.extend_from_slice(&below);
                }
                Ok(path)
            }
            (InodeOwner::Frozen(tree, ino), _) => tree.inode_path(ino),
            (InodeOwner::Virtual(number), _) => Ok(self.virt.file_path(number).ok_or(Errno::NOENT)?),
            // They have no name in the state that is mounted now.
            (InodeOwner::Past(..) | InodeOwner::Removed(_), _) => Err(Errno::NOENT.into()),
        }
    }
}

fn live_path(fs: &Arc<LiveFilesystem>, ino: Ino) -> Result<Vec<u8>> {
    let mut names = Vec::new();
    let mut at = ino;
    while at != Ino::ROOT {
        let attr = fs.getattr(at)?.attr;
        // A file that is open without a name.
        if attr.name.is_empty() || names.len() > DEPTH_MAX {
            return Err(Errno::NOENT.into());
        }
        names.push(attr.name.clone());
        at = attr.parent;
    }
    names.reverse();
    Ok(names.join(&b'/'))
}
