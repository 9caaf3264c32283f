//! `vellum serve webdav`: a gateway for programs that speak WebDAV.

use super::gateway::GatewayArgs;
use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result};

/// Serve a worktree or a snapshot over WebDAV
///
/// A snapshot can be read. A live worktree can be read and written, and is this program's until it ends: it must not be mounted
/// meanwhile. Of a worktree that is checked out, the newest snapshot is served. Only this machine can connect, with a name and a
/// password: those of the file, else of VELLUM_SERVE_CREDENTIALS ('NAME PASSWORD'), else a password that is printed once.
/// Ctrl-C ends it.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    gateway: GatewayArgs,
}

/// Becomes the program that has the gateway.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    args.gateway.become_gateway("webdav", &[], context)
}
