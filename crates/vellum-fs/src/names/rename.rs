//! Renaming: moving, replacing, exchanging.

use rustix::io::Errno;
use vellum_host::clock::current_time;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, MapKey, UnixTime};

use super::make::put_whiteout;
use super::remove::{LinkRemoval, RemovedLink, remove_link};
use super::{LiveNames, NameInDir, add_link_count, read_dir_attr, update_dir};
use crate::attributes::clock::advance_change_time;
use crate::error::{FsError, Result};
use crate::fs::RequestCaller;
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
    /// The user who renames it, and so removes what the new name replaces.
    pub uid: u32,
}

/// What was found at both places before the transaction.
struct RenameEntries<'a> {
    from: NameInDir<'a>,
    to: NameInDir<'a>,
    moved: Dentry,
    target: Option<Dentry>,
}

/// An inode to which a place was told that it had not: it may have other links.
struct MovedLink {
    ino: Ino,
    has_other_links: bool,
}

/// What a transaction did.
enum CommittedRename {
    /// It moved the name; what stood there before is another matter.
    Moved { link: MovedLink, replaced: Option<LinkRemoval> },
    /// Nothing: what was found before does not hold any more.
    Outdated,
}

impl LiveNames {
    /// Renames an entry, as `renameat2(2)`.
    pub fn rename(
        &self,
        dir: Ino,
        name: &[u8],
        newdir: Ino,
        newname: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        // `renameat2(2)` refuses these combinations.
        if flags.exchange && (flags.noreplace || flags.whiteout.is_some()) {
            return Err(Errno::INVAL.into());
        }
        let [from, to] = [NameInDir::new(dir, name)?, NameInDir::new(newdir, newname)?];
        self.retry_until_current(&[from, to], || self.try_rename(from, to, flags))
    }

    fn try_rename(&self, from: NameInDir<'_>, to: NameInDir<'_>, flags: RenameFlags) -> Result<bool> {
        let moved = self.expect_dentry(&from)?;
        let target = match self.expect_dentry(&to) {
            Ok(dentry) => Some(dentry),
            Err(FsError::Posix(Errno::NOENT)) => None,
            Err(error) => return Err(error),
        };
        match &target {
            Some(_) if flags.noreplace => return Err(Errno::EXIST.into()),
            None if flags.exchange => return Err(Errno::NOENT.into()),
            // Of two links of one inode, `rename(2)` removes neither, and succeeds.
            Some(target) if target.ino == moved.ino => return Ok(true),
            _ => {}
        }
        let found = RenameEntries { from, to, moved, target };
        let parent = |ino| Ok(self.map.inode_attr(ino)?.parent);
        // The transaction checks this again. Here it brings the attributes of the directories above into
        // memory.
        found.check_cycles(flags.exchange, &parent)?;
        match &found.target {
            Some(target) if flags.exchange => self.exchange_names(&found, target),
            _ => self.move_and_replace(&found, flags),
        }
    }

    fn move_and_replace(&self, found: &RenameEntries<'_>, flags: RenameFlags) -> Result<bool> {
        let RenameFlags { whiteout, uid, .. } = flags;
        let RenameEntries { from, to, moved, target } = found;
        found.check_kinds()?;
        to.check_name_allowed(moved.kind)?;
        let leaving = target.map(|target| self.prepare_link_removal(to, target, uid)).transpose()?;
        // Before the transaction, and held until it has ended: nobody opens the replaced inode while it goes.
        let claim = target.and_then(|target| self.content.open_inodes().claim_removal(target.ino));
        let replaced = leaving.as_ref().map(|leaving| (leaving, claim.is_none()));
        // Not within the transaction, since the pool of numbers may need one of its own.
        let number = whiteout.map(|_| self.reserve_inode_number()).transpose()?;
        let done = self.map.apply_change(|txn| {
            // A restore came in between, and an inode of the restored state may have the number.
            if number.is_some_and(|number| !self.numbers.is_number_valid(&number)) {
                return Ok(CommittedRename::Outdated);
            }
            let done = found.commit_move(txn, replaced)?;
            if let (CommittedRename::Moved { .. }, Some(number), Some(owner)) = (&done, number, whiteout) {
                put_whiteout(txn, number.ino, from, owner)?;
            }
            Ok(done)
        })?;
        let CommittedRename::Moved { link, replaced } = done else { return Ok(false) };
        self.record_move(&link, from, to);
        if let (Some(target), Some(removal)) = (target, replaced) {
            self.finish_link_removal(target.ino, to, removal)?;
        }
        Ok(true)
    }

    fn exchange_names(&self, found: &RenameEntries<'_>, target: &Dentry) -> Result<bool> {
        let RenameEntries { from, to, moved, .. } = found;
        to.check_name_allowed(moved.kind)?;
        from.check_name_allowed(target.kind)?;
        let Some([forth, back]) = self.map.apply_change(|txn| found.commit_exchange(txn, target))? else {
            return Ok(false);
        };
        self.record_move(&forth, from, to);
        self.record_move(&back, to, from);
        Ok(true)
    }

    fn record_move(&self, link: &MovedLink, from: &NameInDir<'_>, to: &NameInDir<'_>) {
        if link.has_other_links {
            self.links.remove_link(link.ino, from);
            self.links.add_link(link.ino, to);
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
        // What stays in its directory does not get below itself.
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
        Ok(txn.lookup_dentry(self.to.dir, self.to.name)? == self.target
            && txn.lookup_dentry(self.from.dir, self.from.name)? == Some(self.moved))
    }

    fn commit_move(
        &self,
        txn: &mut LiveTransaction<'_>,
        replaced: Option<(&RemovedLink, bool)>,
    ) -> Result<CommittedRename> {
        if !self.is_unchanged(txn)? {
            return Ok(CommittedRename::Outdated);
        }
        // Again, in the transaction: another rename may have moved one of the directories above since.
        self.check_cycles(false, &|ino| Ok(txn.expect_inode_attr(ino)?.parent))?;
        let time = current_time();
        let mut dirs = RenameDirs::read_attrs(txn, self)?;
        let removal = replaced
            .map(|(leaving, is_open)| remove_link(txn, &self.to, leaving, is_open, time))
            .transpose()?;
        if removal.is_some_and(|removal| !removal.is_done()) {
            return Ok(CommittedRename::Outdated);
        }
        let replaced_dirs = self.target.as_ref().map_or(0, subdir_count);
        // A subdirectory counts in its parent by the entry `..`; files do not.
        dirs.add_subdirs(-subdir_count(&self.moved), subdir_count(&self.moved) - replaced_dirs)?;
        let link = update_moved_link(txn, self.moved.ino, &self.from, &self.to, time)?;
        txn.delete_key(MapKey::for_dentry(self.from.dir, self.from.name));
        txn.set_dentry(self.to.dir, self.to.name, self.moved);
        dirs.put_attrs(txn, self, time);
        Ok(CommittedRename::Moved { link, replaced: removal })
    }

    /// None if what was found before does not hold any more.
    fn commit_exchange(
        &self,
        txn: &mut LiveTransaction<'_>,
        target: &Dentry,
    ) -> Result<Option<[MovedLink; 2]>> {
        if !self.is_unchanged(txn)? {
            return Ok(None);
        }
        self.check_cycles(true, &|ino| Ok(txn.expect_inode_attr(ino)?.parent))?;
        let time = current_time();
        let mut dirs = RenameDirs::read_attrs(txn, self)?;
        let gained = subdir_count(target) - subdir_count(&self.moved);
        // If a file and a directory change places, one parent gains an entry `..` below it, and the other
        // loses it.
        dirs.add_subdirs(gained, -gained)?;
        let forth = update_moved_link(txn, self.moved.ino, &self.from, &self.to, time)?;
        let back = update_moved_link(txn, target.ino, &self.to, &self.from, time)?;
        txn.set_dentry(self.to.dir, self.to.name, self.moved);
        txn.set_dentry(self.from.dir, self.from.name, *target);
        dirs.put_attrs(txn, self, time);
        Ok(Some([forth, back]))
    }
}

/// The directories of both places, which may be one.
struct RenameDirs {
    from: InodeAttr,
    // None if both are one directory: of two copies, each with its own counts, the second would undo the first.
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
) -> Result<MovedLink> {
    let mut bare = txn.expect_bare_attr(ino)?;
    let attr = &mut bare.attr;
    // Attributes record only the first link. If another one moves, only their time changes.
    if attr.kind == FileKind::Dir || from.is_first_link(attr) {
        (attr.parent, attr.name) = (to.dir, to.name.to_vec());
    }
    advance_change_time(attr, time);
    txn.set_bare_attr(ino, &bare);
    Ok(MovedLink { ino, has_other_links: bare.attr.kind != FileKind::Dir && bare.attr.nlink > 1 })
}

fn is_dir_within(dir: Ino, ancestor: Ino, parent: &dyn Fn(Ino) -> Result<Ino>) -> Result<bool> {
    let mut at = dir;
    for _ in 0..DEPTH_MAX {
        if at == ancestor {
            return Ok(true);
        }
        // The root, or what a directory without a name has for its parent: nothing is above either.
        if at <= Ino::ROOT {
            return Ok(false);
        }
        at = parent(at)?;
    }
    Err(FsError::BadTree(format!("the directory {dir} lies in itself")))
}

fn is_dir_node(dentry: &Dentry) -> bool {
    dentry.kind == FileKind::Dir
}

fn subdir_count(dentry: &Dentry) -> i32 {
    i32::from(is_dir_node(dentry))
}
