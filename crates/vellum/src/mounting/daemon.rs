//! The process that serves a mount, from the moment when it is ready to its end; and how it is started in the
//! background.
//!
//! Invariant: it ends because somebody unmounts, or by a signal, which makes it unmount itself; then everything that
//! was written is made durable.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Deserialize;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use vellum_fuse::{MountError, Mounted};
use vellum_types::ErrorKind;

use super::MountingError;
use super::live::MountedLive;
use super::log::Log;
use crate::error::{CliError, Result, kind_of_name};

/// Serves a mount until it is ended, then makes everything durable.
pub fn serve(mounted: Mounted, live: Option<MountedLive>, mountpoint: &Path, log: &Arc<Log>) -> Result<()> {
    log.line(&format!("mounted on {}", mountpoint.display()));
    unmount_at_signals(mountpoint.into(), log.clone())?;
    let served = mounted.wait().map_err(MountingError::from);
    let ended = live.map_or(Ok(()), |live| live.end(log));
    let end = served.and(ended);
    match &end {
        Ok(()) => log.line("unmounted"),
        Err(error) => log.line(&format!("unmounted after a failure: {error}")),
    }
    Ok(end?)
}

/// The first signal unmounts, or takes out of sight what is in use. A second one finds the usual reaction: death.
fn unmount_at_signals(mountpoint: PathBuf, log: Arc<Log>) -> Result<()> {
    let failed = || CliError::io("wait for", "signals");
    let (mut received, sender) = UnixStream::pair().map_err(failed())?;
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        let sender = sender.try_clone().map_err(failed())?;
        // In this order: the handler of the second signal finds the flag set by the first.
        flag::register_conditional_default(signal, asked.clone())
            .and_then(|_| flag::register(signal, asked.clone()))
            .and_then(|_| pipe::register(signal, sender))
            .map_err(failed())?;
    }
    let unmount = move || {
        if received.read_exact(&mut [0]).is_ok() {
            log.line("a signal asks to end");
            end(&mountpoint, &log);
        }
    };
    std::thread::Builder::new().name("vellum-signals".into()).spawn(unmount).map_err(failed())?;
    Ok(())
}

fn end(mountpoint: &Path, log: &Log) {
    let done = match vellum_fuse::mounting::unmount(mountpoint) {
        Err(MountError::Busy(_)) => {
            log.line("the mount is in use: it goes out of sight, and ends when nobody uses it any more");
            vellum_fuse::mounting::detach(mountpoint)
        }
        done => done,
    };
    if let Err(error) = done {
        log.line(&error.to_string());
    }
}

/// What the process in the background says of its failure.
#[derive(Deserialize)]
struct Failure {
    kind: String,
    message: String,
    hint: Option<String>,
}

/// Starts this program again in the background with these arguments; gives what it reports when it is ready.
pub fn start(arguments: &[std::ffi::OsString]) -> Result<Value> {
    let program = std::env::current_exe().map_err(CliError::io("find", "this program"))?;
    let failed = || CliError::io("start", program.display().to_string());
    let mut command = Command::new(&program);
    // It must not stand in a directory that somebody wants to unmount.
    command
        .args(arguments)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().map_err(failed())?;
    report(child)
}

/// Waits for the one object that the process prints. It ends its output when it is ready, or by dying.
fn report(mut child: Child) -> Result<Value> {
    let out = child.stdout.take();
    let said = out.and_then(|out| serde_json::Deserializer::from_reader(out).into_iter().next());
    let said: Value = match said {
        Some(Ok(said)) => said,
        Some(Err(_)) | None => return Err(died(child)),
    };
    match said.get("error") {
        None => Ok(said),
        Some(error) => {
            // The end of a process that failed is near; nobody else would collect it.
            let _ = child.wait();
            let Ok(Failure { kind, message, hint }) = Failure::deserialize(error) else {
                return Err(died(child));
            };
            Err(MountingError::Daemon { kind: kind_of_name(&kind), message, hint }.into())
        }
    }
}

fn died(mut child: Child) -> CliError {
    let mut text = String::new();
    if let Some(mut err) = child.stderr.take() {
        let _ = err.read_to_string(&mut text);
    }
    let _ = child.wait();
    let message = format!("the process that was to serve the mount died: {}", text.trim().escape_debug());
    MountingError::Daemon { kind: ErrorKind::Io, message, hint: None }.into()
}
