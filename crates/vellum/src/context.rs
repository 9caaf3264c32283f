//! What all commands share: where the user stands, the terminal, and how typed words become what they mean.

pub mod mounted;
pub mod names;
pub mod paths;
pub mod place;
pub mod unpublished;

use std::path::{Path, PathBuf};

use vellum_checkout::CheckoutWorktree;
use vellum_volume::{ProgressMeter, StateDir, Volume};

use crate::error::{CliError, Result, volume_hint};
use crate::mounting::control::ControlRequest;
use crate::mounting::table;
use crate::ui::UserInterface;
use crate::ui::progress::{self, ProgressTask};
use paths::UserPaths;

/// What a command is given beside its arguments.
pub struct CommandContext {
    /// The directory that typed paths are relative to, without symlinks.
    pub cwd: PathBuf,
    /// The terminal.
    pub ui: UserInterface,
}

impl CommandContext {
    /// The context of a command that runs in `directory`.
    pub fn new(ui: UserInterface, directory: PathBuf) -> Self {
        Self { cwd: directory, ui }
    }

    /// The directory that was named, or where the process stands, without symlinks.
    pub fn directory(typed: Option<&Path>) -> Result<PathBuf> {
        let typed = typed.unwrap_or(Path::new("."));
        typed.canonicalize().map_err(CliError::io("work in", typed.display().to_string()))
    }

    /// The state directory of the worktree that the user stands in.
    pub fn state(&self) -> Result<StateDir> {
        Ok(StateDir::find(&self.cwd)?)
    }

    /// The volume of the worktree that the user stands in, with every snapshot that was made.
    pub fn volume(&self) -> Result<Volume> {
        if let Some(mounted) = self.mounted()? {
            mounted.ask(&ControlRequest::Settle)?;
            return Ok(mounted.volume);
        }
        let volume = Volume::open(&self.state()?)?;
        self.warn_of_copy(&volume)?;
        Ok(volume)
    }

    /// The worktree that the user stands in.
    pub fn worktree(&self) -> Result<CheckoutWorktree> {
        let worktree = CheckoutWorktree::open(&self.cwd)?;
        self.warn_of_copy(&worktree.volume)?;
        Ok(worktree)
    }

    /// Says that the directory is a copy of a worktree's: what only reads shows the original's history.
    fn warn_of_copy(&self, volume: &Volume) -> Result<()> {
        match volume.directory_problem()? {
            Some(problem) => {
                self.ui.warn(format!("{problem}: {}", volume_hint(&problem).unwrap_or_default()))
            }
            None => Ok(()),
        }
    }

    /// How typed paths relate to the worktree at `root`.
    pub fn paths(&self, root: &Path) -> UserPaths {
        let paths = UserPaths::new(&self.cwd, root);
        // Whoever stands in a mount has been told if the table of mounts cannot be read.
        match table::at(root) {
            Ok(Some(mount)) if mount.is_ours() => paths.showing(&mount.root),
            _ => paths,
        }
    }

    /// How typed paths relate to the worktree that the user stands in, be it checked out or mounted.
    pub fn paths_of(&self, volume: &Volume) -> Result<UserPaths> {
        let mounted = mounted::mountpoint_above(&self.cwd)?;
        Ok(self.paths(mounted.as_deref().unwrap_or(volume.state.root())))
    }

    /// A typed path of the local filesystem that need not exist.
    pub fn local_path(&self, typed: &Path) -> PathBuf {
        self.cwd.join(typed)
    }

    /// Runs a long operation: shows its progress, and hands Ctrl-C on to it.
    pub fn watch<T>(&self, task: ProgressTask, work: impl FnOnce(&ProgressMeter) -> T) -> T {
        progress::watch(&self.ui, task, work)
    }

    /// As [`Self::watch`]; with `loud`, progress is shown wherever standard error goes.
    pub fn watch_loud<T>(&self, task: ProgressTask, loud: bool, work: impl FnOnce(&ProgressMeter) -> T) -> T {
        progress::watch_loud(&self.ui, task, loud, work)
    }

    /// To be called when another command holds the worktree.
    pub fn waiting(&self) -> impl FnOnce() + '_ {
        || {
            let _ =
                self.ui.warn("another vellum command is at work in this worktree: waiting until it is done");
        }
    }
}
