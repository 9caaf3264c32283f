//! What each thread of a worker does, and how long each operation took.
//!
//! Invariant: an operation that fails is counted, with what the first one of the host said, and the others go on; only the
//! durations of those that succeeded are kept.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use rustix::fs::{Advice, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use vellum_host::beneath::{BeneathError, HeldDir};
use vellum_host::{DurationHistogram, ProgressMeter};

use super::message::{ClusterBenchSizes, WorkloadSample, WorkloadStep};
use super::records::format_record;
use super::workload::ClusterWorkload;
use crate::error::{BenchError, Result, check_interrupted};
use crate::filesystem::payload::{ThreadPayload, verify_block};
use crate::ground::BenchDirectory;

/// After so many failures a host gives a workload up: each may take as long as a filesystem waits for its server.
const ERRORS_MAX: u64 = 1000;

/// Of ten operations of a mix, so many read.
const MIX_READS: u64 = 7;

/// What all threads of a worker did.
#[derive(Debug, Default)]
pub(super) struct OperationLog {
    latencies: DurationHistogram,
    longest: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    first_error: Mutex<Option<String>>,
}

impl OperationLog {
    /// Carries out an operation that returns how many bytes it read or wrote.
    fn time_operation(&self, operation: impl FnOnce() -> Result<u64>) {
        let start = Instant::now();
        match operation() {
            Ok(bytes) => {
                let took = start.elapsed();
                self.latencies.record_duration(took);
                // Relaxed is enough for all counters: they are read when the threads have ended.
                self.longest.fetch_max(took.as_nanos() as u64, Ordering::Relaxed);
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Err(error) => {
                self.errors.fetch_add(1, Ordering::Relaxed);
                self.first_error
                    .lock()
                    .get_or_insert_with(|| vellum_host::error_chain::format_error_chain(&error));
            }
        }
    }

    fn has_given_up(&self) -> bool {
        self.errors.load(Ordering::Relaxed) >= ERRORS_MAX
    }

    /// All of it, as it is sent.
    pub fn into_sample(self, begin: u64, end: u64) -> WorkloadSample {
        let read = self.latencies.read_distribution();
        WorkloadSample {
            begin,
            end,
            operations: read.count(),
            bytes: self.bytes.into_inner(),
            errors: self.errors.into_inner(),
            first_error: self.first_error.into_inner(),
            longest: self.longest.into_inner(),
            total: read.sum().as_nanos() as u64,
            latencies: read.occupied_classes().iter().map(|class| (class.class, class.count)).collect(),
        }
    }
}

/// Which thread it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkerThread {
    /// The number of its host.
    pub host: usize,
    /// Its number on that host.
    pub thread: usize,
}

/// A thread that can begin at once: what it needs is open.
pub(super) struct PreparedThread {
    place: WorkerThread,
    step: WorkloadStep,
    sizes: ClusterBenchSizes,
    /// Where it creates files, or has its own.
    dir: HeldDir,
    /// Where the files are that it reads.
    source: HeldDir,
    /// The files of all threads that it has open.
    shared_files: Vec<File>,
}

impl PreparedThread {
    /// Makes and opens what the thread needs.
    pub fn prepare(
        ground: &BenchDirectory,
        place: WorkerThread,
        step: WorkloadStep,
        sizes: ClusterBenchSizes,
    ) -> Result<Self> {
        let WorkloadStep { workload, run, source, ranks, .. } = step;
        let own = |stem: &str| open_or_create_dir(ground, &thread_dir_name(stem, run, place));
        let theirs = |stem: &str| {
            let name = thread_dir_name(stem, run, WorkerThread { host: source, ..place });
            ground.dir().open_dir_to_read(name.as_bytes()).map_err(|error| ground.to_bench_error(error))
        };
        let of_all = |stem: &str| open_or_create_dir(ground, &format!("bench-{stem}-{run}"));
        let mut shared_files = Vec::new();
        let (dir, source) = match workload {
            ClusterWorkload::Create => (own("small")?, own("small")?),
            ClusterWorkload::CreateOneDir => (of_all("small")?, of_all("small")?),
            ClusterWorkload::CreateEmpty => (own("empty")?, own("empty")?),
            ClusterWorkload::CreateEmptyOneDir => (of_all("empty")?, of_all("empty")?),
            ClusterWorkload::ReadCold | ClusterWorkload::Read | ClusterWorkload::Stat => {
                (theirs("small")?, theirs("small")?)
            }
            ClusterWorkload::Mix => (own("mix")?, theirs("small")?),
            ClusterWorkload::BigWrite => (own("big")?, own("big")?),
            ClusterWorkload::BigRead => (theirs("big")?, theirs("big")?),
            ClusterWorkload::Append => {
                let dir = of_all("append")?;
                shared_files.push(open_shared_file(&dir, "bench-records", OFlags::WRONLY | OFlags::APPEND)?);
                (dir, of_all("append")?)
            }
            ClusterWorkload::Lock => {
                let dir = of_all("lock")?;
                // One more than hosts: there is always one that is free to go on.
                for number in 0..=ranks {
                    // For writing, too: over NFS, an exclusive lock needs that.
                    shared_files.push(open_shared_file(&dir, &format!("bench-{number}"), OFlags::RDWR)?);
                }
                (dir, of_all("lock")?)
            }
        };
        let prepared = Self { place, step, sizes, dir, source, shared_files };
        prepared.warm_or_cool()?;
        Ok(prepared)
    }

    /// Brings the caches of this host into the state that the workload is about.
    fn warm_or_cool(&self) -> Result<()> {
        let own = self.step.source == self.place.host;
        match self.step.workload {
            // The files of another host are not in the page cache of this one.
            ClusterWorkload::ReadCold if own => {
                self.for_each_small_file(|name, _| drop_pages(&self.source, name))
            }
            ClusterWorkload::BigRead if own => drop_pages(&self.source, BIG_FILE),
            ClusterWorkload::Read => {
                let mut buffer = vec![0; to_len(self.sizes.small_file_size)];
                self.for_each_small_file(|name, number| {
                    self.read_small_file(name, number, &mut buffer).map(drop)
                })
            }
            ClusterWorkload::Stat => self.for_each_small_file(|name, _| self.stat(name)),
            ClusterWorkload::ReadCold
            | ClusterWorkload::BigRead
            | ClusterWorkload::Create
            | ClusterWorkload::CreateOneDir
            | ClusterWorkload::CreateEmpty
            | ClusterWorkload::CreateEmptyOneDir
            | ClusterWorkload::Mix
            | ClusterWorkload::BigWrite
            | ClusterWorkload::Append
            | ClusterWorkload::Lock => Ok(()),
        }
    }

    /// Does the work.
    pub fn work(&self, log: &OperationLog, meter: &ProgressMeter) -> Result<()> {
        let files = self.sizes.small_file_count;
        match self.step.workload {
            ClusterWorkload::Create | ClusterWorkload::CreateOneDir => {
                let mut payload = self.new_payload(to_len(self.sizes.small_file_size));
                repeat(files, log, meter, |number| self.create_small_file(number, &mut payload))
            }
            ClusterWorkload::CreateEmpty | ClusterWorkload::CreateEmptyOneDir => {
                repeat(files, log, meter, |number| {
                    let name = self.own_name(number);
                    let made = self.dir.create_file(name.as_bytes(), 0o644);
                    made.map(|_| 0).map_err(beneath_error("create", &name))
                })
            }
            ClusterWorkload::ReadCold | ClusterWorkload::Read => {
                let mut buffer = vec![0; to_len(self.sizes.small_file_size)];
                repeat(files, log, meter, |number| {
                    self.read_small_file(&small_name(number), number, &mut buffer)
                })
            }
            ClusterWorkload::Stat => {
                repeat(files, log, meter, |number| self.stat(&small_name(number)).map(|()| 0))
            }
            ClusterWorkload::Mix => self.work_mix(log, meter),
            ClusterWorkload::BigWrite => self.write_big_file(log, meter),
            ClusterWorkload::BigRead => self.read_big_file(log, meter),
            ClusterWorkload::Append => {
                let Some(mut file) = self.shared_files.first() else { return Ok(()) };
                repeat(self.sizes.operations, log, meter, |number| {
                    let record = format_record(self.place, number);
                    // One call: a record that is written in two is not whole for others.
                    let written =
                        file.write(&record).map_err(BenchError::io_error("append to", "the file"))?;
                    if written == record.len() {
                        return Ok(written as u64);
                    }
                    Err(BenchError::Content(
                        "the file of records: an append wrote a part of a record; it".into(),
                    ))
                })
            }
            ClusterWorkload::Lock => self.take_locks(log, meter),
        }
    }

    fn create_small_file(&self, number: u64, payload: &mut ThreadPayload) -> Result<u64> {
        let name = self.own_name(number);
        let mut file =
            self.dir.create_file(name.as_bytes(), 0o644).map_err(beneath_error("create", &name))?;
        let len = to_len(self.sizes.small_file_size);
        for piece in payload.fill_block(number, len).chunks(to_len(self.sizes.io_size)) {
            file.write_all(piece).map_err(BenchError::io_error("write", name.as_str()))?;
        }
        Ok(self.sizes.small_file_size)
    }

    fn read_small_file(&self, name: &str, number: u64, buffer: &mut [u8]) -> Result<u64> {
        let mut file =
            // Without reading the attributes, which would be one more request in each operation.
            self.source.open_file_unchecked(name.as_bytes()).map_err(beneath_error("open", name))?;
        for piece in buffer.chunks_mut(to_len(self.sizes.io_size)) {
            file.read_exact(piece).map_err(BenchError::io_error("read", name))?;
        }
        // The content names who wrote it, so that a file of another host or of an earlier run is found out.
        let writer = WorkerThread { host: self.step.source, ..self.place };
        verify_block(buffer, series_of(ClusterWorkload::Create, self.step.run, writer), number, name)?;
        Ok(buffer.len() as u64)
    }

    fn stat(&self, name: &str) -> Result<()> {
        self.source.stat(name.as_bytes()).map(drop).map_err(beneath_error("stat", name))
    }

    fn work_mix(&self, log: &OperationLog, meter: &ProgressMeter) -> Result<()> {
        let mut payload = self.new_payload(to_len(self.sizes.small_file_size));
        let mut buffer = vec![0; to_len(self.sizes.small_file_size)];
        let mut created = 0;
        repeat(self.sizes.small_file_count, log, meter, |number| {
            // Multiplied by an odd number, a counter visits its values in an order that no readahead follows.
            let shuffled = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            // This spreads the reads evenly among ten operations, instead of doing all of them in a row.
            if number * MIX_READS / 10 != (number + 1) * MIX_READS / 10 {
                let read = shuffled % self.sizes.small_file_count;
                return self.read_small_file(&small_name(read), read, &mut buffer);
            }
            created += 1;
            self.create_small_file(created - 1, &mut payload)
        })
    }

    fn write_big_file(&self, log: &OperationLog, meter: &ProgressMeter) -> Result<()> {
        let mut payload = self.new_payload(to_len(self.sizes.io_size));
        let file = self.dir.create_file(BIG_FILE.as_bytes(), 0o644);
        let mut file = file.map_err(beneath_error("create", BIG_FILE))?;
        for (number, len) in split_into_blocks(self.sizes).enumerate() {
            check_interrupted(meter)?;
            // After so many failures the rest would only be more of them, and no figure.
            if log.has_given_up() {
                break;
            }
            log.time_operation(|| {
                let block = payload.fill_block(number as u64, to_len(len));
                file.write_all(block).map_err(BenchError::io_error("write", BIG_FILE))?;
                Ok(len)
            });
        }
        log.time_operation(|| {
            // Timed as an operation: otherwise what a filesystem keeps in memory would look like its speed.
            file.sync_all().map_err(BenchError::io_error("flush", BIG_FILE))?;
            Ok(0)
        });
        Ok(())
    }

    fn read_big_file(&self, log: &OperationLog, meter: &ProgressMeter) -> Result<()> {
        let mut buffer = vec![0; to_len(self.sizes.io_size)];
        let writer = WorkerThread { host: self.step.source, ..self.place };
        let series = series_of(ClusterWorkload::BigWrite, self.step.run, writer);
        let file = self.source.open_file_unchecked(BIG_FILE.as_bytes());
        let mut file = file.map_err(beneath_error("open", BIG_FILE))?;
        for (number, len) in split_into_blocks(self.sizes).enumerate() {
            check_interrupted(meter)?;
            if log.has_given_up() {
                break;
            }
            log.time_operation(|| {
                let block = buffer.get_mut(..to_len(len)).unwrap_or_default();
                file.read_exact(block).map_err(BenchError::io_error("read", BIG_FILE))?;
                verify_block(block, series, number as u64, BIG_FILE)?;
                Ok(len)
            });
        }
        Ok(())
    }

    /// All hosts go round the same files: each takes the lock of the next one, then lets go the one that it has, so
    /// that nobody can go on before the one ahead has.
    fn take_locks(&self, log: &OperationLog, meter: &ProgressMeter) -> Result<()> {
        let call = |position: usize, operation| match self.shared_files.get(position) {
            Some(file) => rustix::fs::flock(file, operation)
                .map_err(|errno| BenchError::io_error("lock", format!("bench-{position}"))(errno.into())),
            None => Ok(()),
        };
        // Threads of one host would hand locks to each other, which is not what this measures.
        if self.place.thread != 0 {
            return Ok(());
        }
        let mut held = 0;
        // Not timed: the first one waits for all hosts that have begun before.
        call(held, FlockOperation::LockExclusive)?;
        let done = repeat(self.sizes.operations, log, meter, |_| {
            let next = (held + 1) % self.shared_files.len();
            call(next, FlockOperation::LockExclusive)?;
            let let_go = call(held, FlockOperation::Unlock);
            // Before the result is looked at: the next lock is held, whatever became of the one before.
            held = next;
            let_go.map(|()| 0)
        });
        // After a failure as well: other hosts wait for this lock.
        call(held, FlockOperation::Unlock)?;
        done
    }

    fn for_each_small_file(&self, mut work: impl FnMut(&str, u64) -> Result<()>) -> Result<()> {
        (0..self.sizes.small_file_count).try_for_each(|number| work(&small_name(number), number))
    }

    fn new_payload(&self, len: usize) -> ThreadPayload {
        ThreadPayload::new(len, series_of(self.step.workload, self.step.run, self.place))
    }

    /// The name of a file that this thread creates, which in a directory of all has to be its own.
    fn own_name(&self, number: u64) -> String {
        let WorkerThread { host, thread } = self.place;
        match self.step.workload {
            ClusterWorkload::CreateOneDir | ClusterWorkload::CreateEmptyOneDir => {
                format!("bench-{host}-{thread}-{number}")
            }
            ClusterWorkload::Create
            | ClusterWorkload::CreateEmpty
            | ClusterWorkload::ReadCold
            | ClusterWorkload::Read
            | ClusterWorkload::Stat
            | ClusterWorkload::Mix
            | ClusterWorkload::BigWrite
            | ClusterWorkload::BigRead
            | ClusterWorkload::Append
            | ClusterWorkload::Lock => small_name(number),
        }
    }
}

/// The name of each thread's large file.
const BIG_FILE: &str = "bench-big";

fn repeat(
    count: u64,
    log: &OperationLog,
    meter: &ProgressMeter,
    mut operation: impl FnMut(u64) -> Result<u64>,
) -> Result<()> {
    for number in 0..count {
        check_interrupted(meter)?;
        if log.has_given_up() {
            break;
        }
        log.time_operation(|| operation(number));
    }
    Ok(())
}

fn small_name(number: u64) -> String {
    let mut name = String::with_capacity(16);
    // Writing into a String does not fail.
    let _ = write!(name, "bench-{number}");
    name
}

fn thread_dir_name(stem: &str, run: u64, place: WorkerThread) -> String {
    format!("bench-{stem}-{run}-{}-{}", place.host, place.thread)
}

/// The bytes of a thread's files; no two series have an equal page.
fn series_of(workload: ClusterWorkload, run: u64, place: WorkerThread) -> u64 {
    // Each number has bits of its own: there are at most 1,000 runs, 256 hosts and 1,024 threads.
    (workload as u64 + 1) << 56 | run << 32 | (place.host as u64) << 16 | place.thread as u64
}

/// The lengths of the blocks of a large file.
fn split_into_blocks(sizes: ClusterBenchSizes) -> impl Iterator<Item = u64> {
    let ClusterBenchSizes { big_file_size, io_size, .. } = sizes;
    (0..big_file_size.div_ceil(io_size.max(1))).map(move |block| io_size.min(big_file_size - block * io_size))
}

fn beneath_error(action: &'static str, name: &str) -> impl FnOnce(BeneathError) -> BenchError {
    let object = name.to_owned();
    move |error| BenchError::Io { action, object, source: error.into_io_error() }
}

fn to_len(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn open_or_create_dir(ground: &BenchDirectory, name: &str) -> Result<HeldDir> {
    match ground.dir().create_dir(name.as_bytes(), 0o755) {
        Err(error) if error.errno() != Some(Errno::EXIST) => return Err(ground.to_bench_error(error)),
        // Another host, or another thread, was first.
        Ok(()) | Err(_) => {}
    }
    ground.dir().open_dir_to_read(name.as_bytes()).map_err(|error| ground.to_bench_error(error))
}

fn open_shared_file(dir: &HeldDir, name: &str, flags: OFlags) -> Result<File> {
    // All hosts open it, and whichever is first creates it.
    let flags = flags | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o644));
    opened.map(File::from).map_err(|errno| BenchError::io_error("open", name)(errno.into()))
}

fn drop_pages(dir: &HeldDir, name: &str) -> Result<()> {
    let file = dir.open_file_unchecked(name.as_bytes()).map_err(beneath_error("open", name))?;
    let fail = |action| move |errno: Errno| BenchError::io_error(action, name)(errno.into());
    // Only clean pages can be dropped.
    rustix::fs::fsync(&file).map_err(fail("flush"))?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).map_err(fail("drop the pages of"))
}
