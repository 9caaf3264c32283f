//! Operations and their arguments.

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
    pub fn kernel_bits(self) -> u32 {
        self.0 & !Self::DIRECT
    }

    /// The program writes beside the kernel's pages.
    #[must_use]
    pub fn is_direct_write(self) -> bool {
        self.0 & Self::DIRECT != 0
    }

    /// The kernel kept it for a while, and wrote it by itself.
    #[must_use]
    pub fn is_write_back(self) -> bool {
        self.0 & 1 != 0
    }

    /// The set-id bits go.
    #[must_use]
    pub fn should_clear_set_ids(self) -> bool {
        self.0 & 1 << 2 != 0
    }
}

/// Nodes that the kernel has forgotten, each with how many answers named it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForgottenNodes<'a>(&'a [u8]);

impl ForgottenNodes<'_> {
    /// Each node, and the number of answers.
    pub fn iter_nodes(self) -> impl Iterator<Item = (u64, u64)> {
        let pair = |bytes: &[u8]| {
            let mut fields = RequestFields(bytes);
            Some((fields.read_u64().ok()?, fields.read_u64().ok()?))
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
        input: &'a [u8],
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
            1 => Self::Lookup { name: fields.read_name()? },
            2 => Self::Forget { times: fields.read_u64()? },
            3 => Self::Getattr,
            4 => Self::Setattr(decode_setattr(fields)?),
            5 => Self::Readlink,
            6 => Self::Symlink { name: fields.read_name()?, target: fields.read_name()? },
            8 => decode_mknod(fields)?,
            9 => {
                Self::Mkdir { mode: fields.read_u32()?, umask: fields.read_u32()?, name: fields.read_name()? }
            }
            10 => Self::Unlink { name: fields.read_name()? },
            11 => Self::Rmdir { name: fields.read_name()? },
            12 => decode_rename(fields, false)?,
            13 => Self::Link { node: fields.read_u64()?, name: fields.read_name()? },
            15 => decode_read(fields)?,
            16 => decode_write(fields)?,
            17 => Self::Statfs,
            18 => Self::Release,
            20 => Self::Fsync { data_only: decode_data_only(fields)? },
            21 => decode_setxattr(fields)?,
            22 => {
                let room = fields.read_u32()?;
                fields.skip_bytes(4)?;
                Self::Getxattr { room, name: fields.read_name()? }
            }
            23 => Self::Listxattr { room: fields.read_u32()? },
            24 => Self::Removexattr { name: fields.read_name()? },
            26 => Self::Init(InitRequest::decode(fields)?),
            28 => {
                let (_, offset, room) = decode_read_range(fields)?;
                Self::Readdir { offset, room }
            }
            30 => Self::Fsyncdir { data_only: decode_data_only(fields)? },
            38 => Self::Destroy,
            39 => decode_ioctl(fields)?,
            42 => decode_forgets(fields)?,
            43 => decode_fallocate(fields)?,
            44 => {
                let (_, offset, room) = decode_read_range(fields)?;
                Self::Readdirplus { offset, room }
            }
            45 => decode_rename(fields, true)?,
            46 => {
                fields.skip_bytes(8)?;
                Self::Lseek { offset: fields.read_u64()?, whence: fields.read_u32()? }
            }
            47 => decode_copy_range(fields, false)?,
            51 => decode_tmpfile(fields)?,
            52 => Self::Statx,
            53 => decode_copy_range(fields, true)?,
            _ => Self::Unknown,
        })
    }
}

/// `fuse_read_in`: the handle, where, and how much.
fn decode_read_range(fields: &mut RequestFields<'_>) -> Result<(u64, u64, u32)> {
    Ok((fields.read_u64()?, fields.read_u64()?, fields.read_u32()?))
}

/// `fuse_fsync_in`.
fn decode_data_only(fields: &mut RequestFields<'_>) -> Result<bool> {
    fields.skip_bytes(8)?;
    Ok(fields.read_u32()? & FSYNC_DATA_ONLY != 0)
}

fn decode_mknod<'a>(fields: &mut RequestFields<'a>) -> Result<FuseOperation<'a>> {
    let mode = fields.read_u32()?;
    let device = fields.read_u32()?;
    let umask = fields.read_u32()?;
    fields.skip_bytes(4)?;
    Ok(FuseOperation::Mknod { name: fields.read_name()?, mode, device, umask })
}

/// `fuse_create_in`; the name that stands behind it is the kernel's own for what has none.
fn decode_tmpfile<'a>(fields: &mut RequestFields<'a>) -> Result<FuseOperation<'a>> {
    fields.skip_bytes(4)?;
    Ok(FuseOperation::Tmpfile { mode: fields.read_u32()?, umask: fields.read_u32()? })
}

fn decode_rename<'a>(fields: &mut RequestFields<'a>, has_flags: bool) -> Result<FuseOperation<'a>> {
    let to_dir = fields.read_u64()?;
    let flags = if has_flags { fields.read_u32()? } else { 0 };
    if has_flags {
        fields.skip_bytes(4)?;
    }
    Ok(FuseOperation::Rename { to_dir, flags, name: fields.read_name()?, to_name: fields.read_name()? })
}

fn decode_write<'a>(fields: &mut RequestFields<'a>) -> Result<FuseOperation<'a>> {
    let (_, offset, len) = decode_read_range(fields)?;
    let flags = fields.read_u32()?;
    // The owner of a lock.
    fields.skip_bytes(8)?;
    let is_direct = fields.read_u32()? & DIRECT != 0;
    fields.skip_bytes(4)?;
    let flags = WriteFlags(flags & !WriteFlags::DIRECT | if is_direct { WriteFlags::DIRECT } else { 0 });
    let len = usize::try_from(len).map_err(|_| MalformedRequest::Short)?;
    Ok(FuseOperation::Write { offset, flags, data: fields.read_bytes(len)? })
}

/// `fuse_read_in`.
fn decode_read<'a>(fields: &mut RequestFields<'a>) -> Result<FuseOperation<'a>> {
    let (_, offset, len) = decode_read_range(fields)?;
    // More flags, and the owner of a lock.
    fields.skip_bytes(4 + 8)?;
    Ok(FuseOperation::Read { offset, len, direct: fields.read_u32()? & DIRECT != 0 })
}

/// `fuse_ioctl_in`.
fn decode_ioctl<'a>(fields: &mut RequestFields<'a>) -> Result<FuseOperation<'a>> {
    fields.skip_bytes(8 + 4)?;
    let command = fields.read_u32()?;
    fields.skip_bytes(8)?;
    let len = fields.read_u32()?;
    let room = fields.read_u32()?;
    let len = usize::try_from(len).map_err(|_| MalformedRequest::Short)?;
    Ok(FuseOperation::Ioctl { command, room, input: fields.read_bytes(len)? })
}

/// An access control list takes the set-group-id bit away (`FUSE_SETXATTR_ACL_KILL_SGID`).
const DROPS_SET_GID: u32 = 1;

/// `fuse_setxattr_in`. An older kernel sends it in its short form: what stands where the long one has its own flags is then
/// the beginning of a name, which is in some namespace and begins with a letter.
fn decode_setxattr<'a>(fields: &mut RequestFields<'a>) -> Result<FuseOperation<'a>> {
    let len = usize::try_from(fields.read_u32()?).map_err(|_| MalformedRequest::Short)?;
    let flags = fields.read_u32()?;
    let mut ahead = *fields;
    let own = ahead
        .read_u32()
        .ok()
        .zip(ahead.read_u32().ok())
        .filter(|(own, padding)| *own <= DROPS_SET_GID && *padding == 0);
    if own.is_some() {
        *fields = ahead;
    }
    let drops_set_gid = own.is_some_and(|(own, _)| own & DROPS_SET_GID != 0);
    Ok(FuseOperation::Setxattr {
        flags,
        drops_set_gid,
        name: fields.read_name()?,
        value: fields.read_bytes(len)?,
    })
}

fn decode_forgets<'a>(fields: &mut RequestFields<'a>) -> Result<FuseOperation<'a>> {
    let count = usize::try_from(fields.read_u32()?).map_err(|_| MalformedRequest::Short)?;
    fields.skip_bytes(4)?;
    let len = count.checked_mul(FORGET_LEN).ok_or(MalformedRequest::Short)?;
    Ok(FuseOperation::BatchForget(ForgottenNodes(fields.read_bytes(len)?)))
}

fn decode_fallocate<'a>(fields: &mut RequestFields<'a>) -> Result<FuseOperation<'a>> {
    fields.skip_bytes(8)?;
    Ok(FuseOperation::Fallocate {
        offset: fields.read_u64()?,
        len: fields.read_u64()?,
        mode: fields.read_u32()?,
    })
}

fn decode_copy_range<'a>(fields: &mut RequestFields<'a>, wide: bool) -> Result<FuseOperation<'a>> {
    fields.skip_bytes(8)?;
    let offset = fields.read_u64()?;
    let to = fields.read_u64()?;
    fields.skip_bytes(8)?;
    Ok(FuseOperation::CopyFileRange {
        offset,
        to,
        to_offset: fields.read_u64()?,
        len: fields.read_u64()?,
        wide,
    })
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

    fn value_if_set<T>(&self, field: u32, value: T) -> Option<T> {
        (self.0 & field != 0).then_some(value)
    }

    fn decode_time_change(&self, field: u32, now: u32, at: UnixTime) -> Option<TimeChange> {
        self.value_if_set(field, if self.0 & now != 0 { TimeChange::Now } else { TimeChange::At(at) })
    }
}

fn decode_setattr(fields: &mut RequestFields<'_>) -> Result<AttributeChanges> {
    let valid = SetattrFields(fields.read_u32()?);
    // Padding, and the handle.
    fields.skip_bytes(4 + 8)?;
    let size = fields.read_u64()?;
    // The owner of a lock.
    fields.skip_bytes(8)?;
    let secs = [fields.read_u64()?, fields.read_u64()?, fields.read_u64()?].map(u64::cast_signed);
    let nanos =
        [fields.read_u32()?, fields.read_u32()?, fields.read_u32()?].map(|nanos| nanos.min(NANOS_MAX));
    let [atime, mtime, ctime] = [0, 1, 2].map(|i| UnixTime { secs: secs[i], nanos: nanos[i] });
    let mode = fields.read_u32()?;
    fields.skip_bytes(4)?;
    let uid = fields.read_u32()?;
    let gid = fields.read_u32()?;
    Ok(AttributeChanges {
        mode: valid.value_if_set(SetattrFields::MODE, mode),
        uid: valid.value_if_set(SetattrFields::UID, uid),
        gid: valid.value_if_set(SetattrFields::GID, gid),
        size: valid.value_if_set(SetattrFields::SIZE, size),
        atime: valid.decode_time_change(SetattrFields::ATIME, SetattrFields::ATIME_NOW, atime),
        mtime: valid.decode_time_change(SetattrFields::MTIME, SetattrFields::MTIME_NOW, mtime),
        ctime: valid.value_if_set(SetattrFields::CTIME, ctime),
    })
}
