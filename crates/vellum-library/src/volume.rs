//! Volumes: creating and opening them, their worktrees, snapshots and tags.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use vellum_crypto::RecordDomain;
use vellum_fs::publish::publisher::BackgroundPublisher;
use vellum_host::ProgressMeter;
use vellum_store::StoreLocation;
use vellum_types::SnapshotId;
use vellum_volume::config::ChunkSizes;
use vellum_volume::gc::CollectionRequest;
use vellum_volume::history::list_history;
use vellum_volume::lease::LeaseKeeper;
use vellum_volume::volume::NewWorktree;
use vellum_volume::{StateDir, VolumeError};

use crate::error::{Error, Result};
use crate::live::{self, LiveLimits, LiveStateClaim, LogUse};
use crate::snapshot::{Snapshot, SnapshotInfo};
use crate::snapshot_hold::{TreeHold, hold_snapshot};
use crate::source::{LeaseRelease, OpenLiveWorktree};
use crate::worktree::Worktree;

/// The worktree of the volume's directory itself: files that the command line checked out there.
const OWN_WORKTREE: &str = "main";

/// An open volume. It can be cloned, and shared among threads.
#[derive(Clone)]
pub struct Volume {
    inner: Arc<vellum_volume::Volume>,
}

/// Options for creating a volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumeOptions {
    /// Path or URL of the store. `None`: the store is in the directory itself.
    pub store: Option<String>,
    /// The name of this user's credentials for the store, if it is in a service. `None`: those of the service's own
    /// programs (environment, profile, role of the machine).
    pub credentials: Option<String>,
    /// Create the volume without encryption: whoever can read the store can read everything.
    pub plain: bool,
    /// How long the chunks are into which content is cut, bytes on average, from 8 KiB to 1 MiB. It cannot be changed later.
    /// `None`: 64 KiB.
    pub chunk_size: Option<usize>,
}

/// A volume that was created.
pub struct CreatedVolume {
    /// The open volume.
    pub volume: Volume,
    /// The recovery code, which opens the volume if everything else is lost. It cannot be retrieved later. `None` for
    /// plain volumes.
    pub recovery_code: Option<String>,
}

/// What a collection did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectedGarbage {
    /// Bytes that the store takes less.
    pub freed_bytes: u64,
    /// Writers for which the next step waits: a collection deletes only what was superfluous before they began.
    pub waiting_writers: usize,
}

fn parse_chunk_size(target: usize) -> Result<ChunkSizes> {
    Ok(ChunkSizes::from_target(target).map_err(|_| {
        VolumeError::BadSetting(format!(
            "chunks of {target} bytes on average are not from 8 KiB to 1 MiB long"
        ))
    })?)
}

impl Volume {
    /// Creates an encrypted volume in a directory, which is created if it is missing. The key is stored there.
    pub fn create(dir: impl AsRef<Path>) -> Result<CreatedVolume> {
        Self::create_with(dir, &VolumeOptions::default())
    }

    /// Like [`Volume::create`], with options. Fails if the store already holds a volume.
    pub fn create_with(dir: impl AsRef<Path>, new: &VolumeOptions) -> Result<CreatedVolume> {
        let chunk_sizes = new.chunk_size.map(parse_chunk_size).transpose()?;
        let dir = std::path::absolute(dir.as_ref()).map_err(VolumeError::wrap_local_error(dir.as_ref()))?;
        let state = StateDir::create(&dir)?;
        let url = new.store.clone().unwrap_or_default();
        let taken = || VolumeError::Exists { kind: "volume", name: url };
        let locate = |url: &String| StoreLocation { url: url.clone(), credentials: new.credentials.clone() };
        let store = new.store.as_ref().map(locate);
        let new = NewWorktree {
            store,
            name: OWN_WORKTREE.into(),
            encrypted: !new.plain,
            is_in_device_line: false,
            chunk_sizes,
        };
        // Only an encrypted volume that is there already asks for a secret.
        let made = vellum_volume::Volume::init_volume(&state, &new, || Err(taken()))?;
        let recovery_code = made.recovery.map(|code| code.to_text().to_string());
        Ok(CreatedVolume { volume: Self::from_inner(made.volume), recovery_code })
    }

    /// Opens the volume of a directory, or of one of its parents.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = std::path::absolute(dir.as_ref()).map_err(VolumeError::wrap_local_error(dir.as_ref()))?;
        Ok(Self::from_inner(vellum_volume::Volume::open(&StateDir::find_enclosing(&dir)?)?))
    }

    pub(crate) fn from_inner(volume: vellum_volume::Volume) -> Self {
        let inner = Arc::new(volume);
        Self { inner }
    }

    /// Returns the state directory of the worktree at which it was opened, which only its user can read.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.inner.state.path().to_path_buf()
    }

    /// Returns the names of all worktrees, live and checked out.
    pub fn list_worktrees(&self) -> Result<Vec<String>> {
        Ok(self.inner.list_worktrees()?.into_iter().map(|(name, _)| name).collect())
    }

    /// Creates a live worktree and opens it. It starts with the content of a snapshot (given by its id, leading
    /// digits of it, or a tag), or empty. No content is copied.
    pub fn create_worktree(&self, name: &str, from: Option<&str>) -> Result<Worktree> {
        let from = from.map(|text| self.resolve_snapshot(text)).transpose()?;
        live::create_live_worktree(&self.inner, name, from)?;
        self.open_live_worktree(name, LiveLimits::default(), &LogUse::None)
    }

    /// Opens a live worktree. Only one process at a time, a mount or a program, can have it open.
    pub fn open_worktree(&self, name: &str) -> Result<Worktree> {
        self.open_worktree_with(name, LiveLimits::default())
    }

    /// Like [`Volume::open_worktree`], with the caller's limits.
    pub fn open_worktree_with(&self, name: &str, limits: LiveLimits) -> Result<Worktree> {
        let missing = || VolumeError::no_worktree(name);
        // Before the claim, which would make a directory for a worktree that does not exist.
        let head = live::find_live_worktree(&self.inner, name)?.ok_or_else(missing)?;
        self.open_live_worktree(name, limits, &LogUse::of_worktree(Some(&head)))
    }

    fn open_live_worktree(&self, name: &str, limits: LiveLimits, log: &LogUse) -> Result<Worktree> {
        // The claim before the lease: two processes of one machine are told apart by the lock at once, without
        // waiting for a lease to expire.
        let claim = LiveStateClaim::acquire(&self.inner, name, None)?;
        let live::OpenedLiveState { fs, tenure, shared_log, .. } =
            claim.open_filesystem(&self.inner, limits, log)?;
        // A lost lease is reported by the next change.
        // Made before the threads: if one cannot be started, dropping it releases the lease.
        let leaving = LeaseRelease { fs: fs.clone(), tenure: tenure.clone(), shared_log };
        let keeper = LeaseKeeper::start(tenure, |_| ()).map_err(Error::Thread)?;
        let publisher = BackgroundPublisher::start(fs.publisher().clone(), limits.longest_unpublished)
            .map_err(Error::Thread)?;
        Ok(Worktree::new(Arc::new(OpenLiveWorktree { _keeper: keeper, publisher, leaving, fs, claim })))
    }

    /// Lists the published snapshots of all worktrees, oldest first. A snapshot that was just made may not be
    /// published yet: [`Worktree::list_snapshots`] lists these, too.
    pub fn list_snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        let tags = self.inner.list_tags()?;
        let all = list_history(&self.inner.catalog)?;
        let oldest_first = all.iter().rev();
        Ok(oldest_first.map(|entry| SnapshotInfo::from_published(entry.id, &entry.record, &tags)).collect())
    }

    /// Opens a published snapshot, even while another process has the worktree open.
    pub fn open_snapshot(&self, text: &str) -> Result<Snapshot> {
        Snapshot::open_published(&self.inner, text)
    }

    /// Keeps the content of a published snapshot in the store until the result is dropped or this process ends, also if
    /// the snapshot is forgotten meanwhile. `vellum forget` names this process then, and asks for `--force`. `warn` is told
    /// of a store that cannot be written to, which keeps nothing. Fails if the snapshot was forgotten already.
    pub fn hold_snapshot(
        &self,
        snapshot: SnapshotId,
        warn: impl Fn(&str) + Send + 'static,
    ) -> Result<TreeHold> {
        hold_snapshot(&self.inner, snapshot, warn)
    }

    /// Adds a tag to a snapshot.
    pub fn tag_snapshot(&self, name: &str, snapshot: SnapshotId) -> Result<()> {
        Ok(self.inner.add_tag(name, snapshot)?)
    }

    /// Forgets a snapshot. Fails if it is the current snapshot of a worktree or has a tag. Garbage collection removes
    /// what only this snapshot held.
    pub fn forget_snapshot(&self, snapshot: SnapshotId) -> Result<()> {
        Ok(self.inner.forget_snapshot(&snapshot)?)
    }

    /// Deletes what no snapshot and no worktree needs, as `vellum gc run` does. Packs that were written lately, or that
    /// another writer may need, stay for a later collection. Fails if another process collects.
    pub fn collect_garbage(&self) -> Result<CollectedGarbage> {
        let request = CollectionRequest::default();
        let done = vellum_volume::gc::run_collection(&self.inner, &request, &ProgressMeter::default())?;
        Ok(CollectedGarbage { freed_bytes: done.freed, waiting_writers: done.writers.len() })
    }

    /// Returns a key for a purpose, the same wherever the volume is opened. Who cannot open the volume does not know it; that of
    /// a volume without encryption is no secret.
    #[must_use]
    pub fn derive_key(&self, purpose: &str) -> [u8; 32] {
        // Other things are hashed in the same domain: this beginning tells them apart.
        let text = format!("key for a purpose\0{purpose}");
        self.inner.keys.compute_record_id(RecordDomain::Local, text.as_bytes())
    }

    pub(crate) fn inner(&self) -> &vellum_volume::Volume {
        &self.inner
    }

    /// Returns the id of a published snapshot: by its id, leading digits of it, a tag, a worktree, `HEAD`, `latest` or a
    /// moment; each can be followed by `~N`.
    pub fn resolve_snapshot(&self, text: &str) -> Result<SnapshotId> {
        Ok(self.inner.resolve_snapshot(text)?.id)
    }
}
