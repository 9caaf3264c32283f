//! A mount whose process stays when the command returns.
//!
//! Invariant: the command returns when the mount is ready, or nothing is mounted.

use std::ffi::OsString;
use std::time::Duration;

use clap::ValueEnum;
use serde::Deserialize;
use vellum_store::RequestLimits;
use vellum_types::ErrorKind;
use vellum_volume::Volume;

use super::hook::run_mount_hook;
use super::report::{MountJson, report_mount};
use super::sharing::SharingArgs;
use super::{Args, open_state_dir, unlock_with_file};
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::mounting::MountingError;
use crate::mounting::daemon::{DaemonStart, StartingDaemon};

/// Mounts, with a process in the background that serves.
pub(super) fn mount_in_background(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    match start_mount_process(args, context) {
        Ok(report) => {
            report_mount(context, &report)?;
            run_mount_hook(args, context, &report)
        }
        Err(error) if args.is_optional() && is_store_away(&error, args, context) => {
            context.ui.print_warning(format!(
                "nothing was mounted on {}, as 'nofail' allows: {}",
                args.mountpoint.display(),
                error.format_chain()
            ))?;
            Ok(CommandOutcome::Done)
        }
        Err(error) => Err(error),
    }
}

/// Starts the process that serves the mount; returns what it reports when the mount is ready.
fn start_mount_process(args: &Args, context: &CommandContext) -> Result<MountJson> {
    StartingMount::start(args, DaemonStart::Now, context)?.wait_for_report()
}

/// A mount whose process is being started.
pub struct StartingMount {
    daemon: StartingDaemon,
    deadline: Option<Duration>,
}

impl StartingMount {
    /// Starts the process that is to serve the mount.
    pub fn start(args: &Args, start: DaemonStart, context: &CommandContext) -> Result<Self> {
        // This program is started again instead of forked: threads that run here by now would not exist in a forked
        // process.
        let mut words = daemon_arguments(args, context);
        if start == DaemonStart::OnWord {
            // Before the two places.
            let end = words.len().saturating_sub(2);
            words.insert(end, "--on-word".into());
        }
        Ok(Self { daemon: StartingDaemon::start(&words, start)?, deadline: args.deadline() })
    }

    /// Lets it begin, and waits until the mount is ready.
    pub fn wait_until_ready(self) -> Result<()> {
        self.wait_for_report().map(drop)
    }

    fn wait_for_report(self) -> Result<MountJson> {
        let said = self.daemon.wait_until_ready(self.deadline)?;
        MountJson::deserialize(&said).map_err(|error| CliError::Output(error.into()))
    }
}

/// Whether a mount failed because the store, or the directory that leads to it, cannot be had at the moment. A name that
/// does not exist, a wrong mountpoint or a damaged store is another matter: it does not go away by itself.
fn is_store_away(error: &CliError, args: &Args, context: &CommandContext) -> bool {
    if matches!(error, CliError::Mounting(MountingError::NotInTime(_))) {
        return true;
    }
    // Kinds of errors are too coarse for this, and the volume itself tells.
    // Without retries: the mount has tried for long enough, and this only asks why it failed.
    let limits = RequestLimits { retry_for: Duration::ZERO, ..RequestLimits::default() };
    let opened = open_state_dir(args, context)
        .and_then(|state| {
            Ok(Volume::open_with_limits(&unlock_with_file(args, context, state, &limits)?, &limits)?)
        })
        .and_then(|volume| Ok(volume.read_head()?));
    opened.is_err_and(|error| matches!(error.kind(), ErrorKind::Io | ErrorKind::NotFound))
}

/// The arguments with which the process in the background is started.
fn daemon_arguments(args: &Args, context: &CommandContext) -> Vec<OsString> {
    // The process reports in JSON whatever the user asked for, because this program reads the report.
    let mut words: Vec<OsString> = ["--json", "-C"].map(OsString::from).into();
    words.extend([context.cwd.clone().into(), "mount".into(), "--detach".into()]);
    // In one word, because a value may begin with a hyphen.
    let mut option = |name: &str, value: Option<OsString>| {
        words.extend(value.map(|value| [OsString::from(format!("--{name}=")), value].into_iter().collect()));
    };
    option("worktree", args.worktree.clone().map(OsString::from));
    option("snapshot", args.snapshot.clone().map(OsString::from));
    option("cache-size", args.cache_size.map(|size| size.to_string().into()));
    option("disk-cache", args.disk_cache.map(|size| size.to_string().into()));
    option("inode-cache", args.inode_cache.map(|size| size.to_string().into()));
    option("log-limit", args.log_limit.map(|size| size.to_string().into()));
    option("rpo", args.rpo.map(|time| format!("{}s", time.as_secs()).into()));
    option("trash-days", args.trash_days.map(|days| days.to_string().into()));
    option("metrics", args.metrics.map(|address| address.to_string().into()));
    option("lease-term", args.lease_term.map(|secs| secs.to_string().into()));
    option("follow-interval", args.follow_interval.map(|secs| secs.to_string().into()));
    option("policy-interval", args.policy_interval.map(|secs| secs.to_string().into()));
    option("snapshot-every", args.snapshot_every.map(|time| format!("{}s", time.as_secs()).into()));
    option("retry-for", vellum_store::chosen_retry_time().map(|time| format!("{}s", time.as_secs()).into()));
    option("key-file", args.key_file.as_deref().map(|file| context.resolve_local_path(file).into()));
    option("meta", args.log.url.clone().map(OsString::from));
    option("meta-credentials", args.log.credentials.clone().map(OsString::from));
    option("meta-wait", args.log.wait.map(|time| format!("{}s", time.as_secs()).into()));
    let SharingArgs { shared, listen, no_serve, server, wait, close, store_writes, names_pause } =
        &args.sharing;
    option("shared", shared.clone().map(OsString::from));
    option("listen", listen.map(|address| address.to_string().into()));
    option("server", server.clone().map(OsString::from));
    option("wait", wait.map(|time| format!("{}s", time.as_secs()).into()));
    option("close", close.and_then(|when| Some(when.to_possible_value()?.get_name().into())));
    option("store-writes", store_writes.map(|size| size.to_string().into()));
    option("names-pause", names_pause.map(|millis| millis.to_string().into()));
    option("table-name", args.table_name.clone().map(OsString::from));
    for name in &args.deny_hydrate {
        option("deny-hydrate", Some(name.into()));
    }
    let flags = [
        (args.log.without_log, "--without-log"),
        (args.follow, "--follow"),
        (args.read_only, "--read-only"),
        (args.allow_other, "--allow-other"),
        (args.is_no_exec(), "-onoexec"),
        (args.keeps_access_times(), "-onoatime"),
        (args.no_io_uring, "--no-io-uring"),
        (args.take_over, "--take-over"),
        (args.temporary, "--temporary"),
        (args.fetch_names, "--fetch-names"),
        (*no_serve, "--no-serve"),
    ];
    words.extend(flags.into_iter().filter(|(set, _)| *set).map(|(_, name)| name.into()));
    // Absolute: neither can be taken for an option, and '--' before an optional word is not understood.
    words.extend(args.volume.as_deref().map(|typed| context.resolve_local_path(typed).into()));
    words.push(context.resolve_local_path(&args.mountpoint).into());
    words
}
