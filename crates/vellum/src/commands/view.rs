//! `vellum view`: a snapshot as a directory that can only be read.

use std::path::PathBuf;

use crate::commands::mount;
use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result};

/// Show a snapshot as a directory
///
/// Mounts SNAP read-only on DIR. Until 'vellum umount DIR', 'vellum forget' keeps the snapshot; with --force it is forgotten,
/// and its files stay readable all the same, also while 'vellum gc run' frees what nothing else needs. 'vellum mount --snapshot' does the same and has more options.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The snapshot
    #[arg(value_name = "SNAP")]
    snapshot: String,
    /// The directory to show it on, which must exist and be empty
    // 'directory' is the name of '-C', which every command has.
    #[arg(value_name = "DIR")]
    mountpoint: PathBuf,
}

/// Mounts.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    mount::run(&mount::Args::for_snapshot(&args.snapshot, &args.mountpoint), context)
}
