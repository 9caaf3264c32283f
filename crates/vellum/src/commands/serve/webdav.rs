//! `vellum serve webdav`: a gateway for programs that speak WebDAV.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result};
use crate::serve_program::{become_program, build_serve_command};

/// Serve a worktree or a snapshot over WebDAV
///
/// A snapshot can be read. A live worktree can be read and written, and is this program's until it ends: it must not be mounted
/// meanwhile. Of a worktree that is checked out, the newest snapshot is served. Only this machine can connect, with a name and a
/// password: those of the file, else of VELLUM_SERVE_CREDENTIALS ('NAME PASSWORD'), else a password that is printed once.
/// Ctrl-C ends it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The worktree, or a snapshot of it, such as main@v1.0 or main@HEAD~2
    #[arg(value_name = "WORKTREE[@SNAP]")]
    tree: String,
    /// Listen at ADDRESS: 127.0.0.1:PORT or [::1]:PORT; port 0 stands for a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Use the names and passwords in FILE, which only you may read: lines of 'NAME PASSWORD' or 'NAME PASSWORD read'
    #[arg(long, value_name = "FILE")]
    credentials: Option<PathBuf>,
    /// Let nobody write
    #[arg(long)]
    read_only: bool,
}

/// Becomes the program that has the gateway.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    // What a mount has not published yet is published, and a directory without a volume is refused here.
    let root = context.open_volume()?.state.root().to_path_buf();
    let mut command = build_serve_command()?;
    command.arg("webdav").arg(root).arg(&args.tree).arg("--listen").arg(args.listen.to_string());
    if let Some(file) = &args.credentials {
        command.arg("--credentials").arg(context.cwd.join(file));
    }
    if args.read_only {
        command.arg("--read-only");
    }
    if context.ui.is_json() {
        command.arg("--json");
    }
    Err(become_program(command))
}
