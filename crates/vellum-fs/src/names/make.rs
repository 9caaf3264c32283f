//! Creating files, directories, symlinks and devices.

use std::sync::Arc;

use rustix::io::Errno;
use vellum_host::clock::current_time;
use vellum_types::limits::SYMLINK_MAX;
use vellum_types::value::MODE_MASK;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, MapKey};
use vellum_volume::tree::compute_generation;

use super::{LiveNames, NameInDir, add_link_count, read_dir_attr, update_dir};
use crate::attributes::acl;
use crate::content::SET_GID;
use crate::error::Result;
use crate::fs::{InodeAttributes, RequestCaller};
use crate::tree::{LiveTransaction, MapReader};

/// The mode bits that `mkdir(2)` takes; a set-group-id bit comes from above.
const MKDIR_MODE: u32 = 0o1777;
/// Bytes of the journal that something new takes, about: its name, its attributes, its directory's.
const NEW_BYTES: u64 = 1024;
/// Symlinks allow everything: what they lead to decides.
const SYMLINK_MODE: u32 = 0o777;

/// What is to be made.
#[derive(Clone, Copy)]
struct NewInode<'a> {
    kind: FileKind,
    mode: u32,
    rdev: u64,
    target: &'a [u8],
}

impl NewInode<'static> {
    fn with_kind(kind: FileKind, mode: u32) -> Self {
        Self { kind, mode, rdev: 0, target: &[] }
    }
}

impl LiveNames {
    /// Makes an empty file.
    pub fn create(&self, dir: Ino, name: &[u8], mode: u32, caller: RequestCaller) -> Result<InodeAttributes> {
        self.create_entry(dir, name, NewInode::with_kind(FileKind::File, mode & MODE_MASK), caller)
    }

    /// Makes an empty directory.
    pub fn mkdir(&self, dir: Ino, name: &[u8], mode: u32, caller: RequestCaller) -> Result<InodeAttributes> {
        self.create_entry(dir, name, NewInode::with_kind(FileKind::Dir, mode & MKDIR_MODE), caller)
    }

    /// Makes a file of any kind but a directory or a symlink.
    pub fn mknod(
        &self,
        dir: Ino,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: u64,
        caller: RequestCaller,
    ) -> Result<InodeAttributes> {
        // `mknod(2)` ignores the number of what is no device.
        let rdev = match kind {
            FileKind::CharDevice | FileKind::BlockDevice => rdev,
            FileKind::File | FileKind::Fifo | FileKind::Socket => 0,
            FileKind::Dir | FileKind::Symlink => return Err(Errno::INVAL.into()),
        };
        self.create_entry(dir, name, NewInode { rdev, ..NewInode::with_kind(kind, mode & MODE_MASK) }, caller)
    }

    /// Makes a symlink.
    pub fn symlink(
        &self,
        dir: Ino,
        name: &[u8],
        target: &[u8],
        caller: RequestCaller,
    ) -> Result<InodeAttributes> {
        // `symlink(2)` answers an empty target so.
        if target.is_empty() {
            return Err(Errno::NOENT.into());
        }
        // In the limit of the kernel, the NUL at the end counts.
        if target.len() >= SYMLINK_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        if target.contains(&0) {
            return Err(Errno::INVAL.into());
        }
        self.create_entry(
            dir,
            name,
            NewInode { target, ..NewInode::with_kind(FileKind::Symlink, SYMLINK_MODE) },
            caller,
        )
    }

    /// Creates a file without a name (`O_TMPFILE`). The caller must open or hold it; otherwise it is removed when the
    /// worktree is opened the next time.
    pub fn tmpfile(&self, dir: Ino, mode: u32, caller: RequestCaller) -> Result<InodeAttributes> {
        self.map.inode_attr(dir)?;
        // Brings what the transaction will read into memory. Otherwise it would have to be begun anew.
        self.map.find_xattr(dir, acl::DEFAULT)?;
        self.with_reserved_number(|txn, ino| {
            let parent = read_dir_attr(txn, dir)?;
            let new = NewInode::with_kind(FileKind::File, mode & MODE_MASK);
            let mut attr = new_inode_attr(txn, ino, ParentDir { ino: dir, attr: &parent }, &new, caller)?;
            // There is no name yet, so that the number stands in for it.
            attr.generation = compute_generation(dir, &ino.0.to_le_bytes());
            attr.nlink = 0;
            txn.add_orphan(ino);
            txn.set_new_inode_attr(ino, &attr);
            Ok(InodeAttributes { ino, attr: Arc::new(attr) })
        })
    }

    fn create_entry(
        &self,
        dir: Ino,
        name: &[u8],
        new: NewInode<'_>,
        caller: RequestCaller,
    ) -> Result<InodeAttributes> {
        let place = NameInDir::new(dir, name)?;
        place.check_name_allowed(new.kind)?;
        self.check_name_free(&place)?;
        // Brings what the transaction will read into memory, as for a file without a name.
        self.map.find_xattr(dir, acl::DEFAULT)?;
        self.with_reserved_number(|txn, ino| {
            let parent = read_dir_attr(txn, dir)?;
            let mut attr = new_inode_attr(txn, ino, ParentDir { ino: dir, attr: &parent }, &new, caller)?;
            put_first_name(txn, &place, ino, &mut attr)?;
            txn.set_new_inode_attr(ino, &attr);
            Ok(InodeAttributes { ino, attr: Arc::new(attr) })
        })
    }

    /// Changes the worktree with a number for something new.
    pub(crate) fn with_reserved_number(
        &self,
        mut body: impl FnMut(&mut LiveTransaction<'_>, Ino) -> Result<InodeAttributes>,
    ) -> Result<InodeAttributes> {
        // Not within the transaction: there is one at a time, and all others would wait, too.
        self.log.wait_for_disk_space(NEW_BYTES)?;
        loop {
            // A restore between taking a number and using it makes it worthless, since an inode of the
            // restored state may have it. Then another one is taken.
            let number = self.reserve_inode_number()?;
            let made = self.map.apply_change(|txn| {
                if self.numbers.is_number_valid(&number) { body(txn, number.ino).map(Some) } else { Ok(None) }
            })?;
            if let Some(node) = made {
                return Ok(node);
            }
        }
    }
}

/// The directory in which an inode is made.
struct ParentDir<'a> {
    ino: Ino,
    attr: &'a InodeAttr,
}

/// The attributes of something new, but for its name; its access control lists are put.
fn new_inode_attr(
    txn: &mut LiveTransaction<'_>,
    ino: Ino,
    parent: ParentDir<'_>,
    new: &NewInode<'_>,
    caller: RequestCaller,
) -> Result<InodeAttr> {
    let mode = put_inherited_acls(txn, parent.ino, ino, new, caller)?;
    let mut attr = InodeAttr::new(new.kind, mode);
    (attr.uid, attr.gid) = (caller.uid, caller.gid);
    // As on Linux, entries of a directory with this bit get its group, and subdirectories hand it on.
    if parent.attr.mode & SET_GID != 0 {
        attr.gid = parent.attr.gid;
        if new.kind == FileKind::Dir {
            attr.mode |= SET_GID;
        }
    }
    attr.rdev = new.rdev;
    attr.target = new.target.to_vec();
    attr.size = new.target.len() as u64;
    attr.inline = (new.kind == FileKind::File).then(Vec::new);
    attr.set_all_times(current_time());
    Ok(attr)
}

/// Gives a new inode its name, in the directory and in its attributes. Fails with `EEXIST` if something has the name.
pub(crate) fn put_first_name(
    txn: &mut LiveTransaction<'_>,
    place: &NameInDir<'_>,
    ino: Ino,
    attr: &mut InodeAttr,
) -> Result<()> {
    let mut parent = read_dir_attr(txn, place.dir)?;
    // It was looked up before, through the cache; somebody may have made it since.
    if txn.lookup_dentry(place.dir, place.name)?.is_some() {
        return Err(Errno::EXIST.into());
    }
    attr.generation = compute_generation(place.dir, place.name);
    (attr.parent, attr.name, attr.nlink) = (place.dir, place.name.to_vec(), 1);
    if attr.kind == FileKind::Dir {
        // Its own entry `.` is a link, and its entry `..` is one of the parent.
        attr.nlink = 2;
        add_link_count(&mut parent, 1)?;
    }
    update_dir(&mut parent, attr.ctime);
    txn.set_dentry(place.dir, place.name, Dentry { ino, kind: attr.kind });
    txn.set_inode_attr(place.dir, &parent);
    Ok(())
}

/// Puts what says that a name is gone.
pub(super) fn put_whiteout(
    txn: &mut LiveTransaction<'_>,
    ino: Ino,
    place: &NameInDir<'_>,
    owner: RequestCaller,
) -> Result<()> {
    // The times of the directory are those of the rename, which sets them.
    let parent = read_dir_attr(txn, place.dir)?;
    let new = NewInode::with_kind(FileKind::CharDevice, 0);
    let mut attr = new_inode_attr(txn, ino, ParentDir { ino: place.dir, attr: &parent }, &new, owner)?;
    attr.generation = compute_generation(place.dir, place.name);
    (attr.parent, attr.name) = (place.dir, place.name.to_vec());
    txn.set_new_inode_attr(ino, &attr);
    txn.set_dentry(place.dir, place.name, Dentry { ino, kind: new.kind });
    Ok(())
}

/// Puts the access control lists that something new inherits; returns its mode.
fn put_inherited_acls(
    txn: &mut LiveTransaction<'_>,
    dir: Ino,
    ino: Ino,
    new: &NewInode<'_>,
    caller: RequestCaller,
) -> Result<u32> {
    // A symlink has no permissions that a list or a mask could limit.
    if new.kind == FileKind::Symlink {
        return Ok(new.mode);
    }
    // The list is read within the transaction, since the one that was looked up before may have been
    // replaced.
    let default = txn.get_value(&MapKey::for_xattr(dir, acl::DEFAULT))?;
    let inherited = acl::inherit_access(default.as_deref(), new.mode, caller.umask);
    if let Some(access) = &inherited.access {
        txn.set_key(MapKey::for_xattr(ino, acl::ACCESS), access);
    }
    if let Some(default) = default.filter(|_| new.kind == FileKind::Dir) {
        txn.set_key(MapKey::for_xattr(ino, acl::DEFAULT), &default);
    }
    Ok(inherited.mode)
}
