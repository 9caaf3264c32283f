//! The fork in which a try runs: how it is made, sealed and given up.

use std::path::{Path, PathBuf};
use std::time::Duration;

use vellum_checkout::CheckoutWorktree;
use vellum_fuse::MountError;
use vellum_library::live;
use vellum_types::{ErrorKind, SnapshotId};
use vellum_volume::{StateDir, Volume, VolumeError};

use super::copy::{check_nothing_mounted, copy_worktree, create_copy_dir, delete_copy, seal_copy};
use super::note::{TryNote, TryNotes};
use crate::commands::mount::{self, StartingMount};
use crate::context::CommandContext;
use crate::context::mounted::{MountProcess, MountedWorktree};
use crate::error::Result;
use crate::mounting::control::ControlRequest;
use crate::mounting::daemon::DaemonStart;
use crate::mounting::{MountingError, table};
use crate::ui::json::ProblemJson;
use crate::ui::progress::ProgressTask;

/// How often a mount that is in use is tried again, and how long after.
const BUSY_TRIES: u32 = 10;
const BUSY_PAUSE: Duration = Duration::from_millis(20);

pub(super) const SCANNING: ProgressTask = ProgressTask { first: "Scanning", verb: "Recording", item: "file" };

/// A worktree that can be tried in.
pub enum TryOrigin {
    /// Plain files.
    Directory(Box<CheckoutWorktree>),
    /// A mount.
    Mount(MountProcess),
}

impl TryOrigin {
    /// The worktree that the user stands in.
    pub fn open(context: &CommandContext) -> Result<Self> {
        Ok(match context.find_mount_process()? {
            // Its process does everything: the volume need not be opened.
            Some(process) => Self::Mount(process),
            None => Self::Directory(Box::new(context.open_worktree()?)),
        })
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        match self {
            Self::Directory(worktree) => worktree.root_path(),
            Self::Mount(process) => &process.mountpoint,
        }
    }

    /// Its name.
    pub fn worktree(&self) -> &str {
        match self {
            Self::Directory(worktree) => &worktree.volume.worktree.worktree,
            Self::Mount(process) => &process.worktree,
        }
    }

    /// The state directory of the volume.
    pub fn state(&self) -> Result<StateDir> {
        match self {
            Self::Directory(worktree) => Ok(worktree.volume.state.clone()),
            Self::Mount(process) => process.state_dir(),
        }
    }

    /// Makes the fork that a note names, with what the worktree holds now. Returns the snapshot that it begins with: what no
    /// snapshot held is recorded in one first.
    pub fn make_fork(&self, fork: &mut TryFork<'_>) -> Result<SnapshotId> {
        create_copy_dir(&mut fork.note, &fork.notes)?;
        let note = &fork.note;
        let saving = format!("before the try of {}", note.format_command());
        match self {
            Self::Directory(worktree) => fork_directory(worktree, note, saving, fork.context),
            Self::Mount(process) => fork_mount(process, note, saving),
        }
    }
}

fn fork_directory(
    worktree: &CheckoutWorktree,
    note: &TryNote,
    saving: String,
    context: &CommandContext,
) -> Result<SnapshotId> {
    // The snapshot and the copy have to show the same state, so that no other command of Vellum may change the worktree
    // in between.
    let _lock = worktree.lock_worktree(context.lock_wait_notice())?;
    // A fork of a merge that is under way would have its open conflicts as files, and no note of the merge.
    worktree.volume.check_no_merge()?;
    let saved = context.run_with_progress(SCANNING, |meter| worktree.snapshot_if_changed(saving, meter))?;
    if note.copy.is_some() {
        let report = copy_worktree(worktree, note, saved, context)?;
        let problems: Vec<_> = report.problems.iter().map(ProblemJson::from).collect();
        context.ui.print_problems(&problems)?;
    } else {
        live::create_live_worktree(&worktree.volume, &note.name, Some(saved))?;
    }
    Ok(saved)
}

fn fork_mount(process: &MountProcess, note: &TryNote, saving: String) -> Result<SnapshotId> {
    // Pages that programs have written, and the kernel has not handed over yet, belong into the fork.
    process.sync_filesystem()?;
    let status = process.send_request(&ControlRequest::Status)?;
    let saved = match status.head {
        Some(head) if !status.changed => Some(head),
        Some(_) | None => {
            let request = ControlRequest::MergeSnapshot { note: saving, parents: Vec::new() };
            process.send_request(&request)?.snapshot
        }
    };
    let saved = saved.and_then(|id| id.parse().ok());
    let base = saved.ok_or_else(|| MountingError::NoAnswer(process.mountpoint.clone()))?;
    // What others write between these requests is in the fork, too, and in the worktree: a merge finds both alike.
    process.send_request(&ControlRequest::Fork { name: note.name.clone() })?;
    Ok(base)
}

/// A try that was begun, with what is left of it.
pub struct TryFork<'c> {
    /// Its note.
    pub note: TryNote,
    notes: TryNotes,
    /// The state directory of the volume.
    state: StateDir,
    context: &'c CommandContext,
}

impl<'c> TryFork<'c> {
    /// The try of a note.
    pub fn new(state: &StateDir, note: TryNote, context: &'c CommandContext) -> Self {
        Self { note, notes: TryNotes::new(state), state: state.clone(), context }
    }

    /// The state directory of the volume.
    pub fn state(&self) -> &StateDir {
        &self.state
    }

    /// Opens the volume, to read what is in the store.
    pub fn open_volume(&self) -> Result<Volume> {
        Ok(Volume::open(&self.state)?)
    }

    /// Where the fork is mounted.
    pub fn mountpoint(&self) -> PathBuf {
        self.notes.mountpoint(&self.note.name)
    }

    /// Writes the note.
    pub fn write_note(&self) -> Result<()> {
        self.notes.write_note(&self.note)
    }

    /// Starts the process that is to mount the fork: on word, it can open the volume before the fork exists.
    pub fn start_mount(&self, start: DaemonStart) -> Result<StartingMount> {
        let mut request = mount::Args::for_worktree(self.state.root(), &self.mountpoint(), &self.note.name);
        // Programs that root starts as other users must see it where they saw the worktree; others may not allow that.
        request.allow_other = rustix::process::geteuid().is_root();
        StartingMount::start(&request, start, self.context)
    }

    /// The process that serves the fork, with the volume. A process that died is started again: it finds all that was written.
    fn open(&self) -> Result<MountedWorktree> {
        if let Ok(Some(process)) = MountProcess::find_at(&self.mountpoint()) {
            return process.open_volume();
        }
        self.start_mount(DaemonStart::Now)?.wait_until_ready()?;
        let process = MountProcess::find_at(&self.mountpoint())?;
        process.ok_or_else(|| MountingError::NotMounted(self.mountpoint()))?.open_volume()
    }

    /// Records what the command left as a snapshot in the store, unless that was done.
    pub fn seal(&mut self) -> Result<SnapshotId> {
        if let Some(result) = self.note.result_id() {
            return Ok(result);
        }
        let result = match &self.note.copy {
            Some(place) => seal_copy(place, &self.note.name, self.snapshot_note(), self.context)?,
            None => self.seal_mount()?,
        };
        // Written down at once: a run that is repeated after a failure takes this result, and seals nothing a second
        // time.
        self.note.result = Some(result.to_string());
        self.write_note()?;
        Ok(result)
    }

    fn seal_mount(&self) -> Result<SnapshotId> {
        let mounted = self.open()?;
        // As with the worktree before: pages that the command wrote may still be with the kernel only.
        mounted.sync_filesystem()?;
        let status = mounted.send_request(&ControlRequest::Status)?;
        let last = match status.head {
            Some(head) if !status.changed => Some(head),
            Some(_) | None => {
                let note = self.snapshot_note();
                // The fork has taken over what its worktree leaves out of snapshots.
                let request =
                    ControlRequest::Snapshot { note, tags: Vec::new(), paths: Vec::new(), exclusions: None };
                mounted.send_request(&request)?.snapshot
            }
        };
        // What is applied or compared later is read from the store, with no mount.
        mounted.send_request(&ControlRequest::Settle)?;
        let result = last.and_then(|id| id.parse().ok());
        Ok(result.ok_or_else(|| MountingError::NoAnswer(self.mountpoint()))?)
    }

    /// What is said of the snapshot of the result.
    pub fn snapshot_note(&self) -> String {
        format!("try: {}", self.note.format_command())
    }

    /// Ends the mount, if there is one; what was written is put into the store.
    pub fn unmount(&self) -> Result<()> {
        // A copy is plain files, and was never mounted.
        if self.note.copy.is_some() {
            return Ok(());
        }
        let mountpoint = self.mountpoint();
        let process = match MountProcess::find_at(&mountpoint) {
            Ok(Some(process)) => process,
            // Its process is gone.
            Ok(None) | Err(_) => return self.detach(),
        };
        // Asked before the unmount: afterwards the process may be gone before it could be asked how it went.
        let mut end = process.await_end()?;
        self.unmount_or_detach()?;
        let answer = loop {
            match end.poll_reply(Some(BUSY_PAUSE)) {
                Ok(None) => {}
                Ok(Some(answer)) => break answer,
                Err(error) => return Err(error),
            }
        };
        match answer.failure {
            None => Ok(()),
            Some(reason) => {
                let message = format!("the try {} is not whole in the store: {reason}", self.note.name);
                let hint = "nothing is lost: run the command again when the store can be reached";
                Err(MountingError::Daemon { kind: ErrorKind::Io, message, hint: Some(hint.into()) }.into())
            }
        }
    }

    fn unmount_or_detach(&self) -> Result<()> {
        let mountpoint = self.mountpoint();
        for _ in 0..BUSY_TRIES {
            match vellum_fuse::unmount_filesystem(&mountpoint) {
                // What was closed a moment ago may count as open a moment longer.
                Err(MountError::Busy(_)) => std::thread::sleep(BUSY_PAUSE),
                done => return Ok(done.map_err(MountingError::from)?),
            }
        }
        self.detach()
    }

    /// Takes away what is mounted, whoever uses it.
    fn detach(&self) -> Result<()> {
        let mountpoint = self.mountpoint();
        // What is mounted there last hides what was mounted before.
        while table::find_mount_at(&mountpoint)?.is_some() {
            vellum_fuse::detach_mount(&mountpoint).map_err(MountingError::from)?;
        }
        Ok(())
    }

    /// Gives the fork up with all that is in it: afterwards it is neither mounted nor on the list.
    pub fn discard(&mut self) -> Result<()> {
        if let Some(place) = &self.note.copy {
            // As long as it is refused, the try stays what it is.
            check_nothing_mounted(place)?;
            self.remove_worktree()?;
            if !delete_copy(place)? {
                let message = format!("{} is not the copy that was made: it stays", place.format_path());
                self.context.ui.print_warning(message)?;
            }
            return self.remove_note();
        }
        let removed = match MountProcess::find_at(&self.mountpoint()) {
            // Its process removes the worktree, and what is left of it on the disk after its answer.
            Ok(Some(process)) => process.send_request(&ControlRequest::Discard).ok(),
            Ok(None) | Err(_) => None,
        };
        self.detach()?;
        // If the process died, or could not do it, why it cannot be done is found here.
        if removed.is_none_or(|answer| answer.failure.is_some()) {
            self.remove_worktree()?;
        }
        self.remove_note()
    }

    fn remove_worktree(&self) -> Result<()> {
        let volume = Volume::open(&self.state)?;
        match live::remove_live_worktree(&volume, &self.note.name) {
            Ok(()) => {}
            // It was never made, or a run that was killed has removed it; or a daemon removes the folder at the same time.
            Err(live::OpenError::Volume(VolumeError::NoSuchRef { .. })) => {
                live::remove_live_state_dir(&live::live_state_dir(&volume, &self.note.name))?;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn remove_note(&mut self) -> Result<()> {
        // Left by one that was killed.
        self.note.remove_state_view();
        self.notes.remove_note(&self.note.name)
    }

    /// Makes the fork an ordinary worktree of this name.
    pub fn keep_as(&mut self, name: &str) -> Result<()> {
        // The worktree gets its new name only after its process is gone, which knows it by the old one.
        self.unmount()?;
        if name != self.note.name {
            live::rename_worktree(&Volume::open(&self.state)?, &self.note.name, name)?;
        }
        self.remove_note()
    }
}
