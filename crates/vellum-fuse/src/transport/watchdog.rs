//! The watchdog: checks whether requests are answered.
//!
//! A request that takes longer than [`OVERDUE_TICKS`] is reported in the mount's log. There may be a reason (an
//! unreachable store, a full log), so the watchdog only reports it. If the kernel waits for the answer to a request
//! that never arrived here, it waits forever, and so does every process that needs the directory that it has locked:
//! then the watchdog ends the mount, so that programs get an error and the worktree can be mounted again.
//!
//! Invariants: an answered request is never reported; a mount with requests in progress is not ended.
//!
//! Deliberately absent: which thread works on which request.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::pending::PendingRequests;
use super::service::{DeferredReply, RequestService};
use crate::wire::{FuseAnswer, FuseOperation, FuseRequest};

/// How often the watchdog looks.
const TICK: Duration = Duration::from_secs(10);

/// After this many ticks a request is reported, or a mount is ended that does not receive its requests.
const OVERDUE_TICKS: u32 = 3;

/// The directory in which the kernel shows how many requests wait, if its file system is mounted there.
const CONTROL: &str = "/sys/fs/fuse/connections";

/// A service whose requests are watched.
pub(super) struct WatchedService<S> {
    service: S,
    pending: Arc<PendingRequests>,
}

impl<S> WatchedService<S> {
    /// Wraps a service.
    pub fn new(service: S) -> Self {
        Self { service, pending: Arc::default() }
    }

    /// The requests in progress.
    pub fn pending_requests(&self) -> Arc<PendingRequests> {
        self.pending.clone()
    }
}

impl<S: RequestService> RequestService for WatchedService<S> {
    fn answer_request(
        &self,
        request: &FuseRequest<'_>,
        operation: FuseOperation<'_>,
        later: DeferredReply<'_>,
    ) -> FuseAnswer {
        // It has nearly the number of the request that it means, and would take its place among those that are watched.
        if matches!(operation, FuseOperation::Interrupt { .. }) {
            return self.service.answer_request(request, operation, later);
        }
        let unique = request.header.unique;
        // Before the service sees the request: it may be answered from another thread before the service returns.
        self.pending.begin_request(&request.header);
        let later = later.with_pending(&self.pending);
        let answer = self.service.answer_request(request, operation, later);
        // A request that is answered later is crossed out by the thread that answers it; that may already have
        // happened.
        if !matches!(answer, FuseAnswer::Later) {
            self.pending.end_request(unique);
        }
        answer
    }

    fn is_content_cached(&self, node: u64, offset: u64, len: u32) -> bool {
        self.service.is_content_cached(node, offset, len)
    }

    fn may_write_wait(&self, len: usize) -> bool {
        self.service.may_write_wait(len)
    }

    fn may_change_wait(&self) -> bool {
        self.service.may_change_wait()
    }
}

/// The watchdog's thread. It ends when this is dropped.
pub struct Watchdog {
    _stop: Sender<()>,
}

/// What the watchdog observes.
struct WatchdogTarget {
    pending: Arc<PendingRequests>,
    /// The directory in which the kernel shows how many requests wait.
    control: PathBuf,
    report: Arc<dyn Fn(&str) + Send + Sync>,
    /// For how many ticks the kernel has waited for requests that have not arrived here.
    missed_ticks: u32,
}

impl Watchdog {
    /// Starts the thread. `connection` is the kernel's number of the mount.
    pub(super) fn start(
        pending: Arc<PendingRequests>,
        connection: u32,
        report: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> std::io::Result<Self> {
        let control = Path::new(CONTROL).join(connection.to_string());
        let mut watch = WatchdogTarget { pending, control, report, missed_ticks: 0 };
        let (stop, stopped) = channel();
        std::thread::Builder::new().name("vellum-watchdog".into()).spawn(move || {
            // Dropping the sender ends this wait at once, and with it the thread.
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                watch.check_requests();
            }
        })?;
        Ok(Self { _stop: stop })
    }
}

impl WatchdogTarget {
    fn check_requests(&mut self) {
        let tick = self.pending.advance_tick();
        let waited = TICK.as_secs() * u64::from(OVERDUE_TICKS);
        for request in self.pending.describe_requests(tick, OVERDUE_TICKS) {
            (self.report)(&format!("{request} has not been answered for {waited} seconds"));
        }
        // A request that arrived and was answered between two looks is a sign of life, too. The flag is read first,
        // so that it is reset each time.
        let is_idle = !self.pending.take_has_arrived() && self.pending.is_empty();
        self.missed_ticks = if is_idle && self.has_kernel_waiters() { self.missed_ticks + 1 } else { 0 };
        // Equal, not more: it is reported and ended once.
        if self.missed_ticks == OVERDUE_TICKS {
            (self.report)(&format!(
                "the kernel has waited for {waited} seconds for the answer to a request that was not received: the mount \
                 is ended; mount it again, with --no-io-uring if this happens again"
            ));
            // The kernel fails all requests and closes the connection: threads that read then learn that the mount
            // has ended, and the process ends in the usual way.
            if let Err(error) = std::fs::write(self.control.join("abort"), "1") {
                (self.report)(&format!("the mount cannot be ended: {error}"));
            }
        }
    }

    /// Whether the kernel waits for answers. If it does not show that, it is assumed not to.
    fn has_kernel_waiters(&self) -> bool {
        let waiting = std::fs::read_to_string(self.control.join("waiting"));
        // One of the waiting requests may be about to be read. It takes several looks in succession to count as lost.
        waiting.is_ok_and(|text| text.trim().parse::<u64>().is_ok_and(|count| count > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::RequestHeader;
    use parking_lot::Mutex;

    const HEAD: RequestHeader = RequestHeader { opcode: 28, unique: 8, node: 5, uid: 0, gid: 0, pid: 1 };

    struct Trial {
        watch: WatchdogTarget,
        said: Arc<Mutex<Vec<String>>>,
        control: tempfile::TempDir,
    }

    fn trial(waiting: &str) -> Trial {
        let control = tempfile::tempdir().unwrap();
        std::fs::write(control.path().join("waiting"), waiting).unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = said.clone();
        let report = Arc::new(move |text: &str| heard.lock().push(text.to_owned()));
        let watch = WatchdogTarget {
            pending: Arc::default(),
            control: control.path().into(),
            report,
            missed_ticks: 0,
        };
        Trial { watch, said, control }
    }

    impl Trial {
        fn look(&mut self, times: u32) {
            (0..times).for_each(|_| self.watch.check_requests());
        }

        fn is_ended(&self) -> bool {
            self.control.path().join("abort").exists()
        }
    }

    #[test]
    fn a_request_that_takes_long_is_named_once_and_the_mount_goes_on() {
        let mut trial = trial("1");
        trial.watch.pending.begin_request(&HEAD);
        trial.look(20);
        let said = trial.said.lock().clone();
        assert_eq!(said, ["request 8 (READDIR, node 0x5) has not been answered for 30 seconds"]);
        assert!(!trial.is_ended());
    }

    #[test]
    fn what_was_answered_is_not_named() {
        let mut trial = trial("0");
        trial.watch.pending.begin_request(&HEAD);
        trial.watch.pending.end_request(8);
        trial.look(20);
        assert!(trial.said.lock().is_empty());
    }

    #[test]
    fn a_mount_whose_kernel_waits_for_what_never_came_is_ended() {
        let mut trial = trial("1");
        trial.look(OVERDUE_TICKS - 1);
        assert!(!trial.is_ended());
        trial.look(1);
        assert!(trial.is_ended());
        assert_eq!(trial.said.lock().len(), 1);
    }

    #[test]
    fn a_mount_that_hears_of_requests_is_not_ended() {
        let mut trial = trial("1");
        for _ in 0..20 {
            trial.watch.pending.begin_request(&HEAD);
            trial.watch.pending.end_request(HEAD.unique);
            trial.look(1);
        }
        assert!(!trial.is_ended());
    }

    #[test]
    fn a_mount_of_which_nobody_wants_anything_is_not_ended() {
        let mut trial = trial("0");
        trial.look(20);
        assert!(!trial.is_ended());
    }
}
