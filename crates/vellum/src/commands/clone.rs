//! `vellum clone`: a new directory with the files of a snapshot, from a store that holds a volume.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use vellum_checkout::CheckoutWorktree;
use vellum_host::escape::format_path;
use vellum_library::live;
use vellum_store::{StoreAddress, StoreLocation};
use vellum_volume::device::join_line_name;
use vellum_volume::history::{HistoryEntry, list_history};
use vellum_volume::remote::{
    DEFAULT_REMOTE, MAIN_WORKTREE, PullRequest, Remote, copy_keys_to_dir, pull_snapshots,
};
use vellum_volume::state::STATE_DIR;
use vellum_volume::volume::DEFAULT_STORE;
use vellum_volume::{StateDir, Volume, VolumeError};

use super::init::PreparedWorktree;
use super::{init, mount, restore};
use crate::context::CommandContext;
use crate::context::names::describe_snapshot;
use crate::context::paths::UserPaths;
use crate::error::{CliError, CommandOutcome, Result};
use crate::heap;
use crate::secret::SecretArgs;
use crate::store_args::CredentialsArgs;
use crate::ui::format;
use crate::ui::json::ProblemJson;
use crate::ui::progress::ProgressTask;

/// Create a directory with the files of a volume
///
/// DIR becomes a new worktree of the volume in the store at URL, and is filled from a snapshot. Its snapshots go into
/// that store. A store over http:// or https:// can only be read: DIR then has a store of its own, into which the
/// snapshots are copied, and the one at URL is its remote 'origin'. With --mount, the worktree is mounted on DIR: it can
/// be used at once, and content is fetched when it is read, also over https://: 'vellum pull --content' copies what is
/// left. With --only, DIR is a partial checkout: the other paths are
/// absent, and snapshots take them from the last snapshot.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The store: a path or a URL
    #[arg(value_name = "URL")]
    store: String,
    /// The directory; created if it does not exist, and empty [default: named after the store]
    dir: Option<PathBuf>,
    /// The snapshot to take the files from [default: that of the worktree 'main', or else the newest]
    #[arg(long, value_name = "SNAP")]
    from: Option<String>,
    /// Write only these paths, relative to the root; 'vellum hydrate' writes others later
    #[arg(long, value_name = "PATH", num_args = 1.., conflicts_with = "mount")]
    only: Vec<OsString>,
    #[command(flatten)]
    credentials: CredentialsArgs,
    /// Mount the worktree on DIR; what it keeps on this machine is in the directory DIR.vellum beside it
    #[arg(long)]
    mount: bool,
    /// With --mount, fetch names when they are first used, and not all in the background
    #[arg(long, requires = "mount")]
    no_metadata: bool,
    /// Keep the state (history, key, settings, hooks, caches) in STATE/.vellum instead of DIR/.vellum: whoever can write only to
    /// DIR cannot reach it
    #[arg(long, value_name = "STATE", conflicts_with = "mount")]
    state: Option<PathBuf>,
    /// Name of the worktree [default: the directory's name; DEVICE.DIR if a device's secret opens the volume]
    #[arg(long)]
    name: Option<String>,
    /// The volume is not encrypted
    #[arg(long)]
    plain: bool,
    #[command(flatten)]
    secret: SecretArgs,
}

#[derive(Serialize)]
struct CloneJson {
    volume: String,
    worktree: String,
    directory: String,
    store: String,
    snapshot: Option<String>,
    written: u64,
    bytes: u64,
    problems: Vec<ProblemJson>,
}

/// Clones.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    heap::limit_command_heaps();
    let dir = context.resolve_local_path(&match &args.dir {
        Some(dir) => dir.clone(),
        None => default_dir(&args.store)?,
    });
    refuse_used_dir(&dir)?;
    if args.mount {
        return clone_and_mount(args, context, &dir);
    }
    let prepared = prepare_clone(args, context, &dir, args.name.clone())?;
    let volume = &prepared.initialised.volume;
    let only = UserPaths::new(&dir, &dir).parse_paths(&args.only);
    let chosen = only.and_then(|only| {
        let target = choose_snapshot(args, volume)?;
        check_only_paths(volume, target.as_ref(), &only)?;
        Ok((target, only))
    });
    // If the files cannot be had, nothing of the worktree stays, so that the corrected command can use the same
    // directory.
    let (target, only) = match chosen {
        Ok(chosen) => chosen,
        Err(error) => {
            prepared.abandon();
            return Err(error);
        }
    };
    let worktree = CheckoutWorktree::from_volume(prepared.finish()?)?;
    fill_and_report(context, &worktree, target.as_ref(), only)
}

/// Refused before the store is asked for anything, and before a passphrase is.
fn refuse_used_dir(dir: &Path) -> Result<()> {
    // What is in the state directory of a clone that was interrupted before its worktree was made is used again.
    let is_used =
        |entry: fs::DirEntry| entry.file_name() != STATE_DIR || StateDir::for_new_root(dir).is_err();
    if !fs::read_dir(dir).is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(is_used))) {
        return Ok(());
    }
    let shown = format_path(dir.as_os_str().as_encoded_bytes());
    if matches!(StateDir::for_new_root(dir), Err(VolumeError::AlreadyInitialised(_))) {
        return Err(CliError::usage_error(
            format!("{shown} is a worktree already"),
            format!(
                "if a clone was interrupted there, 'vellum -C {shown} restore SNAP' writes the other files"
            ),
        ));
    }
    Err(CliError::usage_error(
        format!("{shown} is not empty"),
        "name a directory that does not exist yet, or an empty one",
    ))
}

/// The paths must be in the snapshot, before there is a worktree.
fn check_only_paths(volume: &Volume, target: Option<&HistoryEntry>, only: &[Vec<u8>]) -> Result<()> {
    let Some(target) = target else {
        return match only {
            [] => Ok(()),
            [..] => Err(CliError::usage_error("the volume has no snapshot yet", "leave out --only")),
        };
    };
    let tree = volume.open_tree(target.record.root);
    let place = format!("snapshot {}", volume.short_id(&target.id)?);
    only.iter().try_for_each(|path| tree.find_path(path, &place).map(drop)).map_err(CliError::from)
}

/// A worktree of the volume in the store. One that can only be read becomes the remote of a store in the directory.
fn prepare_clone(
    args: &Args,
    context: &CommandContext,
    dir: &Path,
    name: Option<String>,
) -> Result<PreparedWorktree> {
    if !init::is_read_only_address(&args.store) {
        return attach_worktree(args, context, dir, name);
    }
    if args.state.is_some() {
        let message = "--state is for stores that can be written to";
        let hint =
            "'vellum init DIR --state STATE' there, then 'vellum remote add origin URL' and 'vellum pull'";
        return Err(CliError::usage_error(message, hint));
    }
    let location = args.credentials.locate_store(&args.store, &context.cwd).map_err(VolumeError::from)?;
    // Fails inside of another worktree, before anything is created.
    StateDir::for_new_root(dir)?;
    // Noted before the directory is made: one that was there already stays if the clone fails.
    let is_new = !dir.exists();
    fs::create_dir_all(dir).map_err(CliError::io_error("create", dir.display().to_string()))?;
    let state = StateDir::create(dir).inspect_err(|_| remove_new_dir(dir, is_new))?;
    // The keys come first: without them, the directory has no volume to which a worktree could be attached.
    let mut prepared = copy_keys_to_dir(&location, &state.join(DEFAULT_STORE))
        .map_err(CliError::from)
        .and_then(|()| attach_worktree(args, context, dir, name))
        .inspect_err(|_| remove_copied_keys(&state, is_new))?;
    let fetched = add_clone_source(&mut prepared.initialised.volume, &location, args.mount).and_then(|()| {
        let volume = &prepared.initialised.volume;
        let remote = volume.find_remote(Some(DEFAULT_REMOTE))?;
        let task = ProgressTask { first: "Comparing", verb: "Fetching", item: "blob" };
        context
            .run_with_progress(task, |meter| pull_snapshots(volume, &remote, PullRequest::default(), meter))
    });
    match fetched {
        Ok(_) => Ok(prepared),
        Err(error) => {
            prepared.abandon();
            remove_copied_keys(&state, is_new);
            Err(error.into())
        }
    }
}

/// Makes the store that is cloned the remote of the clone's own one, and the source of its content if that is fetched when
/// it is read.
fn add_clone_source(
    volume: &mut Volume,
    location: &StoreLocation,
    is_lazy: bool,
) -> vellum_volume::Result<()> {
    // A clone that was interrupted may have come that far.
    let is_known = |remote: &Remote| remote.name == DEFAULT_REMOTE && remote.location == *location;
    if !volume.list_remotes()?.iter().any(is_known) {
        volume.add_remote(DEFAULT_REMOTE, location)?;
    }
    // Before the first record whose content is there alone.
    if is_lazy { volume.set_source(location) } else { Ok(()) }
}

/// Takes back what was copied for a worktree that did not come to be. Only what was made here can be there: the directory
/// was empty.
fn remove_copied_keys(state: &StateDir, is_new: bool) {
    // What cannot be removed is left: the error that led here is the one to report.
    let _ = fs::remove_dir_all(state.join(DEFAULT_STORE));
    state.remove_if_unused();
    remove_new_dir(state.root(), is_new);
}

/// Takes back a directory that was made for a clone, as far as nothing is in it.
fn remove_new_dir(dir: &Path, is_new: bool) {
    if is_new {
        let _ = fs::remove_dir(dir);
    }
}

fn attach_worktree(
    args: &Args,
    context: &CommandContext,
    dir: &Path,
    name: Option<String>,
) -> Result<PreparedWorktree> {
    // Without an address, the store is in the state directory.
    let store = (!init::is_read_only_address(&args.store)).then(|| args.store.clone());
    let credentials = match store {
        Some(_) => args.credentials.clone(),
        None => CredentialsArgs { credentials: None },
    };
    init::prepare_worktree(
        &init::Args {
            dir: Some(dir.into()),
            store,
            volume: None,
            credentials,
            state: args.state.clone(),
            name,
            plain: args.plain,
            meta: None,
            // That of the volume there.
            chunk_size: None,
            secret: args.secret.clone(),
        },
        context,
        init::AttachRules { requires_volume: true, is_in_device_line: args.name.is_none() },
    )
}

/// The volume's directory, beside the mountpoint, is a worktree of its own, which has no files.
fn clone_and_mount(args: &Args, context: &CommandContext, dir: &Path) -> Result<CommandOutcome> {
    let base = dir.file_name().unwrap_or_default();
    let mut beside = base.to_owned();
    beside.push(".vellum");
    let state = dir.with_file_name(&beside);
    // The mount hides its mountpoint, and needs an empty one: what it keeps on this machine lies beside it.
    if state.symlink_metadata().is_ok() {
        let shown = |path: &Path| format_path(path.as_os_str().as_encoded_bytes());
        // A worktree that is not named after the mountpoint is not found by it.
        let name = args.name.as_ref().map(|name| format!("--worktree {name} ")).unwrap_or_default();
        return Err(CliError::usage_error(
            format!("{} exists already", shown(&state)),
            format!("'vellum mount {name}{} {}' mounts what was cloned before", shown(&state), shown(dir)),
        ));
    }
    let name = args.name.clone().unwrap_or_else(|| base.to_string_lossy().into_owned());
    let prepared = prepare_clone(args, context, &state, Some(format!("{name}.vellum")))?;
    let volume = &prepared.initialised.volume;
    let name = match &volume.worktree.device {
        Some(device) if args.name.is_none() => join_line_name(device, &name),
        Some(_) | None => name,
    };
    let made = choose_snapshot(args, volume).and_then(|target| {
        live::create_live_worktree(volume, &name, target.map(|target| target.id))?;
        Ok(())
    });
    if let Err(error) = made {
        prepared.abandon();
        return Err(error);
    }
    prepared.initialised.finish_init()?;
    drop(prepared);
    // After everything that can fail for reasons of the store: no empty directory is left by a clone that was
    // abandoned.
    fs::create_dir_all(dir).map_err(CliError::io_error("create", dir.display().to_string()))?;
    let mut mount = mount::Args::for_worktree(&state, dir, &name);
    // Names take little room, and without them the first listing of each directory waits for the service.
    mount.fetch_names = !args.no_metadata;
    mount::run(&mount, context)
}

/// The last part of the address: of a service, of the folder or the bucket.
fn default_dir(store: &str) -> Result<PathBuf> {
    let address = StoreAddress::parse(store).map_err(VolumeError::from)?;
    let name = match &address {
        StoreAddress::Directory(path) => path.file_name().map(PathBuf::from),
        // A store in memory has no place that could name a directory.
        StoreAddress::Memory(_) => None,
        StoreAddress::Service(service) => {
            let folder = service.folder.trim_end_matches('/').rsplit('/').next();
            folder.filter(|name| !name.is_empty()).or(Some(&service.bucket)).map(PathBuf::from)
        }
        StoreAddress::Sftp(sftp) => sftp.path.rsplit('/').next().map(PathBuf::from),
    };
    name.ok_or_else(|| {
        CliError::usage_error(
            "the address does not say what to call the directory",
            "name it: 'vellum clone URL DIR'",
        )
    })
}

fn choose_snapshot(args: &Args, volume: &Volume) -> Result<Option<HistoryEntry>> {
    if let Some(typed) = &args.from {
        return Ok(Some(volume.resolve_snapshot(typed)?));
    }
    // What a remote was read for just now comes before a worktree here, which is new.
    if let Some(head) = volume.read_remote_refs(DEFAULT_REMOTE)?.worktrees.get(MAIN_WORKTREE) {
        return Ok(Some(volume.resolve_snapshot(&head.to_string())?));
    }
    if let Some(head) = volume.read_worktree_head(MAIN_WORKTREE)?.and_then(|head| head.head) {
        return Ok(Some(volume.resolve_snapshot(&head.to_string())?));
    }
    // The worktree 'main' may have been renamed or removed, or have no snapshot.
    Ok(list_history(&volume.catalog)?.into_iter().next())
}

fn fill_and_report(
    context: &CommandContext,
    worktree: &CheckoutWorktree,
    target: Option<&HistoryEntry>,
    only: Vec<Vec<u8>>,
) -> Result<CommandOutcome> {
    let is_partial = !only.is_empty();
    let filled = target.map(|target| restore::fill_worktree(context, worktree, target, only)).transpose()?;
    let problems =
        filled.iter().flat_map(|filled| &filled.problems).map(ProblemJson::from).collect::<Vec<_>>();
    // What could not be written is a finding: the worktree is there nevertheless.
    let outcome = CommandOutcome::from_findings(!problems.is_empty());
    let volume = &worktree.volume;
    let file = &volume.worktree;
    let (written, bytes) = filled.as_ref().map_or((0, 0), |filled| (filled.written, filled.bytes));
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&CloneJson {
            volume: file.volume.clone(),
            worktree: file.worktree.clone(),
            directory: worktree.root_path().display().to_string(),
            store: volume.objects.describe_location(),
            snapshot: target.map(|target| target.id.to_string()),
            written,
            bytes,
            problems,
        })?;
        return Ok(outcome);
    }
    ui.print_problems(&problems)?;
    if ui.voice.quiet {
        return Ok(outcome);
    }
    let directory = format_path(worktree.root_path().as_os_str().as_encoded_bytes());
    ui.print_line(format!(
        "{directory} is now the worktree '{}' of the volume in {}",
        file.worktree,
        format_path(volume.objects.describe_location())
    ))?;
    match target {
        Some(target) => {
            let count = format::format_number(written);
            let size = format::format_size(bytes);
            ui.print_line(format!(
                "Its files are those of {}: {count} written, {size}",
                describe_snapshot(volume, target)?
            ))?;
            if is_partial {
                ui.print_note("The other paths are absent: 'vellum hydrate PATH' brings them")?;
            }
        }
        None => ui.print_note("the volume has no snapshot yet: 'vellum snapshot' makes one")?,
    }
    Ok(outcome)
}
