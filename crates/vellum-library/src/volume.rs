//! Volumes: making, opening, and what they hold.

use std::path::Path;
use std::sync::Arc;

use vellum_fs::frozen::{FrozenChunks, FrozenTree};
use vellum_fs::publisher::BackgroundPublisher;
use vellum_types::SnapshotId;
use vellum_volume::lease::LeaseKeeper;
use vellum_volume::volume::NewWorktree;
use vellum_volume::{StateDir, VolumeError};

use crate::error::{Error, Result};
use crate::live::{self, LiveLimits, LiveStateClaim};
use crate::paths::PathReader;
use crate::snapshot::{Snapshot, SnapshotInfo};
use crate::source::{LeaseRelease, OpenLiveWorktree, ReadSource};
use crate::worktree::Worktree;

/// The worktree that the volume's directory itself is: files that are checked out there by the command line.
const OWN_WORKTREE: &str = "main";

/// An open volume. It can be cloned, and shared among threads.
#[derive(Clone)]
pub struct Volume {
    inner: Arc<vellum_volume::Volume>,
    /// Content of snapshots that are read.
    chunks: Arc<FrozenChunks>,
}

/// How a volume is made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumeOptions {
    /// Path or URL of the store; None: it is in the directory itself.
    pub store: Option<String>,
    /// It is not encrypted: who can read the store can read everything.
    pub plain: bool,
}

/// A volume that was made.
pub struct CreatedVolume {
    /// The volume, open.
    pub volume: Volume,
    /// What opens it when all else is lost; not to be had again. None for plain volumes.
    pub recovery_code: Option<String>,
}

impl Volume {
    /// Makes an encrypted volume in a directory, which is made if it is missing. The key is kept there.
    pub fn create(dir: impl AsRef<Path>) -> Result<CreatedVolume> {
        Self::create_with(dir, &VolumeOptions::default())
    }

    /// The same in another way. A store that holds a volume already is refused.
    pub fn create_with(dir: impl AsRef<Path>, new: &VolumeOptions) -> Result<CreatedVolume> {
        let dir = std::path::absolute(dir.as_ref()).map_err(VolumeError::wrap_local_error(dir.as_ref()))?;
        let state = StateDir::create(&dir)?;
        let new = NewWorktree { store: new.store.clone(), name: OWN_WORKTREE.into(), encrypted: !new.plain };
        let taken = || VolumeError::Exists { kind: "volume", name: new.store.clone().unwrap_or_default() };
        let made = vellum_volume::Volume::init_volume(&state, &new, || Err(taken()))?;
        let recovery_code = made.recovery.map(|code| code.to_text().to_string());
        Ok(CreatedVolume { volume: Self::from_inner(made.volume), recovery_code })
    }

    /// Opens the volume of a directory, or of one above it.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = std::path::absolute(dir.as_ref()).map_err(VolumeError::wrap_local_error(dir.as_ref()))?;
        Ok(Self::from_inner(vellum_volume::Volume::open(&StateDir::find_enclosing(&dir)?)?))
    }

    fn from_inner(volume: vellum_volume::Volume) -> Self {
        let inner = Arc::new(volume);
        Self { chunks: Arc::new(FrozenChunks::new(inner.clone())), inner }
    }

    /// What is beneath.
    #[must_use]
    pub fn inner_volume(&self) -> &Arc<vellum_volume::Volume> {
        &self.inner
    }

    /// The names of all worktrees, live and checked out.
    pub fn list_worktrees(&self) -> Result<Vec<String>> {
        Ok(self.inner.list_worktrees()?.into_iter().map(|(name, _)| name).collect())
    }

    /// Makes a live worktree and opens it. It holds what a snapshot does (an id, the beginning of one, a tag), or
    /// nothing. Nothing is copied.
    pub fn create_worktree(&self, name: &str, from: Option<&str>) -> Result<Worktree> {
        let from = from.map(|text| self.resolve_snapshot(text)).transpose()?;
        live::create_live_worktree(&self.inner, name, from)?;
        self.open_live_worktree(name, LiveLimits::default())
    }

    /// Opens a live worktree. One process at a time has it open; a mount is one.
    pub fn open_worktree(&self, name: &str) -> Result<Worktree> {
        self.open_worktree_with(name, LiveLimits::default())
    }

    /// The same with limits of one's own.
    pub fn open_worktree_with(&self, name: &str, limits: LiveLimits) -> Result<Worktree> {
        let missing = || VolumeError::NoSuchRef { kind: "worktree", name: name.into() };
        live::find_live_worktree(&self.inner, name)?.ok_or_else(missing)?;
        self.open_live_worktree(name, limits)
    }

    fn open_live_worktree(&self, name: &str, limits: LiveLimits) -> Result<Worktree> {
        let claim = LiveStateClaim::acquire(&self.inner, name, None)?;
        let live::OpenedLiveState { fs, tenure, .. } = claim.open_filesystem(&self.inner, limits)?;
        // Whoever changes it is told by the next change if the lease is lost.
        let leaving = LeaseRelease { fs: fs.clone(), tenure: tenure.clone() };
        let keeper = LeaseKeeper::start(tenure, |_| ()).map_err(Error::Thread)?;
        let publisher = BackgroundPublisher::start(fs.clone()).map_err(Error::Thread)?;
        Ok(Worktree::new(Arc::new(OpenLiveWorktree {
            _keeper: keeper,
            publisher,
            _leaving: leaving,
            fs,
            claim,
        })))
    }

    /// The snapshots in the store, of all worktrees, the oldest first. One that was made a moment ago may be on its
    /// way still: [`Worktree::list_snapshots`] tells of these, too.
    pub fn list_snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        let tags = self.inner.list_tags()?;
        let mut all = self.inner.catalog.load_all_records()?;
        all.sort_by_key(|(id, record)| (record.time, record.counter, *id));
        Ok(all.iter().map(|(id, record)| SnapshotInfo::from_published(*id, record, &tags)).collect())
    }

    /// Opens a snapshot that is in the store, beside whoever has the worktree open.
    pub fn open_snapshot(&self, text: &str) -> Result<Snapshot> {
        let id = self.resolve_snapshot(text)?;
        let record = self.inner.catalog.get_record(&id)?;
        let info = SnapshotInfo::from_published(id, &record, &self.inner.list_tags()?);
        let frozen = FrozenTree::new(self.inner.open_tree(record.root), self.chunks.clone());
        let source = ReadSource::Frozen(Arc::new(frozen));
        Ok(Snapshot::new(PathReader::new(source), info))
    }

    /// Names a snapshot.
    pub fn tag_snapshot(&self, name: &str, snapshot: SnapshotId) -> Result<()> {
        Ok(self.inner.add_tag(name, snapshot)?)
    }

    /// Forgets a snapshot, unless a worktree stands on it or a tag names it. What only it held is given back by a
    /// collection of garbage.
    pub fn forget_snapshot(&self, snapshot: SnapshotId) -> Result<()> {
        Ok(self.inner.forget_snapshot(&snapshot)?)
    }

    pub(crate) fn resolve_snapshot(&self, text: &str) -> Result<SnapshotId> {
        Ok(self.inner.resolve_snapshot(text)?.id)
    }
}
