//! The thread that publishes in the background, so that little is unpublished at any moment.
//!
//! It seals and publishes if a snapshot is pending, and when the schedule says so ([`super::schedule`]). While the store
//! is unreachable the write log grows; publishing is retried at increasing intervals. Writers that wait for space are
//! informed if publishing could not free any because the store is full.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vellum_host::clock::current_time;
use vellum_host::fork_safe::{Condvar, Mutex};
use vellum_store::RequestPurpose;
use vellum_types::ErrorKind;

use crate::error::{FsError, Result};
use crate::log::LogDisk;
use crate::publish::schedule::{LiveAmount, PublishSchedule, PublishWatch};
use crate::publish::{LivePublisher, PublishProgress};

/// How often it looks whether there is something to do.
const TICK: Duration = Duration::from_millis(500);
/// How often entries of the trash are looked for that have been there for too long.
const EXPIRE_EVERY: Duration = Duration::from_secs(60 * 60);
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
    /// How old a change may become that is not published; None: as is usual for the store.
    longest: Option<Duration>,
}

impl BackgroundPublisher {
    /// Starts the thread. `longest`: how old a change may become before publishing begins; None: as is usual for the store.
    pub fn start(publisher: Arc<LivePublisher>, longest: Option<Duration>) -> std::io::Result<Self> {
        let shared = Arc::new(PublisherState {
            publisher,
            stop: AtomicBool::new(false),
            requested: Mutex::new(false),
            wake: Condvar::new(),
            failure: Mutex::default(),
            longest,
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
        // Under the lock: a thread that has just looked at the flag would miss the wake-up, and wait its time out.
        drop(self.shared.requested.lock());
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
        let schedule = PublishSchedule::for_store(self.publisher.volume.objects.is_remote(), self.longest);
        // If that cannot be known, publishing finds out.
        let has_leftover = !matches!(self.publisher.unpublished_since(), Ok(None));
        let mut watch = PublishWatch::new(schedule, self.publisher.map.last_commit(), has_leftover);
        let mut backoff = BACKOFF.0;
        let mut expired_at: Option<Instant> = None;
        let mut requested = false;
        while !self.stop.load(Ordering::Acquire) {
            requested |= self.wait_for_request(TICK);
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            // Before publishing looks at what there is: whoever began to wait before this is served by this attempt.
            let attempt = std::mem::take(&mut requested).then(|| self.publisher.log.begin_publish_attempt());
            // In a pool of its own, whose threads have a lower priority.
            let outcome = pool.install(|| {
                if expired_at.is_none_or(|at| at.elapsed() > EXPIRE_EVERY) {
                    self.publisher.expire_trash()?;
                    // Only after a success, so that a failure is not the last try for an hour.
                    expired_at = Some(Instant::now());
                }
                self.publish_changes(attempt.is_some(), &mut watch)
            });
            if let Some(attempt) = attempt {
                // Before the attempt ends: those who wait are told then whether there is room.
                self.publisher.free_log_space();
                let is_full = outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace);
                self.publisher.log.end_publish_attempt(attempt, is_full);
            }
            let failed = outcome.is_err();
            if let Err(error) = &outcome {
                tracing::warn!(%error, retry = ?backoff, "publishing failed");
            }
            if outcome.as_ref().is_err_and(FsError::is_fenced_error) {
                // Nothing is ever freed again: who waits for room goes on, and is refused.
                self.publisher.log.set_limit(u64::MAX);
            }
            *self.failure.lock() = outcome.err().map(|error| error.to_string());
            if failed {
                // Whoever asks ends the pause: a person who has repaired the store need not wait for the next
                // attempt.
                requested = self.wait_for_request(backoff);
                backoff = (backoff * 2).min(BACKOFF.1);
            } else {
                backoff = BACKOFF.0;
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

    fn publish_changes(&self, requested: bool, watch: &mut PublishWatch) -> Result<()> {
        // Taken before: what is changed while it publishes is younger than this, and remains.
        let begun = current_time();
        let amount = self.publisher.live_amount();
        let is_due = watch.is_due(&amount, Instant::now());
        // Before something is tried that may fail.
        self.publisher.note_unpublished(None)?;
        if requested || is_due {
            self.publisher.publish_all()?;
            // The commit that was read at the beginning: later ones may not be part of what was published.
            watch.note_published(amount.commit, self.publisher.log.used_bytes());
            self.publisher.note_unpublished(Some(begun))
        } else {
            // What is sealed does not change any more, so that nothing is gained by waiting.
            while self.publisher.publish_oldest()? == PublishProgress::Some {}
            Ok(())
        }
    }
}

impl LivePublisher {
    fn live_amount(&self) -> LiveAmount {
        let usage = self.log.usage();
        LiveAmount {
            commit: self.map.last_commit(),
            metadata: self.map.live_store().memory_size(),
            log: usage.used,
            log_limit: usage.limit,
        }
    }

    /// The disk of the state directory, and what publishing will put onto it.
    fn state_disk(&self) -> Option<LogDisk> {
        let path = self.volume.state.path();
        let disk = rustix::fs::statvfs(path).ok()?;
        // Store and state directory share their free space only if they are on one filesystem.
        let device = |path: &Path| rustix::fs::stat(path).map(|stat| stat.st_dev).ok();
        let store = self.volume.objects.local_dir().and_then(device);
        Some(LogDisk {
            size: disk.f_blocks.saturating_mul(disk.f_frsize),
            // Without the blocks that only root may take.
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
