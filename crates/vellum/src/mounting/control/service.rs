//! The process that serves a mount answers on the control channel.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use vellum_fs::history::exclusions::ExclusionChoice;
use vellum_fs::history::expected::ExpectedState;
use vellum_fs::history::partial::ReplacedName;
use vellum_fs::history::pending::PendingSnapshot;
use vellum_fs::history::snapshot::LiveSnapshotRequest;
use vellum_fs::lease::ChangePurpose;
use vellum_fs::log::NEARLY_FULL;
use vellum_fs::publish::publisher::BackgroundPublisher;
use vellum_fs::{FsError, LiveFilesystem, StateReader};
use vellum_fuse::{CacheInvalidator, NodePlace};
use vellum_host::ProgressMeter;
use vellum_library::LiveStateClaim;
use vellum_library::live::{self, HolderStage, OpenError};
use vellum_map::MapRoot;
use vellum_store::PackCache;
use vellum_types::{BlobId, ErrorKind, Ino, LookupResult, SnapshotId};
use vellum_volume::SnapshotOrigin;
use vellum_volume::exclusions::SnapshotExclusions;
use vellum_volume::operations::{CommandId, CommandScope, RecordedCommand, current_command};
use vellum_volume::refs::WorktreeQuota;
use vellum_volume::residence::{ContentScope, NewPin};

use super::{
    ContentReply, ControlLine, ControlMessage, ControlReply, ControlRequest, LINE_MAX, MemoryCache,
    MemoryCaches, PROGRESS_EVERY, SOCKET, SeenState, UnpublishedSnapshot, join_shown, send_json_line, socket,
};
use crate::error::{CliError, Result};
use crate::mounting::MountingError;
use crate::mounting::end::{ShutdownSignal, UnmountReport};
use crate::mounting::follow::FollowState;
use crate::mounting::log::MountLog;
use crate::mounting::policies::PolicyKeeper;
use crate::mounting::sharing::SharingServer;
use crate::mounting::trash::TrashFigures;
use crate::ui::json::error_code;

/// A change that is not in the store after so many seconds is a problem: three times as long as a mount on a service
/// waits before it publishes.
const UNPUBLISHED_SECONDS_MAX: i64 = 15 * 60;

/// Most snapshots that wait to be published of which an answer says what they are called: some 200 bytes each.
const UNPUBLISHED_MAX: usize = 1000;
/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
    /// Which content is kept here, and which is not fetched.
    pub policies: Arc<PolicyKeeper>,
    /// What serves the worktree to other machines, if this process does.
    pub sharing: Arc<SharingServer>,
}

/// Answers those who connect to the control socket.
pub trait ControlHandler: Send + Sync + 'static {
    /// Reads a request, and answers it.
    fn handle_connection(&self, stream: &UnixStream);
}

/// Listens until the process ends; gives the socket's path.
pub fn listen_for_control(dir: &Path, service: Arc<impl ControlHandler>) -> Result<PathBuf> {
    listen_while_found(dir, move || Some(service.clone()))
}

/// Listens as long as somebody else keeps the service; gives the socket's path.
pub fn listen_while_kept(dir: &Path, service: &Arc<impl ControlHandler>) -> Result<PathBuf> {
    // Weak, because this thread would otherwise keep the service, and with it the worktree, after the term that it
    // belongs to.
    let service = Arc::downgrade(service);
    listen_while_found(dir, move || service.upgrade())
}

/// Ends what [`listen_while_kept`] has begun, after the service was dropped.
pub fn end_listening(dir: &Path) {
    let path = dir.join(SOCKET);
    // A connection wakes the thread that waits for one. If it is gone already, there is nothing to wake.
    let _ = socket::connect_to(&path);
    // What stays is replaced by the next process that listens there.
    let _ = std::fs::remove_file(path);
}

fn listen_while_found<H: ControlHandler>(
    dir: &Path,
    find_service: impl Fn() -> Option<Arc<H>> + Send + 'static,
) -> Result<PathBuf> {
    let path = dir.join(SOCKET);
    let failed = || CliError::io_error("listen on", path.display().to_string());
    // A second `bind` fails with EADDRINUSE as long as the name exists, even if nobody listens.
    // A daemon that was killed leaves its socket; the claim says that there is none now.
    std::fs::remove_file(&path).ignore_missing().map_err(failed())?;
    let listener = socket::listen_at(&path).map_err(failed())?;
    let serve = move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // Descriptors may be scarce; nobody is served by trying at once.
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            };
            let Some(service) = find_service() else { return };
            // Without a thread for it the caller sees the connection closed, and says so.
            let _ = std::thread::Builder::new()
                .name("control".into())
                .spawn(move || service.handle_connection(&stream));
        }
    };
    std::thread::Builder::new().name("control".into()).spawn(serve).map_err(failed())?;
    Ok(path)
}

impl ControlHandler for ControlService {
    fn handle_connection(&self, stream: &UnixStream) {
        let mut line = String::new();
        // A longer line is cut, and is no JSON then: the sender gets an error.
        let read = BufReader::new(stream.take(LINE_MAX)).read_line(&mut line);
        let message = read.ok().and_then(|_| serde_json::from_str::<ControlMessage>(&line).ok());
        let _command = message.as_ref().and_then(enter_command);
        let answer = match message.map(|message| message.request) {
            None => ControlLine::not_understood(),
            Some(ControlRequest::AwaitEnd) => {
                // Whoever asked may be gone.
                let begun = || drop(send_json_line(stream, &ControlLine::Done(Box::default())));
                return self.end.wait_for_report(begun, |report| send_unmount_reply(stream, report));
            }
            Some(ControlRequest::Discard) => {
                let begun = || self.end.request_discard();
                return self.end.wait_for_report(begun, |report| send_unmount_reply(stream, report));
            }
            Some(ControlRequest::PrepareEnd { skips_publishing }) => {
                return self.prepare_end(&self.end, skips_publishing, stream);
            }
            Some(request) => match self.handle_with_progress(&request, stream) {
                Ok(answer) => ControlLine::Done(Box::new(answer)),
                Err(error) => self.describe_failure(error),
            },
        };
        // Whoever asked may be gone.
        let _ = send_json_line(stream, &answer);
    }
}

impl ControlService {
    fn describe_failure(&self, error: OpenError) -> ControlLine {
        self.log.write_warning(&format!("a command failed: {error}"));
        let kind = error_code(error.kind()).into();
        let message = error.to_string();
        ControlLine::Failed { kind, message, hint: MountingError::from(error).hint() }
    }

    /// Answers a request that a client has forwarded, with one line and without its end.
    pub fn answer_forwarded(&self, line: &[u8]) -> Vec<u8> {
        let message = serde_json::from_slice::<ControlMessage>(line);
        let _command = message.as_ref().ok().and_then(enter_command);
        let answer = match message.map(|message| message.request) {
            // A client answers by itself what concerns its mount.
            // Also a request of a newer client, which this process does not know.
            Err(_)
            | Ok(
                ControlRequest::AwaitEnd
                | ControlRequest::Discard
                | ControlRequest::NoteDetached
                | ControlRequest::PrepareEnd { .. },
            ) => ControlLine::not_understood(),
            Ok(request) => match self.handle_request(&request, &Arc::default()) {
                Ok(answer) => ControlLine::Done(Box::new(answer)),
                Err(error) => self.describe_failure(error),
            },
        };
        answer.to_json()
    }

    /// Prepares the end of a mount for as long as the other side keeps the connection: a command that is killed leaves the
    /// mount as it was.
    pub fn prepare_end(&self, end: &ShutdownSignal, skips_publishing: bool, mut stream: &UnixStream) {
        let log = self.fs.write_log();
        let limit = log.usage().limit;
        end.set_skips_publishing(skips_publishing);
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
        end.set_skips_publishing(false);
    }

    /// Carries out a request, and tells from time to time how far it is. If whoever asked goes away, it ends.
    fn handle_with_progress(
        &self,
        request: &ControlRequest,
        stream: &UnixStream,
    ) -> Result<ControlReply, OpenError> {
        let meter = Arc::new(ProgressMeter::default());
        // Only these report progress, and end when nobody waits for them any more; all others are carried out whole.
        if !matches!(
            request,
            ControlRequest::Hydrate { .. }
                | ControlRequest::Evict { .. }
                | ControlRequest::SetHydrationPolicy { .. }
        ) {
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
    ) -> Result<ControlReply, OpenError> {
        let mut answer = ControlReply::default();
        // Clients of a shared worktree would otherwise answer from their caches what this request changes behind their
        // backs.
        let _change = changes_files(request).then(|| self.sharing.begin_change_of_all());
        match request {
            ControlRequest::Status => answer.changed = self.is_changed()?,
            // These are answered elsewhere.
            ControlRequest::AwaitEnd
            | ControlRequest::Discard
            // The mount of a client has a process of its own, or a socket of its own in this one.
            | ControlRequest::ClientMount
            | ControlRequest::PrepareEnd { .. } => {}
            ControlRequest::Unpublished => answer.unpublished = self.unpublished_snapshots()?,
            ControlRequest::NoteDetached => self.claim.record_stage(HolderStage::Detached)?,
            ControlRequest::Snapshot { note, tags, paths, exclusions } => {
                let request = LiveSnapshotRequest {
                    note: note.clone(),
                    tags: tags.clone(),
                    origin: SnapshotOrigin::User,
                };
                let choice = exclusion_choice(exclusions.as_ref());
                let made = match paths.is_empty() {
                    true => self.fs.create_snapshot_excluding(&request, &[], choice),
                    false => self.fs.snapshot_paths(&request, paths, choice),
                };
                answer.snapshot = Some(made?.to_string());
                // Asked for, and not waited for: the snapshot is durable on this machine, and an answer need not wait
                // for the store.
                self.publisher.request_publish();
            }
            ControlRequest::CurrentTree { exclusions } => {
                let choice = exclusion_choice(exclusions.as_ref());
                answer.exclusions = Some(self.fs.resolve_exclusions(choice)?);
                answer.root = Some(self.fs.publish_visible_tree(choice)?.0.to_string());
            }
            ControlRequest::CheckRestorable { target, paths } => {
                self.fs.check_restorable(parse_snapshot_id(target)?, paths)?;
            }
            ControlRequest::MergeSnapshot { note, parents } => {
                let parents: Vec<_> =
                    parents.iter().map(|id| parse_snapshot_id(id)).collect::<Result<_, _>>()?;
                let origin = if parents.is_empty() { SnapshotOrigin::Safety } else { SnapshotOrigin::User };
                let request = LiveSnapshotRequest { note: note.clone(), tags: Vec::new(), origin };
                // A merge goes on leaving out what was left out.
                let made = self.fs.create_snapshot_excluding(&request, &parents, ExclusionChoice::Kept)?;
                answer.snapshot = Some(made.to_string());
                self.publisher.request_publish();
            }
            ControlRequest::Fork { name } => live::fork_live_worktree(&self.fs, name)?,
            ControlRequest::Clients => {
                answer.clients = self.sharing.list_clients();
                answer.server = self.sharing.describe_server();
            }
            ControlRequest::HandOver { session } => {
                // While clients still work: the rest is little then.
                self.fs.publisher().publish_all()?;
                // From then on the server may be gone.
                let clients = self.sharing.list_clients();
                if self.sharing.hand_over_to(session) {
                    answer.clients = clients;
                }
            }
            ControlRequest::EvictClient { session } => {
                let id = session.parse().ok();
                let is_evicted = id.is_some_and(|id| self.sharing.evict_client(id));
                answer.clients = is_evicted.then(|| self.sharing.list_clients()).flatten();
            }
            ControlRequest::Flush => self.fs.publisher().publish_all()?,
            ControlRequest::Quota { bytes, inodes } => {
                self.fs.attributes().set_worktree_quota(WorktreeQuota { bytes: *bytes, inodes: *inodes })?;
            }
            ControlRequest::SetMemory { content, inodes, clears } => {
                answer.memory = Some(self.set_memory(*content, *inodes, *clears));
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
            ControlRequest::SetHydrationPolicy { path, policy } => {
                answer.content = Some(self.policies.set_policy(path, *policy, meter)?);
            }
            ControlRequest::HydrationPolicies => answer.policies = Some(self.policies.list_policies()),
            ControlRequest::Evict { paths, open } => {
                // Only nodes of the present epoch count: the same inode number can be another file in an earlier state
                // or in a snapshot.
                let inode = |node: &u64| match NodePlace::from_node(*node) {
                    NodePlace::Main(epoch, ino) if epoch == self.fs.epochs().current_epoch() => Some(ino),
                    NodePlace::Main(..) | NodePlace::Snapshot(..) | NodePlace::Virtual(_) => None,
                };
                let open = open.iter().filter_map(inode).collect();
                answer.content = Some(ContentReply::for_eviction(self.fs.evict_paths(paths, open, meter)?));
            }
            ControlRequest::RestorePaths { target, paths, discard, expected } => {
                let target = parse_snapshot_id(target)?;
                let restored = match expected {
                    None => self.fs.restore_paths(target, paths, *discard),
                    Some(seen) => {
                        let expected = parse_seen_state(seen)?;
                        self.fs.restore_expected_paths(target, paths, *discard, &expected)
                    }
                }?;
                self.invalidate_names(restored.replaced);
                answer.snapshot = restored.saved.map(|id| id.to_string());
                self.publisher.request_publish();
            }
            ControlRequest::Restore { target, discard, expected } => {
                let target = parse_snapshot_id(target)?;
                let expected = expected.as_ref().map(parse_seen_state).transpose()?;
                let saved = self.replace_worktree(|| match &expected {
                    None => self.fs.restore_snapshot(target, *discard),
                    Some(expected) => self.fs.restore_expected_state(target, *discard, expected),
                })?;
                answer.snapshot = saved.map(|id| id.to_string());
                self.publisher.request_publish();
            }
            ControlRequest::MoveHead { from, target } => {
                let parse = |id: &Option<String>| id.as_deref().map(parse_snapshot_id).transpose();
                self.fs.move_to_snapshot(parse(from)?, parse(target)?)?;
            }
            ControlRequest::Revert { reverted, request } => {
                let purpose = ChangePurpose { command: current_command(), reverted: reverted.into() };
                return self.fs.change_for(purpose, || self.handle_request(request, meter));
            }
        }
        Ok(self.add_worktree_status(answer)?)
    }

    fn set_memory(&self, content: Option<u64>, inodes: Option<u64>, clears: bool) -> MemoryCaches {
        let chunks = self.fs.content().chunk_cache();
        let cache = self.fs.live_map().inode_cache();
        if let Some(bytes) = content {
            chunks.set_capacity(bytes);
        }
        if let Some(bytes) = inodes {
            cache.set_capacity(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
        if clears {
            chunks.clear_all();
            cache.clear_all();
        }
        let content = chunks.statistics();
        let inodes = cache.statistics();
        MemoryCaches {
            content: MemoryCache { bytes: content.bytes, limit: content.capacity },
            inodes: MemoryCache { bytes: inodes.bytes, limit: inodes.capacity },
        }
    }

    /// Lets the kernel forget what it knows of names that stand for something else now.
    fn invalidate_names(&self, names: Vec<ReplacedName>) {
        self.policies.shared_policies().forget_nodes();
        let Some(forgetter) = self.forgetter.get() else { return };
        for ReplacedName { dir, name } in names {
            forgetter.invalidate_name(self.fs.epochs().current_epoch(), dir, &name);
        }
    }

    /// Moves the worktree from a snapshot to one that descends from it, if nothing was changed since.
    pub fn advance_snapshot(&self, target: SnapshotId, from: SnapshotId) -> Result<(), FsError> {
        let _change = self.sharing.begin_change_of_all();
        self.replace_worktree(|| self.fs.advance_snapshot(target, from))
    }

    /// Lets the kernel forget what it knows of the worktree, which `replace` replaces.
    fn replace_worktree<T>(&self, replace: impl FnOnce() -> Result<T, FsError>) -> Result<T, FsError> {
        let wanted = self.forgetter.get().is_some_and(|forgetter| forgetter.needs_root_names());
        let names = || match wanted {
            true => self
                .fs
                .list_entries(Ino::ROOT)
                .map(|entries| entries.into_iter().map(|entry| entry.name).collect()),
            // Kernels that can forget everything below the root at once need no names, and a large root is not listed
            // for nothing.
            false => Ok(Vec::new()),
        };
        // Names that are gone after the restore are cached as present, and names that come with it may be cached as
        // absent: the kernel has to drop both.
        let before = names()?;
        let replaced = replace()?;
        self.policies.shared_policies().forget_nodes();
        if let Some(forgetter) = self.forgetter.get() {
            forgetter.invalidate_worktree(before.into_iter().chain(names()?));
        }
        Ok(replaced)
    }

    fn unpublished_snapshots(&self) -> Result<Option<Vec<UnpublishedSnapshot>>, FsError> {
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

    /// What is wrong with the mount, a sentence each; nothing if all is well.
    pub fn list_problems(&self) -> Vec<String> {
        let usage = self.fs.write_log().usage();
        let fill =
            (usage.percent() >= NEARLY_FULL).then(|| format!("the write log is {} % full", usage.percent()));
        let publishing = self.publisher.last_failure().map(|failure| format!("publishing fails: {failure}"));
        // Also tells of a store that does not answer: an upload is repeated for long before it fails.
        let oldest = match self.fs.publisher().unpublished_since() {
            Ok(since) => since.map(|since| Timestamp::now().as_second().saturating_sub(since.secs)),
            Err(error) => return vec![error.to_string()],
        };
        let unpublished = oldest
            .filter(|seconds| *seconds > UNPUBLISHED_SECONDS_MAX)
            .map(|seconds| format!("a change of {} minutes ago is not in the store", seconds / 60));
        let following = self.follow.as_ref().and_then(FollowState::problem);
        let cache = self.fs.volume().blobs.local_copies().and_then(|copies| copies.pack_cache());
        let disk = cache
            .is_some_and(PackCache::is_bypassed)
            .then(|| "the disk of the cache does not answer: everything is fetched from the store".into());
        [publishing, unpublished, fill, following, self.policies.problem(), disk]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Whether anything changed since the last snapshot. While the store cannot be asked, what that left out counts, too.
    fn is_changed(&self) -> Result<bool, FsError> {
        match self.fs.is_changed() {
            Err(error) if error.kind() == ErrorKind::Io => self.fs.differs_from_snapshot(),
            done => done,
        }
    }

    fn add_worktree_status(&self, answer: ControlReply) -> Result<ControlReply, FsError> {
        let unpublished = self.fs.unpublished_changes()?;
        // A copy, because the lock must not be held while the rest is collected.
        let head = self.fs.live_map().lock_head().clone();
        let used = self.fs.live_map().worktree_usage().used_amount();
        Ok(ControlReply {
            root: answer.root.or_else(|| Some(head.state.base.0.to_string())),
            head: head.snapshot.map(|last| last.id.to_string()),
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
/// Answers those who wait for the end of the mount.
pub fn send_unmount_reply(stream: &UnixStream, report: &UnmountReport) {
    let UnmountReport { failure, is_fenced, snapshots, log_bytes } = report.clone();
    let answer =
        ControlReply { failure, fenced: is_fenced, waiting: snapshots, log_bytes, ..ControlReply::default() };
    // Whoever asked may be gone.
    let _ = send_json_line(stream, &ControlLine::Done(Box::new(answer)));
}

/// Whether a command changes what programs see of files.
fn changes_files(request: &ControlRequest) -> bool {
    // No wildcard arm: a new request that changes files must not leave clients with what they have cached.
    match request {
        ControlRequest::Trash { .. }
        | ControlRequest::Hydrate { .. }
        | ControlRequest::SetHydrationPolicy { .. }
        | ControlRequest::Evict { .. }
        | ControlRequest::RestorePaths { .. }
        | ControlRequest::Restore { .. }
        | ControlRequest::MoveHead { .. }
        | ControlRequest::Revert { .. } => true,
        ControlRequest::Status
        | ControlRequest::AwaitEnd
        | ControlRequest::Discard
        | ControlRequest::PrepareEnd { .. }
        | ControlRequest::Unpublished
        | ControlRequest::NoteDetached
        | ControlRequest::Snapshot { .. }
        | ControlRequest::CurrentTree { .. }
        | ControlRequest::CheckRestorable { .. }
        | ControlRequest::MergeSnapshot { .. }
        | ControlRequest::Fork { .. }
        | ControlRequest::Clients
        | ControlRequest::ClientMount
        | ControlRequest::EvictClient { .. }
        | ControlRequest::HandOver { .. }
        | ControlRequest::Flush
        | ControlRequest::Quota { .. }
        | ControlRequest::SetMemory { .. }
        | ControlRequest::Settle
        | ControlRequest::HydrationPolicies => false,
    }
}

/// Lets this thread work for the command that sent a message.
fn enter_command(message: &ControlMessage) -> Option<CommandScope> {
    let ControlMessage { words, run, .. } = message;
    let command = RecordedCommand { words: words.clone(), id: run.map(CommandId) };
    (!words.is_empty()).then(|| CommandScope::enter_run(command))
}

fn exclusion_choice(exclusions: Option<&SnapshotExclusions>) -> ExclusionChoice<'_> {
    exclusions.map_or(ExclusionChoice::Kept, ExclusionChoice::Given)
}

fn parse_snapshot_id(text: &str) -> Result<SnapshotId, FsError> {
    text.parse().map_err(|_| FsError::Posix(rustix::io::Errno::INVAL))
}

fn parse_seen_state(seen: &SeenState) -> Result<ExpectedState, FsError> {
    let root: BlobId = seen.root.parse().map_err(|_| FsError::Posix(rustix::io::Errno::INVAL))?;
    Ok(ExpectedState { root: MapRoot(root), paths: seen.paths.clone() })
}
