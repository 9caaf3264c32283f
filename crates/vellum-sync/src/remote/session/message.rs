//! The messages of a session, in JSON.

use serde::{Deserialize, Serialize};
use vellum_types::ErrorKind;

use crate::error::SyncError;
use crate::local::receive::SyncReport;
use crate::model::listing::{OwnerNames, UnlistedEntry};
use crate::model::options::SyncOptions;
use crate::rules::SyncFilters;

/// The role of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerRole {
    /// It reads entries.
    Source,
    /// It writes entries.
    Destination,
}

/// A request for an end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeginRequest {
    /// The server's role.
    pub role: ServerRole,
    /// The path; relative to the user's home directory, unless it is absolute.
    pub path: Vec<u8>,
    /// The name under which a single entry of a source is listed, if not its own. Of a destination: the last component
    /// of its path, if that is a name within the directory that the user named, and may not be a symlink.
    pub name: Option<Vec<u8>>,
    /// Of a destination with a name: the name may be a symlink to a directory within the one that the user named.
    #[serde(default)]
    pub follows_name: bool,
    /// After this many milliseconds without a byte the other side counts as gone; 0: never.
    pub timeout: u64,
}

/// What exists at the requested path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FoundPath {
    /// A directory, or a symlink to one.
    Directory,
    /// A single entry of another type.
    Single,
    /// Nothing: a destination is created.
    Nothing,
}

/// A message.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SessionMessage {
    /// Client: request for an end.
    Begin(BeginRequest),
    /// Server: answer to `Begin`.
    Ready(FoundPath),
    /// Client: request for a listing.
    List { options: Box<SyncOptions>, filters: Box<SyncFilters>, top: Vec<u8>, owners: bool },
    /// The side that sent a listing: its further facts.
    Listed {
        unlisted: Vec<UnlistedEntry>,
        owners: OwnerNames,
        leftovers: Vec<Vec<u8>>,
        #[serde(default)]
        stamps: Vec<u64>,
        #[serde(default)]
        begun: Option<(i64, u32)>,
        #[serde(default)]
        granularity: u64,
    },
    /// Client: request for the hashes of the files whose numbers were sent before.
    Digest,
    /// Server: all hashes were sent.
    Digested,
    /// Client: request to remove the entries whose numbers were sent before.
    Take,
    /// Client: request to carry out a plan; a listing and the plan follow.
    CarryOut { options: Box<SyncOptions> },
    /// Server: the progress so far.
    Progress { items: u64, bytes: u64 },
    /// Server: the plan was carried out, or the entries were removed.
    Done(SyncReport),
    /// Client: request to stop the current operation.
    Stop,
    /// Server: the request failed.
    Failed { kind: u8, message: String },
    /// Client: the session ends.
    Bye,
}

/// Encodes an error for the other side.
pub(super) fn encode_error(error: &SyncError) -> (u8, String) {
    let kinds = ErrorKind::ALL;
    // The place in the list is part of the protocol, so the order of the list must not change.
    let place = kinds.iter().position(|kind| *kind == error.kind()).unwrap_or(kinds.len() - 1);
    (place as u8, error.format_chain())
}

/// Decodes an error of the other side.
pub(super) fn decode_error(kind: u8, message: String) -> SyncError {
    match ErrorKind::ALL.get(usize::from(kind)) {
        // These two are told apart from other failures: a vanished file is no problem, and a changed one is
        // tried again.
        Some(ErrorKind::NotFound) if message == SyncError::Vanished.to_string() => SyncError::Vanished,
        Some(ErrorKind::Conflict) if message == SyncError::Changed.to_string() => SyncError::Changed,
        known => SyncError::Remote { kind: known.copied().unwrap_or(ErrorKind::Io), message },
    }
}
