//! `vellum serve WORKTREE`: a shared worktree without a mount.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use vellum_cluster::client::{ClientOptions, CloseGuarantee, DEFAULT_WAIT, WorktreeClient};
use vellum_cluster::protocol::frame::ClientDescription;
use vellum_host::escape::format_path;
use vellum_host::process::host_name;
use vellum_library::live::{self, LiveLimits, LogUse};
use vellum_volume::{Volume, VolumeError};

use crate::commands::mount::options::parse_interval;
use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result};
use crate::heap;
use crate::mounting::daemon::EndSignals;
use crate::mounting::log::MountLog;
use crate::mounting::service_manager;
use crate::mounting::sharing::standby::{FirstTerm, JoinedServer, StandbyServer, StandbyState};
use crate::mounting::sharing::term::{ServingOptions, TermListener};
use crate::mounting::sharing::{connection_identity, listen_for_clients};

/// Which worktree, and where.
#[derive(Debug, clap::Args)]
pub struct SharedArgs {
    /// The worktree
    worktree: String,
    /// Where clients connect
    #[arg(long, value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Put changes into the store at most TIME after they were made, such as 10s; by default a minute, and 5 minutes if the
    /// store is a service
    #[arg(long, value_name = "TIME", value_parser = parse_interval)]
    rpo: Option<Duration>,
}

#[derive(Serialize)]
struct ServeJson<'a> {
    worktree: &'a str,
    /// Where clients connect; null: this process stands by.
    address: Option<String>,
    /// Where they would connect if this process served.
    #[serde(skip_serializing_if = "Option::is_none")]
    stands_by: Option<String>,
    pid: u32,
}

/// Serves until a signal arrives.
pub fn run(args: &SharedArgs, context: &CommandContext) -> Result<CommandOutcome> {
    // Before any thread exists: each takes a heap when it first allocates.
    heap::limit_mount_heaps();
    let volume = Arc::new(context.open_volume()?);
    let name = &args.worktree;
    let Some(head) = live::find_live_worktree(&volume, name)? else {
        return Err(VolumeError::no_worktree(name.clone()).into());
    };
    let listener = listen_for_clients(&volume, args.listen)?;
    let dir = live::live_state_dir(&volume, name);
    live::create_state_dir(&dir)?;
    let log = Arc::new(MountLog::open_log(&dir.join("daemon.log"))?);
    // Before anything is served: a signal from here on ends the process in order, and clients lose nothing.
    let signals = EndSignals::install()?;
    let state = StandbyState::new(ServingOptions {
        volume: volume.clone(),
        worktree: name.clone(),
        mountpoint: None,
        listener: TermListener::new(listener)?,
        limits: LiveLimits { longest_unpublished: args.rpo, ..LiveLimits::default() },
        log: log.clone(),
        upkeep: Box::new(|_| Ok(())),
    });
    let shared_log = LogUse::of_worktree(Some(&head));
    let first = FirstTerm { is_new: false, shared_log: &shared_log, takes_over: false };
    let connect = || {
        // Without a log, no other process can serve next.
        let has_log = head.log.is_some();
        has_log.then(|| connect_without_mount(&state, &volume, name, &log)).transpose()
    };
    let JoinedServer { term, client } = state.join(&first, connect)?;
    let stands_by = term.is_none().then(|| state.advertised_address());
    let address = term.as_ref().map(|term| term.address.to_string());
    let status = match (&address, &stands_by) {
        (Some(address), _) => format!("serves clients at {address}"),
        (None, place) => format!("stands by to serve clients at {}", place.as_deref().unwrap_or_default()),
    };
    let standby = StandbyServer::start(&state, term)?;
    report_serving(context, &ServeJson { worktree: name, address, stands_by, pid: std::process::id() })?;
    service_manager::notify_ready(&status);
    signals.wait_for_signal()?;
    log.write_line("a signal asks to end");
    service_manager::notify_stopping("putting what was written into the store");
    let term = standby.end();
    // Only after `standby.end()`: as long as the process stands by, its own connection tells it when it is to serve.
    drop(client);
    let Some(term) = term else { return Ok(CommandOutcome::Done) };
    match term.end(&log, false)?.failure {
        None => Ok(CommandOutcome::Done),
        Some(failure) => {
            context.ui.print_warning(format!("not everything could be put into the store: {failure}"))?;
            Ok(CommandOutcome::Findings)
        }
    }
}

/// A client without a mount: what the server knows this process by, so that it can name it to serve next.
fn connect_without_mount(
    state: &Arc<StandbyState>,
    volume: &Volume,
    name: &str,
    log: &Arc<MountLog>,
) -> Result<WorktreeClient> {
    let named = state.clone();
    let report = log.clone();
    Ok(WorktreeClient::connect(ClientOptions {
        locator: Box::new(state.locator()),
        identity: connection_identity(volume, name),
        description: ClientDescription {
            host: host_name(),
            pid: std::process::id(),
            stands_by: state.advertised_address(),
            ..ClientDescription::default()
        },
        wait: DEFAULT_WAIT,
        // It has no mount in which anything is closed.
        close: CloseGuarantee::Applied,
        report: Arc::new(move |text: &str| report.write_warning(text)),
        named_successor: Arc::new(move || named.note_named()),
        stored_writes: None,
    })?)
}

fn report_serving(context: &CommandContext, report: &ServeJson<'_>) -> Result<()> {
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(report)?;
    } else if !ui.voice.quiet {
        let ServeJson { worktree, address, stands_by, .. } = report;
        let worktree = ui.style.paint_cyan(&format_path(worktree.as_bytes()));
        ui.print_line(match address {
            Some(address) => format!("Serves the worktree {worktree} to clients at {address}"),
            None => format!(
                "Stands by to serve the worktree {worktree} to clients at {}",
                stands_by.as_deref().unwrap_or_default()
            ),
        })?;
    }
    ui.flush_output()
}
