//! The settings of this user and this worktree: TOML files, in which users write, too.
//!
//! Invariant: a file that was written for a newer version, or that cannot be read whole, is refused and stays as it is. What
//! else is in a file stays when a setting changes, with its comments.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use toml_edit::{Array, DocumentMut, Item, Table, value};
use vellum_host::escape::format_path;
use vellum_library::live::LogLocation;
use vellum_types::{ErrorKind, LookupResult};
use vellum_volume::settings::{
    SETTINGS, SettingDefinition, SettingKind, SettingScope, SettingValues, Settings, find_setting,
    set_local_settings, suggest_setting,
};
use vellum_volume::{StateDir, VolumeError};

use crate::commands::sync::profile_config_path;
use crate::error::{CliError, Result};

/// Fails if what a user typed cannot be the values of a setting.
pub fn check_typed_values(setting: &SettingDefinition, values: &[String]) -> Result<()> {
    setting.check_values(values).map_err(|message| CliError::usage_error(message, ""))?;
    if setting.kind == SettingKind::LogAddress {
        // A volume may name an engine that another version knows; what is typed here, this one must be able to use.
        values.iter().try_for_each(|url| LogLocation::parse(url, None).map(drop))?;
    }
    Ok(())
}

/// The form of the files that this version writes and reads.
const VERSION: i64 = 1;
/// The key that says so; a file without it has the first form.
const VERSION_KEY: &str = "version";
/// The section that the profiles of `sync` are in.
const PROFILE_SECTION: &str = "sync";
const WORKTREE_FILE: &str = "config.toml";

/// A file of settings.
pub struct SettingsFile {
    scope: SettingScope,
    path: PathBuf,
}

/// What a file of settings says.
#[derive(Debug, Default)]
pub struct ReadSettings {
    /// The settings, each with values that it can have.
    pub values: SettingValues,
    /// Names that are no settings.
    pub unknown: Vec<String>,
    /// Whether it is there and may not be read.
    pub is_denied: bool,
}

impl SettingsFile {
    /// The user's; None if it is not known where their home is.
    pub fn of_user() -> Option<Self> {
        profile_config_path().map(|path| Self { scope: SettingScope::User, path })
    }

    /// That of a worktree.
    pub fn of_worktree(state: &StateDir) -> Self {
        Self { scope: SettingScope::Worktree, path: state.path().join(WORKTREE_FILE) }
    }

    /// Reads it; one that does not exist says nothing, nor does one of a user that may not be read: whoever works as
    /// another user may still have that one's home, as with `setpriv` and `sudo -E`.
    pub fn read(&self) -> Result<ReadSettings> {
        let mut read = ReadSettings::default();
        let document = match self.parse() {
            Err(error) if error.kind() == ErrorKind::Denied && self.scope == SettingScope::User => {
                return Ok(ReadSettings { is_denied: true, ..read });
            }
            document => document?,
        };
        for (name, item) in document.as_table() {
            if name != VERSION_KEY && name != PROFILE_SECTION {
                self.read_item(name, item, &mut read)?;
            }
        }
        Ok(read)
    }

    fn parse(&self) -> Result<DocumentMut> {
        let text = std::fs::read_to_string(&self.path).none_if_missing();
        let text = text.map_err(CliError::io_error("read", self.shown()))?.unwrap_or_default();
        let document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
            CliError::usage_error(format!("{}: {}", self.shown(), format_path(error.message())), "")
        })?;
        match document.get(VERSION_KEY).map(Item::as_integer) {
            None | Some(Some(VERSION)) => Ok(document),
            Some(_) => Err(CliError::usage_error(
                format!("{} was written for another version of Vellum", self.shown()),
                "use that version; the file stays as it is",
            )),
        }
    }

    fn read_item(&self, name: &str, item: &Item, read: &mut ReadSettings) -> Result<()> {
        match (find_setting(name), item.as_table_like()) {
            (Some(setting), _) => {
                let wrong = |why| CliError::usage_error(format!("{}: {why}", self.shown()), "");
                if !setting.may_be_set_in(self.scope) {
                    return Err(wrong(format!("{name} cannot be set for a {}", self.scope)));
                }
                let kind = || format!("{name} takes {}", setting.describe_kind());
                let values = read_values(item, setting).ok_or_else(|| wrong(kind()))?;
                setting.check_values(&values).map_err(wrong)?;
                read.values.insert(name.into(), values);
            }
            // A section, such as [retention].
            (None, Some(section)) if !name.contains('.') => {
                for (key, item) in section.iter() {
                    self.read_item(&format!("{name}.{key}"), item, read)?;
                }
            }
            (None, None) if SETTINGS.iter().any(|setting| setting.name.starts_with(&format!("{name}."))) => {
                let message = format!("{}: {name} is a section, and not a setting", self.shown());
                return Err(CliError::usage_error(message, ""));
            }
            (None, _) => read.unknown.push(format_path(name)),
        }
        Ok(())
    }

    /// Sets a setting whose values were checked, or unsets it. Returns whether it was another one before.
    pub fn change(&self, setting: &SettingDefinition, values: Option<&[String]>) -> Result<bool> {
        let failed = || CliError::io_error("change", self.shown());
        // The file itself, where the user has put a link to it.
        let path = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        let folder = path.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(folder).map_err(failed())?;
        // Two commands at once: the second begins with what the first has written.
        let lock = File::open(folder).map_err(failed())?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed()(error.into()))?;
        // Checked whole before anything is written: a file with something wrong in it is left to the user.
        let before = self.read()?;
        let mut document = self.parse()?;
        if before.values.get(setting.name).map(Vec::as_slice) == values {
            return Ok(false);
        }
        change_document(&mut document, setting, values);
        write_replacing(&path, document.to_string().as_bytes()).map_err(failed())?;
        Ok(true)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn shown(&self) -> String {
        format_path(self.path.as_os_str().as_encoded_bytes())
    }
}

/// The values that are written for a setting; None if they are of another type.
fn read_values(item: &Item, setting: &SettingDefinition) -> Option<Vec<String>> {
    match item.as_value()? {
        toml_edit::Value::String(text) if !setting.is_list() => Some(vec![text.value().clone()]),
        toml_edit::Value::Integer(number) if !setting.is_list() => Some(vec![number.value().to_string()]),
        toml_edit::Value::Array(values) if setting.is_list() => {
            values.iter().map(|value| value.as_str().map(String::from)).collect()
        }
        _ => None,
    }
}

fn change_document(document: &mut DocumentMut, setting: &SettingDefinition, values: Option<&[String]>) {
    let mut table: &mut dyn toml_edit::TableLike = document.as_table_mut();
    let mut key = setting.name;
    if let Some((section, rest)) = setting.name.split_once('.') {
        key = rest;
        let item = table.entry(section).or_insert_with(|| Item::Table(Table::new()));
        // What is in its place is no setting, or reading it would have failed.
        let Some(section) = item.as_table_like_mut() else { return };
        table = section;
    }
    match values {
        None => drop(table.remove(key)),
        Some(values) => drop(table.insert(key, write_values(setting, values))),
    }
}

fn write_values(setting: &SettingDefinition, values: &[String]) -> Item {
    let first = values.first().map(String::as_str).unwrap_or_default();
    match (setting.is_list(), setting.kind, first.parse::<i64>()) {
        (true, _, _) => value(values.iter().collect::<Array>()),
        (false, SettingKind::Count | SettingKind::Compression, Ok(number)) => value(number),
        (false, _, _) => value(first),
    }
}

/// Writes a file in place of another, with its permissions. It is the old or the new one at any moment.
fn write_replacing(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    // Nobody else writes here meanwhile: the folder is locked. A killed command may have left one.
    let new = path.with_extension("toml.new");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    let mode = path.metadata().map_or(0o600, |found| found.permissions().mode());
    file.set_permissions(std::fs::Permissions::from_mode(mode & 0o777))?;
    // Root may change the settings of another user, who has to be able to read and change them later.
    vellum_store::set_owner_from_dir(File::open(folder)?, &file)?;
    file.write_all(bytes)?;
    // Before the rename: after a power cut there is the old file or the new one, and never an empty one.
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    File::open(folder)?.sync_all()
}

/// The setting of a name that was typed.
pub fn require_setting(typed: &str) -> Result<&'static SettingDefinition> {
    find_setting(typed).ok_or_else(|| {
        let hint = match suggest_setting(typed) {
            Some(name) => format!("did you mean '{name}'?"),
            None => "'vellum config list --all' describes all settings".into(),
        };
        CliError::usage_error(format!("there is no setting '{}'", format_path(typed)), hint)
    })
}

/// The settings of this user and, if the user stands in a worktree, of that; and what to warn about.
pub fn load_local_settings(directory: &Path) -> Result<(Settings, Vec<String>)> {
    let mut settings = Settings::default();
    let mut warnings = Vec::new();
    let worktree = match StateDir::find_enclosing(directory) {
        Ok(state) => Some(SettingsFile::of_worktree(&state)),
        // If the command needs a worktree, it says so.
        Err(VolumeError::NoVolume(_)) => None,
        // Not an error here: what repairs the worktree, and what has nothing to do with it, must go on.
        Err(error) => {
            let error = CliError::from(error);
            warnings.push(format!("the settings of this worktree have no effect: {}", error.format_chain()));
            None
        }
    };
    for file in SettingsFile::of_user().into_iter().chain(worktree) {
        let read = file.read()?;
        if read.is_denied {
            warnings.push(format!("{} may not be read: the settings in it have no effect", file.shown()));
        }
        if !read.unknown.is_empty() {
            let names = read.unknown.join(", ");
            warnings
                .push(format!("{} has settings that are unknown and have no effect: {names}", file.shown()));
        }
        settings.add_place(file.scope, read.values);
    }
    Ok((settings, warnings))
}

/// The settings of this user and of one worktree. What programs are taken from is in `program_settings`.
pub fn load_personal_settings(state: &StateDir) -> Result<Settings> {
    let mut settings = Settings::default();
    if let Some(file) = SettingsFile::of_user() {
        settings.add_place(SettingScope::User, file.read()?.values);
    }
    settings.add_place(SettingScope::Worktree, SettingsFile::of_worktree(state).read()?.values);
    Ok(settings)
}

/// Lets the settings of this process hold that concern all that it does.
pub fn apply_settings(settings: Settings) {
    if let Some(author) = settings.get_text("author") {
        vellum_host::process::set_user_name(author);
    }
    set_local_settings(settings);
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    fn changed(text: &str, name: &str, values: Option<&[&str]>) -> String {
        let mut document: DocumentMut = text.parse().unwrap();
        let values: Option<Vec<String>> = values.map(|values| values.iter().map(|it| (*it).into()).collect());
        change_document(&mut document, find_setting(name).unwrap(), values.as_deref());
        document.to_string()
    }

    #[test]
    fn what_else_is_in_a_file_stays() {
        let text =
            "# mine\nother = 1\n\n[retention]\nkeep-last = 3 # few\n\n[sync.backup]\noptions = [\"-a\"]\n";
        let new = changed(text, "author", Some(&["ann"]));
        let new = changed(&new, "retention.keep-last", Some(&["5"]));
        let new = changed(&new, "retention.keep-tag", Some(&["v1", "v2"]));
        let new = changed(&new, "ui.color", Some(&["never"]));
        for kept in ["# mine", "other = 1", "keep-last = 5", "[sync.backup]", "keep-tag = [\"v1\", \"v2\"]"] {
            assert!(new.contains(kept), "{kept}: {new}");
        }
        assert!(new.contains("author = \"ann\"") && new.contains("[ui]\ncolor = \"never\""), "{new}");
        let gone = changed(&new, "retention.keep-last", None);
        assert!(!gone.contains("keep-last") && gone.contains("keep-tag"), "{gone}");
    }
}
