//! Which shared log a worktree is mounted with.

use std::time::Duration;

use vellum_library::live::{LogLocation, LogUse};
use vellum_volume::Volume;
use vellum_volume::refs::WorktreeHead;

use super::options::parse_interval;
use crate::error::{CliError, Result};

/// Options about the log from which another machine can continue the worktree.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct LogArgs {
    /// Keep a log of the worktree's changes at URL, from which another machine can continue it with everything that was
    /// synced, now and in later mounts: 'store:' is the volume's own store
    #[arg(long = "meta", id = "meta", value_name = "URL", conflicts_with_all = ["snapshot", "temporary", "read_only"])]
    pub url: Option<String>,
    /// Credentials for the log's engine, from ~/.config/vellum/credentials/NAME
    #[arg(
        long = "meta-credentials",
        id = "meta_credentials",
        value_name = "NAME",
        conflicts_with = "snapshot"
    )]
    pub credentials: Option<String>,
    /// How long changes and syncs wait for a log's engine that does not answer, before they fail; by default 2m
    #[arg(long = "meta-wait", id = "meta_wait", value_name = "TIME", conflicts_with = "snapshot",
          value_parser = parse_interval)]
    pub wait: Option<Duration>,
    /// Give up the worktree's log, which is lost or cannot be reached: the worktree stands on what was put into the store
    #[arg(long, conflicts_with_all = ["snapshot", "meta"])]
    pub without_log: bool,
}

impl LogArgs {
    /// The log that a worktree is to be opened with; `head` is what its ref says, if there is one.
    pub(super) fn choose_log(
        &self,
        volume: &Volume,
        name: &str,
        head: Option<&WorktreeHead>,
        is_temporary: bool,
    ) -> Result<LogUse> {
        let existing = LogUse::of_worktree(head);
        if self.without_log {
            return match existing {
                LogUse::Existing(_) => Ok(LogUse::Abandoned),
                LogUse::None | LogUse::New(_) | LogUse::Abandoned => {
                    let message = format!("the worktree '{name}' has no shared log");
                    Err(CliError::usage_error(message, "leave out --without-log"))
                }
            };
        }
        // A worktree that exists without a log stays without one, unless it is said.
        let is_new = head.is_none() && !is_temporary;
        let usual = || Ok::<_, CliError>(volume.settings_in_force()?.get_text("mount.meta"));
        let url = match &self.url {
            None if is_new => usual()?,
            typed => typed.clone(),
        };
        let Some(url) = url else { return Ok(existing) };
        let location = LogLocation::parse(&url, self.credentials.clone())?;
        match existing {
            LogUse::Existing(log) if log.url != location.url => {
                let message = format!("the worktree '{name}' has its shared log at {}", log.url);
                let hint = format!(
                    "'vellum worktree unshare {name}' removes that one; then mount with --meta again"
                );
                Err(CliError::usage_error(message, hint))
            }
            LogUse::Existing(log) => Ok(LogUse::Existing(log)),
            LogUse::None | LogUse::New(_) | LogUse::Abandoned => Ok(LogUse::New(location)),
        }
    }
}
