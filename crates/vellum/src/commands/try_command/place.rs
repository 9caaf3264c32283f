//! Where a command can be tried, and what of it would lead past the fork.

use std::path::{Path, PathBuf};

use vellum_host::escape::format_path;
use vellum_host::process::host_name;
use vellum_volume::{StateDir, Volume};

use crate::context::CommandContext;
use crate::error::{CliError, Result};
use crate::experiment::fork::TryOrigin;
use crate::mounting::table;

/// Fails if a fork cannot stand in the place of the worktree; tells what is not part of it.
pub fn check_place(
    origin: &TryOrigin,
    state: &StateDir,
    strict: bool,
    context: &CommandContext,
) -> Result<()> {
    let root = origin.root();
    let shown = format_path(root.as_os_str().as_encoded_bytes());
    let home = std::env::var_os("HOME").map(PathBuf::from).and_then(|home| home.canonicalize().ok());
    let way = "make a worktree of the directory that the command is to change";
    if root == Path::new("/") {
        return Err(CliError::usage_error("the whole system cannot be covered by a fork", way));
    }
    if home.as_deref() == Some(root) {
        return Err(CliError::usage_error(
            format!("{shown} is the home directory: programs that run now use it"),
            way,
        ));
    }
    if let TryOrigin::Directory(worktree) = origin {
        check_store_outside(&worktree.volume, root)?;
    }
    report_submounts(root, state, context)?;
    report_outputs(root, strict, context)
}

/// What works with a store, or in another worktree, must not find a copy of it.
fn check_store_outside(volume: &Volume, root: &Path) -> Result<()> {
    let is_covered = |place: &Path| place.starts_with(root) && !place.starts_with(volume.state.path());
    let store = volume.objects.local_dir().map(vellum_volume::own_place::resolve_existing_path);
    if let Some(store) = store.filter(|store| is_covered(store)) {
        let store = format_path(store.as_os_str().as_encoded_bytes());
        return Err(CliError::usage_error(
            format!("the worktree holds its store, {store}: in a try, it would be a copy"),
            "move the store away, and 'vellum worktree relocate --store PATH' says where it is",
        ));
    }
    let own = &volume.worktree.worktree;
    let others = volume.list_readable_worktrees()?.0;
    let inside = others.into_iter().find(|(name, head)| {
        name != own && head.host == host_name() && head.has_directory() && is_covered(Path::new(&head.place))
    });
    match inside {
        None => Ok(()),
        Some((name, head)) => Err(CliError::usage_error(
            format!("the worktree {name} lies in this one, in {}", format_path(&head.place)),
            "move it away, or try the command there",
        )),
    }
}

/// Mounts below the worktree are not in the fork: it has what a snapshot of the worktree has there.
fn report_submounts(root: &Path, state: &StateDir, context: &CommandContext) -> Result<()> {
    let mounts = table::read_mounts()?;
    let hidden = mounts
        .iter()
        .map(|mount| mount.mountpoint.as_path())
        .filter(|place| *place != root && place.starts_with(root) && !place.starts_with(state.path()));
    let hidden: Vec<_> = hidden.map(|place| format_path(place.as_os_str().as_encoded_bytes())).collect();
    match hidden.is_empty() {
        true => Ok(()),
        false => context.ui.print_warning(format!("in the try, nothing is mounted on {}", hidden.join(", "))),
    }
}

/// Standard input and output stay what they are: a file of the worktree is then the original's.
fn report_outputs(root: &Path, strict: bool, context: &CommandContext) -> Result<()> {
    for (number, name) in [(0, "standard input"), (1, "standard output"), (2, "standard error")] {
        let Ok(target) = std::fs::read_link(format!("/proc/self/fd/{number}")) else { continue };
        if !target.starts_with(root) {
            continue;
        }
        let target = format_path(target.as_os_str().as_encoded_bytes());
        let message = format!("{name} is {target} of the worktree itself, not of the try");
        if strict {
            return Err(CliError::usage_error(message, "name a file outside of the worktree"));
        }
        context.ui.print_warning(message)?;
    }
    Ok(())
}
