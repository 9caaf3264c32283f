//! `vellum config`: settings of this user, this worktree and the volume.

use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_volume::settings::{
    SETTINGS, SettingDefinition, SettingInForce, SettingScope, SettingValues, Settings, find_setting,
};
use vellum_volume::{Volume, VolumeError};

use crate::commands::pin::target::open_unsettled_volume;
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::mounting::MountingError;
use crate::settings::{SettingsFile, check_typed_values, load_personal_settings, require_setting};
use crate::ui::table::TextTable;

/// Show and change settings
///
/// Each setting can be kept in up to three places, of which the first that has it counts: the worktree, the volume (for
/// all machines that use its store), and the user's file, ~/.config/vellum/config.toml. 'vellum config list --all'
/// describes all settings.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the settings that are set, and where
    List {
        /// List all settings, with what they do
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Print the value of a setting; exits with 1 if it has none
    Get {
        /// The setting
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Set a setting
    Set {
        /// The setting
        #[arg(value_name = "NAME")]
        name: String,
        /// Its value; of a list, all its values. Those that begin with '-' stand behind '--'
        #[arg(value_name = "VALUE", required = true)]
        values: Vec<String>,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Unset a setting
    Unset {
        /// The setting
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        place: PlaceArgs,
    },
}

/// Where a setting is kept.
#[derive(Debug, Clone, Copy, clap::Args)]
#[group(multiple = false)]
pub struct PlaceArgs {
    /// The setting of this worktree [default for changes, if it can be set there]
    #[arg(long)]
    worktree: bool,
    /// The setting of the volume, for all machines
    #[arg(long)]
    volume: bool,
    /// The setting of this user [default for changes, if it cannot be set for a worktree]
    #[arg(long)]
    user: bool,
}

#[derive(Serialize)]
struct SettingListJson {
    settings: Vec<SettingJson>,
}

#[derive(Serialize)]
struct SettingJson {
    name: &'static str,
    values: Vec<String>,
    /// Null: by default.
    scope: Option<&'static str>,
    #[serde(rename = "type")]
    kind: String,
    scopes: Vec<&'static str>,
    help: &'static str,
}

#[derive(Serialize)]
struct SettingChangedJson {
    name: &'static str,
    scope: &'static str,
    changed: bool,
}

impl PlaceArgs {
    fn scope(self) -> Option<SettingScope> {
        match (self.worktree, self.volume, self.user) {
            (true, _, _) => Some(SettingScope::Worktree),
            (_, true, _) => Some(SettingScope::Volume),
            (_, _, true) => Some(SettingScope::User),
            (false, false, false) => None,
        }
    }
}

/// Shows or changes.
pub fn run(command: &Command, context: &CommandContext) -> Result<CommandOutcome> {
    match command {
        Command::List { all, place } => list_settings(*all, place.scope(), context),
        Command::Get { name, place } => get_setting(name, place.scope(), context),
        Command::Set { name, values, place } => change_setting(name, Some(values), place.scope(), context),
        Command::Unset { name, place } => change_setting(name, None, place.scope(), context),
    }
}

/// The settings of some place, or of all.
fn load_settings(scope: Option<SettingScope>, context: &CommandContext) -> Result<Settings> {
    let mut settings = Settings::default();
    let is_wanted = |place| scope.is_none_or(|wanted| wanted == place);
    if is_wanted(SettingScope::User)
        && let Some(file) = SettingsFile::of_user()
    {
        settings.add_place(SettingScope::User, file.read()?.values);
    }
    if is_wanted(SettingScope::Worktree) {
        match find_worktree_file(context) {
            Ok(file) => settings.add_place(SettingScope::Worktree, file.read()?.values),
            // Outside of worktrees, users have settings nevertheless. What cannot be read is not outside.
            Err(
                CliError::Volume(VolumeError::NoVolume(_))
                | CliError::Mounting(MountingError::OnlySnapshot(_) | MountingError::OnlyFollowed(_)),
            ) if scope.is_none() => return Ok(settings),
            Err(error) => return Err(error),
        }
    }
    if is_wanted(SettingScope::Volume) {
        match open_unsettled_volume(context).and_then(|volume| {
            let values = read_volume_settings(&volume, context)?;
            Ok((volume.config, values))
        }) {
            Ok((config, values)) => {
                settings.add_place(SettingScope::Volume, values);
                settings.add_volume_config(&config);
            }
            Err(error) if scope.is_none() && error.is_store_failure() => {
                context.ui.print_warning(format!("the settings of the volume are not known: {error}"))?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(settings)
}

fn find_worktree_file(context: &CommandContext) -> Result<SettingsFile> {
    let state = match context.find_mount_process()? {
        Some(process) => process.state_dir()?,
        None => context.open_state_dir()?,
    };
    Ok(SettingsFile::of_worktree(&state))
}

/// The settings of a volume; warns about those that are not known.
pub fn read_volume_settings(volume: &Volume, context: &CommandContext) -> Result<SettingValues> {
    let values = volume.read_settings()?.values();
    let unknown: Vec<_> =
        values.keys().filter(|name| find_setting(name).is_none()).map(format_path).collect();
    if !unknown.is_empty() {
        let names = unknown.join(", ");
        context
            .ui
            .print_warning(format!("the volume has settings that this version does not know: {names}"))?;
    }
    Ok(values)
}

/// The settings of the worktree that a volume was opened for, of the volume, and of this user.
pub fn load_settings_with_volume(volume: &Volume, context: &CommandContext) -> Result<Settings> {
    let mut settings = load_personal_settings(&volume.state)?;
    settings.add_place(SettingScope::Volume, read_volume_settings(volume, context)?);
    Ok(settings)
}

fn list_settings(all: bool, scope: Option<SettingScope>, context: &CommandContext) -> Result<CommandOutcome> {
    let settings = load_settings(scope, context)?;
    let found = SETTINGS.iter().map(|setting| (setting, settings.find_value(setting)));
    // What was chosen when the volume was made is none of the settings that somebody has set.
    let shown: Vec<_> =
        found.filter(|(setting, found)| all || found.scope.is_some() && !setting.is_fixed()).collect();
    let ui = &context.ui;
    if ui.is_json() {
        let settings = shown.into_iter().map(|(setting, found)| SettingJson::new(setting, found)).collect();
        ui.print_json(&SettingListJson { settings })?;
        return Ok(CommandOutcome::Done);
    }
    let mut table = TextTable::default();
    for (setting, found) in &shown {
        let place = found.scope.map_or("default", SettingScope::display_name);
        let about =
            if all { format!("{}; {}", setting.describe_kind(), setting.help) } else { String::new() };
        table.add_row([setting.name.to_owned(), found.values.join(", "), place.to_owned(), about]);
    }
    ui.print_lines(table.format_lines())?;
    if shown.is_empty() {
        ui.print_note("nothing is set: 'vellum config list --all' describes all settings")?;
    }
    Ok(CommandOutcome::Done)
}

impl SettingJson {
    fn new(setting: &SettingDefinition, found: SettingInForce) -> Self {
        Self {
            name: setting.name,
            values: found.values,
            scope: found.scope.map(SettingScope::display_name),
            kind: setting.describe_kind(),
            scopes: setting.scopes.iter().map(|scope| scope.display_name()).collect(),
            help: setting.help,
        }
    }
}

fn get_setting(typed: &str, scope: Option<SettingScope>, context: &CommandContext) -> Result<CommandOutcome> {
    let setting = require_setting(typed)?;
    let mut found = load_settings(scope, context)?.find_value(setting);
    // What comes from no place is the default, and the user has asked about one place.
    if scope.is_some() && found.scope.is_none() {
        found.values.clear();
    }
    let outcome = CommandOutcome::from_findings(found.values.is_empty());
    if context.ui.is_json() {
        context.ui.print_json(&SettingListJson { settings: vec![SettingJson::new(setting, found)] })?;
    } else {
        context.ui.print_lines(found.values)?;
    }
    Ok(outcome)
}

fn change_setting(
    typed: &str,
    values: Option<&Vec<String>>,
    scope: Option<SettingScope>,
    context: &CommandContext,
) -> Result<CommandOutcome> {
    let setting = require_setting(typed)?;
    let scope = choose_scope(setting, scope)?;
    // Checked before the place is opened: a value that is not allowed must not be stored where all machines of a volume
    // read it.
    if let Some(values) = values {
        check_typed_values(setting, values)?;
    }
    let values = values.map(Vec::as_slice);
    let changed = match scope {
        SettingScope::Worktree => find_worktree_file(context)?.change(setting, values)?,
        SettingScope::Volume => open_unsettled_volume(context)?.change_setting(setting.name, values)?,
        SettingScope::User => {
            let file = SettingsFile::of_user();
            let none = || CliError::usage_error("there is no place for the user's settings", "set HOME");
            file.ok_or_else(none)?.change(setting, values)?
        }
    };
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&SettingChangedJson { name: setting.name, scope: scope.display_name(), changed })?;
    } else if !ui.voice.quiet {
        ui.print_line(match values {
            Some(values) => format!("{} is {} ({scope})", setting.name, values.join(", ")),
            None if changed => format!("{} is not set any more ({scope})", setting.name),
            None => format!("{} was not set ({scope})", setting.name),
        })?;
    }
    Ok(CommandOutcome::Done)
}

fn choose_scope(setting: &SettingDefinition, typed: Option<SettingScope>) -> Result<SettingScope> {
    let default = || {
        let worktree = SettingScope::Worktree;
        if setting.may_be_set_in(worktree) { worktree } else { SettingScope::User }
    };
    let scope = typed.unwrap_or_else(default);
    if setting.may_be_set_in(scope) {
        return Ok(scope);
    }
    if setting.is_fixed() {
        return Err(CliError::usage_error(
            format!("{} cannot be changed: the volume has it for good", setting.name),
            "'vellum init --chunk-size SIZE' chooses it; equal content that is cut differently would be stored twice",
        ));
    }
    let places: Vec<_> = setting.scopes.iter().map(|scope| format!("--{scope}")).collect();
    Err(CliError::usage_error(
        format!("{} cannot be set for a {scope}", setting.name),
        format!("it can be set with {}", places.join(" or ")),
    ))
}
