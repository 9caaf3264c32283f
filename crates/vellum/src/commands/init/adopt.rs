//! `vellum init --volume`: a directory with its files becomes another worktree of a volume that this machine has open.

use std::path::Path;

use vellum_host::escape::format_path;
use vellum_volume::{StateDir, Volume};

use super::{Args, InitJson, NewWorktreeRoot, worktree_name};
use crate::context::CommandContext;
use crate::context::mounted::{MountProcess, find_mount_above};
use crate::error::{CliError, CommandOutcome, Result};

/// Adopts the directory.
pub(super) fn adopt_dir(args: &Args, of: &Path, context: &CommandContext) -> Result<CommandOutcome> {
    if args.secret.is_requested() || args.credentials.credentials.is_some() {
        return Err(CliError::usage_error(
            "the worktree of --volume has its key and knows its store",
            "leave out the options for secrets and credentials",
        ));
    }
    let volume = open_volume_at(of, context)?;
    let root = NewWorktreeRoot::prepare_root(args, context)?;
    let mut name = worktree_name(args, &root.path)?;
    if let (Some(device), None) = (&volume.worktree.device, &args.name) {
        name = format!("{device}.{name}");
    }
    if volume.read_worktree_head(&name)?.is_some() {
        return Err(CliError::usage_error(
            format!("the volume has a worktree '{name}' already"),
            "choose another name with --name",
        ));
    }
    root.create_dir()?;
    let made = StateDir::create(&root.path).and_then(|state| {
        // What was made a moment ago is in the way of a second attempt.
        volume.fork_into(&state, &name).inspect_err(|_| drop(state.clone().remove_dir()))
    });
    let made = made.inspect_err(|_| root.remove_if_unused())?;
    report_adopted(&made, context)
}

/// The volume of the worktree that a directory is in, be it checked out or mounted.
fn open_volume_at(of: &Path, context: &CommandContext) -> Result<Volume> {
    let typed = context.resolve_local_path(of);
    let shown = format_path(of.as_os_str().as_encoded_bytes());
    let place = typed.canonicalize().map_err(CliError::io_error("look at", shown))?;
    match find_mount_above(&place)? {
        Some(mount) => Ok(MountProcess::find_for_mount(&mount)?.open_volume()?.volume),
        None => Ok(Volume::open(&StateDir::find_enclosing(&place)?)?),
    }
}

fn report_adopted(made: &Volume, context: &CommandContext) -> Result<CommandOutcome> {
    let worktree = &made.worktree;
    let directory = made.state.root().display().to_string();
    let store = made.objects.describe_location();
    let ui = &context.ui;
    let line = || format!("{directory} is now the worktree '{}' of the volume in {store}", worktree.worktree);
    let json = InitJson {
        volume: worktree.volume.clone(),
        worktree: worktree.worktree.clone(),
        directory: directory.clone(),
        store: store.clone(),
        encrypted: worktree.encrypted,
        attached: true,
        passphrase: false,
        recovery_code: None,
    };
    ui.print_outcome(&json, line)?;
    ui.print_note("\nNext: 'vellum snapshot' there records its files")?;
    Ok(CommandOutcome::Done)
}
