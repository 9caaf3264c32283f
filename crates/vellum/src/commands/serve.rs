//! `vellum serve`: a shared worktree without a mount.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_library::live::{self, LiveLimits, LiveStateClaim, LogUse};
use vellum_volume::VolumeError;

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::heap;
use crate::mounting::control::{ControlService, listen_for_control};
use crate::mounting::daemon::EndSignals;
use crate::mounting::end::ShutdownSignal;
use crate::mounting::live::MountedLiveWorktree;
use crate::mounting::log::MountLog;
use crate::mounting::policies::PolicyKeeper;
use crate::mounting::service_manager;
use crate::mounting::sharing::{SharingServer, listen_for_clients};

/// Serve a shared worktree to the mounts of other machines, without a mount
///
/// Stays until Ctrl-C or SIGTERM, then puts everything into the store. Clients mount the worktree with
/// 'vellum mount --shared NAME DIR --server HOST:PORT'.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The worktree
    worktree: String,
    /// Where clients connect
    #[arg(long, value_name = "ADDRESS")]
    listen: SocketAddr,
}

#[derive(Serialize)]
struct ServeJson<'a> {
    worktree: &'a str,
    address: String,
    pid: u32,
}

/// Serves until a signal arrives.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    // Before any thread exists: each takes a heap when it first allocates.
    heap::limit_mount_heaps();
    let volume = Arc::new(context.open_volume()?);
    let name = &args.worktree;
    let found = live::find_live_worktree(&volume, name)?;
    if found.is_none() {
        return Err(VolumeError::NoSuchRef { kind: "worktree", name: name.clone() }.into());
    }
    let listener = listen_for_clients(&volume, args.listen)?;
    let claim = LiveStateClaim::acquire(&volume, name, None)?;
    let dir = claim.dir().to_path_buf();
    let log = Arc::new(MountLog::open_log(&dir.join("daemon.log"))?);
    let serves = listener.local_addr().map_err(CliError::io_error("listen for", "clients"))?;
    let limits = LiveLimits { serves: Some(serves), keeps_orphans: true, ..LiveLimits::default() };
    let opened = claim.open_filesystem(&volume, limits, &LogUse::of_worktree(found.as_ref()))?;
    let live = MountedLiveWorktree::start_threads(claim, opened, &log)?;
    let signals = EndSignals::install()?;
    let end = Arc::<ShutdownSignal>::default();
    let sharing = Arc::<SharingServer>::default();
    let service = Arc::new(ControlService {
        fs: live.fs.clone(),
        publisher: live.publisher.clone(),
        log: log.clone(),
        forgetter: OnceLock::new(),
        claim: live.claim.clone(),
        end: end.clone(),
        follow: None,
        policies: Arc::new(PolicyKeeper::open(live.fs.clone(), dir.clone())?),
        sharing: sharing.clone(),
    });
    listen_for_control(&dir, service.clone())?;
    let address = sharing.start(listener, &service)?.to_string();
    report_serving(
        context,
        &ServeJson { worktree: name, address: address.clone(), pid: std::process::id() },
    )?;
    service_manager::notify_ready(&format!("serves clients at {address}"));
    signals.wait_for_signal()?;
    log.write_line("a signal asks to end");
    sharing.stop();
    service_manager::notify_stopping("putting what was written into the store");
    let report = live.end_worktree(&log, false)?;
    let failure = report.failure.clone();
    end.publish_report(report);
    match failure {
        None => Ok(CommandOutcome::Done),
        Some(failure) => {
            context.ui.print_warning(format!("not everything could be put into the store: {failure}"))?;
            Ok(CommandOutcome::Findings)
        }
    }
}

fn report_serving(context: &CommandContext, report: &ServeJson<'_>) -> Result<()> {
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(report)?;
    } else if !ui.voice.quiet {
        let ServeJson { worktree, address, .. } = report;
        let worktree = format_path(worktree.as_bytes());
        ui.print_line(format!(
            "Serves the worktree {} to clients at {address}",
            ui.style.paint_cyan(&worktree)
        ))?;
    }
    ui.flush_output()
}
