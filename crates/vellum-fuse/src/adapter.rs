//! Carries out requests of the kernel: each is counted, answered and, if something below fails, reported.
//!
//! Because of the lease, only the kernel changes the mounted state, so it may cache names and attributes without
//! limit. Other threads tell it what to drop from its caches, never a thread that answers requests: it could wait for
//! itself.

mod modify;
mod paths;
mod reading;
pub(crate) mod removed;
mod requests;
pub mod seeking;
mod view;

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use vellum_fs::history::frozen::FrozenTree;
use vellum_fs::{Epoch, EpochGuard, FsError, LiveFilesystem, RequestCaller, Result};
use vellum_types::{FileKind, Ino, InodeAttr};

use crate::dirs::{DirListings, KernelCachedNodes};
use crate::forget::NegativeLookups;
use crate::node::NodePlace;
use crate::orphans::OrphanRemover;
use crate::tally::line::LineDetail;
use crate::tally::{RequestKind, RequestMetrics, ServedRequest};
use crate::virt::VirtualDir;
use crate::wire::{FuseOperation, RequestHeader};
use removed::RemovedDirNodes;
use seeking::SeekWorker;

/// How long the kernel may believe what it was told of the mounted state, and of snapshots: as long as it likes.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// Called with what went wrong beneath the filesystem, for the mount's log.
pub type FailureObserver = dyn Fn(&str) + Send + Sync;

/// The state that is mounted.
pub enum MountedState {
    /// A live worktree.
    Live(Arc<LiveFilesystem>),
    /// A snapshot.
    Frozen(Arc<FrozenTree>),
}

/// Answers the kernel.
pub struct FuseAdapter {
    pub(crate) main: MountedState,
    pub(crate) virt: VirtualDir,
    pub(crate) tally: Arc<RequestMetrics>,
    pub(crate) dirs: DirListings,
    pub(crate) remembered: Arc<KernelCachedNodes>,
    pub(crate) missed: Arc<NegativeLookups>,
    pub(crate) removed: RemovedDirNodes,
    /// Files of which the kernel may have pages.
    pub(crate) paged: KernelCachedNodes,
    pub(crate) seeking: SeekWorker,
    pub(crate) report: Arc<FailureObserver>,
    /// Of a live worktree.
    pub(crate) orphans: Option<OrphanRemover>,
}

/// A request as the kernel sent it.
#[derive(Debug, Clone, Copy)]
struct AdapterCall<'a> {
    head: &'a RequestHeader,
    what: &'a FuseOperation<'a>,
}

/// Whose an inode is.
enum InodeOwner<'a> {
    Live(&'a Arc<LiveFilesystem>, Ino),
    /// A file of a state that the worktree does not stand on any more.
    Past(&'a Arc<LiveFilesystem>, Epoch, Ino),
    Frozen(Arc<FrozenTree>, Ino),
    Virtual(u64),
    /// A directory that was removed while somebody has it.
    Removed(Box<InodeAttr>),
}

impl FuseAdapter {
    /// Carries out a request on a node: counts it, logs it, and reports what should not have happened.
    fn serve_request<T: LineDetail>(
        &self,
        op: RequestKind,
        call: AdapterCall<'_>,
        work: impl FnOnce() -> Result<T>,
    ) -> std::result::Result<T, Errno> {
        let request = ServedRequest { op, head: call.head, what: call.what };
        // A read may wait for a store that is far away: a restore does not wait for that.
        let _entered = if op == RequestKind::Read { None } else { self.enter_epoch() };
        self.tally.observe_request(request, work).map_err(|error| self.report_error(request, &error))
    }

    /// Keeps the worktree on the state that it stands on.
    fn enter_epoch(&self) -> Option<EpochGuard<'_>> {
        match &self.main {
            MountedState::Live(fs) => Some(fs.enter_epoch()),
            MountedState::Frozen(_) => None,
        }
    }

    fn report_error(&self, request: ServedRequest<'_>, error: &FsError) -> Errno {
        // That another took the worktree over is told once, by who finds out.
        if !matches!(error, FsError::Posix(_)) && !error.is_fenced_error() {
            (self.report)(&format!("{}: {}", self.describe_node(request.head.node), format_chain(error)));
        }
        error.errno()
    }

    fn inode_owner(&self, node: u64) -> Result<InodeOwner<'_>> {
        if let Some(attr) = self.removed.dir_attr(node) {
            return Ok(InodeOwner::Removed(Box::new(attr)));
        }
        Ok(match NodePlace::from_node(node) {
            NodePlace::Main(epoch, ino) => match &self.main {
                MountedState::Live(fs) if ino == Ino::ROOT || epoch == fs.current_epoch() => {
                    InodeOwner::Live(fs, ino)
                }
                MountedState::Live(fs) => past_inode_owner(fs, epoch, ino)?,
                MountedState::Frozen(tree) => InodeOwner::Frozen(tree.clone(), ino),
            },
            NodePlace::Snapshot(slot, ino) => InodeOwner::Frozen(self.virt.snapshot_tree(slot)?, ino),
            NodePlace::Virtual(number) => InodeOwner::Virtual(number),
        })
    }

    /// Whether a node is of a state that the worktree does not stand on any more.
    fn is_past_node(&self, node: u64) -> bool {
        match (&self.main, NodePlace::from_node(node)) {
            (MountedState::Live(fs), NodePlace::Main(epoch, ino)) => {
                ino != Ino::ROOT && epoch != fs.current_epoch()
            }
            _ => false,
        }
    }

    /// How long the kernel may believe what it is told of a node: not at all of what changes without its knowing.
    fn cache_timeout(&self, node: u64) -> Duration {
        let changes = match NodePlace::from_node(node) {
            NodePlace::Virtual(number) => self.virt.has_changing_entries(number),
            _ => self.is_past_node(node),
        };
        if changes { Duration::ZERO } else { LONG }
    }

    /// The live worktree, for changing this inode of it.
    fn live_inode(&self, node: u64) -> Result<(&Arc<LiveFilesystem>, Ino)> {
        match self.inode_owner(node)? {
            InodeOwner::Live(fs, ino) => Ok((fs, ino)),
            InodeOwner::Past(..) => Err(Errno::STALE.into()),
            // Nothing can be made in a directory that is removed.
            InodeOwner::Removed(_) => Err(Errno::NOENT.into()),
            InodeOwner::Frozen(..) | InodeOwner::Virtual(_) => Err(Errno::ROFS.into()),
        }
    }
}

/// Whose an inode of a past epoch is. Who has a file open sees what it was; who stands in a directory, what it is.
fn past_inode_owner(fs: &Arc<LiveFilesystem>, epoch: Epoch, ino: Ino) -> Result<InodeOwner<'_>> {
    match fs.past_inode_attr(epoch, ino) {
        Ok(attr) if attr.kind != FileKind::Dir => return Ok(InodeOwner::Past(fs, epoch, ino)),
        Err(error) if error.errno() != Errno::STALE => return Err(error),
        // Of a state that is gone nothing was known any more but directories.
        Ok(_) | Err(_) => {}
    }
    match fs.getattr(ino)?.attr.kind {
        FileKind::Dir => Ok(InodeOwner::Live(fs, ino)),
        _ => Err(Errno::STALE.into()),
    }
}

fn request_caller(header: &RequestHeader, umask: u32) -> RequestCaller {
    RequestCaller { uid: header.uid, gid: header.gid, umask }
}

pub(crate) fn format_chain(error: &FsError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}
