//! Options of `vellum mount` for a worktree that several machines mount at once.

use std::net::SocketAddr;
use std::time::Duration;

use vellum_cluster::client::CloseGuarantee;
use vellum_fuse::transport::MAX_WRITE;

use super::{Args, parse_interval};
use crate::error::{CliError, Result};
use crate::mounting::sharing::{SharingRole, parse_server_address};
use crate::ui::format;

/// How a shared worktree is mounted.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct SharingArgs {
    /// Mount the worktree NAME, which other machines may mount at the same time: with --listen this process serves it, and
    /// without it this mount is a client of the process that does
    #[arg(long, value_name = "NAME", conflicts_with_all = ["worktree", "snapshot", "temporary"])]
    pub shared: Option<String>,
    /// Serve the worktree at ADDRESS:PORT to clients that have the volume's key. While another process serves it, stand by to
    /// serve it next, if it has a shared log
    #[arg(long, value_name = "ADDRESS", requires = "shared", conflicts_with = "no_serve")]
    pub listen: Option<SocketAddr>,
    /// Never serve the worktree, whether or not another process does
    #[arg(long, requires = "shared")]
    pub no_serve: bool,
    /// Connect to the process that serves the worktree at HOST:PORT
    #[arg(long, value_name = "HOST:PORT", requires = "shared", conflicts_with = "listen",
          value_parser = parse_server_address)]
    pub server: Option<String>,
    /// How long programs wait while the process that serves the worktree is away, before they get an error [default: 2m]
    #[arg(long, value_name = "TIME", requires = "shared", value_parser = parse_interval)]
    pub wait: Option<Duration>,
    /// When close(2) of a changed file returns [default: applied]
    #[arg(long, value_name = "WHEN", requires = "shared", value_enum)]
    pub close: Option<CloseArg>,
    /// Put what programs write in pieces of SIZE or more, 64K to 1M, into the store from this machine, and tell the process that
    /// serves where it is; by default it is sent there
    #[arg(long, value_name = "SIZE", requires = "shared", value_parser = parse_stored_size)]
    pub store_writes: Option<usize>,
    /// Milliseconds for which the kernel caches no names, at least, after it has dropped them
    #[arg(long, hide = true, requires = "shared")]
    pub names_pause: Option<u64>,
}

/// Smallest writes that can be put into the store, bytes: below, an object costs more than the bytes that are not sent.
const STORED_MIN: u64 = 64 << 10;

/// Parses a size of writes that are put into the store: one that a kernel can write at once.
fn parse_stored_size(typed: &str) -> Result<usize, String> {
    let size = format::parse_size(typed)?;
    let fits = (STORED_MIN..=MAX_WRITE as u64).contains(&size);
    usize::try_from(size).ok().filter(|_| fits).ok_or_else(|| "write a size from 64K to 1M".into())
}

/// Moments at which closing a file may return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CloseArg {
    /// All machines see the changes
    Applied,
    /// They are durable, too, as after fsync(2)
    Durable,
}

impl From<CloseArg> for CloseGuarantee {
    fn from(when: CloseArg) -> Self {
        match when {
            CloseArg::Applied => Self::Applied,
            CloseArg::Durable => Self::Durable,
        }
    }
}

impl SharingArgs {
    /// What this process is to be for the worktree; None: it is not shared.
    pub fn role(&self) -> Option<SharingRole> {
        self.shared.as_ref()?;
        Some(match self.listen {
            Some(address) => SharingRole::Server(address),
            None => SharingRole::Client { server: self.server.clone() },
        })
    }
}

impl Args {
    /// Fails if options are given that need a mount which has the worktree open itself.
    pub(super) fn check_options_of_direct_mounts(&self) -> Result<()> {
        let of_direct_mounts = [
            (self.follow, "--follow"),
            (!self.deny_hydrate.is_empty(), "--deny-hydrate"),
            (self.metrics.is_some(), "--metrics"),
        ];
        match find_given_option(&of_direct_mounts) {
            Some(option) => Err(CliError::usage_error(
                format!("{option} does not work with a shared worktree that has a shared log"),
                format!("leave out {option}"),
            )),
            None => Ok(()),
        }
    }

    /// Fails if options are given that mean nothing to a mount which reads from the store alone.
    fn check_options_of_readers(&self) -> Result<()> {
        let of_others = [
            (self.sharing.server.is_some(), "--server"),
            (self.sharing.wait.is_some(), "--wait"),
            (self.sharing.close.is_some(), "--close"),
            (self.sharing.store_writes.is_some(), "--store-writes"),
            (self.inode_cache.is_some(), "--inode-cache"),
            (self.log_limit.is_some(), "--log-limit"),
            (self.rpo.is_some(), "--rpo"),
            (self.trash_days.is_some(), "--trash-days"),
            (self.take_over, "--take-over"),
            (self.snapshot_every.is_some(), "--snapshot-every"),
        ];
        match find_given_option(&of_others) {
            Some(option) => Err(CliError::usage_error(
                format!("{option} means nothing with --shared and --follow, which only read from the store"),
                format!("leave out {option}, or --follow"),
            )),
            None => Ok(()),
        }
    }

    /// Fails if closing is to wait, or writes are to be stored apart, in a mount that has the worktree open itself.
    pub(super) fn check_close_of_direct_mount(&self) -> Result<()> {
        if self.sharing.store_writes.is_some() {
            return Err(CliError::usage_error(
                "--store-writes works for clients, and for the process that serves if the worktree has a shared log",
                "leave it out, or give the worktree a log, with --meta",
            ));
        }
        match self.sharing.close {
            Some(CloseArg::Durable) => Err(CliError::usage_error(
                "--close=durable works for clients, and for the process that serves if the worktree has a shared log",
                "give the worktree a log, with --meta, or leave out --close",
            )),
            Some(CloseArg::Applied) | None => Ok(()),
        }
    }

    /// Fails if options are given that only the process can heed that serves the worktree.
    pub(super) fn check_sharing(&self) -> Result<()> {
        if !matches!(self.sharing.role(), Some(SharingRole::Client { .. })) {
            return Ok(());
        }
        if self.follow {
            return self.check_options_of_readers();
        }
        let of_server = [
            (self.inode_cache.is_some(), "--inode-cache"),
            (self.log_limit.is_some(), "--log-limit"),
            (self.rpo.is_some(), "--rpo"),
            (self.trash_days.is_some(), "--trash-days"),
            (self.take_over, "--take-over"),
            (self.snapshot_every.is_some(), "--snapshot-every"),
            (self.cache_size.is_some(), "--cache-size"),
            (self.disk_cache.is_some(), "--disk-cache"),
            (!self.deny_hydrate.is_empty(), "--deny-hydrate"),
            (self.metrics.is_some(), "--metrics"),
        ];
        match find_given_option(&of_server) {
            Some(option) => Err(CliError::usage_error(
                format!("{option} is for the process that serves the worktree, and this mount is a client"),
                "leave it out here, or serve the worktree from this process with --listen",
            )),
            None => Ok(()),
        }
    }
}

/// The first of some options that is given.
fn find_given_option(options: &[(bool, &'static str)]) -> Option<&'static str> {
    options.iter().find(|(is_given, _)| *is_given).map(|(_, option)| *option)
}
