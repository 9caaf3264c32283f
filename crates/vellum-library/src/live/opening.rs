//! Opening a live state: takes the lease, then opens the filesystem as the last process left it. If another process
//! has changed the worktree since, it starts with what that process published.
//!
//! Invariant: an outdated live state is removed only if everything in it was published.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use vellum_fs::lease::has_unpublished_state;
use vellum_fs::log::LogHooks;
use vellum_fs::tree::head::{AncestorSnapshot, LiveHead};
use vellum_fs::{FsError, LiveFilesystem, LiveOptions, WriteLog};
use vellum_live::{EmbeddedStore, EngineLimits};
use vellum_types::LookupResult;
use vellum_volume::lease::{
    BootClock, HeldLease, Lease, LeaseClaimant, LeaseToken, SERVICE_TERM, TERM, TakenLease,
};
use vellum_volume::refs::{WorktreeHead, WorktreeLog};
use vellum_volume::{SnapshotStatistics, Volume, VolumeError};

use super::shared_log::{LogUse, OpenedSharedLog, SHARED_JOURNAL, SHARED_LOG_LIMIT, SharedFolders};
use super::tokens::TokenFile;
use super::{LOG_FOLDER, LiveStateClaim, META_FOLDER, OpenError, Result};

/// Default maximum size of the write log, bytes: enough for hours of most work.
const LOG_LIMIT: u64 = 16 << 30;
/// Default divisor of the disk's free space for the write log: publishing it may require as much again.
const LOG_PART: u64 = 2;
/// Minimum size of the log and of the journal, bytes, however full the disk is: less does not suffice to work.
const LEAST: u64 = 1 << 20;
/// Divisor of the disk's free space for the journal, before a checkpoint replaces it.
const JOURNAL_PART: u64 = 32;
/// Where metadata are moved before they are removed, so that they disappear atomically.
const OLD_META_FOLDER: &str = "meta.old";

/// Limits and options of a live worktree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LiveLimits {
    /// Bytes of decoded content kept in memory.
    pub cache: Option<u64>,
    /// Bytes of inodes and names kept in memory.
    pub inodes: Option<u64>,
    /// Maximum size of the write log, bytes; beyond it writers wait for publishing. `None`: 16 GiB, or half of the
    /// free space if that is less.
    pub log: Option<u64>,
    /// Seconds after which a lease that was not renewed expires. `None`: [`TERM`], and [`SERVICE_TERM`] if the store is a
    /// service.
    pub term: Option<u32>,
    /// Days that the trash is to keep what is removed, from now on; 0: nothing. `None`: as before.
    pub trash_days: Option<u32>,
    /// Whether to take a lease that another process still holds.
    pub take_over: bool,
    /// How long changes and syncs wait for the engine of a shared log that does not answer. `None`: two minutes.
    pub log_wait: Option<Duration>,
    /// Where this process listens for other machines that mount the worktree, if it does.
    pub serves: Option<SocketAddr>,
    /// How old a change may become before it is published. `None`: as is usual for the store.
    pub longest_unpublished: Option<Duration>,
    /// Whether files without a name stay that clients of an earlier process may still have open.
    pub keeps_orphans: bool,
}

/// What a filesystem is opened with.
#[derive(Clone, Copy)]
struct OpeningParts<'a> {
    tenure: &'a Arc<HeldLease>,
    head: &'a WorktreeHead,
    log: &'a LogUse,
}

/// What a filesystem stands on.
struct OpenedStores<'a> {
    tenure: &'a Arc<HeldLease>,
    head: &'a WorktreeHead,
    log: Arc<WriteLog>,
    live: EmbeddedStore,
}

/// An open live worktree.
pub struct OpenedLiveState {
    /// The worktree.
    pub fs: Arc<LiveFilesystem>,
    /// The lease: to be renewed, and released at the end.
    pub tenure: Arc<HeldLease>,
    /// The process from which the lease was taken, and the directory of its live state, which has what it did not
    /// publish.
    pub put_out: Option<(Lease, String)>,
    /// The log from which another machine can continue it, if it has one.
    pub shared_log: Option<OpenedSharedLog>,
}

impl LiveStateClaim {
    /// Takes the lease of the worktree, and opens the filesystem, with the log that the worktree has or is to have.
    pub fn open_filesystem(
        &self,
        volume: &Arc<Volume>,
        limits: LiveLimits,
        log: &LogUse,
    ) -> Result<OpenedLiveState> {
        match log {
            LogUse::Existing(log) => self.continue_from_log(volume, limits, log),
            LogUse::None | LogUse::New(_) | LogUse::Abandoned => self.open_with_lease(volume, limits, log),
        }
    }

    /// Opens a worktree whose changes are on this machine only, or will be in a log from now on.
    fn open_with_lease(
        &self,
        volume: &Arc<Volume>,
        limits: LiveLimits,
        log: &LogUse,
    ) -> Result<OpenedLiveState> {
        let (tenure, TakenLease { head, put_out }) = self.acquire_lease(volume, limits)?;
        let opened = self.open_with_log(volume, limits, OpeningParts { tenure: &tenure, head: &head, log });
        // With unpublished changes here, the lease stays: another machine would begin without them.
        if opened.is_err() && !self.has_unpublished_state().unwrap_or(true) {
            // Nobody has to wait for a process that could not begin. Why it could not is what the caller wants to know.
            let _ = tenure.release_lease();
        }
        let (fs, shared_log) = opened?;
        Ok(OpenedLiveState { fs, tenure, put_out, shared_log })
    }

    fn open_with_log(
        &self,
        volume: &Arc<Volume>,
        limits: LiveLimits,
        parts: OpeningParts<'_>,
    ) -> Result<(Arc<LiveFilesystem>, Option<OpenedSharedLog>)> {
        let OpeningParts { tenure, head, log } = parts;
        match log {
            LogUse::New(location) => {
                let claimed = self.claim_new_log(volume, location, limits)?;
                let folders = self.open_shared_folders(volume, tenure, claimed)?;
                let (fs, log) = self.open_in_shared_folders(volume, limits, parts, folders)?;
                Ok((fs, Some(log)))
            }
            LogUse::Abandoned => {
                // In this order: without the ref's word, nobody waits for the log.
                tenure.update_worktree_ref(|head| head.log = None)?;
                self.forget_log()?;
                Ok((self.open_in_local_folders(volume, limits, tenure, head)?, None))
            }
            // It got one since its ref was read.
            LogUse::None | LogUse::Existing(_) if head.log.is_some() => {
                Err(VolumeError::Raced(self.worktree_name().into()).into())
            }
            LogUse::None | LogUse::Existing(_) => {
                Ok((self.open_in_local_folders(volume, limits, tenure, head)?, None))
            }
        }
    }

    /// Opens a worktree that has a log.
    fn continue_from_log(
        &self,
        volume: &Arc<Volume>,
        limits: LiveLimits,
        log: &WorktreeLog,
    ) -> Result<OpenedLiveState> {
        let claimed = self.claim_existing_log(volume, log, limits)?;
        // The claim says that nobody else serves the worktree: nobody has to wait for the end of the lease.
        let (tenure, TakenLease { head, .. }) =
            match self.acquire_lease(volume, LiveLimits { take_over: true, ..limits }) {
                Ok(taken) => taken,
                Err(error) => {
                    claimed.give_up();
                    return Err(error);
                }
            };
        let folders = self.open_shared_folders(volume, &tenure, claimed)?;
        // The log is not asked for again: it was claimed above, and its files are in `folders`.
        let parts = OpeningParts { tenure: &tenure, head: &head, log: &LogUse::None };
        let (fs, shared_log) = self.open_in_shared_folders(volume, limits, parts, folders)?;
        Ok(OpenedLiveState { fs, tenure, put_out: None, shared_log: Some(shared_log) })
    }

    fn open_in_local_folders(
        &self,
        volume: &Arc<Volume>,
        limits: LiveLimits,
        tenure: &Arc<HeldLease>,
        head: &WorktreeHead,
    ) -> Result<Arc<LiveFilesystem>> {
        // The log before the metadata, which sync it before themselves, and ask it after a crash which extents are
        // intact.
        let log = self.open_write_log()?;
        log.set_limit(limits.log.unwrap_or_else(|| self.default_log_limit(log.used_bytes())));
        let live = self.open_metadata(&log)?;
        self.open_with_metadata(volume, limits, OpenedStores { tenure, head, log, live })
    }

    fn open_in_shared_folders(
        &self,
        volume: &Arc<Volume>,
        limits: LiveLimits,
        parts: OpeningParts<'_>,
        folders: SharedFolders,
    ) -> Result<(Arc<LiveFilesystem>, OpenedSharedLog)> {
        let OpeningParts { tenure, head, .. } = parts;
        let SharedFolders { metadata, write_log, log: shared_log } = folders;
        let log = Arc::new(WriteLog::open_in_folder(write_log, SHARED_LOG_LIMIT)?);
        let default = self.default_log_limit(log.used_bytes()).min(SHARED_LOG_LIMIT);
        log.set_limit(limits.log.unwrap_or(default));
        let hooks = LogHooks(log.clone());
        let mut engine = self.engine_limits();
        engine.journal = engine.journal.min(SHARED_JOURNAL);
        let live = EmbeddedStore::open_folder(metadata, hooks, engine).map_err(FsError::from)?;
        let fs = self.open_with_metadata(volume, limits, OpenedStores { tenure, head, log, live })?;
        Ok((fs, shared_log))
    }

    fn open_with_metadata(
        &self,
        volume: &Arc<Volume>,
        limits: LiveLimits,
        stores: OpenedStores<'_>,
    ) -> Result<Arc<LiveFilesystem>> {
        let OpenedStores { tenure, head, log, live } = stores;
        // Used only if there are no metadata yet.
        let fresh = initial_head(volume, head)?;
        let mut options = LiveOptions { tenure: Some(tenure.clone()), ..LiveOptions::default() };
        options.quota = head.quota;
        options.trash = head.trash;
        options.worktree = Some(self.worktree_name().into());
        options.keeps_orphans = limits.keeps_orphans;
        options.chunk_cache = limits.cache.unwrap_or(options.chunk_cache);
        let fs = Arc::new(LiveFilesystem::open(volume.clone(), Arc::new(live), log, &fresh, options)?);
        if let Some(bytes) = limits.inodes {
            fs.live_map().inode_cache().set_capacity(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
        fs.publish_read_trees();
        if let Some(days) = limits.trash_days.filter(|days| *days != fs.trash().days()) {
            fs.trash().set_days(days)?;
        }
        Ok(fs)
    }

    fn acquire_lease(
        &self,
        volume: &Arc<Volume>,
        limits: LiveLimits,
    ) -> Result<(Arc<HeldLease>, TakenLease)> {
        let file = TokenFile::in_dir(self.dir());
        loop {
            let known = file.load_tokens()?;
            let token = LeaseToken::generate();
            // Both kinds, since a crash may fall on either side of the store's write: the new token if it was
            // written, the old ones if not.
            file.save_tokens(&[&known[..], &[token]].concat())?;
            let claimant = LeaseClaimant {
                known: known.clone(),
                token,
                place: self.dir().display().to_string(),
                mountpoint: self.mountpoint.clone(),
                term: limits.term.unwrap_or(if volume.objects.is_remote() { SERVICE_TERM } else { TERM }),
                early: limits.take_over,
                // Not a wall clock: one that somebody sets would let a lease expire too early or never.
                clock: Arc::new(BootClock),
            };
            match HeldLease::acquire(volume, self.worktree_name(), claimant) {
                Ok(taken) => {
                    // Earlier tokens cannot be those of the last change any more.
                    file.save_tokens(&[token])?;
                    return Ok(taken);
                }
                Err(VolumeError::Behind { by, .. }) if self.has_unpublished_state()? => {
                    file.save_tokens(&known)?;
                    let name = self.worktree_name().into();
                    let place = self.dir().display().to_string();
                    return Err(OpenError::LeftBehind { name, place, by });
                }
                // All that is here was published: this process begins with what the other one has published since.
                Err(VolumeError::Behind { .. }) => {
                    // In this order: without the metadata, a crash here leaves tokens that match nothing, which the
                    // next opening finds behind again.
                    self.remove_live_state()?;
                    volume.release_live_states(self.worktree_name(), &known)?;
                    file.save_tokens(&[])?;
                }
                Err(error @ VolumeError::Leased { .. }) => {
                    file.save_tokens(&known)?;
                    return Err(error.into());
                }
                // It is not known whether the lease was taken: all tokens stay in the file.
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn open_write_log(&self) -> Result<Arc<WriteLog>> {
        Ok(Arc::new(WriteLog::open(&self.dir().join(LOG_FOLDER), LOG_LIMIT)?))
    }

    /// Returns the default limit of a log that already has this many bytes.
    fn default_log_limit(&self, used: u64) -> u64 {
        (self.free_disk_bytes().saturating_add(used) / LOG_PART).clamp(LEAST, LOG_LIMIT)
    }

    /// Returns the free bytes of the disk; if that is unknown, the maximum.
    fn free_disk_bytes(&self) -> u64 {
        let disk = rustix::fs::statvfs(self.dir());
        disk.map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    fn open_metadata(&self, log: &Arc<WriteLog>) -> Result<EmbeddedStore> {
        let limits = self.engine_limits();
        let opened = EmbeddedStore::open_with(&self.dir().join(META_FOLDER), LogHooks(log.clone()), limits);
        Ok(opened.map_err(FsError::from)?)
    }

    fn engine_limits(&self) -> EngineLimits {
        let usual = EngineLimits::default();
        // On a small disk the journal must leave room for the checkpoint that replaces it.
        let journal = (self.free_disk_bytes() / JOURNAL_PART).clamp(LEAST, usual.journal);
        EngineLimits { journal, ..usual }
    }

    /// Returns whether the live state contains anything that is not published.
    pub(super) fn has_unpublished_state(&self) -> Result<bool> {
        // Without metadata, a log says nothing: whoever removes a live state removes the metadata first.
        if !self.dir().join(META_FOLDER).exists() {
            return Ok(false);
        }
        Ok(has_unpublished_state(&self.open_metadata(&self.open_write_log()?)?)?)
    }

    /// Returns the live head, if there is one.
    pub(super) fn read_head(&self) -> Result<Option<LiveHead>> {
        Ok(vellum_fs::lease::read_stored_head(&self.open_metadata(&self.open_write_log()?)?)?)
    }

    /// Whether it names chunks that clients of the worktree have stored, and that no tree is known to have.
    pub(super) fn names_stored_chunks(&self) -> Result<bool> {
        Ok(vellum_fs::names_stored_chunks(&self.open_metadata(&self.open_write_log()?)?)?)
    }

    /// Removes the live state.
    pub(super) fn remove_live_state(&self) -> Result<()> {
        let [meta, old, log] = [META_FOLDER, OLD_META_FOLDER, LOG_FOLDER].map(|name| self.dir().join(name));
        // An interrupted removal may have left these.
        remove_dir_if_present(&old)?;
        // Renamed, the metadata are gone at once: metadata of which a part is missing, or whose log is missing, must
        // never be opened.
        if meta.exists() {
            fs::rename(&meta, &old).map_err(OpenError::io_error("remove", &meta))?;
        }
        remove_dir_if_present(&log)?;
        remove_dir_if_present(&old)
    }
}

pub(super) fn remove_dir_if_present(dir: &Path) -> Result<()> {
    fs::remove_dir_all(dir).ignore_missing().map_err(OpenError::io_error("remove", dir))
}

/// Returns the initial live head, from the worktree's ref.
fn initial_head(volume: &Volume, head: &WorktreeHead) -> Result<LiveHead> {
    let mut root = volume.empty_root();
    let mut counted = SnapshotStatistics::default();
    let mut ancestor = None;
    if let Some(id) = head.head {
        let record = volume.catalog.get_record(&id)?;
        root = record.root;
        counted = SnapshotStatistics { changed: 0, stored: 0, ..record.statistics };
        ancestor = Some(AncestorSnapshot { id, counter: record.counter, time: record.time });
    }
    // What was published since the last snapshot. It is newer than the snapshot, which stays the ancestor of the
    // next.
    if let Some(live) = head.live {
        (root, counted) = (live.root, live.counted);
    }
    Ok(LiveHead::new(root, counted, ancestor))
}
