//! One term of a process that serves a shared worktree: from the moment when it has opened the worktree to the moment when
//! it has let it go.
//!
//! Invariant: when a term has ended, nothing of this process uses the worktree's live state any more, so that another
//! process, or this one again, can take it.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use vellum_cluster::protocol::SessionId;
use vellum_library::live::{HolderStage, LiveLimits, LiveStateClaim, LogUse, OpenedLiveState};
use vellum_volume::Volume;

use super::{SharingServer, WorktreeHandOver};
use crate::error::{CliError, Result};
use crate::mounting::MountingError;
use crate::mounting::control::{ControlService, end_listening, listen_while_kept};
use crate::mounting::end::{ShutdownSignal, UnmountReport};
use crate::mounting::live::MountedLiveWorktree;
use crate::mounting::log::MountLog;
use crate::mounting::policies::PolicyKeeper;

/// Starts what works beside a server, for the time of a term.
pub type UpkeepStarter = Box<dyn Fn(&Arc<ControlService>) -> Result<()> + Send + Sync>;

/// What a process serves, and how.
pub struct ServingOptions {
    /// The volume.
    pub volume: Arc<Volume>,
    /// The name of the worktree.
    pub worktree: String,
    /// Where it is mounted here, if it is.
    pub mountpoint: Option<PathBuf>,
    /// Where clients connect.
    pub listener: TermListener,
    /// With which limits it is opened.
    pub limits: LiveLimits,
    /// Where is told what happens.
    pub log: Arc<MountLog>,
    /// What is started with each term.
    pub upkeep: UpkeepStarter,
}

impl ServingOptions {
    /// The right to open the worktree on this machine.
    pub fn acquire_claim(&self) -> Result<LiveStateClaim> {
        Ok(LiveStateClaim::acquire(&self.volume, &self.worktree, self.mountpoint.as_deref())?)
    }
}

/// What listens during a term. Between two terms nothing does: who still looks for clients' server here is refused, and looks
/// elsewhere.
pub struct TermListener {
    /// Where it listens.
    pub address: SocketAddr,
    /// For the first term.
    first: Mutex<Option<TcpListener>>,
}

impl TermListener {
    /// The first term listens already.
    pub fn new(first: TcpListener) -> Result<Self> {
        let address = first.local_addr().map_err(CliError::io_error("listen for", "clients"))?;
        Ok(Self { address, first: Mutex::new(Some(first)) })
    }

    /// Listens.
    fn listen(&self) -> Result<TcpListener> {
        // The first listener was bound before the worktree was opened, so that an address that is taken fails before
        // anything is changed.
        let first = self.first.lock().take();
        let listen = || TcpListener::bind(self.address);
        let listener = first.map_or_else(listen, Ok);
        listener.map_err(CliError::io_error("listen on", self.address.to_string()))
    }
}

/// How a worktree is opened for a term.
pub struct TermOpening<'a> {
    /// The right to open it on this machine.
    pub claim: LiveStateClaim,
    /// Its log.
    pub shared_log: &'a LogUse,
    /// Whether it is taken from another process that has it still.
    pub takes_over: bool,
}

/// A worktree that is being served.
pub struct ServingTerm {
    live: MountedLiveWorktree,
    /// What serves it.
    pub sharing: Arc<SharingServer>,
    service: Arc<ControlService>,
    dir: PathBuf,
    /// Where clients connect.
    pub address: SocketAddr,
    /// The host that had the worktree before, if it is continued from the log.
    pub continued_from: Option<String>,
    /// The address of the log's engine.
    pub log_url: Option<String>,
}

impl ServingTerm {
    /// Opens the worktree and serves it. Fails while another machine does.
    pub fn begin(
        options: &ServingOptions,
        opening: TermOpening<'_>,
        hand_over: impl Fn(SessionId) + Send + Sync + 'static,
    ) -> Result<Self> {
        let TermOpening { claim, shared_log, takes_over } = opening;
        let limits = LiveLimits {
            serves: Some(options.listener.address),
            keeps_orphans: true,
            take_over: takes_over,
            ..options.limits
        };
        let log = &options.log;
        // Before anybody learns of it: clients that come while the worktree is being opened wait.
        let listener = options.listener.listen()?;
        let opened: OpenedLiveState = claim.open_filesystem(&options.volume, limits, shared_log)?;
        let continued_from = opened.shared_log.as_ref().and_then(|log| log.continued_from.clone());
        let log_url = opened.shared_log.as_ref().map(|log| log.url.clone());
        let live = MountedLiveWorktree::start_threads(claim, opened, log, limits.longest_unpublished)?;
        match Self::serve(options, &live, listener, hand_over) {
            Ok((sharing, service, address)) => Ok(Self {
                dir: live.claim.dir().to_path_buf(),
                live,
                sharing,
                service,
                address,
                continued_from: continued_from.map(|before| before.host),
                log_url,
            }),
            Err(error) => {
                // Nobody must wait for a server that never was.
                let _ = live.end_worktree(log, false);
                Err(error)
            }
        }
    }

    fn serve(
        options: &ServingOptions,
        live: &MountedLiveWorktree,
        listener: TcpListener,
        hand_over: impl Fn(SessionId) + Send + Sync + 'static,
    ) -> Result<(Arc<SharingServer>, Arc<ControlService>, SocketAddr)> {
        let hand_over =
            live.log_ownership().map(|ownership| WorktreeHandOver { ownership, begin: Box::new(hand_over) });
        let sharing = Arc::new(SharingServer::new(hand_over));
        let dir = live.claim.dir().to_path_buf();
        let service = Arc::new(ControlService {
            fs: live.fs.clone(),
            publisher: live.publisher.clone(),
            log: options.log.clone(),
            forgetter: OnceLock::new(),
            claim: live.claim.clone(),
            end: Arc::<ShutdownSignal>::default(),
            follow: None,
            policies: Arc::new(PolicyKeeper::open(live.fs.clone(), dir.clone())?),
            sharing: sharing.clone(),
        });
        listen_while_kept(&dir, &service)?;
        let address = sharing.start(listener, &service)?;
        if let Err(error) = (options.upkeep)(&service) {
            // The server has threads of its own, which would go on to answer for a term that never began.
            sharing.stop();
            return Err(error);
        }
        Ok((sharing, service, address))
    }

    /// What answers commands.
    pub fn service(&self) -> &Arc<ControlService> {
        &self.service
    }

    /// Lets `hook` be called when another machine has taken the worktree over, or its log cannot be used any more.
    pub fn add_loss_hook(&self, hook: impl Fn() + Send + 'static) {
        self.live.add_loss_hook(hook);
    }

    /// Names the process that serves next, if one stands by. What was written until now goes into the store first, so that
    /// clients wait for little.
    pub fn prepare_successor(&self) {
        if let Some(successor) = self.sharing.find_standby() {
            self.live.publish_before_end();
            self.sharing.name_successor(successor);
        }
    }

    /// Answers what is under way, serves nobody any more, and makes everything durable; publishes it unless that is to be
    /// skipped. Then the next process can serve.
    pub fn end(self, log: &MountLog, skips_publishing: bool) -> Result<UnmountReport, MountingError> {
        let live = self.stop_serving();
        // Nobody writes any more, and what still waits for room is not lost. And the store is asked once more, though it may
        // not have answered a moment ago.
        live.fs.write_log().set_limit(u64::MAX);
        live.fs.volume().objects.ignore_silence();
        live.end_worktree(log, skips_publishing)
    }

    /// Lets go a worktree that another machine has taken over.
    pub fn abandon(self) {
        let live = self.stop_serving();
        // It only shows other processes why they have to wait.
        let _ = live.claim.record_stage(HolderStage::Ending);
        drop(live);
    }

    fn stop_serving(self) -> MountedLiveWorktree {
        let Self { live, sharing, service, dir, .. } = self;
        // Ending sessions lets go of what their clients have open, and these find it with the process that serves next.
        live.fs.leave_orphans();
        // First, so that no client changes the worktree any more when the rest of it ends.
        sharing.stop();
        // Threads that were started with the term wait for this, as there is no mount whose end they could see.
        service.end.signal_unmounted();
        // Dropped before `end_listening`: the thread that is woken ends only if it does not find the service any more.
        drop(service);
        end_listening(&dir);
        live
    }
}
