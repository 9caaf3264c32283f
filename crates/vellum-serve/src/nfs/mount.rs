//! The program for mounting (RFC 1813, appendix I): from the path of a directory to its handle.

use super::protocol::NfsStatus;
use super::tree::NfsTree;
use super::xdr::{XdrFault, XdrReader, XdrWriter};

/// Longest path, bytes.
const PATH_MAX: usize = 1024;
/// The kind of senders that are let in (`AUTH_SYS`).
const SENDERS: u32 = 1;

/// What is asked of the program for mounting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountRequest {
    /// Nothing.
    Null,
    /// The handle of a directory.
    Mount(Vec<u8>),
    /// Who has mounted what. Nobody keeps a record of that.
    Dump,
    /// To forget that a client has mounted something, or everything.
    Unmount,
    /// What there is to mount.
    Export,
}

impl MountRequest {
    /// Parses what was asked. None: there is no such procedure.
    pub fn decode(procedure: u32, arguments: &[u8]) -> Result<Option<Self>, XdrFault> {
        Ok(Some(match procedure {
            0 => Self::Null,
            1 => Self::Mount(XdrReader::new(arguments).read_opaque(PATH_MAX)?.to_vec()),
            2 => Self::Dump,
            3 | 4 => Self::Unmount,
            5 => Self::Export,
            _ => return Ok(None),
        }))
    }

    /// Writes the answer. A handle gives nobody anything: who uses it is asked each time.
    pub fn answer(&self, tree: &NfsTree, out: &mut XdrWriter) {
        match self {
            Self::Null | Self::Unmount => {}
            Self::Mount(path) => match tree.find_path(path) {
                Ok(handle) => {
                    out.put_u32(0);
                    out.put_opaque(&handle);
                    out.put_u32(1);
                    out.put_u32(SENDERS);
                }
                Err(status) => out.put_u32(mount_status(status)),
            },
            // Empty lists: there is one tree, which clients are told of elsewhere, and clients look for others below it here.
            Self::Dump | Self::Export => out.put_bool(false),
        }
    }
}

/// This program has fewer words for failures.
fn mount_status(status: NfsStatus) -> u32 {
    match status {
        NfsStatus::Perm
        | NfsStatus::NoEnt
        | NfsStatus::Io
        | NfsStatus::Acces
        | NfsStatus::NotDir
        | NfsStatus::Inval
        | NfsStatus::NameTooLong => status as u32,
        NfsStatus::NxIo
        | NfsStatus::Exist
        | NfsStatus::XDev
        | NfsStatus::IsDir
        | NfsStatus::FBig
        | NfsStatus::NoSpc
        | NfsStatus::RoFs
        | NfsStatus::MLink
        | NfsStatus::NotEmpty
        | NfsStatus::DQuot
        | NfsStatus::Stale
        | NfsStatus::BadHandle
        | NfsStatus::NotSync
        | NfsStatus::NotSupp
        | NfsStatus::TooSmall
        | NfsStatus::ServerFault
        | NfsStatus::BadType
        | NfsStatus::JukeBox => NfsStatus::ServerFault as u32,
    }
}
