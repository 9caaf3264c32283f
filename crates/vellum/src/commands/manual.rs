//! `vellum manual`: the manual pages, for those who install or package the program.

use std::fs;
use std::path::PathBuf;

use clap::CommandFactory;
use clap_mangen::Man;

use crate::cli::CommandLine;
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::mount_helper::MountHelper;

/// Write the manual pages of all commands into a directory
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub struct Args {
    /// The directory, which must exist
    // Not called `directory`: that is the name of the option -C, which would get its value, too.
    #[arg(value_name = "DIRECTORY")]
    target: PathBuf,
}

/// Writes them.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let directory = context.resolve_local_path(&args.target);
    let failed = || CliError::io_error("write manual pages to", directory.display().to_string());
    clap_mangen::generate_to(CommandLine::command(), &directory).map_err(failed())?;
    let mut page = Vec::new();
    // Programs for administrators are in section 8, where mount(8) is.
    Man::new(MountHelper::command()).section("8").render(&mut page).map_err(failed())?;
    fs::write(directory.join("mount.vellum.8"), page).map_err(failed())?;
    Ok(CommandOutcome::Done)
}
