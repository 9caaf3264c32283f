//! `vellum worktree evict`: the end of a client's session.

use serde::Serialize;
use vellum_cluster::protocol::SessionId;
use vellum_library::live;
use vellum_volume::Volume;

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::mounting::control::{self, ControlRequest, SOCKET};

/// Whose session is to end.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The worktree, which is served on this machine
    name: String,
    /// The session, as 'vellum status --clients' shows it
    session: String,
}

#[derive(Serialize)]
struct EvictedJson<'a> {
    worktree: &'a str,
    session: &'a str,
}

/// Ends the session.
pub fn run(args: &Args, context: &CommandContext, volume: &Volume) -> Result<CommandOutcome> {
    let Args { name, session } = args;
    // Parsed here for the message: the process would only say that there is no such session.
    if let Err(error) = session.parse::<SessionId>() {
        return Err(CliError::usage_error(error.to_string(), "'vellum status --clients' shows all sessions"));
    }
    let socket = live::live_state_dir(volume, name).join(SOCKET);
    let request = ControlRequest::EvictClient { session: session.clone() };
    let reply = control::request_reply(&socket, &request)?;
    if reply.clients.is_none() {
        return Err(CliError::usage_error(
            format!("the worktree '{name}' has no client with the session {session}"),
            "'vellum status --clients' shows all sessions",
        ));
    }
    let line = || format!("The session {session} has ended: what its mount had open is let go");
    context.ui.print_outcome(&EvictedJson { worktree: name, session }, line)?;
    Ok(CommandOutcome::Done)
}
