//! Renaming: moving, replacing, exchanging.

use rustix::io::Errno;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, MapKey, UnixTime};

use super::make::put_whiteout;
use super::remove::{RemovedLink, drop_link, names};
use super::{NameInDir, add_links, dir_of, touch_dir};
use crate::clock::{now, stamp_change};
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
        self.repeat(&[from, to], || self.try_rename(from, to, flags))
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
        [from.dir, to.dir].into_iter().try_for_each(|dir| self.attr(dir).map(drop))?;
        let parent = |ino| Ok(self.attr(ino)?.parent);
        found.check_circles(flags.exchange, &parent)?;
        match &found.target {
            Some(target) if flags.exchange => self.exchange(&found, target),
            _ => self.move_over(&found, flags.whiteout),
        }
    }

    fn move_over(&self, found: &RenameEntries<'_>, whiteout: Option<RequestCaller>) -> Result<bool> {
        let RenameEntries { from, to, moved, target } = found;
        found.check_kinds()?;
        to.check_free(moved.attr.kind)?;
        let leaving = target.as_ref().map(|target| self.leaving(to, target)).transpose()?;
        let claim = target.as_ref().and_then(|target| self.opened.claim(target.ino));
        let replaced = leaving.as_ref().map(|leaving| (leaving, claim.is_none()));
        let number = whiteout.map(|_| self.new_number()).transpose()?;
        let done = self.change(|txn| {
            if number.is_some_and(|number| !self.numbers.is_good(&number))
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
            self.note_move(moved, from, to);
            target.as_ref().map_or(Ok(()), |target| self.left(target.ino, to, claim))?;
        }
        Ok(done)
    }

    fn exchange(&self, found: &RenameEntries<'_>, target: &InodeAttributes) -> Result<bool> {
        let RenameEntries { from, to, moved, .. } = found;
        to.check_free(moved.attr.kind)?;
        from.check_free(target.attr.kind)?;
        let done = self.change(|txn| found.commit_exchange(txn, target))?;
        if done {
            self.note_move(moved, from, to);
            self.note_move(target, to, from);
        }
        Ok(done)
    }

    fn note_move(&self, node: &InodeAttributes, from: &NameInDir<'_>, to: &NameInDir<'_>) {
        if node.attr.kind != FileKind::Dir && node.attr.nlink > 1 {
            self.places.remove(node.ino, from);
            self.places.add(node.ino, to);
        }
    }
}

impl RenameEntries<'_> {
    /// A directory that is not one replaces nothing that is one, nor the other way round.
    fn check_kinds(&self) -> Result<()> {
        match &self.target {
            Some(target) if is_dir(&self.moved) && !is_dir(target) => Err(Errno::NOTDIR.into()),
            Some(target) if !is_dir(&self.moved) && is_dir(target) => Err(Errno::ISDIR.into()),
            _ => Ok(()),
        }
    }

    /// Nothing is moved into itself. A target that the moved lies in is not empty, or would be moved into itself.
    fn check_circles(&self, exchange: bool, parent: &dyn Fn(Ino) -> Result<Ino>) -> Result<()> {
        if self.from.dir == self.to.dir {
            return Ok(());
        }
        if is_dir(&self.moved) && is_within(self.to.dir, self.moved.ino, parent)? {
            return Err(Errno::INVAL.into());
        }
        match &self.target {
            Some(target) if is_dir(target) && is_within(self.from.dir, target.ino, parent)? => {
                Err(if exchange { Errno::INVAL } else { Errno::NOTEMPTY }.into())
            }
            _ => Ok(()),
        }
    }

    /// Whether both places are still as they were found.
    fn holds(&self, txn: &LiveTransaction<'_>) -> Result<bool> {
        let target = match &self.target {
            Some(target) => names(txn, &self.to, target)?,
            None => txn.dentry(self.to.dir, self.to.name)?.is_none(),
        };
        Ok(target && names(txn, &self.from, &self.moved)?)
    }

    fn commit_move(
        &self,
        txn: &mut LiveTransaction<'_>,
        replaced: Option<(&RemovedLink, bool)>,
    ) -> Result<bool> {
        if !self.holds(txn)? {
            return Ok(false);
        }
        self.check_circles(false, &|ino| Ok(txn.attr_of(ino)?.parent))?;
        let time = now();
        let mut dirs = RenameDirs::read(txn, self)?;
        if let Some((leaving, is_open)) = replaced
            && !drop_link(txn, &self.to, leaving, is_open, time)?
        {
            return Ok(false);
        }
        let replaced_dirs = self.target.as_ref().map_or(0, dirs_in);
        dirs.add(-dirs_in(&self.moved), dirs_in(&self.moved) - replaced_dirs)?;
        move_link(txn, self.moved.ino, (&self.from, &self.to), time)?;
        txn.delete(MapKey::dentry(self.from.dir, self.from.name));
        txn.put_dentry(self.to.dir, self.to.name, dentry_of(&self.moved));
        dirs.put(txn, self, time);
        Ok(true)
    }

    fn commit_exchange(&self, txn: &mut LiveTransaction<'_>, target: &InodeAttributes) -> Result<bool> {
        if !self.holds(txn)? {
            return Ok(false);
        }
        self.check_circles(true, &|ino| Ok(txn.attr_of(ino)?.parent))?;
        let time = now();
        let mut dirs = RenameDirs::read(txn, self)?;
        let gained = dirs_in(target) - dirs_in(&self.moved);
        dirs.add(gained, -gained)?;
        move_link(txn, self.moved.ino, (&self.from, &self.to), time)?;
        move_link(txn, target.ino, (&self.to, &self.from), time)?;
        txn.put_dentry(self.to.dir, self.to.name, dentry_of(&self.moved));
        txn.put_dentry(self.from.dir, self.from.name, dentry_of(target));
        dirs.put(txn, self, time);
        Ok(true)
    }
}

/// The directories of both places, which may be one.
struct RenameDirs {
    from: InodeAttr,
    to: Option<InodeAttr>,
}

impl RenameDirs {
    fn read(txn: &LiveTransaction<'_>, found: &RenameEntries<'_>) -> Result<Self> {
        let from = dir_of(txn, found.from.dir)?;
        let to = if found.to.dir == found.from.dir { None } else { Some(dir_of(txn, found.to.dir)?) };
        Ok(Self { from, to })
    }

    /// Counts the subdirectories that each gains.
    fn add(&mut self, from: i32, to: i32) -> Result<()> {
        match &mut self.to {
            None => add_links(&mut self.from, from + to),
            Some(other) => add_links(&mut self.from, from).and_then(|()| add_links(other, to)),
        }
    }

    fn put(mut self, txn: &mut LiveTransaction<'_>, found: &RenameEntries<'_>, time: UnixTime) {
        touch_dir(&mut self.from, time);
        txn.put_attr(found.from.dir, &self.from);
        if let Some(mut to) = self.to {
            touch_dir(&mut to, time);
            txn.put_attr(found.to.dir, &to);
        }
    }
}

/// Tells an inode that one of its links has another place.
fn move_link(
    txn: &mut LiveTransaction<'_>,
    ino: Ino,
    (from, to): (&NameInDir<'_>, &NameInDir<'_>),
    time: UnixTime,
) -> Result<()> {
    let mut attr = txn.attr_of(ino)?;
    if attr.kind == FileKind::Dir || from.is_first_of(&attr) {
        (attr.parent, attr.name) = (to.dir, to.name.to_vec());
    }
    stamp_change(&mut attr, time);
    txn.put_attr(ino, &attr);
    Ok(())
}

fn is_within(dir: Ino, ancestor: Ino, parent: &dyn Fn(Ino) -> Result<Ino>) -> Result<bool> {
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

fn is_dir(node: &InodeAttributes) -> bool {
    node.attr.kind == FileKind::Dir
}

fn dirs_in(node: &InodeAttributes) -> i32 {
    i32::from(is_dir(node))
}

fn dentry_of(node: &InodeAttributes) -> Dentry {
    Dentry { ino: node.ino, kind: node.attr.kind }
}
