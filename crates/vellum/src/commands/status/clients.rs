//! `vellum status --clients`: who mounts the shared worktrees that are served here.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_library::live;
use vellum_volume::refs::RefKind;

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::mounting::MountingError;
use crate::mounting::control::{self, ControlReply, ControlRequest, SOCKET};
use crate::mounting::sharing::client::find_clients_of;
use crate::mounting::sharing::{ClientStatus, ServerStatus};
use crate::ui::format;

#[derive(Serialize)]
struct ClientsJson {
    worktrees: Vec<WorktreeClientsJson>,
}

#[derive(Serialize)]
struct WorktreeClientsJson {
    worktree: String,
    /// Who serves them.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<ServerStatus>,
    clients: Vec<ClientStatus>,
}

/// Shows the clients of the mounted worktree that the user stands in; elsewhere, those of all worktrees of the volume that
/// are served from this state directory, or else of those that are mounted from it as clients.
pub(super) fn list_clients(context: &CommandContext) -> Result<CommandOutcome> {
    let worktrees = match context.find_mount_process()? {
        Some(process) => {
            let reply = process.send_request(&ControlRequest::Clients)?;
            vec![(process.worktree, reply)]
        }
        None => find_served_worktrees(context)?,
    };
    let served: Vec<_> = worktrees
        .into_iter()
        .filter_map(|(worktree, reply)| {
            Some(WorktreeClientsJson { worktree, server: reply.server, clients: reply.clients? })
        })
        .collect();
    if served.is_empty() {
        return Err(CliError::usage_error(
            "no worktree is served here",
            "'vellum mount --shared NAME DIR --listen ADDRESS:PORT' or 'vellum serve' serves one",
        ));
    }
    report_clients(context, ClientsJson { worktrees: served })
}

type ServedWorktrees = Vec<(String, ControlReply)>;

fn find_served_worktrees(context: &CommandContext) -> Result<ServedWorktrees> {
    let volume = context.open_volume()?;
    let refs = volume.refs.list_refs(RefKind::Worktree)?;
    let mut names: Vec<_> = refs.into_iter().map(|found| found.name).collect();
    names.sort();
    let socket = |name: &str| -> PathBuf { live::live_state_dir(&volume, name).join(SOCKET) };
    let ask = |name: String| {
        // A process that was killed leaves its socket: then nothing is served.
        let reply = control::request_reply(&socket(&name), &ControlRequest::Clients).ok()?;
        Some((name, reply))
    };
    let served: ServedWorktrees = names.into_iter().filter_map(ask).collect();
    if !served.is_empty() {
        return Ok(served);
    }
    // Nothing is served from this directory. The servers of what is mounted from it know the clients.
    let mut asked: ServedWorktrees = Vec::new();
    for (socket, client) in find_clients_of(&volume) {
        if asked.iter().all(|(name, _)| *name != client.worktree) {
            if !client.connected {
                return Err(MountingError::ServerAway(client.worktree).into());
            }
            asked.push((client.worktree, control::request_reply(&socket, &ControlRequest::Clients)?));
        }
    }
    Ok(asked)
}

fn report_clients(context: &CommandContext, report: ClientsJson) -> Result<CommandOutcome> {
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&report)?;
        return Ok(CommandOutcome::Done);
    }
    for WorktreeClientsJson { worktree, server, clients } in &report.worktrees {
        let count = format::format_count(clients.len() as u64, "client");
        let served = server.as_ref().map_or_else(String::new, |server| {
            let host = format_path(server.host.as_bytes());
            format!(", served by {host} at {}", format_path(server.address.as_bytes()))
        });
        ui.print_line(format!("{}: {count}{served}", ui.style.paint_cyan(worktree)))?;
        let rows = clients.iter().map(|client| {
            let silent = Duration::try_from_secs_f64(client.silent_seconds).unwrap_or_default();
            let heard = if client.connected {
                "connected".to_owned()
            } else {
                format!("not heard of for {}", format::format_duration(silent))
            };
            let requests = format::format_count(client.requests, "request");
            let place = format!("{}:{}", format_path(client.host.as_bytes()), client.mountpoint);
            let standby = client
                .stands_by
                .as_ref()
                // The serving process is listed as a client, too, and does not stand by for itself.
                .filter(|place| server.as_ref().is_none_or(|server| server.address != **place));
            let standby = standby.map_or_else(String::new, |place| {
                format!("  stands by at {}", format_path(place.as_bytes()))
            });
            format!("  {}  {place}  {requests}  {heard}{standby}", client.session)
        });
        ui.print_lines(rows)?;
    }
    Ok(CommandOutcome::Done)
}
