//! The messages of a session, in JSON.

use serde::{Deserialize, Serialize};
use vellum_types::ErrorKind;

use crate::error::SyncError;
use crate::local::receive::{SyncProblem, SyncReport};
use crate::model::listing::{OwnerNames, UnlistedEntry};
use crate::model::options::{SyncOptions, UnprivilegedReceiver};
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
        unlisted: Vec<WireUnlisted>,
        owners: WireOwners,
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
    Done(WireReport),
    /// Client: request to stop the current operation.
    Stop,
    /// Server: the request failed.
    Failed { kind: u8, message: String },
    /// Client: the session ends.
    Bye,
}

/// [`UnlistedEntry`] on the wire.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireUnlisted {
    path: Vec<u8>,
    message: String,
    vanished: bool,
}

/// [`OwnerNames`] on the wire.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireOwners {
    users: std::collections::BTreeMap<u32, String>,
    groups: std::collections::BTreeMap<u32, String>,
    #[serde(default)]
    receiver: Option<UnprivilegedReceiver>,
}

/// [`SyncReport`] on the wire.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireReport {
    steps: u64,
    written: u64,
    spared: u64,
    problems: Vec<WireUnlisted>,
    stopped: bool,
    #[serde(default)]
    durable: bool,
    #[serde(default)]
    taken: u64,
    #[serde(default)]
    unlinked: u64,
    #[serde(default)]
    unchanged: u64,
}

impl From<&UnlistedEntry> for WireUnlisted {
    fn from(unlisted: &UnlistedEntry) -> Self {
        Self { path: unlisted.path.clone(), message: unlisted.message.clone(), vanished: unlisted.vanished }
    }
}

impl From<WireUnlisted> for UnlistedEntry {
    fn from(wire: WireUnlisted) -> Self {
        Self { path: wire.path, message: wire.message, vanished: wire.vanished }
    }
}

impl From<&OwnerNames> for WireOwners {
    fn from(owners: &OwnerNames) -> Self {
        let receiver = owners.receiver.clone();
        Self { users: owners.users.clone(), groups: owners.groups.clone(), receiver }
    }
}

impl From<WireOwners> for OwnerNames {
    fn from(wire: WireOwners) -> Self {
        Self { users: wire.users, groups: wire.groups, receiver: wire.receiver }
    }
}

impl From<SyncReport> for WireReport {
    fn from(report: SyncReport) -> Self {
        let wire = |SyncProblem { path, message, vanished }| WireUnlisted { path, message, vanished };
        let SyncReport { steps, written, spared, problems, stopped, durable, taken, unlinked, unchanged } =
            report;
        let problems = problems.into_iter().map(wire).collect();
        Self { steps, written, spared, problems, stopped, durable, taken, unlinked, unchanged }
    }
}

impl From<WireReport> for SyncReport {
    fn from(wire: WireReport) -> Self {
        let problem = |WireUnlisted { path, message, vanished }| SyncProblem { path, message, vanished };
        let WireReport { steps, written, spared, problems, stopped, durable, taken, unlinked, unchanged } =
            wire;
        let problems = problems.into_iter().map(problem).collect();
        Self { steps, written, spared, problems, stopped, durable, taken, unlinked, unchanged }
    }
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
