//! What gateways have in common.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result};
use crate::serve_program::{become_program, build_serve_command};

/// What is served, and where.
#[derive(Debug, clap::Args)]
pub struct ServedTreeArgs {
    /// The worktree, or a snapshot of it, such as main@v1.0 or main@HEAD~2
    #[arg(value_name = "WORKTREE[@SNAP]")]
    tree: String,
    /// Listen at ADDRESS: 127.0.0.1:PORT or [::1]:PORT; port 0 stands for a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Let nobody write
    #[arg(long)]
    read_only: bool,
}

/// What is served, where, and to whom.
#[derive(Debug, clap::Args)]
pub struct GatewayArgs {
    #[command(flatten)]
    tree: ServedTreeArgs,
    /// Use the names and passwords in FILE, which only you may read: lines of 'NAME PASSWORD' or 'NAME PASSWORD read'
    #[arg(long, value_name = "FILE")]
    credentials: Option<PathBuf>,
}

impl ServedTreeArgs {
    /// The command of the program that has the gateway for this protocol.
    pub fn begin_gateway(&self, protocol: &str, context: &CommandContext) -> Result<Command> {
        // What a mount has not published yet is published, and a directory without a volume is refused here.
        let root = context.open_volume()?.state.root().to_path_buf();
        let mut command = build_serve_command()?;
        command.arg(protocol).arg(root).arg(&self.tree).arg("--listen").arg(self.listen.to_string());
        if self.read_only {
            command.arg("--read-only");
        }
        if context.ui.is_json() {
            command.arg("--json");
        }
        Ok(command)
    }
}

impl GatewayArgs {
    /// Becomes the program that has the gateway for this protocol. `more` are options of this gateway only.
    pub fn become_gateway(
        &self,
        protocol: &str,
        more: &[&str],
        context: &CommandContext,
    ) -> Result<CommandOutcome> {
        let mut command = self.tree.begin_gateway(protocol, context)?;
        if let Some(file) = &self.credentials {
            command.arg("--credentials").arg(context.cwd.join(file));
        }
        command.args(more);
        Err(become_program(command))
    }
}
