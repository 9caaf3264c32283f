//! `vellum flush`: everything that a mounted worktree holds into the store.

use serde::Serialize;

use crate::context::Context;
use crate::error::{CliError, Outcome, Result};
use crate::mounting::control::Request;

/// Wait until everything is in the store
///
/// For mounted worktrees: what is written there is safe at once, and goes into the store in the background. This
/// waits for it.
#[derive(Debug, clap::Args)]
pub struct Args {}

#[derive(Serialize)]
struct Report {
    root: Option<String>,
    log_bytes: u64,
}

/// Flushes.
pub fn run(_args: &Args, context: &Context) -> Result<Outcome> {
    let Some(mounted) = context.mounted()? else {
        return Err(CliError::usage(
            "this is no mounted worktree",
            "the snapshots of a checked-out directory are in the store at once",
        ));
    };
    mounted.sync()?;
    let answer = mounted.ask(&Request::Flush)?;
    if context.ui.json() {
        context.ui.object(&Report { root: answer.root, log_bytes: answer.log_bytes })?;
    } else {
        context.ui.note("everything is in the store")?;
    }
    Ok(Outcome::Done)
}
