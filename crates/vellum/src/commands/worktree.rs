//! `vellum worktree`: the worktrees of the volume.

mod create;
mod evict;
mod hand_over;
mod list;
mod quota;
mod remove;
mod share;

use std::path::{Path, PathBuf};

use serde::Serialize;
use vellum_checkout::CheckoutWorktree;
use vellum_host::escape::format_path;
use vellum_library::live;
use vellum_store::StoreLocation;
use vellum_volume::{StateDir, Volume, VolumeError};

use crate::context::CommandContext;
use crate::context::names::SnapshotNames;
use crate::error::{CliError, CommandOutcome, Result};
use crate::store_args::CredentialsArgs;

/// List, create, rename, limit, share, keep, adopt, relocate and remove worktrees
///
/// 'vellum fork' creates one from a snapshot, 'create' an empty one; 'vellum init --store' opens the volume elsewhere.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List all worktrees of the volume; '*' marks the one you stand in
    ///
    /// Shows of each the snapshot that it stands on and its age, how many snapshots it is ahead of and behind the one
    /// that you stand in, the size of its content and its quota, and where it is.
    List {
        /// Scan the directories on this machine for changes that no snapshot holds
        #[arg(long)]
        changes: bool,
    },
    /// Show one worktree
    Show {
        /// Its name; by default the one that you stand in
        name: Option<String>,
        /// Scan its directory for changes that no snapshot holds
        #[arg(long)]
        changes: bool,
    },
    /// Print the directory in which a worktree's files are: its own, or its mountpoint
    Path {
        /// Its name; by default the one that you stand in
        name: Option<String>,
    },
    /// Create an empty worktree, without a snapshot
    ///
    /// Its history begins anew. 'vellum fork' creates a worktree with the content of a snapshot.
    Create {
        /// Its name
        name: String,
        /// Make this directory the worktree; what is in it stays. Without it, the worktree is to be mounted
        dir: Option<PathBuf>,
        /// Keep the state (key, settings, hooks, caches) in STATE/.vellum instead of DIR/.vellum
        #[arg(long, value_name = "STATE", requires = "dir")]
        state: Option<PathBuf>,
    },
    /// Give a worktree another name
    Rename {
        /// Its name
        old: String,
        /// The new name
        new: String,
    },
    /// Create a worktree from unpublished changes that were left here
    ///
    /// When another machine takes over a mounted worktree, what had not been published stays where it was written.
    /// This command turns it into a separate worktree, which can be mounted.
    Keep {
        /// The worktree that was taken over
        old: String,
        /// The name of the new worktree
        new: String,
    },
    /// Give a mounted worktree a log, from which another machine can continue it
    ///
    /// Everything that is synced in its mounts from then on is in the log, too. If the machine is lost, 'vellum mount' on
    /// another one continues from there. The worktree must not be mounted meanwhile.
    Share(share::ShareArgs),
    /// Take the log of a worktree away, after everything was put into the store
    ///
    /// The worktree must not be mounted meanwhile.
    Unshare {
        /// Its name
        name: String,
    },
    /// Show or set how much a mounted worktree may hold
    ///
    /// If a limit is lower than what the worktree holds, nothing is deleted, but the worktree cannot grow.
    Quota(quota::Args),
    /// End the session of a client of a shared worktree
    ///
    /// What its mount has open or locked is let go at once. A client that still runs begins a new session.
    Evict(evict::Args),
    /// Have another process serve a shared worktree
    ///
    /// The worktree has a shared log, and the other process stands by: it was started with 'vellum mount --shared NAME DIR
    /// --listen ADDRESS' or 'vellum serve'. What clients do meanwhile waits for a moment. The mount of the process that
    /// served goes on as a client, and stands by itself.
    HandOver(hand_over::Args),
    /// Turn a copy of a worktree's directory into a separate worktree
    ///
    /// Of a directory that was copied with all that is in it ('cp -a'), and whose store lies elsewhere, only one can be
    /// the worktree. This gives the one you stand in a name of its own; its files stay as they are.
    Adopt {
        /// The name of the worktree that it becomes
        #[arg(long = "as", value_name = "NAME")]
        name: String,
    },
    /// Record the new location of a directory or store that was moved
    ///
    /// A directory that was moved is noticed when it is next changed by a command; this makes the list right at once. With
    /// --store, the store is looked for there from now on; with --source, the store that a lazy clone reads from.
    Relocate {
        /// Where the store is now: a path or a URL
        #[arg(long, value_name = "URL", conflicts_with = "source")]
        store: Option<String>,
        /// Where the store is now from which content is read that this one does not have
        #[arg(long, value_name = "URL")]
        source: Option<String>,
        /// Where the files are now, of a worktree whose state is elsewhere: run it with '-C STATE'
        // 'directory' is the name of '-C', which every command has.
        #[arg(long = "directory", value_name = "DIR")]
        moved_to: Option<PathBuf>,
        #[command(flatten)]
        credentials: CredentialsArgs,
    },
    /// Remove a worktree from the list
    ///
    /// Its snapshots stay, and so do the files in its directory, unless --delete is given.
    Remove {
        /// Its name
        name: String,
        /// Delete its directory with all that is in it, ignored files too; refused if it holds changes that no snapshot
        /// does
        #[arg(long)]
        delete: bool,
    },
}

#[derive(Serialize)]
struct WorktreeRenamedJson<'a> {
    old: &'a str,
    new: &'a str,
}

#[derive(Serialize)]
struct Adopted<'a> {
    name: &'a str,
    snapshot: Option<String>,
    directory: &'a str,
}

#[derive(Serialize)]
struct Relocated<'a> {
    name: &'a str,
    directory: &'a str,
    store: &'a str,
    /// The store from which content is read that this one does not have.
    source: Option<&'a str>,
}

/// Lists worktrees, or changes one.
pub fn run(command: &Command, context: &CommandContext) -> Result<CommandOutcome> {
    match command {
        Command::List { changes } => list::list_worktrees(context, &context.open_volume()?, *changes),
        Command::Show { name, changes } => {
            list::show_worktree(context, &context.open_volume()?, name.as_deref(), *changes)
        }
        Command::Path { name } => list::print_path(context, &context.open_volume()?, name.as_deref()),
        Command::Create { name, dir, state } => {
            let holder = state.as_deref();
            create::create_worktree(context, &context.open_volume()?, name, dir.as_deref(), holder)
        }
        Command::Rename { old, new } => rename_worktree(context, &context.open_volume()?, old, new),
        Command::Keep { old, new } => keep_unpublished(context, &context.open_volume()?, old, new),
        Command::Share(args) => share::share_worktree(context, context.open_volume()?, args),
        Command::Unshare { name } => share::unshare_worktree(context, context.open_volume()?, name),
        Command::Quota(args) => quota::run(args, context, &context.open_volume()?),
        Command::Evict(args) => evict::run(args, context, &context.open_volume()?),
        Command::HandOver(args) => hand_over::run(args, context, context.open_volume()?),
        // The next two open the volume themselves: in a copy, or without its store, the usual way warns or fails.
        Command::Adopt { name } => adopt_worktree(context, name),
        Command::Relocate { store, source, moved_to, credentials } => {
            let locate = |url: &String| credentials.locate_store(url, &context.cwd);
            let store = store.as_ref().map(locate).transpose().map_err(VolumeError::from)?;
            let source = source.as_ref().map(locate).transpose().map_err(VolumeError::from)?;
            let moved = RelocatedPlaces { store, source, directory: moved_to.as_deref() };
            relocate_worktree(context, &moved)
        }
        Command::Remove { name, delete } => {
            remove::remove_worktree(context, &context.open_volume()?, name, *delete)
        }
    }
}

fn rename_worktree(
    context: &CommandContext,
    volume: &Volume,
    old: &str,
    new: &str,
) -> Result<CommandOutcome> {
    live::rename_worktree(volume, old, new)?;
    let line = || format!("The worktree {old} is now called {new}");
    context.ui.print_outcome(&WorktreeRenamedJson { old, new }, line)?;
    Ok(CommandOutcome::Done)
}

fn keep_unpublished(
    context: &CommandContext,
    volume: &Volume,
    old: &str,
    new: &str,
) -> Result<CommandOutcome> {
    live::keep_unpublished(volume, old, new)?;
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&WorktreeRenamedJson { old, new })?;
    } else if !ui.voice.quiet {
        ui.print_line(format!("What was left of {old} here is the worktree {}", ui.style.paint_cyan(new)))?;
        ui.print_note(format!("'vellum mount --worktree {new} MOUNTPOINT' shows it"))?;
    }
    Ok(CommandOutcome::Done)
}

fn adopt_worktree(context: &CommandContext, name: &str) -> Result<CommandOutcome> {
    // Not by the context: that it is a copy need not be said.
    let worktree = CheckoutWorktree::open(&context.cwd)?;
    let snapshot = worktree.adopt_copy(name, context.lock_wait_notice())?;
    let ui = &context.ui;
    if ui.is_json() {
        let snapshot = snapshot.map(|id| id.to_string());
        let directory = worktree.root_path().display().to_string();
        ui.print_json(&Adopted { name, snapshot, directory: &directory })?;
    } else if !ui.voice.quiet {
        let directory = format_path(worktree.root_path().as_os_str().as_encoded_bytes());
        let names = SnapshotNames::load_all(&worktree.volume)?;
        let place =
            snapshot.map_or_else(|| "no snapshot".into(), |id| format!("snapshot {}", names.short_id(&id)));
        ui.print_line(format!("{directory} is now the worktree {}, at {place}", ui.style.paint_cyan(name)))?;
        ui.print_note("'vellum status' shows what differs from that")?;
    }
    Ok(CommandOutcome::Done)
}

/// What was moved, and where it is now.
struct RelocatedPlaces<'a> {
    store: Option<StoreLocation>,
    source: Option<StoreLocation>,
    directory: Option<&'a Path>,
}

fn relocate_worktree(context: &CommandContext, moved: &RelocatedPlaces<'_>) -> Result<CommandOutcome> {
    let mut state = context.open_state_dir()?;
    // Before anything is read that it changes.
    let _lock = state.lock_worktree(context.lock_wait_notice())?;
    match moved.directory {
        // Before the volume is opened, which checks the directory that the state names.
        Some(typed) => state = move_files(context, &state, typed)?,
        None => state.renew_marker()?,
    }
    let mut volume = match &moved.store {
        Some(store) => Volume::relocate_store(&state, store)?,
        None => Volume::open(&state)?,
    };
    if let Some(source) = &moved.source {
        volume.relocate_source(source)?;
    }
    volume.confirm_own_dir()?;
    let source = volume.find_source()?.map(|source| source.url);
    let store = volume.objects.describe_location();
    let name = &volume.worktree.worktree;
    let directory = state.root().display().to_string();
    let line = || {
        let directory = format_path(state.root().as_os_str().as_encoded_bytes());
        let store = format_path(&store);
        let line = format!("The worktree {name} is in {directory}, and its store is {store}");
        source.as_ref().map_or(line.clone(), |source| format!("{line}, with more in {}", format_path(source)))
    };
    let relocated = Relocated { name, directory: &directory, store: &store, source: source.as_deref() };
    context.ui.print_outcome(&relocated, line)?;
    Ok(CommandOutcome::Done)
}

/// Makes a directory the one whose state this is.
fn move_files(context: &CommandContext, state: &StateDir, typed: &Path) -> Result<StateDir> {
    if !state.is_elsewhere() {
        let message = "the state of this worktree is in its directory, and moves with it";
        return Err(CliError::usage_error(message, "leave out --directory"));
    }
    let path = context.resolve_local_path(typed);
    let root = path.canonicalize().map_err(CliError::io_error("work in", path.display().to_string()))?;
    Ok(state.move_root(&root)?)
}
