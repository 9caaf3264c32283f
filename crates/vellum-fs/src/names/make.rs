//! Making files, directories, symlinks and devices.

use std::sync::Arc;

use rustix::io::Errno;
use vellum_types::limits::SYMLINK_MAX;
use vellum_types::value::MODE_MASK;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr, MapKey};
use vellum_volume::tree::generation;

use super::{NameInDir, add_links, dir_of, touch_dir};
use crate::acl;
use crate::clock::now;
use crate::content::SET_GID;
use crate::error::Result;
use crate::fs::{InodeAttributes, LiveFilesystem, RequestCaller};
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
    fn of_kind(kind: FileKind, mode: u32) -> Self {
        Self { kind, mode, rdev: 0, target: &[] }
    }
}

impl LiveFilesystem {
    /// Makes an empty file.
    pub fn create(&self, dir: Ino, name: &[u8], mode: u32, caller: RequestCaller) -> Result<InodeAttributes> {
        self.make(dir, name, NewInode::of_kind(FileKind::File, mode & MODE_MASK), caller)
    }

    /// Makes an empty directory.
    pub fn mkdir(&self, dir: Ino, name: &[u8], mode: u32, caller: RequestCaller) -> Result<InodeAttributes> {
        self.make(dir, name, NewInode::of_kind(FileKind::Dir, mode & MKDIR_MODE), caller)
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
        let rdev = match kind {
            FileKind::CharDevice | FileKind::BlockDevice => rdev,
            FileKind::File | FileKind::Fifo | FileKind::Socket => 0,
            FileKind::Dir | FileKind::Symlink => return Err(Errno::INVAL.into()),
        };
        self.make(dir, name, NewInode { rdev, ..NewInode::of_kind(kind, mode & MODE_MASK) }, caller)
    }

    /// Makes a symlink.
    pub fn symlink(
        &self,
        dir: Ino,
        name: &[u8],
        target: &[u8],
        caller: RequestCaller,
    ) -> Result<InodeAttributes> {
        if target.is_empty() {
            return Err(Errno::NOENT.into());
        }
        if target.len() >= SYMLINK_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        if target.contains(&0) {
            return Err(Errno::INVAL.into());
        }
        self.make(
            dir,
            name,
            NewInode { target, ..NewInode::of_kind(FileKind::Symlink, SYMLINK_MODE) },
            caller,
        )
    }

    /// Makes a file without a name. The caller opens it; unopened, it is gone when the worktree is opened again.
    pub fn tmpfile(&self, dir: Ino, mode: u32, caller: RequestCaller) -> Result<InodeAttributes> {
        self.attr(dir)?;
        self.xattr(dir, acl::DEFAULT)?;
        self.with_number(|txn, ino| {
            let parent = dir_of(txn, dir)?;
            let new = NewInode::of_kind(FileKind::File, mode & MODE_MASK);
            let mut attr = born(txn, ino, (dir, &parent), &new, caller)?;
            attr.generation = generation(dir, &ino.0.to_le_bytes());
            attr.nlink = 0;
            txn.put_orphan(ino);
            txn.put_new_attr(ino, &attr);
            Ok(InodeAttributes { ino, attr: Arc::new(attr) })
        })
    }

    fn make(
        &self,
        dir: Ino,
        name: &[u8],
        new: NewInode<'_>,
        caller: RequestCaller,
    ) -> Result<InodeAttributes> {
        let place = NameInDir::new(dir, name)?;
        place.check_free(new.kind)?;
        super::check_dir(&*self.attr(dir)?)?;
        if self.dentry(&place)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        self.xattr(dir, acl::DEFAULT)?;
        self.with_number(|txn, ino| {
            let mut parent = dir_of(txn, dir)?;
            if txn.dentry(dir, name)?.is_some() {
                return Err(Errno::EXIST.into());
            }
            let mut attr = born(txn, ino, (dir, &parent), &new, caller)?;
            attr.generation = generation(dir, name);
            (attr.parent, attr.name) = (dir, name.to_vec());
            if new.kind == FileKind::Dir {
                attr.nlink = 2;
                add_links(&mut parent, 1)?;
            }
            touch_dir(&mut parent, attr.ctime);
            txn.put_new_attr(ino, &attr);
            txn.put_dentry(dir, name, Dentry { ino, kind: new.kind });
            txn.put_attr(dir, &parent);
            Ok(InodeAttributes { ino, attr: Arc::new(attr) })
        })
    }

    /// Changes the worktree with a number for something new.
    pub(super) fn with_number(
        &self,
        mut body: impl FnMut(&mut LiveTransaction<'_>, Ino) -> Result<InodeAttributes>,
    ) -> Result<InodeAttributes> {
        self.log.wait_beside(NEW_BYTES)?;
        loop {
            let number = self.new_number()?;
            let made = self.change(|txn| {
                if self.numbers.is_good(&number) { body(txn, number.ino).map(Some) } else { Ok(None) }
            })?;
            if let Some(node) = made {
                return Ok(node);
            }
        }
    }
}

/// The attributes of something new, but for its name; its access control lists are put.
fn born(
    txn: &mut LiveTransaction<'_>,
    ino: Ino,
    (dir, parent): (Ino, &InodeAttr),
    new: &NewInode<'_>,
    caller: RequestCaller,
) -> Result<InodeAttr> {
    let mode = inherit(txn, (dir, ino), new, caller)?;
    let mut attr = InodeAttr::new(new.kind, mode);
    (attr.uid, attr.gid) = (caller.uid, caller.gid);
    if parent.mode & SET_GID != 0 {
        attr.gid = parent.gid;
        if new.kind == FileKind::Dir {
            attr.mode |= SET_GID;
        }
    }
    attr.rdev = new.rdev;
    attr.target = new.target.to_vec();
    attr.size = new.target.len() as u64;
    attr.inline = (new.kind == FileKind::File).then(Vec::new);
    attr.set_times(now());
    Ok(attr)
}

/// Puts what says that a name is gone.
pub(super) fn put_whiteout(
    txn: &mut LiveTransaction<'_>,
    ino: Ino,
    place: &NameInDir<'_>,
    owner: RequestCaller,
) -> Result<()> {
    let parent = dir_of(txn, place.dir)?;
    let new = NewInode::of_kind(FileKind::CharDevice, 0);
    let mut attr = born(txn, ino, (place.dir, &parent), &new, owner)?;
    attr.generation = generation(place.dir, place.name);
    (attr.parent, attr.name) = (place.dir, place.name.to_vec());
    txn.put_new_attr(ino, &attr);
    txn.put_dentry(place.dir, place.name, Dentry { ino, kind: new.kind });
    Ok(())
}

/// Puts the access control lists that something new inherits; returns its mode.
fn inherit(
    txn: &mut LiveTransaction<'_>,
    (dir, ino): (Ino, Ino),
    new: &NewInode<'_>,
    caller: RequestCaller,
) -> Result<u32> {
    if new.kind == FileKind::Symlink {
        return Ok(new.mode);
    }
    let default = txn.value(&MapKey::xattr(dir, acl::DEFAULT))?;
    let inherited = acl::inherit(default.as_deref(), new.mode, caller.umask);
    if let Some(access) = &inherited.access {
        txn.put(MapKey::xattr(ino, acl::ACCESS), access);
    }
    if let Some(default) = default.filter(|_| new.kind == FileKind::Dir) {
        txn.put(MapKey::xattr(ino, acl::DEFAULT), &default);
    }
    Ok(inherited.mode)
}
