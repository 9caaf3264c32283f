//! The watchdog: checks whether requests are answered.
//!
//! A request that takes longer than [`PATIENCE`] is reported in the mount's log. There may be a reason (an
//! unreachable store, a full log), so it continues to wait. If the kernel waits for a request that never arrived
//! here, it would wait forever, and so would everybody who needs the directory that it has locked: then the mount is
//! ended, so that programs get an error and the worktree can be mounted again. Invariants: an answered request is
//! never reported; a mount with requests in progress is not ended. Deliberately absent: which thread works on which
//! request.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::{DeferredReply, RequestService};
use crate::wire::{FuseAnswer, FuseOperation, FuseRequest, Opcode, RequestHeader};

/// How often the watchdog looks.
const TICK: Duration = Duration::from_secs(10);

/// After so many looks a request is named, or a mount ended that does not hear of its requests.
const PATIENCE: u32 = 3;

/// Requests that are watched at a time. Where two fall into one cell, one of them is not.
const CELLS: usize = 1024;

/// Where the kernel shows what it waits for, if its administrator lets it.
const CONTROL: &str = "/sys/fs/fuse/connections";

/// Requests that were taken from the kernel and not answered yet.
#[derive(Debug)]
pub struct PendingRequests {
    cells: Box<[PendingRequestCell]>,
    /// Looks so far.
    tick: AtomicU32,
    /// Whether any request came since the last look.
    came: AtomicBool,
}

#[derive(Debug, Default)]
struct PendingRequestCell {
    /// The request's number; 0: none. The kernel begins with 2.
    unique: AtomicU64,
    node: AtomicU64,
    opcode: AtomicU32,
    /// At which look it came.
    since: AtomicU32,
}

impl Default for PendingRequests {
    fn default() -> Self {
        let cells = (0..CELLS).map(|_| PendingRequestCell::default()).collect();
        Self { cells, tick: AtomicU32::new(0), came: AtomicBool::new(false) }
    }
}

impl PendingRequests {
    fn begin_request(&self, head: &RequestHeader) {
        let cell = self.find_cell(head.unique);
        cell.node.store(head.node, Ordering::Relaxed);
        cell.opcode.store(head.opcode, Ordering::Relaxed);
        cell.since.store(self.tick.load(Ordering::Relaxed), Ordering::Relaxed);
        cell.unique.store(head.unique, Ordering::Release);
        // Most find it so: then nobody else's cache has to let go of it.
        if !self.came.load(Ordering::Relaxed) {
            self.came.store(true, Ordering::Relaxed);
        }
    }

    /// A request was answered.
    pub fn end_request(&self, unique: u64) {
        // Another one may have taken the cell.
        let cell = &self.find_cell(unique).unique;
        if cell.load(Ordering::Relaxed) == unique {
            cell.store(0, Ordering::Release);
        }
    }

    fn find_cell(&self, unique: u64) -> &PendingRequestCell {
        // The kernel counts in steps of two.
        &self.cells[(unique / 2) as usize % CELLS]
    }

    fn is_empty(&self) -> bool {
        self.cells.iter().all(|cell| cell.unique.load(Ordering::Acquire) == 0)
    }

    /// What has just become older than patience has it.
    fn collect_overdue(&self, tick: u32) -> Vec<String> {
        let is_due = |cell: &&PendingRequestCell| {
            cell.unique.load(Ordering::Acquire) != 0
                && tick.wrapping_sub(cell.since.load(Ordering::Relaxed)) == PATIENCE
        };
        let name = |cell: &PendingRequestCell| {
            let [unique, node] = [&cell.unique, &cell.node].map(|word| word.load(Ordering::Relaxed));
            let opcode = Opcode::from_number(cell.opcode.load(Ordering::Relaxed));
            let operation = opcode.map_or("an unknown operation", Opcode::name);
            format!("request {unique} ({operation}, node {node:#x})")
        };
        self.cells.iter().filter(is_due).map(name).collect()
    }
}

/// A service whose requests are watched.
pub struct WatchedService<S> {
    service: S,
    in_hand: Arc<PendingRequests>,
}

impl<S> WatchedService<S> {
    /// Nothing was asked yet.
    pub fn new(service: S) -> Self {
        Self { service, in_hand: Arc::default() }
    }

    /// What is being answered.
    pub fn pending_requests(&self) -> Arc<PendingRequests> {
        self.in_hand.clone()
    }
}

impl<S: RequestService> RequestService for WatchedService<S> {
    fn answer_request(
        &self,
        request: &FuseRequest<'_>,
        operation: FuseOperation<'_>,
        later: DeferredReply<'_>,
    ) -> FuseAnswer {
        let unique = request.header.unique;
        self.in_hand.begin_request(&request.header);
        let later = DeferredReply { in_hand: Some(&self.in_hand), ..later };
        let answer = self.service.answer_request(request, operation, later);
        if !matches!(answer, FuseAnswer::Later) {
            self.in_hand.end_request(unique);
        }
        answer
    }

    fn is_content_cached(&self, node: u64, offset: u64, len: u32) -> bool {
        self.service.is_content_cached(node, offset, len)
    }
}

/// The thread that looks. It ends when this is dropped.
pub struct Watchdog {
    _stop: Sender<()>,
}

/// What the watchdog looks at.
struct WatchdogTarget {
    in_hand: Arc<PendingRequests>,
    /// Where the kernel shows what it waits for.
    control: PathBuf,
    report: Arc<dyn Fn(&str) + Send + Sync>,
    /// For how many looks the kernel has waited for what is not known here.
    unheard: u32,
}

impl Watchdog {
    /// Starts the thread. `connection` is the kernel's number of the mount.
    pub fn start(
        in_hand: Arc<PendingRequests>,
        connection: u32,
        report: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> std::io::Result<Self> {
        let control = Path::new(CONTROL).join(connection.to_string());
        let mut watch = WatchdogTarget { in_hand, control, report, unheard: 0 };
        let (stop, stopped) = channel();
        std::thread::Builder::new().name("vellum-watchdog".into()).spawn(move || {
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                watch.check_requests();
            }
        })?;
        Ok(Self { _stop: stop })
    }
}

impl WatchdogTarget {
    fn check_requests(&mut self) {
        let tick = self.in_hand.tick.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let waited = TICK.as_secs() * u64::from(PATIENCE);
        for request in self.in_hand.collect_overdue(tick) {
            (self.report)(&format!("{request} has not been answered for {waited} seconds"));
        }
        let came = self.in_hand.came.swap(false, Ordering::Relaxed);
        let is_idle = !came && self.in_hand.is_empty();
        self.unheard = if is_idle && self.has_kernel_waiters() { self.unheard + 1 } else { 0 };
        if self.unheard == PATIENCE {
            (self.report)(&format!(
                "the kernel has waited for {waited} seconds for the answer to a request that was not received: the mount \
                 is ended; mount it again, with --no-io-uring if this happens again"
            ));
            if let Err(error) = std::fs::write(self.control.join("abort"), "1") {
                (self.report)(&format!("the mount cannot be ended: {error}"));
            }
        }
    }

    /// Whether the kernel says that it waits for answers. Where it does not say, it is taken not to.
    fn has_kernel_waiters(&self) -> bool {
        let waiting = std::fs::read_to_string(self.control.join("waiting"));
        waiting.is_ok_and(|text| text.trim().parse::<u64>().is_ok_and(|count| count > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let watch =
            WatchdogTarget { in_hand: Arc::default(), control: control.path().into(), report, unheard: 0 };
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
        trial.watch.in_hand.begin_request(&HEAD);
        trial.look(20);
        let said = trial.said.lock().clone();
        assert_eq!(said, ["request 8 (READDIR, node 0x5) has not been answered for 30 seconds"]);
        assert!(!trial.is_ended());
    }

    #[test]
    fn what_was_answered_is_not_named() {
        let mut trial = trial("0");
        trial.watch.in_hand.begin_request(&HEAD);
        trial.watch.in_hand.end_request(8);
        trial.look(20);
        assert!(trial.said.lock().is_empty());
    }

    #[test]
    fn a_mount_whose_kernel_waits_for_what_never_came_is_ended() {
        let mut trial = trial("1");
        trial.look(PATIENCE - 1);
        assert!(!trial.is_ended());
        trial.look(1);
        assert!(trial.is_ended());
        assert_eq!(trial.said.lock().len(), 1);
    }

    #[test]
    fn a_mount_that_hears_of_requests_is_not_ended() {
        let mut trial = trial("1");
        for _ in 0..20 {
            trial.watch.in_hand.begin_request(&HEAD);
            trial.watch.in_hand.end_request(HEAD.unique);
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
