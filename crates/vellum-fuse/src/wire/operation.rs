//! Operations and their arguments, decoded.
//!
//! Invariant: the match over the opcodes has no wildcard arm, so that a new opcode does not compile until it is
//! decoded.

use rustix::fs::OFlags;
use vellum_fs::{AttributeChanges, TimeChange};
use vellum_types::UnixTime;

use super::body::{
    BatchForgetBody, CopyFileRangeBody, CreateBody, FallocateBody, FlushBody, ForgetBody, ForgottenNode,
    FsyncBody, GetxattrBody, InterruptBody, IoctlBody, LinkBody, LockBody, LseekBody, MkdirBody, MknodBody,
    OpenBody, ReadBody, ReleaseBody, Rename2Body, RenameBody, SetattrBody, SetxattrBody, SetxattrExtension,
    WriteBody,
};
use super::fields::{MalformedRequest, RequestFields};
use super::init::InitRequest;
use super::opcode::Opcode;
use super::stored_write::StoredChunks;

type Result<T, E = MalformedRequest> = std::result::Result<T, E>;

/// The largest number of nanoseconds below one second.
const NANOS_MAX: u32 = 999_999_999;

/// The flag of `fsync` by which only the content, and what is needed to find it, has to be durable
/// (`FUSE_FSYNC_FDATASYNC`).
const FSYNC_DATA_ONLY: u32 = 1;

/// The flag of `setxattr` by which an access control list clears the set-group-id bit (`FUSE_SETXATTR_ACL_KILL_SGID`).
const DROPS_SET_GID: u32 = 1;

/// The flag of an open file whose reads and writes bypass the kernel's pages (`O_DIRECT`).
const OPEN_DIRECT: u32 = OFlags::DIRECT.bits();

/// The flag of an open file whose writes go to its end (`O_APPEND`).
const OPEN_APPEND: u32 = OFlags::APPEND.bits();

/// The flag of `release` by which a `flock` ends (`FUSE_RELEASE_FLOCK_UNLOCK`).
const RELEASES_FLOCK: u32 = 1 << 1;

/// The flag of a lock that is set by `flock` (`FUSE_LK_FLOCK`).
const LOCK_IS_FLOCK: u32 = 1;

/// Bytes of a [`ForgottenNode`].
const FORGOTTEN_LEN: usize = 16;

/// The flags of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteFlags(pub u32);

impl WriteFlags {
    /// The kernel has written back a page of its cache (`FUSE_WRITE_CACHE`).
    const WRITE_BACK: u32 = 1;
    /// The set-id bits are to be cleared (`FUSE_WRITE_KILL_SUIDGID`).
    const CLEAR_SET_IDS: u32 = 1 << 2;
    /// Not a flag of the kernel's: the file is open with `O_DIRECT`.
    const DIRECT: u32 = 1 << 31;

    /// Not a flag of the kernel's: the file is open with `O_APPEND`.
    const APPEND: u32 = 1 << 30;

    fn from_body(body: &WriteBody) -> Self {
        let direct = if body.open_flags & OPEN_DIRECT != 0 { Self::DIRECT } else { 0 };
        let append = if body.open_flags & OPEN_APPEND != 0 { Self::APPEND } else { 0 };
        // The bits are used for flags of our own, so they are cleared in what the kernel sent.
        Self(body.write_flags & !(Self::DIRECT | Self::APPEND) | direct | append)
    }

    /// The flags as the kernel has sent them.
    #[must_use]
    pub fn kernel_bits(self) -> u32 {
        self.0 & !(Self::DIRECT | Self::APPEND)
    }

    /// Whether the program writes at the end of the file, wherever that is.
    #[must_use]
    pub fn is_append(self) -> bool {
        self.0 & Self::APPEND != 0
    }

    /// Whether the program bypasses the kernel's pages.
    #[must_use]
    pub fn is_direct_write(self) -> bool {
        self.0 & Self::DIRECT != 0
    }

    /// Whether the kernel has kept the data in its cache, and writes it by itself.
    #[must_use]
    pub fn is_write_back(self) -> bool {
        self.0 & Self::WRITE_BACK != 0
    }

    /// Whether the write clears the set-id bits of the file.
    #[must_use]
    pub fn should_clear_set_ids(self) -> bool {
        self.0 & Self::CLEAR_SET_IDS != 0
    }
}

/// A lock that a program wants, has, or gives up (`fuse_lk_in`, `fuse_file_lock`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLock {
    /// The open file.
    pub handle: u64,
    /// Whose it is: a process, or an open file.
    pub owner: u64,
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: u32,
    /// The process.
    pub pid: u32,
    /// Whether it is one of `flock`, and not of `fcntl`.
    pub is_flock: bool,
}

impl FileLock {
    /// A lock that others can have, too (`F_RDLCK`).
    pub const SHARED: u32 = 0;
    /// A lock that nobody else can have (`F_WRLCK`).
    pub const EXCLUSIVE: u32 = 1;
    /// No lock (`F_UNLCK`).
    pub const NONE: u32 = 2;
}

/// The nodes that the kernel has forgotten, as a list in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForgottenNodes<'a>(&'a [u8]);

impl ForgottenNodes<'_> {
    /// Each node, with the number of forgotten answers that named it.
    pub fn iter_nodes(self) -> impl Iterator<Item = (u64, u64)> {
        let forgotten = |bytes| {
            let ForgottenNode { node, lookups } = ForgottenNode::read(&mut RequestFields(bytes)).ok()?;
            Some((node, lookups))
        };
        // The list has whole nodes only: it was cut to their number when it was decoded.
        self.0.chunks_exact(FORGOTTEN_LEN).filter_map(forgotten)
    }
}

/// The operation of a request, with its arguments. File handles are left out: they mean nothing here, since no open file
/// has one.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(missing_docs, reason = "they have the names of FUSE")]
pub enum FuseOperation<'a> {
    Init(InitRequest),
    Destroy,
    Lookup {
        name: &'a [u8],
    },
    Forget {
        times: u64,
    },
    BatchForget(ForgottenNodes<'a>),
    Getattr,
    Statx,
    Setattr(AttributeChanges),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        name: &'a [u8],
        mode: u32,
        device: u32,
        umask: u32,
    },
    Mkdir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Tmpfile {
        mode: u32,
        umask: u32,
    },
    /// Creates a file and opens it. `flags`: those of `open`.
    Create {
        name: &'a [u8],
        flags: u32,
        mode: u32,
        umask: u32,
    },
    /// `flags`: those of `open`.
    Open {
        flags: u32,
    },
    Opendir,
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        to_dir: u64,
        to_name: &'a [u8],
        flags: u32,
    },
    Link {
        node: u64,
        name: &'a [u8],
    },
    /// `direct`: the read bypasses the kernel's pages.
    Read {
        offset: u64,
        len: u32,
        direct: bool,
    },
    Write {
        offset: u64,
        flags: WriteFlags,
        data: &'a [u8],
    },
    /// A write of what a client of a shared worktree has put into the store; never the kernel's.
    WriteStored {
        offset: u64,
        flags: WriteFlags,
        chunks: StoredChunks<'a>,
    },
    /// A program has closed a descriptor of an open file; `owner`: that of its POSIX locks.
    Flush {
        handle: u64,
        owner: u64,
    },
    /// The last descriptor of an open file was closed; `flock_owner`: that of a `flock` which ends with it.
    Release {
        handle: u64,
        flock_owner: Option<u64>,
    },
    /// The last descriptor of an open directory was closed.
    Releasedir,
    /// Which lock prevents this one.
    Getlk(FileLock),
    /// Sets or removes a lock; `waits`: until it can be set.
    Setlk {
        lock: FileLock,
        waits: bool,
    },
    /// A program that waits for the answer to a request has got a signal.
    Interrupt {
        unique: u64,
    },
    Statfs,
    Fsync {
        data_only: bool,
    },
    Fsyncdir {
        data_only: bool,
    },
    /// `drops_set_gid`: an access control list that clears the set-group-id bit.
    Setxattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
        drops_set_gid: bool,
    },
    Getxattr {
        name: &'a [u8],
        room: u32,
    },
    Listxattr {
        room: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Readdir {
        offset: u64,
        room: u32,
    },
    Readdirplus {
        offset: u64,
        room: u32,
    },
    Fallocate {
        offset: u64,
        len: u64,
        mode: u32,
    },
    Lseek {
        offset: u64,
        whence: u32,
    },
    /// `input`: the argument of the command; `room`: bytes that the output may have.
    Ioctl {
        command: u32,
        input: &'a [u8],
        room: u32,
    },
    /// `wide`: the answer counts the copied bytes in 64 bits instead of 32.
    CopyFileRange {
        offset: u64,
        to: u64,
        to_offset: u64,
        len: u64,
        wide: bool,
    },
    /// An operation that no mount answers.
    Unknown,
}

impl<'a> FuseOperation<'a> {
    pub(super) fn decode(opcode: u32, body: &'a [u8]) -> Result<Self> {
        let Some(opcode) = Opcode::from_number(opcode) else { return Ok(Self::Unknown) };
        let mut fields = RequestFields(body);
        let fields = &mut fields;
        Ok(match opcode {
            Opcode::Lookup => Self::Lookup { name: fields.read_name()? },
            Opcode::Forget => Self::Forget { times: ForgetBody::read(fields)?.lookups },
            Opcode::Getattr => Self::Getattr,
            Opcode::Setattr => Self::Setattr(decode_setattr(&SetattrBody::read(fields)?)),
            Opcode::Readlink => Self::Readlink,
            // The fields are read in the order in which they are written here, which is that of the request.
            Opcode::Symlink => Self::Symlink { name: fields.read_name()?, target: fields.read_name()? },
            Opcode::Mknod => {
                let MknodBody { mode, device, umask, .. } = MknodBody::read(fields)?;
                Self::Mknod { name: fields.read_name()?, mode, device, umask }
            }
            Opcode::Mkdir => {
                let MkdirBody { mode, umask } = MkdirBody::read(fields)?;
                Self::Mkdir { name: fields.read_name()?, mode, umask }
            }
            Opcode::Unlink => Self::Unlink { name: fields.read_name()? },
            Opcode::Rmdir => Self::Rmdir { name: fields.read_name()? },
            Opcode::Rename => {
                let RenameBody { to_dir } = RenameBody::read(fields)?;
                // The kernel sends this older form of the request for a rename without flags.
                Self::Rename { name: fields.read_name()?, to_dir, to_name: fields.read_name()?, flags: 0 }
            }
            Opcode::Link => {
                let LinkBody { node } = LinkBody::read(fields)?;
                Self::Link { node, name: fields.read_name()? }
            }
            Opcode::Read => {
                let ReadBody { offset, len, open_flags, .. } = ReadBody::read(fields)?;
                Self::Read { offset, len, direct: open_flags & OPEN_DIRECT != 0 }
            }
            Opcode::Write => {
                let body = WriteBody::read(fields)?;
                let flags = WriteFlags::from_body(&body);
                Self::Write { offset: body.offset, flags, data: fields.read_data(body.len)? }
            }
            Opcode::WriteStored => {
                let body = WriteBody::read(fields)?;
                let flags = WriteFlags::from_body(&body);
                let chunks = StoredChunks::decode(fields, body.len)?;
                Self::WriteStored { offset: body.offset, flags, chunks }
            }
            Opcode::Statfs => Self::Statfs,
            Opcode::Open => Self::Open { flags: OpenBody::read(fields)?.flags },
            Opcode::Opendir => Self::Opendir,
            Opcode::Flush => {
                let FlushBody { handle, owner, .. } = FlushBody::read(fields)?;
                Self::Flush { handle, owner }
            }
            Opcode::Release => decode_release(fields)?,
            Opcode::Releasedir => Self::Releasedir,
            Opcode::Getlk => Self::Getlk(decode_lock(fields)?),
            Opcode::Setlk => Self::Setlk { lock: decode_lock(fields)?, waits: false },
            Opcode::Setlkw => Self::Setlk { lock: decode_lock(fields)?, waits: true },
            Opcode::Interrupt => Self::Interrupt { unique: InterruptBody::read(fields)?.unique },
            Opcode::Fsync => Self::Fsync { data_only: decode_data_only(fields)? },
            Opcode::Setxattr => decode_setxattr(fields)?,
            Opcode::Getxattr => {
                let GetxattrBody { room, .. } = GetxattrBody::read(fields)?;
                Self::Getxattr { name: fields.read_name()?, room }
            }
            // It has the body of `getxattr`, and no name.
            Opcode::Listxattr => Self::Listxattr { room: GetxattrBody::read(fields)?.room },
            Opcode::Removexattr => Self::Removexattr { name: fields.read_name()? },
            Opcode::Init => Self::Init(InitRequest::decode(fields)?),
            Opcode::Readdir => {
                let ReadBody { offset, len, .. } = ReadBody::read(fields)?;
                Self::Readdir { offset, room: len }
            }
            Opcode::Fsyncdir => Self::Fsyncdir { data_only: decode_data_only(fields)? },
            Opcode::Destroy => Self::Destroy,
            Opcode::Ioctl => {
                let IoctlBody { command, input_len, room, .. } = IoctlBody::read(fields)?;
                Self::Ioctl { command, input: fields.read_data(input_len)?, room }
            }
            Opcode::BatchForget => decode_batch_forget(fields)?,
            Opcode::Fallocate => {
                let FallocateBody { offset, len, mode, .. } = FallocateBody::read(fields)?;
                Self::Fallocate { offset, len, mode }
            }
            Opcode::Readdirplus => {
                let ReadBody { offset, len, .. } = ReadBody::read(fields)?;
                Self::Readdirplus { offset, room: len }
            }
            Opcode::Rename2 => {
                let Rename2Body { to_dir, flags, .. } = Rename2Body::read(fields)?;
                Self::Rename { name: fields.read_name()?, to_dir, to_name: fields.read_name()?, flags }
            }
            Opcode::Lseek => {
                let LseekBody { offset, whence, .. } = LseekBody::read(fields)?;
                Self::Lseek { offset, whence }
            }
            Opcode::CopyFileRange => decode_copy_range(fields, false)?,
            Opcode::Tmpfile => {
                // The kernel sends a name as well, which the file does not get.
                let CreateBody { mode, umask, .. } = CreateBody::read(fields)?;
                Self::Tmpfile { mode, umask }
            }
            Opcode::Create => {
                let CreateBody { flags, mode, umask, .. } = CreateBody::read(fields)?;
                Self::Create { name: fields.read_name()?, flags, mode, umask }
            }
            Opcode::Statx => Self::Statx,
            Opcode::CopyFileRange64 => decode_copy_range(fields, true)?,
        })
    }
}

fn decode_release<'a>(fields: &mut RequestFields<'_>) -> Result<FuseOperation<'a>> {
    let ReleaseBody { handle, release_flags, owner, .. } = ReleaseBody::read(fields)?;
    let flock_owner = (release_flags & RELEASES_FLOCK != 0).then_some(owner);
    Ok(FuseOperation::Release { handle, flock_owner })
}

fn decode_lock(fields: &mut RequestFields<'_>) -> Result<FileLock> {
    let LockBody { handle, owner, start, end, kind, pid, flags, .. } = LockBody::read(fields)?;
    Ok(FileLock { handle, owner, start, end, kind, pid, is_flock: flags & LOCK_IS_FLOCK != 0 })
}

fn decode_data_only(fields: &mut RequestFields<'_>) -> Result<bool> {
    Ok(FsyncBody::read(fields)?.flags & FSYNC_DATA_ONLY != 0)
}

/// Decodes both forms of the request. An older kernel sends the short form, in which the name stands where the
/// extension would be. A name begins with its namespace, and so with a letter: as a number, its first bytes are larger
/// than any flags of an extension.
fn decode_setxattr<'a>(fields: &mut RequestFields<'a>) -> Result<FuseOperation<'a>> {
    let SetxattrBody { len, flags } = SetxattrBody::read(fields)?;
    let mut behind = *fields;
    let extension = SetxattrExtension::read(&mut behind)
        .ok()
        .filter(|extension| extension.flags <= DROPS_SET_GID && extension.padding == 0);
    if extension.is_some() {
        *fields = behind;
    }
    let drops_set_gid = extension.is_some_and(|extension| extension.flags & DROPS_SET_GID != 0);
    Ok(FuseOperation::Setxattr {
        name: fields.read_name()?,
        value: fields.read_data(len)?,
        flags,
        drops_set_gid,
    })
}

fn decode_batch_forget<'a>(fields: &mut RequestFields<'a>) -> Result<FuseOperation<'a>> {
    let BatchForgetBody { count, .. } = BatchForgetBody::read(fields)?;
    let len = usize::try_from(count).ok().and_then(|count| count.checked_mul(FORGOTTEN_LEN));
    // A product that does not fit is more than any request has.
    let nodes = fields.read_bytes(len.ok_or(MalformedRequest::Short)?)?;
    Ok(FuseOperation::BatchForget(ForgottenNodes(nodes)))
}

fn decode_copy_range<'a>(fields: &mut RequestFields<'_>, wide: bool) -> Result<FuseOperation<'a>> {
    let CopyFileRangeBody { offset, to, to_offset, len, .. } = CopyFileRangeBody::read(fields)?;
    Ok(FuseOperation::CopyFileRange { offset, to, to_offset, len, wide })
}

/// Which attributes a [`SetattrBody`] sets (`FATTR_…`).
struct SetattrFields(u32);

impl SetattrFields {
    const MODE: u32 = 1;
    const UID: u32 = 1 << 1;
    const GID: u32 = 1 << 2;
    const SIZE: u32 = 1 << 3;
    const ATIME: u32 = 1 << 4;
    const MTIME: u32 = 1 << 5;
    const ATIME_NOW: u32 = 1 << 7;
    const MTIME_NOW: u32 = 1 << 8;
    const CTIME: u32 = 1 << 10;

    fn value_if_set<T>(&self, field: u32, value: T) -> Option<T> {
        (self.0 & field != 0).then_some(value)
    }

    fn decode_time_change(&self, field: u32, now: u32, at: UnixTime) -> Option<TimeChange> {
        self.value_if_set(field, if self.0 & now != 0 { TimeChange::Now } else { TimeChange::At(at) })
    }
}

fn decode_setattr(body: &SetattrBody) -> AttributeChanges {
    let valid = SetattrFields(body.valid);
    // A forged request may have more nanoseconds than a second has.
    let time = |secs, nanos: u32| UnixTime { secs, nanos: nanos.min(NANOS_MAX) };
    let atime = time(body.atime_secs, body.atime_nanos);
    let mtime = time(body.mtime_secs, body.mtime_nanos);
    let ctime = time(body.ctime_secs, body.ctime_nanos);
    AttributeChanges {
        mode: valid.value_if_set(SetattrFields::MODE, body.mode),
        uid: valid.value_if_set(SetattrFields::UID, body.uid),
        gid: valid.value_if_set(SetattrFields::GID, body.gid),
        size: valid.value_if_set(SetattrFields::SIZE, body.size),
        atime: valid.decode_time_change(SetattrFields::ATIME, SetattrFields::ATIME_NOW, atime),
        mtime: valid.decode_time_change(SetattrFields::MTIME, SetattrFields::MTIME_NOW, mtime),
        ctime: valid.value_if_set(SetattrFields::CTIME, ctime),
    }
}
