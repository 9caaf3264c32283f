//! Small files of this host: read by one call, checked once, written by one call.
//!
//! Invariant: a file is only renamed with content that the source had at one moment. One check after reading suffices:
//! a file whose change time is before the start of this run did not change while it was read. Deliberately absent:
//! files with a later change time, which are checked before and after reading (see `content`).

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

/// A change this shortly before the run may have happened during it: filesystems store times in ticks of up to 10 ms.
const TICKS: Duration = Duration::from_millis(100);
/// How many directories' initial attributes are remembered: about as many as all threads work in.
const REMEMBERED: usize = 16;
/// A time that no file has.
const NEVER: UnixTime = UnixTime { secs: i64::MIN, nanos: 0 };

/// Changes with a time before this one happened before the run.
pub(super) fn compute_begin_time() -> UnixTime {
    let before = SystemTime::now().checked_sub(TICKS).and_then(|then| then.duration_since(UNIX_EPOCH).ok());
    let before = before.unwrap_or_default();
    UnixTime { secs: before.as_secs().try_into().unwrap_or(i64::MAX), nanos: before.subsec_nanos() }
}

/// The initial attributes of new files in a directory: owner and mode follow from the directory, its ACL and the mode
/// of creation, and are the same for all files.
#[derive(Default)]
pub(super) struct NewFileDefaults(Mutex<Vec<(HeldDir, u32, FileStat)>>);

impl NewFileDefaults {
    /// The attributes of a file that was just created in `dir` with a mode; None if they have to be read.
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
    /// Writes a file with one call; None if it has to be written in the general way.
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

    /// Reads the whole file; None unless its content is known to be that of the listing.
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
