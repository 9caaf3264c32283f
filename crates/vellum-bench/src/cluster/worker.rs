//! A worker: the part of a cluster bench on one host. It is told what to do on its standard input.
//!
//! Invariant: when the conversation ends, however that happens, the worker stops. It removes the directory of the bench only
//! if it is told to: whether others still work there, it cannot know.

use std::io::{BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vellum_host::ProgressMeter;
use vellum_host::error_chain::format_error_chain;

use super::message::{JoinRequest, WorkerCommand, WorkerReply, WorkloadStep, read_message, write_message};
use super::operations::{OperationLog, PreparedThread, WorkerThread};
use super::records;
use super::{PROGRAM_VERSION, SIGN_OF_LIFE};
use crate::error::{BenchError, Result};
use crate::ground::{self, BenchDirectory};
use crate::thread_group::run_in_threads;

/// What the worker says, from several threads.
struct ReplyWriter(Mutex<Box<dyn Write + Send>>);

impl ReplyWriter {
    /// Whether somebody still reads it.
    fn send(&self, reply: &WorkerReply) -> bool {
        write_message(&mut *self.0.lock(), reply).is_ok()
    }
}

/// Works for the bench at the other end of `input` and `output` until it has enough. `meter` stops what is under way.
pub fn run_cluster_worker(
    input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
    meter: &Arc<ProgressMeter>,
) {
    let writer = Arc::new(ReplyWriter(Mutex::new(Box::new(output))));
    writer.send(&WorkerReply::Hello { version: PROGRAM_VERSION.into() });
    let (send, commands) = channel();
    let reader_meter = Arc::clone(meter);
    // These two end with the process: one waits for input, and one pauses.
    std::thread::spawn(move || read_commands(input, &send, &reader_meter));
    // From a thread of its own, so that a host which is busy with a long command is not taken for lost.
    let alive = Arc::clone(&writer);
    std::thread::spawn(move || {
        while alive.send(&WorkerReply::Alive) {
            std::thread::sleep(SIGN_OF_LIFE);
        }
    });
    let mut worker = ClusterWorker { start: Instant::now(), meter, joined: None, prepared: None };
    // One after the other in this thread. Only `Stop` is heeded by the reader, since it has to reach what is under way.
    for command in commands {
        let reply = worker
            .carry_out(command)
            .unwrap_or_else(|error| WorkerReply::Failed { message: format_error_chain(&error) });
        if !writer.send(&reply) {
            break;
        }
    }
}

/// Hands on what the bench says; at the end, what is under way stops.
fn read_commands(input: impl Read, send: &Sender<WorkerCommand>, meter: &ProgressMeter) {
    let mut input = BufReader::new(input);
    while let Ok(Some(command)) = read_message(&mut input) {
        if command == WorkerCommand::Stop {
            meter.request_stop();
        } else if send.send(command).is_err() {
            break;
        }
    }
    // The end of the input is the only sign that a worker on another host gets when the bench is killed.
    meter.request_stop();
}

struct ClusterWorker<'a> {
    start: Instant,
    meter: &'a ProgressMeter,
    joined: Option<JoinedBench>,
    prepared: Option<Vec<PreparedThread>>,
}

/// The bench that a worker takes part in.
struct JoinedBench {
    directory: BenchDirectory,
    request: JoinRequest,
}

impl ClusterWorker<'_> {
    fn carry_out(&mut self, command: WorkerCommand) -> Result<WorkerReply> {
        match command {
            WorkerCommand::Ping => Ok(WorkerReply::Pong { clock: self.clock() }),
            WorkerCommand::Join(request) => self.join(request),
            WorkerCommand::Prepare(step) => self.prepare(step),
            WorkerCommand::Start { at } => self.measure(at),
            WorkerCommand::CountAppended { run } => self.count_appended(run),
            WorkerCommand::Clear => {
                // Its files are closed first: some network filesystems keep a name for an open file that is removed, and then its
                // directory is not empty.
                self.prepared = None;
                self.bench()?.directory.remove_contents().map(|()| WorkerReply::Done)
            }
            WorkerCommand::Remove => {
                self.prepared = None;
                self.bench()?.directory.remove_shared_dir().map(|()| WorkerReply::Done)
            }
            // Heeded when it was read.
            WorkerCommand::Stop => Ok(WorkerReply::Done),
        }
    }

    /// Nanoseconds since the worker began.
    fn clock(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn bench(&self) -> Result<&JoinedBench> {
        self.joined.as_ref().ok_or_else(|| BenchError::Parameter("the worker has not joined a bench".into()))
    }

    fn join(&mut self, request: JoinRequest) -> Result<WorkerReply> {
        let path = PathBuf::from(&request.dir);
        let mut directory = match &request.name {
            None => BenchDirectory::create_in(&path, request.space)?,
            Some(name) => BenchDirectory::open_existing(&path, name).map_err(|error| match error {
                BenchError::Ground { path, source } if source.is_not_found() => BenchError::Parameter(format!(
                    "{path} is not the directory of the other hosts: {name}, which the first host made, is not in it"
                )),
                other => other,
            })?,
        };
        // The bench says when it is removed: other hosts may still be using it when this worker ends.
        directory.leave_to_others();
        let reply = WorkerReply::Joined { name: directory.name(), target: ground::describe_target(&path) };
        self.joined = Some(JoinedBench { directory, request });
        Ok(reply)
    }

    fn prepare(&mut self, step: WorkloadStep) -> Result<WorkerReply> {
        self.prepared = None;
        let JoinedBench { directory, request } = self.bench()?;
        let group = run_in_threads(request.sizes.threads, |thread| {
            let place = WorkerThread { host: request.host, thread };
            PreparedThread::prepare(directory, place, step, request.sizes)
        })?;
        self.prepared = Some(group.results);
        Ok(WorkerReply::Done)
    }

    fn measure(&mut self, at: u64) -> Result<WorkerReply> {
        let missing = || BenchError::Parameter("no workload was prepared".into());
        let threads = self.prepared.take().ok_or_else(missing)?;
        let log = OperationLog::default();
        let group = run_in_threads(threads.len(), |number| {
            // All hosts begin at one moment of the bench's clock, which it has converted for each. Threads are there
            // before, so that starting them is not measured.
            let wait = at.saturating_sub(self.clock());
            std::thread::sleep(Duration::from_nanos(wait));
            let begin = self.clock();
            threads.get(number).map_or(Ok(()), |thread| thread.work(&log, self.meter))?;
            Ok((begin, self.clock()))
        })?;
        // From the first to the last, pauses included: otherwise threads that wait for each other would count as fast.
        let begin = group.results.iter().map(|(begin, _)| *begin).min().unwrap_or_default();
        let end = group.results.iter().map(|(_, end)| *end).max().unwrap_or_default();
        Ok(WorkerReply::Measured(Box::new(log.into_sample(begin, end))))
    }

    fn count_appended(&self, run: u64) -> Result<WorkerReply> {
        let directory = &self.bench()?.directory;
        let path = directory.full_path().join(format!("bench-append-{run}/bench-records"));
        let file = std::fs::File::open(&path).map_err(BenchError::io_error("open", "the file of records"))?;
        let found = records::count_records(std::io::BufReader::new(file))?;
        Ok(WorkerReply::Appended { records: found.different, damaged: found.damaged })
    }
}
