//! A connection: the program `ssh`, which speaks SFTP with a server for this process.
//!
//! Invariant: every request ends: with its answer, or with the failure of the connection, at the latest when nothing came
//! for as long as is allowed. A connection that failed once is never used again. Several threads have requests under way
//! at once; the answers come in any order.

use std::collections::HashMap;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use vellum_host::wait::{LongWait, go_on_waiting};
use vellum_types::ErrorKind;

use super::wire::{self, FSYNC, HARDLINK, MESSAGE_MAX, SftpReply, SftpRequest};
use crate::object::address::SftpAddress;
use crate::object::bandwidth::{BandwidthMeter, TransferredBytes};

/// Time to connect. The program itself ends after it, and reports why.
const CONNECT_MAX: u64 = 10;
/// Time until the server's first message: somebody may have to type a passphrase.
const GREETING_MAX: Duration = Duration::from_secs(60);
/// What the program may take to end by itself.
const GRACE: Duration = Duration::from_secs(2);
/// How often a wait checks whether it is to end.
const TICK: Duration = Duration::from_millis(50);
/// What the program said last, bytes.
const SAID_MAX: usize = 4 << 10;

/// Why a connection cannot be used, or a request on it has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConnectionFailure {
    pub kind: ErrorKind,
    pub message: String,
    /// Whether another connection may work.
    pub is_transient: bool,
}

/// A connection.
pub(super) struct SftpChannel {
    /// None once it is closed.
    input: Mutex<Option<ChildStdin>>,
    shared: Arc<ChannelState>,
    child: Mutex<Option<Child>>,
    silence_max: Duration,
    /// Whether the server makes files durable on request.
    pub can_sync: bool,
    /// Whether the server can make hard links.
    pub can_link: bool,
}

/// What the threads of a connection share.
struct ChannelState {
    requests: Mutex<SftpPendingRequests>,
    /// When something came last.
    heard: Mutex<Instant>,
    /// What the program said of itself.
    said: Mutex<Vec<u8>>,
    bandwidth: Arc<BandwidthMeter>,
}

#[derive(Default)]
struct SftpPendingRequests {
    last_id: u32,
    waiting: HashMap<u32, SyncSender<SftpReply>>,
    failure: Option<ConnectionFailure>,
}

/// A request under way.
pub(super) struct SftpTicket<'a> {
    channel: &'a SftpChannel,
    answer: Receiver<SftpReply>,
    sent: Instant,
}

impl ConnectionFailure {
    fn transient(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Io, message: message.into(), is_transient: true }
    }

    /// Whoever opened the store wants only what is here.
    pub fn unwanted() -> Self {
        let message = "it is not in the cache, and nothing is sent".to_owned();
        Self { kind: ErrorKind::Io, message, is_transient: false }
    }

    fn interrupted() -> Self {
        Self { kind: ErrorKind::Interrupted, message: "interrupted".to_owned(), is_transient: false }
    }
}

impl SftpChannel {
    /// Connects.
    pub fn connect(
        program: &Path,
        address: &SftpAddress,
        silence_max: Duration,
        bandwidth: &Arc<BandwidthMeter>,
    ) -> Result<Self, ConnectionFailure> {
        let mut command = Command::new(program);
        command.arg(format!("-oConnectTimeout={CONNECT_MAX}"));
        // Only the subsystem is wanted: no terminal, forwarding or local command, whatever the user's configuration
        // has for this host.
        command.args(["-T", "-oClearAllForwardings=yes", "-oPermitLocalCommand=no"]);
        if let Some(port) = address.port {
            command.arg(format!("-p{port}"));
        }
        command.args(["-s", &address.destination(), "sftp"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let start_error = |error: io::Error| ConnectionFailure {
            kind: ErrorKind::from_io_error(&error),
            message: format!("cannot start {}: {error}", program.display()),
            is_transient: false,
        };
        let mut child = command.spawn().map_err(start_error)?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(errors)) = pipes else {
            return Err(ConnectionFailure::transient("ssh has no pipes"));
        };
        // A server that stops reading must not block a thread for ever. The pipe refuses instead, and the silence is
        // checked between the tries.
        rustix::io::ioctl_fionbio(&input, true).map_err(|errno| start_error(errno.into()))?;
        let shared = Arc::new(ChannelState {
            requests: Mutex::default(),
            heard: Mutex::new(Instant::now()),
            said: Mutex::default(),
            bandwidth: Arc::clone(bandwidth),
        });
        let (greet, greeting) = sync_channel(1);
        // These threads are not joined: they end when their pipes are closed.
        let reading = Arc::clone(&shared);
        std::thread::spawn(move || reading.collect_errors(errors));
        let reading = Arc::clone(&shared);
        std::thread::spawn(move || reading.read_replies(output, &greet));
        let mut channel = Self {
            input: Mutex::new(Some(input)),
            shared,
            child: Mutex::new(Some(child)),
            silence_max,
            can_sync: false,
            can_link: false,
        };
        channel.write_message(&wire::encode_init())?;
        let extensions = channel.await_answer(&greeting, Instant::now(), GREETING_MAX)?;
        channel.can_sync = extensions.iter().any(|name| name == FSYNC);
        channel.can_link = extensions.iter().any(|name| name == HARDLINK);
        Ok(channel)
    }

    /// Whether it can be used.
    pub fn is_usable(&self) -> bool {
        self.shared.requests.lock().failure.is_none()
    }

    /// Sends a request.
    pub fn send(&self, request: SftpRequest<'_>) -> Result<SftpTicket<'_>, ConnectionFailure> {
        // With room for the one answer, so that the thread that reads answers never waits for whoever asked.
        let (answered, answer) = sync_channel(1);
        let id = {
            let mut requests = self.shared.requests.lock();
            if let Some(failure) = &requests.failure {
                return Err(failure.clone());
            }
            // The numbers begin anew after four billion requests, of which the first were answered long before.
            requests.last_id = requests.last_id.wrapping_add(1);
            let id = requests.last_id;
            // Registered before it is sent, since the answer may come before the call below returns.
            requests.waiting.insert(id, answered);
            id
        };
        self.write_message(&request.encode(id))?;
        Ok(SftpTicket { channel: self, answer, sent: Instant::now() })
    }

    /// Sends a request, and waits for its answer.
    pub fn ask(&self, request: SftpRequest<'_>) -> Result<SftpReply, ConnectionFailure> {
        self.send(request)?.wait()
    }

    fn write_message(&self, message: &[u8]) -> Result<(), ConnectionFailure> {
        let mut input = self.input.lock();
        // The pause is made with the lock held, so that threads that come later wait as well.
        self.shared.keep_pace(TransferredBytes::Sent, message.len());
        let Some(pipe) = input.as_ref() else { return Err(self.failure()) };
        let mut rest = message;
        let start = Instant::now();
        while !rest.is_empty() {
            match rustix::io::write(pipe, rest) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if let Err(failure) = self.check_silence(start, self.silence_max) {
                        // A message of which a part was sent ends the conversation.
                        *input = None;
                        drop(input);
                        return Err(self.fail(failure));
                    }
                    wait_writable(pipe);
                }
                // The program has closed its input. Its exit status and messages tell why.
                Err(_) => {
                    *input = None;
                    drop(input);
                    return Err(self.failure());
                }
            }
        }
        Ok(())
    }

    /// Waits for an answer that was to come after `sent`.
    fn await_answer<T>(
        &self,
        answer: &Receiver<T>,
        sent: Instant,
        silence_max: Duration,
    ) -> Result<T, ConnectionFailure> {
        loop {
            // In short waits, so that an interruption and silence are noticed.
            match answer.recv_timeout(TICK) {
                Ok(reply) => return Ok(reply),
                Err(RecvTimeoutError::Disconnected) => return Err(self.failure()),
                Err(RecvTimeoutError::Timeout) => {
                    self.check_silence(sent, silence_max).map_err(|failure| self.fail(failure))?;
                }
            }
        }
    }

    /// Fails if nothing came for too long, or if the user asked to stop.
    fn check_silence(&self, since: Instant, silence_max: Duration) -> Result<(), ConnectionFailure> {
        if !go_on_waiting(|| LongWait::StoreAnswer) {
            return Err(ConnectionFailure::interrupted());
        }
        // An answer to another request shows that the connection works.
        let heard = (*self.shared.heard.lock()).max(since);
        if heard.elapsed() > silence_max {
            let message = format!("no answer for {} s", silence_max.as_secs());
            return Err(ConnectionFailure::transient(message));
        }
        Ok(())
    }

    /// Ends the connection. Returns the reason for which it ended first.
    fn fail(&self, failure: ConnectionFailure) -> ConnectionFailure {
        let first = self.shared.fail(failure);
        if let Some(child) = self.child.lock().as_mut() {
            // It may have ended meanwhile, which is as well.
            let _ = child.kill();
        }
        first
    }

    /// Why the connection ended. What the program said, and how it ended, are known a moment later.
    fn failure(&self) -> ConnectionFailure {
        let ended = self.child.lock().take().map(|child| wait_or_kill(child, GRACE));
        let said = self.shared.last_words();
        let known = self.shared.requests.lock().failure.clone();
        match known {
            // An empty message means that the output of `ssh` ended, for which it may have printed the reason.
            Some(failure) if !failure.message.is_empty() => failure,
            Some(_) | None => {
                let failure = explain_end(&said, ended.is_some());
                self.shared.requests.lock().failure = Some(failure.clone());
                failure
            }
        }
    }
}

impl Drop for SftpChannel {
    fn drop(&mut self) {
        // A server may leave undone what it has not answered when its input ends.
        let start = Instant::now();
        while self.shared.has_unanswered() && start.elapsed() < GRACE {
            std::thread::sleep(Duration::from_millis(1));
        }
        *self.input.get_mut() = None;
        if let Some(child) = self.child.get_mut().take() {
            // In a thread of its own, so that no request waits for `ssh` to end.
            std::thread::spawn(move || wait_or_kill(child, GRACE));
        }
    }
}

impl SftpTicket<'_> {
    /// Waits for the answer.
    pub fn wait(self) -> Result<SftpReply, ConnectionFailure> {
        self.channel.await_answer(&self.answer, self.sent, self.channel.silence_max)
    }
}

impl ChannelState {
    /// Reads the server's messages until the connection ends.
    fn read_replies(&self, mut output: ChildStdout, greet: &SyncSender<Vec<String>>) {
        let reason = match read_message(&mut output) {
            Ok(greeting) => match wire::decode_version(&greeting) {
                Ok(extensions) => {
                    // Whoever connects may have given up meanwhile.
                    let _ = greet.send(extensions);
                    self.dispatch_replies(&mut output)
                }
                Err(_) => {
                    "the other side does not speak SFTP: its shell prints something, or it is no SFTP server"
                }
            },
            Err(_) => "",
        };
        self.fail(ConnectionFailure::transient(reason));
    }

    fn dispatch_replies(&self, output: &mut ChildStdout) -> &'static str {
        loop {
            let Ok(message) = read_message(output) else { return "" };
            *self.heard.lock() = Instant::now();
            self.keep_pace(TransferredBytes::Received, message.len());
            let Ok((id, reply)) = SftpReply::decode(&message) else { return "an answer is malformed" };
            // Nobody waits for the answers to `Close`, nor for those to the removal of temporary files.
            if let Some(answered) = self.requests.lock().waiting.remove(&id) {
                // Whoever asked may have given up meanwhile.
                let _ = answered.send(reply);
            }
        }
    }

    /// Waits until bytes may follow those that are counted now.
    fn keep_pace(&self, direction: TransferredBytes, bytes: usize) {
        let end = Instant::now() + self.bandwidth.count_bytes(direction, bytes);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(TICK));
            // The server was not silent: this thread did not read.
            *self.heard.lock() = Instant::now();
        }
    }

    /// Whether answers are still to come.
    fn has_unanswered(&self) -> bool {
        let requests = self.requests.lock();
        requests.failure.is_none() && !requests.waiting.is_empty()
    }

    /// Ends all requests. Returns the reason for which the connection ended first.
    fn fail(&self, failure: ConnectionFailure) -> ConnectionFailure {
        let mut requests = self.requests.lock();
        // Dropping the senders wakes all threads that wait for an answer.
        requests.waiting.clear();
        requests.failure.get_or_insert(failure).clone()
    }

    fn collect_errors(&self, mut errors: ChildStderr) {
        let mut buffer = [0; 1024];
        while let Ok(count @ 1..) = errors.read(&mut buffer) {
            let mut said = self.said.lock();
            said.extend_from_slice(buffer.get(..count).unwrap_or_default());
            let surplus = said.len().saturating_sub(SAID_MAX);
            said.drain(..surplus);
        }
    }

    /// The last line that the program printed.
    fn last_words(&self) -> String {
        let said = String::from_utf8_lossy(&self.said.lock()).into_owned();
        let line = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
        // What it prints may come from the other host, and ends up on a terminal.
        line.chars().filter(|char| !char.is_control()).collect()
    }
}

/// A message without its length. Fails at the end of the connection, and if it is too long.
fn read_message(output: &mut ChildStdout) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    output.read_exact(&mut len)?;
    let len = usize::try_from(u32::from_be_bytes(len)).map_err(io::Error::other)?;
    if len > MESSAGE_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; len];
    output.read_exact(&mut message)?;
    Ok(message)
}

fn wait_writable(pipe: &ChildStdin) {
    let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
    // Whatever the outcome, the write that follows shows what is the matter.
    let _ = rustix::event::poll(&mut [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::OUT)], Some(&tick));
}

/// What the last words of `ssh` mean.
fn explain_end(said: &str, has_ended: bool) -> ConnectionFailure {
    // Failures that another connection would not change.
    // By their words, which OpenSSH has in English only: it ends with the same status after all of them.
    let final_kind = [
        ("Permission denied", ErrorKind::Denied),
        ("Host key verification failed", ErrorKind::Denied),
        ("Could not resolve", ErrorKind::Io),
        ("subsystem request failed", ErrorKind::Unsupported),
    ];
    let found = final_kind.into_iter().find(|(words, _)| said.contains(words)).map(|(_, kind)| kind);
    let message = match said {
        "" if has_ended => "the connection was cut".to_owned(),
        "" => "the connection is gone".to_owned(),
        said => format!("ssh says: {said}"),
    };
    ConnectionFailure { kind: found.unwrap_or(ErrorKind::Io), message, is_transient: found.is_none() }
}

/// Waits until the child has ended, and ends it if it does not in time.
fn wait_or_kill(mut child: Child, patience: Duration) {
    let start = Instant::now();
    while let Ok(None) = child.try_wait() {
        if start.elapsed() >= patience {
            // It may have ended meanwhile, which is as well.
            let _ = child.kill();
            let _ = child.wait();
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
