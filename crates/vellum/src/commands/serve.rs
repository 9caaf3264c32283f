//! `vellum serve`: a shared worktree without a mount, and gateways.

pub mod gateway;
pub mod nfs;
pub mod s3;
pub mod shared;
pub mod webdav;

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};

/// Serve a worktree without a mount: to mounts of other machines, or to programs that speak S3, WebDAV or NFS
///
/// 'vellum serve WORKTREE --listen ADDRESS' serves a shared worktree to the mounts of other machines. It stays until Ctrl-C or
/// SIGTERM, then puts everything into the store. Clients mount the worktree with 'vellum mount --shared NAME DIR --server
/// HOST:PORT'. While another process serves a worktree that has a shared log, it stands by to serve it next.
///
/// 'vellum serve s3', 'vellum serve webdav' and 'vellum serve nfs' are gateways (docs/gateways.md). A shared worktree that is called
/// like a gateway is served with 'vellum serve --listen ADDRESS -- webdav'.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub struct Args {
    #[command(subcommand)]
    gateway: Option<Gateway>,
    #[command(flatten)]
    shared: Option<shared::SharedArgs>,
}

/// What other programs speak.
#[derive(Debug, clap::Subcommand)]
enum Gateway {
    Nfs(nfs::Args),
    S3(s3::Args),
    Webdav(webdav::Args),
}

/// Serves until a signal arrives.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    match (&args.gateway, &args.shared) {
        (Some(Gateway::Nfs(args)), _) => nfs::run(args, context),
        (Some(Gateway::S3(args)), _) => s3::run(args, context),
        (Some(Gateway::Webdav(args)), _) => webdav::run(args, context),
        (None, Some(args)) => shared::run(args, context),
        // Its arguments are required without a gateway: the parser has refused this before.
        (None, None) => Err(CliError::usage_error("no worktree was named", "try 'vellum help serve'")),
    }
}
