//! A process that serves a shared worktree whenever no other one does: it serves for a term, and stands by before and after.
//!
//! While another process serves, it looks who does. When that one has given the worktree up, or its claim of the worktree's
//! log was not renewed for the claim's term, it claims the log, makes the files from it, and serves. A server that ends in
//! order names its successor, which claims at once; the others leave it [`PRECEDENCE`].
//!
//! Invariants: the log decides who serves, and whatever is decided here is confirmed by a claim of it; of this process, at
//! most one term is under way, and none begins once [`StandbyServer::end`] was called.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use vellum_cluster::client::ServerLocator;
use vellum_cluster::protocol::SessionId;
use vellum_library::OpenError;
use vellum_library::live::{self, LogUse, ServerWatch};
use vellum_shared_log::ServerSighting;
use vellum_shared_log::claim::CLAIM_TERM;

use super::LoggedServer;
use super::term::{ServingOptions, ServingTerm, TermOpening};
use crate::error::{CliError, Result};
use crate::mounting::MountingError;
use crate::mounting::control::ControlService;

/// How often a process that stands by looks who serves.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The same for one that was named to serve next.
const LOOK_EVERY_NAMED: Duration = Duration::from_millis(100);
/// How long a process that was not named leaves a worktree that was given up to one that was.
const PRECEDENCE: Duration = Duration::from_secs(3);
/// The pause after an attempt to serve that failed.
const RETRY_EVERY: Duration = Duration::from_secs(5);

/// A process that serves a worktree, or stands by.
pub struct StandbyServer {
    state: Arc<StandbyState>,
    thread: Option<JoinHandle<Option<ServingTerm>>>,
}

/// What the threads of such a process share.
pub struct StandbyState {
    options: ServingOptions,
    turn: Mutex<StandbyTurn>,
    changed: Condvar,
    /// What is served, at the moment, and where.
    served: Mutex<ServedHere>,
}

/// What a process is told about its turn to serve.
#[derive(Default)]
struct StandbyTurn {
    /// The process ends.
    is_ending: bool,
    /// Another machine has taken the worktree over.
    is_lost: bool,
    /// The server has named this process to serve next.
    is_named: bool,
    /// The client whose process is to serve next.
    successor: Option<SessionId>,
}

impl StandbyTurn {
    /// Forgets what concerns the turn before; gives it.
    fn begin_anew(&mut self) -> Self {
        // The end of the process concerns every turn, and is never taken back.
        let is_ending = self.is_ending;
        std::mem::replace(self, Self { is_ending, ..Self::default() })
    }
}

#[derive(Default)]
struct ServedHere {
    service: Weak<ControlService>,
    address: Option<String>,
}

/// How a worktree is served for the first time.
pub struct FirstTerm<'a> {
    /// Whether the worktree is created.
    pub is_new: bool,
    /// The log that it has, or gets.
    pub shared_log: &'a LogUse,
    /// Whether it is taken from another process that has it still.
    pub takes_over: bool,
}

/// A process that serves or stands by, and is connected to the server.
pub struct JoinedServer<C> {
    /// What it serves; None: it stands by.
    pub term: Option<ServingTerm>,
    /// What `connect` has given.
    pub client: C,
}

/// Finds the server of a worktree that this process may serve itself.
pub struct StandbyLocator(Arc<StandbyState>);

impl ServerLocator for StandbyLocator {
    fn find_server(&self) -> vellum_cluster::Result<String> {
        let own = self.0.served.lock().address.clone();
        // While this process serves, its own mount is a client of it, too, and needs no engine to find it.
        own.map_or_else(|| self.0.logged_server().find_server(), Ok)
    }
}

impl StandbyState {
    /// What this process may serve. Nothing begins yet.
    pub fn new(options: ServingOptions) -> Arc<Self> {
        Arc::new(Self { options, turn: Mutex::default(), changed: Condvar::new(), served: Mutex::default() })
    }

    /// What finds the server.
    pub fn locator(self: &Arc<Self>) -> StandbyLocator {
        StandbyLocator(self.clone())
    }

    /// Where others find this process when it serves.
    pub fn advertised_address(&self) -> String {
        live::advertise_address(self.options.listener.address)
    }

    /// What answers commands, if this process serves.
    pub fn find_service(&self) -> Option<Arc<ControlService>> {
        self.served.lock().service.upgrade()
    }

    /// The server has named this process to serve next.
    pub fn note_named(&self) {
        self.turn.lock().is_named = true;
        self.changed.notify_all();
    }

    /// Whether another process serves clients now, by what the worktree's log says.
    fn is_served_elsewhere(&self) -> Result<bool> {
        let ServingOptions { volume, worktree, .. } = &self.options;
        let found = live::find_worktree_server(volume, worktree)?;
        Ok(found.is_some_and(|found| !is_over(&found) && found.server.address.is_some()))
    }

    /// Serves, or connects to the process that does.
    pub fn join<C>(
        self: &Arc<Self>,
        first: &FirstTerm<'_>,
        connect: impl Fn() -> Result<C>,
    ) -> Result<JoinedServer<C>> {
        // A worktree that is new has no server, and who takes over does not ask for one.
        if !first.takes_over && !first.is_new && self.is_served_elsewhere()? {
            match connect() {
                Ok(client) => return Ok(JoinedServer { term: None, client }),
                // Its machine may just have been lost: then its claim ends soon.
                Err(CliError::Mounting(MountingError::Cluster(error))) if error.is_transient() => {}
                Err(error) => return Err(error),
            }
        }
        let term = self.begin_first_term(first)?;
        match connect() {
            Ok(client) => Ok(JoinedServer { term, client }),
            Err(error) => {
                // Nobody must wait for a server that its own process cannot reach.
                let _ = term.map(|term| term.end(&self.options.log, false));
                Err(error)
            }
        }
    }

    /// Serves at once; None: another process does meanwhile.
    fn begin_first_term(self: &Arc<Self>, first: &FirstTerm<'_>) -> Result<Option<ServingTerm>> {
        let ServingOptions { volume, worktree, .. } = &self.options;
        // The claim comes first: of two commands that mount a new worktree of one name, one creates it.
        let claim = self.options.acquire_claim()?;
        if first.is_new {
            live::create_live_worktree(volume, worktree, volume.read_head()?)?;
        }
        let begun = self.begin_term(claim, first.shared_log, first.takes_over);
        if begun.is_err() && first.is_new {
            // That it failed is what the user wants to know, not what became of the attempt.
            let _ = live::remove_live_worktree(volume, worktree);
        }
        match begun {
            Err(CliError::Mounting(MountingError::Open(OpenError::LogInUse { .. })))
                if self.is_served_elsewhere()? =>
            {
                Ok(None)
            }
            begun => begun.map(Some),
        }
    }

    fn begin_term(
        self: &Arc<Self>,
        claim: vellum_library::LiveStateClaim,
        shared_log: &LogUse,
        takes_over: bool,
    ) -> Result<ServingTerm> {
        // Weak: what is served must not keep itself.
        let state = Arc::downgrade(self);
        let hand_over = move |successor| {
            if let Some(state) = state.upgrade() {
                state.turn.lock().successor = Some(successor);
                state.changed.notify_all();
            }
        };
        // Before the term, whose hooks may be called at once: what they note must not be forgotten by this.
        self.turn.lock().begin_anew();
        let opening = TermOpening { claim, shared_log, takes_over };
        let term = ServingTerm::begin(&self.options, opening, hand_over)?;
        *self.served.lock() = ServedHere {
            service: Arc::downgrade(term.service()),
            address: Some(reachable_address(term.address)),
        };
        let state = Arc::downgrade(self);
        term.add_loss_hook(move || {
            if let Some(state) = state.upgrade() {
                state.turn.lock().is_lost = true;
                state.changed.notify_all();
            }
        });
        Ok(term)
    }

    fn logged_server(&self) -> LoggedServer {
        LoggedServer { volume: self.options.volume.clone(), worktree: self.options.worktree.clone() }
    }

    fn take_turns(self: &Arc<Self>, first: Option<ServingTerm>) -> Option<ServingTerm> {
        let log = &self.options.log;
        let mut serving = first;
        loop {
            let Some(term) = serving.take() else {
                if !self.wait_for_turn() {
                    return None;
                }
                serving = self.try_to_serve();
                continue;
            };
            let turn = self.wait_for_end_of_term();
            if turn.is_ending {
                return Some(term);
            }
            // From now on this process is a client of whoever serves.
            // Before the term ends: the own client then looks for the next server in the log, instead of coming back here.
            *self.served.lock() = ServedHere::default();
            match turn.successor {
                Some(successor) if !turn.is_lost => {
                    log.write_line("hands the worktree over");
                    // Before the end, which tells each client so in its last frame.
                    term.sharing.name_successor(successor);
                    match term.end(log, false).map(|report| report.failure) {
                        Ok(None) => log.write_line("stands by: another machine serves the worktree"),
                        Ok(Some(failure)) => log.write_error(&failure),
                        Err(error) => log.write_error(&error.to_string()),
                    }
                }
                Some(_) | None => {
                    // Nothing is published or released: the log belongs to another process, which has all that was synced
                    // here.
                    term.abandon();
                    log.write_warning("stands by: another machine has taken the worktree over");
                }
            }
        }
    }

    fn wait_for_end_of_term(&self) -> StandbyTurn {
        let mut turn = self.turn.lock();
        let goes_on = |turn: &mut StandbyTurn| !turn.is_ending && !turn.is_lost && turn.successor.is_none();
        self.changed.wait_while(&mut turn, goes_on);
        turn.begin_anew()
    }

    /// Waits until this process may serve. False: it ends.
    fn wait_for_turn(&self) -> bool {
        let ServingOptions { volume, worktree, log, .. } = &self.options;
        let mut watch = ServerWatch::new(volume.clone(), worktree.clone());
        let mut free_since: Option<Instant> = None;
        let mut problem = None;
        loop {
            let found = watch.find_server();
            // Read anew in each round: the server names the next one in its last moment.
            let is_named = self.turn.lock().is_named;
            let is_mine = match &found {
                Ok(None) => true,
                Ok(Some(found)) if found.released => {
                    let since = *free_since.get_or_insert_with(Instant::now);
                    // The others wait a little, so that the one that was chosen gets it without a race.
                    is_named || since.elapsed() >= PRECEDENCE
                }
                Ok(Some(found)) => {
                    // Somebody has claimed the log meanwhile: if it is given up again, precedence begins anew.
                    free_since = None;
                    is_over(found)
                }
                // An engine that does not answer says nothing about the server, which may be serving well.
                Err(_) => false,
            };
            let failure = found.err().map(|error| error.to_string());
            // One that stays is told once.
            if let Some(failure) = failure.as_ref().filter(|failure| problem.as_ref() != Some(*failure)) {
                log.write_warning(&format!("it cannot be seen who serves the worktree: {failure}"));
            }
            problem = failure;
            if !self.pause(if is_mine {
                Duration::ZERO
            } else if is_named {
                LOOK_EVERY_NAMED
            } else {
                LOOK_EVERY
            }) {
                return false;
            }
            if is_mine {
                return true;
            }
        }
    }

    /// Serves, unless another process is faster.
    fn try_to_serve(self: &Arc<Self>) -> Option<ServingTerm> {
        let ServingOptions { volume, worktree, log, .. } = &self.options;
        let begin = || {
            let head = live::find_live_worktree(volume, worktree)?;
            self.begin_term(self.options.acquire_claim()?, &LogUse::of_worktree(head.as_ref()), false)
        };
        match begin() {
            Ok(term) => {
                log.write_line(&format!("serves clients at {}", term.address));
                Some(term)
            }
            Err(CliError::Mounting(MountingError::Open(OpenError::LogInUse { .. }))) => None,
            Err(error) => {
                log.write_error(&format!("cannot serve the worktree: {}", error.format_chain()));
                // Without a pause the loop would try again at once, as the worktree still has no server.
                self.pause(RETRY_EVERY);
                None
            }
        }
    }

    /// Waits for some time, or until something changes. False: the process ends.
    fn pause(&self, time: Duration) -> bool {
        let mut turn = self.turn.lock();
        if !turn.is_ending && !time.is_zero() {
            self.changed.wait_for(&mut turn, time);
        }
        !turn.is_ending
    }
}

impl StandbyServer {
    /// Begins to serve, or to stand by.
    pub fn start(state: &Arc<StandbyState>, first: Option<ServingTerm>) -> Result<Self> {
        let for_thread = state.clone();
        let thread = std::thread::Builder::new()
            .name("vellum-standby".into())
            .spawn(move || for_thread.take_turns(first))
            .map_err(CliError::io_error("start", "a thread"))?;
        Ok(Self { state: state.clone(), thread: Some(thread) })
    }

    /// Begins no term any more; gives the one that is under way.
    pub fn end(mut self) -> Option<ServingTerm> {
        // It stays through `begin_anew`, so that no turn can begin behind it.
        self.state.turn.lock().is_ending = true;
        self.state.changed.notify_all();
        // A panic there has been reported already.
        let term = self.thread.take()?.join().ok().flatten()?;
        term.prepare_successor();
        Some(term)
    }
}

/// Whether a server has given up its claim, or has lost it for want of a renewal.
fn is_over(found: &ServerSighting) -> bool {
    found.released || found.age > CLAIM_TERM
}

/// The address by which this machine reaches what listens here.
fn reachable_address(listens: std::net::SocketAddr) -> String {
    use std::net::{Ipv4Addr, Ipv6Addr};
    let mut reachable = listens;
    // 0.0.0.0 and :: say where to listen, and are no address to connect to.
    if listens.ip().is_unspecified() {
        reachable.set_ip(match listens {
            std::net::SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            std::net::SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    reachable.to_string()
}
