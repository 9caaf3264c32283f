//! The thread that makes transactions durable for which no caller waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::engine::EmbeddedEngine;
use crate::error::LiveError;

/// How long a transaction may stay unsynced, and so be lost with the power, if no caller waits for it.
const SYNC_AFTER: Duration = Duration::from_secs(1);

/// The running thread; it ends when this is dropped, after a last sync.
pub(crate) struct BackgroundSync {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundSync {
    pub(crate) fn start(engine: Arc<EmbeddedEngine>) -> Result<Self, LiveError> {
        let stop = Arc::new(AtomicBool::new(false));
        let engine_too = Arc::clone(&engine);
        let stop_too = Arc::clone(&stop);
        let spawned = thread::Builder::new()
            .name("live-journal".into())
            .spawn(move || run_background_sync(&engine_too, &stop_too))
            .map_err(|source| LiveError::Io {
                action: "start a thread for",
                path: "the journal".into(),
                source,
            })?;
        // Set once, since an engine has one thread.
        let _ = engine.background.set(spawned.thread().clone());
        Ok(Self { stop, thread: Some(spawned) })
    }
}

impl Drop for BackgroundSync {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // The thread may be parked, or wait out the second. Either way it looks at the flag next.
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn run_background_sync(engine: &EmbeddedEngine, stop: &AtomicBool) {
    let stopped = || stop.load(Ordering::Acquire);
    while !stopped() {
        if !engine.dirty.load(Ordering::Acquire) {
            // A transaction that sets the flag before this call is not lost: its `unpark` lets the call return at
            // once.
            thread::park();
            continue;
        }
        // Transactions of a second share one sync, unless the journal has grown so much that its checkpoint should
        // begin.
        let until = Instant::now() + SYNC_AFTER;
        while !stopped() && Instant::now() < until && !engine.grown.swap(false, Ordering::AcqRel) {
            thread::park_timeout(until.saturating_duration_since(Instant::now()));
        }
        // Before the sync: what is written during it may not be part of it, and makes the engine dirty again.
        engine.dirty.store(false, Ordering::Release);
        // A failure poisons the engine, and the next caller gets an error. A failure to tidy up leaves everything as
        // it was.
        let synced = engine.wait_until_durable(u64::MAX).and_then(|()| engine.run_maintenance());
        // A sync that was only delayed is tried again, though nothing is written meanwhile.
        if synced.is_err() && engine.check_not_failed().is_ok() {
            engine.dirty.store(true, Ordering::Release);
        }
    }
    // Only durable transactions were promised to survive, but a store that is closed in the regular way loses none.
    let _ = engine.wait_until_durable(u64::MAX);
}
