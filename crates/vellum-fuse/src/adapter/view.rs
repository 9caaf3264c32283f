//! Requests that only look: names, attributes, content, of whatever stands behind a node.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use vellum_fs::frozen::Frozen;
use vellum_fs::{Epoch, Fs, FsError, Node, Result, Statfs};
use vellum_types::limits::NAME_MAX;
use vellum_types::{Attr, FileKind, Ino};
use vellum_volume::tree::show;

use super::{Adapter, LONG, Main, Owner, chain};
use crate::attr::{BLOCK_SIZE, attributes, kind_of_mode};
use crate::dirs::Listed;
use crate::node::Place;
use crate::virt::{self, PATIENCE};
use crate::wire::Entry;

impl Adapter {
    pub(super) fn lookup(&self, dir: u64, name: &[u8]) -> Result<Entry> {
        if dir == Ino::ROOT.0 && name == virt::NAME {
            let top = self.virt.top()?;
            return known(top.place, &top.attr);
        }
        // By these the kernel finds again what it has forgotten, by a number that a program (or an NFS client) has kept.
        match name {
            b"." => return self.again(dir),
            b".." => return self.again(self.parent(dir)?.node().ok_or(Errno::OVERFLOW)?),
            _ => {}
        }
        match self.owner(dir)? {
            Owner::Live(fs, ino) => {
                Ok(Entry { patience: self.patience(dir), ..given(fs, &fs.lookup(ino, name)?)? })
            }
            Owner::Past(..) => Err(Errno::NOTDIR.into()),
            Owner::Removed(_) => Err(Errno::NOENT.into()),
            Owner::Frozen(tree, ino) => {
                let (child, attr) = tree.lookup(ino, name)?;
                known_frozen(&tree, sibling(dir, child), child, &attr)
            }
            Owner::Virtual(number) => {
                let found = self.virt.lookup(number, name)?;
                // A text is as it was when it was looked up.
                let told = known(found.place, &found.attr)?;
                let is_text = found.attr.kind == FileKind::File;
                let patience = if is_text { Duration::ZERO } else { PATIENCE };
                Ok(Entry { patience: patience.min(self.patience(told.attr.ino)), ..told })
            }
        }
    }

    /// Names a node that the kernel may not know any more. A file that has no name any more, and that nobody has open, is
    /// not found.
    fn again(&self, node: u64) -> Result<Entry> {
        let told = match self.getattr(node) {
            Err(error) if error.errno() == Errno::NOENT => Err(Errno::STALE.into()),
            told => told,
        }?;
        self.hold(&told)?;
        Ok(told)
    }

    pub(super) fn getattr(&self, node: u64) -> Result<Entry> {
        match self.attributes_of(node) {
            Err(error) if node == Ino::ROOT.0 && !matches!(error, FsError::Posix(_)) => {
                (self.report)(&format!("the root directory cannot be read: {}", chain(&error)));
                let told = known(Place::of(node), &self.virt.root_instead())?;
                Ok(Entry { patience: Duration::ZERO, ..told })
            }
            found => found,
        }
    }

    fn attributes_of(&self, node: u64) -> Result<Entry> {
        let place = Place::of(node);
        let steady = match self.owner(node)? {
            Owner::Live(fs, ino) => known_live(fs, place, &fs.getattr(ino)?)?,
            // It does not change any more.
            Owner::Past(fs, epoch, ino) => return known(place, &fs.past_attr(epoch, ino)?),
            Owner::Frozen(tree, ino) => known_frozen(&tree, place, ino, &tree.attr(ino)?)?,
            Owner::Virtual(number) => known(place, &self.virt.attr(number)?)?,
            Owner::Removed(attr) => known(place, &attr)?,
        };
        Ok(Entry { patience: self.patience(node), ..steady })
    }

    pub(super) fn readlink(&self, node: u64) -> Result<Vec<u8>> {
        match self.owner(node)? {
            Owner::Live(fs, ino) => fs.readlink(ino),
            Owner::Past(fs, epoch, ino) => Ok(fs.past_attr(epoch, ino)?.target),
            Owner::Frozen(tree, ino) => tree.readlink(ino),
            Owner::Virtual(number) => self.virt.readlink(number),
            Owner::Removed(_) => Err(Errno::INVAL.into()),
        }
    }

    /// A directory's names, with `.` and `..` in front.
    pub(super) fn list(&self, dir: u64) -> Result<Vec<Listed>> {
        let parent = self.parent(dir)?.node().unwrap_or(Ino::ROOT.0);
        let dots = [(b".".to_vec(), dir), (b"..".to_vec(), parent)];
        let mut listing: Vec<_> =
            dots.into_iter().map(|(name, node)| Listed { name, node, kind: FileKind::Dir }).collect();
        match self.owner(dir)? {
            Owner::Live(fs, ino) => {
                listing.extend(fs.entries(ino)?.into_iter().map(|entry| Listed {
                    name: entry.name,
                    node: Place::Main(fs.epoch(), entry.ino).node().unwrap_or(0),
                    kind: entry.kind,
                }));
            }
            Owner::Past(..) => return Err(Errno::NOTDIR.into()),
            Owner::Removed(_) => {}
            Owner::Frozen(tree, ino) => {
                listing.extend(tree.entries(ino)?.into_iter().map(|(name, child, kind)| Listed {
                    name,
                    node: sibling(dir, child).node().unwrap_or(0),
                    kind,
                }));
            }
            Owner::Virtual(number) => listing.extend(self.virt.entries(number)?),
        }
        Ok(listing)
    }

    fn parent(&self, dir: u64) -> Result<Place> {
        Ok(match (self.owner(dir)?, Place::of(dir)) {
            (Owner::Live(fs, ino), _) => Place::Main(fs.epoch(), fs.parent(ino)?),
            (Owner::Past(..) | Owner::Removed(_), place) => place,
            (Owner::Frozen(..), Place::Snapshot(_, Ino::ROOT)) => self.virt.snapshots_dir(),
            (Owner::Frozen(..), place @ Place::Main(_, Ino::ROOT)) => place,
            (Owner::Frozen(tree, ino), _) => sibling(dir, tree.attr(ino)?.parent),
            (Owner::Virtual(number), _) => self.virt.parent(number),
        })
    }

    /// What `readdirplus` tells of a listed name. Of a snapshot nothing but that it is there: the kernel asks again
    /// before it believes anything else. What is told is held.
    pub(super) fn listed(&self, listed: &Listed, dir: u64) -> Result<Entry> {
        let told = self.listed_attr(listed, dir)?;
        if !matches!(listed.name.as_slice(), b"." | b"..") {
            self.hold(&told)?;
        }
        Ok(told)
    }

    fn hold(&self, told: &Entry) -> Result<()> {
        match (&self.main, Place::of(told.attr.ino)) {
            (Main::Live(fs), Place::Main(epoch, ino))
                if kind_of_mode(told.attr.mode) == Some(FileKind::File) =>
            {
                fs.hold(epoch, ino)
            }
            _ => Ok(()),
        }
    }

    fn listed_attr(&self, listed: &Listed, dir: u64) -> Result<Entry> {
        match (Place::of(dir), Place::of(listed.node)) {
            (Place::Virtual(_), place @ Place::Snapshot(..)) => {
                let unread = known(place, &self.virt.unread(listed.kind))?;
                Ok(Entry { patience: Duration::ZERO, ..unread })
            }
            // Some are made when they are looked up.
            (Place::Virtual(_), _) => Ok(Entry { patience: Duration::ZERO, ..self.getattr(listed.node)? }),
            _ => self.getattr(listed.node),
        }
    }

    pub(super) fn getxattr(&self, node: u64, name: &[u8]) -> Result<Arc<[u8]>> {
        match self.owner(node)? {
            Owner::Live(fs, ino) => fs.getxattr(ino, name),
            Owner::Past(fs, epoch, ino) => fs.past_xattr(epoch, ino, name),
            Owner::Frozen(tree, ino) => Ok(tree.getxattr(ino, name)?.into()),
            Owner::Virtual(_) | Owner::Removed(_) => Err(Errno::NODATA.into()),
        }
    }

    /// Names of extended attributes, each with a zero byte after it.
    pub(super) fn listxattr(&self, node: u64) -> Result<Vec<u8>> {
        let names = match self.owner(node)? {
            Owner::Live(fs, ino) => fs.listxattr(ino)?,
            Owner::Frozen(tree, ino) => tree.listxattr(ino)?,
            Owner::Past(..) | Owner::Virtual(_) | Owner::Removed(_) => Vec::new(),
        };
        Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
    }

    /// How full the place is where the mounted state is kept; a snapshot takes no room that could run out.
    pub(super) fn statfs(&self) -> Result<Statfs> {
        match &self.main {
            Main::Live(fs) => fs.statfs(),
            Main::Frozen(_) => Ok(Statfs {
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
    pub(super) fn name_of(&self, node: u64) -> String {
        let named = match (Place::of(node), &self.main) {
            (Place::Main(_, ino), Main::Live(fs)) => fs.getattr(ino).map(|node| node.attr.name.clone()),
            (Place::Main(_, ino), Main::Frozen(tree)) => tree.attr(ino).map(|attr| attr.name),
            (Place::Snapshot(slot, ino), _) => {
                self.virt.tree(slot).and_then(|tree| tree.attr(ino)).map(|attr| attr.name)
            }
            (Place::Virtual(_), _) => Ok(virt::NAME.to_vec()),
        };
        match named {
            Ok(name) if !name.is_empty() => format!("{} (node {node:#x})", show(&name)),
            _ => format!("node {node:#x}"),
        }
    }
}

/// An inode of the state that `node` belongs to.
fn sibling(node: u64, ino: Ino) -> Place {
    match Place::of(node) {
        Place::Snapshot(slot, _) => Place::Snapshot(slot, ino),
        Place::Main(epoch, _) => Place::Main(epoch, ino),
        Place::Virtual(_) => Place::Main(Epoch::default(), ino),
    }
}

/// A node of the present state that the kernel will know from now on, and hold if it is a file.
pub(super) fn given(fs: &Fs, node: &Node) -> Result<Entry> {
    let (epoch, ino) = (fs.epoch(), node.ino);
    let told = known_live(fs, Place::Main(epoch, ino), node)?;
    if node.attr.kind == FileKind::File {
        fs.hold(epoch, ino)?;
    }
    Ok(told)
}

/// A node of the present state. Holes take no room.
pub(super) fn known_live(fs: &Fs, place: Place, node: &Node) -> Result<Entry> {
    told(place, &node.attr, fs.stored(node)?)
}

fn known_frozen(tree: &Frozen, place: Place, ino: Ino, attr: &Attr) -> Result<Entry> {
    told(place, attr, tree.stored(ino, attr)?)
}

/// A node that has no holes, or of which it is not asked.
pub(super) fn known(place: Place, attr: &Attr) -> Result<Entry> {
    told(place, attr, attr.size)
}

fn told(place: Place, attr: &Attr, stored: u64) -> Result<Entry> {
    let node = place.node().ok_or(Errno::OVERFLOW)?;
    Ok(Entry { attr: attributes(node, attr, stored), generation: attr.generation, patience: LONG })
}
