//! The live state of a worktree, `live/<worktree>` in the state directory of the volume's directory: metadata, write
//! log, the lock of the one process that may change it.
//!
//! Invariant: whoever has a [`Claim`] is the only writer.

mod error;
mod holder;

use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};
use vellum_fs::head::{Ancestor, Head};
use vellum_fs::log::LogHooks;
use vellum_fs::{Fs, FsError, Options, WriteLog};
use vellum_live::Embedded;
use vellum_types::SnapshotId;
use vellum_volume::refs::WorktreeHead;
use vellum_volume::session::host_name;
use vellum_volume::state::STATE_DIR;
use vellum_volume::{Statistics, Volume, VolumeError};

pub use error::{OpenError, Result};
pub use holder::Holder;

const FOLDER: &str = "live";
const LOCK_FILE: &str = "lock";
const META_FOLDER: &str = "meta";
const LOG_FOLDER: &str = "log";

/// Bytes of the write log unless somebody says otherwise: hours of work for most, and a part of most disks.
const LOG_LIMIT: u64 = 16 << 30;

/// What can be chosen about a live worktree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of decoded content kept in memory.
    pub cache: Option<u64>,
    /// Bytes of the write log, above which writers wait for publishing.
    pub log: Option<u64>,
}

/// The right to change a live state; given back when dropped, also by a killed process.
#[derive(Debug)]
pub struct Claim {
    _lock: File,
    dir: PathBuf,
    worktree: String,
}

/// The state directory's folder for the live state of a worktree.
#[must_use]
pub fn folder(volume: &Volume, worktree: &str) -> PathBuf {
    volume.state.join(FOLDER).join(worktree)
}

/// The folder for the log of a process that serves a snapshot. No worktree has such a name.
#[must_use]
pub fn snapshot_folder(volume: &Volume, id: &SnapshotId) -> PathBuf {
    folder(volume, &format!("@{id}"))
}

/// Makes a folder of the state directory.
pub fn make(dir: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(OpenError::io("make", dir))
}

/// Finds the worktree of this name, which must be a live one of this state directory. `None`: there is none yet.
pub fn find(volume: &Volume, worktree: &str) -> Result<Option<WorktreeHead>> {
    let Some(head) = volume.worktree_head(worktree)? else { return Ok(None) };
    let here = folder(volume, worktree);
    if head.host == host_name() && Path::new(&head.place) == here {
        return Ok(Some(head));
    }
    let name = worktree.to_owned();
    let place = if head.host == host_name() { head.place } else { format!("{}:{}", head.host, head.place) };
    if Path::new(&place).parent().is_some_and(|above| above.ends_with(Path::new(STATE_DIR).join(FOLDER))) {
        return Err(OpenError::Elsewhere { name, place });
    }
    Err(OpenError::CheckedOut { name, place })
}

/// Makes a worktree that stands on a snapshot, to be opened live.
pub fn create(volume: &Volume, worktree: &str, from: Option<SnapshotId>) -> Result<WorktreeHead> {
    let place = folder(volume, worktree).display().to_string();
    volume.add_worktree(worktree, from, &place)?;
    let head = volume.worktree_head(worktree)?;
    head.ok_or_else(|| VolumeError::NoSuchRef { kind: "worktree", name: worktree.into() }.into())
}

impl Claim {
    /// Claims the live state of a worktree; `mountpoint` says where it is going to be mounted, if it is.
    pub fn take(volume: &Volume, worktree: &str, mountpoint: Option<&Path>) -> Result<Self> {
        let dir = folder(volume, worktree);
        make(&dir)?;
        let path = dir.join(LOCK_FILE);
        let mut options = File::options();
        let open = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut lock = open.map_err(OpenError::io("lock", &path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(OpenError::Held { name: worktree.into(), holder: Holder::read(&mut lock) });
            }
            Err(error) => return Err(OpenError::io("lock", &path)(error.into())),
        }
        Holder::this(mountpoint).write(&mut lock).map_err(OpenError::io("lock", &path))?;
        Ok(Self { _lock: lock, dir, worktree: worktree.into() })
    }

    /// The folder of the live state.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The worktree.
    #[must_use]
    pub fn worktree(&self) -> &str {
        &self.worktree
    }

    /// Opens the filesystem: as the last process left it, or as the snapshot that the worktree stands on.
    pub fn open(&self, volume: &Arc<Volume>, head: &WorktreeHead, limits: Limits) -> Result<Arc<Fs>> {
        let limit = limits.log.unwrap_or(LOG_LIMIT);
        let log = Arc::new(WriteLog::open(&self.dir.join(LOG_FOLDER), limit)?);
        let live =
            Embedded::open(&self.dir.join(META_FOLDER), LogHooks(log.clone())).map_err(FsError::from)?;
        let fresh = fresh(volume, head.head)?;
        let mut options = Options { worktree: Some(self.worktree.clone()), ..Options::default() };
        options.chunk_cache = limits.cache.unwrap_or(options.chunk_cache);
        Ok(Arc::new(Fs::open(volume.clone(), Arc::new(live), log, &fresh, options)?))
    }
}

/// What a worktree stands on that was not live before.
fn fresh(volume: &Volume, snapshot: Option<SnapshotId>) -> Result<Head> {
    let Some(id) = snapshot else {
        return Ok(Head::new(volume.empty_root(), Statistics::default(), None));
    };
    let record = volume.catalog.get(&id)?;
    let ancestor = Ancestor { id, counter: record.counter, time: record.time };
    let counted = Statistics { changed: 0, stored: 0, ..record.statistics };
    Ok(Head::new(record.root, counted, Some(ancestor)))
}
