//! Copies from a view: entries are created in the worktree again, with their own attributes, extended attributes and
//! times, and share their content.
//!
//! Invariant: a copy appears at once: while it is being made it has no name, or a temporary one.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use rustix::io::Errno;
use vellum_host::clock::current_time;
use vellum_types::{FileKind, Ino, InodeAttr, MapKey};
use vellum_volume::VolumeError;
use vellum_volume::trash::TRASH_RECORD_NAME;
use vellum_volume::tree::compute_generation;
use vellum_volume::tree::{DirectoryEntry, StateReader};

use crate::attributes::AttributeChanges;
use crate::content::EXTENTS_MAX;
use crate::content::extents::{PlacedExtent, visit_extents};
use crate::error::{FsError, Result};
use crate::fs::{InodeAttributes, LiveFilesystem, RequestCaller};
use crate::history::view::LiveView;
use crate::names::{NameInDir, RenameFlags, own_uid, put_first_name};
use crate::tree::{LiveTransaction, MapReader};

/// An inode to be copied.
struct OriginalInode {
    ino: Ino,
    attr: Arc<InodeAttr>,
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
    /// Copies `source` of a view, and everything below it, to a name that must not exist. Hard links among the copied
    /// files are kept.
    pub fn copy_tree(&self, view: &LiveView, source: Ino, dir: Ino, name: &[u8]) -> Result<InodeAttributes> {
        let _borrowing = self.retain_content(view)?;
        self.copy_retained_tree(view, source, dir, name)
    }

    /// Copies like [`LiveFilesystem::copy_tree`]; an existing entry is replaced by the complete copy, atomically.
    pub fn copy_tree_replacing(
        &self,
        view: &LiveView,
        source: Ino,
        dir: Ino,
        name: &[u8],
    ) -> Result<InodeAttributes> {
        let _borrowing = self.retain_content(view)?;
        let hidden = new_hidden_name()?;
        let copied = self.copy_retained_tree(view, source, dir, &hidden).and_then(|node| {
            let rename = |flags| self.names().rename(dir, &hidden, dir, name, flags);
            // A rename that replaces fails on a directory that is not empty; an exchange takes anything.
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
            Ok((_, true)) => self.names().remove_tree(dir, &hidden, own_uid())?,
            Ok((_, false)) => {}
            // What failed says more than what could not be tidied up after it.
            Err(_) => drop(self.names().remove_tree(dir, &hidden, own_uid())),
        }
        let ino = copied?.0.ino;
        Ok(InodeAttributes { ino, attr: self.live_map().inode_attr(ino)? })
    }

    /// The same while the view's content is borrowed ([`LiveFilesystem::retain_content`]).
    pub(crate) fn copy_retained_tree(
        &self,
        view: &LiveView,
        source: Ino,
        dir: Ino,
        name: &[u8],
    ) -> Result<InodeAttributes> {
        let place = NameInDir::new(dir, name)?;
        let attr = view.inode_attr(source)?;
        place.check_name_allowed(attr.kind)?;
        // A single inode gets its name only when it is whole, and needs no hidden one meanwhile.
        if attr.kind != FileKind::Dir {
            return TreeCopy::new(self, view).copy_inode(source, &place);
        }
        // Asked before all of it is copied. The rename asks again.
        self.names().check_name_free(&place)?;
        let under_way = new_hidden_name()?;
        let copying = TreeCopy::new(self, view);
        let copied = copying.copy_all(source, &NameInDir::new(dir, &under_way)?).and_then(|node| {
            let flags = RenameFlags { noreplace: true, ..RenameFlags::default() };
            self.names().rename(dir, &under_way, dir, name, flags).map(|()| node)
        });
        if copied.is_err() {
            // What failed says more than what could not be tidied up after it.
            let _ = self.names().remove_tree(dir, &under_way, own_uid());
        }
        let ino = copied?.ino;
        Ok(InodeAttributes { ino, attr: self.live_map().inode_attr(ino)? })
    }

    /// Copies one inode to a name that must be free, in a worktree of one's own: with the number that it has there, if
    /// nothing here has it, and with all its times.
    pub(crate) fn copy_inode_exactly(
        &self,
        view: &LiveView,
        source: Ino,
        dir: Ino,
        name: &[u8],
    ) -> Result<InodeAttributes> {
        let original = OriginalInode::read_inode(view, source)?;
        let copying = TreeCopy::new(self, view);
        let made = copying.copy_original_inode(&original, &NameInDir::new(dir, name)?, true)?;
        self.change_copied_attr(made.ino, |attr| {
            // Making the copy has set the time of change to now, and has computed a new generation.
            (attr.ctime, attr.generation) = (original.attr.ctime, original.attr.generation);
        })
    }

    /// Copies one inode to a name that must be free, with a new number and all its times.
    pub(crate) fn copy_inode_anew(
        &self,
        view: &LiveView,
        source: Ino,
        dir: Ino,
        name: &[u8],
    ) -> Result<InodeAttributes> {
        let original = OriginalInode::read_inode(view, source)?;
        let copying = TreeCopy::new(self, view);
        let made = copying.copy_original_inode(&original, &NameInDir::new(dir, name)?, false)?;
        self.change_copied_attr(made.ino, |attr| attr.ctime = original.attr.ctime)
    }

    fn change_copied_attr(&self, ino: Ino, change: impl Fn(&mut InodeAttr)) -> Result<InodeAttributes> {
        self.live_map().apply_change(|txn| {
            let mut attr = txn.expect_inode_attr(ino)?;
            change(&mut attr);
            txn.set_inode_attr(ino, &attr);
            Ok(InodeAttributes { ino, attr: Arc::new(attr) })
        })
    }
}

impl<'c> TreeCopy<'c> {
    fn new(fs: &'c LiveFilesystem, view: &'c LiveView) -> Self {
        Self { fs, view, linked: HashMap::new(), dirs: HashMap::new() }
    }

    /// Copies a directory with everything below it.
    fn copy_all(mut self, source: Ino, place: &NameInDir<'_>) -> Result<InodeAttributes> {
        let node = self.copy_dir(source, place)?;
        let mut waiting = vec![source];
        while let Some(source) = waiting.pop() {
            self.copy_entries(source, &mut waiting)?;
        }
        self.restore_dir_times()?;
        Ok(node)
    }

    /// Copies one inode, a directory without its entries.
    fn copy_inode(&self, source: Ino, place: &NameInDir<'_>) -> Result<InodeAttributes> {
        self.copy_original_inode(&OriginalInode::read_inode(self.view, source)?, place, false)
    }

    fn copy_original_inode(
        &self,
        original: &OriginalInode,
        place: &NameInDir<'_>,
        keeps_number: bool,
    ) -> Result<InodeAttributes> {
        let names = self.fs.names();
        let number = |txn: &mut LiveTransaction<'_>, new: Ino| -> Result<Ino> {
            Ok(if keeps_number && txn.inode_attr(original.ino)?.is_none() { original.ino } else { new })
        };
        names.check_name_free(place)?;
        if original.extents.len() < EXTENTS_MAX {
            return names.with_reserved_number(|txn, ino| {
                let ino = number(txn, ino)?;
                self.share_extents(txn, ino, &original.extents);
                original.put_named(txn, ino, place)
            });
        }
        // More than one transaction takes: it has no name until it is whole.
        let node = names.with_reserved_number(|txn, ino| {
            let ino = number(txn, ino)?;
            self.share_extents(txn, ino, &original.extents);
            original.put_nameless(txn, ino)
        })?;
        let whole = self.copy_remaining_extents(original, node.ino);
        // The name comes last: until then nobody can see a file of which a part is missing, and a crash leaves an
        // orphan, which goes.
        let linked = whole.and_then(|()| names.link(node.ino, place.dir, place.name));
        if linked.is_err() {
            self.fs.content().remove_if_unused(node.ino)?;
        }
        linked
    }

    fn copy_remaining_extents(&self, original: &OriginalInode, ino: Ino) -> Result<()> {
        let mut last = original.extents.last().copied();
        // In portions, since nobody else changes anything while a transaction is under way.
        while let Some((start, extent)) = last {
            let extents = read_extents_from(self.view, original.ino, start + extent.len)?;
            self.fs.live_map().apply_change(|txn| {
                self.share_extents(txn, ino, &extents);
                Ok(())
            })?;
            last = extents.last().copied();
        }
        Ok(())
    }

    fn share_extents(&self, txn: &mut LiveTransaction<'_>, ino: Ino, extents: &[PlacedExtent]) {
        for (start, extent) in extents {
            self.fs.content().share_extent(txn, ino, *start, extent);
        }
    }

    fn copy_dir(&mut self, source: Ino, place: &NameInDir<'_>) -> Result<InodeAttributes> {
        let node = self.copy_inode(source, place)?;
        // A hostile tree may hold a circle, which would be copied without an end.
        if self.dirs.insert(source, node.ino).is_some() {
            return Err(FsError::BadTree(format!("the directory {source} has two names")));
        }
        Ok(node)
    }

    /// Copies what a directory holds; directories among it wait for their entries.
    fn copy_entries(&mut self, source: Ino, waiting: &mut Vec<Ino>) -> Result<()> {
        let Some(target) = self.dirs.get(&source).copied() else { return Ok(()) };
        for DirectoryEntry { name, ino, kind } in self.view.list_entries(source)? {
            let place = NameInDir { dir: target, name: &name };
            if kind == FileKind::Dir {
                self.copy_dir(ino, &place)?;
                waiting.push(ino);
            } else if let Some(copy) = self.linked.get(&ino) {
                self.fs.names().link(*copy, target, &name)?;
            } else {
                let node = self.copy_inode(ino, &place)?;
                if self.view.inode_attr(ino)?.nlink > 1 {
                    self.linked.insert(ino, node.ino);
                }
            }
        }
        Ok(())
    }

    /// Entries that come change their directory's times.
    fn restore_dir_times(&self) -> Result<()> {
        for (source, target) in &self.dirs {
            let changes = AttributeChanges::for_times_of(&*self.view.inode_attr(*source)?);
            self.fs.attributes().setattr(*target, &changes, RequestCaller::NOBODY)?;
        }
        Ok(())
    }
}

impl OriginalInode {
    fn read_inode(view: &LiveView, ino: Ino) -> Result<Self> {
        let attr = view.inode_attr(ino)?;
        let names = view.listxattr(ino)?;
        // Not what the trash knows of an entry.
        let names = names.into_iter().filter(|name| name != TRASH_RECORD_NAME);
        let xattrs = names.map(|name| view.getxattr(ino, &name).map(|value| (name, value)));
        let xattrs = xattrs.collect::<Result<_>>()?;
        Ok(Self { ino, attr, xattrs, extents: read_extents_from(view, ino, 0)? })
    }

    fn put_named(
        &self,
        txn: &mut LiveTransaction<'_>,
        ino: Ino,
        place: &NameInDir<'_>,
    ) -> Result<InodeAttributes> {
        let mut attr = self.new_attr();
        attr.ctime = current_time();
        put_first_name(txn, place, ino, &mut attr)?;
        Ok(self.put_inode(txn, ino, attr))
    }

    fn put_nameless(&self, txn: &mut LiveTransaction<'_>, ino: Ino) -> Result<InodeAttributes> {
        let mut attr = self.new_attr();
        // There is no name yet from which it could be computed.
        attr.generation = compute_generation(Ino::SUPER, &ino.0.to_le_bytes());
        (attr.parent, attr.name, attr.nlink) = (Ino::SUPER, Vec::new(), 0);
        txn.add_orphan(ino);
        Ok(self.put_inode(txn, ino, attr))
    }

    fn put_inode(&self, txn: &mut LiveTransaction<'_>, ino: Ino, attr: InodeAttr) -> InodeAttributes {
        for (name, value) in &self.xattrs {
            txn.set_key(MapKey::for_xattr(ino, name), value);
        }
        txn.set_inode_attr(ino, &attr);
        InodeAttributes { ino, attr: Arc::new(attr) }
    }

    fn new_attr(&self) -> InodeAttr {
        InodeAttr { ctime: current_time(), ..(*self.attr).clone() }
    }
}

/// The extents of a file from an offset on, as many as one transaction takes.
fn read_extents_from(view: &LiveView, ino: Ino, from: u64) -> Result<Vec<PlacedExtent>> {
    let mut extents = Vec::new();
    view.read_state(|state| {
        visit_extents(state, ino, from..u64::MAX, &mut |extent| {
            extents.push(extent);
            if extents.len() < EXTENTS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
    })?;
    Ok(extents)
}

/// How names of what is being made begin.
const HIDDEN_PREFIX: &[u8] = b".copy-";

/// Returns whether a name is one of what is being made, or of what a copy has replaced.
pub(crate) fn is_hidden_name(name: &[u8]) -> bool {
    let digits = name.strip_prefix(HIDDEN_PREFIX).unwrap_or_default();
    digits.len() == 16 && digits.iter().all(u8::is_ascii_hexdigit)
}

/// A name for what is being made, and is nobody's yet.
pub(crate) fn new_hidden_name() -> Result<Vec<u8>> {
    // Random, since several copies into one directory may be under way.
    let random =
        getrandom::u64().map_err(|error| VolumeError::wrap_local_error("/dev/urandom")(error.into()))?;
    Ok([HIDDEN_PREFIX, format!("{random:016x}").as_bytes()].concat())
}
