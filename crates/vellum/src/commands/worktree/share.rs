//! `vellum worktree share` and `unshare`: the log from which another machine can continue a worktree.

use std::sync::Arc;

use serde::Serialize;
use vellum_library::live::{self, LogLocation};
use vellum_volume::refs::WorktreeHead;
use vellum_volume::{Volume, VolumeError};

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};

/// Which worktree, and where its log is to be.
#[derive(Debug, clap::Args)]
pub struct ShareArgs {
    /// Its name
    name: String,
    /// Where the log is: 'store:' is the volume's own store
    #[arg(long, value_name = "URL")]
    meta: String,
    /// Credentials for the log's engine, from ~/.config/vellum/credentials/NAME
    #[arg(long, value_name = "NAME")]
    meta_credentials: Option<String>,
}

#[derive(Serialize)]
struct WorktreeSharedJson<'a> {
    name: &'a str,
    /// The address of the log's engine; null: it has no log any more.
    log: Option<&'a str>,
}

/// Gives a worktree a log.
pub(super) fn share_worktree(
    context: &CommandContext,
    volume: Volume,
    args: &ShareArgs,
) -> Result<CommandOutcome> {
    let ShareArgs { name, meta, meta_credentials } = args;
    let head = read_live_head(&volume, name)?;
    let location = LogLocation::parse(meta, meta_credentials.clone())?;
    match &head.log {
        Some(log) if log.url == location.url => {}
        Some(log) => {
            let message = format!("the worktree '{name}' has its shared log at {}", log.url);
            let hint = format!("'vellum worktree unshare {name}' removes that one; then share it again");
            return Err(CliError::usage_error(message, hint));
        }
        None => live::share_worktree(&Arc::new(volume), name, &location)?,
    }
    let line = || format!("What is synced in {name} is in the shared log at {meta} from now on");
    context.ui.print_outcome(&WorktreeSharedJson { name, log: Some(meta) }, line)?;
    Ok(CommandOutcome::Done)
}

/// Takes the log of a worktree away.
pub(super) fn unshare_worktree(
    context: &CommandContext,
    volume: Volume,
    name: &str,
) -> Result<CommandOutcome> {
    let head = read_live_head(&volume, name)?;
    if let Some(log) = &head.log {
        live::unshare_worktree(&Arc::new(volume), name, log)?;
    }
    let line = || format!("{name} has no shared log any more: everything is in the store");
    context.ui.print_outcome(&WorktreeSharedJson { name, log: None }, line)?;
    Ok(CommandOutcome::Done)
}

fn read_live_head(volume: &Volume, name: &str) -> Result<WorktreeHead> {
    let missing = || VolumeError::no_worktree(name);
    Ok(live::find_live_worktree(volume, name)?.ok_or_else(missing)?)
}
