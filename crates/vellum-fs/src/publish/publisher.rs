//! The thread that publishes in the background, so that little is unpublished at any moment.
//!
//! It seals and publishes if a snapshot is pending, if many changes have accumulated, and if nothing was written for
//! a while. While the store is unreachable the write log grows; publishing is retried at increasing intervals.
//! Writers that wait for space are informed if publishing could not free any because the store is full.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use vellum_host::clock::current_time;
use vellum_live::CommitSequence;
use vellum_store::RequestPurpose;
use vellum_types::ErrorKind;

use crate::error::{FsError, Result};
use crate::log::LogDisk;
use crate::publish::{LivePublisher, PublishProgress};

/// How often it looks whether there is something to do.
const TICK: Duration = Duration::from_millis(500);
/// Changes this old are published though nothing presses, if nothing was changed for [`QUIET`].
const QUIET: Duration = Duration::from_secs(5);
/// Changes are published after this time though there are always new ones.
const LONGEST: Duration = Duration::from_secs(60);
/// Live metadata in memory that are published at once, bytes: they bound the daemon's memory.
const METADATA: usize = 48 << 20;
/// File data in the write log that are published at once, bytes.
const LOG: u64 = 512 << 20;
/// How far publishing steps back behind who works on the mount: about a tenth of a processor that both want.
const NICE: i32 = 10;
/// How long it waits after a failure at first, and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Publishes a worktree until it is dropped.
pub struct BackgroundPublisher {
    shared: Arc<PublisherState>,
    thread: Option<JoinHandle<()>>,
}

struct PublisherState {
    publisher: Arc<LivePublisher>,
    stop: AtomicBool,
    requested: Mutex<bool>,
    wake: Condvar,
    failure: Mutex<Option<String>>,
}

/// What the thread remembers between two looks.
struct PublisherWatch {
    seen: CommitSequence,
    seen_at: Instant,
    published: CommitSequence,
    published_at: Instant,
    backoff: Duration,
}

impl BackgroundPublisher {
    /// Starts the thread.
    pub fn start(publisher: Arc<LivePublisher>) -> std::io::Result<Self> {
        let shared = Arc::new(PublisherState {
            publisher,
            stop: AtomicBool::new(false),
            requested: Mutex::new(false),
            wake: Condvar::new(),
            failure: Mutex::default(),
        });
        // Weak: what the log calls must not keep alive what keeps the log.
        let for_log = Arc::downgrade(&shared);
        let log = &shared.publisher.log;
        log.set_pressure_hook(move || {
            if let Some(shared) = for_log.upgrade() {
                shared.request_publish();
            }
        });
        let for_disk = Arc::downgrade(&shared.publisher);
        log.set_disk_probe(move || for_disk.upgrade()?.state_disk());
        let worker = shared.clone();
        let pool = rayon::ThreadPoolBuilder::new()
            .thread_name(|number| format!("publish-{number}"))
            .start_handler(|_| {
                lower_priority();
                RequestPurpose::Upload.set_for_thread();
            })
            .build()
            .map_err(std::io::Error::other)?;
        let work = move || {
            lower_priority();
            RequestPurpose::Upload.set_for_thread();
            worker.run_publisher(&pool);
        };
        let thread = std::thread::Builder::new().name("publisher".into()).spawn(work)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Asks it to publish soon.
    pub fn request_publish(&self) {
        self.shared.request_publish();
    }

    /// Why the last attempt failed; None if it did not.
    #[must_use]
    pub fn last_failure(&self) -> Option<String> {
        self.shared.failure.lock().clone()
    }
}

impl Drop for BackgroundPublisher {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic there has been told already.
            let _ = thread.join();
        }
    }
}

impl PublisherState {
    fn request_publish(&self) {
        *self.requested.lock() = true;
        self.wake.notify_all();
    }

    fn run_publisher(&self, pool: &rayon::ThreadPool) {
        let now = Instant::now();
        let seen = self.publisher.map.last_commit();
        let mut watch = PublisherWatch {
            seen,
            seen_at: now,
            published: CommitSequence(0),
            published_at: now,
            backoff: BACKOFF.0,
        };
        let mut requested = false;
        while !self.stop.load(Ordering::Acquire) {
            requested |= self.wait_for_request(TICK);
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            // Before publishing looks at what there is: whoever began to wait before this is served by this attempt.
            let attempt = std::mem::take(&mut requested).then(|| self.publisher.log.begin_publish_attempt());
            // In a pool of its own, whose threads have a lower priority.
            let outcome = pool.install(|| self.publish_changes(attempt.is_some(), &mut watch));
            if let Some(attempt) = attempt {
                self.publisher.free_log_space();
                let is_full = outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace);
                self.publisher.log.end_publish_attempt(attempt, is_full);
            }
            let failed = outcome.is_err();
            if let Err(error) = &outcome {
                tracing::warn!(%error, retry = ?watch.backoff, "publishing failed");
            }
            if outcome.as_ref().is_err_and(FsError::is_fenced_error) {
                // Nothing is ever freed again: who waits for room goes on, and is refused.
                self.publisher.log.set_limit(u64::MAX);
            }
            *self.failure.lock() = outcome.err().map(|error| error.to_string());
            if failed {
                // Whoever asks ends the pause: a person who has repaired the store need not wait for the next
                // attempt.
                requested = self.wait_for_request(watch.backoff);
                watch.backoff = (watch.backoff * 2).min(BACKOFF.1);
            } else {
                watch.backoff = BACKOFF.0;
            }
        }
    }

    /// Waits until somebody asks, or some time has passed; whether somebody asked.
    fn wait_for_request(&self, time: Duration) -> bool {
        let mut requested = self.requested.lock();
        let idle = |requested: &mut bool| !*requested && !self.stop.load(Ordering::Acquire);
        self.wake.wait_while_for(&mut requested, idle, time);
        std::mem::take(&mut *requested)
    }

    fn publish_changes(&self, requested: bool, watch: &mut PublisherWatch) -> Result<()> {
        // Taken before: what is changed while it publishes is younger than this, and remains.
        let begun = current_time();
        let last = self.publisher.map.last_commit();
        if last != watch.seen {
            (watch.seen, watch.seen_at) = (last, Instant::now());
        }
        // Before something is tried that may fail.
        self.publisher.note_unpublished(None)?;
        if requested || self.is_publish_due(watch) {
            self.publisher.publish_all()?;
            // The commit that was read at the beginning: later ones may not be part of what was published.
            (watch.published, watch.published_at) = (last, Instant::now());
            self.publisher.note_unpublished(Some(begun))
        } else {
            // What is sealed does not change any more, so that nothing is gained by waiting.
            while self.publisher.publish_oldest()? == PublishProgress::Some {}
            Ok(())
        }
    }

    fn is_publish_due(&self, watch: &PublisherWatch) -> bool {
        if watch.seen == watch.published {
            return false;
        }
        self.publisher.map.live_store().memory_size() > METADATA
            || self.publisher.log.used_bytes() > LOG
            || watch.seen_at.elapsed() > QUIET
            || watch.published_at.elapsed() > LONGEST
    }
}

impl LivePublisher {
    /// The disk of the state directory, and what publishing will put onto it.
    fn state_disk(&self) -> Option<LogDisk> {
        let path = self.volume.state.path();
        let disk = rustix::fs::statvfs(path).ok()?;
        // Store and state directory share their free space only if they are on one filesystem.
        let device = |path: &Path| rustix::fs::stat(path).map(|stat| stat.st_dev).ok();
        let store = self.volume.objects.local_dir().and_then(device);
        Some(LogDisk {
            size: disk.f_blocks.saturating_mul(disk.f_frsize),
            free: disk.f_bavail.saturating_mul(disk.f_frsize),
            metadata: self.map.live_store().memory_size() as u64,
            has_store: store.is_some() && store == device(path),
        })
    }
}

/// Lets programs that use the mount, and the threads that serve them, go first: publishing takes what they leave.
fn lower_priority() {
    // Without it everything works, only less evenly.
    let _ = rustix::process::nice(NICE);
}
