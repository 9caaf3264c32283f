//! Sources that are read by inode: a live worktree, a view of it, a snapshot without a live worktree.

use std::sync::Arc;

use vellum_fs::publish::publisher::BackgroundPublisher;
use vellum_fs::{Epoch, FsError, LiveFilesystem, LiveView, StateReader};
use vellum_volume::FsTree;
use vellum_volume::lease::LeaseKeeper;

use vellum_fs::lease::has_unpublished_state;
use vellum_volume::lease::HeldLease;

use crate::live::{LiveStateClaim, OpenedSharedLog};

/// An open live worktree. Everything made from it keeps it open.
pub(crate) struct OpenLiveWorktree {
    /// Renews the lease.
    pub _keeper: LeaseKeeper,
    // Dropped before the lease is released: it ends the thread that publishes.
    pub publisher: BackgroundPublisher,
    pub leaving: LeaseRelease,
    pub fs: Arc<LiveFilesystem>,
    // Dropped last: no other process may write before everything is closed.
    pub claim: LiveStateClaim,
}

/// Releases the lease at the end, if everything is published: the worktree can then be opened elsewhere at once.
pub(crate) struct LeaseRelease {
    pub fs: Arc<LiveFilesystem>,
    pub tenure: Arc<HeldLease>,
    pub shared_log: Option<OpenedSharedLog>,
}

impl Drop for LeaseRelease {
    fn drop(&mut self) {
        // If what was written cannot be made durable now, the claim of the log ends by itself.
        let durable = self.shared_log.take().filter(|_| self.fs.content().sync_all().is_ok());
        // With changes that are only here the lease stays, so that another machine does not begin without them before
        // it has expired.
        if has_unpublished_state(&**self.fs.live_map().live_store()).is_ok_and(|has| !has) {
            // One that cannot be given up expires.
            let _ = self.tenure.release_lease();
        }
        // What is not published is in the log: others need not wait. A claim that cannot be given up ends by itself, too.
        let _ = durable.map(OpenedSharedLog::release_log);
    }
}

/// A view, and the worktree that it keeps open.
pub(crate) struct OpenedView {
    pub view: LiveView,
    // Dropped after the view.
    _live: Arc<OpenLiveWorktree>,
}

impl OpenedView {
    pub fn new(view: LiveView, live: &Arc<OpenLiveWorktree>) -> Arc<Self> {
        Arc::new(Self { view, _live: live.clone() })
    }
}

/// The source of a read.
#[derive(Clone)]
pub(crate) enum ReadSource {
    Live(Arc<OpenLiveWorktree>),
    View(Arc<OpenedView>),
    Frozen(Arc<FsTree>),
}

impl ReadSource {
    /// Returns the epoch of a live worktree; an immutable source has only one.
    pub fn current_epoch(&self) -> Epoch {
        match self {
            Self::Live(live) => live.fs.epochs().current_epoch(),
            Self::View(_) | Self::Frozen(_) => Epoch::default(),
        }
    }

    /// Returns what it is read with.
    pub fn state(&self) -> &dyn StateReader<FsError> {
        match self {
            Self::Live(live) => &*live.fs,
            Self::View(seen) => &seen.view,
            Self::Frozen(tree) => &**tree,
        }
    }
}
