//! The control channel: commands that run inside a mount ask the process that serves it.
//!
//! A Unix socket in the live state's folder, which only its owner can reach. One request and one answer, a line of JSON
//! each, for a connection.

mod service;
mod socket;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vellum_fs::content::residence::EvictedContent;
use vellum_host::ProgressMeter;
use vellum_host::escape::format_path;
use vellum_volume::exclusions::SnapshotExclusions;
use vellum_volume::hydration_policy::HydrationPolicy;
use vellum_volume::operations::{
    CommandId, OperationLink, RecordedCommand, RevertDirection, RevertedOperation, current_command,
};
use vellum_volume::residence::{HydratedContent, RefusedContent};

use super::MountingError;
use super::policies::PathPolicy;
use super::sharing::{ClientStatus, ServerStatus};
use super::trash::{TrashFigures, TrashReply, TrashRequest};
use crate::error::{Result, parse_error_code};

pub use self::service::{
    ControlHandler, ControlService, end_listening, listen_for_control, listen_while_kept, send_unmount_reply,
};

/// Name of the socket.
pub const SOCKET: &str = "control";
/// Longest request or answer, bytes: a note has 64 KiB at most, and the paths of a merge with 10,000 conflicts some MiB (JSON
/// has each byte of a path as a number).
pub const LINE_MAX: u64 = 64 << 20;

/// Between two lines that tell how far a request is.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// What a command asks for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum ControlRequest {
    /// How things stand.
    Status,
    /// What the snapshots are called that are not in the store yet.
    Unpublished,
    /// An attempt to end the mount, until the connection is closed. Meanwhile, no write waits for room in the write log.
    PrepareEnd {
        /// Whether the mount ends without the store.
        skips_publishing: bool,
    },
    /// Word of the end: answered at once, and again when the mount is gone and what was written is in the store, or
    /// cannot be.
    AwaitEnd,
    /// The end, at once: what was written is given up, and the worktree removed. Answered when it is off the list; what is
    /// left of it on the disk goes afterwards.
    Discard,
    /// The mount went out of sight of those who do not use it yet.
    NoteDetached,
    /// A snapshot.
    Snapshot {
        /// What the user says of it.
        note: String,
        /// Names that it gets.
        tags: Vec<String>,
        /// From the root; none: everything.
        paths: Vec<Vec<u8>>,
        /// What it leaves out; none: what the last snapshot of everything left out.
        #[serde(default)]
        exclusions: Option<SnapshotExclusions>,
    },
    /// The tree that a snapshot would record, in the store.
    CurrentTree {
        /// What it leaves out; none: what the last snapshot of everything left out.
        exclusions: Option<SnapshotExclusions>,
    },
    /// Whether a snapshot, or some paths of it, can be restored: whether it has nothing in the place of what the last one left out.
    CheckRestorable {
        /// Which, in hexadecimal.
        target: String,
        /// From the root; none: everything.
        paths: Vec<Vec<u8>>,
    },
    /// A snapshot that a merge takes.
    MergeSnapshot {
        /// What the user says of it.
        note: String,
        /// What it descends from; none: the last snapshot, of which it saves the changes since.
        parents: Vec<String>,
    },
    /// A worktree of its own that holds the same.
    Fork {
        /// Its name.
        name: String,
    },
    /// The clients of a shared worktree.
    Clients,
    /// What the process of a client's mount knows without its server.
    ClientMount,
    /// The end of a client's session.
    EvictClient {
        /// Which, in hexadecimal.
        session: String,
    },
    /// The worktree to another process, which serves it next.
    HandOver {
        /// The session of that process, in hexadecimal.
        session: String,
    },
    /// Everything into the store.
    Flush,
    /// The snapshots that wait into the store.
    Settle,
    /// The most that the worktree may hold.
    Quota {
        /// Bytes of content; None: no limit.
        bytes: Option<u64>,
        /// Inodes; None: no limit.
        inodes: Option<u64>,
    },
    /// What the mount's process keeps in memory of what it read; without any limit, as it is.
    SetMemory {
        /// Bytes of content.
        content: Option<u64>,
        /// Bytes of attributes and names.
        inodes: Option<u64>,
        /// Whether all of it is forgotten.
        clears: bool,
    },
    /// Something of the trash.
    Trash {
        /// What.
        request: TrashRequest,
    },
    /// Some paths as a snapshot has them.
    RestorePaths {
        /// Which, in hexadecimal.
        target: String,
        /// From the root.
        paths: Vec<Vec<u8>>,
        /// Whether what no snapshot holds is given up.
        discard: bool,
        /// What must still be there; none: whatever is there.
        #[serde(default)]
        expected: Option<SeenState>,
    },
    /// The content of some paths on this machine.
    Hydrate {
        /// From the root.
        paths: Vec<Vec<u8>>,
        /// Whether only names and attributes are meant.
        names_only: bool,
        /// The name of the pin that is to keep it here.
        pin: Option<String>,
    },
    /// When the content of a path comes to this machine.
    SetHydrationPolicy {
        /// From the root.
        path: Vec<u8>,
        /// When.
        policy: HydrationPolicy,
    },
    /// All hydration policies.
    HydrationPolicies,
    /// The content of some paths off this machine.
    Evict {
        /// From the root.
        paths: Vec<Vec<u8>>,
        /// Inodes that programs have open, by the numbers that the kernel has for them.
        open: BTreeSet<u64>,
    },
    /// Another snapshot to stand on.
    Restore {
        /// Which, in hexadecimal.
        target: String,
        /// Whether what no snapshot holds is given up.
        discard: bool,
        /// What must still be there; none: whatever is there.
        #[serde(default)]
        expected: Option<SeenState>,
    },
    /// Another snapshot to stand on, or none, with the files as they are.
    MoveHead {
        /// On which it stands, in hexadecimal.
        from: Option<String>,
        /// Which, in hexadecimal.
        target: Option<String>,
    },
    /// A request that takes an operation back, or carries it out once more. What it changes is in the store when it is answered.
    Revert {
        /// The operation.
        reverted: RevertedName,
        /// The request.
        request: Box<ControlRequest>,
    },
}

/// A request as it is sent.
#[derive(Debug, Serialize, Deserialize)]
pub struct ControlMessage<R = ControlRequest> {
    /// The words of the command that asks: the process that serves the mount was started with another one, and records
    /// operations for this.
    #[serde(default)]
    pub words: Vec<String>,
    /// The run of the command, if what it does belongs together.
    #[serde(default)]
    pub run: Option<[u8; 8]>,
    /// What it asks for.
    #[serde(flatten)]
    pub request: R,
}

/// The state of a worktree that a command has looked at.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SeenState {
    /// The top node of its tree in the store.
    pub root: String,
    /// What must still be as it is there, from the root; none: everything.
    pub paths: Vec<Vec<u8>>,
}

/// An operation that is taken back, as it is named to the process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RevertedName {
    /// Whether it is carried out once more instead.
    redo: bool,
    /// The worktree in whose chain it is; none if it is in that of the volume.
    worktree: Option<String>,
    /// Its place there.
    sequence: u64,
    /// Its hash.
    hash: [u8; 32],
}

impl From<&RevertedOperation> for RevertedName {
    fn from(reverted: &RevertedOperation) -> Self {
        let RevertedOperation { direction, worktree, link } = reverted;
        Self {
            redo: *direction == RevertDirection::Redo,
            worktree: worktree.clone(),
            sequence: link.sequence,
            hash: link.hash,
        }
    }
}

impl From<&RevertedName> for RevertedOperation {
    fn from(name: &RevertedName) -> Self {
        Self {
            direction: if name.redo { RevertDirection::Redo } else { RevertDirection::Undo },
            worktree: name.worktree.clone(),
            link: OperationLink { sequence: name.sequence, hash: name.hash },
        }
    }
}

/// The mount of a client, as its process knows it without the server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientMountStatus {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// The worktree.
    pub worktree: String,
    /// Whether there is a connection to the server.
    pub connected: bool,
    /// Requests for changes that the server has not answered.
    pub waiting_changes: u64,
    /// Whether something was written and not synced since.
    pub unsynced: bool,
    /// Requests of its kernel so far, but for those that say what the kernel has forgotten.
    #[serde(default)]
    pub kernel_requests: u64,
}

/// What the daemon answers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ControlReply {
    /// The snapshot that was made, or the one that undoes a restore.
    pub snapshot: Option<String>,
    /// The top node of the tree in the store that the worktree stands on, after a flush; or of the current tree.
    pub root: Option<String>,
    /// What the current tree leaves out; None: nobody asked.
    #[serde(default)]
    pub exclusions: Option<SnapshotExclusions>,
    /// The last snapshot of the line.
    pub head: Option<String>,
    /// Whether anything changed since that.
    pub changed: bool,
    /// Snapshots that are not in the store yet.
    pub waiting: u64,
    /// Since when something is acknowledged and not in the store, Unix seconds; None: all of it is in the store.
    pub unpublished_since: Option<i64>,
    /// Bytes of file data in the write log.
    pub log_bytes: u64,
    /// Bytes that the write log may take before writers wait.
    pub log_limit: u64,
    /// Bytes of metadata in memory that are not published, about.
    pub metadata_bytes: u64,
    /// Bytes of content that the worktree holds.
    pub used_bytes: u64,
    /// Inodes that it holds.
    pub used_inodes: u64,
    /// Why the last attempt to publish failed.
    pub failure: Option<String>,
    /// Whether that is because another took the worktree over; told at the end.
    #[serde(default)]
    pub fenced: bool,
    /// What became of the content that was to come or go.
    #[serde(default)]
    pub content: Option<ContentReply>,
    /// The mount of a client; None: the process has no such mount.
    #[serde(default)]
    pub client_mount: Option<ClientMountStatus>,
    /// Whether the mount takes over what other machines do.
    #[serde(default)]
    pub follows: bool,
    /// Why it does not, at the moment.
    #[serde(default)]
    pub follow_problem: Option<String>,
    /// How long the trash keeps what is removed, and what is in it.
    #[serde(default)]
    pub trash: TrashFigures,
    /// What was asked of the trash.
    #[serde(default)]
    pub trashed: Option<TrashReply>,
    /// What the process keeps in memory; None: nobody asked.
    #[serde(default)]
    pub memory: Option<MemoryCaches>,
    /// The clients of the worktree; None: nobody asked, or it is not served.
    #[serde(default)]
    pub clients: Option<Vec<ClientStatus>>,
    /// The process that serves them; None: nobody asked, or there is none.
    #[serde(default)]
    pub server: Option<ServerStatus>,
    /// The hydration policies; None: nobody asked.
    #[serde(default)]
    pub policies: Option<Vec<PathPolicy>>,
    /// The snapshots that are not in the store yet, the oldest first; None: nobody asked, or they are too many.
    pub unpublished: Option<Vec<UnpublishedSnapshot>>,
}

/// What a mount's process keeps in memory of what it read.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct MemoryCaches {
    /// Content.
    pub content: MemoryCache,
    /// Attributes and names.
    pub inodes: MemoryCache,
}

/// One of them, in bytes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct MemoryCache {
    /// What it takes.
    pub bytes: u64,
    /// What it may take.
    pub limit: u64,
}

/// What was brought to this machine, or removed from it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ContentReply {
    /// Files.
    pub files: u64,
    /// Bytes of them as they are stored.
    pub bytes: u64,
    /// Bytes that were fetched, or removed.
    pub moved: u64,
    /// Whether the store is on this machine.
    pub is_local: bool,
    /// Files that were left out, by path from the root, and why.
    pub refused: Vec<(Vec<u8>, String)>,
}

impl ContentReply {
    /// What was fetched.
    pub fn for_hydration(hydrated: HydratedContent) -> Self {
        let HydratedContent { files, bytes, fetched, is_local, refused } = hydrated;
        Self { files, bytes, moved: fetched, is_local, refused: name_reasons(refused) }
    }

    /// What was removed.
    pub fn for_eviction(evicted: EvictedContent) -> Self {
        let EvictedContent { files, bytes, refused } = evicted;
        let moved = bytes.before.saturating_sub(bytes.left);
        Self { files, bytes: moved, moved, is_local: false, refused: name_reasons(refused) }
    }
}

fn name_reasons(refused: Vec<(Vec<u8>, RefusedContent)>) -> Vec<(Vec<u8>, String)> {
    refused.into_iter().map(|(path, why)| (path, why.to_string())).collect()
}

/// A snapshot that is not in the store yet: what names it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UnpublishedSnapshot {
    /// Its id, in hexadecimal.
    pub id: String,
    /// The id of the snapshot that it was made on.
    pub parent: Option<String>,
    /// The tags that it gets.
    pub tags: Vec<String>,
}

/// A line of an answer.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlLine {
    /// The request takes time.
    Working {
        /// Bytes that are done.
        bytes: u64,
        /// All bytes.
        total: u64,
    },
    /// The answer.
    Done(Box<ControlReply>),
    /// It failed.
    Failed {
        /// The code of the kind of error.
        kind: String,
        /// What is the matter.
        message: String,
        /// What to do.
        hint: Option<String>,
    },
}

impl ControlLine {
    /// The answer to what is no request.
    pub fn not_understood() -> Self {
        Self::Failed { kind: "usage".into(), message: "the request is not understood".into(), hint: None }
    }

    /// The line, without its end.
    pub fn to_json(&self) -> Vec<u8> {
        // It has no keys that JSON does not allow, so this does not fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// Paths from the root, for whoever reads a list.
pub fn join_shown(paths: &[Vec<u8>]) -> String {
    let shown = |path: &Vec<u8>| if path.is_empty() { ".".into() } else { format_path(path) };
    paths.iter().map(shown).collect::<Vec<_>>().join(", ")
}

/// Asks the daemon behind a socket.
pub fn request_reply(socket: &Path, request: &ControlRequest) -> Result<ControlReply> {
    PendingReply::send_request(socket, request)?.wait_for_reply()
}

/// A request that was sent, and is not answered yet.
pub struct PendingReply {
    socket: PathBuf,
    stream: BufReader<UnixStream>,
    /// What of the answer has come.
    line: Vec<u8>,
}

impl PendingReply {
    /// Sends a request to the daemon behind a socket.
    pub fn send_request(socket: &Path, request: &ControlRequest) -> Result<Self> {
        let gone = |source| MountingError::Unreachable { socket: socket.into(), source };
        let stream = socket::connect_to(socket).map_err(gone)?;
        let RecordedCommand { words, id } = current_command();
        let message = ControlMessage { words, run: id.map(|CommandId(id)| id), request };
        send_json_line(&stream, &message).map_err(gone)?;
        Ok(Self { socket: socket.into(), stream: BufReader::new(stream), line: Vec::new() })
    }

    /// Waits for the answer.
    pub fn wait_for_reply(mut self) -> Result<ControlReply> {
        let answer = self.poll_reply(None)?;
        answer.ok_or_else(|| MountingError::NoAnswer(self.socket).into())
    }

    /// Waits for the answer to a request that tells how far it is. If the meter is stopped, the process is told so by the
    /// end of the connection.
    pub fn wait_with_progress(mut self, meter: &ProgressMeter) -> Result<ControlReply> {
        loop {
            // A read waits only for a short time, so that a request to stop is noticed between two lines.
            if let Some(answer) = self.poll_line(Some(PROGRESS_EVERY), meter)? {
                return Ok(answer);
            }
            meter.check_stopped()?;
        }
    }

    /// Waits for the next answer for some time at most; None: it has not come yet.
    pub fn poll_reply(&mut self, time: Option<Duration>) -> Result<Option<ControlReply>> {
        self.poll_line(time, &ProgressMeter::default())
    }

    fn poll_line(&mut self, time: Option<Duration>, meter: &ProgressMeter) -> Result<Option<ControlReply>> {
        let gone = |source| MountingError::Unreachable { socket: self.socket.clone(), source };
        // Set for each read, because one connection is read with a limit and without.
        self.stream.get_ref().set_read_timeout(time).map_err(gone)?;
        // Bounded: whatever is behind the socket could send bytes without an end of line.
        match (&mut self.stream).take(LINE_MAX).read_until(b'\n', &mut self.line) {
            // What has come of the line stays in `self.line`: `read_until` keeps what it has read when it fails.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(None);
            }
            Ok(_) => {}
            Err(error) => return Err(gone(error).into()),
        }
        let line = std::mem::take(&mut self.line);
        match serde_json::from_slice(&line) {
            Ok(ControlLine::Done(answer)) => Ok(Some(*answer)),
            // The daemon tells sums, and the meter counts what is added.
            Ok(ControlLine::Working { bytes, total }) => {
                let before = meter.read_progress();
                // A request has several phases, each with a total of its own.
                if before.total_bytes != total || before.bytes > bytes {
                    meter.begin_phase(0, total);
                }
                meter.add_progress(0, bytes.saturating_sub(meter.read_progress().bytes));
                Ok(None)
            }
            Ok(ControlLine::Failed { kind, message, hint }) => {
                Err(MountingError::Daemon { kind: parse_error_code(&kind), message, hint }.into())
            }
            // This is also the end of the connection, which leaves an empty line: the process died.
            Err(_) => Err(MountingError::NoAnswer(self.socket.clone()).into()),
        }
    }
}

/// Sends a request or an answer.
pub fn send_json_line(stream: &UnixStream, what: &impl Serialize) -> std::io::Result<()> {
    send_line(stream, serde_json::to_vec(what)?)
}

/// Sends a line that has no end yet.
pub fn send_line(mut stream: &UnixStream, mut line: Vec<u8>) -> std::io::Result<()> {
    line.push(b'\n');
    // With its end in one call: two threads that answer over one socket would otherwise mix their lines.
    stream.write_all(&line)
}
