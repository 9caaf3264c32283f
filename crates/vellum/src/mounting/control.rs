//! The control channel: commands that run inside a mount ask the process that serves it.
//!
//! A Unix socket in the live state's folder, which only its owner can reach. One request and one answer, a line of JSON
//! each, for a connection.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vellum_fs::StateReader;
use vellum_fs::content::residence::EvictedContent;
use vellum_fs::history::partial::ReplacedName;
use vellum_fs::history::pending::PendingSnapshot;
use vellum_fs::history::snapshot::LiveSnapshotRequest;
use vellum_fs::publish::publisher::BackgroundPublisher;
use vellum_fs::{FsError, LiveFilesystem};
use vellum_fuse::{CacheInvalidator, NodePlace};
use vellum_host::ProgressMeter;
use vellum_host::escape::format_path;
use vellum_library::LiveStateClaim;
use vellum_library::live::{self, HolderStage, OpenError};
use vellum_types::{Ino, SnapshotId};
use vellum_volume::SnapshotOrigin;
use vellum_volume::refs::WorktreeQuota;
use vellum_volume::residence::{ContentScope, HydratedContent, NewPin, RefusedContent};

use super::MountingError;
use super::end::{ShutdownSignal, UnmountReport};
use super::follow::FollowState;
use super::log::MountLog;
use super::trash::{TrashFigures, TrashReply, TrashRequest};
use crate::error::{CliError, Result, kind_name, parse_kind_name};

/// Name of the socket.
pub const SOCKET: &str = "control";
/// Longest request or answer, bytes: a note has 64 KiB at most, and the paths of a merge with 10,000 conflicts some MiB (JSON
/// has each byte of a path as a number).
const LINE_MAX: u64 = 64 << 20;
/// Most snapshots that wait to be published of which an answer says what they are called: some 200 bytes each.
const UNPUBLISHED_MAX: usize = 1000;

/// Between two lines that tell how far a request is.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
    },
}

/// What the daemon answers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ControlReply {
    /// The snapshot that was made, or the one that undoes a restore.
    pub snapshot: Option<String>,
    /// The top node of the tree in the store that the worktree stands on, after a flush.
    pub root: Option<String>,
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
    /// The snapshots that are not in the store yet, the oldest first; None: nobody asked, or they are too many.
    pub unpublished: Option<Vec<UnpublishedSnapshot>>,
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

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ControlLine {
    /// The request takes time: bytes that are done, and all.
    Working {
        bytes: u64,
        total: u64,
    },
    Done(Box<ControlReply>),
    Failed {
        kind: String,
        message: String,
        hint: Option<String>,
    },
}

/// What the daemon answers with.
pub struct ControlService {
    /// The worktree.
    pub fs: Arc<LiveFilesystem>,
    /// What publishes it.
    pub publisher: Arc<BackgroundPublisher>,
    /// Where failures are told.
    pub log: Arc<MountLog>,
    /// Lets the kernel forget; there once the mount is.
    pub forgetter: OnceLock<Arc<CacheInvalidator>>,
    /// The right to the worktree.
    pub claim: Arc<LiveStateClaim>,
    /// Where the end is announced.
    pub end: Arc<ShutdownSignal>,
    /// How the following of other machines goes, if the mount does that.
    pub follow: Option<FollowState>,
}

/// Listens until the process ends; gives the socket's path.
pub fn listen_for_control(dir: &Path, service: Arc<ControlService>) -> Result<PathBuf> {
    let path = dir.join(SOCKET);
    let failed = || CliError::io_error("listen on", path.display().to_string());
    // A second `bind` fails with EADDRINUSE as long as the name exists, even if nobody listens.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed()(error)),
        // A daemon that was killed leaves its socket; the claim says that there is none now.
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&path).map_err(failed())?;
    let serve = move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // Descriptors may be scarce; nobody is served by trying at once.
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            };
            let service = service.clone();
            // Without a thread for it the caller sees the connection closed, and says so.
            let _ = std::thread::Builder::new()
                .name("control".into())
                .spawn(move || service.handle_connection(&stream));
        }
    };
    std::thread::Builder::new().name("control".into()).spawn(serve).map_err(failed())?;
    Ok(path)
}

impl ControlService {
    fn handle_connection(&self, stream: &UnixStream) {
        let mut line = String::new();
        // A longer line is cut, and is no JSON then: the sender gets an error.
        let read = BufReader::new(stream.take(LINE_MAX)).read_line(&mut line);
        let request = read.ok().and_then(|_| serde_json::from_str::<ControlRequest>(&line).ok());
        let answer = match request {
            None => {
                let message = "the request is not understood".into();
                ControlLine::Failed { kind: "usage".into(), message, hint: None }
            }
            Some(ControlRequest::AwaitEnd) => {
                // Whoever asked may be gone.
                let begun = || drop(send_json_line(stream, &ControlLine::Done(Box::default())));
                return self.end.wait_for_report(begun, |report| send_unmount_reply(stream, report));
            }
            Some(ControlRequest::PrepareEnd { skips_publishing }) => {
                return self.prepare_end(skips_publishing, stream);
            }
            Some(request) => match self.handle_with_progress(&request, stream) {
                Ok(answer) => ControlLine::Done(Box::new(answer)),
                Err(error) => {
                    self.log.write_line(&format!("a command failed: {error}"));
                    let kind = kind_name(error.kind()).into();
                    let message = error.to_string();
                    ControlLine::Failed { kind, message, hint: MountingError::from(error).hint() }
                }
            },
        };
        // Whoever asked may be gone.
        let _ = send_json_line(stream, &answer);
    }

    /// Holds for as long as the other side keeps the connection: a command that is killed leaves the mount as it was.
    fn prepare_end(&self, skips_publishing: bool, mut stream: &UnixStream) {
        let log = self.fs.write_log();
        let limit = log.usage().limit;
        self.end.set_skips_publishing(skips_publishing);
        // A store that does not answer frees nothing: the last writes would wait for it for ever, and the mount could
        // not be ended.
        log.set_limit(u64::MAX);
        // Whoever asked may be gone.
        let _ = send_json_line(stream, &ControlLine::Done(Box::default()));
        // Nothing more is sent: this is the end of the connection.
        let _ = stream.read(&mut [0]);
        // Without a limit already: another attempt is under way, which restores it, or the worktree was taken over.
        if limit != u64::MAX {
            log.set_limit(limit);
        }
        self.end.set_skips_publishing(false);
    }

    /// Carries out a request, and tells from time to time how far it is. If whoever asked goes away, it ends.
    fn handle_with_progress(
        &self,
        request: &ControlRequest,
        stream: &UnixStream,
    ) -> std::result::Result<ControlReply, OpenError> {
        let meter = Arc::new(ProgressMeter::default());
        // Only these report progress, and end when nobody waits for them any more; all others are carried out whole.
        if !matches!(request, ControlRequest::Hydrate { .. } | ControlRequest::Evict { .. }) {
            return self.handle_request(request, &meter);
        }
        // Nothing is ever sent through it: the thread ends when the sender is dropped.
        let (end, ended) = std::sync::mpsc::sync_channel::<()>(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(PROGRESS_EVERY) {
                    let done = meter.read_progress();
                    let line = ControlLine::Working { bytes: done.bytes, total: done.total_bytes };
                    if send_json_line(stream, &line).is_err() {
                        // The connection is closed, so that nobody waits for the answer any more.
                        meter.request_stop();
                    }
                }
                // The receiver moves into this thread, and with it the scope's end: the thread has ended before the
                // answer is sent, so that no progress line follows it.
                drop(ended);
            });
            let answer = self.handle_request(request, &meter);
            drop(end);
            answer
        })
    }

    fn handle_request(
        &self,
        request: &ControlRequest,
        meter: &Arc<ProgressMeter>,
    ) -> std::result::Result<ControlReply, OpenError> {
        let mut answer = ControlReply::default();
        match request {
            ControlRequest::Status | ControlRequest::AwaitEnd | ControlRequest::PrepareEnd { .. } => {}
            ControlRequest::Unpublished => answer.unpublished = self.unpublished_snapshots()?,
            ControlRequest::NoteDetached => self.claim.record_stage(HolderStage::Detached)?,
            ControlRequest::Snapshot { note, tags, paths } => {
                let request = LiveSnapshotRequest {
                    note: note.clone(),
                    tags: tags.clone(),
                    origin: SnapshotOrigin::User,
                };
                let made = match paths.is_empty() {
                    true => self.fs.create_snapshot(&request),
                    false => self.fs.snapshot_paths(&request, paths),
                };
                answer.snapshot = Some(made?.to_string());
                self.publisher.request_publish();
            }
            ControlRequest::MergeSnapshot { note, parents } => {
                let parents: Vec<_> =
                    parents.iter().map(|id| parse_snapshot_id(id)).collect::<std::result::Result<_, _>>()?;
                let origin = if parents.is_empty() { SnapshotOrigin::Safety } else { SnapshotOrigin::User };
                let request = LiveSnapshotRequest { note: note.clone(), tags: Vec::new(), origin };
                let made = self.fs.create_snapshot_with_parents(&request, &parents)?;
                answer.snapshot = Some(made.to_string());
                self.publisher.request_publish();
            }
            ControlRequest::Fork { name } => live::fork_live_worktree(&self.fs, name)?,
            ControlRequest::Flush => self.fs.publisher().publish_all()?,
            ControlRequest::Quota { bytes, inodes } => {
                self.fs.attributes().set_worktree_quota(WorktreeQuota { bytes: *bytes, inodes: *inodes })?;
            }
            ControlRequest::Settle => {
                self.fs.publisher().publish_pending()?;
            }
            ControlRequest::Trash { request } => {
                let mut created = Vec::new();
                answer.trashed = Some(request.carry_out(&self.fs, &mut created)?);
                self.invalidate_names(created);
                self.publisher.request_publish();
            }
            ControlRequest::Hydrate { paths, names_only, pin } => {
                let scope = if *names_only { ContentScope::Names } else { ContentScope::Readable };
                let pin = pin.as_ref().map(|name| NewPin { name: name.clone(), content: join_shown(paths) });
                let hydrated = self.fs.hydrate_paths(paths, scope, pin.as_ref(), meter)?;
                answer.content = Some(ContentReply::for_hydration(hydrated));
            }
            ControlRequest::Evict { paths, open } => {
                let inode = |node: &u64| match NodePlace::from_node(*node) {
                    NodePlace::Main(epoch, ino) if epoch == self.fs.epochs().current_epoch() => Some(ino),
                    NodePlace::Main(..) | NodePlace::Snapshot(..) | NodePlace::Virtual(_) => None,
                };
                let open = open.iter().filter_map(inode).collect();
                answer.content = Some(ContentReply::for_eviction(self.fs.evict_paths(paths, open, meter)?));
            }
            ControlRequest::RestorePaths { target, paths, discard } => {
                let restored = self.fs.restore_paths(parse_snapshot_id(target)?, paths, *discard)?;
                self.invalidate_names(restored.replaced);
                answer.snapshot = restored.saved.map(|id| id.to_string());
                self.publisher.request_publish();
            }
            ControlRequest::Restore { target, discard } => {
                answer.snapshot =
                    self.restore_snapshot(parse_snapshot_id(target)?, *discard)?.map(|id| id.to_string());
                self.publisher.request_publish();
            }
        }
        Ok(self.add_worktree_status(answer)?)
    }

    /// Lets the kernel forget what it knows of names that stand for something else now.
    fn invalidate_names(&self, names: Vec<ReplacedName>) {
        let Some(forgetter) = self.forgetter.get() else { return };
        for ReplacedName { dir, name } in names {
            forgetter.invalidate_name(self.fs.epochs().current_epoch(), dir, &name);
        }
    }

    fn restore_snapshot(
        &self,
        target: SnapshotId,
        discard: bool,
    ) -> std::result::Result<Option<SnapshotId>, FsError> {
        self.replace_worktree(|| self.fs.restore_snapshot(target, discard))
    }

    /// Moves the worktree from a snapshot to one that descends from it, if nothing was changed since.
    pub fn advance_snapshot(&self, target: SnapshotId, from: SnapshotId) -> std::result::Result<(), FsError> {
        self.replace_worktree(|| self.fs.advance_snapshot(target, from))
    }

    /// Lets the kernel forget what it knows of the worktree, which `replace` replaces.
    fn replace_worktree<T>(
        &self,
        replace: impl FnOnce() -> std::result::Result<T, FsError>,
    ) -> std::result::Result<T, FsError> {
        let wanted = self.forgetter.get().is_some_and(|forgetter| forgetter.needs_root_names());
        let names = || match wanted {
            true => self
                .fs
                .list_entries(Ino::ROOT)
                .map(|entries| entries.into_iter().map(|entry| entry.name).collect()),
            false => Ok(Vec::new()),
        };
        // Names that are gone after the restore are cached as present, and names that come with it may be cached as
        // absent: the kernel has to drop both.
        let before = names()?;
        let replaced = replace()?;
        if let Some(forgetter) = self.forgetter.get() {
            forgetter.invalidate_worktree(before.into_iter().chain(names()?));
        }
        Ok(replaced)
    }

    fn unpublished_snapshots(&self) -> std::result::Result<Option<Vec<UnpublishedSnapshot>>, FsError> {
        let waiting = self.fs.live_map().pending_snapshots()?;
        let named =
            waiting.into_iter().map(|(_, PendingSnapshot { id, record, tags, .. })| UnpublishedSnapshot {
                id: id.to_string(),
                parent: record.parents.first().map(ToString::to_string),
                tags,
            });
        // Without a list the command publishes everything before it looks for the name: slower, and with the same
        // result.
        Ok((named.len() <= UNPUBLISHED_MAX).then(|| named.collect()))
    }

    fn add_worktree_status(&self, answer: ControlReply) -> std::result::Result<ControlReply, FsError> {
        let unpublished = self.fs.unpublished_changes()?;
        // A copy, because the lock must not be held while the rest is collected.
        let head = self.fs.live_map().lock_head().clone();
        let used = self.fs.live_map().worktree_usage().used_amount();
        Ok(ControlReply {
            root: Some(head.state.base.0.to_string()),
            head: head.snapshot.map(|last| last.id.to_string()),
            changed: self.fs.is_changed()?,
            waiting: unpublished.snapshots,
            unpublished_since: self.fs.publisher().unpublished_since()?.map(|since| since.secs),
            log_bytes: unpublished.log_bytes,
            log_limit: self.fs.write_log().usage().limit,
            metadata_bytes: unpublished.metadata_bytes,
            used_bytes: u64::try_from(used.bytes).unwrap_or(0),
            used_inodes: u64::try_from(used.inodes).unwrap_or(0),
            failure: self.publisher.last_failure(),
            trash: TrashFigures::read_from_trash(&self.fs)?,
            follows: self.follow.is_some(),
            follow_problem: self.follow.as_ref().and_then(FollowState::problem),
            ..answer
        })
    }
}

/// Paths from the root, for whoever reads a list.
pub fn join_shown(paths: &[Vec<u8>]) -> String {
    let shown = |path: &Vec<u8>| if path.is_empty() { ".".into() } else { format_path(path) };
    paths.iter().map(shown).collect::<Vec<_>>().join(", ")
}

fn send_unmount_reply(stream: &UnixStream, report: &UnmountReport) {
    let UnmountReport { failure, is_fenced, snapshots, log_bytes } = report.clone();
    let answer =
        ControlReply { failure, fenced: is_fenced, waiting: snapshots, log_bytes, ..ControlReply::default() };
    // Whoever asked may be gone.
    let _ = send_json_line(stream, &ControlLine::Done(Box::new(answer)));
}

fn parse_snapshot_id(text: &str) -> std::result::Result<SnapshotId, FsError> {
    text.parse().map_err(|_| FsError::Posix(rustix::io::Errno::INVAL))
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
        let stream = UnixStream::connect(socket).map_err(gone)?;
        send_json_line(&stream, request).map_err(gone)?;
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
        self.stream.get_ref().set_read_timeout(time).map_err(gone)?;
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
                Err(MountingError::Daemon { kind: parse_kind_name(&kind), message, hint }.into())
            }
            // This is also the end of the connection, which leaves an empty line: the process died.
            Err(_) => Err(MountingError::NoAnswer(self.socket.clone()).into()),
        }
    }
}

fn send_json_line(mut stream: &UnixStream, what: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    stream.write_all(&line)
}
