//! `vellum web`: the volume in a browser.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result};
use crate::serve_program::{become_program, build_serve_command};

/// Show the volume in a browser
///
/// Prints the address of a page with the history, the files of each snapshot and what differs between them. Only this
/// machine can connect, and only with the token in the address; the page changes nothing. Ctrl-C ends it. From another
/// machine: 'ssh -L PORT:127.0.0.1:PORT HOST'.
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
}

/// Becomes the program that serves the page.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    // What a mount has not published yet is published, and a directory without a volume is refused here.
    let root = context.open_volume()?.state.root().to_path_buf();
    let mut command = build_serve_command()?;
    command.arg("web").arg(root).arg("--listen").arg(args.listen.to_string());
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
