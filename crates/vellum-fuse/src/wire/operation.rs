//! What a request asks for, and with what.

use rustix::fs::OFlags;
use vellum_fs::{AttributeChanges, TimeChange};
use vellum_types::UnixTime;

use super::fields::{MalformedRequest, RequestFields};
use super::init::InitRequest;

type Result<T> = std::result::Result<T, MalformedRequest>;

const NANOS_MAX: u32 = 999_999_999;

/// Of `fsync`: only the content, and what finds it again.
const FSYNC_DATA_ONLY: u32 = 1;

/// What the kernel says of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteFlags(pub u32);

/// How the file is open: beside the kernel's pages (`O_DIRECT`).
const DIRECT: u32 = OFlags::DIRECT.bits();

impl WriteFlags {
    /// Not the kernel's: that the file is open beside the kernel's pages.
    const DIRECT: u32 = 1 << 31;

    /// Those that the kernel has sent.
    #[must_use]
    pub fn of_kernel(self) -> u32 {
        self.0 & !Self::DIRECT
    }

    /// The program writes beside the kernel's pages.
    #[must_use]
    pub fn is_direct(self) -> bool {
        self.0 & Self::DIRECT != 0
    }

    /// The kernel kept it for a while, and wrote it by itself.
    #[must_use]
    pub fn is_write_back(self) -> bool {
        self.0 & 1 != 0
    }

    /// The set-id bits go.
    #[must_use]
    pub fn kills_suid(self) -> bool {
        self.0 & 1 << 2 != 0
    }
}

/// Nodes that the kernel has forgotten, each with how many answers named it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForgottenNodes<'a>(&'a [u8]);

impl ForgottenNodes<'_> {
    /// Each node, and the number of answers.
    pub fn nodes(self) -> impl Iterator<Item = (u64, u64)> {
        let pair = |bytes: &[u8]| {
            let mut fields = RequestFields(bytes);
            Some((fields.u64().ok()?, fields.u64().ok()?))
        };
        self.0.chunks_exact(FORGET_LEN).filter_map(pair)
    }
}

/// Bytes of a node and a number in a list of forgotten ones.
const FORGET_LEN: usize = 16;

/// What is asked for. What the kernel calls a file handle is left out wherever it means nothing here.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(missing_docs, reason = "they are called what FUSE calls them")]
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
    /// `direct`: beside the kernel's pages.
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
    Release,
    Statfs,
    Fsync {
        data_only: bool,
    },
    Fsyncdir {
        data_only: bool,
    },
    /// `drops_set_gid`: an access control list that takes the set-group-id bit away.
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
    /// With what is told, and room for the answer.
    Ioctl {
        command: u32,
        told: &'a [u8],
        room: u32,
    },
    /// `wide`: the answer has room for 64 bits.
    CopyFileRange {
        offset: u64,
        to: u64,
        to_offset: u64,
        len: u64,
        wide: bool,
    },
    /// One that no mount of ours answers.
    Unknown,
}

/// What FUSE calls an operation.
#[must_use]
pub fn operation_name(opcode: u32) -> &'static str {
    match opcode {
        1 => "LOOKUP",
        2 => "FORGET",
        3 => "GETATTR",
        4 => "SETATTR",
        5 => "READLINK",
        6 => "SYMLINK",
        8 => "MKNOD",
        9 => "MKDIR",
        10 => "UNLINK",
        11 => "RMDIR",
        12 | 45 => "RENAME",
        13 => "LINK",
        15 => "READ",
        16 => "WRITE",
        17 => "STATFS",
        18 => "RELEASE",
        20 => "FSYNC",
        21 => "SETXATTR",
        22 => "GETXATTR",
        23 => "LISTXATTR",
        24 => "REMOVEXATTR",
        26 => "INIT",
        28 => "READDIR",
        30 => "FSYNCDIR",
        38 => "DESTROY",
        39 => "IOCTL",
        42 => "BATCH_FORGET",
        43 => "FALLOCATE",
        44 => "READDIRPLUS",
        46 => "LSEEK",
        47 | 53 => "COPY_FILE_RANGE",
        51 => "TMPFILE",
        52 => "STATX",
        _ => "an unknown operation",
    }
}

impl<'a> FuseOperation<'a> {
    pub(super) fn decode(opcode: u32, body: &'a [u8]) -> Result<Self> {
        let mut fields = RequestFields(body);
        let fields = &mut fields;
        Ok(match opcode {
            1 => Self::Lookup { name: fields.name()? },
            2 => Self::Forget { times: fields.u64()? },
            3 => Self::Getattr,
            4 => Self::Setattr(setattr(fields)?),
            5 => Self::Readlink,
            6 => Self::Symlink { name: fields.name()?, target: fields.name()? },
            8 => mknod(fields)?,
            9 => Self::Mkdir { mode: fields.u32()?, umask: fields.u32()?, name: fields.name()? },
            10 => Self::Unlink { name: fields.name()? },
            11 => Self::Rmdir { name: fields.name()? },
            12 => rename(fields, false)?,
            13 => Self::Link { node: fields.u64()?, name: fields.name()? },
            15 => read(fields)?,
            16 => write(fields)?,
            17 => Self::Statfs,
            18 => Self::Release,
            20 => Self::Fsync { data_only: is_data_only(fields)? },
            21 => setxattr(fields)?,
            22 => {
                let room = fields.u32()?;
                fields.skip(4)?;
                Self::Getxattr { room, name: fields.name()? }
            }
            23 => Self::Listxattr { room: fields.u32()? },
            24 => Self::Removexattr { name: fields.name()? },
            26 => Self::Init(InitRequest::decode(fields)?),
            28 => {
                let (_, offset, room) = stretch(fields)?;
                Self::Readdir { offset, room }
            }
            30 => Self::Fsyncdir { data_only: is_data_only(fields)? },
            38 => Self::Destroy,
            39 => ioctl(fields)?,
            42 => forgets(fields)?,
            43 => fallocate(fields)?,
            44 => {
                let (_, offset, room) = stretch(fields)?;
                Self::Readdirplus { offset, room }
            }
            45 => rename(fields, true)?,
            46 => {
                fields.skip(8)?;
                Self::Lseek { offset: fields.u64()?, whence: fields.u32()? }
            }
            47 => copy_file_range(fields, false)?,
            51 => tmpfile(fields)?,
            52 => Self::Statx,
            53 => copy_file_range(fields, true)?,
            _ => Self::Unknown,
        })
    }
}

/// `fuse_read_in`: the handle, where, and how much.
fn stretch(fields: &mut RequestFields<'_>) -> Result<(u64, u64, u32)> {
    Ok((fields.u64()?, fields.u64()?, fields.u32()?))
}

/// `fuse_fsync_in`.
fn is_data_only(fields: &mut RequestFields<'_>) -> Result<bool> {
    fields.skip(8)?;
    Ok(fields.u32()? & FSYNC_DATA_ONLY != 0)
}

fn mknod<'a>(fields: &mut RequestFields<'a>) -> Result<FuseOperation<'a>> {
    let (mode, device, umask) = (fields.u32()?, fields.u32()?, fields.u32()?);
    fields.skip(4)?;
    Ok(FuseOperation::Mknod { name: fields.name()?, mode, device, umask })
}

/// `fuse_create_in`; the name that stands behind it is the kernel's own for what has none.
fn tmpfile<'a>(fields: &mut RequestFields<'a>) -> Result<FuseOperation<'a>> {
    fields.skip(4)?;
    Ok(FuseOperation::Tmpfile { mode: fields.u32()?, umask: fields.u32()? })
}

fn rename<'a>(fields: &mut RequestFields<'a>, has_flags: bool) -> Result<FuseOperation<'a>> {
    let to_dir = fields.u64()?;
    let flags = if has_flags { fields.u32()? } else { 0 };
    if has_flags {
        fields.skip(4)?;
    }
    Ok(FuseOperation::Rename { to_dir, flags, name: fields.name()?, to_name: fields.name()? })
}

fn write<'a>(fields: &mut RequestFields<'a>) -> Result<FuseOperation<'a>> {
    let (_, offset, len) = stretch(fields)?;
    let flags = fields.u32()?;
    // The owner of a lock.
    fields.skip(8)?;
    let is_direct = fields.u32()? & DIRECT != 0;
    fields.skip(4)?;
    let flags = WriteFlags(flags & !WriteFlags::DIRECT | if is_direct { WriteFlags::DIRECT } else { 0 });
    let len = usize::try_from(len).map_err(|_| MalformedRequest::Short)?;
    Ok(FuseOperation::Write { offset, flags, data: fields.bytes(len)? })
}

/// `fuse_read_in`.
fn read<'a>(fields: &mut RequestFields<'a>) -> Result<FuseOperation<'a>> {
    let (_, offset, len) = stretch(fields)?;
    // More flags, and the owner of a lock.
    fields.skip(4 + 8)?;
    Ok(FuseOperation::Read { offset, len, direct: fields.u32()? & DIRECT != 0 })
}

/// `fuse_ioctl_in`.
fn ioctl<'a>(fields: &mut RequestFields<'a>) -> Result<FuseOperation<'a>> {
    fields.skip(8 + 4)?;
    let command = fields.u32()?;
    fields.skip(8)?;
    let (len, room) = (fields.u32()?, fields.u32()?);
    let len = usize::try_from(len).map_err(|_| MalformedRequest::Short)?;
    Ok(FuseOperation::Ioctl { command, room, told: fields.bytes(len)? })
}

/// An access control list takes the set-group-id bit away (`FUSE_SETXATTR_ACL_KILL_SGID`).
const DROPS_SET_GID: u32 = 1;

/// `fuse_setxattr_in`. An older kernel sends it in its short form: what stands where the long one has its own flags is then
/// the beginning of a name, which is in some namespace and begins with a letter.
fn setxattr<'a>(fields: &mut RequestFields<'a>) -> Result<FuseOperation<'a>> {
    let len = usize::try_from(fields.u32()?).map_err(|_| MalformedRequest::Short)?;
    let flags = fields.u32()?;
    let mut ahead = *fields;
    let own = ahead
        .u32()
        .ok()
        .zip(ahead.u32().ok())
        .filter(|(own, padding)| *own <= DROPS_SET_GID && *padding == 0);
    if own.is_some() {
        *fields = ahead;
    }
    let drops_set_gid = own.is_some_and(|(own, _)| own & DROPS_SET_GID != 0);
    Ok(FuseOperation::Setxattr { flags, drops_set_gid, name: fields.name()?, value: fields.bytes(len)? })
}

fn forgets<'a>(fields: &mut RequestFields<'a>) -> Result<FuseOperation<'a>> {
    let count = usize::try_from(fields.u32()?).map_err(|_| MalformedRequest::Short)?;
    fields.skip(4)?;
    let len = count.checked_mul(FORGET_LEN).ok_or(MalformedRequest::Short)?;
    Ok(FuseOperation::BatchForget(ForgottenNodes(fields.bytes(len)?)))
}

fn fallocate<'a>(fields: &mut RequestFields<'a>) -> Result<FuseOperation<'a>> {
    fields.skip(8)?;
    Ok(FuseOperation::Fallocate { offset: fields.u64()?, len: fields.u64()?, mode: fields.u32()? })
}

fn copy_file_range<'a>(fields: &mut RequestFields<'a>, wide: bool) -> Result<FuseOperation<'a>> {
    fields.skip(8)?;
    let (offset, to) = (fields.u64()?, fields.u64()?);
    fields.skip(8)?;
    Ok(FuseOperation::CopyFileRange { offset, to, to_offset: fields.u64()?, len: fields.u64()?, wide })
}

/// Which of the fields of `fuse_setattr_in` count (`FATTR_…`).
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

    fn has<T>(&self, field: u32, value: T) -> Option<T> {
        (self.0 & field != 0).then_some(value)
    }

    fn time(&self, (field, now): (u32, u32), at: UnixTime) -> Option<TimeChange> {
        self.has(field, if self.0 & now != 0 { TimeChange::Now } else { TimeChange::At(at) })
    }
}

fn setattr(fields: &mut RequestFields<'_>) -> Result<AttributeChanges> {
    let valid = SetattrFields(fields.u32()?);
    // Padding, and the handle.
    fields.skip(4 + 8)?;
    let size = fields.u64()?;
    // The owner of a lock.
    fields.skip(8)?;
    let secs = [fields.u64()?, fields.u64()?, fields.u64()?].map(u64::cast_signed);
    let nanos = [fields.u32()?, fields.u32()?, fields.u32()?].map(|nanos| nanos.min(NANOS_MAX));
    let [atime, mtime, ctime] = [0, 1, 2].map(|i| UnixTime { secs: secs[i], nanos: nanos[i] });
    let mode = fields.u32()?;
    fields.skip(4)?;
    let (uid, gid) = (fields.u32()?, fields.u32()?);
    Ok(AttributeChanges {
        mode: valid.has(SetattrFields::MODE, mode),
        uid: valid.has(SetattrFields::UID, uid),
        gid: valid.has(SetattrFields::GID, gid),
        size: valid.has(SetattrFields::SIZE, size),
        atime: valid.time((SetattrFields::ATIME, SetattrFields::ATIME_NOW), atime),
        mtime: valid.time((SetattrFields::MTIME, SetattrFields::MTIME_NOW), mtime),
        ctime: valid.has(SetattrFields::CTIME, ctime),
    })
}
