//! Numbers of RFC 1813.

use rustix::io::Errno;
use vellum_types::ErrorKind;

/// The program for files.
pub const NFS_PROGRAM: u32 = 100_003;
/// The program for mounting.
pub const MOUNT_PROGRAM: u32 = 100_005;
/// The version of both.
pub const VERSION: u32 = 3;
/// Most bytes that are read or written at once.
pub const TRANSFER_MAX: u32 = 1 << 20;
/// Longest handle that a client may hand in, bytes.
pub const HANDLE_MAX: usize = 64;

/// Rights that a client asks for.
pub mod access {
    /// To read a file or a directory.
    pub const READ: u32 = 1;
    /// To look up names.
    pub const LOOKUP: u32 = 2;
    /// To change content.
    pub const MODIFY: u32 = 4;
    /// To add content.
    pub const EXTEND: u32 = 8;
    /// To remove names.
    pub const DELETE: u32 = 16;
    /// To execute a file.
    pub const EXECUTE: u32 = 32;
}

/// What is asked of the program for files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of RFC 1813")]
pub enum NfsProcedure {
    Null,
    GetAttr,
    SetAttr,
    Lookup,
    Access,
    ReadLink,
    Read,
    Write,
    Create,
    MkDir,
    Symlink,
    MkNod,
    Remove,
    RmDir,
    Rename,
    Link,
    ReadDir,
    ReadDirPlus,
    FsStat,
    FsInfo,
    PathConf,
    Commit,
}

impl NfsProcedure {
    /// In the order of their numbers, from 0 on.
    const ALL: [Self; 22] = [
        Self::Null,
        Self::GetAttr,
        Self::SetAttr,
        Self::Lookup,
        Self::Access,
        Self::ReadLink,
        Self::Read,
        Self::Write,
        Self::Create,
        Self::MkDir,
        Self::Symlink,
        Self::MkNod,
        Self::Remove,
        Self::RmDir,
        Self::Rename,
        Self::Link,
        Self::ReadDir,
        Self::ReadDirPlus,
        Self::FsStat,
        Self::FsInfo,
        Self::PathConf,
        Self::Commit,
    ];

    /// The one with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// How many words follow the status of a failure. All of them are 0: attributes that are not told.
    #[must_use]
    pub fn failure_words(self) -> usize {
        match self {
            Self::Null | Self::GetAttr => 0,
            Self::Lookup
            | Self::Access
            | Self::ReadLink
            | Self::Read
            | Self::ReadDir
            | Self::ReadDirPlus
            | Self::FsStat
            | Self::FsInfo
            | Self::PathConf => 1,
            // Attributes before and after.
            Self::SetAttr
            | Self::Write
            | Self::Create
            | Self::MkDir
            | Self::Symlink
            | Self::MkNod
            | Self::Remove
            | Self::RmDir
            | Self::Commit => 2,
            Self::Link => 3,
            Self::Rename => 4,
        }
    }
}

/// What a request is answered with that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[expect(missing_docs, reason = "the names of RFC 1813")]
pub enum NfsStatus {
    Perm = 1,
    NoEnt = 2,
    Io = 5,
    NxIo = 6,
    Acces = 13,
    Exist = 17,
    XDev = 18,
    NotDir = 20,
    IsDir = 21,
    Inval = 22,
    FBig = 27,
    NoSpc = 28,
    RoFs = 30,
    MLink = 31,
    NameTooLong = 63,
    NotEmpty = 66,
    DQuot = 69,
    Stale = 70,
    BadHandle = 10001,
    NotSync = 10002,
    NotSupp = 10004,
    TooSmall = 10005,
    ServerFault = 10006,
    BadType = 10007,
    JukeBox = 10008,
}

impl From<vellum_library::Error> for NfsStatus {
    fn from(error: vellum_library::Error) -> Self {
        match error.errno().map(Errno::from_raw_os_error) {
            Some(Errno::PERM) => Self::Perm,
            Some(Errno::NOENT) => Self::NoEnt,
            Some(Errno::NXIO) => Self::NxIo,
            Some(Errno::ACCESS) => Self::Acces,
            Some(Errno::EXIST) => Self::Exist,
            Some(Errno::XDEV) => Self::XDev,
            Some(Errno::NOTDIR) => Self::NotDir,
            Some(Errno::ISDIR) => Self::IsDir,
            Some(Errno::INVAL) => Self::Inval,
            Some(Errno::FBIG) => Self::FBig,
            Some(Errno::NOSPC) => Self::NoSpc,
            Some(Errno::ROFS) => Self::RoFs,
            Some(Errno::MLINK) => Self::MLink,
            Some(Errno::NAMETOOLONG) => Self::NameTooLong,
            Some(Errno::NOTEMPTY) => Self::NotEmpty,
            Some(Errno::DQUOT) => Self::DQuot,
            Some(Errno::STALE) => Self::Stale,
            Some(_) | None => Self::from(error.kind()),
        }
    }
}

impl From<ErrorKind> for NfsStatus {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::NotFound => Self::NoEnt,
            ErrorKind::Conflict => Self::Exist,
            ErrorKind::Denied => Self::Acces,
            ErrorKind::NoSpace => Self::NoSpc,
            ErrorKind::Unsupported => Self::NotSupp,
            ErrorKind::Usage => Self::Inval,
            ErrorKind::Corrupt | ErrorKind::Interrupted | ErrorKind::Io => Self::Io,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn procedures_have_their_numbers() {
        for (number, procedure) in
            [(0, NfsProcedure::Null), (7, NfsProcedure::Write), (21, NfsProcedure::Commit)]
        {
            assert_eq!(NfsProcedure::from_number(number), Some(procedure));
        }
        assert_eq!(NfsProcedure::from_number(22), None);
    }
}
