//! `vellum serve nfs`: a gateway for kernels and programs that speak NFS.

use super::gateway::ServedTreeArgs;
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::serve_program::become_program;

/// Serve a worktree or a snapshot over NFS, version 3
///
/// A snapshot can be read. A live worktree can be read and written, and is this program's until it ends: it must not be mounted
/// meanwhile. Of a worktree that is checked out, the newest snapshot is served. The command for 'mount' is printed. NFS has no
/// authentication: only this machine can connect, and of it only the kernel, root and you. Ctrl-C ends it.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    tree: ServedTreeArgs,
    /// Let new files belong to this user and group; by default, to those of this program
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    squash: Option<String>,
    /// Let in this user; can be given several times. By default: the user of this program, that of --squash, and root
    #[arg(long, value_name = "UID")]
    allow_uid: Vec<u32>,
    /// Listen also where other machines can connect: everybody who reaches the address can read, and write, everything
    #[arg(long)]
    i_know_nfs_has_no_authentication: bool,
}

/// Two numbers.
fn parse_owner(text: &str) -> std::result::Result<String, String> {
    let numbers = text.split_once(':').map(|split| [split.0, split.1].map(str::parse::<u32>));
    match numbers {
        Some([Ok(_), Ok(_)]) => Ok(text.to_owned()),
        Some(_) | None => Err("it is not UID:GID, two numbers such as 1000:1000".into()),
    }
}

/// Becomes the program that has the gateway.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    if !args.tree.listen.ip().is_loopback() && !args.i_know_nfs_has_no_authentication {
        return Err(CliError::usage_error(
            format!(
                "cannot listen at {}: NFS has no authentication, and others than this machine could connect",
                args.tree.listen
            ),
            "listen at 127.0.0.1 and forward the port (ssh -L), or add --i-know-nfs-has-no-authentication",
        ));
    }
    let mut command = args.tree.begin_gateway("nfs", context)?;
    if let Some(owner) = &args.squash {
        command.arg("--squash").arg(owner);
    }
    for uid in &args.allow_uid {
        command.arg("--allow-uid").arg(uid.to_string());
    }
    if args.i_know_nfs_has_no_authentication {
        command.arg("--any-machine");
    }
    Err(become_program(command))
}
