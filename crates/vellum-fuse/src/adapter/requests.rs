//! The requests as fuser hands them over: each is served and answered.
//!
//! Not here: `open`, `flush`, `release` (opening and closing need nothing of us: the kernel keeps and writes back its
//! pages by itself, and remembers that we do not want to know) and with them `create` (it makes a node, and opens that),
//! `access` (the kernel decides), locks (one kernel serves all who lock), `tmpfile` and `statx` (fuser does not know
//! them: the kernel is told that they are not there).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use vellum_fs::{Fs, Result, Seek};
use vellum_types::Ino;

use super::modify::{Asked, At, NewNode, Piece};
use super::{Adapter, Known, LONG, MAX_BACKGROUND, MAX_WRITE, Main, Owner, WANTED, caller, chain};
use crate::node::Place;
use crate::tally::Op;

/// Where `lseek` is to go: to data. The other way that the kernel asks for is to a hole.
const SEEK_DATA: i32 = 3;

impl Adapter {
    fn read_node(&self, node: u64, at: (u64, usize)) -> Result<Vec<u8>> {
        let (offset, len) = at;
        match self.owner(node)? {
            Owner::Live(fs, ino) => {
                let epoch = fs.epoch();
                let read = fs.read(ino, offset, len);
                // It was restored meanwhile: what was read may be of the new state.
                if fs.epoch() == epoch { read } else { self.read_node(node, at) }
            }
            Owner::Past(fs, epoch, ino) => fs.read_from(epoch, ino, offset, len),
            Owner::Frozen(tree, ino) => tree.read(ino, offset, len),
            Owner::Virtual(number) => self.virt.read(number, offset, len),
        }
    }

    fn seek_node(&self, node: u64, offset: i64, whence: i32) -> Result<i64> {
        match self.owner(node)? {
            Owner::Live(fs, ino) => seek_live(fs, ino, offset, whence),
            Owner::Past(..) => Err(rustix::io::Errno::STALE.into()),
            Owner::Frozen(tree, ino) => {
                let offset = u64::try_from(offset).map_err(|_| rustix::io::Errno::NXIO)?;
                to_kernel(tree.seek(ino, offset, whence == SEEK_DATA)?)
            }
            Owner::Virtual(_) => Err(rustix::io::Errno::INVAL.into()),
        }
    }
}

fn seek_live(fs: &Fs, ino: Ino, offset: i64, whence: i32) -> Result<i64> {
    let offset = u64::try_from(offset).map_err(|_| rustix::io::Errno::NXIO)?;
    to_kernel(fs.seek(ino, offset, if whence == SEEK_DATA { Seek::Data } else { Seek::Hole })?)
}

fn to_kernel(offset: u64) -> Result<i64> {
    i64::try_from(offset).map_err(|_| rustix::io::Errno::OVERFLOW.into())
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for flag in WANTED {
            // An older kernel does without.
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(MAX_WRITE);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.as_bytes();
        match self.serve(Op::Lookup, req, parent.0, name, || self.lookup(parent.0, name)) {
            // That a name does not exist may be remembered, too.
            Err(error) if error.code() == Errno::ENOENT.code() => match self.absent(parent.0, name) {
                Some(absent) => entry(reply, Ok(absent)),
                None => reply.error(error),
            },
            done => entry(reply, done),
        }
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        attr(reply, self.serve(Op::Getattr, req, ino.0, b"", || self.getattr(ino.0)));
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let asked = Asked { mode, owner: (uid, gid), size, atime, mtime, ctime };
        attr(reply, self.serve(Op::Setattr, req, ino.0, b"", || self.setattr(ino.0, asked, caller(req, 0))));
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        data(reply, self.serve(Op::Readlink, req, ino.0, b"", || self.readlink(ino.0)));
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (at, new) = (At { dir: parent.0, name: name.as_bytes() }, NewNode { mode, device: rdev });
        let make = || self.mknod(at, new, caller(req, umask));
        entry(reply, self.serve(Op::Mknod, req, at.dir, at.name, make));
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let at = At { dir: parent.0, name: name.as_bytes() };
        entry(
            reply,
            self.serve(Op::Mkdir, req, at.dir, at.name, || self.mkdir(at, mode, caller(req, umask))),
        );
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let at = At { dir: parent.0, name: name.as_bytes() };
        empty(reply, self.serve(Op::Unlink, req, at.dir, at.name, || self.unlink(at)));
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let at = At { dir: parent.0, name: name.as_bytes() };
        empty(reply, self.serve(Op::Rmdir, req, at.dir, at.name, || self.rmdir(at)));
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let at = At { dir: parent.0, name: name.as_bytes() };
        let target = target.as_os_str().as_bytes();
        entry(
            reply,
            self.serve(Op::Symlink, req, at.dir, at.name, || self.symlink(at, target, caller(req, 0))),
        );
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let from = At { dir: parent.0, name: name.as_bytes() };
        let to = At { dir: newparent.0, name: newname.as_bytes() };
        empty(reply, self.serve(Op::Rename, req, from.dir, from.name, || self.rename(from, to, flags)));
    }

    fn link(&self, req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let at = At { dir: newparent.0, name: newname.as_bytes() };
        entry(reply, self.serve(Op::Link, req, ino.0, at.name, || self.link(ino.0, at)));
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.forget_node(ino.0, nlookup);
    }

    fn create(
        &self,
        _req: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = usize::try_from(size).unwrap_or(usize::MAX);
        let done = self.serve(Op::Read, req, ino.0, b"", || self.read_node(ino.0, (offset, len)));
        if let Ok(bytes) = &done {
            self.tally.read(bytes.len());
        }
        data(reply, done);
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let at = Piece { node: ino.0, offset };
        written(reply, self.serve(Op::Write, req, ino.0, b"", || self.write(at, data, write_flags)));
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, req: &Request, ino: INodeNo, _fh: FileHandle, data_only: bool, reply: ReplyEmpty) {
        empty(reply, self.serve(Op::Fsync, req, ino.0, b"", || self.fsync(ino.0, data_only)));
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let open = || self.owner(ino.0).map(|owner| (self.dirs.open(), self.is_steady(&owner, ino.0)));
        match self.serve(Op::Opendir, req, ino.0, b"", open) {
            // The kernel may keep the listing, as nobody else changes it.
            Ok((handle, true)) => {
                let flags = FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE;
                reply.opened(FileHandle(handle), flags);
            }
            Ok((handle, false)) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(&self, req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let list = || self.dirs.listing(fh.0, offset, || self.list(ino.0));
        let listing = match self.serve(Op::Readdir, req, ino.0, b"", list) {
            Ok(listing) => listing,
            Err(error) => return reply.error(error),
        };
        for (next, listed) in (1..).zip(listing.iter()).skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            if reply.add(INodeNo(listed.node), next, crate::attr::file_type(listed.kind), name(&listed.name))
            {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let list = || self.dirs.listing(fh.0, offset, || self.list(ino.0));
        let listing = match self.serve(Op::Readdir, req, ino.0, b"", list) {
            Ok(listing) => listing,
            Err(error) => return reply.error(error),
        };
        // What is told must still be there when it is held.
        let entered = self.enter();
        let mut untold = None;
        for (next, listed) in (1..).zip(listing.iter()).skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            // What went away since the directory was listed is left out.
            let Ok(Known { attr, generation, patience }) = self.listed(listed, ino.0) else { continue };
            let (node, generation) = (INodeNo(listed.node), Generation(generation));
            if reply.add(node, next, name(&listed.name), &patience, &attr, generation) {
                untold = Some(listed);
                break;
            }
        }
        drop(entered);
        if let Some(listed) = untold.filter(|listed| !matches!(listed.name.as_slice(), b"." | b"..")) {
            self.forget_node(listed.node, 1);
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.dirs.close(fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, req: &Request, ino: INodeNo, _fh: FileHandle, data_only: bool, reply: ReplyEmpty) {
        empty(reply, self.serve(Op::Fsyncdir, req, ino.0, b"", || self.fsync(ino.0, data_only)));
    }

    fn statfs(&self, req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        match self.serve(Op::Statfs, req, ino.0, b"", || self.statfs()) {
            Ok(fs) => reply.statfs(
                fs.blocks,
                fs.blocks_free,
                fs.blocks_available,
                fs.files,
                fs.files_free,
                fs.block_size,
                fs.name_max,
                fs.block_size,
            ),
            Err(error) => reply.error(error),
        }
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let name = name.as_bytes();
        empty(reply, self.serve(Op::Setxattr, req, ino.0, name, || self.setxattr(ino.0, name, value, flags)));
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = name.as_bytes();
        xattr(reply, size, self.serve(Op::Getxattr, req, ino.0, name, || self.getxattr(ino.0, name)));
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        xattr(reply, size, self.serve(Op::Listxattr, req, ino.0, b"", || self.listxattr(ino.0)));
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes();
        empty(reply, self.serve(Op::Removexattr, req, ino.0, name, || self.removexattr(ino.0, name)));
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let at = Piece { node: ino.0, offset };
        empty(reply, self.serve(Op::Fallocate, req, ino.0, b"", || self.fallocate(at, length, mode)));
    }

    fn lseek(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        // The kernel may have pages that we have not been given.
        let node = ino.0;
        if let Ok(Owner::Live(fs, ino)) = self.owner(node) {
            let fs = fs.clone();
            let look = move || {
                let done = seek_live(&fs, ino, offset, whence);
                found(reply, done.map_err(|error| Errno::from_i32(error.errno().raw_os_error())));
            };
            return self.seeking.look(node, look);
        }
        found(reply, self.serve(Op::Lseek, req, node, b"", || self.seek_node(node, offset, whence)));
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let from = Piece { node: ino_in.0, offset: offset_in };
        let to = Piece { node: ino_out.0, offset: offset_out };
        written(reply, self.serve(Op::CopyFileRange, req, ino_in.0, b"", || self.copy_range(from, to, len)));
    }
}

fn name(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

fn entry(reply: ReplyEntry, done: std::result::Result<Known, Errno>) {
    match done {
        Ok(Known { attr, generation, patience }) => reply.entry(&patience, &attr, Generation(generation)),
        Err(error) => reply.error(error),
    }
}

fn attr(reply: ReplyAttr, done: std::result::Result<Known, Errno>) {
    match done {
        Ok(known) => reply.attr(&known.patience, &known.attr),
        Err(error) => reply.error(error),
    }
}

fn data(reply: ReplyData, done: std::result::Result<Vec<u8>, Errno>) {
    match done {
        Ok(bytes) => reply.data(&bytes),
        Err(error) => reply.error(error),
    }
}

fn empty(reply: ReplyEmpty, done: std::result::Result<(), Errno>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn written(reply: ReplyWrite, done: std::result::Result<u32, Errno>) {
    match done {
        Ok(len) => reply.written(len),
        Err(error) => reply.error(error),
    }
}

fn found(reply: ReplyLseek, done: std::result::Result<i64, Errno>) {
    match done {
        Ok(offset) => reply.offset(offset),
        Err(error) => reply.error(error),
    }
}

/// The value, or with no room for it (`size` 0) its length.
fn xattr(reply: ReplyXattr, size: u32, done: std::result::Result<impl AsRef<[u8]>, Errno>) {
    let (room, value) = match &done {
        Ok(value) => (usize::try_from(size).unwrap_or(usize::MAX), value.as_ref()),
        Err(error) => return reply.error(*error),
    };
    match u32::try_from(value.len()) {
        Ok(len) if room == 0 => reply.size(len),
        Ok(_) if value.len() <= room => reply.data(value),
        Ok(_) => reply.error(Errno::ERANGE),
        Err(_) => reply.error(Errno::E2BIG),
    }
}

impl Adapter {
    /// The kernel has forgotten so many answers that named a node.
    fn forget_node(&self, node: u64, times: u64) {
        match (&self.main, Place::of(node)) {
            (Main::Live(fs), Place::Main(epoch, ino)) => {
                if let Err(error) = fs.let_go(epoch, ino, times) {
                    // It goes when the worktree is mounted the next time.
                    (self.report)(&format!("a file without a name cannot be removed: {}", chain(&error)));
                }
            }
            (_, Place::Virtual(number)) => self.virt.forget(number),
            _ => {}
        }
    }

    /// Whether a directory lists the same until it is changed through this mount.
    fn is_steady(&self, owner: &Owner<'_>, node: u64) -> bool {
        match (owner, Place::of(node)) {
            // In one of a past epoch the kernel may remember what was listed then.
            (Owner::Live(fs, ino), Place::Main(epoch, _)) => *ino == Ino::ROOT || epoch == fs.epoch(),
            (Owner::Virtual(_), _) => false,
            _ => true,
        }
    }

    /// What answers that a name does not exist, for the kernel to remember; none where it may soon exist without its
    /// knowing.
    fn absent(&self, dir: u64, name: &[u8]) -> Option<Known> {
        if dir == Ino::ROOT.0 && !self.missed.note(name) {
            return None;
        }
        let nothing = vellum_types::Attr::new(vellum_types::FileKind::File, 0);
        let attr = crate::attr::file_attr(0, &nothing);
        match self.owner(dir) {
            Ok(Owner::Live(..) | Owner::Frozen(..)) => Some(Known { attr, generation: 0, patience: LONG }),
            Ok(Owner::Past(..) | Owner::Virtual(_)) | Err(_) => None,
        }
    }
}
