//! All sessions of a server: those that exist, and those that ended a short time ago.
//!
//! A session that has ended begins again when its client comes back: what it held is let go, and its last answers are
//! still known.
//!
//! Invariant: a session is in one of the two tables under its name, or is on its way from one to the other; a name is never given to another client.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use vellum_fuse::transport::{ChangeGate, GatedService};
use vellum_host::escape::format_path;

use super::leases::LeaseGate;
use super::session::{ClientSession, SessionOrigin, SessionResumption};
use super::{MarkRemoval, ServerOptions, SessionStatus};
use crate::error::{ClusterError, Result};
use crate::protocol::SessionId;
use crate::protocol::frame::{ClientDescription, ServerProcess};

/// Sessions at once, those included that ended a short time ago: a count. Each has some ten threads, and a client that
/// wants it can make it take some 40 MiB.
const SESSIONS_MAX: usize = 128;
/// How long files without a name are kept for clients of an earlier process.
const RECONNECT_TIME: Duration = Duration::from_secs(30);
/// How long clients of an earlier process have for taking up their locks: longer than they need for finding this process.
const LOCK_GRACE: Duration = Duration::from_secs(10);
/// How long the answers of a session that has ended are kept: longer than a client waits for a server, which then fails what
/// was not answered.
const ENDED_KEPT: Duration = Duration::from_secs(150);

/// How long the end of a server waits for requests that are under way, and how often it looks.
const ANSWERING_MAX: Duration = Duration::from_secs(5);
const ANSWERING_PAUSE: Duration = Duration::from_millis(10);

/// The sessions.
pub struct SessionTable {
    pub options: ServerOptions,
    /// Which process this is, for clients.
    process: [u8; 16],
    tables: Mutex<SessionTables>,
    /// A session has ended.
    has_ended: Condvar,
    started: Instant,
    has_removed_earlier: AtomicBool,
    has_ended_reconnects: AtomicBool,
    has_ended_grace: AtomicBool,
    /// Whose process serves next.
    successor: Mutex<Option<SessionId>>,
}

#[derive(Default)]
struct SessionTables {
    present: HashMap<SessionId, Arc<ClientSession>>,
    ended: HashMap<SessionId, EndedSession>,
    /// Those that are in neither table, since what they hold is being let go.
    ending: HashSet<SessionId>,
    /// The server ends.
    is_closed: bool,
}

struct EndedSession {
    session: Arc<ClientSession>,
    at: Instant,
}

/// The session of a client that has connected.
pub struct FoundSession {
    pub session: Arc<ClientSession>,
    pub id: SessionId,
    /// Whether it is the one that the client had.
    pub resumed: bool,
    /// How many of the nodes that the client has named in it are held.
    pub held: u64,
    /// Whether the client has to take up its locks.
    pub may_reclaim: bool,
}

impl SessionTable {
    /// Without sessions.
    pub fn new(options: ServerOptions) -> Self {
        let mut process = [0; 16];
        vellum_crypto::fill_random(&mut process);
        Self {
            options,
            process,
            tables: Mutex::default(),
            has_ended: Condvar::new(),
            started: Instant::now(),
            has_removed_earlier: AtomicBool::new(false),
            has_ended_reconnects: AtomicBool::new(false),
            has_ended_grace: AtomicBool::new(false),
            successor: Mutex::new(None),
        }
    }

    /// What a client learns of this process.
    pub fn describe_process(&self, session: &ClientSession) -> ServerProcess {
        ServerProcess { id: self.process, carried_out: session.carried_out().clone() }
    }

    /// The session of a client, which names the one that it had.
    pub fn find_or_begin(
        &self,
        earlier: SessionId,
        client: ClientDescription,
        address: SocketAddr,
    ) -> Result<FoundSession> {
        if !self.options.services.is_serving() {
            // The client tries again, and then finds whoever serves.
            return Err(ClusterError::Full);
        }
        let mut tables = self.tables.lock();
        // Otherwise what it is to hold from now on could be let go together with what it has held.
        self.has_ended.wait_while(&mut tables, |tables| tables.ending.contains(&earlier));
        if let Some(session) = tables.present.get(&earlier) {
            let may_reclaim = self.options.services.may_reclaim(earlier);
            let SessionResumption { resumed, held } = session.resume();
            return Ok(FoundSession { session: session.clone(), id: earlier, resumed, held, may_reclaim });
        }
        let host = format_path(client.host.as_bytes());
        let mountpoint = format_path(&client.mountpoint);
        let ended = tables.ended.remove(&earlier);
        // The ended session was taken out before, so that it is not the one that is dropped for room.
        tables.make_room()?;
        drop(tables);
        // Without the lock: threads are started, and the worktree is read.
        let (id, session) = match ended {
            Some(EndedSession { session, .. }) => {
                session.begin_again(client, address);
                (earlier, session)
            }
            None => self.start_session(earlier, client, address)?,
        };
        self.options.services.begin_session(id);
        // Of two connections that name one session, the later one has it.
        let mut tables = self.tables.lock();
        if tables.is_closed {
            return Err(ClusterError::Full);
        }
        tables.present.insert(id, session.clone());
        drop(tables);
        (self.options.report)(&format!("session {id} begins: {mountpoint} on {host} ({address})"));
        let may_reclaim = self.options.services.may_reclaim(id);
        Ok(FoundSession { session, id, resumed: false, held: 0, may_reclaim })
    }

    /// Starts a session. It keeps its name if an earlier process has carried out requests under it, or has set locks.
    fn start_session(
        &self,
        earlier: SessionId,
        client: ClientDescription,
        address: SocketAddr,
    ) -> Result<(SessionId, Arc<ClientSession>)> {
        let services = &self.options.services;
        let recovered = services.find_marked(earlier)?;
        // The marks are found by the session's name, and the client sends again under its old numbers: with a new name, a
        // request that was carried out would be carried out twice.
        // Its locks are noted under it, too.
        let is_known = !recovered.is_empty() || services.may_reclaim(earlier);
        let id = if is_known { earlier } else { SessionId::generate() };
        let service = services.start_service(id, &client)?;
        let origin = SessionOrigin { id, client, address, recovered };
        let leases = self.options.leases.clone();
        let gate: Arc<dyn ChangeGate> = Arc::new(LeaseGate { table: leases.clone(), session: Some(id) });
        let service = Arc::new(GatedService::new(service, Some(gate)));
        Ok((id, Arc::new(ClientSession::new(origin, service, services.clone(), leases)?)))
    }

    /// Ends the sessions of which nothing was heard for too long, and forgets those that ended long ago.
    pub fn end_silent_sessions(&self) {
        // Collected first: ending one takes the lock, and calls what may take long.
        let silent: Vec<_> = {
            let tables = self.tables.lock();
            let sessions = tables.present.iter();
            let silent = sessions.filter(|(_, session)| session.is_silent_for(self.options.term));
            silent.map(|(id, _)| *id).collect()
        };
        for id in silent {
            if self.end_session(id) {
                (self.options.report)(&format!("session {id} has ended: nothing was heard of its client"));
            }
        }
        // Its lease term is over by any clock, so the change has gone on without it. What it still caches is only sure to
        // be gone when it begins a new session.
        for id in self.options.leases.take_overdue() {
            if self.end_session(id) {
                (self.options.report)(&format!(
                    "session {id} has ended: its client does not give back what it has cached"
                ));
            }
        }
        // Dropped without the lock: their services end.
        let is_old = |_: &SessionId, ended: &mut EndedSession| ended.at.elapsed() >= ENDED_KEPT;
        let forgotten: Vec<_> = self.tables.lock().ended.extract_if(is_old).collect();
        forgotten.iter().for_each(|(id, _)| self.remove_marks(MarkRemoval::Session(*id)));
        drop(forgotten);
        self.end_lock_grace();
        self.end_reconnect_time();
        self.remove_earlier_marks();
    }

    /// Lets others have, once, what clients of an earlier process had locked who have not come back.
    fn end_lock_grace(&self) {
        if self.started.elapsed() >= LOCK_GRACE && !self.has_ended_grace.swap(true, Ordering::AcqRel) {
            self.options.services.end_lock_grace();
        }
    }

    /// Lets go, once, what clients of an earlier process had open who have not come back.
    fn end_reconnect_time(&self) {
        if self.started.elapsed() < RECONNECT_TIME || self.has_ended_reconnects.swap(true, Ordering::AcqRel) {
            return;
        }
        // What stays is removed by a later process.
        if let Err(error) = self.options.services.end_reconnect_time() {
            (self.options.report)(&format!("files without a name cannot be removed: {error}"));
        }
    }

    /// Removes, once, what an earlier process has left of sessions whose clients have not come back.
    fn remove_earlier_marks(&self) {
        if self.started.elapsed() < ENDED_KEPT || self.has_removed_earlier.swap(true, Ordering::AcqRel) {
            return;
        }
        // Also those that ended a short time ago: they may come back and ask for what was carried out.
        let known: Vec<_> = {
            let tables = self.tables.lock();
            tables.present.keys().chain(tables.ended.keys()).copied().collect()
        };
        self.remove_marks(MarkRemoval::AllBut(&known));
    }

    fn remove_marks(&self, removed: MarkRemoval<'_>) {
        // What stays is removed by a later process.
        if let Err(error) = self.options.services.remove_marks(removed) {
            (self.options.report)(&format!("marks of requests cannot be removed: {error}"));
        }
    }

    /// Ends a session by order. False: there is none of this name.
    pub fn evict_session(&self, id: SessionId) -> bool {
        let was_there = self.end_session(id);
        if was_there {
            (self.options.report)(&format!("session {id} was evicted"));
        }
        was_there
    }

    /// Takes a session that is about to end.
    fn take_ending(&self, id: SessionId) -> Option<Arc<ClientSession>> {
        let mut tables = self.tables.lock();
        let session = tables.present.remove(&id)?;
        // In the same step as it leaves the table: a client that comes back in between would otherwise get a new session,
        // of which the locks and nodes of the old one are let go.
        tables.ending.insert(id);
        Some(session)
    }

    fn end_session(&self, id: SessionId) -> bool {
        let Some(session) = self.take_ending(id) else { return false };
        session.end(false);
        let mut tables = self.tables.lock();
        // Only now is it found again, and whoever waits for its end goes on with its last answers.
        tables.ended.insert(id, EndedSession { session, at: Instant::now() });
        tables.ending.remove(&id);
        drop(tables);
        self.has_ended.notify_all();
        true
    }

    /// Ends a session whose client has said that it ends: nothing of it is kept.
    pub fn dismiss_session(&self, id: SessionId) {
        let Some(session) = self.take_ending(id) else { return };
        session.end(false);
        // The client has said that it uses nothing any more, so no change needs to wait for its term.
        session.forget_leases();
        // Nobody sends these requests again.
        self.remove_marks(MarkRemoval::Session(id));
        self.tables.lock().ending.remove(&id);
        self.has_ended.notify_all();
        (self.options.report)(&format!("session {id} has ended: its client was unmounted"));
    }

    /// Says whose process serves next.
    pub fn name_successor(&self, id: SessionId) {
        *self.successor.lock() = Some(id);
    }

    /// Ends all sessions, after what is under way was answered, if that is soon.
    pub fn end_all(&self) {
        let present = {
            let mut tables = self.tables.lock();
            // find_or_begin starts a session without the lock, and looks at this before it adds it.
            tables.is_closed = true;
            std::mem::take(&mut tables.present)
        };
        present.values().for_each(|session| session.stop_requests());
        let begun = Instant::now();
        while begun.elapsed() < ANSWERING_MAX && !present.values().all(|session| session.is_idle()) {
            std::thread::sleep(ANSWERING_PAUSE);
        }
        // The next server changes what clients use. One that is cut off does not learn of the end.
        let _change = self.options.services.is_serving().then(|| self.options.leases.begin_change_of_all());
        // Before the first session ends: what it has locked must not be granted to another one, since it takes that up at
        // the next process.
        self.options.services.suspend_locks();
        let successor = *self.successor.lock();
        present.iter().for_each(|(id, session)| session.end(successor == Some(*id)));
        // What keeps their answers would keep the worktree open.
        let ended = std::mem::take(&mut self.tables.lock().ended);
        drop(ended);
    }

    /// The sessions, in the order in which they began.
    pub fn list_sessions(&self) -> Vec<SessionStatus> {
        // Described without the lock of the tables, since each takes the lock of its session.
        let sessions: Vec<_> = self.tables.lock().present.values().cloned().collect();
        let mut all: Vec<_> = sessions.iter().map(|session| session.describe()).collect();
        all.sort_by_key(|status| std::cmp::Reverse(status.age));
        all
    }
}

impl SessionTables {
    /// Fails if there are as many sessions as there may be. Of those that have ended, the oldest goes first.
    fn make_room(&mut self) -> Result<()> {
        while self.present.len() + self.ended.len() >= SESSIONS_MAX {
            // Its answers were kept the longest, so its client is the least likely to come back.
            let oldest = self.ended.iter().min_by_key(|(_, ended)| ended.at).map(|(id, _)| *id);
            let id = oldest.ok_or(ClusterError::Full)?;
            self.ended.remove(&id);
        }
        Ok(())
    }
}
