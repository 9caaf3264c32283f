//! Copying from a view: what stood there stands in the worktree again, with its own attributes, extended attributes
//! and times, and its content is shared.
//!
//! Invariant: what is copied appears at once: while it is being made it has no name, or a name of its own.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use rustix::io::Errno;
use vellum_types::{Dentry, ExtentSource, FileKind, Ino, InodeAttr, MapKey};
use vellum_volume::VolumeError;
use vellum_volume::tree::generation;

use super::rename::RenameFlags;
use super::{DirEntry, NameInDir, add_links, check_dir, dir_of, touch_dir};
use crate::attr::{AttributeChanges, TimeChange};
use crate::clock::now;
use crate::content::EXTENTS_MAX;
use crate::content::extents::{PlacedExtent, visit};
use crate::error::{FsError, Result};
use crate::fs::{InodeAttributes, LiveFilesystem, RequestCaller};
use crate::tree::{LiveTransaction, MapReader};
use crate::view::LiveView;

/// Nobody's wish decides over what is copied.
const NOBODY: RequestCaller = RequestCaller { uid: 0, gid: 0, umask: 0 };

/// An inode to be copied.
struct OriginalInode {
    ino: Ino,
    attr: InodeAttr,
    xattrs: Vec<(Vec<u8>, Arc<[u8]>)>,
    /// The first of its extents.
    extents: Vec<PlacedExtent>,
}

/// A tree being copied.
struct TreeCopy<'c> {
    fs: &'c LiveFilesystem,
    view: &'c LiveView,
    /// Files with several links: what they became.
    linked: HashMap<Ino, Ino>,
    /// Directories: what they became. None is met twice, or the view holds a circle.
    dirs: HashMap<Ino, Ino>,
}

impl LiveFilesystem {
    /// Copies what a view has under `source`, with all below it, to a name that must be free. Links among what is
    /// copied are links again.
    pub fn copy_tree(&self, view: &LiveView, source: Ino, dir: Ino, name: &[u8]) -> Result<InodeAttributes> {
        let _borrowing = self.borrow(view)?;
        self.copy_borrowed(view, source, dir, name)
    }

    /// The same to a name that may be taken: what it names goes in the moment in which the copy appears.
    pub fn replace_tree(
        &self,
        view: &LiveView,
        source: Ino,
        dir: Ino,
        name: &[u8],
    ) -> Result<InodeAttributes> {
        let _borrowing = self.borrow(view)?;
        let hidden = hidden_name()?;
        let copied = self.copy_borrowed(view, source, dir, &hidden).and_then(|node| {
            let rename = |flags| self.rename(dir, &hidden, dir, name, flags);
            match rename(RenameFlags { exchange: true, ..RenameFlags::default() }) {
                // Nothing is there.
                Err(FsError::Posix(Errno::NOENT)) => {
                    rename(RenameFlags { noreplace: true, ..RenameFlags::default() }).map(|()| (node, false))
                }
                exchanged => exchanged.map(|()| (node, true)),
            }
        });
        match &copied {
            // The hidden name is now that of what was there before.
            Ok((_, true)) => self.remove_tree(dir, &hidden)?,
            Ok((_, false)) => {}
            // What failed says more than what could not be tidied up after it.
            Err(_) => drop(self.remove_tree(dir, &hidden)),
        }
        self.getattr(copied?.0.ino)
    }

    /// The same while the view's content is borrowed ([`LiveFilesystem::borrow`]).
    pub(crate) fn copy_borrowed(
        &self,
        view: &LiveView,
        source: Ino,
        dir: Ino,
        name: &[u8],
    ) -> Result<InodeAttributes> {
        let place = NameInDir::new(dir, name)?;
        let attr = view.attr(source)?;
        place.check_free(attr.kind)?;
        if attr.kind != FileKind::Dir {
            return self.copy_inode(view, source, &place);
        }
        if self.dentry(&place)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        let under_way = hidden_name()?;
        let copied = self.copy_dir(view, source, &NameInDir::new(dir, &under_way)?).and_then(|node| {
            let flags = RenameFlags { noreplace: true, ..RenameFlags::default() };
            self.rename(dir, &under_way, dir, name, flags).map(|()| node)
        });
        if copied.is_err() {
            // What failed says more than what could not be tidied up after it.
            let _ = self.remove_tree(dir, &under_way);
        }
        self.getattr(copied?.ino)
    }

    fn copy_dir(&self, view: &LiveView, source: Ino, place: &NameInDir<'_>) -> Result<InodeAttributes> {
        let mut copying = TreeCopy { fs: self, view, linked: HashMap::new(), dirs: HashMap::new() };
        let node = copying.dir(source, place)?;
        let mut waiting = vec![source];
        while let Some(source) = waiting.pop() {
            copying.entries(source, &mut waiting)?;
        }
        copying.restore_times()?;
        Ok(node)
    }

    /// Copies one inode, a directory without its entries.
    fn copy_inode(&self, view: &LiveView, source: Ino, place: &NameInDir<'_>) -> Result<InodeAttributes> {
        self.copy_original(view, &OriginalInode::read(view, source)?, place, false)
    }

    /// The same to a name that must be free, in a worktree of one's own: with the number that it has there, if nothing
    /// here has it, and with all its times.
    pub(crate) fn copy_exactly(
        &self,
        view: &LiveView,
        source: Ino,
        dir: Ino,
        name: &[u8],
    ) -> Result<InodeAttributes> {
        let original = OriginalInode::read(view, source)?;
        let made = self.copy_original(view, &original, &NameInDir::new(dir, name)?, true)?;
        self.change(|txn| {
            let mut attr = txn.attr_of(made.ino)?;
            (attr.ctime, attr.generation) = (original.attr.ctime, original.attr.generation);
            txn.put_attr(made.ino, &attr);
            Ok(InodeAttributes { ino: made.ino, attr: Arc::new(attr) })
        })
    }

    fn copy_original(
        &self,
        view: &LiveView,
        original: &OriginalInode,
        place: &NameInDir<'_>,
        keeps_number: bool,
    ) -> Result<InodeAttributes> {
        let number = |txn: &mut LiveTransaction<'_>, new: Ino| -> Result<Ino> {
            Ok(if keeps_number && txn.attr(original.ino)?.is_none() { original.ino } else { new })
        };
        check_dir(&*self.attr(place.dir)?)?;
        if self.dentry(place)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        if original.extents.len() < EXTENTS_MAX {
            return self.with_number(|txn, ino| {
                let ino = number(txn, ino)?;
                self.put_content(txn, ino, &original.extents);
                original.put_named(txn, ino, place)
            });
        }
        // More than one transaction takes: it has no name until it is whole.
        let node = self.with_number(|txn, ino| {
            let ino = number(txn, ino)?;
            self.put_content(txn, ino, &original.extents);
            original.put_nameless(txn, ino)
        })?;
        let whole = self.copy_rest(view, original, node.ino);
        let linked = whole.and_then(|()| self.link(node.ino, place.dir, place.name));
        if linked.is_err() {
            self.reap(node.ino)?;
        }
        linked
    }

    fn copy_rest(&self, view: &LiveView, original: &OriginalInode, ino: Ino) -> Result<()> {
        let mut last = original.extents.last().copied();
        while let Some((start, extent)) = last {
            let extents = extents_from(view, original.ino, start + extent.len)?;
            self.change(|txn| {
                self.put_content(txn, ino, &extents);
                Ok(())
            })?;
            last = extents.last().copied();
        }
        Ok(())
    }

    fn put_content(&self, txn: &mut LiveTransaction<'_>, ino: Ino, extents: &[PlacedExtent]) {
        for (start, extent) in extents {
            if let ExtentSource::WriteLog { segment, .. } = extent.source {
                self.log.name_again(segment);
            }
            txn.put(MapKey::extent(ino, *start), &extent.encode());
        }
    }
}

impl TreeCopy<'_> {
    fn dir(&mut self, source: Ino, place: &NameInDir<'_>) -> Result<InodeAttributes> {
        let node = self.fs.copy_inode(self.view, source, place)?;
        if self.dirs.insert(source, node.ino).is_some() {
            return Err(FsError::BadTree(format!("the directory {source} has two names")));
        }
        Ok(node)
    }

    /// Copies what a directory holds; directories among it wait for their entries.
    fn entries(&mut self, source: Ino, waiting: &mut Vec<Ino>) -> Result<()> {
        let Some(target) = self.dirs.get(&source).copied() else { return Ok(()) };
        for DirEntry { name, ino, kind } in self.view.entries(source)? {
            let place = NameInDir { dir: target, name: &name };
            if kind == FileKind::Dir {
                self.dir(ino, &place)?;
                waiting.push(ino);
            } else if let Some(copy) = self.linked.get(&ino) {
                self.fs.link(*copy, target, &name)?;
            } else {
                let node = self.fs.copy_inode(self.view, ino, &place)?;
                if self.view.attr(ino)?.nlink > 1 {
                    self.linked.insert(ino, node.ino);
                }
            }
        }
        Ok(())
    }

    /// Entries that come change their directory's times.
    fn restore_times(&self) -> Result<()> {
        for (source, target) in &self.dirs {
            let attr = self.view.attr(*source)?;
            let (atime, mtime) = (Some(TimeChange::At(attr.atime)), Some(TimeChange::At(attr.mtime)));
            self.fs.setattr(
                *target,
                &AttributeChanges { atime, mtime, ..AttributeChanges::default() },
                NOBODY,
            )?;
        }
        Ok(())
    }
}

impl OriginalInode {
    fn read(view: &LiveView, ino: Ino) -> Result<Self> {
        let attr = view.attr(ino)?;
        let names = view.listxattr(ino)?;
        let xattrs = names.into_iter().map(|name| view.getxattr(ino, &name).map(|value| (name, value)));
        let xattrs = xattrs.collect::<Result<_>>()?;
        Ok(Self { ino, attr, xattrs, extents: extents_from(view, ino, 0)? })
    }

    fn put_named(
        &self,
        txn: &mut LiveTransaction<'_>,
        ino: Ino,
        place: &NameInDir<'_>,
    ) -> Result<InodeAttributes> {
        let mut parent = dir_of(txn, place.dir)?;
        if txn.dentry(place.dir, place.name)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        let mut attr = self.born();
        attr.generation = generation(place.dir, place.name);
        (attr.parent, attr.name) = (place.dir, place.name.to_vec());
        (attr.nlink, attr.ctime) = (1, now());
        if attr.kind == FileKind::Dir {
            attr.nlink = 2;
            add_links(&mut parent, 1)?;
        }
        touch_dir(&mut parent, attr.ctime);
        txn.put_dentry(place.dir, place.name, Dentry { ino, kind: attr.kind });
        txn.put_attr(place.dir, &parent);
        Ok(self.put(txn, ino, attr))
    }

    fn put_nameless(&self, txn: &mut LiveTransaction<'_>, ino: Ino) -> Result<InodeAttributes> {
        let mut attr = self.born();
        attr.generation = generation(Ino::SUPER, &ino.0.to_le_bytes());
        (attr.parent, attr.name, attr.nlink) = (Ino::SUPER, Vec::new(), 0);
        txn.put_orphan(ino);
        Ok(self.put(txn, ino, attr))
    }

    fn put(&self, txn: &mut LiveTransaction<'_>, ino: Ino, attr: InodeAttr) -> InodeAttributes {
        for (name, value) in &self.xattrs {
            txn.put(MapKey::xattr(ino, name), value);
        }
        txn.put_attr(ino, &attr);
        InodeAttributes { ino, attr: Arc::new(attr) }
    }

    fn born(&self) -> InodeAttr {
        InodeAttr { ctime: now(), ..self.attr.clone() }
    }
}

/// The extents of a file from an offset on, as many as one transaction takes.
fn extents_from(view: &LiveView, ino: Ino, from: u64) -> Result<Vec<PlacedExtent>> {
    let mut extents = Vec::new();
    view.look(|state| {
        visit(state, ino, from..u64::MAX, &mut |extent| {
            extents.push(extent);
            if extents.len() < EXTENTS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
    })?;
    Ok(extents)
}

/// A name for what is being made, and is nobody's yet.
pub(crate) fn hidden_name() -> Result<Vec<u8>> {
    let random = getrandom::u64().map_err(|error| VolumeError::local("/dev/urandom")(error.into()))?;
    Ok(format!(".copy-{random:016x}").into_bytes())
}
