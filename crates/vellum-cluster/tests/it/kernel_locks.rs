//! The lock table against Linux: processes do at random what they may do with locks on a local file, and each result, each
//! lock that is held and each wake-up must be what the table says.
//!
//! Left out is what Linux leaves to chance (which of several that wait gets a lock first) and deadlocks that it does not
//! find (it looks at one of the locks in the way only).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use vellum_cluster::locks::{
    HeldLock, LockError, LockKind, LockLimits, LockMode, LockOwner, LockRange, LockRequest, LockSession,
    LockTable, WaitId,
};
use vellum_testkit::random::{TestRandom, choose_seed, scale_rounds};
use vellum_types::Ino;

const WORKERS: usize = 4;
const FILES: usize = 2;
/// Each worker has each file open twice.
const HANDLES: usize = 2 * FILES;
/// Bytes that are locked; the last one stands for all that follow.
const BYTES: u64 = 12;
const SESSION: LockSession = LockSession([1; LockSession::LEN]);
/// How long a wake-up may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process with the files open.
struct LockWorker {
    process: Child,
    input: ChildStdin,
    answers: Receiver<String>,
    /// The request that it waits for.
    waiting: Option<LockRequest>,
}

/// The workers, the table, and what it decided.
struct Comparison {
    workers: Vec<LockWorker>,
    paths: Vec<PathBuf>,
    table: LockTable,
    decided: Receiver<(usize, Result<(), LockError>)>,
    decide: Arc<dyn Fn(usize, Result<(), LockError>) + Send + Sync>,
    random: TestRandom,
    /// What was done, for a failure.
    trace: Vec<String>,
}

impl LockWorker {
    fn start(paths: &[PathBuf]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/lock_worker.py");
        let mut command = Command::new("python3");
        command.arg(script).args(paths).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (send, answers) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let worker = Self { process, input, answers, waiting: None };
        assert_eq!(worker.answer(), "ready");
        worker
    }

    fn ask(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
        self.input.flush().unwrap();
    }

    fn answer(&self) -> String {
        self.answers.recv_timeout(PATIENCE).unwrap()
    }

    fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for LockWorker {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn text_of_mode(mode: LockMode) -> &'static str {
    match mode {
        LockMode::Shared => "shared",
        LockMode::Exclusive => "exclusive",
    }
}

fn text_of_kind(kind: LockKind) -> &'static str {
    match kind {
        LockKind::Posix => "posix",
        LockKind::Ofd => "ofd",
        LockKind::Flock => "flock",
    }
}

fn errno_of(result: Result<(), LockError>) -> &'static str {
    match result {
        Ok(()) => "ok",
        Err(LockError::WouldBlock) => "EAGAIN",
        Err(LockError::Deadlock) => "EDEADLK",
        Err(LockError::Interrupted) => "EINTR",
        Err(LockError::TooMany) => "ENOLCK",
        Err(LockError::SessionEnded) => "EIO",
        Err(LockError::DuplicateWait) => "EINVAL",
    }
}

fn overlap(a: &LockRequest, b: &LockRequest) -> bool {
    let same_space = (a.kind == LockKind::Flock) == (b.kind == LockKind::Flock);
    a.ino == b.ino && same_space && a.range.start() <= b.range.end() && b.range.start() <= a.range.end()
}

impl Comparison {
    fn new(dir: &Path, seed: u64) -> Self {
        let paths: Vec<_> = (0..FILES).map(|n| dir.join(format!("file{n}"))).collect();
        paths.iter().for_each(|path| std::fs::write(path, b"").unwrap());
        let (send, decided) = channel();
        let table = LockTable::new(LockLimits::default());
        table.open_session(SESSION);
        Self {
            workers: (0..WORKERS).map(|_| LockWorker::start(&paths)).collect(),
            paths,
            table,
            decided,
            decide: Arc::new(move |worker, result| send.send((worker, result)).unwrap()),
            random: TestRandom::new(seed),
            trace: Vec::new(),
        }
    }

    /// Does something, and compares all that can be seen.
    fn step(&mut self) {
        let worker = self.random.next_below(WORKERS as u64) as usize;
        let (handle, request) = self.choose_request(worker);
        if let Some(waiting) = self.workers[worker].waiting {
            // It can do nothing else meanwhile.
            if self.random.is_one_in(3) {
                self.interrupt(worker, &waiting);
            }
        } else {
            match self.random.next_below(12) {
                0 => self.close(worker, handle),
                1..=3 => self.unlock(worker, handle, &request),
                4..=5 if request.kind != LockKind::Flock => self.test(worker, handle, &request),
                6..=8 if self.is_certain(&request) => self.wait(worker, handle, &request),
                _ => self.set(worker, handle, &request),
            }
        }
        self.collect_decisions();
        self.compare_locks();
    }

    fn choose_request(&mut self, worker: usize) -> (usize, LockRequest) {
        let handle = self.random.next_below(HANDLES as u64) as usize;
        let kind = self.random.pick_item(&[LockKind::Posix, LockKind::Posix, LockKind::Ofd, LockKind::Flock]);
        let ends = [self.random.next_below(BYTES), self.random.next_below(BYTES)];
        let end = ends[0].max(ends[1]);
        let end = if end == BYTES - 1 { LockRange::LAST } else { end };
        let range = match kind {
            LockKind::Flock => LockRange::ALL,
            LockKind::Posix | LockKind::Ofd => LockRange::new(ends[0].min(ends[1]), end).unwrap(),
        };
        let number = match kind {
            LockKind::Posix => worker,
            LockKind::Ofd | LockKind::Flock => 100 + worker * HANDLES + handle,
        };
        let owner = LockOwner { session: SESSION, number: number as u64 };
        let mode = self.random.pick_item(&[LockMode::Shared, LockMode::Exclusive]);
        let ino = Ino((handle / 2) as u64);
        (handle, LockRequest { ino, owner, kind, mode, range, pid: self.workers[worker].pid() })
    }

    /// Whether Linux leaves nothing to chance if this waits.
    fn is_certain(&self, request: &LockRequest) -> bool {
        let waiting: Vec<_> = self.workers.iter().filter_map(|worker| worker.waiting).collect();
        let has_one_holder = |wanted: &LockRequest| {
            let locks = self.table.list_locks(wanted.ino).into_iter();
            let in_the_way = locks.filter(|lock| conflicts(lock, wanted));
            let mut owners: Vec<_> = in_the_way.map(|lock| lock.owner).collect();
            owners.dedup();
            owners.len() <= 1
        };
        !waiting.iter().any(|other| overlap(other, request))
            && (waiting.is_empty() || waiting.iter().chain([request]).all(has_one_holder))
    }

    fn ask(&mut self, worker: usize, what: &str, handle: usize, request: &LockRequest, mode: &str) {
        let LockRequest { kind, range, .. } = request;
        let line =
            format!("{what} {handle} {} {mode} {} {}", text_of_kind(*kind), range.start(), range.end());
        self.trace.push(format!("worker {worker}: {line}"));
        self.workers[worker].ask(&line);
    }

    fn expect(&mut self, worker: usize, expected: &str) {
        let answer = self.workers[worker].answer();
        assert_eq!(answer, expected, "Linux against the table, worker {worker}:\n{}", self.trace.join("\n"));
    }

    fn set(&mut self, worker: usize, handle: usize, request: &LockRequest) {
        self.ask(worker, "set", handle, request, text_of_mode(request.mode));
        let result = self.table.set(request);
        self.expect(worker, errno_of(result));
    }

    fn unlock(&mut self, worker: usize, handle: usize, request: &LockRequest) {
        self.ask(worker, "set", handle, request, "unlock");
        self.table.unlock(request).unwrap();
        self.expect(worker, "ok");
    }

    fn wait(&mut self, worker: usize, handle: usize, request: &LockRequest) {
        self.ask(worker, "wait", handle, request, text_of_mode(request.mode));
        self.workers[worker].waiting = Some(*request);
        let decide = Arc::clone(&self.decide);
        let id = WaitId { session: SESSION, number: worker as u64 };
        self.table.set_and_wait(request, id, move |result| decide(worker, result));
    }

    fn interrupt(&mut self, worker: usize, waiting: &LockRequest) {
        self.trace.push(format!("worker {worker}: interrupt"));
        let pid = Pid::from_raw(self.workers[worker].pid().cast_signed()).unwrap();
        kill_process(pid, Signal::USR1).unwrap();
        assert!(self.table.cancel(WaitId { session: waiting.owner.session, number: worker as u64 }));
    }

    fn close(&mut self, worker: usize, handle: usize) {
        let line = format!("close {handle}");
        self.trace.push(format!("worker {worker}: {line}"));
        self.workers[worker].ask(&line);
        let ino = Ino((handle / 2) as u64);
        let process = LockOwner { session: SESSION, number: worker as u64 };
        let open_file = LockOwner { session: SESSION, number: (100 + worker * HANDLES + handle) as u64 };
        // As the kernel orders it: FLUSH, then RELEASE.
        self.table.release_ranges(ino, process);
        self.table.release_ranges(ino, open_file);
        self.table.release_flock(ino, open_file);
        self.expect(worker, "ok");
    }

    fn test(&mut self, worker: usize, handle: usize, request: &LockRequest) {
        self.ask(worker, "test", handle, request, text_of_mode(request.mode));
        let answer = self.workers[worker].answer();
        let locks = self.table.list_locks(request.ino).into_iter();
        let in_the_way: Vec<_> = locks.filter(|lock| conflicts(lock, request)).collect();
        let described: Vec<String> = in_the_way.iter().map(describe_for_getlk).collect();
        // Which of several is reported is the kernel's affair.
        let is_right = if described.is_empty() { answer == "free" } else { described.contains(&answer) };
        assert!(is_right, "{answer} is none of {described:?}:\n{}", self.trace.join("\n"));
        match self.table.find_conflict(request) {
            Some(found) => assert!(in_the_way.contains(&found), "{found:?}"),
            None => assert!(in_the_way.is_empty(), "{in_the_way:?}"),
        }
    }

    /// What the table decided must have been decided by Linux, too.
    fn collect_decisions(&mut self) {
        while let Ok((worker, result)) = self.decided.try_recv() {
            self.trace.push(format!("worker {worker}: {result:?}"));
            self.workers[worker].waiting = None;
            self.expect(worker, errno_of(result));
        }
    }

    /// The kernel's list of locks must be the table's, and so must be who waits.
    fn compare_locks(&mut self) {
        let start = Instant::now();
        loop {
            let (found, blocked) = self.read_kernel_locks();
            let mut expected = Vec::new();
            for file in 0..FILES {
                let locks = self.table.list_locks(Ino(file as u64));
                expected.extend(locks.iter().map(|lock| format!("file{file} {}", describe_for_list(lock))));
            }
            expected.sort();
            let waiting = self.workers.iter().filter(|worker| worker.waiting.is_some()).count();
            if found == expected && blocked == waiting {
                return;
            }
            // Whoever is to wait may still be on its way into the kernel.
            let is_late = start.elapsed() > PATIENCE;
            assert!(
                !is_late,
                "{found:?}, {blocked} wait; not {expected:?}, {waiting}:\n{}",
                self.trace.join("\n")
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The locks on the files, and the number of requests that wait for some.
    fn read_kernel_locks(&self) -> (Vec<String>, usize) {
        let text = std::fs::read_to_string("/proc/locks").unwrap();
        let mut held = Vec::new();
        let mut blocked = 0;
        for (file, path) in self.paths.iter().enumerate() {
            let stat = path.metadata().unwrap();
            let device = (rustix::fs::major(stat.dev()), rustix::fs::minor(stat.dev()));
            let id = format!("{:02x}:{:02x}:{}", device.0, device.1, stat.ino());
            for line in text.lines().filter(|line| line.split_whitespace().any(|word| word == id)) {
                if line.contains("->") {
                    blocked += 1;
                    continue;
                }
                let words: Vec<_> = line.split_whitespace().collect();
                let [_, kind, _, mode, pid, _, start, end] = words[..] else { panic!("{line}") };
                held.push(format!("file{file} {kind} {mode} {pid} {start} {end}"));
            }
        }
        held.sort();
        (held, blocked)
    }
}

fn conflicts(lock: &HeldLock, request: &LockRequest) -> bool {
    let of_lock = LockRequest { range: lock.range, kind: lock.kind, ..*request };
    let is_exclusive = lock.mode == LockMode::Exclusive || request.mode == LockMode::Exclusive;
    lock.owner != request.owner && is_exclusive && overlap(&of_lock, request)
}

fn describe_for_getlk(lock: &HeldLock) -> String {
    let pid = if lock.kind == LockKind::Ofd { "-1".to_owned() } else { lock.pid.to_string() };
    format!("{} {} {} {pid}", text_of_mode(lock.mode), lock.range.start(), lock.range.end())
}

/// As /proc/locks has it.
fn describe_for_list(lock: &HeldLock) -> String {
    let kind = match lock.kind {
        LockKind::Posix => "POSIX",
        LockKind::Ofd => "OFDLCK",
        LockKind::Flock => "FLOCK",
    };
    let mode = match lock.mode {
        LockMode::Shared => "READ",
        LockMode::Exclusive => "WRITE",
    };
    let pid = if lock.kind == LockKind::Ofd { "-1".to_owned() } else { lock.pid.to_string() };
    let end =
        if lock.range.end() == LockRange::LAST { "EOF".to_owned() } else { lock.range.end().to_string() };
    format!("{kind} {mode} {pid} {} {end}", lock.range.start())
}

fn compare_in(dir: &Path) {
    let seed = choose_seed();
    let dir = tempfile::tempdir_in(dir).unwrap();
    let mut comparison = Comparison::new(dir.path(), seed);
    for _ in 0..scale_rounds(1500) {
        comparison.step();
    }
    // Otherwise nothing was compared.
    let count = |what: &str| comparison.trace.iter().filter(|line| line.contains(what)).count();
    for what in ["Ok(())", "Interrupted", "close"] {
        assert!(count(what) > 0, "nothing became of it: {what}");
    }
}

#[test]
fn the_table_answers_as_linux_does_on_a_disk() {
    compare_in(&std::env::temp_dir());
}

#[test]
fn the_table_answers_as_linux_does_in_memory() {
    compare_in(Path::new("/dev/shm"));
}
