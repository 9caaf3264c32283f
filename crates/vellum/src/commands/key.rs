//! `vellum key`: what opens the volume's store from elsewhere.

use serde::Serialize;
use vellum_crypto::{KeySlot, SlotSecret};
use vellum_host::escape::format_path;
use vellum_store::ObjectKey;
use vellum_volume::{Volume, device, keyring};

use crate::commands::device::check_slot_of_no_device;
use crate::commands::init::SECRET_QUESTION;
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::secret::SecretArgs;
use crate::ui::table::TextTable;

/// Manage the secrets that open the volume from elsewhere
///
/// The directory in which a volume was created keeps its key, and needs none of these.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    Add(AddKeyArgs),
    /// List all key slots
    List,
    Open(OpenKeyArgs),
    /// Remove a key slot: its secret no longer opens the volume
    ///
    /// Anyone who opened the volume with it before can have kept the volume's key.
    Remove {
        /// Its id, or the beginning of it
        id: String,
    },
}

/// Add a passphrase, a key file or a recovery code
///
/// Without options, asks for a passphrase. 'vellum init --store' accepts what was added with the option of the same
/// name.
#[derive(Debug, clap::Args)]
pub struct AddKeyArgs {
    #[command(flatten)]
    secret: SecretArgs,
    /// Print a new recovery code
    #[arg(long, conflicts_with_all = ["passphrase", "passphrase_file", "key_file"])]
    recovery: bool,
    /// A label for the list; everyone who can read the store can read it
    #[arg(long)]
    label: Option<String>,
}

/// Open the volume anew with a secret, in a worktree that lacks its newest key
///
/// After 'vellum device rotate', a worktree that keeps only the old key needs it once; so does a volume of an early
/// version, for each of its key slots, before its key can be changed. Without options, the secret is asked for: a
/// passphrase, a recovery code or the code of a device.
#[derive(Debug, clap::Args)]
pub struct OpenKeyArgs {
    #[command(flatten)]
    secret: SecretArgs,
}

#[derive(Serialize)]
struct KeyOpenedJson {
    id: String,
    key_epoch: u32,
}

#[derive(Serialize)]
struct KeyListJson {
    keys: Vec<KeySlotJson>,
}

#[derive(Serialize)]
struct KeySlotJson {
    id: String,
    kind: String,
    label: String,
    /// The device whose slot it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recovery_code: Option<String>,
}

impl KeySlotJson {
    fn new(slot: &KeySlot) -> Self {
        let label = slot.label().into();
        Self {
            id: slot.id().to_string(),
            kind: slot.kind().to_string(),
            label,
            device: None,
            recovery_code: None,
        }
    }
}

#[derive(Serialize)]
struct KeyRemovedJson {
    id: String,
}

/// Adds, lists, opens or removes.
pub fn run(command: &Command, context: &CommandContext) -> Result<CommandOutcome> {
    // Not for 'open', which is there for volumes that cannot be read before their newest key is known.
    let open_volume = || {
        let volume = context.open_volume()?;
        require_encryption(&volume, "keys").map(|()| volume)
    };
    match command {
        Command::Add(add) => add.add_key(context, &open_volume()?),
        Command::List => list_keys(context, &open_volume()?),
        Command::Open(open) => open.open_key(context),
        Command::Remove { id } => remove_key(context, &open_volume()?, id),
    }
}

/// Fails if the volume is plain: it has no `what`.
pub fn require_encryption(volume: &Volume, what: &str) -> Result<()> {
    if volume.config.encrypted {
        return Ok(());
    }
    let hint = "make a new volume without --plain to have an encrypted one";
    Err(CliError::usage_error(format!("this volume is not encrypted: it has no {what}"), hint))
}

impl AddKeyArgs {
    fn add_key(&self, context: &CommandContext, volume: &Volume) -> Result<CommandOutcome> {
        let ui = &context.ui;
        let label = |kind: &str| self.label.clone().unwrap_or_else(|| kind.into());
        let mut code = None;
        let slot = if self.recovery {
            let new = vellum_crypto::RecoveryCode::generate();
            let slot = keyring::add_key_slot(volume, SlotSecret::Recovery(&new), &label("recovery code"))?;
            code = Some(new.to_text());
            slot
        } else {
            let new = self.secret.read_new_secret(ui)?;
            keyring::add_key_slot(volume, new.as_slot_secret(), &label(new.default_label()))?
        };
        // From now on, a verification here reports this slot if somebody removes it from the store.
        keyring::record_seen_slots(volume)?;
        let code = code.as_ref().map(|code| code.to_string());
        if ui.is_json() {
            ui.print_json(&KeySlotJson { recovery_code: code, ..KeySlotJson::new(&slot) })?;
            return Ok(CommandOutcome::Done);
        }
        if !ui.voice.quiet {
            ui.print_line(format!(
                "Added key {} ({}: {})",
                slot.id(),
                slot.kind(),
                format_path(slot.label())
            ))?;
        }
        // With --quiet, too: it is shown only this once.
        if let Some(code) = code {
            ui.print_line(format!("\nRecovery code: {}\n", ui.style.paint_bold(&code)))?;
            ui.print_line("Write it down and keep it elsewhere: it is not shown again.")?;
        }
        Ok(CommandOutcome::Done)
    }
}

impl OpenKeyArgs {
    fn open_key(&self, context: &CommandContext) -> Result<CommandOutcome> {
        // Nothing may be read before: the key may be missing with which it is sealed.
        let volume = match context.open_mounted_worktree()? {
            Some(mounted) => mounted.volume,
            None => Volume::open(&context.open_state_dir()?)?,
        };
        require_encryption(&volume, "keys")?;
        let ui = &context.ui;
        let secret = self.secret.read_existing_secret(ui, SECRET_QUESTION)?;
        let id = keyring::open_with_secret(&volume, &secret)?.to_string();
        let key_epoch = volume.keys.newest_epoch().number();
        let line = format!("Opened the volume with key {id}; it is in key epoch {key_epoch}");
        ui.print_outcome(&KeyOpenedJson { id, key_epoch }, || line)?;
        Ok(CommandOutcome::Done)
    }
}

fn list_keys(context: &CommandContext, volume: &Volume) -> Result<CommandOutcome> {
    let slots = keyring::list_key_slots(&*volume.objects)?;
    let devices = device::list_devices(volume)?.devices;
    let find_device = |key: &ObjectKey| {
        let found = devices.iter().find(|device| device.slot == *key);
        found.map(|device| device.name.clone())
    };
    if context.ui.is_json() {
        context.ui.print_json(&KeyListJson {
            keys: slots
                .iter()
                .map(|(key, slot)| KeySlotJson { device: find_device(key), ..KeySlotJson::new(slot) })
                .collect(),
        })?;
        return Ok(CommandOutcome::Done);
    }
    let mut table = TextTable::default();
    for (key, slot) in &slots {
        let kind = slot.kind().to_string();
        let label = if let Some(device) = find_device(key) {
            format!("device {device}")
        // A label that was not chosen repeats the kind, which has a column of its own.
        } else if slot.label() == kind {
            String::new()
        } else {
            format_path(slot.label())
        };
        table.add_row([slot.id().to_string(), kind, label]);
    }
    context.ui.print_lines(table.format_lines())?;
    if slots.is_empty() {
        context
            .ui
            .print_warning("only the key in .vellum opens this volume: 'vellum key add' adds another")?;
    }
    Ok(CommandOutcome::Done)
}

fn remove_key(context: &CommandContext, volume: &Volume, typed: &str) -> Result<CommandOutcome> {
    // A device is revoked with 'vellum device revoke', which also removes its record.
    check_slot_of_no_device(volume, typed)?;
    let id = keyring::remove_key_slot(volume, typed)?;
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&KeyRemovedJson { id })?;
        return Ok(CommandOutcome::Done);
    }
    if !ui.voice.quiet {
        ui.print_line(format!("Removed key {id}"))?;
    }
    // Not refused: the key in the state directory still opens the volume, and the user is told what is at stake.
    if keyring::list_key_slots(&*volume.objects)?.is_empty() {
        ui.print_warning("that was the last key slot: only the key in .vellum opens this volume now; 'vellum key add' adds another")?;
    }
    Ok(CommandOutcome::Done)
}
