//! `vellum redo`: takes an undo back.

use crate::commands::undo::RevertCommand;
use crate::context::CommandContext;
use crate::context::merge_place::MergePlace;
use crate::error::{CommandOutcome, Result};

/// Take the last undo back
///
/// Carries out once more what the last 'vellum undo' took back. Run it again to take back the undo before. After any other
/// operation there is nothing to redo; 'vellum undo OP' with the number of an undo takes that one back.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print what would be done, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Redoes an operation.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let place = MergePlace::open(context)?;
    let volume = place.volume();
    RevertCommand { context, place: &place, dry_run: args.dry_run }
        .run(|| volume.plan_whole_command(volume.plan_redo()?))
}
