//! What is asked of the program for files: arguments as RFC 1813 has them.
//!
//! Invariant: nothing here allocates, and what is longer than it may be is a fault.

use vellum_library::{AttributeChanges, NodeKind, TimeChange};
use vellum_types::UnixTime;

use super::protocol::{HANDLE_MAX, NfsProcedure, TRANSFER_MAX};
use super::xdr::{XdrFault, XdrReader};

/// Longest name that is parsed, bytes; the library says which are too long.
const NAME_BYTES: usize = 4096;
/// Longest target of a symlink that is parsed, bytes.
const TARGET_BYTES: usize = 8192;
/// Nanoseconds of a second.
const NANOS: u32 = 1_000_000_000;

/// A name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedPlace<'a> {
    /// The handle of the directory.
    pub dir: &'a [u8],
    /// The name.
    pub name: &'a [u8],
}

/// How a file is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileCreation {
    /// One that is there will do.
    Unchecked(AttributeChanges),
    /// The name must be free.
    Guarded(AttributeChanges),
    /// The name must be free, unless the same request was carried out before.
    Exclusive([u8; 8]),
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of RFC 1813")]
pub enum NfsRequest<'a> {
    Null,
    GetAttr {
        object: &'a [u8],
    },
    /// `guard`: the time of change that the object must have.
    SetAttr {
        object: &'a [u8],
        changes: AttributeChanges,
        guard: Option<UnixTime>,
    },
    Lookup {
        place: NamedPlace<'a>,
    },
    Access {
        object: &'a [u8],
        wanted: u32,
    },
    ReadLink {
        object: &'a [u8],
    },
    Read {
        file: &'a [u8],
        offset: u64,
        count: u32,
    },
    /// `is_stable`: it must be safe from a power cut before it is answered.
    Write {
        file: &'a [u8],
        offset: u64,
        is_stable: bool,
        data: &'a [u8],
    },
    Create {
        place: NamedPlace<'a>,
        how: FileCreation,
    },
    MkDir {
        place: NamedPlace<'a>,
        changes: AttributeChanges,
    },
    Symlink {
        place: NamedPlace<'a>,
        changes: AttributeChanges,
        target: &'a [u8],
    },
    /// Without a node: it is of a kind that cannot be made so.
    MkNod {
        place: NamedPlace<'a>,
        node: Option<NodeKind>,
        changes: AttributeChanges,
    },
    Remove {
        place: NamedPlace<'a>,
    },
    RmDir {
        place: NamedPlace<'a>,
    },
    Rename {
        from: NamedPlace<'a>,
        to: NamedPlace<'a>,
    },
    Link {
        file: &'a [u8],
        place: NamedPlace<'a>,
    },
    /// `count`: most bytes of the answer.
    ReadDir {
        dir: &'a [u8],
        cookie: u64,
        count: u32,
    },
    /// `names`: most bytes of names, numbers and cookies; `count`: most bytes of the answer.
    ReadDirPlus {
        dir: &'a [u8],
        cookie: u64,
        names: u32,
        count: u32,
    },
    FsStat {
        object: &'a [u8],
    },
    FsInfo {
        object: &'a [u8],
    },
    PathConf {
        object: &'a [u8],
    },
    Commit {
        file: &'a [u8],
    },
}

impl<'a> NfsRequest<'a> {
    /// Parses the arguments of a procedure.
    pub fn decode(procedure: NfsProcedure, arguments: &'a [u8]) -> Result<Self, XdrFault> {
        let mut input = XdrReader::new(arguments);
        let input = &mut input;
        Ok(match procedure {
            NfsProcedure::Null => Self::Null,
            NfsProcedure::GetAttr => Self::GetAttr { object: read_handle(input)? },
            NfsProcedure::SetAttr => Self::SetAttr {
                object: read_handle(input)?,
                changes: read_changes(input)?,
                guard: input.read_optional(read_time)?,
            },
            NfsProcedure::Lookup => Self::Lookup { place: read_place(input)? },
            NfsProcedure::Access => Self::Access { object: read_handle(input)?, wanted: input.read_u32()? },
            NfsProcedure::ReadLink => Self::ReadLink { object: read_handle(input)? },
            NfsProcedure::Read => {
                Self::Read { file: read_handle(input)?, offset: input.read_u64()?, count: input.read_u32()? }
            }
            NfsProcedure::Write => read_write(input)?,
            NfsProcedure::Create => Self::Create { place: read_place(input)?, how: read_creation(input)? },
            NfsProcedure::MkDir => Self::MkDir { place: read_place(input)?, changes: read_changes(input)? },
            NfsProcedure::Symlink => Self::Symlink {
                place: read_place(input)?,
                changes: read_changes(input)?,
                target: input.read_opaque(TARGET_BYTES)?,
            },
            NfsProcedure::MkNod => read_node(input)?,
            NfsProcedure::Remove => Self::Remove { place: read_place(input)? },
            NfsProcedure::RmDir => Self::RmDir { place: read_place(input)? },
            NfsProcedure::Rename => Self::Rename { from: read_place(input)?, to: read_place(input)? },
            NfsProcedure::Link => Self::Link { file: read_handle(input)?, place: read_place(input)? },
            NfsProcedure::ReadDir => {
                let dir = read_handle(input)?;
                Self::ReadDir { dir, cookie: read_cookie(input)?, count: input.read_u32()? }
            }
            NfsProcedure::ReadDirPlus => Self::ReadDirPlus {
                dir: read_handle(input)?,
                cookie: read_cookie(input)?,
                names: input.read_u32()?,
                count: input.read_u32()?,
            },
            NfsProcedure::FsStat => Self::FsStat { object: read_handle(input)? },
            NfsProcedure::FsInfo => Self::FsInfo { object: read_handle(input)? },
            NfsProcedure::PathConf => Self::PathConf { object: read_handle(input)? },
            NfsProcedure::Commit => {
                let file = read_handle(input)?;
                // The part of the file: all of it is made safe.
                input.read_u64()?;
                input.read_u32()?;
                Self::Commit { file }
            }
        })
    }

    /// Most bytes of the content of its answer, where it says so. A shorter answer will do: clients ask for the rest.
    pub fn answer_count(&mut self) -> Option<&mut u32> {
        match self {
            Self::Read { count, .. } | Self::ReadDir { count, .. } | Self::ReadDirPlus { count, .. } => {
                Some(count)
            }
            Self::Null
            | Self::GetAttr { .. }
            | Self::SetAttr { .. }
            | Self::Lookup { .. }
            | Self::Access { .. }
            | Self::ReadLink { .. }
            | Self::Write { .. }
            | Self::Create { .. }
            | Self::MkDir { .. }
            | Self::Symlink { .. }
            | Self::MkNod { .. }
            | Self::Remove { .. }
            | Self::RmDir { .. }
            | Self::Rename { .. }
            | Self::Link { .. }
            | Self::FsStat { .. }
            | Self::FsInfo { .. }
            | Self::PathConf { .. }
            | Self::Commit { .. } => None,
        }
    }
}

fn read_handle<'a>(input: &mut XdrReader<'a>) -> Result<&'a [u8], XdrFault> {
    input.read_opaque(HANDLE_MAX)
}

fn read_place<'a>(input: &mut XdrReader<'a>) -> Result<NamedPlace<'a>, XdrFault> {
    Ok(NamedPlace { dir: read_handle(input)?, name: input.read_opaque(NAME_BYTES)? })
}

/// A place in a listing. The verifier behind it is not needed: a place means the same at all times.
fn read_cookie(input: &mut XdrReader<'_>) -> Result<u64, XdrFault> {
    let cookie = input.read_u64()?;
    input.read_fixed::<8>()?;
    Ok(cookie)
}

fn read_time(input: &mut XdrReader<'_>) -> Result<UnixTime, XdrFault> {
    let secs = i64::from(input.read_u32()?);
    let nanos = input.read_u32()?;
    if nanos < NANOS { Ok(UnixTime { secs, nanos }) } else { Err(XdrFault) }
}

fn read_time_change(input: &mut XdrReader<'_>) -> Result<Option<TimeChange>, XdrFault> {
    match input.read_u32()? {
        0 => Ok(None),
        1 => Ok(Some(TimeChange::Now)),
        2 => Ok(Some(TimeChange::At(read_time(input)?))),
        _ => Err(XdrFault),
    }
}

fn read_changes(input: &mut XdrReader<'_>) -> Result<AttributeChanges, XdrFault> {
    Ok(AttributeChanges {
        mode: input.read_optional(XdrReader::read_u32)?,
        uid: input.read_optional(XdrReader::read_u32)?,
        gid: input.read_optional(XdrReader::read_u32)?,
        size: input.read_optional(XdrReader::read_u64)?,
        atime: read_time_change(input)?,
        mtime: read_time_change(input)?,
        ctime: None,
    })
}

fn read_write<'a>(input: &mut XdrReader<'a>) -> Result<NfsRequest<'a>, XdrFault> {
    let file = read_handle(input)?;
    let offset = input.read_u64()?;
    let count = input.read_u32()?;
    let is_stable = match input.read_u32()? {
        0 => false,
        1 | 2 => true,
        _ => return Err(XdrFault),
    };
    let data = input.read_opaque(TRANSFER_MAX as usize)?;
    // The length is there twice.
    if usize::try_from(count) != Ok(data.len()) {
        return Err(XdrFault);
    }
    Ok(NfsRequest::Write { file, offset, is_stable, data })
}

fn read_creation(input: &mut XdrReader<'_>) -> Result<FileCreation, XdrFault> {
    match input.read_u32()? {
        0 => Ok(FileCreation::Unchecked(read_changes(input)?)),
        1 => Ok(FileCreation::Guarded(read_changes(input)?)),
        2 => Ok(FileCreation::Exclusive(input.read_fixed()?)),
        _ => Err(XdrFault),
    }
}

fn read_node<'a>(input: &mut XdrReader<'a>) -> Result<NfsRequest<'a>, XdrFault> {
    let place = read_place(input)?;
    let kind = input.read_u32()?;
    let node = match kind {
        3 | 4 | 6 | 7 => kind,
        // Others have no attributes behind them.
        _ => return Ok(NfsRequest::MkNod { place, node: None, changes: AttributeChanges::default() }),
    };
    let changes = read_changes(input)?;
    let node = match node {
        6 => NodeKind::Socket,
        7 => NodeKind::Fifo,
        _ => {
            let major = input.read_u32()?;
            let number = rustix::fs::makedev(major, input.read_u32()?);
            if kind == 3 { NodeKind::BlockDevice(number) } else { NodeKind::CharDevice(number) }
        }
    };
    Ok(NfsRequest::MkNod { place, node: Some(node), changes })
}

#[cfg(test)]
mod tests {
    use super::super::xdr::XdrWriter;
    use super::*;

    fn place(out: &mut XdrWriter) {
        out.put_opaque(b"handle");
        out.put_opaque(b"name");
    }

    #[test]
    fn requests_are_what_was_asked() {
        let mut out = XdrWriter::default();
        place(&mut out);
        // Mode and size, the server's time and a client's.
        for word in [1, 1, 0o640, 0, 0, 1, 0, 5, 1, 2, 7, 8] {
            out.put_u32(word);
        }
        let bytes = out.into_bytes();
        let expected = AttributeChanges {
            mode: Some(0o640),
            size: Some(5),
            atime: Some(TimeChange::Now),
            mtime: Some(TimeChange::At(UnixTime { secs: 7, nanos: 8 })),
            ..AttributeChanges::default()
        };
        let at = NamedPlace { dir: b"handle", name: b"name" };
        assert_eq!(
            NfsRequest::decode(NfsProcedure::Create, &bytes),
            Ok(NfsRequest::Create { place: at, how: FileCreation::Guarded(expected) })
        );
        for len in 0..bytes.len() {
            assert_eq!(NfsRequest::decode(NfsProcedure::Create, &bytes[..len]), Err(XdrFault));
        }
    }

    #[test]
    fn lengths_that_differ_are_refused() {
        for count in [3, 4, 5, u32::MAX] {
            let mut out = XdrWriter::default();
            out.put_opaque(b"file");
            out.put_u64(9);
            out.put_u32(count);
            out.put_u32(1);
            out.put_opaque(b"data");
            let bytes = out.into_bytes();
            let expected = NfsRequest::Write { file: b"file", offset: 9, is_stable: true, data: b"data" };
            let wanted = if count == 4 { Ok(expected) } else { Err(XdrFault) };
            assert_eq!(NfsRequest::decode(NfsProcedure::Write, &bytes), wanted);
        }
        let mut out = XdrWriter::default();
        out.put_opaque(&[0; HANDLE_MAX + 1]);
        assert_eq!(NfsRequest::decode(NfsProcedure::GetAttr, &out.into_bytes()), Err(XdrFault));
    }
}
