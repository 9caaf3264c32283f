//! A live state that another machine can continue: its log outside this machine.
//!
//! Opening such a worktree: (1) the log is claimed, as soon as no other server can be serving; (2) if this live state was
//! the last that had it, the files here are the truth, and become the log's next base; else they are made from the log;
//! (3) the lease of the worktree's ref is taken, from whoever has it; (4) work begins.
//!
//! # Why the lease need not end by itself
//!
//! The claim proves that the process before acknowledges nothing durable any more: each acknowledgement needs an append,
//! and appends of an earlier epoch are refused. It can still be about to change the worktree's ref. Each change of the ref
//! is a swap that requires the lease's token, so from the moment when the lease is taken here it fails. What it changed
//! before that moment it had in its files, and does no harm: a tree that it published is not what is read here, since the
//! files of the log are, with the base that they name, and that base is named by the ref (`reading`) until a state without
//! it is durable, which is to say in the log. A snapshot that it committed is in the log, too, or was not acknowledged; in
//! the log, it is committed once more under the same id.

mod engine;
mod instances;
mod replayed;
mod sharing;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use vellum_crypto::fill_random;
use vellum_host::process::host_name;
use vellum_live::folder::{EngineFolder, LocalFolder};
use vellum_shared_log::claim::{
    CLAIM_RESERVE, ClaimError, ClaimKeeper, ClaimRequest, HeldClaim, LogFailure, TakenClaim, claim_log,
};
use vellum_shared_log::folder::{
    LoggedFolder, ReplayedFiles, SharedFiles, SharedFilesLimits, SharedFilesParts, SharedLogUsage,
};
use vellum_shared_log::{LogClaim, LogIncarnation, ServerRecord, SharedLog, SharedLogError};
use vellum_volume::lease::{BootClock, HeldLease, MonotonicClock};
use vellum_volume::refs::{WorktreeHead, WorktreeLog};
use vellum_volume::{Volume, VolumeError};

use self::engine::open_engine;
pub use self::engine::{PASSWORD_VARIABLE, ServerWatch, find_worktree_server};
use self::instances::{InstanceFile, LogInstances};
use self::replayed::ReplaySource;
pub use self::sharing::{share_worktree, unshare_worktree};
use super::tokens::TokenFile;
use super::{LOG_FOLDER, LiveStateClaim, META_FOLDER, OpenError, Result};

/// How long changes and syncs wait for an engine that does not answer, unless it is said.
const WAIT: Duration = Duration::from_secs(120);
/// Default maximum size of the write log of a worktree with a shared log, bytes: all of it is in the log, too.
pub(super) const SHARED_LOG_LIMIT: u64 = 512 << 20;
/// Bytes of the journal of such a worktree up to which it is left alone: the engine of the log keeps it in memory.
pub(super) const SHARED_JOURNAL: u64 = 8 << 20;

/// Where the log of a worktree is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLocation {
    /// The address of its engine, without a password.
    pub url: String,
    /// The name of the credentials for it.
    pub credentials: Option<String>,
}

/// With which log a worktree is opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LogUse {
    /// It has none.
    #[default]
    None,
    /// With the one that it has.
    Existing(WorktreeLog),
    /// With a new one.
    New(LogLocation),
    /// Without the one that it has: it stands on what was published, and has none from now on.
    Abandoned,
}

impl LogUse {
    /// The log that a worktree has.
    #[must_use]
    pub fn of_worktree(head: Option<&WorktreeHead>) -> Self {
        head.and_then(|head| head.log.clone()).map_or(Self::None, Self::Existing)
    }
}

/// The log of an open live state. When this is dropped, nothing is acknowledged any more.
pub struct OpenedSharedLog {
    files: SharedFiles,
    keeper: ClaimKeeper,
    claim: Arc<HeldClaim>,
    /// The address of its engine.
    pub url: String,
    /// The server that had it before, if that was another live state.
    pub continued_from: Option<ServerRecord>,
}

impl OpenedSharedLog {
    /// Lets `hook` be called when nothing is acknowledged any more: another machine has taken the worktree over, or the log
    /// cannot be used.
    pub fn add_failure_hook(&self, hook: impl Fn(&LogFailure) + Send + 'static) {
        self.claim.add_failure_hook(hook);
    }

    /// What tells whether this process has the log still.
    #[must_use]
    pub fn ownership(&self) -> LogOwnership {
        LogOwnership(self.claim.clone())
    }

    /// What the log has and does.
    #[must_use]
    pub fn usage(&self) -> SharedLogUsage {
        self.files.usage()
    }

    /// Gives the log up, so that the next server need not wait. What was written here has to be durable.
    pub fn release_log(self) -> Result<()> {
        let Self { files, keeper, claim, .. } = self;
        // First the renewals: one that came after the release would contradict it. Then the files, whose threads append
        // under the claim.
        drop(keeper);
        drop(files);
        let epoch = claim.current().epoch;
        claim.log.release(epoch).map_err(OpenError::from)
    }

    /// Removes the log, which the worktree does not name any more.
    pub fn remove_log(self) -> Result<()> {
        let Self { files, keeper, claim, .. } = self;
        // In the order of `release_log`, for the same reasons.
        drop(keeper);
        drop(files);
        let epoch = claim.current().epoch;
        claim.log.remove(epoch).map_err(OpenError::from)
    }
}

/// Tells whether this process can be sure that no other one has the log.
#[derive(Clone)]
pub struct LogOwnership(Arc<HeldClaim>);

impl LogOwnership {
    /// Whether it can.
    #[must_use]
    pub fn is_sure(&self) -> bool {
        self.0.is_sure()
    }

    /// Whether no other one can claim the log for so long, also if the claim is not renewed any more.
    #[must_use]
    pub fn has_claim_for(&self, time: Duration) -> bool {
        // This process stops to serve before others may claim; for that long, what clients were granted holds as well.
        self.0.is_sure_for(time.saturating_sub(CLAIM_RESERVE))
    }
}

/// The folders of a live state, as engine and write log use them.
pub(super) struct SharedFolders {
    pub metadata: Arc<dyn EngineFolder>,
    pub write_log: Arc<dyn EngineFolder>,
    pub log: OpenedSharedLog,
}

/// A log that was claimed, before its files are open.
pub(super) struct ClaimedLog {
    worktree_log: WorktreeLog,
    /// Whether the worktree's ref names it.
    is_named: bool,
    held: Arc<HeldClaim>,
    keeper: ClaimKeeper,
    claim: LogClaim,
    /// The files that were made from the log; None if those that are here are the truth.
    replayed: Option<ReplayedFiles>,
    continued_from: Option<ServerRecord>,
    wait: Duration,
}

impl LiveStateClaim {
    /// Claims the log that the worktree has, and makes its files if those that are here are not the last.
    pub(super) fn claim_existing_log(
        &self,
        volume: &Volume,
        log: &WorktreeLog,
        limits: super::LiveLimits,
    ) -> Result<ClaimedLog> {
        let engine = open_engine(volume, log)?;
        let file = InstanceFile::in_dir(self.dir());
        let known = file.load_instances()?;
        let server = new_server_record(limits.serves);
        let is_local = |before: Option<&ServerRecord>| {
            before.is_none_or(|before| known.current.contains(&before.instance))
        };
        let before_claim = |before: Option<&ServerRecord>| {
            // Recorded before the claim, so that after a crash this instance is known to be of this directory. It is only
            // current if the files here were current: otherwise they have to be made from the log first.
            let mut with_own = known.clone();
            let list = if is_local(before) { &mut with_own.current } else { &mut with_own.pending };
            list.push(server.instance);
            file.save_instances(&with_own).map_err(std::io::Error::other)
        };
        // Also the pending ones: these have ended too, and nobody has to wait for their claims.
        let own: Vec<_> = known.current.iter().chain(&known.pending).copied().collect();
        let request = ClaimRequest {
            expected: LogIncarnation(log.incarnation),
            server: &server,
            own: &own,
            early: limits.take_over,
            clock: &BootClock,
            before_claim: &before_claim,
        };
        let taken = match claim_log(&*engine, &request) {
            Err(ClaimError::Log(error @ (SharedLogError::Lost { .. } | SharedLogError::NoLog { .. }))) => {
                self.claim_in_place_of_lost(volume, &*engine, &server, error)
            }
            Err(ClaimError::InUse(server)) => {
                Err(OpenError::LogInUse { name: self.worktree_name().into(), host: server.host })
            }
            Err(ClaimError::Log(error)) => Err(error.into()),
            Err(ClaimError::Record(error)) => Err(OpenError::io_error("write", file.path())(error)),
            Ok(taken) => Ok(taken),
        }?;
        let held = Arc::new(HeldClaim::new(engine, server.clone(), &taken, Arc::new(BootClock)));
        let TakenClaim { claim, before, .. } = taken;
        // From here on the claim is renewed: to make the files from a long log may take longer than its term.
        let keeper = start_keeper(&held)?;
        let mut claimed = ClaimedLog {
            worktree_log: WorktreeLog { incarnation: claim.incarnation.0, ..log.clone() },
            is_named: claim.incarnation.0 == log.incarnation,
            held,
            keeper,
            claim,
            replayed: None,
            continued_from: None,
            wait: limits.log_wait.unwrap_or(WAIT),
        };
        if !is_local(before.as_ref()) {
            let source = ReplaySource {
                log: &*claimed.held.log,
                claim: &claim,
                known: log,
                before: before.as_ref(),
                instance: server.instance,
            };
            match self.replace_files_from_log(volume, &source) {
                Ok(replayed) => claimed.replayed = Some(replayed),
                Err(error) => {
                    claimed.release();
                    return Err(error);
                }
            }
        }
        // Only now: until the files here are those of the log, a crash must lead to another replay.
        file.save_instances(&LogInstances::current_only(server.instance))?;
        claimed.continued_from = before.filter(|before| !own.contains(&before.instance));
        Ok(claimed)
    }

    /// Claims a new log in place of one that is gone, if this live state was the last that changed the worktree: then it has
    /// everything that was acknowledged.
    fn claim_in_place_of_lost(
        &self,
        volume: &Volume,
        engine: &dyn SharedLog,
        server: &ServerRecord,
        error: SharedLogError,
    ) -> Result<TakenClaim> {
        let tokens = TokenFile::in_dir(self.dir()).load_tokens()?;
        let head = volume.read_worktree_head(self.worktree_name())?;
        let last = head.and_then(|head| head.lease).map(|lease| lease.token);
        // The token of the last lease is in the ref and in the live state that had it. If they differ, another machine was
        // the last, and what is here may be old.
        if !last.is_some_and(|last| tokens.contains(&last)) {
            return Err(OpenError::LogLost { name: self.worktree_name().into(), source: error });
        }
        let file = InstanceFile::in_dir(self.dir());
        let mut known = file.load_instances()?;
        // Before the log is created: whoever finds this instance in it knows that these files are its beginning.
        known.current.push(server.instance);
        file.save_instances(&known)?;
        let incarnation = engine.create()?;
        let after = engine.current_server(None, Duration::ZERO)?.map(|seen| seen.epoch);
        let begun = BootClock.now();
        let claim = engine.claim(incarnation, server, after)?;
        // No server before: the files that are here are the truth.
        Ok(TakenClaim { claim, before: None, begun })
    }

    /// Creates a log for a worktree that has none, and claims it. The files that are here are the truth: the caller has the
    /// lease.
    pub(super) fn claim_new_log(
        &self,
        volume: &Volume,
        location: &LogLocation,
        limits: super::LiveLimits,
    ) -> Result<ClaimedLog> {
        let mut key = [0; 16];
        // Random: the engine sees names that are made from it, and must learn nothing of the volume by them.
        fill_random(&mut key);
        let LogLocation { url, credentials } = location.clone();
        let mut worktree_log = WorktreeLog { url, credentials, key, incarnation: [0; 16], floor: 0 };
        let engine = open_engine(volume, &worktree_log)?;
        let server = new_server_record(limits.serves);
        // Recorded before the log is created, as in `claim_in_place_of_lost`: these files are its beginning.
        let file = InstanceFile::in_dir(self.dir());
        file.save_instances(&LogInstances::current_only(server.instance))?;
        let incarnation = engine.create()?;
        let begun = BootClock.now();
        let claim = engine.claim(incarnation, &server, None)?;
        worktree_log.incarnation = incarnation.0;
        let taken = TakenClaim { claim, before: None, begun };
        let held = Arc::new(HeldClaim::new(engine, server, &taken, Arc::new(BootClock)));
        let keeper = start_keeper(&held)?;
        Ok(ClaimedLog {
            worktree_log,
            is_named: false,
            held,
            keeper,
            claim,
            replayed: None,
            continued_from: None,
            wait: limits.log_wait.unwrap_or(WAIT),
        })
    }

    /// Forgets that there was a log.
    pub(super) fn forget_log(&self) -> Result<()> {
        InstanceFile::in_dir(self.dir()).save_instances(&LogInstances::default())
    }

    /// Opens the folders of the live state, and puts what is here into the log unless it was made from that.
    pub(super) fn open_shared_folders(
        &self,
        volume: &Volume,
        tenure: &Arc<HeldLease>,
        claimed: ClaimedLog,
    ) -> Result<SharedFolders> {
        let ClaimedLog { worktree_log, is_named, held, keeper, claim, replayed, continued_from, wait } =
            claimed;
        // Weak: the lease has the claim, which must not keep it.
        let lost = Arc::downgrade(tenure);
        held.add_failure_hook(move |failure| {
            if failure.is_fenced
                && let Some(tenure) = lost.upgrade()
            {
                tenure.lose_lease(failure.reason.clone());
            }
        });
        let meta = self.dir().join(META_FOLDER);
        let metadata = LocalFolder::open_locked(&meta).map_err(OpenError::io_error("open", &meta))?;
        let metadata = metadata.ok_or_else(|| {
            let in_use = vellum_live::LiveError::InUse(meta.display().to_string());
            OpenError::Fs(in_use.into())
        })?;
        let segments = self.dir().join(LOG_FOLDER);
        let write_log = LocalFolder::open(&segments).map_err(OpenError::io_error("open", &segments))?;
        let parts = SharedFilesParts {
            claim: held.clone(),
            keys: volume.keys.clone(),
            metadata: Arc::new(metadata),
            write_log: Arc::new(write_log),
            limits: SharedFilesLimits { sync_wait: wait, ..SharedFilesLimits::default() },
        };
        let files = match &replayed {
            None => SharedFiles::from_local_files(parts, claim.end),
            Some(replayed) => SharedFiles::from_replay(parts, replayed),
        };
        let files =
            files.map_err(|source| OpenError::LogWrite { name: self.worktree_name().into(), source })?;
        // Before the ref names the log: from then on others may claim it, and no change may pass without a look at the
        // claim.
        tenure.set_change_guard(files.change_guard(wait));
        // After the base is durable: a ref must not lead another machine to a log without files.
        if !is_named {
            name_log(tenure, &worktree_log)?;
        }
        let naming = Arc::downgrade(tenure);
        let url = worktree_log.url.clone();
        files.set_replaced_log_hook(move |incarnation| {
            let log = WorktreeLog { incarnation: incarnation.0, ..worktree_log.clone() };
            let closed = || LogFailure { reason: "the worktree is closed".into(), is_fenced: false };
            match name_log(&*naming.upgrade().ok_or_else(closed)?, &log) {
                Ok(()) => Ok(true),
                Err(error @ VolumeError::Fenced { .. }) => {
                    Err(LogFailure { reason: error.to_string(), is_fenced: true })
                }
                // A store that is away is asked again.
                Err(_) => Ok(false),
            }
        });
        let log = OpenedSharedLog { claim: held, keeper, url, continued_from, files };
        let metadata = log.files.folder(LoggedFolder::Metadata);
        let write_log = log.files.folder(LoggedFolder::WriteLog);
        Ok(SharedFolders { metadata, write_log, log })
    }
}

impl ClaimedLog {
    /// Gives the claim up: the worktree could not be opened.
    pub fn give_up(self) {
        // What is only here is not left to others before their wait is over.
        if self.replayed.is_some() {
            self.release();
        }
    }

    fn release(self) {
        let Self { held, keeper, claim, .. } = self;
        drop(keeper);
        // Nobody has to wait for a process that could not begin. Why it could not is what the caller wants to know.
        let _ = held.log.release(claim.epoch);
    }
}

/// Lets the worktree's ref name a log, of which it knows no position yet.
fn name_log(tenure: &HeldLease, log: &WorktreeLog) -> Result<(), VolumeError> {
    tenure.update_worktree_ref(|head| head.log = Some(WorktreeLog { floor: 0, ..log.clone() }))
}

fn start_keeper(held: &Arc<HeldClaim>) -> Result<ClaimKeeper> {
    ClaimKeeper::start(held.clone()).map_err(OpenError::io_error("start a thread for", "the shared log"))
}

/// This process, as clients find it; `serves` is the address on which it listens for them.
fn new_server_record(serves: Option<SocketAddr>) -> ServerRecord {
    let mut instance = [0; 16];
    fill_random(&mut instance);
    ServerRecord { host: host_name(), address: serves.map(advertise_address), instance }
}

/// The address under which others find what listens at an address here.
#[must_use]
pub fn advertise_address(listens: SocketAddr) -> String {
    match listens.ip().is_unspecified() {
        // It listens on all of its addresses; its name stands for one that others can reach.
        true => format!("{}:{}", host_name(), listens.port()),
        false => listens.to_string(),
    }
}

impl From<SharedLogError> for OpenError {
    fn from(error: SharedLogError) -> Self {
        Self::Log(error)
    }
}
