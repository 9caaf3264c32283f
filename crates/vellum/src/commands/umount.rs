//! `vellum umount`: the end of a mount.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;
use vellum_fuse::MountError;
use vellum_volume::tree::show;

use crate::context::Context;
use crate::error::{CliError, Outcome, Result};
use crate::mounting::table::{self, Mount};
use crate::mounting::{MountingError, mountpoint};

/// How often a mount that is in use is tried again, and how long after: half a second in all.
const BUSY_TRIES: u32 = 10;
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// End a mount
///
/// Everything that was written there is made durable first. A mount that is in use stays.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory that something is mounted on
    mountpoint: PathBuf,
}

#[derive(Serialize)]
struct Report {
    mountpoint: String,
    was_dead: bool,
}

/// Unmounts.
pub fn run(args: &Args, context: &Context) -> Result<Outcome> {
    let mountpoint = mountpoint::resolve(&context.local_path(&args.mountpoint))?;
    let found = table::at(&mountpoint)?.filter(Mount::is_ours);
    let mount = found.ok_or_else(|| MountingError::NotMounted(mountpoint.clone()))?;
    let was_dead = mount.is_dead();
    if was_dead {
        vellum_fuse::mounting::detach(&mountpoint).map_err(MountingError::from)?;
    } else {
        let server = server(&mount);
        flush(context, &mountpoint)?;
        unmount(&mountpoint)?;
        wait(server.as_ref())?;
    }
    let ui = &context.ui;
    let shown = mountpoint.display().to_string();
    if ui.json() {
        ui.object(&Report { mountpoint: shown, was_dead })?;
    } else if !ui.voice.quiet {
        let how = if was_dead { "; its process had died" } else { "" };
        ui.line(format!("Unmounted {}{how}", show(shown.as_bytes())))?;
    }
    Ok(Outcome::Done)
}

/// The process that serves a mount, if it can be told.
fn server(mount: &Mount) -> Option<OwnedFd> {
    let pid = i32::try_from(mount.describe().ok()?.pid).ok()?;
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Unmounts. What was closed a moment ago may count as open a moment longer.
fn unmount(mountpoint: &Path) -> Result<()> {
    for _ in 0..BUSY_TRIES {
        match vellum_fuse::mounting::unmount(mountpoint) {
            Err(MountError::Busy(_)) => std::thread::sleep(BUSY_PAUSE),
            done => return Ok(done.map_err(MountingError::from)?),
        }
    }
    Ok(vellum_fuse::mounting::unmount(mountpoint).map_err(MountingError::from)?)
}

/// Hands the kernel's pages to the mount's process, and lets that make everything durable: the root directory's
/// `fsync` means all of it. One that lost its lease has kept what it has; that its worktree does not have it must not
/// keep it from being unmounted.
fn flush(context: &Context, mountpoint: &Path) -> Result<()> {
    let failed = || CliError::io("flush", mountpoint.display().to_string());
    let root = File::open(mountpoint).map_err(failed())?;
    rustix::fs::syncfs(&root).map_err(|error| failed()(error.into()))?;
    match root.sync_all() {
        Err(error) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => context.ui.warn(
            "another took the worktree over: what was not published is kept here, see 'vellum worktree keep'",
        ),
        done => done.map_err(failed()),
    }
}

/// Waits until the process is gone: from then on the worktree can be mounted again.
fn wait(server: Option<&OwnedFd>) -> Result<()> {
    let Some(server) = server else { return Ok(()) };
    loop {
        match poll(&mut [PollFd::new(server, PollFlags::IN)], None) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(CliError::io("wait for", "the mount's process")(error.into())),
        }
    }
}
