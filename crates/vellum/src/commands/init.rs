//! `vellum init`: a directory becomes a worktree, of a new volume or of one that a store holds already.

mod adopt;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_library::live::LogLocation;
use vellum_store::StoreAddress;
use vellum_volume::config::ChunkSizes;
use vellum_volume::own_place::resolve_existing_path;
use vellum_volume::refs::check_ref_name;
use vellum_volume::volume::{InitialisedVolume, InspectedStore, NewWorktree, StoreContent};
use vellum_volume::{StateDir, Volume, VolumeError, keyring};

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::secret::{NewSecret, SecretArgs, SecretBytes};
use crate::store_args::CredentialsArgs;
use crate::ui::format;

/// What is asked when the store holds a volume.
pub const SECRET_QUESTION: &str = "Passphrase, recovery code or code of the device: ";

/// Name of the first worktree of a volume.
const FIRST_WORKTREE: &str = "main";

/// Turn a directory into a worktree
///
/// Creates a volume. Its store is in DIR/.vellum, or elsewhere with --store. The files in DIR are not changed;
/// 'vellum snapshot' records them.
///
/// The volume is encrypted, without a question: the key is kept in DIR/.vellum, and a recovery code is printed
/// once. With --passphrase or --key-file, the store can also be opened from elsewhere with that secret.
///
/// If the store already holds a volume, DIR becomes a new worktree of it; this requires a passphrase, a key file or
/// a recovery code. Then 'vellum restore SNAP' fills it. A volume that is not encrypted requires --plain.
///
/// With --volume, DIR becomes a new worktree of the volume that another worktree on this machine is of; no secret is
/// asked for. Its files stay as they are, and are recorded by its first snapshot: what the volume has is not stored again.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory; created if it does not exist [default: the current directory]
    pub dir: Option<PathBuf>,
    /// Where the volume's objects are kept: a path or a URL [default: in DIR/.vellum]
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// Adopt DIR into the volume of the worktree at PATH
    #[arg(long, value_name = "PATH", conflicts_with_all = ["store", "plain", "state"])]
    pub volume: Option<PathBuf>,
    #[command(flatten)]
    pub credentials: CredentialsArgs,
    /// Keep the state (history, key, settings, hooks, caches) in STATE/.vellum instead of DIR/.vellum: whoever can write only to
    /// DIR cannot reach it
    #[arg(long, value_name = "STATE")]
    pub state: Option<PathBuf>,
    /// Name of the worktree [default: 'main'; with --store or --volume, the directory's name; DEVICE.DIR if a device's secret opens the volume]
    #[arg(long)]
    pub name: Option<String>,
    /// Do not encrypt, or attach to a volume that is not encrypted: whoever can read the store can read the files
    #[arg(long)]
    pub plain: bool,
    /// Give each worktree of the volume that is mounted anew a log at URL, from which another machine can continue it:
    /// 'store:' is the volume's own store. The setting 'mount.meta' of the volume
    #[arg(long, value_name = "URL", conflicts_with = "volume")]
    pub meta: Option<String>,
    /// Cut content into chunks of SIZE on average, from 8K to 1M. It cannot be changed later [default: 64K]
    #[arg(long, value_name = "SIZE", value_parser = parse_chunk_size, conflicts_with = "volume")]
    pub chunk_size: Option<ChunkSizes>,
    #[command(flatten)]
    pub secret: SecretArgs,
}

/// A typed average length of chunks.
fn parse_chunk_size(typed: &str) -> std::result::Result<ChunkSizes, String> {
    let target = usize::try_from(format::parse_size(typed)?).unwrap_or(usize::MAX);
    ChunkSizes::from_target(target).map_err(|_| {
        let size = |target: usize| format::format_size(target as u64);
        let least = size(ChunkSizes::TARGET_MIN);
        format!("chunks are from {least} to {} long on average", size(ChunkSizes::TARGET_MAX))
    })
}

#[derive(Serialize)]
struct InitJson {
    volume: String,
    worktree: String,
    directory: String,
    store: String,
    encrypted: bool,
    attached: bool,
    passphrase: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    recovery_code: Option<String>,
}

/// Makes the worktree. Whatever may be refused comes first: nothing stands before the secret is there.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    if let Some(of) = &args.volume {
        return adopt::adopt_dir(args, of, context);
    }
    // Before anything is made.
    args.meta.as_ref().map(|url| LogLocation::parse(url, None)).transpose()?;
    let rules = AttachRules { requires_volume: false, is_in_device_line: args.name.is_none() };
    let made = prepare_worktree(args, context, rules)?;
    // Without a code, nothing is lost if the output cannot be read.
    if made.initialised.recovery.is_none() {
        made.finish_with(args)?;
    }
    let reported = report_initialised(context, &made.initialised, made.is_protected)
        .and_then(|()| context.ui.flush_output());
    // The code must have been shown before the volume can be used. If this process dies in between, the next `init`
    // finds an unfinished worktree, goes on with it and shows another code.
    if made.initialised.recovery.is_some() {
        reported.map_err(explain_unshown_code)?;
        made.finish_with(args)?;
    } else {
        reported?;
    }
    let next = if made.initialised.attached {
        "'vellum history --all', then 'vellum restore SNAP'"
    } else {
        "'vellum snapshot'"
    };
    context.ui.print_note(format!("\nNext: {next}"))?;
    Ok(CommandOutcome::Done)
}

/// The setting that '--meta' sets.
const LOG_SETTING: &str = "mount.meta";

/// A worktree that is not finished yet.
pub struct PreparedWorktree {
    /// The volume and the worktree.
    pub initialised: InitialisedVolume,
    /// Whether a passphrase or a key file opens the new volume.
    is_protected: bool,
    /// What is removed if it is given up.
    root: NewWorktreeRoot,
}

impl PreparedWorktree {
    /// Lets commands find the worktree, and returns its volume.
    pub fn finish(self) -> Result<Volume> {
        self.initialised.finish_init()?;
        Ok(self.initialised.volume)
    }

    /// Lets commands find the worktree that these arguments describe.
    fn finish_with(&self, args: &Args) -> Result<()> {
        self.initialised.finish_init()?;
        if let Some(url) = &args.meta {
            self.initialised.volume.change_setting(LOG_SETTING, Some(std::slice::from_ref(url)))?;
        }
        Ok(())
    }

    /// Takes a worktree back that was to be attached to a volume: whatever it would need is in the store.
    pub fn abandon(self) {
        let Self { initialised: InitialisedVolume { volume, .. }, root, .. } = self;
        // What fails leaves an entry in the list of worktrees, which can be removed there.
        let _ = volume.remove_worktree(&volume.worktree.worktree);
        // After the entry, because the volume cannot be used without its state directory.
        let _ = volume.state.remove_dir();
        root.remove_if_unused();
    }
}

/// What is asked of a worktree that is attached to a volume.
#[derive(Debug, Clone, Copy)]
pub struct AttachRules {
    /// Whether the store must hold a volume.
    pub requires_volume: bool,
    /// Whether the name is below that of the device whose secret opens the volume.
    pub is_in_device_line: bool,
}

/// Makes a worktree that no command finds before it is finished.
pub fn prepare_worktree(
    args: &Args,
    context: &CommandContext,
    rules: AttachRules,
) -> Result<PreparedWorktree> {
    if args.plain && args.secret.is_requested() {
        return Err(CliError::usage_error(
            "a plain volume has no passphrase and no key file",
            "leave out --plain, or the passphrase and the key file",
        ));
    }
    refuse_read_only_store(args)?;
    args.secret.check_availability()?;
    let root = NewWorktreeRoot::prepare_root(args, context)?;
    let locate = |store: &str| args.credentials.locate_store(store, &context.cwd);
    let store = args.store.as_deref().map(locate);
    let store = store.transpose().map_err(VolumeError::from)?;
    let new = NewWorktree {
        store,
        name: worktree_name(args, &root.path)?,
        encrypted: !args.plain,
        is_in_device_line: rules.is_in_device_line,
        chunk_sizes: args.chunk_size,
    };
    // The store is looked at before a passphrase is asked for: whether it is a new or an existing one depends on what
    // the store holds.
    let holder = args.state.as_deref().map(|typed| resolve_existing_path(&context.resolve_local_path(typed)));
    let planned = match &holder {
        Some(holder) => StateDir::for_new_holder(&root.path, holder)?,
        None => StateDir::for_new_root(&root.path)?,
    };
    let store = Volume::inspect_store(&planned, &new)?;
    let given = read_init_secret(args, context, store.content(), rules.requires_volume)?;
    // Made only now: everything that the user can have mistyped has been checked, and a refusal leaves nothing behind.
    root.create_dir()?;
    let state = match &holder {
        Some(holder) => StateDir::create_in_holder(&root.path, holder),
        None => StateDir::create(&root.path),
    };
    let state = state.inspect_err(|_| root.remove_if_unused())?;
    // If somebody makes a volume there in this very moment.
    let ask = || args.secret.read_existing_secret(&context.ui, SECRET_QUESTION);
    let initialised = initialise_volume(store, &state, &new, &given, ask).inspect_err(|_| {
        // Whatever was kept in it is needed to go on.
        state.remove_if_unused();
        root.remove_if_unused();
    })?;
    let is_protected = !initialised.attached && matches!(given, InitSecret::New(_));
    // The volume has its recovery code by now. If this fails, `init` is run again and adds the slot then.
    if let (InitSecret::New(secret), false) = (&given, initialised.attached) {
        keyring::add_key_slot(&initialised.volume, secret.as_slot_secret(), secret.default_label())?;
    }
    Ok(PreparedWorktree { initialised, is_protected, root })
}

/// A worktree writes to its store.
fn refuse_read_only_store(args: &Args) -> Result<()> {
    let Some(store) = args.store.as_deref().filter(|store| is_read_only_address(store)) else {
        return Ok(());
    };
    let shown = format_path(store);
    Err(CliError::usage_error(
        format!("{shown} can only be read, since stores over http:// and https:// are read only"),
        "'vellum clone URL DIR' copies its volume into a store of its own; 'vellum remote add NAME URL' reads it too",
    ))
}

/// Whether an address names a web server. What is no address is left to whoever opens it.
pub fn is_read_only_address(store: &str) -> bool {
    match StoreAddress::parse(store) {
        Ok(StoreAddress::Service(service)) => service.kind.is_read_only(),
        Ok(StoreAddress::Directory(_) | StoreAddress::Memory(_) | StoreAddress::Sftp(_)) | Err(_) => false,
    }
}

/// The directory that becomes a worktree, and what has to be made for it.
struct NewWorktreeRoot {
    path: PathBuf,
    typed: String,
    /// Directories that do not exist yet, the innermost first.
    missing: Vec<PathBuf>,
}

impl NewWorktreeRoot {
    fn prepare_root(args: &Args, context: &CommandContext) -> Result<Self> {
        let typed = args.dir.as_deref().unwrap_or(Path::new("."));
        let mut path = context.resolve_local_path(typed);
        let typed = typed.display().to_string();
        let mut missing = Vec::new();
        loop {
            match path.canonicalize() {
                Ok(there) => {
                    // What is missing has no symlinks in it, so that its names can be put together.
                    let rebase = |gone: &PathBuf| gone.strip_prefix(&path).map(|below| there.join(below));
                    let missing: Vec<_> = missing.iter().filter_map(|gone| rebase(gone).ok()).collect();
                    let path = missing.first().cloned().unwrap_or(there);
                    return Ok(Self { path, typed, missing });
                }
                // A path that ends in `..` has no name that could be made.
                Err(error) if error.kind() == ErrorKind::NotFound && path.file_name().is_some() => {
                    missing.push(path.clone());
                    path.pop();
                }
                Err(error) => return Err(CliError::io_error("use the directory", typed)(error)),
            }
        }
    }

    fn create_dir(&self) -> Result<()> {
        let made = fs::create_dir_all(&self.path);
        // Directories above may have been made before it failed.
        made.map_err(CliError::io_error("make the directory", self.typed.clone())).inspect_err(|_| {
            self.remove_if_unused();
        })
    }

    /// Takes away what was made, as far as nothing is in it.
    fn remove_if_unused(&self) {
        // The innermost comes first; the first one that is not empty ends it.
        let _ = self.missing.iter().try_for_each(fs::remove_dir);
    }
}

fn worktree_name(args: &Args, root: &Path) -> Result<String> {
    if let Some(name) = &args.name {
        check_ref_name(name)?;
        return Ok(name.clone());
    }
    // A volume whose store is inside the directory begins with one worktree, of a fixed name. A store elsewhere is
    // shared by several directories, which their own names tell apart.
    let own = root.file_name().and_then(|name| name.to_str()).filter(|name| check_ref_name(name).is_ok());
    let is_shared = args.store.is_some() || args.volume.is_some();
    Ok(own.filter(|_| is_shared).unwrap_or(FIRST_WORKTREE).into())
}

/// What was typed or read before anything was made.
enum InitSecret {
    /// What is to open the new volume, beside the recovery code.
    New(NewSecret),
    /// What opens the volume that is there.
    Existing(SecretBytes),
    /// The volume is plain, or its key and recovery code are enough.
    Nothing,
}

fn read_init_secret(
    args: &Args,
    context: &CommandContext,
    content: StoreContent,
    requires_volume: bool,
) -> Result<InitSecret> {
    Ok(match content {
        StoreContent::Nothing if requires_volume => {
            let store = args.store.as_deref().unwrap_or_default();
            return Err(CliError::usage_error(
                format!("{} holds no volume", format_path(store)),
                "'vellum init --store URL' makes one there",
            ));
        }
        // What is wrong with asking for a plain volume then, `InspectedStore::prepare_init` tells.
        _ if args.plain => InitSecret::Nothing,
        StoreContent::LockedVolume => {
            InitSecret::Existing(args.secret.read_existing_secret(&context.ui, SECRET_QUESTION)?)
        }
        StoreContent::Nothing | StoreContent::OpenVolume if args.secret.is_requested() => {
            InitSecret::New(args.secret.read_new_secret(&context.ui)?)
        }
        StoreContent::Nothing | StoreContent::OpenVolume => InitSecret::Nothing,
    })
}

fn initialise_volume(
    store: InspectedStore,
    state: &StateDir,
    new: &NewWorktree,
    given: &InitSecret,
    ask: impl FnOnce() -> Result<SecretBytes>,
) -> Result<InitialisedVolume> {
    // The volume knows its own errors only: ours waits beside it.
    let mut refused = None;
    let made = store.prepare_init(state, new, || match given {
        InitSecret::Existing(secret) => Ok(secret.clone()),
        InitSecret::New(_) | InitSecret::Nothing => ask().map_err(|error| {
            refused = Some(error);
            VolumeError::Locked
        }),
    });
    match (made, refused) {
        (Ok(made), _) => Ok(made),
        // Our own error comes first: the volume only knows that it got no secret.
        (Err(_), Some(error)) => Err(error),
        (Err(VolumeError::Exists { kind: "worktree", name }), None) => Err(CliError::usage_error(
            format!("the volume has a worktree '{name}' already"),
            "choose another name with --name",
        )),
        (Err(error), None) => Err(error.into()),
    }
}

/// A reader that went away is an error if it was to read the code.
fn explain_unshown_code(error: CliError) -> CliError {
    match error {
        CliError::Output(source) => {
            CliError::io_error("show", "the recovery code; 'vellum init' shows another one")(source)
        }
        other => other,
    }
}

fn report_initialised(context: &CommandContext, made: &InitialisedVolume, passphrase: bool) -> Result<()> {
    let volume = &made.volume;
    let code = made.recovery.as_ref().map(|code| code.to_text());
    let ui = &context.ui;
    let worktree = &volume.worktree;
    let directory = volume.state.root().display().to_string();
    let store = volume.objects.describe_location();
    if ui.is_json() {
        ui.print_json(&InitJson {
            volume: worktree.volume.clone(),
            worktree: worktree.worktree.clone(),
            directory,
            store,
            encrypted: worktree.encrypted,
            attached: made.attached,
            passphrase,
            recovery_code: code.map(|code| code.to_string()),
        })?;
        return Ok(());
    }
    let protection = if worktree.encrypted { "encrypted" } else { "not encrypted" };
    if made.attached {
        ui.print_line(format!(
            "{directory} is now the worktree '{}' of the volume in {store}",
            worktree.worktree
        ))?;
    } else {
        ui.print_line(format!(
            "Made a volume, {protection}: {directory} is its worktree '{}'",
            worktree.worktree
        ))?;
        ui.print_line(format!("Its store is {store}"))?;
        ui.print_note(
            "It holds nothing yet. The first snapshot copies every file of the directory into it, compressed and equal \
             content once; each later one takes what changed. 'vellum mount' and 'vellum fork --mount' copy nothing.",
        )?;
    }
    if let Some(code) = code {
        ui.print_line(format!("\nRecovery code: {}\n", ui.style.paint_bold(&code)))?;
        ui.print_line(
            "Write it down and keep it elsewhere: it opens the volume when this directory is lost,",
        )?;
        ui.print_line("and it is not shown again.")?;
    }
    Ok(())
}
