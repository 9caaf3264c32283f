//! The process that serves a mount, from the moment when it is ready to its end; and how it is started in the
//! background.
//!
//! Invariant: it ends by an unmount, or by a signal, which makes it unmount itself and end even if programs still hold
//! the mount; then everything that was written is made durable.

use std::ffi::OsString;
use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use vellum_fs::LiveFilesystem;
use vellum_fuse::{MountError, ServedFilesystem};
use vellum_library::LiveStateClaim;
use vellum_library::live::HolderStage;
use vellum_types::ErrorKind;

use super::end::{ShutdownCause, ShutdownSignal, UnmountReport};
use super::live::MountedLiveWorktree;
use super::log::MountLog;
use super::sharing::SharingServer;
use super::sharing::standby::StandbyServer;
use super::table::{self, FilesystemDevice};
use super::{MountingError, holders, service_manager, watch};
use crate::error::{CliError, Result, parse_error_code};
use crate::ui::log;

/// How long those who use a mount may go on after a signal has asked its process to end.
const GRACE: Duration = Duration::from_secs(4);

/// A mount with what serves it.
pub struct ServedMount {
    /// The mount.
    pub mounted: ServedFilesystem,
    /// The worktree, if that is what is mounted.
    pub live: Option<MountedLiveWorktree>,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// What its process needs: directories that the mount must not hide.
    pub needed: Vec<PathBuf>,
    /// What serves it to other machines, if it is shared.
    pub sharing: Arc<SharingServer>,
    /// What serves the worktree whenever no other machine does, if the mount is its client.
    pub standby: Option<StandbyServer>,
    /// Its log.
    pub log: Arc<MountLog>,
    /// Where its end is announced.
    pub end: Arc<ShutdownSignal>,
    /// Signals since before it was visible.
    pub signals: EndSignals,
}

/// Serves a mount until it is ended, then makes everything durable. Returns whether all of it is in the store.
pub fn serve_until_unmount(serving: ServedMount) -> Result<bool> {
    let ServedMount { mounted, live, mountpoint, needed, sharing, standby, log, end, signals } = serving;
    log.write_line(&format!("mounted on {}", mountpoint.display()));
    // Later the mount may be out of sight: processes that hold it are then found by the number of its device.
    let device = table::find_mount_at(&mountpoint)?.map(|mount| mount.device);
    // Clones, because the end of the worktree consumes `live` while the thread for signals may still need them.
    let claim = live.as_ref().map(|live| live.claim.clone());
    let fs = live.as_ref().map(|live| live.fs.clone());
    let ending = MountShutdown { mountpoint, device, claim, fs, log: log.clone(), end: end.clone() };
    // The signals were caught from before the mount was visible on: one that came since then is heeded now.
    signals.unmount_when_received(ending)?;
    let failed = || CliError::io_error("start", "a thread");
    if let Some(device) = device {
        watch::start_mount_watch(device, needed, log.clone()).map_err(failed())?;
    }
    // The mount may outlive the request to end: a thread waits for the kernel, and this one for whichever comes
    // first.
    let served = Arc::new(Mutex::new(None));
    let outcome = served.clone();
    let ended = end.clone();
    let wait = move || {
        let done = mounted.wait_until_unmounted();
        *outcome.lock() = Some(done);
        ended.signal_unmounted();
    };
    std::thread::Builder::new().name("vellum-served".into()).spawn(wait).map_err(failed())?;
    if end.wait_for_cause() == ShutdownCause::Asked {
        // The connection to the kernel ends with this process: programs that still use the mount get ENOTCONN.
        if end.is_discarded() {
            log.write_line("discarded");
        } else {
            log.write_warning("the mount is still seen somewhere: it is dead there from now on");
        }
    }
    // No client waits for what was served until now, if another process serves next.
    let term = standby.and_then(StandbyServer::end);
    // Clients wait for the next server, or for this one to come back.
    sharing.stop();
    // Nobody writes any more, and what still waits for room is not lost.
    // And the store is asked once more, though it may not have answered a moment ago: this is the last chance.
    live.iter().for_each(|live| {
        live.fs.write_log().set_limit(u64::MAX);
        live.fs.volume().objects.ignore_silence();
    });
    service_manager::notify_stopping("putting what was written into the store");
    let ended = match (live, term) {
        (None, None) => Ok(UnmountReport::default()),
        (None, Some(term)) => term.end(&log, end.skips_publishing()),
        (Some(live), _) if end.is_discarded() => Ok(live.discard_worktree(&log)),
        (Some(live), _) => live.end_worktree(&log, end.skips_publishing()),
    };
    // A failure must not end the function here: whoever waits for the report is told the reason, and the log has it.
    let (report, ended) = match ended {
        Ok(report) => (report, Ok(())),
        Err(error) => {
            let is_fenced = matches!(&error, MountingError::Fs(error) if error.is_fenced_error());
            let report =
                UnmountReport { failure: Some(error.to_string()), is_fenced, ..UnmountReport::default() };
            (report, Err(error))
        }
    };
    // None: the kernel has not ended the mount.
    let served = served.lock().take().unwrap_or(Ok(()));
    let done = served.map_err(MountingError::from).and(ended);
    match &done {
        Ok(()) => log.write_line("unmounted"),
        Err(error) => log.write_error(&format!("unmounted after a failure: {error}")),
    }
    let is_whole = report.failure.is_none();
    // The lease is given up by now: a process that waits for the report can mount the worktree again at once.
    end.publish_report(report);
    done?;
    Ok(is_whole)
}

/// What it takes to end a mount from within its process.
struct MountShutdown {
    mountpoint: PathBuf,
    device: Option<FilesystemDevice>,
    claim: Option<Arc<LiveStateClaim>>,
    fs: Option<Arc<LiveFilesystem>>,
    log: Arc<MountLog>,
    end: Arc<ShutdownSignal>,
}

/// The signals that ask to end a mount. The first one is kept until somebody heeds it. A second one finds the usual reaction:
/// death.
pub struct EndSignals {
    received: UnixStream,
}

impl EndSignals {
    /// From now on a signal does not kill the process. To be called before the mount is visible: who has seen it may send one.
    pub fn install() -> Result<Self> {
        let failed = || CliError::io_error("wait for", "signals");
        // The handlers write a byte to a socket, which is one of the few things that a signal handler may do.
        let (received, sender) = UnixStream::pair().map_err(failed())?;
        let stop_flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            let sender = sender.try_clone().map_err(failed())?;
            // In this order: the handler of the second signal finds the flag set by the first.
            flag::register_conditional_default(signal, stop_flag.clone())
                .and_then(|_| flag::register(signal, stop_flag.clone()))
                .and_then(|_| pipe::register(signal, sender))
                .map_err(failed())?;
        }
        Ok(Self { received })
    }

    /// Waits until one arrives, or has arrived.
    pub fn wait_for_signal(mut self) -> Result<()> {
        self.received.read_exact(&mut [0]).map_err(CliError::io_error("wait for", "signals"))
    }

    /// Unmounts when one arrives, or has arrived, or takes out of sight what is in use.
    fn unmount_when_received(self, ending: MountShutdown) -> Result<()> {
        let mut received = self.received;
        let unmount = move || {
            if received.read_exact(&mut [0]).is_ok() {
                ending.log.write_line("a signal asks to end");
                ending.unmount_within_grace();
            }
        };
        let started = std::thread::Builder::new().name("vellum-signals".into()).spawn(unmount);
        started.map(drop).map_err(CliError::io_error("wait for", "signals"))
    }
}

impl MountShutdown {
    /// Ends the mount within [`GRACE`], even if programs still use it: what they wrote until then is kept.
    fn unmount_within_grace(&self) {
        if let Some(fs) = &self.fs {
            // The kernel writes back before it unmounts. A store that does not answer frees no room for that.
            fs.write_log().set_limit(u64::MAX);
        }
        let done = match vellum_fuse::unmount_filesystem(&self.mountpoint) {
            // A program stands in the mount, or has a file open (EBUSY): it keeps its files, and no program can enter
            // it or open files in it any more.
            Err(MountError::Busy(_)) => {
                self.log.write_warning("the mount is in use: it goes out of sight");
                self.claim.iter().for_each(|claim| {
                    // It only shows other processes why they have to wait.
                    let _ = claim.record_stage(HolderStage::Detached);
                });
                vellum_fuse::detach_mount(&self.mountpoint)
            }
            done => done,
        };
        // Not fatal: what was written is made durable in any case, and the process has to end.
        if let Err(error) = done {
            self.log.write_warning(&error.to_string());
        }
        // After a plain unmount, the kernel only has to end the connection.
        if self.end.wait_until_unmounted(SETTLING) {
            return;
        }
        // Looked for twice, because processes may let go of the mount, or end, during the grace.
        let find = || {
            self.device.map_or_else(Vec::new, |device| {
                holders::find_holding_processes(device, &[std::process::id()])
            })
        };
        let holding = find();
        if !holding.is_empty() {
            self.log.write_warning(&format!("held by {}", holders::format_process_list(&holding)));
        }
        // A process whose mount namespace only shows the filesystem gets no time: it does not let go by itself.
        let is_used = holding.iter().any(|process| process.used.is_some());
        // Programs that use the mount usually received the same signal, as when the machine shuts down, and let go
        // of it soon.
        if is_used && self.end.wait_until_unmounted(GRACE) {
            return;
        }
        // With the write-back cache, the kernel still holds written pages: they are lost when the process ends.
        holders::flush_held_pages(&find());
        self.end.request_shutdown();
    }
}

/// How long the kernel may take to end a mount that no process holds any more.
const SETTLING: Duration = Duration::from_millis(500);

/// The failure that the process in the background reports.
#[derive(Deserialize)]
struct DaemonFailure {
    kind: String,
    message: String,
    hint: Option<String>,
}

/// How long a process that was not ready in time is waited for after it was told to end.
const ENDING_WAIT: Duration = Duration::from_secs(2);

/// When the process that serves a mount begins to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DaemonStart {
    /// At once.
    Now,
    /// On word of the process that started it; if that ends without a word, it ends, too.
    OnWord,
}

/// A process in the background that is going to serve a mount.
pub struct StartingDaemon {
    child: Child,
}

impl StartingDaemon {
    /// Starts this program again in the background with these arguments.
    pub fn start(arguments: &[OsString], start: DaemonStart) -> Result<Self> {
        let program = std::env::current_exe().map_err(MountingError::NotStarted)?;
        let mut command = Command::new(&program);
        // The program may have been called by the name of mount(8)'s helper.
        command.arg0("vellum");
        // Its working directory must not be one that the user wants to unmount.
        command.args(arguments).current_dir("/").stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(match start {
            DaemonStart::Now => Stdio::null(),
            // The end of the pipe is also the sign that the process that started this one has died.
            DaemonStart::OnWord => Stdio::piped(),
        });
        Ok(Self { child: command.spawn().map_err(MountingError::NotStarted)? })
    }

    /// Gives it the word, if it waits for it, and waits for what it reports when it is ready. If that is not before the
    /// deadline, the process is ended.
    pub fn wait_until_ready(mut self, deadline: Option<Duration>) -> Result<Value> {
        if let Some(mut word) = self.child.stdin.take() {
            // If it died, its report says so.
            let _ = word.write_all(b"\n");
        }
        wait_for_daemon_report(self.child, deadline)
    }
}

/// Waits for the word to begin. False: the process that started this one has ended without it.
pub fn wait_for_word() -> bool {
    let mut word = [0];
    std::io::stdin().lock().read_exact(&mut word).is_ok()
}

fn wait_for_daemon_report(child: Child, deadline: Option<Duration>) -> Result<Value> {
    let Some(deadline) = deadline else { return read_daemon_report(child) };
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    let (ready, is_ready) = mpsc::channel();
    std::thread::spawn(move || ready.send(read_daemon_report(child)));
    match is_ready.recv_timeout(deadline) {
        Ok(report) => report,
        Err(_) => {
            // The child was not waited for as long as its thread has not sent: its number is no other process's.
            pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::TERM));
            // Before it is ready the signal kills it, and afterwards it unmounts: nothing is mounted late. The system may
            // hold a process that waits for a disk that hangs, and ends it when the disk answers.
            let _ = is_ready.recv_timeout(ENDING_WAIT);
            Err(MountingError::NotInTime(deadline).into())
        }
    }
}

/// Waits for the one object that the process prints. It ends its output when it is ready, or by dying.
fn read_daemon_report(mut child: Child) -> Result<Value> {
    let out = child.stdout.take();
    let err = child.stderr.take();
    // Read at the same time: a process that logs much would wait for ever for room in the pipe.
    let errors = std::thread::spawn(move || {
        let mut text = String::new();
        if let Some(mut err) = err {
            // What cannot be read is only missing in the message.
            let _ = err.read_to_string(&mut text);
        }
        text
    });
    // An object is complete with its closing brace, so that this does not wait for the end of the output.
    let said =
        out.and_then(|out| serde_json::Deserializer::from_reader(BufReader::new(out)).into_iter().next());
    // It ends, too, when the process is ready: what is written later goes into the mount's log.
    let errors = errors.join().unwrap_or_default();
    let said: Value = match said {
        Some(Ok(said)) => said,
        Some(Err(_)) | None => return Err(daemon_death_error(child, &errors)),
    };
    match said.get("error") {
        None => {
            log::forward_log(&errors);
            // The daemon is not waited for: this process ends first, and init adopts the daemon.
            Ok(said)
        }
        Some(error) => {
            // The end of a process that failed is near; no other process would collect it.
            let _ = child.wait();
            let Ok(DaemonFailure { kind, message, hint }) = DaemonFailure::deserialize(error) else {
                return Err(daemon_death_error(child, &errors));
            };
            Err(MountingError::Daemon { kind: parse_error_code(&kind), message, hint }.into())
        }
    }
}

fn daemon_death_error(mut child: Child, text: &str) -> CliError {
    // This only collects the process: what it wrote says more than how it ended.
    let _ = child.wait();
    let message =
        format!("the process of the mount died before it was ready: {}", text.trim().escape_debug());
    MountingError::Daemon { kind: ErrorKind::Io, message, hint: None }.into()
}
