//! Read-only requests: names, attributes, content, of any kind of node.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use vellum_fs::history::frozen::FrozenTree;
use vellum_fs::{Epoch, FilesystemStatistics, FsError, InodeAttributes, LiveFilesystem, Result};
use vellum_host::escape::format_path;
use vellum_types::limits::NAME_MAX;
use vellum_types::{FileKind, Ino, InodeAttr};

use super::{FuseAdapter, InodeOwner, LONG, MountedState, format_chain};
use crate::attr::{BLOCK_SIZE, file_kind_from_mode, to_node_attributes};
use crate::dirs::ListedDirName;
use crate::node::NodePlace;
use crate::virt::{self, PATIENCE, VirtualDir};
use crate::wire::EntryAnswer;

impl FuseAdapter {
    pub(super) fn lookup(&self, dir: u64, name: &[u8]) -> Result<EntryAnswer> {
        if dir == Ino::ROOT.0 && name == virt::NAME {
            let top = self.virt.dir_node()?;
            return new_plain_entry(top.place, &top.attr);
        }
        // By these the kernel finds again what it has forgotten, by a number that a program (or an NFS client) has kept.
        match name {
            b"." => return self.hold_node(dir),
            b".." => return self.hold_node(self.parent_dir(dir)?.to_node().ok_or(Errno::OVERFLOW)?),
            _ => {}
        }
        match self.inode_owner(dir)? {
            InodeOwner::Live(fs, ino) => Ok(EntryAnswer {
                patience: self.cache_timeout(dir),
                ..hold_live_entry(fs, &fs.lookup(ino, name)?)?
            }),
            InodeOwner::Past(..) => Err(Errno::NOTDIR.into()),
            InodeOwner::Removed(_) => Err(Errno::NOENT.into()),
            InodeOwner::Frozen(tree, ino) => {
                let (child, attr) = tree.lookup(ino, name)?;
                new_frozen_entry(&tree, sibling_place(dir, child), child, &attr)
            }
            InodeOwner::Virtual(number) => {
                let found = if VirtualDir::is_paths_dir(number) {
                    self.virt.add_path_text(self.find_node_path(name)?)?
                } else {
                    self.virt.lookup(number, name)?
                };
                // A text is as it was when it was looked up.
                let entry = new_plain_entry(found.place, &found.attr)?;
                let is_text = found.attr.kind == FileKind::File;
                let patience = if is_text { Duration::ZERO } else { PATIENCE };
                Ok(EntryAnswer { patience: patience.min(self.cache_timeout(entry.attr.ino)), ..entry })
            }
        }
    }

    /// Names a node that the kernel may not know any more. A file that has no name any more, and that nobody has open, is
    /// not found.
    fn hold_node(&self, node: u64) -> Result<EntryAnswer> {
        let entry = match self.getattr(node) {
            Err(error) if error.errno() == Errno::NOENT => Err(Errno::STALE.into()),
            entry => entry,
        }?;
        self.hold_entry(&entry)?;
        Ok(entry)
    }

    pub(super) fn getattr(&self, node: u64) -> Result<EntryAnswer> {
        match self.node_entry(node) {
            Err(error) if node == Ino::ROOT.0 && !matches!(error, FsError::Posix(_)) => {
                (self.report)(&format!("the root directory cannot be read: {}", format_chain(&error)));
                let entry = new_plain_entry(NodePlace::from_node(node), &self.virt.fallback_root_attr())?;
                Ok(EntryAnswer { patience: Duration::ZERO, ..entry })
            }
            found => found,
        }
    }

    fn node_entry(&self, node: u64) -> Result<EntryAnswer> {
        let place = NodePlace::from_node(node);
        let steady = match self.inode_owner(node)? {
            InodeOwner::Live(fs, ino) => new_live_entry(fs, place, &fs.getattr(ino)?)?,
            // It does not change any more.
            InodeOwner::Past(fs, epoch, ino) => {
                return new_plain_entry(place, &fs.past_inode_attr(epoch, ino)?);
            }
            InodeOwner::Frozen(tree, ino) => new_frozen_entry(&tree, place, ino, &tree.inode_attr(ino)?)?,
            InodeOwner::Virtual(number) => new_plain_entry(place, &self.virt.file_attr(number)?)?,
            InodeOwner::Removed(attr) => new_plain_entry(place, &attr)?,
        };
        Ok(EntryAnswer { patience: self.cache_timeout(node), ..steady })
    }

    pub(super) fn readlink(&self, node: u64) -> Result<Vec<u8>> {
        match self.inode_owner(node)? {
            InodeOwner::Live(fs, ino) => fs.readlink(ino),
            InodeOwner::Past(fs, epoch, ino) => Ok(fs.past_inode_attr(epoch, ino)?.target),
            InodeOwner::Frozen(tree, ino) => tree.readlink(ino),
            InodeOwner::Virtual(number) => self.virt.readlink(number),
            InodeOwner::Removed(_) => Err(Errno::INVAL.into()),
        }
    }

    /// A directory's names, with `.` and `..` in front.
    pub(super) fn list_names(&self, dir: u64) -> Result<Vec<ListedDirName>> {
        let parent = self.parent_dir(dir)?.to_node().unwrap_or(Ino::ROOT.0);
        let dots = [(b".".to_vec(), dir), (b"..".to_vec(), parent)];
        let mut listing: Vec<_> =
            dots.into_iter().map(|(name, node)| ListedDirName { name, node, kind: FileKind::Dir }).collect();
        match self.inode_owner(dir)? {
            InodeOwner::Live(fs, ino) => {
                listing.extend(fs.list_entries(ino)?.into_iter().map(|entry| ListedDirName {
                    name: entry.name,
                    node: NodePlace::Main(fs.current_epoch(), entry.ino).to_node().unwrap_or(0),
                    kind: entry.kind,
                }));
            }
            InodeOwner::Past(..) => return Err(Errno::NOTDIR.into()),
            InodeOwner::Removed(_) => {}
            InodeOwner::Frozen(tree, ino) => {
                listing.extend(tree.list_entries(ino)?.into_iter().map(|(name, child, kind)| {
                    ListedDirName { name, node: sibling_place(dir, child).to_node().unwrap_or(0), kind }
                }));
            }
            InodeOwner::Virtual(number) => listing.extend(self.virt.list_entries(number)?),
        }
        Ok(listing)
    }

    fn parent_dir(&self, dir: u64) -> Result<NodePlace> {
        Ok(match (self.inode_owner(dir)?, NodePlace::from_node(dir)) {
            (InodeOwner::Live(fs, ino), _) => NodePlace::Main(fs.current_epoch(), fs.parent_dir(ino)?),
            (InodeOwner::Past(..) | InodeOwner::Removed(_), place) => place,
            (InodeOwner::Frozen(..), NodePlace::Snapshot(_, Ino::ROOT)) => self.virt.snapshots_dir(),
            (InodeOwner::Frozen(..), place @ NodePlace::Main(_, Ino::ROOT)) => place,
            (InodeOwner::Frozen(tree, ino), _) => sibling_place(dir, tree.inode_attr(ino)?.parent),
            (InodeOwner::Virtual(number), _) => self.virt.parent_dir(number),
        })
    }

    /// What `readdirplus` tells of a listed name. Of a snapshot nothing but that it is there: the kernel asks again
    /// before it believes anything else. What is told is held.
    pub(super) fn listed_entry(&self, listed: &ListedDirName, dir: u64) -> Result<EntryAnswer> {
        let entry = self.listed_attr(listed, dir)?;
        if !listed.is_dot_name() {
            self.hold_entry(&entry)?;
        }
        Ok(entry)
    }

    /// What a name that was listed for an earlier request stands for now. The kernel takes it for true for as long as
    /// the answer says: a name that has gone must not be told, though what it stood for is still there elsewhere.
    pub(super) fn current_entry(&self, listed: &ListedDirName, dir: u64) -> Result<EntryAnswer> {
        match self.inode_owner(dir)? {
            InodeOwner::Live(..) if !listed.is_dot_name() => self.lookup(dir, &listed.name),
            // These do not change.
            InodeOwner::Live(..)
            | InodeOwner::Past(..)
            | InodeOwner::Removed(_)
            | InodeOwner::Frozen(..)
            | InodeOwner::Virtual(_) => self.listed_entry(listed, dir),
        }
    }

    fn hold_entry(&self, entry: &EntryAnswer) -> Result<()> {
        match (&self.main, NodePlace::from_node(entry.attr.ino)) {
            (MountedState::Live(fs), NodePlace::Main(epoch, ino))
                if file_kind_from_mode(entry.attr.mode) == Some(FileKind::File) =>
            {
                fs.hold_inode(epoch, ino)
            }
            _ => Ok(()),
        }
    }

    fn listed_attr(&self, listed: &ListedDirName, dir: u64) -> Result<EntryAnswer> {
        match (NodePlace::from_node(dir), NodePlace::from_node(listed.node)) {
            (NodePlace::Virtual(_), place @ NodePlace::Snapshot(..)) => {
                let unread = new_plain_entry(place, &self.virt.unread_snapshot_attr(listed.kind))?;
                Ok(EntryAnswer { patience: Duration::ZERO, ..unread })
            }
            // Some are made when they are looked up.
            (NodePlace::Virtual(_), _) => {
                Ok(EntryAnswer { patience: Duration::ZERO, ..self.getattr(listed.node)? })
            }
            _ => self.getattr(listed.node),
        }
    }

    pub(super) fn getxattr(&self, node: u64, name: &[u8]) -> Result<Arc<[u8]>> {
        match self.inode_owner(node)? {
            InodeOwner::Live(fs, ino) => fs.getxattr(ino, name),
            InodeOwner::Past(fs, epoch, ino) => fs.past_xattr(epoch, ino, name),
            InodeOwner::Frozen(tree, ino) => Ok(tree.getxattr(ino, name)?.into()),
            InodeOwner::Virtual(_) | InodeOwner::Removed(_) => Err(Errno::NODATA.into()),
        }
    }

    /// Names of extended attributes, each with a zero byte after it.
    pub(super) fn listxattr(&self, node: u64) -> Result<Vec<u8>> {
        let names = match self.inode_owner(node)? {
            InodeOwner::Live(fs, ino) => fs.listxattr(ino)?,
            InodeOwner::Frozen(tree, ino) => tree.listxattr(ino)?,
            InodeOwner::Past(..) | InodeOwner::Virtual(_) | InodeOwner::Removed(_) => Vec::new(),
        };
        Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
    }

    /// How full the place is where the mounted state is kept; a snapshot takes no room that could run out.
    pub(super) fn statfs(&self) -> Result<FilesystemStatistics> {
        match &self.main {
            MountedState::Live(fs) => fs.statfs(),
            MountedState::Frozen(_) => Ok(FilesystemStatistics {
                block_size: BLOCK_SIZE,
                blocks: 0,
                blocks_free: 0,
                blocks_available: 0,
                files: 0,
                files_free: 0,
                name_max: NAME_MAX as u32,
            }),
        }
    }

    /// What messages call a node.
    pub(super) fn describe_node(&self, node: u64) -> String {
        let named = match (NodePlace::from_node(node), &self.main) {
            (NodePlace::Main(_, ino), MountedState::Live(fs)) => {
                fs.getattr(ino).map(|node| node.attr.name.clone())
            }
            (NodePlace::Main(_, ino), MountedState::Frozen(tree)) => {
                tree.inode_attr(ino).map(|attr| attr.name)
            }
            (NodePlace::Snapshot(slot, ino), _) => {
                self.virt.snapshot_tree(slot).and_then(|tree| tree.inode_attr(ino)).map(|attr| attr.name)
            }
            (NodePlace::Virtual(_), _) => Ok(virt::NAME.to_vec()),
        };
        match named {
            Ok(name) if !name.is_empty() => format!("{} (node {node:#x})", format_path(&name)),
            _ => format!("node {node:#x}"),
        }
    }
}

/// An inode of the state that `node` belongs to.
fn sibling_place(node: u64, ino: Ino) -> NodePlace {
    match NodePlace::from_node(node) {
        NodePlace::Snapshot(slot, _) => NodePlace::Snapshot(slot, ino),
        NodePlace::Main(epoch, _) => NodePlace::Main(epoch, ino),
        NodePlace::Virtual(_) => NodePlace::Main(Epoch::default(), ino),
    }
}

/// A node of the present state that the kernel will know from now on, and hold if it is a file.
pub(super) fn hold_live_entry(fs: &LiveFilesystem, node: &InodeAttributes) -> Result<EntryAnswer> {
    let epoch = fs.current_epoch();
    let ino = node.ino;
    let entry = new_live_entry(fs, NodePlace::Main(epoch, ino), node)?;
    if node.attr.kind == FileKind::File {
        fs.hold_inode(epoch, ino)?;
    }
    Ok(entry)
}

/// A node of the present state. Holes take no room.
pub(super) fn new_live_entry(
    fs: &LiveFilesystem,
    place: NodePlace,
    node: &InodeAttributes,
) -> Result<EntryAnswer> {
    build_entry(place, &node.attr, fs.stored_bytes(node)?)
}

fn new_frozen_entry(tree: &FrozenTree, place: NodePlace, ino: Ino, attr: &InodeAttr) -> Result<EntryAnswer> {
    build_entry(place, attr, tree.stored_bytes(ino, attr)?)
}

/// A node that has no holes, or of which it is not asked.
pub(super) fn new_plain_entry(place: NodePlace, attr: &InodeAttr) -> Result<EntryAnswer> {
    build_entry(place, attr, attr.size)
}

fn build_entry(place: NodePlace, attr: &InodeAttr, stored: u64) -> Result<EntryAnswer> {
    let node = place.to_node().ok_or(Errno::OVERFLOW)?;
    Ok(EntryAnswer {
        attr: to_node_attributes(node, attr, stored),
        generation: attr.generation,
        patience: LONG,
    })
}
