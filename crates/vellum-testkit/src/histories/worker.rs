//! A worker: the process that does operations of a history and records them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::{
    HistoryKind, append, counter, directory, durable, held, moves, ranges, register, snapshots, visible,
};
use crate::random::TestRandom;

/// The variable that makes a test binary a worker.
pub(super) const VARIABLE: &str = "VELLUM_HISTORY_WORKER";
/// Separates the fields of the variable.
pub(super) const SEPARATOR: char = '\n';
/// Errors after which an operation certainly had no effect.
const EFFECTLESS: &[i32] = &[
    libc::EEXIST,
    libc::ENOENT,
    libc::EINVAL,
    libc::EAGAIN,
    libc::ENOTEMPTY,
    libc::ELOOP,
    libc::EDEADLK,
    libc::ENOLCK,
    libc::EMFILE,
];
/// Operations that a worker does also when its time is over: a filesystem that was away for most of it has to go on, and on a
/// slow machine the others would have been too few to say anything.
const OPERATIONS_MIN: u64 = 4;
/// Pause after an operation whose outcome is unknown: a filesystem that is out of order is not asked a million times.
const PAUSE: Duration = Duration::from_millis(100);

/// What a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkerRole {
    /// Makes the files, before the others begin.
    Prepare,
    /// Does operations.
    Perform,
    /// Records what is there at the end.
    Observe,
}

/// What a worker is started with.
#[derive(Debug, Clone)]
pub(super) struct WorkerTask {
    pub(super) kind: HistoryKind,
    pub(super) role: WorkerRole,
    /// Its number, and how many there are.
    pub(super) client: usize,
    pub(super) clients: usize,
    pub(super) seed: u64,
    /// It stops after this many operations or this time, whichever comes first.
    pub(super) operations: u64,
    pub(super) limit: Duration,
    /// The directory of the history in the filesystem.
    pub(super) dir: PathBuf,
    pub(super) log: PathBuf,
}

impl WorkerTask {
    /// As the value of the variable.
    pub(super) fn to_text(&self) -> String {
        let Self { kind, role, client, clients, seed, operations, limit, dir, log } = self;
        let role = match role {
            WorkerRole::Prepare => "prepare",
            WorkerRole::Perform => "perform",
            WorkerRole::Observe => "observe",
        };
        let millis = limit.as_millis();
        let numbers = [client.to_string(), clients.to_string(), seed.to_string(), operations.to_string()];
        let paths = [dir, log].map(|path| path.to_str().expect("a path in UTF-8").to_owned());
        let first = [kind.name().to_owned(), role.to_owned()];
        let fields: Vec<String> = [&first[..], &numbers, &[millis.to_string()], &paths].concat();
        fields.join(&SEPARATOR.to_string())
    }

    fn from_text(text: &str) -> Option<Self> {
        let fields: Vec<_> = text.split(SEPARATOR).collect();
        let [kind, role, client, clients, seed, operations, millis, dir, log] = fields[..] else {
            return None;
        };
        let role = match role {
            "prepare" => WorkerRole::Prepare,
            "perform" => WorkerRole::Perform,
            "observe" => WorkerRole::Observe,
            _ => return None,
        };
        Some(Self {
            kind: HistoryKind::from_name(kind)?,
            role,
            client: client.parse().ok()?,
            clients: clients.parse().ok()?,
            seed: seed.parse().ok()?,
            operations: operations.parse().ok()?,
            limit: Duration::from_millis(millis.parse().ok()?),
            dir: dir.into(),
            log: log.into(),
        })
    }
}

/// A worker at work.
pub(super) struct HistoryWorker {
    pub(super) task: WorkerTask,
    pub(super) random: TestRandom,
    log: File,
    /// Numbers that it has used.
    used: u64,
}

/// A history as a worker does it.
pub(super) trait HistoryProgram {
    /// Does an operation, or some.
    fn perform(&mut self, worker: &mut HistoryWorker);
}

/// Does the work of a worker if this process was started as one, and returns whether it was. Each test binary that starts
/// histories has a test that calls it and that is named in its [`super::HistoryPlan`].
///
/// # Panics
/// Panics if the files of the history cannot be made or read.
pub fn run_worker_if_asked() -> bool {
    let Some(text) = std::env::var_os(VARIABLE) else { return false };
    let text = text.into_string().expect("a task in UTF-8");
    let task = WorkerTask::from_text(&text).unwrap_or_else(|| panic!("no task: {text}"));
    HistoryWorker::new(task).run();
    true
}

impl HistoryWorker {
    fn new(task: WorkerTask) -> Self {
        let log = File::create(&task.log).expect("a log");
        // The odd number nearest to 2^64 divided by the golden ratio spreads small numbers over all bits.
        let seed = task.seed ^ (task.client as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Self { task, random: TestRandom::new(seed), log, used: 0 }
    }

    fn run(&mut self) {
        match self.task.role {
            WorkerRole::Prepare => self.prepare().expect("the files of the history"),
            WorkerRole::Perform => self.perform(),
            WorkerRole::Observe => self.observe(),
        }
    }

    fn prepare(&self) -> io::Result<()> {
        let dir = &self.task.dir;
        std::fs::create_dir_all(dir)?;
        match self.task.kind {
            HistoryKind::Register => register::prepare(dir),
            HistoryKind::Append => append::prepare(dir),
            HistoryKind::Directory => directory::prepare(dir),
            HistoryKind::Moves => moves::prepare(dir),
            HistoryKind::Counter => counter::prepare(dir),
            HistoryKind::Durable => durable::prepare(dir, self.task.clients),
            HistoryKind::Visible => visible::prepare(dir, self.task.clients),
            HistoryKind::Ranges => ranges::prepare(dir),
            // They begin with an empty directory.
            HistoryKind::Held | HistoryKind::Snapshots => Ok(()),
        }?;
        // A server that is lost at once must not take the files along with which all operations begin: an fsync makes all
        // that was written before it durable.
        super::files::sync_directory(dir)
    }

    fn observe(&mut self) {
        match self.task.kind {
            HistoryKind::Register => register::observe(self),
            HistoryKind::Append => append::observe(self),
            HistoryKind::Directory => directory::observe(self),
            HistoryKind::Moves => moves::observe(self),
            HistoryKind::Counter => counter::observe(self),
            HistoryKind::Durable => durable::observe(self),
            HistoryKind::Visible => visible::observe(self),
            HistoryKind::Held => held::observe(self),
            HistoryKind::Ranges => ranges::observe(self),
            HistoryKind::Snapshots => snapshots::observe(self),
        }
    }

    fn perform(&mut self) {
        let mut program: Box<dyn HistoryProgram> = match self.task.kind {
            HistoryKind::Register => Box::new(register::RegisterProgram),
            HistoryKind::Append => Box::new(append::AppendProgram::new()),
            HistoryKind::Directory => Box::new(directory::DirectoryProgram),
            HistoryKind::Moves => Box::new(moves::MovesProgram::open(&self.task.dir)),
            HistoryKind::Counter => Box::new(counter::CounterProgram::open(&self.task.dir)),
            HistoryKind::Durable => Box::new(durable::DurableProgram),
            HistoryKind::Visible => Box::new(visible::VisibleProgram::new()),
            HistoryKind::Held => Box::new(held::HeldProgram::new()),
            HistoryKind::Ranges => Box::new(ranges::RangesProgram),
            HistoryKind::Snapshots => Box::new(snapshots::SnapshotsProgram::new()),
        };
        // The others are ready, too, when the input ends.
        self.write_line("R 0");
        io::stdin().read_to_end(&mut Vec::new()).expect("the start");
        let end = now() + self.task.limit.as_nanos() as u64;
        for done in 0..self.task.operations {
            if now() >= end && done >= OPERATIONS_MIN {
                break;
            }
            program.perform(self);
            // Otherwise a worker could do all of its operations in one slice of the processor's time.
            if self.random.is_one_in(4) {
                std::thread::sleep(Duration::from_micros(self.random.next_below(200)));
            }
        }
    }

    /// A path in the directory of the history.
    pub(super) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.task.dir.join(name)
    }

    /// A number that no worker has used before.
    pub(super) fn choose_number(&mut self) -> u64 {
        self.used += 1;
        // No worker has the half of another, and none has 0, with which files begin.
        (self.task.client as u64 + 1) << 32 | self.used
    }

    /// Does an operation and records it. Returns what it returned, if it succeeded.
    pub(super) fn record<T: RecordedResult>(
        &mut self,
        name: &str,
        arguments: &[u64],
        operation: impl FnOnce() -> io::Result<T>,
    ) -> Option<T> {
        let arguments = super::event::format_numbers(arguments);
        // Written before the operation begins: of one during which the worker is killed, it is known that it may have
        // had an effect.
        self.write_line(&format!("I {} {name}{arguments}", now()));
        let result = operation();
        let end = now();
        match result {
            Ok(value) => {
                let results = super::event::format_numbers(&value.numbers());
                self.write_line(&format!("D {end}{results}"));
                Some(value)
            }
            Err(error) => {
                // Errors of the standard library, as of a file that is too short, have no number: 0 counts as
                // unknown.
                let errno = error.raw_os_error().unwrap_or(0);
                // After any other error, as of a lost connection, the operation may have been carried out all the same.
                let is_effectless = EFFECTLESS.contains(&errno);
                self.write_line(&format!("{} {end} {errno}", if is_effectless { 'F' } else { 'U' }));
                if !is_effectless {
                    std::thread::sleep(PAUSE);
                }
                None
            }
        }
    }

    fn write_line(&mut self, line: &str) {
        // In one call: a kill leaves all of it or nothing.
        self.log.write_all(format!("{line}\n").as_bytes()).expect("room for the log");
    }
}

/// What an operation returns, as numbers of its record.
pub(super) trait RecordedResult {
    /// The numbers.
    fn numbers(&self) -> Vec<u64>;
}

impl RecordedResult for () {
    fn numbers(&self) -> Vec<u64> {
        Vec::new()
    }
}

impl RecordedResult for u64 {
    fn numbers(&self) -> Vec<u64> {
        vec![*self]
    }
}

impl RecordedResult for Vec<u64> {
    fn numbers(&self) -> Vec<u64> {
        self.clone()
    }
}

impl RecordedResult for File {
    fn numbers(&self) -> Vec<u64> {
        Vec::new()
    }
}

/// The time by which all workers record, nanoseconds: one clock of the machine, which does not step.
#[must_use]
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_survives_its_text() {
        let task = WorkerTask {
            kind: HistoryKind::Moves,
            role: WorkerRole::Observe,
            client: 3,
            clients: 5,
            seed: u64::MAX,
            operations: 7,
            limit: Duration::from_millis(1500),
            dir: "/a b/c".into(),
            log: "/d/e".into(),
        };
        let read = WorkerTask::from_text(&task.to_text()).expect("a task");
        assert_eq!(format!("{read:?}"), format!("{task:?}"));
        assert!(WorkerTask::from_text("moves").is_none());
    }
}
