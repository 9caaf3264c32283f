//! Runs the workers of a history on several mounts, and checks what they recorded.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::HistoryKind;
use super::event::{HistoryEvent, HistoryOutcome, HistoryViolation, parse_log};
use super::several_kernels::{doubt_idle_renames, leave_out_misjudged_moves, split_refused_moves};
use super::take_over::TakeOver;
use super::worker::{VARIABLE, WorkerRole, WorkerTask};

/// Timeout of a worker's start, and of its end after its time is over: the filesystem may wait for a fault to pass.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often to look.
const POLL: Duration = Duration::from_millis(5);

/// Where a history takes place.
pub trait HistoryMounts {
    /// Number of mounts.
    fn count(&self) -> usize;

    /// Where a mount is, for programs on its host.
    fn path(&self, mount: usize) -> PathBuf;

    /// A command that runs a program on the host of a mount, with the clock of the machine.
    fn command(&self, mount: usize, program: &Path) -> Command;

    /// Whether the mounts are in several kernels: each looks up names by itself.
    fn has_several_kernels(&self) -> bool {
        false
    }

    /// Called when the files of a history were made on the first mount, before others are used.
    fn finish_preparation(&self) {}
}

/// A history that is to be run.
#[derive(Debug, Clone)]
pub struct HistoryPlan {
    /// What is done.
    pub kind: HistoryKind,
    /// The test of this binary that calls [`super::run_worker_if_asked`], by its whole name.
    pub worker_test: &'static str,
    /// Number of workers, on the mounts in turns.
    pub clients: usize,
    /// A worker stops after this many operations or this time, whichever comes first; it does four
    /// also if they take longer.
    pub operations: u64,
    /// See there.
    pub limit: Duration,
    /// Whether operations may end with an unknown outcome. Otherwise each that does is a violation.
    pub has_faults: bool,
    /// From which all workers choose.
    pub seed: u64,
    /// An empty directory for the logs, outside the filesystem.
    pub logs: PathBuf,
}

/// What a history was.
#[derive(Debug)]
pub struct HistoryReport {
    /// All operations.
    pub events: Vec<HistoryEvent>,
    /// What no filesystem could have answered.
    pub violations: Vec<HistoryViolation>,
}

impl HistoryReport {
    /// The violations as text, of which a failure shows the first.
    #[must_use]
    pub fn describe(&self) -> String {
        let known = self.events.iter().filter(|event| !event.is_unknown()).count();
        let mut text = format!("{} operations, {known} with a known outcome", self.events.len());
        for violation in self.violations.iter().take(10) {
            text.push_str(&format!("\n- {violation}"));
        }
        if self.violations.len() > 10 {
            text.push_str(&format!("\n- and {} more", self.violations.len() - 10));
        }
        text
    }
}

/// A worker that runs.
struct RunningWorker {
    process: Child,
    log: PathBuf,
    client: usize,
}

/// Runs a history. `meanwhile` is called when the workers have begun, to cause faults; it may return before or after
/// them. It returns when another server continued from a log, if one did: then changes that were not synced may be lost. Workers that were killed with their host count as far as they came.
///
/// # Panics
/// Panics if a worker cannot be started, or if it fails where no fault explains that.
pub fn run_history(
    plan: &HistoryPlan,
    mounts: &dyn HistoryMounts,
    meanwhile: impl FnOnce() -> Option<TakeOver>,
) -> HistoryReport {
    let start = |role, client| start_worker(plan, mounts, role, client);
    let mut prepare = start(WorkerRole::Prepare, 0);
    assert!(prepare.wait().success(), "the files of {} cannot be made", plan.kind.name());
    mounts.finish_preparation();
    let mut workers: Vec<_> = (0..plan.clients).map(|client| start(WorkerRole::Perform, client)).collect();
    // Starting a process takes a while. Without this wait the first workers would have no rivals at first.
    workers.iter_mut().for_each(RunningWorker::wait_until_ready);
    // The end of its input is the start for each.
    workers.iter_mut().for_each(|worker| drop(worker.process.stdin.take()));
    let take_over = meanwhile();
    for worker in &mut workers {
        let status = worker.wait();
        assert!(status.success() || plan.has_faults, "worker {}: {status}", worker.client);
    }
    let mut observe = start(WorkerRole::Observe, plan.clients);
    assert!(observe.wait().success(), "what {} left cannot be read", plan.kind.name());
    let logs = workers.iter().chain([&observe]);
    let mut events: Vec<_> = logs.flat_map(RunningWorker::read_log).collect();
    events.sort_by_key(|event| event.start);
    let mut violations = if mounts.has_several_kernels() {
        // From the report as well: without faults, an operation whose outcome is unknown is a violation.
        events = leave_out_misjudged_moves(plan.kind, events);
        let seen = split_refused_moves(plan.kind, doubt_idle_renames(plan.kind, &events));
        plan.kind.check(&seen, take_over)
    } else {
        plan.kind.check(&events, take_over)
    };
    if !plan.has_faults {
        let is_unexpected = |event: &&HistoryEvent| matches!(event.outcome, HistoryOutcome::Unknown(_));
        let unexpected = events.iter().filter(is_unexpected);
        violations
            .extend(unexpected.map(|event| HistoryViolation(format!("it failed without a fault: {event}"))));
    }
    HistoryReport { events, violations }
}

fn start_worker(
    plan: &HistoryPlan,
    mounts: &dyn HistoryMounts,
    role: WorkerRole,
    client: usize,
) -> RunningWorker {
    let mount = client % mounts.count();
    // A name that no earlier history on these mounts had.
    let run = plan.logs.file_name().unwrap_or_default().to_string_lossy();
    let log = plan.logs.join(format!("{}-{client}-{role:?}", plan.kind.name()));
    let task = WorkerTask {
        kind: plan.kind,
        role,
        client,
        clients: plan.clients,
        seed: plan.seed,
        operations: plan.operations,
        limit: plan.limit,
        dir: mounts.path(mount).join(format!("{}-{run}", plan.kind.name())),
        log: log.clone(),
    };
    let program = std::env::current_exe().expect("this program");
    let mut command = mounts.command(mount, &program);
    // The program is this test binary, which becomes a worker in the one test that looks for the variable.
    command.args([plan.worker_test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(VARIABLE, task.to_text()).stdin(Stdio::piped()).stdout(Stdio::null());
    let process = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    RunningWorker { process, log, client }
}

impl RunningWorker {
    fn wait_until_ready(&mut self) {
        let start = Instant::now();
        while !std::fs::read(&self.log).is_ok_and(|log| log.contains(&b'\n')) {
            let ended = self.process.try_wait().expect("the state of a worker");
            let is_waiting = ended.is_none() && start.elapsed() < PATIENCE;
            assert!(is_waiting, "worker {} did not start: {ended:?}", self.client);
            std::thread::sleep(POLL);
        }
    }

    fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        // One that waits for its start would never end.
        drop(self.process.stdin.take());
        loop {
            if let Some(status) = self.process.try_wait().expect("the state of a worker") {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "worker {} does not end", self.client);
            // What entered its host for it may have stopped with it, and have missed that it continued.
            let process = Pid::from_raw(self.process.id().cast_signed()).expect("a process number");
            kill_process(process, Signal::CONT).expect("a child that is not reaped");
            std::thread::sleep(POLL);
        }
    }

    fn read_log(&self) -> Vec<HistoryEvent> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        // The first line says that the worker was ready.
        let operations = text.strip_prefix("R 0\n").unwrap_or(&text);
        parse_log(self.client, operations)
    }
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        // One that a failed test leaves is killed; otherwise it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
