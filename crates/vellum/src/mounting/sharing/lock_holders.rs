//! Which sessions have locks, kept in the worktree so that the next process that serves knows them.
//!
//! Invariant: a session is noted before it gets a lock, and is noted no more before others can get what it had.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use vellum_cluster::LockHolderRecorder;
use vellum_cluster::locks::{LockSession, LockTable};
use vellum_cluster::protocol::SessionId;
use vellum_fs::LiveFilesystem;
use vellum_host::error_chain::format_error_chain;

use super::super::log::MountLog;

/// The sessions of a process that serves.
pub struct LockHolders {
    fs: Arc<LiveFilesystem>,
    table: Arc<LockTable>,
    log: Arc<MountLog>,
    noted: Mutex<BTreeSet<SessionId>>,
    is_suspended: AtomicBool,
}

impl LockHolders {
    /// Finds those that an earlier process has noted, and lets nobody else lock anything until they had time to come back.
    pub fn open(
        fs: Arc<LiveFilesystem>,
        table: Arc<LockTable>,
        log: Arc<MountLog>,
    ) -> vellum_fs::Result<Self> {
        let noted: BTreeSet<_> = fs.lock_holders()?.into_iter().map(SessionId).collect();
        table.begin_grace(noted.iter().map(|session| LockSession(session.0)).collect());
        Ok(Self { fs, table, log, noted: Mutex::new(noted), is_suspended: AtomicBool::new(false) })
    }

    /// What notes a session before it gets a lock.
    pub fn new_recorder(self: &Arc<Self>, session: SessionId) -> LockHolderRecorder {
        let holders = self.clone();
        Arc::new(move || holders.note(session))
    }

    fn note(&self, session: SessionId) -> Result<(), Errno> {
        // Held while the worktree is changed, so that nobody believes that it is noted before it is.
        let mut noted = self.noted.lock();
        if !noted.contains(&session) {
            self.fs.add_lock_holder(session.0).map_err(|error| error.errno())?;
            noted.insert(session);
        }
        Ok(())
    }

    /// A session has ended. To be called before others can get what it had.
    pub fn remove(&self, session: SessionId) {
        // It has only ended here, and goes on at the next process.
        if self.is_suspended.load(Ordering::Acquire) {
            return;
        }
        if self.noted.lock().remove(&session) {
            self.forget(&[session]);
        }
    }

    /// Those that have not come back have lost their locks.
    pub fn end_grace(&self) {
        let lost: Vec<_> =
            self.table.list_awaited().into_iter().map(|session| SessionId(session.0)).collect();
        {
            let mut noted = self.noted.lock();
            for session in &lost {
                noted.remove(session);
            }
        }
        self.forget(&lost);
        self.table.end_grace();
    }

    /// The process ends, and another one goes on with the locks.
    pub fn suspend(&self) {
        self.is_suspended.store(true, Ordering::Release);
        self.table.suspend();
    }

    fn forget(&self, sessions: &[SessionId]) {
        let ids: Vec<_> = sessions.iter().map(|session| session.0).collect();
        if let Err(error) = self.fs.remove_lock_holders(&ids) {
            let reason = format_error_chain(&error);
            self.log.write_warning(&format!("sessions that had locks cannot be forgotten: {reason}"));
        }
    }
}
