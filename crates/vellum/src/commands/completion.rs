//! `vellum completion`: scripts that let a shell complete commands and options.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::CommandLine;
use crate::context::CommandContext;
use crate::error::{CommandOutcome, Result};

/// Print a completion script for a shell
///
/// For bash: vellum completion bash > /etc/bash_completion.d/vellum
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell
    shell: Shell,
}

/// Prints the script.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut CommandLine::command(), "vellum", &mut script);
    context.ui.write_bytes(&script)?;
    Ok(CommandOutcome::Done)
}
