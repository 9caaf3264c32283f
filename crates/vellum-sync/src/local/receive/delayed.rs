//! New files that are complete, and are renamed to their final names together at the end (`--delay-updates`).
//!
//! Invariant: they are in a hidden directory of the run, or, on another filesystem than the destination's root, under
//! temporary names in their own directories: a killed run leaves only files that the next one removes. Deliberately
//! absent: the time of the renames (see `transfer`).

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use vellum_host::beneath::{HeldDir, HiddenDir, ReplacePolicy, new_temp_name};
use vellum_types::UnixTime;

use super::EntryWriter;
use super::file::map_name_conflict;
use super::partial::PartialFile;
use super::staging::WrittenFile;
use crate::error::Result;
use crate::model::listing::ListingEntry;
use crate::plan::SyncStep;

/// The delayed files of a run.
pub(crate) struct DelayedNames {
    root: HeldDir,
    /// The root's modification time before the hidden directory was created.
    root_changed: UnixTime,
    dir: HeldDir,
    number: AtomicU64,
    state: Mutex<DelayedState>,
}

struct DelayedState {
    /// None: the delayed files are being renamed, and further files get their names at once.
    hidden: Option<HiddenDir>,
    waiting: Vec<WaitingFile>,
}

/// A delayed file.
pub(crate) struct WaitingFile {
    pub step: SyncStep,
    place: WaitingPlace,
    /// It was written as a partial file, which the next run would have found.
    is_partial: bool,
}

/// The location of a delayed file.
enum WaitingPlace {
    /// In the hidden directory, under this name.
    Hidden(Vec<u8>),
    /// In its own directory, under this name.
    Beside(Vec<u8>),
}

impl DelayedNames {
    /// Creates the hidden directory.
    pub fn new(root: &HeldDir) -> Result<Self> {
        // Creating and removing the hidden directory changes the time of the root, which must not look like a
        // change by this run.
        let root_changed = root.stat_self()?.mtime;
        let hidden = root.create_hidden_dir()?;
        Ok(Self {
            root: root.clone(),
            root_changed,
            dir: hidden.dir().clone(),
            number: AtomicU64::new(0),
            state: Mutex::new(DelayedState { hidden: Some(hidden), waiting: Vec::new() }),
        })
    }

    pub(super) fn is_open(&self) -> bool {
        self.state().hidden.is_some()
    }

    /// Ends the delay and returns the delayed files; further files get their names at once.
    pub fn close(&self) -> (Option<HiddenDir>, Vec<WaitingFile>) {
        let mut state = self.state();
        // No step is executed at this moment, so no file can be added afterwards.
        (state.hidden.take(), std::mem::take(&mut state.waiting))
    }

    /// Removes the hidden directory; with `keeps_time` the root's modification time is restored.
    pub fn remove(&self, hidden: Option<HiddenDir>, keeps_time: bool) {
        let was_there = hidden.is_some();
        drop(hidden);
        if was_there && keeps_time {
            // If steps change the root, its own step sets its time later.
            let _ = self.root.hold_self().set_mtime(self.root_changed);
        }
    }

    fn state(&self) -> MutexGuard<'_, DelayedState> {
        self.state.lock()
    }

    /// Moves a file to its temporary location; None if it is on another filesystem than its directory.
    fn put(&self, written: &mut WrittenFile, dir: &HeldDir) -> Result<Option<WaitingPlace>> {
        let name = self.number.fetch_add(1, Ordering::Relaxed).to_string().into_bytes();
        match written.commit_in(&self.dir, &name, ReplacePolicy::Never) {
            // The place of the file is on another filesystem than the root (a mount below the destination). A
            // temporary name beside the place is on the right one.
            Err(error) if error.errno() == Some(Errno::XDEV) => {}
            put => return Ok(put.map(|()| Some(WaitingPlace::Hidden(name)))?),
        }
        let name = new_temp_name()?;
        match written.commit_in(dir, &name, ReplacePolicy::Never) {
            // The file was written in a staging directory on a third filesystem, and has to be copied.
            Err(error) if error.errno() == Some(Errno::XDEV) => Ok(None),
            put => Ok(put.map(|()| Some(WaitingPlace::Beside(name)))?),
        }
    }
}

impl EntryWriter<'_> {
    /// Delays a file.
    pub(super) fn delay(
        &self,
        delayed: &DelayedNames,
        mut written: WrittenFile,
        dir: &HeldDir,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<()> {
        let is_partial = matches!(written, WrittenFile::Partial(_));
        let place = match delayed.put(&mut written, dir)? {
            Some(place) => place,
            None => {
                let mut copy =
                    WrittenFile::Staged(self.copy_staged_file(written.file()?, dir, step, entry)?);
                let put = delayed.put(&mut copy, dir)?;
                written.discard();
                put.ok_or(crate::error::SyncError::Taken)?
            }
        };
        delayed.state().waiting.push(WaitingFile { step: *step, place, is_partial });
        Ok(())
    }

    /// Keeps the old version, and renames a delayed file to its final name in `dir`.
    pub fn name_waiting(&self, file: &WaitingFile, dir: &HeldDir, entry: &ListingEntry<'_>) -> Result<()> {
        let named = self.keep_backup(dir, &file.step, entry).and_then(|()| {
            let Some((from, name)) = self.where_it_waits(file, dir) else { return Ok(()) };
            match file.step.old {
                Some(_) => from.rename(name, dir, entry.name()),
                // The listing had nothing there, so the name must still be free: something that appeared since
                // then is not replaced.
                None => from.rename_no_replace(name, dir, entry.name()),
            }
            .map_err(map_name_conflict)?;
            let hold = || dir.hold_node(entry.name()).ok();
            self.times.ensure_times_after_rename(hold, entry, self.job.options);
            Ok(())
        });
        if named.is_err()
            && let WaitingPlace::Beside(name) = &file.place
        {
            let _ = dir.unlink(name);
        }
        named
    }

    /// Moves a delayed file that will not be renamed to where the next run finds it, or removes it.
    pub fn give_up_waiting(&self, file: &WaitingFile, dir: &HeldDir, entry: &ListingEntry<'_>) {
        let Some((from, name)) = self.where_it_waits(file, dir) else { return };
        let kept = file.is_partial
            && PartialFile::resolve_location(dir, entry, &self.job.options.writing, &self.staging)
                .is_ok_and(|place| from.rename(name, &place.dir, &place.name).is_ok());
        if !kept {
            // What cannot be removed is swept by the next run.
            let _ = from.unlink(name);
        }
    }

    fn where_it_waits<'f>(
        &'f self,
        file: &'f WaitingFile,
        dir: &'f HeldDir,
    ) -> Option<(&'f HeldDir, &'f [u8])> {
        match &file.place {
            WaitingPlace::Hidden(name) => self.delayed.as_ref().map(|delayed| (&delayed.dir, &name[..])),
            WaitingPlace::Beside(name) => Some((dir, name)),
        }
    }
}
