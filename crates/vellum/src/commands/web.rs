//! `vellum web`: the volume in a browser.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result};
use crate::serve_program::{become_program, build_serve_command, own_program};

/// Show the volume in a browser
///
/// Prints the address of a page with the history, the files of each snapshot and what differs between them. The page restores,
/// forks, tags, pins, describes and forgets after it has shown what that would change; with --read-only it changes nothing. Only
/// this machine can connect, and only with the token in the address. Ctrl-C ends it. From another machine: 'ssh -L
/// PORT:127.0.0.1:PORT HOST'.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Listen at ADDRESS: 127.0.0.1:PORT or [::1]:PORT; port 0 stands for a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Open the page in the browser of this desktop
    #[arg(long)]
    open: bool,
    /// Use the token in FILE, which only you may read; made if it is missing. The address stays the same then
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Change nothing: the page only shows. The default in a directory of another user
    #[arg(long)]
    read_only: bool,
}

/// Becomes the program that serves the page.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    // What a mount has not published yet is published, and a directory without a volume is refused here.
    let volume = context.open_volume()?;
    let paths = context.paths_for_volume(&volume)?;
    let mut command = build_serve_command()?;
    command.arg("web").arg(volume.state.root()).arg("--listen").arg(args.listen.to_string());
    // What the page changes, this program changes, in the worktree.
    command.arg("--program").arg(own_program()?).arg("--worktree").arg(paths.root());
    if context.find_mount_process()?.is_some() {
        command.arg("--mounted");
    }
    if args.read_only {
        command.arg("--read-only");
    }
    if args.open {
        command.arg("--open");
    }
    if let Some(file) = &args.token_file {
        command.arg("--token-file").arg(context.cwd.join(file));
    }
    if context.ui.is_json() {
        command.arg("--json");
    }
    Err(become_program(command))
}
