//! `vellum device`: machines that work on the volume, each with a secret and with worktrees of its own.

mod rotate;

use serde::Serialize;
use vellum_crypto::{KeySlot, RecoveryCode, SlotSecret};
use vellum_host::escape::format_path;
use vellum_volume::Volume;
use vellum_volume::device::{self, Device, DeviceState, RevokedDevice};
use vellum_volume::refs::WorktreeHead;

use crate::commands::key;
use crate::context::CommandContext;
use crate::context::names::SnapshotNames;
use crate::error::{CliError, CommandOutcome, Result};
use crate::secret::SecretArgs;
use crate::ui::table::TextTable;
use crate::ui::{format, json};

/// Manage the devices that work on the volume
///
/// A device is a machine that opens the volume with a secret of its own. What 'vellum clone' creates there is called
/// NAME.WORKTREE, so that no device waits for another.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    Add(AddDeviceArgs),
    /// List all devices, their worktrees and when these had their last snapshot
    List,
    Revoke(RevokeDeviceArgs),
    Rotate(rotate::RotateArgs),
}

/// Add a device, and print the code that opens the volume there
///
/// On the device, 'vellum clone URL' asks for the code. With one of the options, your own passphrase or key file
/// replaces it.
#[derive(Debug, clap::Args)]
pub struct AddDeviceArgs {
    /// The device's name; the names of its worktrees begin with it
    name: String,
    #[command(flatten)]
    secret: SecretArgs,
}

/// Revoke a device: its secret no longer opens the volume
///
/// Its worktrees and snapshots stay. A device that has opened the volume has the volume's key, and may have kept it:
/// 'vellum device rotate' changes the key. Its access to the store must be revoked separately.
#[derive(Debug, clap::Args)]
pub struct RevokeDeviceArgs {
    /// The device's name
    name: String,
    /// Revoke it even if this worktree belongs to it, or no other key slot is left
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct DeviceAddedJson<'a> {
    name: &'a str,
    slot: String,
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
}

#[derive(Serialize)]
struct DeviceListJson {
    /// Number of the store's key: how often it was changed.
    key_epoch: u32,
    devices: Vec<DeviceJson>,
    damaged: Vec<String>,
}

#[derive(Serialize)]
struct DeviceJson {
    name: String,
    slot: String,
    state: &'static str,
    added: String,
    this: bool,
    worktrees: Vec<DeviceWorktreeJson>,
}

#[derive(Serialize)]
struct DeviceWorktreeJson {
    name: String,
    snapshot: Option<String>,
    /// When the snapshot was made.
    time: Option<String>,
}

#[derive(Serialize)]
struct DeviceRevokedJson {
    name: String,
    slot: String,
    revoked_before: bool,
    worktrees: Vec<String>,
    stores: Vec<ReachableStoreJson>,
}

/// A store that the device may be able to reach still.
#[derive(Serialize)]
struct ReachableStoreJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    remote: Option<String>,
    store: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    credentials: Option<String>,
}

/// Adds, lists, revokes, or changes the key.
pub fn run(command: &Command, context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.open_volume()?;
    // A device is a slot of the volume's key, and a plain volume has no key.
    key::require_encryption(&volume, "devices")?;
    match command {
        Command::Add(add) => add.add_device(context, &volume),
        Command::List => list_devices(context, &volume),
        Command::Revoke(revoke) => revoke.revoke_device(context, &volume),
        Command::Rotate(rotate) => rotate.rotate(context, &volume),
    }
}

impl AddDeviceArgs {
    fn add_device(&self, context: &CommandContext, volume: &Volume) -> Result<CommandOutcome> {
        // Before the passphrase is asked for: nobody should type one in vain.
        device::check_device_name(&self.name)?;
        self.secret.check_availability()?;
        if self.secret.is_requested() {
            let secret = self.secret.read_new_secret(&context.ui)?;
            let slot = device::add_device(volume, &self.name, secret.as_slot_secret())?;
            return self.report_added(context, volume, &slot, None);
        }
        let code = RecoveryCode::generate();
        let slot = device::add_device(volume, &self.name, SlotSecret::Recovery(&code))?;
        self.report_added(context, volume, &slot, Some(&code))
    }

    fn report_added(
        &self,
        context: &CommandContext,
        volume: &Volume,
        slot: &KeySlot,
        code: Option<&RecoveryCode>,
    ) -> Result<CommandOutcome> {
        let ui = &context.ui;
        let code = code.map(RecoveryCode::to_text);
        if ui.is_json() {
            ui.print_json(&DeviceAddedJson {
                name: &self.name,
                slot: slot.id().to_string(),
                kind: slot.kind().to_string(),
                code: code.map(|code| code.to_string()),
            })?;
            return Ok(CommandOutcome::Done);
        }
        if !ui.voice.quiet {
            ui.print_line(format!("Added the device {}", self.name))?;
        }
        // Also with --quiet, because the code is stored nowhere and cannot be shown again.
        if let Some(code) = code {
            ui.print_line(format!("\nCode: {}\n", ui.style.paint_bold(&code)))?;
            ui.print_line("It opens the volume on that device, and is not shown again.")?;
        }
        let store = volume.objects.describe_location();
        let store = format_path(&store);
        ui.print_note(format!("\nThere: 'vellum clone {store}' asks for it, if it can reach the store"))?;
        if !volume.list_remotes()?.is_empty() {
            ui.print_note("'vellum push' takes the device to a remote, which can be cloned as well")?;
        }
        Ok(CommandOutcome::Done)
    }
}

fn list_devices(context: &CommandContext, volume: &Volume) -> Result<CommandOutcome> {
    let listing = device::list_devices(volume)?;
    let ui = &context.ui;
    for (_, error) in &listing.damaged {
        ui.print_warning(format!("a device is left out: {error}"))?;
    }
    let outcome = CommandOutcome::from_findings(!listing.damaged.is_empty());
    let epoch = volume.epochs.read_status()?;
    let names = SnapshotNames::load_all(volume)?;
    names.warn_about_damaged(ui)?;
    if ui.is_json() {
        let describe = |device: &Device| describe_device(volume, device, names.worktrees());
        ui.print_json(&DeviceListJson {
            key_epoch: epoch.number,
            devices: listing.devices.iter().map(describe).collect(),
            damaged: listing.damaged.iter().map(|(key, _)| key.to_string()).collect(),
        })?;
        return Ok(outcome);
    }
    let mut table = TextTable::default();
    for found in &listing.devices {
        add_device_rows(context, volume, found, &names, &mut table);
    }
    ui.print_lines(table.format_lines())?;
    if listing.devices.is_empty() {
        ui.print_note("no devices yet: 'vellum device add NAME' adds one")?;
    // A user who reads the list on a device would otherwise look for a row that is marked as this one.
    } else if volume.worktree.device.is_none() {
        ui.print_note("this worktree belongs to none of them: it was not opened with a device's secret")?;
    }
    // The first epoch began with the volume itself, and is no news.
    if let Some(begun) = epoch.begun {
        let begun = format::format_local_minute(begun);
        ui.print_note(format!("key epoch {}: the key was changed {begun}", epoch.number))?;
    }
    // Until it is finished, some refs may still be sealed with the old key, which the revoked device may have.
    if !epoch.is_finished {
        ui.print_warning("the last change of the key was interrupted: 'vellum device rotate' finishes it")?;
    }
    Ok(outcome)
}

fn is_this_device(volume: &Volume, device: &Device) -> bool {
    // A new device may have the name of one that was revoked.
    device.state != DeviceState::Revoked && volume.worktree.device.as_deref() == Some(&device.name)
}

/// A row for each of the device's worktrees; the first names the device.
fn add_device_rows(
    context: &CommandContext,
    volume: &Volume,
    device: &Device,
    names: &SnapshotNames,
    table: &mut TextTable,
) {
    let style = &context.ui.style;
    let state = match device.state {
        DeviceState::Active if is_this_device(volume, device) => "this one",
        DeviceState::Active => "",
        DeviceState::Revoked => "revoked",
        DeviceState::Lost => "its key slot is lost",
    };
    let added = format!("added {}", format::format_local_minute(device.added));
    let first = [device.name.as_str(), state, added.as_str()];
    let worktrees: Vec<_> = list_own_worktrees(device, names.worktrees()).collect();
    let rows = worktrees.len().max(1);
    for (row, worktree) in (0..rows).map(|row| (row, worktrees.get(row))) {
        let [name, state, added] = if row == 0 { first } else { [""; 3] };
        let head = worktree.and_then(|(_, head)| head.head);
        let last = match head {
            Some(id) => {
                let age = match volume.catalog.get_record(&id) {
                    Ok(record) => format::format_age(record.time),
                    // A record that cannot be read must not hide the other rows.
                    Err(error) => format!("({error})"),
                };
                format!("{} {age}", names.short_id(&id))
            }
            None if worktree.is_some() => "no snapshot yet".into(),
            None => String::new(),
        };
        let own = worktree.map_or("", |(own, _)| own.as_str());
        table.add_row([style.paint_cyan(name), state.into(), added.into(), own.into(), last]);
    }
}

fn list_own_worktrees<'a>(
    device: &'a Device,
    worktrees: &'a [(String, WorktreeHead)],
) -> impl Iterator<Item = &'a (String, WorktreeHead)> {
    worktrees.iter().filter(|(name, _)| device.has_worktree(name))
}

fn describe_device(volume: &Volume, device: &Device, worktrees: &[(String, WorktreeHead)]) -> DeviceJson {
    let describe = |(name, head): &(String, WorktreeHead)| {
        // Without the record, the list still names the snapshot. Damage is reported by 'vellum verify'.
        let record = head.head.and_then(|id| volume.catalog.get_record(&id).ok());
        DeviceWorktreeJson {
            name: name.clone(),
            snapshot: head.head.map(|id| id.to_string()),
            time: record.map(|record| json::format_json_time(record.time)),
        }
    };
    DeviceJson {
        name: device.name.clone(),
        slot: device.slot.name().into(),
        state: match device.state {
            DeviceState::Active => "active",
            DeviceState::Revoked => "revoked",
            DeviceState::Lost => "lost",
        },
        added: json::format_json_time(device.added),
        this: is_this_device(volume, device),
        worktrees: list_own_worktrees(device, worktrees).map(describe).collect(),
    }
}

impl RevokeDeviceArgs {
    fn revoke_device(&self, context: &CommandContext, volume: &Volume) -> Result<CommandOutcome> {
        let RevokedDevice { device, worktrees } = device::revoke_device(volume, &self.name, self.force)?;
        // After the slot is gone: whatever fails from here on, the device has lost it.
        let stores = list_reachable_stores(volume)?;
        let revoked_before = device.state == DeviceState::Revoked;
        let ui = &context.ui;
        if ui.is_json() {
            ui.print_json(&DeviceRevokedJson {
                name: device.name.clone(),
                slot: device.slot.name().into(),
                revoked_before,
                worktrees: worktrees.into_iter().map(|(name, _)| name).collect(),
                stores,
            })?;
            return Ok(CommandOutcome::Done);
        }
        let name = &device.name;
        if !ui.voice.quiet {
            ui.print_line(match revoked_before {
                true => format!("The device {name} was revoked before"),
                false => format!("Revoked the device {name}: its secret no longer opens this store"),
            })?;
            for (worktree, _) in &worktrees {
                ui.print_line(format!("Its worktree {worktree} stays"))?;
            }
        }
        // Also with --quiet: without this, users would believe that the device has no access any more.
        ui.print_warning(format!(
            "if {name} has opened the volume, it may have kept the volume's key: with access to a store it still reads \
             what is there, and what is added later, and can write to it. 'vellum device rotate' changes the key, so \
             that it reads nothing new; take away its access as well"
        ))?;
        for store in &stores {
            ui.print_warning(store.describe_access())?;
        }
        Ok(CommandOutcome::Done)
    }
}

impl ReachableStoreJson {
    fn describe_access(&self) -> String {
        let store = format_path(&self.store);
        let access = match &self.credentials {
            Some(credentials) => format!(
                "{store} opens here with the credentials '{credentials}': if the device has the same, replace them in \
                 the service"
            ),
            None => format!(
                "{store} opens here without stored credentials: take the device's access to it away there"
            ),
        };
        match &self.remote {
            Some(remote) => {
                format!(
                    "the remote {remote} may still have the key slot: 'vellum push {remote}' removes it; {access}"
                )
            }
            None => access,
        }
    }
}

/// The volume's own store, and its remotes.
fn list_reachable_stores(volume: &Volume) -> Result<Vec<ReachableStoreJson>> {
    let own = ReachableStoreJson {
        remote: None,
        store: volume.objects.describe_location(),
        credentials: volume.worktree.credentials.clone(),
    };
    let remotes = volume.list_remotes()?.into_iter().map(|remote| ReachableStoreJson {
        remote: Some(remote.name),
        store: remote.location.url,
        credentials: remote.location.credentials,
    });
    Ok(std::iter::once(own).chain(remotes).collect())
}

/// An error if the slot is that of a device, which is revoked by its name.
pub fn check_slot_of_no_device(volume: &Volume, typed: &str) -> Result<()> {
    let devices = device::list_devices(volume)?.devices;
    let matching = |device: &&Device| {
        // The beginning of an id is enough, and the empty text is the beginning of each. The slot of a revoked
        // device is gone.
        device.state == DeviceState::Active && !typed.is_empty() && device.slot.name().starts_with(typed)
    };
    match devices.iter().find(matching) {
        Some(found) => Err(CliError::usage_error(
            format!("this key slot is that of the device {}", found.name),
            format!("'vellum device revoke {}' removes it", found.name),
        )),
        None => Ok(()),
    }
}
