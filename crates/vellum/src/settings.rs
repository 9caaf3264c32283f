//! The settings of this user and this worktree: TOML files, in which users write, too.
//!
//! Invariant: a file that was written for a newer version, or that cannot be read whole, is refused and stays as it is. What
//! else is in a file stays when a setting changes, with its comments.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use toml_edit::{Array, DocumentMut, ImDocument, Item, Table, value};
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
/// What to do with a file in which something is wrong that no command changes.
const EDIT_HINT: &str = "edit the file there";

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
    /// Whether the setting that is to be changed has a value that it cannot have.
    is_replaced_wrong: bool,
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
        self.read_document(&document, None, &mut read)?;
        Ok(read)
    }

    /// What is wrong with the file as a whole, if anything is: no setting in it has an effect then.
    pub fn find_problem(&self) -> Option<CliError> {
        self.read().err()
    }

    /// The scope of the settings in it.
    pub fn scope(&self) -> SettingScope {
        self.scope
    }

    fn read_document(
        &self,
        document: &ImDocument<String>,
        replaced: Option<&SettingDefinition>,
        read: &mut ReadSettings,
    ) -> Result<()> {
        let source = SettingsSource { file: self, text: document.raw(), replaced };
        for (name, item) in document.as_table() {
            if name != VERSION_KEY && name != PROFILE_SECTION {
                source.read_item(name, item, read)?;
            }
        }
        Ok(())
    }

    fn parse(&self) -> Result<ImDocument<String>> {
        let text = std::fs::read_to_string(&self.path).none_if_missing();
        let text = text.map_err(CliError::io_error("read", self.shown()))?.unwrap_or_default();
        let document = ImDocument::parse(text.clone()).map_err(|error| {
            let place = self.describe_place(&text, error.span());
            CliError::usage_error(format!("{place}: {}", format_path(error.message())), EDIT_HINT)
        })?;
        match document.get(VERSION_KEY).map(Item::as_integer) {
            None | Some(Some(VERSION)) => Ok(document),
            Some(_) => Err(CliError::usage_error(
                format!("{} was written for another version of Vellum", self.shown()),
                "use that version; the file stays as it is",
            )),
        }
    }

    /// The file, and the line of it in which something is.
    fn describe_place(&self, text: &str, span: Option<Range<usize>>) -> String {
        let Some(before) = span.and_then(|span| text.get(..span.start)) else { return self.shown() };
        format!("{}, line {}", self.shown(), before.matches('\n').count() + 1)
    }

    /// Sets a setting whose values were checked, or unsets it. Returns whether it was another one before. What it said before
    /// may be wrong; if anything else is, the file stays as it is.
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
        let document = self.parse()?;
        let mut before = ReadSettings::default();
        self.read_document(&document, Some(setting), &mut before)?;
        if !before.is_replaced_wrong && before.values.get(setting.name).map(Vec::as_slice) == values {
            return Ok(false);
        }
        let mut document = document.into_mut();
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

/// The content of a file of settings that is being read.
struct SettingsSource<'a> {
    file: &'a SettingsFile,
    text: &'a str,
    /// The setting that is about to change: what it says is allowed to be wrong.
    replaced: Option<&'a SettingDefinition>,
}

impl SettingsSource<'_> {
    fn read_item(&self, name: &str, item: &Item, read: &mut ReadSettings) -> Result<()> {
        let place = || self.file.describe_place(self.text, item.span());
        match (find_setting(name), item.as_table_like()) {
            (Some(setting), _) => match self.check_item(setting, item) {
                Ok(values) => drop(read.values.insert(name.into(), values)),
                Err(_) if self.replaced.is_some_and(|replaced| replaced.name == name) => {
                    read.is_replaced_wrong = true;
                }
                Err(why) => {
                    let scope = self.file.scope;
                    // One that may not be there at all cannot be unset by command either.
                    let hint = match setting.may_be_set_in(scope) {
                        true => format!("'vellum config unset --{scope} {name}' removes it"),
                        false => EDIT_HINT.into(),
                    };
                    return Err(CliError::usage_error(format!("{}: {why}", place()), hint));
                }
            },
            // A section, such as [retention].
            (None, Some(section)) if !name.contains('.') => {
                for (key, item) in section.iter() {
                    self.read_item(&format!("{name}.{key}"), item, read)?;
                }
            }
            (None, None) if SETTINGS.iter().any(|setting| setting.name.starts_with(&format!("{name}."))) => {
                let message = format!("{}: {name} is a section, and not a setting", place());
                return Err(CliError::usage_error(message, EDIT_HINT));
            }
            (None, _) => read.unknown.push(format_path(name)),
        }
        Ok(())
    }

    /// The values of a setting, or why it cannot have them.
    fn check_item(&self, setting: &SettingDefinition, item: &Item) -> Result<Vec<String>, String> {
        let SettingDefinition { name, .. } = setting;
        if !setting.may_be_set_in(self.file.scope) {
            return Err(format!("{name} cannot be set for a {}", self.file.scope));
        }
        let values =
            read_values(item, setting).ok_or_else(|| format!("{name} takes {}", setting.describe_kind()))?;
        setting.check_values(&values)?;
        Ok(values)
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
        // In quotes, the whole name can be a key, too.
        table.remove(setting.name);
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

/// What becomes of the settings if something is wrong with one of the files that they are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrongSettings {
    /// They are refused.
    Refuse,
    /// Those in that file have no effect: for commands that mend the file, or say what is wrong with it.
    LeaveOut,
}

/// The settings of this user and, if the user stands in a worktree, of that; and what to warn about.
pub fn load_local_settings(directory: &Path, wrong: WrongSettings) -> Result<(Settings, Vec<String>)> {
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
        let read = match (file.read(), wrong) {
            (Err(CliError::Usage { .. }), WrongSettings::LeaveOut) => continue,
            (read, WrongSettings::LeaveOut | WrongSettings::Refuse) => read?,
        };
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
