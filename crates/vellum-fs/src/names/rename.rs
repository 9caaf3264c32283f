//! Renaming: moving, replacing, exchanging.

use rustix::io::Errno;
use vellum_host::clock::current_time;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, MapKey, UnixTime};

use super::make::put_whiteout;
use super::remove::{RemovedLink, is_still_named, remove_link};
use super::{NameInDir, add_link_count, read_dir_attr, update_dir};
use crate::attributes::clock::advance_change_time;
use crate::error::{FsError, Result};
use crate::fs::{InodeAttributes, LiveFilesystem, RequestCaller};
use crate::tree::{LiveTransaction, MapReader};

/// Deepest nesting of directories that is followed upwards; a hostile tree may hold a circle.
const DEPTH_MAX: usize = 100_000;

/// How to rename, as `renameat2(2)` has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// The new name must not be there.
    pub noreplace: bool,
    /// The new name must be there, and both change places.
    pub exchange: bool,
    /// What is left at the old name is a whiteout of this owner: a character device 0, 0, by which overlayfs knows that
    /// a name is gone.
    pub whiteout: Option<RequestCaller>,
}

/// What was found at both places before the transaction.
struct RenameEntries<'a> {
    from: NameInDir<'a>,
    to: NameInDir<'a>,
    moved: InodeAttributes,
    target: Option<InodeAttributes>,
}

impl LiveFilesystem {
    /// Gives what stands at a name another one.
    pub fn rename(
        &self,
        dir: Ino,
        name: &[u8],
        newdir: Ino,
        newname: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        if flags.exchange && (flags.noreplace || flags.whiteout.is_some()) {
            return Err(Errno::INVAL.into());
        }
        let [from, to] = [NameInDir::new(dir, name)?, NameInDir::new(newdir, newname)?];
        self.retry_until_current(&[from, to], || self.try_rename(from, to, flags))
    }

    fn try_rename(&self, from: NameInDir<'_>, to: NameInDir<'_>, flags: RenameFlags) -> Result<bool> {
        let moved = self.lookup(from.dir, from.name)?;
        let target = match self.lookup(to.dir, to.name) {
            Ok(node) => Some(node),
            Err(FsError::Posix(Errno::NOENT)) => None,
            Err(error) => return Err(error),
        };
        match &target {
            Some(_) if flags.noreplace => return Err(Errno::EXIST.into()),
            None if flags.exchange => return Err(Errno::NOENT.into()),
            Some(target) if target.ino == moved.ino => return Ok(true),
            _ => {}
        }
        let found = RenameEntries { from, to, moved, target };
        [from.dir, to.dir].into_iter().try_for_each(|dir| self.inode_attr(dir).map(drop))?;
        let parent = |ino| Ok(self.inode_attr(ino)?.parent);
        found.check_cycles(flags.exchange, &parent)?;
        match &found.target {
            Some(target) if flags.exchange => self.exchange_names(&found, target),
            _ => self.move_and_replace(&found, flags.whiteout),
        }
    }

    fn move_and_replace(&self, found: &RenameEntries<'_>, whiteout: Option<RequestCaller>) -> Result<bool> {
        let RenameEntries { from, to, moved, target } = found;
        found.check_kinds()?;
        to.check_name_allowed(moved.attr.kind)?;
        let leaving = target.as_ref().map(|target| self.prepare_link_removal(to, target)).transpose()?;
        let claim = target.as_ref().and_then(|target| self.opened.claim_removal(target.ino));
        let replaced = leaving.as_ref().map(|leaving| (leaving, claim.is_none()));
        let number = whiteout.map(|_| self.reserve_inode_number()).transpose()?;
        let done = self.apply_change(|txn| {
            if number.is_some_and(|number| !self.numbers.is_number_valid(&number))
                || !found.commit_move(txn, replaced)?
            {
                return Ok(false);
            }
            if let (Some(number), Some(owner)) = (number, whiteout) {
                put_whiteout(txn, number.ino, from, owner)?;
            }
            Ok(true)
        })?;
        if done {
            self.record_move(moved, from, to);
            target.as_ref().map_or(Ok(()), |target| self.finish_link_removal(target.ino, to, claim))?;
        }
        Ok(done)
    }

    fn exchange_names(&self, found: &RenameEntries<'_>, target: &InodeAttributes) -> Result<bool> {
        let RenameEntries { from, to, moved, .. } = found;
        to.check_name_allowed(moved.attr.kind)?;
        from.check_name_allowed(target.attr.kind)?;
        let done = self.apply_change(|txn| found.commit_exchange(txn, target))?;
        if done {
            self.record_move(moved, from, to);
            self.record_move(target, to, from);
        }
        Ok(done)
    }

    fn record_move(&self, node: &InodeAttributes, from: &NameInDir<'_>, to: &NameInDir<'_>) {
        if node.attr.kind != FileKind::Dir && node.attr.nlink > 1 {
            self.places.remove_link(node.ino, from);
            self.places.add_link(node.ino, to);
        }
    }
}

impl RenameEntries<'_> {
    /// A directory that is not one replaces nothing that is one, nor the other way round.
    fn check_kinds(&self) -> Result<()> {
        match &self.target {
            Some(target) if is_dir_node(&self.moved) && !is_dir_node(target) => Err(Errno::NOTDIR.into()),
            Some(target) if !is_dir_node(&self.moved) && is_dir_node(target) => Err(Errno::ISDIR.into()),
            _ => Ok(()),
        }
    }

    /// Nothing is moved into itself. A target that the moved lies in is not empty, or would be moved into itself.
    fn check_cycles(&self, exchange: bool, parent: &dyn Fn(Ino) -> Result<Ino>) -> Result<()> {
        if self.from.dir == self.to.dir {
            return Ok(());
        }
        if is_dir_node(&self.moved) && is_dir_within(self.to.dir, self.moved.ino, parent)? {
            return Err(Errno::INVAL.into());
        }
        match &self.target {
            Some(target) if is_dir_node(target) && is_dir_within(self.from.dir, target.ino, parent)? => {
                Err(if exchange { Errno::INVAL } else { Errno::NOTEMPTY }.into())
            }
            _ => Ok(()),
        }
    }

    /// Whether both places are still as they were found.
    fn is_unchanged(&self, txn: &LiveTransaction<'_>) -> Result<bool> {
        let target = match &self.target {
            Some(target) => is_still_named(txn, &self.to, target)?,
            None => txn.lookup_dentry(self.to.dir, self.to.name)?.is_none(),
        };
        Ok(target && is_still_named(txn, &self.from, &self.moved)?)
    }

    fn commit_move(
        &self,
        txn: &mut LiveTransaction<'_>,
        replaced: Option<(&RemovedLink, bool)>,
    ) -> Result<bool> {
        if !self.is_unchanged(txn)? {
            return Ok(false);
        }
        self.check_cycles(false, &|ino| Ok(txn.expect_inode_attr(ino)?.parent))?;
        let time = current_time();
        let mut dirs = RenameDirs::read_attrs(txn, self)?;
        if let Some((leaving, is_open)) = replaced
            && !remove_link(txn, &self.to, leaving, is_open, time)?
        {
            return Ok(false);
        }
        let replaced_dirs = self.target.as_ref().map_or(0, subdir_count);
        dirs.add_subdirs(-subdir_count(&self.moved), subdir_count(&self.moved) - replaced_dirs)?;
        update_moved_link(txn, self.moved.ino, &self.from, &self.to, time)?;
        txn.delete_key(MapKey::for_dentry(self.from.dir, self.from.name));
        txn.set_dentry(self.to.dir, self.to.name, new_dentry(&self.moved));
        dirs.put_attrs(txn, self, time);
        Ok(true)
    }

    fn commit_exchange(&self, txn: &mut LiveTransaction<'_>, target: &InodeAttributes) -> Result<bool> {
        if !self.is_unchanged(txn)? {
            return Ok(false);
        }
        self.check_cycles(true, &|ino| Ok(txn.expect_inode_attr(ino)?.parent))?;
        let time = current_time();
        let mut dirs = RenameDirs::read_attrs(txn, self)?;
        let gained = subdir_count(target) - subdir_count(&self.moved);
        dirs.add_subdirs(gained, -gained)?;
        update_moved_link(txn, self.moved.ino, &self.from, &self.to, time)?;
        update_moved_link(txn, target.ino, &self.to, &self.from, time)?;
        txn.set_dentry(self.to.dir, self.to.name, new_dentry(&self.moved));
        txn.set_dentry(self.from.dir, self.from.name, new_dentry(target));
        dirs.put_attrs(txn, self, time);
        Ok(true)
    }
}

/// The directories of both places, which may be one.
struct RenameDirs {
    from: InodeAttr,
    to: Option<InodeAttr>,
}

impl RenameDirs {
    fn read_attrs(txn: &LiveTransaction<'_>, found: &RenameEntries<'_>) -> Result<Self> {
        let from = read_dir_attr(txn, found.from.dir)?;
        let to = if found.to.dir == found.from.dir { None } else { Some(read_dir_attr(txn, found.to.dir)?) };
        Ok(Self { from, to })
    }

    /// Counts the subdirectories that each gains.
    fn add_subdirs(&mut self, from: i32, to: i32) -> Result<()> {
        match &mut self.to {
            None => add_link_count(&mut self.from, from + to),
            Some(other) => add_link_count(&mut self.from, from).and_then(|()| add_link_count(other, to)),
        }
    }

    fn put_attrs(mut self, txn: &mut LiveTransaction<'_>, found: &RenameEntries<'_>, time: UnixTime) {
        update_dir(&mut self.from, time);
        txn.set_inode_attr(found.from.dir, &self.from);
        if let Some(mut to) = self.to {
            update_dir(&mut to, time);
            txn.set_inode_attr(found.to.dir, &to);
        }
    }
}

/// Tells an inode that one of its links has another place.
fn update_moved_link(
    txn: &mut LiveTransaction<'_>,
    ino: Ino,
    from: &NameInDir<'_>,
    to: &NameInDir<'_>,
    time: UnixTime,
) -> Result<()> {
    let mut attr = txn.expect_inode_attr(ino)?;
    if attr.kind == FileKind::Dir || from.is_first_link(&attr) {
        (attr.parent, attr.name) = (to.dir, to.name.to_vec());
    }
    advance_change_time(&mut attr, time);
    txn.set_inode_attr(ino, &attr);
    Ok(())
}

fn is_dir_within(dir: Ino, ancestor: Ino, parent: &dyn Fn(Ino) -> Result<Ino>) -> Result<bool> {
    let mut at = dir;
    for _ in 0..DEPTH_MAX {
        if at == ancestor {
            return Ok(true);
        }
        if at <= Ino::ROOT {
            return Ok(false);
        }
        at = parent(at)?;
    }
    Err(FsError::BadTree(format!("the directory {dir} lies in itself")))
}

fn is_dir_node(node: &InodeAttributes) -> bool {
    node.attr.kind == FileKind::Dir
}

fn subdir_count(node: &InodeAttributes) -> i32 {
    i32::from(is_dir_node(node))
}

fn new_dentry(node: &InodeAttributes) -> Dentry {
    Dentry { ino: node.ino, kind: node.attr.kind }
}
