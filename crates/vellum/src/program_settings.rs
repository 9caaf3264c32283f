//! Settings that run programs: hooks, and the merge tool. Those of a worktree count only if nobody else could have written
//! them, or if the user has said that the worktree is trusted.
//!
//! Invariant: what is taken from a worktree's file was read from the file that was checked.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use vellum_host::escape::format_path;
use vellum_host::owner_names::{OwnerTable, read_owner_names};
use vellum_types::LookupResult;
use vellum_volume::StateDir;
use vellum_volume::settings::{SettingScope, SettingValues, Settings, find_setting};

use crate::context::CommandContext;
use crate::error::{CliError, Result};
use crate::settings::SettingsFile;

/// The user's setting that names trusted worktrees.
const TRUSTED: &str = "trusted-directories";
/// Set by sudo, to the user who called it.
const SUDO_UID: &str = "SUDO_UID";

/// Whether it was said already that programs of a worktree are not run.
static HAS_WARNED: AtomicBool = AtomicBool::new(false);

/// The settings that programs are taken from.
pub struct ProgramSettings {
    settings: Settings,
    ignored: Option<IgnoredPrograms>,
}

/// Programs that a worktree names, and that are not run.
struct IgnoredPrograms {
    values: SettingValues,
    foreign: ForeignOwner,
    state: PathBuf,
}

/// Whose a worktree's file of settings is, if that is somebody else.
#[derive(Debug, PartialEq, Eq)]
struct ForeignOwner {
    path: PathBuf,
    uid: u32,
}

/// What was looked at: another file, or one that was changed or moved since, differs.
#[derive(Debug, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl ProgramSettings {
    /// Those of this user and of one worktree.
    pub fn load(state: &StateDir) -> Result<Self> {
        let user = SettingsFile::of_user().map(|file| file.read()).transpose()?.unwrap_or_default();
        let mut settings = Settings::default();
        settings.add_place(SettingScope::User, user.values);
        let (mut values, foreign) = read_checked(state)?;
        let Some(foreign) = foreign.filter(|_| !is_trusted(&settings, state.path())) else {
            settings.add_place(SettingScope::Worktree, values);
            return Ok(Self { settings, ignored: None });
        };
        let mut ignored = values.clone();
        ignored.retain(|name, _| is_of_programs(name));
        values.retain(|name, _| !is_of_programs(name));
        settings.add_place(SettingScope::Worktree, values);
        let state = state.path().to_path_buf();
        Ok(Self { settings, ignored: Some(IgnoredPrograms { values: ignored, foreign, state }) })
    }

    /// The settings that count.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether the worktree has a program for this setting that is not run.
    pub fn is_ignored(&self, setting: &str) -> bool {
        self.ignored.as_ref().is_some_and(|ignored| ignored.values.contains_key(setting))
    }

    /// Warns, once in a process, if the worktree has a program for this setting that is not run.
    pub fn warn_if_ignored(&self, setting: &str, context: &CommandContext) -> Result<()> {
        let Some(ignored) = self.ignored.as_ref().filter(|ignored| ignored.values.contains_key(setting))
        else {
            return Ok(());
        };
        if HAS_WARNED.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let IgnoredPrograms { foreign: ForeignOwner { path, uid }, state, .. } = ignored;
        let directory = match state.file_name() {
            Some(name) if name == vellum_volume::state::STATE_DIR => state.parent().unwrap_or(state),
            _ => state,
        };
        context.ui.print_warning(format!(
            "{setting} of this worktree is not run: {} belongs to another user, {}",
            shown(path),
            describe_user(*uid)
        ))?;
        context.ui.print_note(format!(
            "'vellum config set --user {TRUSTED} {}' trusts it, and all below that directory",
            shown(directory)
        ))
    }
}

/// Whether a setting is about programs that are run.
fn is_of_programs(name: &str) -> bool {
    name.starts_with("hooks.") || name.starts_with("merge.tool")
}

/// What the file of a worktree says, and who else could have written that.
fn read_checked(state: &StateDir) -> Result<(SettingValues, Option<ForeignOwner>)> {
    let file = SettingsFile::of_worktree(state);
    loop {
        let before = identify(file.path())?;
        let foreign = match &before {
            Some(_) => find_foreign_owner(&[state.path(), file.path()])?,
            None => None,
        };
        let values = file.read()?.values;
        // By its time of change: putting another file in its place, and the first one back, does not go unnoticed.
        if identify(file.path())? == before {
            return Ok((values, foreign));
        }
    }
}

fn identify(path: &Path) -> Result<Option<FileIdentity>> {
    let found = path.metadata().none_if_missing().map_err(CliError::io_error("look at", shown(path)))?;
    Ok(found.map(|found| FileIdentity {
        device: found.dev(),
        inode: found.ino(),
        changed: (found.ctime(), found.ctime_nsec()),
    }))
}

/// The first of these that belongs to somebody else; of a symlink, the link and what it leads to.
fn find_foreign_owner(paths: &[&Path]) -> Result<Option<ForeignOwner>> {
    let own = rustix::process::geteuid().as_raw();
    let caller = std::env::var(SUDO_UID).ok().and_then(|text| text.parse().ok()).filter(|_| own == 0);
    for path in paths {
        for found in [path.symlink_metadata(), path.metadata()] {
            let uid = found.map_err(CliError::io_error("look at", shown(path)))?.uid();
            if !is_own(uid, own, caller) {
                return Ok(Some(ForeignOwner { path: path.to_path_buf(), uid }));
            }
        }
    }
    Ok(None)
}

/// Whether what belongs to a user is as good as one's own. Root can change everything anyway; whoever called sudo runs the
/// command.
fn is_own(uid: u32, own: u32, caller: Option<u32>) -> bool {
    uid == own || uid == 0 || Some(uid) == caller
}

/// Whether the user has named the directory, or one above it.
fn is_trusted(settings: &Settings, state: &Path) -> bool {
    let Some(setting) = find_setting(TRUSTED) else { return false };
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let state = real(state);
    settings.find_value(setting).values.iter().any(|named| state.starts_with(real(Path::new(named))))
}

fn describe_user(uid: u32) -> String {
    match read_owner_names(OwnerTable::Users).get(&uid) {
        Some(name) => format!("'{}'", format_path(name)),
        None => format!("user {uid}"),
    }
}

fn shown(path: &Path) -> String {
    format_path(path.as_os_str().as_encoded_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_runs_what_the_caller_of_sudo_owns_and_nobody_else_does() {
        assert!(is_own(1000, 1000, None) && is_own(0, 1000, None));
        assert!(!is_own(1001, 1000, None) && !is_own(1000, 0, None));
        assert!(is_own(1000, 0, Some(1000)) && !is_own(1001, 0, Some(1000)));
    }
}
