//! The live state of a worktree, `live/<worktree>` in the state directory of the volume's directory: metadata, write
//! log, the lock of the one process that may change it.
//!
//! Invariant: the holder of a [`LiveStateClaim`] is the only writer.

mod error;
mod fork;
mod holder;
mod keep;
mod opening;
mod rename;
mod shared_log;
mod tokens;

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use vellum_host::process::host_name;
use vellum_types::{LookupResult, SnapshotId};
use vellum_volume::refs::WorktreeHead;
use vellum_volume::state::{STATE_DIR, set_owner_from_dir};
use vellum_volume::{Volume, VolumeError};

use tokens::TokenFile;

pub use error::{OpenError, Result};
pub use fork::fork_live_worktree;
pub use holder::{HolderStage, StateHolder};
pub use keep::keep_unpublished;
pub use opening::{LiveLimits, OpenedLiveState};
pub use rename::rename_worktree;
pub use shared_log::{
    LogLocation, LogOwnership, LogUse, OpenedSharedLog, PASSWORD_VARIABLE, ServerWatch, advertise_address,
    find_worktree_server, share_worktree, unshare_worktree,
};

const FOLDER: &str = "live";
const LOCK_FILE: &str = "lock";
const META_FOLDER: &str = "meta";
const LOG_FOLDER: &str = "log";
/// A live state that this machine had before another one continued the worktree from its log.
const LEFT_FOLDER: &str = "left";

/// How long a killed process may take to release its lock: the kernel frees its memory and its mount first.
const ENDING_MAX: Duration = Duration::from_secs(30);
const ENDING_TICK: Duration = Duration::from_millis(5);
/// How long a process may take to notice that another process ended its mount.
const NOTICING_MAX: Duration = Duration::from_secs(5);

/// The right to change a live state. It is released when it is dropped, or when the process dies.
#[derive(Debug)]
pub struct LiveStateClaim {
    lock: File,
    dir: PathBuf,
    worktree: String,
    mountpoint: Option<String>,
}

/// Returns the directory of a worktree's live state.
#[must_use]
pub fn live_state_dir(volume: &Volume, worktree: &str) -> PathBuf {
    volume.state.join(FOLDER).join(worktree)
}

/// Returns the directory for the log of a process that serves a snapshot. No worktree has such a name.
#[must_use]
pub fn snapshot_log_dir(volume: &Volume, id: &SnapshotId) -> PathBuf {
    live_state_dir(volume, &format!("@{id}"))
}

/// Removes that directory, unless another process has its pipe in it: a snapshot can be mounted several times.
pub fn remove_snapshot_log_dir(volume: &Volume, id: &SnapshotId) {
    let dir = snapshot_log_dir(volume, id);
    let own = format!("accesslog-{}", std::process::id());
    let is_others =
        |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b"accesslog-") && name != own.as_str();
    let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
    // A mount that begins at this moment makes the directory and its pipe again; without one it only has no log.
    if !entries.map(|entry| entry.file_name()).any(|name| is_others(&name)) {
        // What stays is a log that is not read again.
        let _ = std::fs::remove_dir_all(&dir);
    }
}

/// Creates a directory in the state directory, with the same owner.
pub fn create_state_dir(dir: &Path) -> Result<()> {
    let make = || -> std::io::Result<()> {
        // One by one, unlike `create_dir_all`: each directory that is made gets the owner of the one above it.
        let missing: Vec<_> = dir.ancestors().take_while(|above| !above.exists()).collect();
        for made in missing.into_iter().rev() {
            match DirBuilder::new().mode(0o700).create(made) {
                // Another process makes it at the same time.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                created => created.and_then(|()| set_owner_from_ancestor(made))?,
            }
        }
        Ok(())
    };
    make().map_err(OpenError::io_error("make", dir))
}

/// Sets the owner of a new file or directory of the state directory to that of its parent directory.
pub fn set_owner_from_ancestor(made: &Path) -> std::io::Result<()> {
    let above = File::open(made.parent().unwrap_or(Path::new("/")))?;
    set_owner_from_dir(above, File::open(made)?)
}

/// Fails if there is a worktree of this name, or the live state of one.
fn check_name_free(volume: &Volume, name: &str) -> Result<()> {
    // A directory with tokens may hold changes that are nowhere else, even if no worktree has its name.
    let tokens = TokenFile::in_dir(&live_state_dir(volume, name)).load_tokens()?;
    if volume.read_worktree_head(name)?.is_some() || !tokens.is_empty() {
        return Err(VolumeError::Exists { kind: "worktree", name: name.into() }.into());
    }
    Ok(())
}

/// Gives the directory of a live state a name that no worktree has. The caller holds its claim.
fn move_live_state(volume: &Volume, old: &str, new: &str) -> Result<()> {
    move_live_state_dir(&live_state_dir(volume, old), &live_state_dir(volume, new))
}

/// The same for a directory in any place.
fn move_live_state_dir(from: &Path, to: &Path) -> Result<()> {
    // No worktree has this name, and there are no tokens: it is what a failed opening left.
    if to.exists() {
        fs::remove_dir_all(to).map_err(OpenError::io_error("replace", to))?;
    }
    fs::rename(from, to).map_err(OpenError::io_error("move", from))?;
    // Before the ref: after a power cut it must not name a directory that has its old name again.
    to.parent().map_or(Ok(()), sync_directory)
}

/// Finds the live worktree of this name. `None`: there is none.
pub fn find_live_worktree(volume: &Volume, worktree: &str) -> Result<Option<WorktreeHead>> {
    let Some(head) = volume.read_worktree_head(worktree)? else { return Ok(None) };
    if is_live_worktree(&head) {
        return Ok(Some(head));
    }
    let name = worktree.to_owned();
    let place = if head.host == host_name() { head.place } else { format!("{}:{}", head.host, head.place) };
    Err(OpenError::CheckedOut { name, place })
}

/// Returns whether a worktree is a live one, by its place; all others are checked out.
#[must_use]
pub fn is_live_worktree(head: &WorktreeHead) -> bool {
    let above = Path::new(&head.place).parent();
    above.is_some_and(|above| above.ends_with(Path::new(STATE_DIR).join(FOLDER)))
}

/// Creates a worktree with the content of a snapshot, to be opened live.
pub fn create_live_worktree(
    volume: &Volume,
    worktree: &str,
    from: Option<SnapshotId>,
) -> Result<WorktreeHead> {
    let place = live_state_dir(volume, worktree).display().to_string();
    volume.add_worktree(worktree, from, &place)?;
    Ok(volume.require_worktree_head(worktree)?)
}

/// Removes a worktree and its local live state: one whose creation failed later, or a temporary one. Only the caller
/// may have it open, and its lease must be released.
pub fn remove_live_worktree(volume: &Volume, worktree: &str) -> Result<()> {
    // The ref first: a directory without a worktree is harmless and replaced later, a worktree without its changes is
    // not.
    volume.remove_worktree(worktree)?;
    remove_live_state_dir(&live_state_dir(volume, worktree))
}

/// Removes the directory of a live state whose worktree was removed. If it is gone, that is no error.
pub fn remove_live_state_dir(dir: &Path) -> Result<()> {
    std::fs::remove_dir_all(dir).ignore_missing().map_err(OpenError::io_error("remove", dir))
}

/// Opens the lock file of a live state, and waits for the lock as long as its holder is about to end.
fn lock_state_file(worktree: &str, path: &Path) -> Result<File> {
    // Not truncated: the file may hold the text of the process that has the lock.
    let mut options = File::options();
    let open = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    let mut lock = open.map_err(OpenError::io_error("lock", path))?;
    // A mount by root in another user's directory must not leave files that this user's own commands cannot open.
    set_owner_from_ancestor(path).map_err(OpenError::io_error("lock", path))?;
    let begin = Instant::now();
    // A blocking `flock` could neither give up nor report which process it waits for.
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(error) => return Err(OpenError::io_error("lock", path)(error.into())),
        }
        let holder = StateHolder::read_from(&mut lock).map_err(OpenError::io_error("lock", path))?;
        let was_ending = holder.is_ending();
        std::thread::sleep(ENDING_TICK);
        // Between the signal that was taken and the end that has begun is a moment in which neither is seen.
        let is_ending = was_ending || holder.is_ending();
        let patience = match is_ending {
            true => ENDING_MAX,
            false if holder.pid.is_none() || holder.is_unmounted() => NOTICING_MAX,
            false => Duration::ZERO,
        };
        if begin.elapsed() > patience {
            return Err(OpenError::Held { name: worktree.into(), holder });
        }
    }
}

/// Whether a path leads to an open file.
fn is_file_at(file: &File, path: &Path) -> bool {
    let found = file.metadata().and_then(|open| Ok((open, std::fs::metadata(path)?)));
    found.is_ok_and(|(open, named)| open.dev() == named.dev() && open.ino() == named.ino())
}

/// Makes the names in a directory durable.
fn sync_directory(dir: &Path) -> Result<()> {
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(OpenError::io_error("write back", dir))
}

impl LiveStateClaim {
    /// Claims the live state of a worktree. `mountpoint` is where it will be mounted, if it will.
    pub fn acquire(volume: &Volume, worktree: &str, mountpoint: Option<&Path>) -> Result<Self> {
        let dir = live_state_dir(volume, worktree);
        let path = dir.join(LOCK_FILE);
        let lock = loop {
            create_state_dir(&dir)?;
            let lock = lock_state_file(worktree, &path)?;
            if is_file_at(&lock, &path) {
                break lock;
            }
            // The directory was moved or removed between the opening and the lock: what is locked is the state of
            // another worktree by now, or of none.
        };
        // Only after the check: otherwise the text would stand in a file that belongs to another worktree by now.
        StateHolder::current_process(mountpoint)
            .write_to(&lock)
            .map_err(OpenError::io_error("lock", &path))?;
        let mountpoint = mountpoint.map(|path| path.display().to_string());
        Ok(Self { lock, dir, worktree: worktree.into(), mountpoint })
    }

    /// Records what this process does with the live state, for other processes.
    pub fn record_stage(&self, stage: HolderStage) -> Result<()> {
        let holder =
            StateHolder { stage, ..StateHolder::current_process(self.mountpoint.as_deref().map(Path::new)) };
        holder.write_to(&self.lock).map_err(OpenError::io_error("write", self.dir.join(LOCK_FILE)))
    }

    /// Returns the directory of the live state.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the worktree.
    #[must_use]
    pub fn worktree_name(&self) -> &str {
        &self.worktree
    }
}
