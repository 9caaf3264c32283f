//! Carries out the kernel's requests: each is counted, answered, and, if something below fails, reported.
//!
//! `dispatch` has the one match over all operations. Each operation is answered by a method `answer_…` of
//! [`FuseAdapter`], in the module that owns the subject.
//!
//! Invariant: because of the lease, only the kernel changes the mounted state, so it may cache names and attributes
//! without limit; of a shared worktree answers let it cache nothing ([`MountPosture`]). A thread that answers requests never tells the
//! kernel what to drop from its caches: the kernel may have to wait for an answer of the same thread before it can do so.
//! Other threads tell it.

mod attributes;
mod cached_nodes;
mod content;
mod content_readers;
pub(crate) mod convert;
mod dispatch;
mod entry;
pub(crate) mod invalidation;
mod listing;
mod listing_cache;
mod locking;
mod lookup;
mod names;
mod opening;
mod orphans;
mod path_policies;
mod paths;
mod removed;
mod seeking;
mod xattr;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use vellum_fs::{Epoch, EpochGuard, FsError, LiveFilesystem, LiveView, RequestCaller, Result, StateReader};
use vellum_host::error_chain::format_error_chain;
use vellum_host::escape::format_path;
use vellum_types::{FileKind, Ino, InodeAttr};
use vellum_volume::FsTree;

use crate::followed::FollowedTree;
use crate::locks::FileLocks;
use crate::metrics::line::LineDetail;
use crate::metrics::{RequestMetrics, ServedRequest};
use crate::node::NodePlace;
use crate::posture::MountPosture;
use crate::transport::DeferredReply;
use crate::virt::VirtualDir;
use crate::wire::{EntryAnswer, FuseAnswer, FuseOperation, OpenFileAnswer, RequestHeader, SmallAnswer};
use cached_nodes::KernelCachedNodes;
pub(crate) use content_readers::ContentReaders;
use invalidation::KernelCacheTracker;
use listing_cache::DirListings;
use orphans::OrphanRemover;
pub use path_policies::PathPolicies;
use removed::RemovedDirNodes;
pub(crate) use seeking::KernelChannel;
use seeking::{SeekWorker, StaleCache};

/// How long the kernel may cache names and attributes of the mounted state and of snapshots: practically without limit.
const LONG_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Called with a message about a failure beneath the filesystem, for the mount's log.
pub type FailureObserver = dyn Fn(&str) + Send + Sync;

/// The state that is mounted.
pub enum MountedState {
    /// A live worktree.
    Live(Arc<LiveFilesystem>),
    /// A snapshot.
    Frozen(Arc<FsTree>),
    /// What another machine publishes.
    Followed(Arc<FollowedTree>),
}

/// Answers the requests of one mount.
pub struct FuseAdapter {
    main: MountedState,
    virt: VirtualDir,
    metrics: Arc<RequestMetrics>,
    listings: DirListings,
    cache_tracker: Arc<KernelCacheTracker>,
    removed_dirs: RemovedDirNodes,
    /// Files of which the kernel may have cached pages.
    cached_files: KernelCachedNodes,
    seek_worker: SeekWorker,
    report: Arc<FailureObserver>,
    /// None if a snapshot is mounted.
    orphans: Option<OrphanRemover>,
    /// None if the store is on this machine.
    readers: Option<ContentReaders>,
    policies: Arc<PathPolicies>,
    posture: MountPosture,
    /// None: whoever locks files uses the same kernel, which keeps their locks.
    locks: Option<Arc<dyn FileLocks>>,
    /// The number of the file that was opened last.
    opened: AtomicU64,
}

/// What an inode belongs to.
enum InodeOwner<'a> {
    /// The current state of the live worktree.
    Live(&'a Arc<LiveFilesystem>, Ino),
    /// A state of the live worktree that a restore has replaced: the inode is a file that is still open.
    Past(LiveView, Ino),
    /// A snapshot.
    Frozen(Arc<FsTree>, Ino),
    /// The virtual directory.
    Virtual(u64),
    /// A directory that was removed while a process has it open or as its working directory.
    // Boxed, or every owner would take the room of attributes.
    Removed(Box<InodeAttr>),
}

impl FuseAdapter {
    /// Starts the threads that work beside those that answer. `kernel` is set when the mount exists.
    pub(crate) fn start(
        main: MountedState,
        virt: VirtualDir,
        metrics: Arc<RequestMetrics>,
        report: Arc<FailureObserver>,
        kernel: KernelChannel,
    ) -> io::Result<Self> {
        let orphans = match &main {
            MountedState::Live(fs) => Some(OrphanRemover::start(fs.clone(), report.clone())?),
            MountedState::Frozen(_) | MountedState::Followed(_) => None,
        };
        Ok(Self {
            main,
            virt,
            metrics,
            listings: DirListings::default(),
            cache_tracker: Arc::default(),
            removed_dirs: RemovedDirNodes::default(),
            cached_files: KernelCachedNodes::default(),
            seek_worker: SeekWorker::start(kernel)?,
            report,
            orphans,
            readers: None,
            policies: Arc::default(),
            posture: MountPosture::default(),
            locks: None,
            // A kernel may have files open that were opened before this process began: they need other numbers.
            opened: AtomicU64::new(RandomState::new().hash_one(0)),
        })
    }

    /// Lets the kernel cache what suits this posture; by default, what suits an exclusive mount. `locks`: where programs
    /// lock files, if not in their kernel.
    pub(crate) fn with_posture(self, posture: MountPosture, locks: Option<Arc<dyn FileLocks>>) -> Self {
        let listings = match posture {
            MountPosture::Exclusive => self.listings,
            MountPosture::Shared | MountPosture::Followed => DirListings::of_several_processes(),
        };
        Self { posture, locks, listings, ..self }
    }

    /// How a file is opened that was just created or is about to be.
    fn open_file(&self) -> OpenFileAnswer {
        let handle = self.opened.fetch_add(1, Ordering::Relaxed);
        OpenFileAnswer { handle, flags: self.posture.open_file_flags() }
    }

    /// Looks at who reads, and what, since it may have to be fetched.
    pub(crate) fn with_content_readers(self, readers: ContentReaders, policies: Arc<PathPolicies>) -> Self {
        Self { readers: Some(readers), policies, ..self }
    }

    /// What the kernel may have cached, for the [`invalidation::CacheInvalidator`] of the mount.
    pub(crate) fn cache_tracker(&self) -> Arc<KernelCacheTracker> {
        self.cache_tracker.clone()
    }

    /// Carries out a request: counts it, logs it, and reports unexpected failures.
    fn serve_request<T: LineDetail>(
        &self,
        request: ServedRequest<'_>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T, Errno> {
        // A read may wait for a distant store, and a restore must not wait for that. So reads do not hold the epoch;
        // `read_node` checks instead whether it has changed meanwhile.
        let is_read = matches!(request.operation, FuseOperation::Read { .. });
        let _entered = if is_read { None } else { self.enter_epoch() };
        self.metrics.observe_request(request, work).map_err(|error| self.report_error(request, &error))
    }

    /// Carries out a request whose answer has a fixed size.
    fn answer_small<T: LineDetail>(
        &self,
        request: ServedRequest<'_>,
        work: impl FnOnce() -> Result<T>,
        encode: impl FnOnce(&T) -> SmallAnswer,
    ) -> FuseAnswer {
        FuseAnswer::from_result(self.serve_request(request, work), encode)
    }

    /// Carries out a request whose answer is only whether it succeeded.
    fn answer_unit(&self, request: ServedRequest<'_>, work: impl FnOnce() -> Result<()>) -> FuseAnswer {
        FuseAnswer::from_unit_result(self.serve_request(request, work))
    }

    /// Sends `answer` after the kernel has dropped `stale` from its caches. Failures, and answers after which nothing
    /// is stale, are returned at once.
    fn answer_after_invalidation(
        &self,
        answer: FuseAnswer,
        stale: Option<StaleCache>,
        later: DeferredReply<'_>,
    ) -> FuseAnswer {
        let is_needed = self.posture.has_kernel_caches() && !matches!(answer, FuseAnswer::Failed(_));
        let Some(stale) = stale.filter(|_| is_needed) else { return answer };
        // Taken before it is handed over: should the other thread be gone, dropping it answers with `EIO`, and no
        // process waits for ever.
        let pending = later.into_pending();
        self.seek_worker.enqueue_invalidation(stale, move || pending.send_answer(answer));
        FuseAnswer::Later
    }

    /// Keeps the worktree in its current epoch until the guard is dropped.
    fn enter_epoch(&self) -> Option<EpochGuard<'_>> {
        // A request of one epoch must not be answered from the next: a restore waits until all requests that entered have
        // left.
        match &self.main {
            MountedState::Live(fs) => Some(fs.epochs().enter_epoch()),
            MountedState::Frozen(_) | MountedState::Followed(_) => None,
        }
    }

    fn report_error(&self, request: ServedRequest<'_>, error: &FsError) -> Errno {
        // The loss of the lease is reported once, by the thread that discovers it.
        if error.is_fetch_refused() {
            self.report_refused_fetch(request);
        } else if !matches!(error, FsError::Posix(_)) && !error.is_fenced_error() {
            (self.report)(&format!(
                "{}: {}",
                self.describe_node(request.head.node),
                format_error_chain(error)
            ));
        }
        error.errno()
    }

    /// Once for each program and for each path with a policy, since a program may ask for every file there is.
    fn report_refused_fetch(&self, request: ServedRequest<'_>) {
        let readers = self.readers.as_ref();
        if let Some(name) = readers.and_then(|readers| readers.note_refusal(request.head.pid)) {
            (self.report)(&format!(
                "{} reads only content that is on this machine, because of --deny-hydrate",
                format_path(name.as_bytes())
            ));
        }
        let path = self.find_live_path(request.head.node);
        if let Some(path) = path.and_then(|path| self.policies.note_refusal(&path)) {
            let shown = if path.is_empty() { ".".into() } else { format_path(&path) };
            (self.report)(&format!(
                "content of '{shown}' that is not on this machine is not fetched, because of its hydration policy 'never'"
            ));
        }
    }

    fn inode_owner(&self, node: u64) -> Result<InodeOwner<'_>> {
        // Asked first: a removed directory's number is still one of the mounted state, which does not have it any
        // more.
        if let Some(attr) = self.removed_dirs.dir_attr(node) {
            return Ok(InodeOwner::Removed(Box::new(attr)));
        }
        Ok(match NodePlace::from_node(node) {
            NodePlace::Main(epoch, ino) => match &self.main {
                // The root has one number in all epochs: the kernel never looks it up again.
                MountedState::Live(fs) if ino == Ino::ROOT || epoch == fs.epochs().current_epoch() => {
                    InodeOwner::Live(fs, ino)
                }
                MountedState::Live(fs) => past_inode_owner(fs, epoch, ino)?,
                MountedState::Frozen(tree) => InodeOwner::Frozen(tree.clone(), ino),
                MountedState::Followed(followed) => InodeOwner::Frozen(followed.tree_with_inode(ino)?, ino),
            },
            NodePlace::Snapshot(slot, ino) => InodeOwner::Frozen(self.virt.snapshot_tree(slot)?, ino),
            NodePlace::Virtual(number) => InodeOwner::Virtual(number),
        })
    }

    /// Whether a node belongs to a state that a restore has replaced.
    fn is_past_node(&self, node: u64) -> bool {
        match (&self.main, NodePlace::from_node(node)) {
            (MountedState::Live(fs), NodePlace::Main(epoch, ino)) => {
                ino != Ino::ROOT && epoch != fs.epochs().current_epoch()
            }
            (MountedState::Live(_), NodePlace::Snapshot(..) | NodePlace::Virtual(_))
            | (MountedState::Frozen(_) | MountedState::Followed(_), _) => false,
        }
    }

    /// How long the kernel may cache the name and attributes of a node: not at all if the node changes without the
    /// kernel.
    fn cache_timeout(&self, node: u64) -> Duration {
        let changes = match NodePlace::from_node(node) {
            NodePlace::Virtual(number) => self.virt.has_changing_entries(number),
            NodePlace::Main(..) | NodePlace::Snapshot(..) => self.is_past_node(node),
        };
        if changes { Duration::ZERO } else { LONG_TIMEOUT }
    }

    /// The entry, with the time for which this mount's kernel may cache it.
    fn limit_timeout(&self, entry: &EntryAnswer) -> EntryAnswer {
        EntryAnswer { timeout: self.posture.limit_timeout(entry.timeout), ..*entry }
    }

    /// Answers a request with the entry of a node.
    fn answer_entry(
        &self,
        call: ServedRequest<'_>,
        work: impl FnOnce() -> Result<EntryAnswer>,
        encode: impl FnOnce(&EntryAnswer) -> SmallAnswer,
    ) -> FuseAnswer {
        self.answer_small(call, work, |entry| encode(&self.limit_timeout(entry)))
    }

    /// The live worktree and the inode of `node` in it, for a change. Fails if `node` is not in the current state.
    fn live_inode(&self, node: u64) -> Result<(&Arc<LiveFilesystem>, Ino)> {
        match self.inode_owner(node)? {
            InodeOwner::Live(fs, ino) => Ok((fs, ino)),
            InodeOwner::Past(..) => Err(Errno::STALE.into()),
            // POSIX: nothing can be created in a removed directory.
            InodeOwner::Removed(_) => Err(Errno::NOENT.into()),
            InodeOwner::Frozen(..) | InodeOwner::Virtual(_) => Err(Errno::ROFS.into()),
        }
    }
}

/// The owner of an inode of an earlier epoch. An open file keeps its old content; an open directory, or the working
/// directory of a process, shows the current state.
fn past_inode_owner(fs: &Arc<LiveFilesystem>, epoch: Epoch, ino: Ino) -> Result<InodeOwner<'_>> {
    let view = fs.open_past_view(epoch).and_then(|view| Ok((view.inode_attr(ino)?.kind, view)));
    match view {
        // Of a past state only files that are open are kept. A directory of it is answered from the current state,
        // where it may still exist.
        Ok((kind, view)) if kind != FileKind::Dir => return Ok(InodeOwner::Past(view, ino)),
        Err(error) if error.errno() != Errno::STALE => return Err(error),
        // A past state is dropped when no file of it is open any more; the kernel may still know its directories.
        Ok(_) | Err(_) => {}
    }
    // If the current state has a directory with this number, it is the same one.
    if fs.inode_attr(ino)?.kind == FileKind::Dir {
        Ok(InodeOwner::Live(fs, ino))
    } else {
        Err(Errno::STALE.into())
    }
}

fn request_caller(header: &RequestHeader, umask: u32) -> RequestCaller {
    RequestCaller { uid: header.uid, gid: header.gid, umask }
}
