//! What all commands share: where the user stands, the terminal, and how typed words become what they mean.

pub mod content;
pub mod merge_place;
pub mod mounted;
pub mod names;
pub mod near_names;
pub mod paths;
pub mod place;
pub mod unpublished;

use std::path::{Path, PathBuf};

use vellum_checkout::CheckoutWorktree;
use vellum_host::ProgressMeter;
use vellum_volume::{StateDir, Volume};

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
    pub fn resolve_dir(typed: Option<&Path>) -> Result<PathBuf> {
        let typed = typed.unwrap_or(Path::new("."));
        // Symlinks are resolved once, here, because this path is later compared with roots of worktrees and with
        // mountpoints component by component. The process itself stays where it was started: its current directory
        // is shared by all threads.
        typed.canonicalize().map_err(CliError::io_error("work in", typed.display().to_string()))
    }

    /// The state directory of the worktree that the user stands in.
    pub fn open_state_dir(&self) -> Result<StateDir> {
        Ok(StateDir::find_enclosing(&self.cwd)?)
    }

    /// The volume of the worktree that the user stands in, with every snapshot that was made.
    pub fn open_volume(&self) -> Result<Volume> {
        if let Some(mounted) = self.open_mounted_worktree()? {
            // The volume is opened on the store, which has the mount's snapshots only after they were published.
            mounted.send_request(&ControlRequest::Settle)?;
            return Ok(mounted.volume);
        }
        // Only a warning, because this command may do no more than read. Commands that would change the worktree's
        // head fail by themselves.
        let volume = Volume::open(&self.open_state_dir()?)?;
        self.warn_about_copy(&volume)?;
        Ok(volume)
    }

    /// The worktree that the user stands in.
    pub fn open_worktree(&self) -> Result<CheckoutWorktree> {
        let worktree = CheckoutWorktree::open(&self.cwd)?;
        self.warn_about_copy(&worktree.volume)?;
        Ok(worktree)
    }

    /// Warns that the directory is a copy of a worktree's: what only reads shows the original's history.
    fn warn_about_copy(&self, volume: &Volume) -> Result<()> {
        match volume.find_dir_problem()? {
            Some(problem) => {
                self.ui.print_warning(format!("{problem}: {}", volume_hint(&problem).unwrap_or_default()))
            }
            None => Ok(()),
        }
    }

    /// How typed paths relate to the worktree at `root`.
    pub fn paths_at_root(&self, root: &Path) -> UserPaths {
        let paths = UserPaths::new(&self.cwd, root);
        // In a mount, an unreadable table of mounts has been reported already.
        match table::find_mount_at(root) {
            Ok(Some(mount)) if table::is_vellum_mount(&mount) => paths.with_shown_dir(&mount.root),
            _ => paths,
        }
    }

    /// How typed paths relate to the worktree that the user stands in, be it checked out or mounted.
    pub fn paths_for_volume(&self, volume: &Volume) -> Result<UserPaths> {
        // The state directory of a mounted worktree lies elsewhere: paths relate to the mountpoint.
        let mounted = mounted::find_mountpoint_above(&self.cwd)?;
        Ok(self.paths_at_root(mounted.as_deref().unwrap_or(volume.state.root())))
    }

    /// A typed path of the local filesystem that need not exist.
    pub fn resolve_local_path(&self, typed: &Path) -> PathBuf {
        self.cwd.join(typed)
    }

    /// Runs a long operation: shows its progress, and hands Ctrl-C on to it.
    pub fn run_with_progress<T>(&self, task: ProgressTask, work: impl FnOnce(&ProgressMeter) -> T) -> T {
        progress::run_with_progress(&self.ui, task, work)
    }

    /// As [`Self::run_with_progress`]; with `loud`, progress is shown wherever standard error goes.
    pub fn run_with_forced_progress<T>(
        &self,
        task: ProgressTask,
        loud: bool,
        work: impl FnOnce(&ProgressMeter) -> T,
    ) -> T {
        progress::run_with_forced_progress(&self.ui, task, loud, work)
    }

    /// To be called when another command holds the worktree.
    pub fn lock_wait_notice(&self) -> impl FnOnce() + '_ {
        || {
            // The command waits, whether or not anybody can be told.
            let _ = self.ui.print_warning("waiting for another vellum command that uses this worktree");
        }
    }
}
