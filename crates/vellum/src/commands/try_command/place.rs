//! Where a command can be tried, and what of it would lead past the fork.

use std::path::{Path, PathBuf};

use vellum_host::escape::format_path;
use vellum_host::process::host_name;
use vellum_types::ErrorKind;
use vellum_volume::{StateDir, Volume};

use crate::context::CommandContext;
use crate::error::{CliError, Result};
use crate::experiment::fork::TryOrigin;
use crate::mounting::{MountingError, table};

/// What gives a mounted worktree another place to work in.
const MOUNT_FORK: &str = "'vellum fork NAME --mount DIR' mounts a fork on another directory, to work in";

/// Fails if a fork cannot stand in the place of the worktree.
pub fn check_fork_place(origin: &TryOrigin) -> Result<()> {
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
    match origin {
        TryOrigin::Directory(worktree) => check_store_outside(&worktree.volume, root),
        TryOrigin::Mount(_) => Ok(()),
    }
}

/// Fails if a worktree cannot be copied.
pub fn check_copy_place(origin: &TryOrigin) -> Result<()> {
    match origin {
        TryOrigin::Directory(worktree) if worktree.root_path() != Path::new("/") => {
            check_store_outside(&worktree.volume, worktree.root_path())
        }
        TryOrigin::Directory(_) => Err(CliError::usage_error(
            "the whole system cannot be copied",
            "make a worktree of the directory that the command is to change",
        )),
        TryOrigin::Mount(_) => Err(CliError::usage_error("a mount has no plain files to copy", MOUNT_FORK)),
    }
}

/// Where a try cannot be mounted, or cannot enter namespaces, names what works there.
pub fn suggest_copy(error: CliError, origin: &TryOrigin) -> CliError {
    let may_be_forbidden = match error.kind() {
        // fusermount3 gives its reasons as text only: they are of the kind Io.
        ErrorKind::Unsupported | ErrorKind::Denied | ErrorKind::NotFound | ErrorKind::Io => true,
        ErrorKind::Conflict
        | ErrorKind::Corrupt
        | ErrorKind::NoSpace
        | ErrorKind::Usage
        | ErrorKind::Interrupted => false,
    };
    if !may_be_forbidden {
        return error;
    }
    let way = match origin {
        TryOrigin::Directory(_) => {
            "'vellum try --copy -- COMMAND' runs it in a copy, at another path, and needs neither"
        }
        TryOrigin::Mount(_) => MOUNT_FORK,
    };
    let hint = error.hint().map_or_else(|| way.to_owned(), |hint| format!("{hint}. Or {way}"));
    MountingError::Daemon { kind: error.kind(), message: error.format_chain(), hint: Some(hint) }.into()
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

/// What is mounted in a worktree, without what is mounted below such a mount. It is not in the fork, which has what a
/// snapshot of the worktree has there.
pub fn find_submounts(root: &Path, state: &StateDir) -> Result<Vec<PathBuf>> {
    let is_inside =
        |place: &Path| place != root && place.starts_with(root) && !place.starts_with(state.path());
    let mut places: Vec<_> = table::read_mounts()?.into_iter().map(|mount| mount.mountpoint).collect();
    places.retain(|place| is_inside(place));
    // A mount comes before those below it.
    places.sort();
    let mut outermost: Vec<PathBuf> = Vec::new();
    for place in places {
        // A mount is kept in view with all that is mounted below it, so that only the outermost ones are needed.
        if !outermost.last().is_some_and(|above| place.starts_with(above)) {
            outermost.push(place);
        }
    }
    Ok(outermost)
}

/// Tells which mounts the command does not see.
pub fn report_submounts(mounts: &[PathBuf], context: &CommandContext) -> Result<()> {
    if mounts.is_empty() {
        return Ok(());
    }
    let places: Vec<_> =
        mounts.iter().map(|place| format_path(place.as_os_str().as_encoded_bytes())).collect();
    let places = places.join(", ");
    context.ui.print_warning(format!(
        "in the try, nothing is mounted on {places} (--with-mounts shows it, read-only)"
    ))
}

/// Standard input and output stay what they are: a file of the worktree is then the original's.
pub fn report_outputs(root: &Path, strict: bool, context: &CommandContext) -> Result<()> {
    for (number, name) in [(0, "standard input"), (1, "standard output"), (2, "standard error")] {
        // The shell opens what a command is redirected to before the try exists: it is a file of the original, and stays
        // one.
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
