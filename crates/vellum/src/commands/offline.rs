//! `vellum offline`: no requests to the store, by choice.

use serde::Serialize;

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};

/// Stop sending requests to the remote store, or resume
///
/// While a machine is offline, content that is here can be read as usual, and everything else fails at once, without
/// waiting for the service. What is written to mounts is kept here, and goes into the store later. This applies to
/// all worktrees and mounts of this user with the same store, until 'vellum offline off'.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Without it, the current state is printed
    #[arg(value_enum)]
    switch: Option<OfflineSwitch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum OfflineSwitch {
    /// Send no requests
    On,
    /// Send requests again
    Off,
}

#[derive(Serialize)]
struct OfflineJson {
    offline: bool,
    changed: bool,
}

/// Switches.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let (_, cache) = context.find_pack_cache()?;
    let ui = &context.ui;
    let Some(cache) = cache else {
        return Err(CliError::usage_error(
            "the store is a directory, to which no requests are sent",
            "only stores in services can be switched off",
        ));
    };
    let io_error = |action| CliError::io_error(action, cache.folder().display().to_string());
    let changed = match args.switch {
        None => false,
        // The switch is a file in the folder of the cache, so that mounts and commands that are running obey it as
        // well.
        Some(switch) => {
            cache.set_offline(switch == OfflineSwitch::On).map_err(io_error("switch requests in"))?
        }
    };
    let offline = cache.is_offline().map_err(io_error("read"))?;
    if ui.is_json() {
        ui.print_json(&OfflineJson { offline, changed })?;
    } else {
        ui.print_note(if offline {
            "offline: no requests are sent to the store"
        } else {
            "online: requests are sent to the store"
        })?;
    }
    Ok(CommandOutcome::Done)
}
