//! What is said beside content, as JSON.

use serde::{Deserialize, Serialize};
use vellum_types::ErrorKind;

use crate::error::SyncError;
use crate::local::receive::{SyncProblem, SyncReport};
use crate::model::listing::{OwnerNames, UnlistedEntry};
use crate::model::options::{SyncOptions, UnprivilegedReceiver};
use crate::rules::SyncFilters;

/// What a server is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerRole {
    /// Where entries come from.
    Source,
    /// Where they go.
    Destination,
}

/// The end that is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeginRequest {
    /// What it is to be.
    pub role: ServerRole,
    /// Where: from the user's home directory, if it is not absolute.
    pub path: Vec<u8>,
    /// The name that a single entry of a source goes by, if not by its own. Of a destination: its last component, if that is
    /// a name in what the user named, and not to be a symlink.
    pub name: Option<Vec<u8>>,
    /// Of a destination with a name: it may be a symlink to a directory within what the user named.
    #[serde(default)]
    pub follows_name: bool,
    /// Without a byte for so long the other side is gone, milliseconds; 0: never.
    pub timeout: u64,
}

/// What stands at the path that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FoundPath {
    /// A directory, or a symlink to one.
    Directory,
    /// Something else, of which there is one only.
    Single,
    /// Nothing: as a destination it is made.
    Nothing,
}

/// One thing that is said.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SessionMessage {
    /// Client: this end is wanted.
    Begin(BeginRequest),
    /// Server: it is there.
    Ready(FoundPath),
    /// Client: list it.
    List { options: Box<SyncOptions>, filters: Box<SyncFilters>, top: Vec<u8>, owners: bool },
    /// Whoever sent a listing: what goes with it.
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
    /// Client: hash the files whose numbers came.
    Digest,
    /// Server: the hashes came.
    Digested,
    /// Client: take away the entries whose numbers came.
    Take,
    /// Client: a listing and a plan come; carry it out.
    CarryOut { options: Box<SyncOptions> },
    /// Server: so much is done.
    Progress { items: u64, bytes: u64 },
    /// Server: it is carried out.
    Done(WireReport),
    /// Client: no more of what is being done.
    Stop,
    /// Server: what was asked for failed.
    Failed { kind: u8, message: String },
    /// Client: that was all.
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

/// An error as it is told to the other side.
pub(super) fn encode_error(error: &SyncError) -> (u8, String) {
    let kinds = ErrorKind::ALL;
    // The place in the list is part of the protocol, so the order of the list must not change.
    let place = kinds.iter().position(|kind| *kind == error.kind()).unwrap_or(kinds.len() - 1);
    (place as u8, error.format_chain())
}

/// An error that the other side told.
pub(super) fn decode_error(kind: u8, message: String) -> SyncError {
    match ErrorKind::ALL.get(usize::from(kind)) {
        // These two are told apart from other failures: a vanished file is no problem, and a changed one is
        // tried again.
        Some(ErrorKind::NotFound) if message == SyncError::Vanished.to_string() => SyncError::Vanished,
        Some(ErrorKind::Conflict) if message == SyncError::Changed.to_string() => SyncError::Changed,
        known => SyncError::Remote { kind: known.copied().unwrap_or(ErrorKind::Io), message },
    }
}
