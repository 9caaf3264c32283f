//! The live state of a mounted worktree, `live/<worktree>` in the state directory of the volume's directory: metadata,
//! write log, the lock of the one process that may change it.
//!
//! Invariant: whoever has a [`Claim`] is the only writer.

use std::fs::{DirBuilder, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use vellum_fs::head::{Ancestor, Head};
use vellum_fs::log::LogHooks;
use vellum_fs::{Fs, Options, WriteLog};
use vellum_live::Embedded;
use vellum_types::SnapshotId;
use vellum_volume::refs::WorktreeHead;
use vellum_volume::session::host_name;
use vellum_volume::{Statistics, Volume, VolumeError};

use super::MountingError;
use crate::error::{CliError, Result};

const FOLDER: &str = "live";
const LOCK_FILE: &str = "lock";
const META_FOLDER: &str = "meta";
const LOG_FOLDER: &str = "log";

/// What the holder of a live state says of itself, in its lock file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Holder {
    /// The process.
    pub pid: u32,
    /// Where it mounted the worktree.
    pub mountpoint: String,
}

/// What can be chosen about a live worktree.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// Bytes of decoded content kept in memory.
    pub cache: Option<u64>,
    /// Bytes of the write log, above which writers wait for publishing.
    pub log: Option<u64>,
}

/// Bytes of the write log unless somebody says otherwise: hours of work for most, and a part of most disks.
const LOG_LIMIT: u64 = 16 << 30;

/// The right to change a live state; given back when dropped, also by a killed process.
#[derive(Debug)]
pub struct Claim {
    _lock: File,
    dir: PathBuf,
    worktree: String,
}

/// The state directory's folder for the live state of a worktree.
pub fn folder(volume: &Volume, worktree: &str) -> PathBuf {
    volume.state.join(FOLDER).join(worktree)
}

/// The folder for the log of a process that serves a snapshot. No worktree has such a name.
pub fn snapshot_folder(volume: &Volume, id: &SnapshotId) -> PathBuf {
    folder(volume, &format!("@{id}"))
}

/// Makes a folder of the state directory.
pub fn make(dir: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(CliError::io("make", dir.display().to_string()))
}

/// Finds the worktree of this name, which must be a mounted one of this state directory. `None`: there is none yet.
pub fn find(volume: &Volume, worktree: &str) -> Result<Option<WorktreeHead>> {
    let Some(head) = volume.worktree_head(worktree)? else { return Ok(None) };
    let here = folder(volume, worktree);
    if head.host == host_name() && Path::new(&head.place) == here {
        return Ok(Some(head));
    }
    let name = worktree.to_owned();
    let place = if head.host == host_name() { head.place } else { format!("{}:{}", head.host, head.place) };
    if Path::new(&place).parent().is_some_and(|above| above.ends_with(Path::new(".vellum").join(FOLDER))) {
        return Err(MountingError::Elsewhere { name, place }.into());
    }
    Err(MountingError::CheckedOut { name, place }.into())
}

/// Makes a worktree that stands on a snapshot, to be mounted.
pub fn create(volume: &Volume, worktree: &str, from: Option<SnapshotId>) -> Result<WorktreeHead> {
    let place = folder(volume, worktree).display().to_string();
    volume.add_worktree(worktree, from, &place)?;
    let head = volume.worktree_head(worktree)?;
    head.ok_or_else(|| VolumeError::NoSuchRef { kind: "worktree", name: worktree.into() }.into())
}

impl Claim {
    /// Claims the live state of a worktree for a mount.
    pub fn take(volume: &Volume, worktree: &str, mountpoint: &Path) -> Result<Self> {
        let dir = folder(volume, worktree);
        make(&dir)?;
        let path = dir.join(LOCK_FILE);
        let failed = || CliError::io("lock", path.display().to_string());
        let mut options = File::options();
        let open = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut lock = open.map_err(failed())?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(held(worktree, &mut lock).into()),
            Err(error) => return Err(failed()(error.into())),
        }
        let holder = Holder { pid: std::process::id(), mountpoint: mountpoint.display().to_string() };
        let text = serde_json::to_vec(&holder).unwrap_or_default();
        lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| lock.write_all(&text)).map_err(failed())?;
        Ok(Self { _lock: lock, dir, worktree: worktree.into() })
    }

    /// The folder of the live state.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Opens the filesystem: as the last process left it, or as the snapshot that the worktree stands on.
    pub fn open(&self, volume: &Arc<Volume>, head: &WorktreeHead, limits: Limits) -> Result<Arc<Fs>> {
        let failed = |error| CliError::from(MountingError::from(error));
        let limit = limits.log.unwrap_or(LOG_LIMIT);
        let log = Arc::new(WriteLog::open(&self.dir.join(LOG_FOLDER), limit).map_err(failed)?);
        let live = Embedded::open(&self.dir.join(META_FOLDER), LogHooks(log.clone()))
            .map_err(|error| failed(error.into()))?;
        let fresh = fresh(volume, head.head)?;
        let mut options = Options { worktree: Some(self.worktree.clone()), ..Options::default() };
        options.chunk_cache = limits.cache.unwrap_or(options.chunk_cache);
        let fs = Fs::open(volume.clone(), Arc::new(live), log, &fresh, options).map_err(failed)?;
        Ok(Arc::new(fs))
    }

    /// The worktree.
    pub fn worktree(&self) -> &str {
        &self.worktree
    }
}

/// What a worktree stands on that has not been mounted before.
fn fresh(volume: &Volume, snapshot: Option<SnapshotId>) -> Result<Head> {
    let Some(id) = snapshot else {
        return Ok(Head::new(volume.empty_root(), Statistics::default(), None));
    };
    let record = volume.catalog.get(&id)?;
    let ancestor = Ancestor { id, counter: record.counter, time: record.time };
    let counted = Statistics { changed: 0, stored: 0, ..record.statistics };
    Ok(Head::new(record.root, counted, Some(ancestor)))
}

fn held(worktree: &str, lock: &mut File) -> MountingError {
    let mut text = String::new();
    let read = lock.read_to_string(&mut text).ok().and_then(|_| serde_json::from_str::<Holder>(&text).ok());
    // Between the lock and what is written into it is a moment.
    let unknown = Holder { pid: 0, mountpoint: "a place that it has not told yet".into() };
    let Holder { pid, mountpoint } = read.unwrap_or(unknown);
    MountingError::Held { name: worktree.into(), mountpoint, pid }
}
