//! `vellum completion`: scripts that let a shell complete commands and options.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::CommandLine;
use crate::completers;
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};

/// Print a completion script for a shell
///
/// For bash: source <(vellum completion bash). The script asks this program while you type, so that it completes tags,
/// worktrees, ids and paths in snapshots, too, as far as they are known on this machine.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell
    shell: Shell,
    /// A script that asks nobody, and knows commands and options only
    #[arg(long = "static")]
    is_static: bool,
}

/// Prints the script.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let mut script = Vec::new();
    if args.is_static {
        clap_complete::generate(args.shell, &mut CommandLine::command(), "vellum", &mut script);
    } else {
        let failed = CliError::io_error("write", "the script");
        script = completers::format_script(args.shell).map_err(failed)?;
    }
    context.ui.write_bytes(&script)?;
    Ok(CommandOutcome::Done)
}
