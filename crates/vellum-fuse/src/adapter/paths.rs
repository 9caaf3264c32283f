//! Paths of nodes for readers of the access log: in the mounted state, in snapshots below `.vellum/snapshots`, and of
//! virtual files with fixed names. And how messages name a node.
//!
//! Deliberately absent: further names of a file with several links, and paths of nodes that have no name any more.

use std::sync::Arc;

use rustix::io::Errno;
use vellum_fs::{FsError, LiveFilesystem, Result};
use vellum_host::escape::format_path;
use vellum_types::Ino;
use vellum_volume::tree::DEPTH_MAX;

use super::{FuseAdapter, InodeOwner, MountedState};
use crate::node::NodePlace;
use crate::virt;

impl FuseAdapter {
    /// The path from the mountpoint of a node, which is given by its number in decimal digits.
    pub(super) fn find_node_path(&self, number: &[u8]) -> Result<Vec<u8>> {
        let node = std::str::from_utf8(number).ok().and_then(|text| text.parse().ok()).ok_or(Errno::NOENT)?;
        match (self.inode_owner(node)?, NodePlace::from_node(node)) {
            (InodeOwner::Live(fs, ino), _) => live_path(fs, ino),
            (InodeOwner::Frozen(tree, ino), NodePlace::Snapshot(slot, _)) => {
                let mut path = self.virt.snapshot_path(slot).ok_or(Errno::NOENT)?;
                let below = tree.inode_path(ino)?;
                if !below.is_empty() {
                    // The root of a snapshot has no path below itself.
                    path.push(b'/');
                    path.extend_from_slice(&below);
                }
                Ok(path)
            }
            (InodeOwner::Frozen(tree, ino), _) => Ok(tree.inode_path(ino)?),
            (InodeOwner::Virtual(number), _) => Ok(self.virt.file_path(number).ok_or(Errno::NOENT)?),
            // They have no name in the state that is mounted now.
            (InodeOwner::Past(..) | InodeOwner::Removed(_), _) => Err(Errno::NOENT.into()),
        }
    }

    /// The path in the current state of the live worktree; None for what has none.
    pub(super) fn find_live_path(&self, node: u64) -> Option<Vec<u8>> {
        match self.inode_owner(node) {
            Ok(InodeOwner::Live(fs, ino)) => live_path(fs, ino).ok(),
            Ok(
                InodeOwner::Past(..)
                | InodeOwner::Frozen(..)
                | InodeOwner::Virtual(_)
                | InodeOwner::Removed(_),
            )
            | Err(_) => None,
        }
    }

    /// How messages name a node.
    pub(super) fn describe_node(&self, node: u64) -> String {
        let name = match (NodePlace::from_node(node), &self.main) {
            (NodePlace::Main(_, ino), MountedState::Live(fs)) => {
                fs.live_map().inode_attr(ino).map(|attr| attr.name.clone())
            }
            (NodePlace::Main(_, ino), MountedState::Frozen(tree)) => {
                tree.expect_inode_attr(ino).map(|attr| attr.name).map_err(FsError::from)
            }
            (NodePlace::Main(_, ino), MountedState::Followed(followed)) => {
                let attr = followed.current_tree().expect_inode_attr(ino);
                attr.map(|attr| attr.name).map_err(FsError::from)
            }
            (NodePlace::Snapshot(slot, ino), _) => {
                let attr = self.virt.snapshot_tree(slot).and_then(|tree| Ok(tree.expect_inode_attr(ino)?));
                attr.map(|attr| attr.name)
            }
            (NodePlace::Virtual(_), _) => Ok(virt::NAME.to_vec()),
        };
        match name {
            Ok(name) if !name.is_empty() => format!("{} (node {node:#x})", format_path(&name)),
            Ok(_) | Err(_) => format!("node {node:#x}"),
        }
    }
}

fn live_path(fs: &Arc<LiveFilesystem>, ino: Ino) -> Result<Vec<u8>> {
    let mut names = Vec::new();
    let mut at = ino;
    while at != Ino::ROOT {
        let attr = fs.live_map().inode_attr(at)?;
        // It is open, but has no name (any more).
        // Names are read one by one, without a lock. A directory that is moved meanwhile could otherwise make this go
        // in circles.
        if attr.name.is_empty() || names.len() > DEPTH_MAX {
            return Err(Errno::NOENT.into());
        }
        names.push(attr.name.clone());
        at = attr.parent;
    }
    names.reverse();
    Ok(names.join(&b'/'))
}
