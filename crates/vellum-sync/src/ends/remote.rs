//! A directory of another host, reached through the system's `ssh`, as an end of a run.
//!
//! Invariant: nothing that was typed is passed to a shell, except what is meant for one (`--rsh`, `--remote-program`):
//! the path is sent in the session. A host that a program could parse as an option is refused. After the connection is
//! lost every operation fails until the end is listed again, which reconnects. Deliberately absent: the decision when
//! to try again.

mod address;
mod child;

use std::sync::Arc;

use parking_lot::Mutex;
use vellum_host::ProgressMeter;

pub use address::{AddressError, RemoteAddress, RemoteShell};
use child::ConnectedProgram;

use crate::ends::{ListingRequest, OldVersion, SourceContent, SourceEnd, SyncEnd, WantedFile};
use crate::error::{Result, SyncError};
use crate::local::receive::{DestinationEnd, SyncJob, SyncReport};
use crate::model::listing::{ContentDigests, ListingEntry, ListingEntryId, TreeListing};
use crate::remote::session::{BeginRequest, FoundPath, LinkSettings, ServerRole};

/// One end of a run on another host. Clones are handles of the same end.
#[derive(Clone)]
pub struct RemoteEnd {
    inner: Arc<RemoteEndInner>,
}

struct RemoteEndInner {
    address: RemoteAddress,
    shell: RemoteShell,
    settings: LinkSettings,
    state: Mutex<RemoteEndState>,
}

struct RemoteEndState {
    begin: BeginRequest,
    /// The server has received `begin`.
    is_asked: bool,
    connected: Arc<ConnectedProgram>,
    /// Bytes sent and received by earlier connections.
    before: (u64, u64),
    /// How many earlier connections were established and then lost.
    cuts: u32,
}

impl RemoteEnd {
    /// Connects. The end itself is requested when it is inspected or listed.
    pub fn connect(
        address: RemoteAddress,
        shell: RemoteShell,
        role: ServerRole,
        settings: LinkSettings,
    ) -> Result<Self> {
        let begin = BeginRequest {
            role,
            path: address.path.clone(),
            name: None,
            follows_name: false,
            timeout: settings.timeout,
        };
        let connected = Arc::new(ConnectedProgram::start_program(&address, &shell, &settings)?);
        tracing::info!(host = address.host, "connection started");
        let state = Mutex::new(RemoteEndState { begin, is_asked: false, connected, before: (0, 0), cuts: 0 });
        Ok(Self { inner: Arc::new(RemoteEndInner { address, shell, settings, state }) })
    }

    /// The same end with a connection of its own, whose listings do not change entry numbers of this one.
    pub fn connect_duplicate(&self) -> Result<Self> {
        let inner = &*self.inner;
        let begin = self.inner.state.lock().begin.clone();
        let address = inner.address.clone();
        let shell = inner.shell.clone();
        let other = Self::connect(address, shell, begin.role, inner.settings)?;
        other.inner.state.lock().begin = begin;
        Ok(other)
    }

    /// Selects another path on the same host. `name` is the name under which a single entry of a source is listed.
    pub fn set_target(&self, path: Vec<u8>, name: Option<Vec<u8>>) {
        let mut state = self.inner.state.lock();
        state.begin.path = path;
        state.begin.name = name;
        // The server still has the end before.
        state.is_asked = false;
    }

    /// Allows the last component of a destination to be a symlink to a directory within the one that the user named.
    pub fn follow_target_name(&self) {
        self.inner.state.lock().begin.follows_name = true;
    }

    /// The path of this end.
    #[must_use]
    pub fn path(&self) -> Vec<u8> {
        self.inner.state.lock().begin.path.clone()
    }

    /// The name that was set with the path.
    #[must_use]
    pub fn target_name(&self) -> Option<Vec<u8>> {
        self.inner.state.lock().begin.name.clone()
    }

    /// Inspects what exists at the path.
    pub fn inspect_target(&self) -> Result<FoundPath> {
        let (begin, connected) = {
            let state = self.inner.state.lock();
            (state.begin.clone(), Arc::clone(&state.connected))
        };
        let found =
            connected.client.request_end(&begin).map_err(|error| self.explain_loss(&connected, error))?;
        self.inner.state.lock().is_asked = true;
        Ok(found)
    }

    fn connected_program(&self) -> Arc<ConnectedProgram> {
        Arc::clone(&self.inner.state.lock().connected)
    }

    /// Whether the connection is lost.
    pub fn is_lost(&self) -> bool {
        self.connected_program().client.link().loss_reason().is_some()
    }

    /// Whether the connection was established and is lost: a new one may work.
    pub fn is_interrupted(&self) -> bool {
        let connected = self.connected_program();
        connected.client.link().loss_reason().is_some() && connected.client.link().has_connected()
    }

    /// How many established connections were lost so far.
    pub fn count_disconnects(&self) -> u32 {
        // This takes the lock by itself, so it comes before the lock below. Taking it twice in one thread
        // would block forever.
        let now = u32::from(self.is_interrupted());
        self.inner.state.lock().cuts + now
    }

    /// Bytes sent and received.
    pub fn traffic(&self) -> (u64, u64) {
        let state = self.inner.state.lock();
        let (sent, received) = state.connected.client.link().traffic();
        (state.before.0 + sent, state.before.1 + received)
    }

    /// Reconnects if the connection is lost.
    fn reconnect(&self) -> Result<()> {
        if !self.is_lost() {
            return Ok(());
        }
        // The counters of the lost connection are read before it is replaced, so that the summary counts all
        // bytes.
        let before = self.traffic();
        let cuts = self.count_disconnects();
        let inner = &*self.inner;
        let connected =
            Arc::new(ConnectedProgram::start_program(&inner.address, &inner.shell, &inner.settings)?);
        let mut state = self.inner.state.lock();
        let gone = std::mem::replace(&mut state.connected, connected);
        state.is_asked = false;
        (state.before, state.cuts) = (before, cuts);
        drop(state);
        // This waits for the child process, so the lock has to be released first.
        drop(gone);
        Ok(())
    }

    fn explain_loss(&self, connected: &ConnectedProgram, error: SyncError) -> SyncError {
        match (error, connected.client.link().loss_reason()) {
            (SyncError::Lost, Some(why)) => SyncError::LostTo { host: self.inner.address.host.clone(), why },
            (error, _) => error,
        }
    }
}

impl SyncEnd for RemoteEnd {
    fn list_entries(&self, wish: &ListingRequest, meter: &ProgressMeter) -> Result<TreeListing> {
        self.reconnect()?;
        let (begin, connected) = {
            let mut state = self.inner.state.lock();
            // If this request fails, the server may not have the end. It does not matter: after a loss,
            // reconnecting resets the flag, and a path that cannot be opened fails again.
            let is_asked = std::mem::replace(&mut state.is_asked, true);
            ((!is_asked).then(|| state.begin.clone()), Arc::clone(&state.connected))
        };
        connected
            .client
            .list_entries(begin.as_ref(), wish, meter)
            .map_err(|error| self.explain_loss(&connected, error))
    }

    fn hash_files(
        &self,
        _: &TreeListing,
        files: &[ListingEntryId],
        _: &ProgressMeter,
    ) -> Result<ContentDigests> {
        let connected = self.connected_program();
        connected.client.hash_files(files).map_err(|error| self.explain_loss(&connected, error))
    }
}

impl SourceEnd for RemoteEnd {
    fn announce_files(&self, listing: &TreeListing, files: &[WantedFile]) {
        self.connected_program().client.wire_source().announce_files(listing, files);
    }

    fn open_content(&self, file: ListingEntry<'_>, old: Option<OldVersion<'_>>) -> Result<SourceContent> {
        let connected = self.connected_program();
        connected
            .client
            .wire_source()
            .open_content(file, old)
            .map_err(|error| self.explain_loss(&connected, error))
    }

    fn remove_entries(
        &self,
        _: &TreeListing,
        entries: &[ListingEntryId],
        meter: &ProgressMeter,
    ) -> Result<SyncReport> {
        let connected = self.connected_program();
        connected.client.remove_entries(entries, meter).map_err(|error| self.explain_loss(&connected, error))
    }
}

impl DestinationEnd for RemoteEnd {
    fn execute_plan(&self, job: &SyncJob<'_>, meter: &ProgressMeter) -> Result<SyncReport> {
        if let Some(refusal) = &job.plan.refusal {
            return Err(SyncError::Refused(refusal.clone()));
        }
        // Nothing would be written, so the listing need not be sent. A run that moves entries still has to
        // make the destination durable.
        if job.plan.is_empty() && job.plan.moved.is_empty() {
            return Ok(SyncReport::default());
        }
        let connected = self.connected_program();
        meter.begin_phase(job.plan.steps.len() as u64, job.plan.counts.write_bytes);
        connected.client.execute_plan(job, meter).map_err(|error| self.explain_loss(&connected, error))
    }
}
