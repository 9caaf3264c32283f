//! `vellum worktree hand-over`: another process serves a shared worktree from now on.

use std::time::{Duration, Instant};

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_library::live::{self, ServerWatch};
use vellum_volume::{Volume, VolumeError};

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::mounting::MountingError;
use crate::mounting::control::{self, ControlReply, ControlRequest, SOCKET};
use crate::mounting::sharing::{ClientStatus, ServerStatus};

/// How long the command waits for the next server: longer than it takes to make the files of a long log.
const WAIT: Duration = Duration::from_secs(120);
/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Which worktree, and who is to serve it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The worktree, which is served on this machine
    name: String,
    /// The host that serves it next, or the address at which it stands by; by default the first one that stands by
    host: Option<String>,
}

#[derive(Serialize)]
struct HandedOverJson<'a> {
    worktree: &'a str,
    host: &'a str,
    address: &'a str,
}

/// Has the server end in favour of another one, and waits for that.
pub fn run(args: &Args, context: &CommandContext, volume: Volume) -> Result<CommandOutcome> {
    let name = &args.name;
    let Some(head) = live::find_live_worktree(&volume, name)? else {
        return Err(VolumeError::no_worktree(name.clone()).into());
    };
    if head.log.is_none() {
        return Err(CliError::usage_error(
            format!("the worktree '{name}' has no shared log, from which another machine could continue it"),
            format!("end its mounts, then give it one: 'vellum worktree share {name} --meta store:'"),
        ));
    }
    let socket = live::live_state_dir(&volume, name).join(SOCKET);
    let asked = |request| match control::request_reply(&socket, &request) {
        Err(CliError::Mounting(MountingError::Unreachable { .. })) => Err(not_served_here(&volume, name)?),
        reply => reply,
    };
    let before = asked(ControlRequest::Clients)?;
    let session = choose_standby(args, &before)?;
    let reply = asked(ControlRequest::HandOver { session })?;
    if reply.clients.is_none() {
        return Err(CliError::usage_error(
            "the process that was to serve next does not stand by any more",
            "'vellum status --clients' shows all that do",
        ));
    }
    // The request was only begun: whether another process has taken the worktree is known when the log says so.
    let ServerStatus { host, address } = wait_for_next_server(volume, name, &before)?;
    let line = || {
        let [host, address] = [&host, &address].map(|text| format_path(text.as_bytes()));
        format!("{host} serves the worktree {name} at {address} from now on")
    };
    context.ui.print_outcome(&HandedOverJson { worktree: name, host: &host, address: &address }, line)?;
    Ok(CommandOutcome::Done)
}

fn not_served_here(volume: &Volume, name: &str) -> Result<CliError> {
    let found = live::find_worktree_server(volume, name)?.filter(|found| !found.released);
    let hint = match found {
        Some(found) => {
            format!("run it on {}, which has the worktree", format_path(found.server.host.as_bytes()))
        }
        None => format!("serve it: 'vellum mount --shared {name} DIR --listen ADDRESS:PORT'"),
    };
    Ok(CliError::usage_error(format!("the worktree '{name}' is not served on this machine"), hint))
}

/// The session of the process that is to serve next.
fn choose_standby(args: &Args, reply: &ControlReply) -> Result<String> {
    let Args { name, host } = args;
    let Some(clients) = &reply.clients else {
        return Err(CliError::usage_error(
            format!("the worktree '{name}' is mounted here, and not served to other machines"),
            "end that mount: then any machine can mount the worktree",
        ));
    };
    let own = reply.server.as_ref().map(|server| server.address.as_str());
    let stands_by = |client: &&ClientStatus| {
        // The serving process is a client of itself, too, and announces its own address.
        client.connected && client.stands_by.as_deref().is_some_and(|place| Some(place) != own)
    };
    let is_meant = |client: &&ClientStatus| {
        let names = [Some(&client.host), client.stands_by.as_ref()];
        host.as_ref().is_none_or(|host| names.contains(&Some(host)))
    };
    let meant: Vec<_> = clients.iter().filter(stands_by).filter(is_meant).collect();
    if let (Some(host), [_, _, ..]) = (host, meant.as_slice()) {
        // Machines that were copied have one name, and the wrong one must not be chosen by chance.
        let places: Vec<_> = meant.iter().filter_map(|client| client.stands_by.as_deref()).collect();
        let places = format_path(places.join(", ").as_bytes()).to_string();
        return Err(CliError::usage_error(
            format!("{} processes of {host} stand by to serve the worktree '{name}'", meant.len()),
            format!("name the address of one instead: {places}"),
        ));
    }
    let found = meant.first();
    found.map(|client| client.session.clone()).ok_or_else(|| {
        let whom = host.as_ref().map_or_else(|| "no other process".into(), |host| format!("no process of {host}"));
        CliError::usage_error(
            format!("{whom} stands by to serve the worktree '{name}'"),
            format!(
                "run 'vellum mount --shared {name} DIR --listen ADDRESS:PORT' there; 'vellum status --clients' shows \
                 who stands by"
            ),
        )
    })
}

fn wait_for_next_server(volume: Volume, name: &str, before: &ControlReply) -> Result<ServerStatus> {
    let own = before.server.as_ref().map(|server| &server.address);
    // The log is asked, and not the process that serves: that one ends with the hand-over, and only the log says who is
    // next.
    let mut watch = ServerWatch::new(volume.into(), name.into());
    let begun = Instant::now();
    while begun.elapsed() < WAIT {
        let found = watch.find_server()?.filter(|found| !found.released);
        let server = found.map(|found| found.server);
        if let Some(address) = server.as_ref().and_then(|server| server.address.clone())
            && Some(&address) != own
        {
            let host = server.map(|server| server.host).unwrap_or_default();
            return Ok(ServerStatus { host, address });
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Err(CliError::usage_error(
        format!(
            "the worktree '{name}' was given up, and nobody has begun to serve it within {}",
            crate::ui::format::format_duration(WAIT)
        ),
        "the log of the mount on the other machine says why: 'vellum status' shows where it is",
    ))
}
