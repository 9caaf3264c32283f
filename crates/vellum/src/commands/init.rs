//! `vellum init`: a directory becomes a worktree, of a new volume or of one that a store holds already.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use vellum_crypto::Secret;
use vellum_volume::refs::check_ref_name;
use vellum_volume::volume::{Initialised, NewWorktree};
use vellum_volume::{StateDir, Volume, VolumeError, keyring};

use crate::context::Context;
use crate::error::{CliError, Outcome, Result};
use crate::secret::PassphraseArgs;

/// Name of the first worktree of a volume.
const FIRST_WORKTREE: &str = "main";

/// Make a directory a worktree
///
/// Makes a volume whose store lies in DIR/.vellum, or elsewhere with --store. The files in DIR stay as they are;
/// 'vellum snapshot' records them.
///
/// The volume is encrypted, and nothing is asked: the key is kept in DIR/.vellum, and a recovery code is printed once.
/// With --passphrase, the store can be opened from elsewhere with a passphrase too.
///
/// If the store holds a volume already, DIR becomes a new worktree of it, after a passphrase or recovery code was
/// given; then 'vellum restore SNAP' fills it. A volume that is not encrypted is taken with --plain only.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory; made if it does not exist [default: where you stand]
    dir: Option<PathBuf>,
    /// Where the volume's objects are kept: a path or a URL [default: in DIR/.vellum]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Name of the worktree [default: 'main'; with --store, the directory's name]
    #[arg(long)]
    name: Option<String>,
    /// Do not encrypt, and attach to a volume that is not encrypted: whoever reads the store reads the files
    #[arg(long)]
    plain: bool,
    #[command(flatten)]
    secret: PassphraseArgs,
}

#[derive(Serialize)]
struct Report {
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

/// Makes the worktree.
pub fn run(args: &Args, context: &Context) -> Result<Outcome> {
    if args.plain && args.secret.wanted() {
        return Err(CliError::usage(
            "a plain volume has no passphrase",
            "leave out --plain or the passphrase",
        ));
    }
    args.secret.check()?;
    let root = directory(args, context)?;
    let name = name(args, &root)?;
    let store = args.store.as_ref().map(|store| absolute(context, store));
    let new = NewWorktree { store, name, encrypted: !args.plain };
    let state = StateDir::create(&root)?;
    let made = make(args, context, &state, &new).inspect_err(|_| {
        // Only an empty one goes: whatever was kept in it is needed to go on.
        let _ = fs::remove_dir(state.path());
    })?;
    let passphrase = !made.attached && args.secret.wanted();
    if passphrase {
        add_passphrase(args, context, &made.volume)?;
    }
    report(context, &made, passphrase)
}

fn directory(args: &Args, context: &Context) -> Result<PathBuf> {
    let typed = args.dir.as_deref().unwrap_or(Path::new("."));
    let path = context.local_path(typed);
    let shown = || typed.display().to_string();
    fs::create_dir_all(&path).map_err(CliError::io("make the directory", shown()))?;
    path.canonicalize().map_err(CliError::io("use the directory", shown()))
}

fn name(args: &Args, root: &Path) -> Result<String> {
    if let Some(name) = &args.name {
        check_ref_name(name)?;
        return Ok(name.clone());
    }
    let own = root.file_name().and_then(|name| name.to_str()).filter(|name| check_ref_name(name).is_ok());
    Ok(own.filter(|_| args.store.is_some()).unwrap_or(FIRST_WORKTREE).into())
}

/// A store that was typed as a path is relative to where the user stands, whatever directory becomes a worktree.
fn absolute(context: &Context, store: &str) -> String {
    if store.contains("://") {
        store.into()
    } else {
        context.local_path(Path::new(store)).display().to_string()
    }
}

fn make(args: &Args, context: &Context, state: &StateDir, new: &NewWorktree) -> Result<Initialised> {
    // The volume knows its own errors only: ours waits beside it.
    let mut refused = None;
    let made = Volume::init(state, new, || {
        let question = "Passphrase or recovery code of the volume: ";
        args.secret.existing(&context.ui, question).map_err(|error| {
            refused = Some(error);
            VolumeError::Locked
        })
    });
    match (made, refused) {
        (Ok(made), _) => Ok(made),
        (Err(_), Some(error)) => Err(error),
        (Err(VolumeError::Exists { kind: "worktree", name }), None) => Err(CliError::usage(
            format!("the volume has a worktree '{name}' already"),
            "choose another name with --name",
        )),
        (Err(error), None) => Err(error.into()),
    }
}

fn add_passphrase(args: &Args, context: &Context, volume: &Volume) -> Result<()> {
    let secret = args.secret.new_passphrase(&context.ui)?;
    let master = volume.state.master_key()?.ok_or(VolumeError::Locked)?;
    let secret = Secret::Passphrase(&secret);
    keyring::add(&*volume.objects, secret, "passphrase", &master, volume.config.volume)?;
    Ok(())
}

fn report(context: &Context, made: &Initialised, passphrase: bool) -> Result<Outcome> {
    let volume = &made.volume;
    let code = made.recovery.as_ref().map(|code| code.to_text());
    let ui = &context.ui;
    let worktree = &volume.worktree;
    let (directory, store) = (volume.state.root().display().to_string(), volume.objects.describe());
    if ui.json() {
        ui.object(&Report {
            volume: worktree.volume.clone(),
            worktree: worktree.worktree.clone(),
            directory,
            store,
            encrypted: worktree.encrypted,
            attached: made.attached,
            passphrase,
            recovery_code: code.map(|code| code.to_string()),
        })?;
        return Ok(Outcome::Done);
    }
    let protection = if worktree.encrypted { "encrypted" } else { "not encrypted" };
    if made.attached {
        ui.line(format!("{directory} is now the worktree '{}' of the volume in {store}", worktree.worktree))?;
    } else {
        ui.line(format!("Made a volume, {protection}: {directory} is its worktree '{}'", worktree.worktree))?;
        ui.line(format!("Its store is {store}"))?;
        ui.note(
            "It holds nothing yet. The first snapshot copies every file of the directory into it, compressed and equal \
             content once; each later one takes what changed. 'vellum mount' and 'vellum fork --mount' copy nothing.",
        )?;
    }
    if let Some(code) = code {
        ui.line(format!("\nRecovery code: {}\n", ui.style.bold(&code)))?;
        ui.line("Write it down and keep it elsewhere: it opens the volume when this directory is lost,")?;
        ui.line("and it is not shown again.")?;
    }
    let next =
        if made.attached { "vellum history --all, then vellum restore SNAP" } else { "vellum snapshot" };
    ui.note(format!("\nNext: {next}"))?;
    Ok(Outcome::Done)
}
