//! `vellum flush`: everything that a mounted worktree holds into the store.

use serde::Serialize;

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::mounting::control::ControlRequest;

/// Wait until everything is in the store
///
/// For mounted worktrees: what is written there is kept on this machine at once, and goes into the store in the
/// background. This command waits until all of it is there. A service that does not answer is waited for until Ctrl-C, or for
/// the time of --retry-for.
#[derive(Debug, clap::Args)]
pub struct Args {}

#[derive(Serialize)]
struct FlushJson {
    root: Option<String>,
    log_bytes: u64,
}

/// Flushes.
pub fn run(_args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let Some(mounted) = context.open_mounted_worktree()? else {
        return Err(CliError::usage_error(
            "this is not a mounted worktree",
            "the snapshots of a checked-out directory are in the store at once",
        ));
    };
    // With the write-back cache, the kernel keeps written pages for a while: they must reach the process before it
    // publishes.
    mounted.sync_filesystem()?;
    let answer = mounted.send_until_stored(&ControlRequest::Flush, context)?;
    if context.ui.is_json() {
        context.ui.print_json(&FlushJson { root: answer.root, log_bytes: answer.log_bytes })?;
    } else {
        context.ui.print_note("everything is in the store")?;
    }
    Ok(CommandOutcome::Done)
}
