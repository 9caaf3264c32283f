//! Small files of this host: read in one go, looked at once, written in one go.
//!
//! Invariant: what gets a name is what the source had at one moment. One look does, after the reading: a file of which
//! nothing has changed since before this run began did not change while it was read. Deliberately absent: files of which
//! that cannot be said, such as those just written; they are looked at before and after (see `content`).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use vellum_host::beneath::{HeldDir, stat_file};
use vellum_host::metadata::FileStat;
use vellum_types::{FileKind, UnixTime};

use super::EntryWriter;
use super::content::BUFFER;
use super::file::EntryDestination;
use super::filling::FileFill;
use crate::error::{Result, SyncError};
use crate::model::listing::ListingEntry;
use crate::model::options::{DeltaMode, SyncOptions};
use crate::plan::SyncStep;

/// What was changed less than this before the run may have been changed within it: filesystems tell the time in ticks,
/// the longest of which take 10 ms.
const TICKS: Duration = Duration::from_millis(100);
/// Directories of which is remembered what new files are like there: those that all workers are busy in.
const REMEMBERED: usize = 16;
/// A time that no file has.
const NEVER: UnixTime = UnixTime { secs: i64::MIN, nanos: 0 };

/// The moment before which a change was made before the run.
pub(super) fn compute_begin_time() -> UnixTime {
    let before = SystemTime::now().checked_sub(TICKS).and_then(|then| then.duration_since(UNIX_EPOCH).ok());
    let before = before.unwrap_or_default();
    UnixTime { secs: before.as_secs().try_into().unwrap_or(i64::MAX), nanos: before.subsec_nanos() }
}

/// What new files are like in a directory before they are given anything: owner and mode follow from the directory, its
/// ACL and the mode that was asked for, and are the same for all of them.
#[derive(Default)]
pub(super) struct NewFileDefaults(Mutex<Vec<(HeldDir, u32, FileStat)>>);

impl NewFileDefaults {
    /// The attributes of a file that was just made in `dir` with a mode; None if it must be looked at.
    pub fn find_or_stat(
        &self,
        dir: &HeldDir,
        mode: u32,
        file: &File,
        options: &SyncOptions,
    ) -> Result<Option<FileStat>> {
        // Its own time of last change is wanted then.
        if options.preserve.atimes {
            return Ok(None);
        }
        let is = |(known, of, _): &&(HeldDir, u32, FileStat)| *of == mode && known.is_same_descriptor(dir);
        let known = || self.0.lock();
        if let Some((.., like)) = known().iter().rev().find(is) {
            return Ok(Some(*like));
        }
        let like = FileStat { mtime: NEVER, ..stat_file(file)? };
        let mut known = known();
        // The list is short because each worker writes into one directory at a time.
        if known.len() >= REMEMBERED {
            known.remove(0);
        }
        known.push((dir.clone(), mode, like));
        Ok(Some(like))
    }
}

impl EntryWriter<'_> {
    /// Writes a file in one go; None if it has to go the way of all others.
    pub(super) fn write_small_file(
        &self,
        home: EntryDestination<'_>,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<Option<Vec<String>>> {
        let writing = &self.job.options.writing;
        // With shared blocks the old version has to be opened, and a verified file is read again; both take
        // the general way.
        let shares = writing.delta == DeltaMode::Always && step.old.is_some();
        if writing.verify || shares || !self.flow.can_copy_at_once(entry) {
            return Ok(None);
        }
        let Some(from) = self.job.source.open_unchecked(*entry)? else { return Ok(None) };
        // The buffer is taken out of the thread's storage for this time, so that no call from here can find
        // it borrowed.
        let mut buffer = BUFFER.take();
        let outcome = match self.read_small_file(&from, entry, &mut buffer) {
            Ok(Some(bytes)) => self.create_small_file(home, step, entry, bytes).map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        BUFFER.set(buffer);
        outcome
    }

    /// All that the file has; None unless that is known to be what it had when it was listed.
    fn read_small_file<'b>(
        &self,
        from: &File,
        entry: &ListingEntry<'_>,
        buffer: &'b mut Vec<u8>,
    ) -> Result<Option<&'b [u8]>> {
        let size = entry.size() as usize;
        // One more, to see that there is no more.
        if buffer.len() <= size {
            buffer.resize(size + 1, 0);
        }
        let window = buffer.get_mut(..=size).unwrap_or_default();
        if !matches!(from.read_at(window, 0), Ok(count) if count == size) {
            return Ok(None);
        }
        // The attributes are read after the content. If the change time is before the run, nothing has
        // changed since, and what was read is what was listed.
        let now = stat_file(from)?;
        let as_listed = (now.kind, now.size, now.mtime) == (FileKind::File, entry.size(), entry.mtime());
        Ok(if as_listed && now.ctime < self.begun { buffer.get(..size) } else { None })
    }

    fn create_small_file(
        &self,
        home: EntryDestination<'_>,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
        bytes: &[u8],
    ) -> Result<Vec<String>> {
        let new = self.create_file(home, step, entry)?;
        let file = new.file.file()?;
        if !bytes.is_empty() {
            self.flow.write_at(&FileFill::new_in_place(file), bytes, 0)?;
        }
        self.flow.throttle_bytes(bytes.len() as u64)?;
        let failed = self.apply_file_attributes(home.dir, file, step, entry, new.like)?;
        if self.job.options.writing.fsync {
            file.sync_all().map_err(SyncError::wrap_io_error("make durable"))?;
        }
        self.finish_file(new.file, home, step, entry)?;
        Ok(failed)
    }
}
