//! The client of a session.
//!
//! Invariant: one request is in progress at a time; its answer is received completely before the next one is sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use vellum_host::ProgressMeter;

use super::feed;
use super::link::{IncomingMessage, SessionLink};
use super::message::{BeginRequest, FoundPath, SessionMessage};
use super::wire_source::WireSource;
use crate::ends::ListingRequest;
use crate::error::{Result, SyncError};
use crate::local::receive::{SyncJob, SyncReport};
use crate::model::listing::{ContentDigests, ListingEntryId, TreeListing};
use crate::plan::SyncPlan;
use crate::remote::wire::{FrameKind, WireError, WireFrame, encode_plan};

/// Bytes of an encoded hash: one byte for whether it is known, and the hash.
pub(super) const HASH_LEN: usize = 33;
/// How often a run checks whether it is to stop.
const LOOK: std::time::Duration = std::time::Duration::from_millis(100);

/// The client's side of a session.
pub struct SyncClient {
    link: Arc<SessionLink>,
    /// Held during a request.
    exchange: Mutex<()>,
}

impl SyncClient {
    /// Makes the client of a link.
    #[must_use]
    pub fn new(link: Arc<SessionLink>) -> Self {
        Self { link, exchange: Mutex::new(()) }
    }

    /// The link.
    #[must_use]
    pub fn link(&self) -> &Arc<SessionLink> {
        &self.link
    }

    /// The server's files.
    #[must_use]
    pub fn wire_source(&self) -> WireSource {
        WireSource::new(Arc::clone(&self.link))
    }

    /// Requests an end; returns what exists at its path.
    pub fn request_end(&self, begin: &BeginRequest) -> Result<FoundPath> {
        // Replies carry no request number, so requests of two threads must not overlap.
        let _exchange = self.exchange.lock();
        self.link.send_message(&SessionMessage::Begin(begin.clone()))?;
        self.receive_ready()
    }

    fn receive_ready(&self) -> Result<FoundPath> {
        match self.link.receive_message()? {
            IncomingMessage::Message(SessionMessage::Ready(found)) => Ok(found),
            _ => Err(unexpected_error()),
        }
    }

    /// Lists the end; with `begin` it requests that end in the same round trip.
    pub fn list_entries(
        &self,
        begin: Option<&BeginRequest>,
        wish: &ListingRequest,
        meter: &ProgressMeter,
    ) -> Result<TreeListing> {
        let _exchange = self.exchange.lock();
        // Both requests are sent before the first answer is awaited, which saves one round trip to the other
        // host.
        if let Some(begin) = begin {
            self.link.send_message(&SessionMessage::Begin(begin.clone()))?;
        }
        // Rules are sent as they were typed. The server reads the rule files of its own directories.
        let filters = wish.rules.sync_filters().map(|filters| (*filters).clone()).unwrap_or_default();
        // Each bulk answer has to be allowed before it is requested: otherwise a server could make this
        // process allocate memory for data that was not requested.
        self.link.allow_listing();
        self.link.send_message(&SessionMessage::List {
            options: Box::new((*wish.options).clone()),
            filters: Box::new(filters),
            top: wish.top.clone(),
            owners: wish.owners,
        })?;
        if begin.is_some()
            && let Err(error) = self.receive_ready()
        {
            // The answer to the other question, which is of no use now.
            let _ = self.link.receive_message();
            return Err(error);
        }
        match self.link.receive_message()? {
            IncomingMessage::Listing(listing) => {
                // The server does not report progress while it lists; all files are counted at once here.
                meter.add_progress(listing.count_files().0, 0);
                Ok((*listing).clone())
            }
            _ => Err(unexpected_error()),
        }
    }

    /// Hashes files of the end.
    pub fn hash_files(&self, files: &[ListingEntryId]) -> Result<ContentDigests> {
        let _exchange = self.exchange.lock();
        // The exact length of the answer is known, so nothing longer is accepted.
        self.link.allow_bulk_bytes(files.len() * HASH_LEN);
        self.send_entry_ids(files)?;
        self.link.send_message(&SessionMessage::Digest)?;
        let IncomingMessage::Bulk(bulk) = self.link.receive_message()? else {
            return Err(unexpected_error());
        };
        let IncomingMessage::Message(SessionMessage::Digested) = self.link.receive_message()? else {
            return Err(unexpected_error());
        };
        let (hashes, rest) = bulk.as_chunks::<HASH_LEN>();
        if !rest.is_empty() || hashes.len() != files.len() {
            return Err(unexpected_error());
        }
        Ok(hashes.iter().map(|[known, hash @ ..]| (*known == 1).then_some(*hash)).collect())
    }

    fn send_entry_ids(&self, entries: &[ListingEntryId]) -> Result<()> {
        // 256 KiB a frame: far below the limit, and other frames get in between.
        for part in entries.chunks(1 << 16) {
            let payload = part.iter().flat_map(|id| id.as_u32().to_le_bytes()).collect();
            self.link.send_frame(WireFrame::new(FrameKind::Digests, 0, payload))?;
        }
        Ok(())
    }

    /// Removes entries of the end.
    pub fn remove_entries(&self, entries: &[ListingEntryId], meter: &ProgressMeter) -> Result<SyncReport> {
        let _exchange = self.exchange.lock();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // This thread waits for the answer, so another one looks whether the user wants to stop.
            let watch = scope.spawn(|| self.forward_stop(meter, &done));
            let sent =
                self.send_entry_ids(entries).and_then(|()| self.link.send_message(&SessionMessage::Take));
            let outcome = sent.and_then(|()| self.wait_for_report(meter));
            done.store(true, Ordering::Relaxed);
            watch.thread().unpark();
            outcome
        })
    }

    /// Has the server carry out a plan, and sends the content that it requests meanwhile.
    pub fn execute_plan(&self, job: &SyncJob<'_>, meter: &ProgressMeter) -> Result<SyncReport> {
        let _exchange = self.exchange.lock();
        // The feed was ended by the last run on this connection. It is opened before the plan is sent,
        // because the server can ask for content as soon as it has the plan.
        self.link.feed.reset_requests();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // They run while the plan is sent and the report is awaited: the server asks for content meanwhile.
            for _ in 0..feed::THREADS {
                scope.spawn(|| feed::serve_requests(&self.link, job.source, job.from));
            }
            // This thread waits for messages, so another one watches for Ctrl-C.
            let watch = scope.spawn(|| self.forward_stop(meter, &done));
            let outcome = self.send_job(job).and_then(|()| self.wait_for_report(meter));
            done.store(true, Ordering::Relaxed);
            // The thread does not have to sleep until its next check.
            watch.thread().unpark();
            self.link.feed.end_requests();
            outcome
        })
    }

    fn send_job(&self, job: &SyncJob<'_>) -> Result<()> {
        self.link.send_message(&SessionMessage::CarryOut { options: Box::new(job.options.clone()) })?;
        self.link.send_listing(job.from)?;
        self.send_plan(job.plan)
    }

    fn send_plan(&self, plan: &SyncPlan) -> Result<()> {
        encode_plan(plan, &mut |payload| self.link.send_frame(WireFrame::new(FrameKind::Plan, 0, payload)))
    }

    fn wait_for_report(&self, meter: &ProgressMeter) -> Result<SyncReport> {
        let mut items = 0;
        let mut bytes = 0;
        loop {
            match self.link.receive_message()? {
                IncomingMessage::Message(SessionMessage::Progress { items: now_items, bytes: now_bytes }) => {
                    meter.add_progress(now_items.saturating_sub(items), now_bytes.saturating_sub(bytes));
                    // The numbers come from the other side. They must not make the progress go backwards.
                    (items, bytes) = (now_items.max(items), now_bytes.max(bytes));
                }
                IncomingMessage::Message(SessionMessage::Done(report)) => return Ok(report),
                _ => return Err(unexpected_error()),
            }
        }
    }

    /// Ends the session. The end of the stream has the same effect, so a failure to send does not matter.
    pub fn finish_session(&self) {
        let _ = self.link.send_message(&SessionMessage::Bye);
        self.link.close();
    }

    /// Tells the server to stop once a stop is requested here.
    fn forward_stop(&self, meter: &ProgressMeter, done: &AtomicBool) {
        // The request to stop is a flag, which does not wake waiting threads.
        while !done.load(Ordering::Relaxed) {
            if meter.check_stopped().is_err() {
                // If the connection is gone, the server stops by itself.
                let _ = self.link.send_message(&SessionMessage::Stop);
                return;
            }
            std::thread::park_timeout(LOOK);
        }
    }
}

impl Drop for SyncClient {
    fn drop(&mut self) {
        self.finish_session();
    }
}

fn unexpected_error() -> SyncError {
    SyncError::Wire(WireError::Unasked("another answer"))
}
