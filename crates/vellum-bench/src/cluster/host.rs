//! A host as the bench sees it: the command that reaches its worker, the conversation, and the difference of the clocks.
//!
//! Invariant: a host that is lost stays lost, with the reason; nothing waits for one that says nothing for longer than
//! [`SILENCE_MAX`].

use std::ffi::OsString;
use std::io::BufReader;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vellum_host::ProgressMeter;

use super::message::{JoinRequest, WorkerCommand, WorkerReply, read_message, write_message};
use super::{PROGRAM_VERSION, SILENCE_MAX};
use crate::error::{BenchError, Result};

/// How often the clock of a host is asked for. The quickest answer counts.
const PINGS: usize = 7;
/// How often to look whether the user asked to stop.
const STOP_POLL: Duration = Duration::from_millis(50);
/// How long a worker may take to end by itself.
const ENDING_MAX: Duration = Duration::from_secs(5);
/// How long it may take to remove what the bench made, after a failure.
const REMOVAL_MAX: Duration = Duration::from_secs(120);

/// A host that is to take part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterBenchHost {
    /// Its name, in results and messages.
    pub name: String,
    /// The command that starts a worker there.
    pub command: Vec<OsString>,
    /// The directory that is measured, there.
    pub dir: String,
}

/// Why a reply did not come.
pub(super) enum NoReply {
    /// The user asked to stop.
    Stopped,
    /// The host is lost.
    Lost,
}

/// A reply, and when it came.
struct TimedReply {
    at: Instant,
    reply: std::io::Result<WorkerReply>,
}

/// A worker on a host.
pub(super) struct HostWorker {
    pub host: ClusterBenchHost,
    /// Why it takes part no longer.
    pub lost: Option<String>,
    child: Child,
    input: Option<ChildStdin>,
    replies: Receiver<TimedReply>,
    heard: Arc<Mutex<Instant>>,
    clock: HostClockReading,
}

/// The clock of a worker.
#[derive(Debug, Clone, Copy)]
struct HostClockReading {
    /// When its clock said zero, by the clock of the bench: nanoseconds after the bench began.
    zero: i128,
    /// The way there and back.
    round_trip: Duration,
}

impl HostWorker {
    /// Starts the command.
    pub fn start(host: &ClusterBenchHost) -> Result<Self> {
        let fail = |reason: String| BenchError::Host { host: host.name.clone(), reason };
        let (program, arguments) = host.command.split_first().ok_or_else(|| fail("no command".into()))?;
        let mut command = Command::new(program);
        // Standard error is inherited: ssh asks for passwords and reports errors there.
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child =
            command.spawn().map_err(|error| fail(format!("cannot start {}: {error}", program.display())))?;
        let heard = Arc::new(Mutex::new(Instant::now()));
        let (send, replies) = channel();
        if let Some(output) = child.stdout.take() {
            let heard = Arc::clone(&heard);
            // It ends at the end of the output, which the end of the child brings.
            // Reading from a pipe has no deadline, and the bench has to notice a host that says nothing.
            std::thread::spawn(move || read_replies(BufReader::new(output), &send, &heard));
        }
        let input = child.stdin.take();
        let clock = HostClockReading { zero: 0, round_trip: Duration::ZERO };
        Ok(Self { host: host.clone(), lost: None, child, input, replies, heard, clock })
    }

    /// Waits for its greeting, and compares versions and clocks.
    pub fn greet(&mut self, origin: Instant, meter: &ProgressMeter) -> Result<()> {
        match self.await_reply(meter) {
            // Only the same version: messages are not kept compatible, and figures of two programs would be added up.
            Ok((_, WorkerReply::Hello { version })) if version == PROGRAM_VERSION => {}
            Ok((_, WorkerReply::Hello { version })) => {
                return Err(BenchError::HostVersion {
                    host: self.host.name.clone(),
                    theirs: version,
                    ours: PROGRAM_VERSION.into(),
                });
            }
            Ok((_, other)) => self.give_up(format!("it said {other:?} instead of a greeting")),
            Err(NoReply::Stopped) => return Err(BenchError::Interrupted),
            Err(NoReply::Lost) => {}
        }
        // Several, of which the fastest counts: its error is half of the way there and back at most.
        for _ in 0..PINGS {
            let sent = Instant::now();
            match self.ask(&WorkerCommand::Ping, meter) {
                Ok((at, WorkerReply::Pong { clock })) => self.note_clock(origin, sent, at, clock),
                Ok((_, other)) => self.give_up(format!("it said {other:?} instead of its clock")),
                Err(NoReply::Stopped) => return Err(BenchError::Interrupted),
                Err(NoReply::Lost) => {}
            }
        }
        self.expect_taking_part()
    }

    fn note_clock(&mut self, origin: Instant, sent: Instant, at: Instant, clock: u64) {
        let round_trip = at.duration_since(sent);
        if self.clock.round_trip.is_zero() || round_trip < self.clock.round_trip {
            // As NTP assumes it: the way there takes as long as the way back.
            let middle = sent.duration_since(origin) + round_trip / 2;
            // Signed: workers are started before the clock of the bench.
            let zero = middle.as_nanos() as i128 - i128::from(clock);
            // At least a nanosecond, since zero stands for no answer yet.
            self.clock = HostClockReading { zero, round_trip: round_trip.max(Duration::from_nanos(1)) };
        }
    }

    /// Has it make or open the directory of the bench. Returns the directory's name, and what is measured.
    pub fn join(
        &mut self,
        request: JoinRequest,
        meter: &ProgressMeter,
    ) -> Result<(String, std::collections::BTreeMap<String, String>)> {
        match self.ask(&WorkerCommand::Join(request), meter) {
            Ok((_, WorkerReply::Joined { name, target })) => return Ok((name, target)),
            Ok((_, other)) => self.give_up(format!("it said {other:?} instead of a directory")),
            Err(NoReply::Stopped) => return Err(BenchError::Interrupted),
            Err(NoReply::Lost) => {}
        }
        self.expect_taking_part()?;
        Err(BenchError::Host { host: self.host.name.clone(), reason: "it did not join".into() })
    }

    fn expect_taking_part(&self) -> Result<()> {
        let lost =
            |reason: &String| BenchError::Host { host: self.host.name.clone(), reason: reason.clone() };
        self.lost.as_ref().map_or(Ok(()), |reason| Err(lost(reason)))
    }

    /// The way there and back.
    pub fn round_trip(&self) -> Duration {
        self.clock.round_trip
    }

    /// A moment of the bench's clock by that of the worker, nanoseconds.
    pub fn to_worker_clock(&self, at: Duration) -> u64 {
        // A moment before the worker began is over, so that it begins at once.
        u64::try_from(at.as_nanos() as i128 - self.clock.zero).unwrap_or_default()
    }

    /// A moment of the worker's clock by that of the bench, seconds.
    pub fn to_bench_seconds(&self, at: u64) -> f64 {
        (i128::from(at) + self.clock.zero) as f64 / 1e9
    }

    /// Sends a command, unless the host is lost.
    pub fn send(&mut self, command: &WorkerCommand) {
        let Some(input) = self.input.as_mut() else { return };
        if write_message(input, command).is_err() {
            // A broken pipe says nothing of its reason, and how the worker ended may.
            let reason = self.describe_end();
            self.give_up(reason);
        }
    }

    /// Sends a command and waits for the reply.
    pub fn ask(
        &mut self,
        command: &WorkerCommand,
        meter: &ProgressMeter,
    ) -> Result<(Instant, WorkerReply), NoReply> {
        self.send(command);
        self.await_reply(meter)
    }

    /// Waits for a reply.
    pub fn await_reply(&mut self, meter: &ProgressMeter) -> Result<(Instant, WorkerReply), NoReply> {
        while self.lost.is_none() {
            if meter.is_stopped() {
                return Err(NoReply::Stopped);
            }
            match self.replies.recv_timeout(STOP_POLL) {
                Ok(TimedReply { reply: Ok(WorkerReply::Failed { message }), .. }) => self.give_up(message),
                Ok(TimedReply { reply: Ok(reply), at }) => return Ok((at, reply)),
                Ok(TimedReply { reply: Err(error), .. }) => {
                    self.give_up(format!("what came from it is not from a worker: {error}"));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let reason = self.describe_end();
                    self.give_up(reason);
                }
                Err(RecvTimeoutError::Timeout) if self.heard.lock().elapsed() > SILENCE_MAX => {
                    self.give_up(format!("nothing was heard of it for {} s", SILENCE_MAX.as_secs()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        Err(NoReply::Lost)
    }

    /// Has it remove the directory of the bench, whatever it still says about what it was doing. Returns whether it did.
    pub fn remove_after_failure(&mut self) -> bool {
        self.send(&WorkerCommand::Remove);
        let start = Instant::now();
        // Replies to commands from before may come first, and are read past.
        while self.input.is_some() && start.elapsed() < REMOVAL_MAX {
            match self.replies.recv_timeout(STOP_POLL) {
                Ok(TimedReply { reply: Ok(WorkerReply::Done), .. }) => return true,
                Ok(TimedReply { reply: Ok(_), .. }) => {}
                Ok(TimedReply { reply: Err(_), .. }) | Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) if self.heard.lock().elapsed() > SILENCE_MAX => return false,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        false
    }

    /// Ends the conversation.
    pub fn close(&mut self) {
        self.input = None;
    }

    /// Excludes the host. Its worker ends if it still can.
    pub fn give_up(&mut self, reason: String) {
        // The first reason stays: what comes later follows from it.
        self.lost.get_or_insert(reason);
        self.input = None;
    }

    /// How the connection ended.
    fn describe_end(&mut self) -> String {
        let start = Instant::now();
        // The output of a process ends a moment before it does.
        while start.elapsed() < Duration::from_secs(1) {
            if let Ok(Some(status)) = self.child.try_wait() {
                return format!("its worker ended ({status})");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        "the connection to it ended".into()
    }
}

impl Drop for HostWorker {
    fn drop(&mut self) {
        // The worker ends at the end of its input.
        self.close();
        // A silent ssh may wait for its network for minutes.
        let patience = if self.heard.lock().elapsed() > SILENCE_MAX { Duration::ZERO } else { ENDING_MAX };
        let start = Instant::now();
        while let Ok(None) = self.child.try_wait() {
            if start.elapsed() >= patience {
                // It may have ended meanwhile, which is as well.
                let _ = self.child.kill();
                // Otherwise it would be a zombie as long as the bench goes on.
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Hands on what a worker says.
fn read_replies(
    mut output: BufReader<std::process::ChildStdout>,
    send: &Sender<TimedReply>,
    heard: &Mutex<Instant>,
) {
    loop {
        let read = read_message(&mut output);
        let at = Instant::now();
        let reply = match read {
            Ok(None) => return,
            Ok(Some(reply)) => Ok(reply),
            Err(error) => Err(error),
        };
        // Signs of life go no further: they only count for SILENCE_MAX, and would be taken for replies.
        *heard.lock() = at;
        let is_over = reply.is_err();
        if matches!(reply, Ok(WorkerReply::Alive)) {
            continue;
        }
        if send.send(TimedReply { at, reply }).is_err() || is_over {
            return;
        }
    }
}
