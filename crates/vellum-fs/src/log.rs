//! The write log: local segments that hold file data not yet published.
//!
//! Data is appended in frames, and what names it, an extent, is committed afterwards. Invariants: data never changes
//! where it stands; a segment is removed only when nothing names it and nothing is about to; after a failed flush
//! nothing more is taken. A frame that was not written whole is never named. Deliberately absent: overwriting in
//! place, since after a power cut newer bytes could then stand under an older state.

mod frame;
mod hooks;
mod room;
mod segment;
mod share;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use quick_cache::sync::Cache;
use vellum_live::folder::{EngineFile, EngineFolder, LocalFolder};

use crate::error::{FsError, Result};
use frame::{HEADER, encode_frame_header, frame_len};
use room::LogRoom;
use segment::{LogSegment, OpenLogSegment, format_segment_name, parse_segment_number, wrap_io_error};

pub use hooks::LogHooks;
pub use room::{LogDisk, LogUsage, NEARLY_FULL, PublishAttempt};

/// Bytes at which a segment is closed: few files, and little that waits for its last reader.
const SEGMENT_SIZE: u64 = 64 << 20;
/// A quarter of the limit at most, so that something can be freed before the limit is reached.
const SEGMENTS_MIN: u64 = 4;
/// Most bytes of one frame's data: what the longest extent names.
pub(crate) const FRAME_MAX: usize = vellum_types::limits::EXTENT_MAX as usize;
/// Segments that may be neither flushed nor written to: what recovery has to read.
const UNFLUSHED_MAX: usize = 3;
/// Files kept open for reading.
const OPEN_FILES: usize = 64;

/// The segments.
pub struct WriteLog {
    folder: Arc<dyn EngineFolder>,
    state: Mutex<WriteLogState>,
    room: LogRoom,
    /// Frames that were written whole.
    written: AtomicU64,
    /// How many of these are durable. Held while flushing, so that all who wait share one flush.
    flushed: Mutex<u64>,
    /// A flush failed: what is in memory may never have reached the disk.
    poisoned: AtomicBool,
    files: Cache<u64, Arc<dyn EngineFile>>,
}

struct WriteLogState {
    segments: BTreeMap<u64, Arc<LogSegment>>,
    /// Where frames go.
    current: Option<Arc<OpenLogSegment>>,
    /// Full segments that are not flushed yet, oldest first.
    full: Vec<Arc<OpenLogSegment>>,
    /// Number of the next segment.
    next: u64,
    /// How often it was asked which segments are sealed.
    generation: u64,
}

/// Where a piece of data stands. While this is held, its segment stays, whether anything names it or not.
#[derive(Debug)]
pub struct AppendedData {
    /// Number of the segment.
    pub segment: u64,
    /// Offset of its first byte in the segment.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    pinned: Arc<LogSegment>,
}

/// Segments that nothing is written to any more, as of some moment.
#[derive(Debug)]
pub struct SealedSegments {
    segments: Vec<u64>,
    generation: u64,
}

/// A frame's place before it is written.
struct ReservedFrame {
    open: Arc<OpenLogSegment>,
    position: u64,
    pinned: Arc<LogSegment>,
}

impl WriteLog {
    /// Opens the log in a directory, which is made if it is missing. Writers wait while it takes more than `limit`
    /// bytes, once somebody frees them ([`Self::set_pressure_hook`]).
    pub fn open(dir: &Path, limit: u64) -> Result<Self> {
        let folder = LocalFolder::open(dir).map_err(wrap_io_error("open", dir.display().to_string()))?;
        Self::open_in_folder(Arc::new(folder), limit)
    }

    /// The same in a folder that is open already.
    pub fn open_in_folder(folder: Arc<dyn EngineFolder>, limit: u64) -> Result<Self> {
        let mut segments = BTreeMap::new();
        for name in folder.list_files().map_err(wrap_io_error("list", folder.describe_file("")))? {
            // Files with other names do not belong to the log, and stay.
            if let Some(number) = parse_segment_number(&name) {
                segments.insert(number, Arc::new(LogSegment::recover_segment(&*folder, number)?));
            }
        }
        let used = segments.values().map(|segment| segment.len.load(Ordering::Relaxed)).sum();
        // Recovered segments are never appended to: their end may be torn, and what is behind it unknown.
        let next = segments.keys().next_back().map_or(0, |last| last + 1);
        let state = WriteLogState { segments, current: None, full: Vec::new(), next, generation: 0 };
        Ok(Self {
            folder,
            state: Mutex::new(state),
            room: LogRoom::new(used, limit),
            written: AtomicU64::new(0),
            flushed: Mutex::new(0),
            poisoned: AtomicBool::new(false),
            files: Cache::new(OPEN_FILES),
        })
    }

    /// Appends data of at most [`FRAME_MAX`] bytes. Waits while the log is full; `ENOSPC` if a disk is, and nothing can be
    /// freed.
    pub fn append_data(&self, data: &[u8]) -> Result<AppendedData> {
        self.room.wait_for_log_space(frame_len(data.len() as u64))?;
        // Whoever appends pays for the flush, so that a fast writer cannot leave more behind than recovery can read
        // in short time.
        if self.state.lock().full.len() > UNFLUSHED_MAX {
            self.flush_full_segments()?;
        }
        self.append_without_waiting(data)
    }

    /// The same without waiting, for a few bytes within a transaction.
    pub(crate) fn append_without_waiting(&self, data: &[u8]) -> Result<AppendedData> {
        let ReservedFrame { open, position, pinned } = self.reserve_frame(data.len() as u64)?;
        let segment = pinned.number;
        let done = open.write_frame(&encode_frame_header(segment, position, data), data, position);
        // Also if the write has failed: a flush must not wait for this frame for good.
        open.writing.fetch_sub(1, Ordering::Release);
        let appended = AppendedData { segment, offset: position + HEADER, len: data.len() as u64, pinned };
        done?;
        // After the write: a flush that covers this count covers the frame.
        self.written.fetch_add(1, Ordering::AcqRel);
        Ok(appended)
    }

    /// Takes a place for a frame.
    fn reserve_frame(&self, len: u64) -> Result<ReservedFrame> {
        // What is appended now could never be made durable.
        if self.poisoned.load(Ordering::Acquire) {
            return Err(self.failed_log_error());
        }
        let need = frame_len(len);
        let mut state = self.state.lock();
        let full = |open: &Arc<OpenLogSegment>| {
            open.segment.len.load(Ordering::Relaxed) + need
                > (SEGMENT_SIZE).min(self.room.limit() / SEGMENTS_MIN)
        };
        // One frame may exceed the size, in a segment of its own: an empty segment takes any frame.
        if state.current.as_ref().is_some_and(full) {
            state.close_segment();
        }
        let open = match &state.current {
            Some(open) => open.clone(),
            None => self.begin_segment(&mut state)?,
        };
        let pinned = open.segment.clone();
        // Under the lock, under which `sealed_segments` looks for pins: the segment cannot be given up between the
        // two.
        pinned.pins.fetch_add(1, Ordering::AcqRel);
        open.writing.fetch_add(1, Ordering::AcqRel);
        // Only the place is taken under the lock. Writers of several frames write side by side.
        let position = pinned.len.fetch_add(need, Ordering::AcqRel);
        self.room.reserve_bytes(need);
        Ok(ReservedFrame { open, position, pinned })
    }

    fn begin_segment(&self, state: &mut WriteLogState) -> Result<Arc<OpenLogSegment>> {
        let open = Arc::new(OpenLogSegment::create(&*self.folder, state.next)?);
        state.next += 1;
        state.segments.insert(open.segment.number, open.segment.clone());
        state.current = Some(open.clone());
        // Readers use the file that is open for writing, and need not open it again.
        self.files.insert(open.segment.number, open.file.clone());
        // The preamble counts, as it will when the log is opened again.
        self.room.reserve_bytes(open.segment.len.load(Ordering::Relaxed));
        Ok(open)
    }

    /// Makes everything durable that was appended so far. All who wait share one flush.
    pub fn sync_log(&self) -> Result<()> {
        let wanted = self.written.load(Ordering::Acquire);
        // Whoever waits here finds, more often than not, that the flush before has covered its frames.
        let mut flushed = self.flushed.lock();
        if *flushed >= wanted {
            return Ok(());
        }
        // Read before the flush: frames that are written while it runs may not be part of it.
        let upto = self.written.load(Ordering::Acquire);
        self.flush_frames(true)?;
        *flushed = upto;
        Ok(())
    }

    /// Makes full segments durable, so that there are few that recovery has to read.
    fn flush_full_segments(&self) -> Result<()> {
        let _alone = self.flushed.lock();
        self.flush_frames(false)
    }

    /// Called by one at a time.
    fn flush_frames(&self, current: bool) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(self.failed_log_error());
        }
        let (full, current) = {
            let state = self.state.lock();
            (state.full.clone(), state.current.clone().filter(|_| current))
        };
        let done = self.flush_segments(&full, current.as_deref());
        // The kernel reports a failed write-back once and drops the pages: a second flush would report success for
        // bytes that never reached the disk.
        if done.is_err() {
            self.poisoned.store(true, Ordering::Release);
        }
        done
    }

    fn flush_segments(&self, full: &[Arc<OpenLogSegment>], current: Option<&OpenLogSegment>) -> Result<()> {
        let is_new = |open: &OpenLogSegment| !open.listed.load(Ordering::Acquire);
        let any_new = full.iter().map(|open| &**open).chain(current).any(is_new);
        for open in full {
            // A frame that is still being written is named by nothing yet; the next flush is for it.
            let complete = open.writing.load(Ordering::Acquire) == 0;
            open.sync_segment()?;
            if complete {
                open.write_seal()?;
                self.state.lock().full.retain(|other| !Arc::ptr_eq(open, other));
            }
        }
        if let Some(open) = current {
            open.sync_segment()?;
        }
        // The name of a new file is durable only with its directory.
        if any_new {
            self.folder.sync_folder().map_err(wrap_io_error("flush", self.folder.describe_file("")))?;
            full.iter()
                .map(|open| &**open)
                .chain(current)
                .for_each(|open| open.listed.store(true, Ordering::Release));
        }
        Ok(())
    }

    fn failed_log_error(&self) -> FsError {
        let reason = "an earlier flush failed; nothing more is accepted until the worktree is mounted again";
        wrap_io_error("write", self.folder.describe_file(""))(io::Error::other(reason))
    }

    /// Whether data that an earlier run appended is as it was appended: false if it never reached the disk.
    #[must_use]
    pub fn is_data_intact(&self, segment: u64, offset: u64, len: u64) -> bool {
        let found = self.state.lock().segments.get(&segment).cloned();
        found.is_some_and(|segment| segment.is_range_intact(offset, len))
    }

    /// Reads what was appended. An error of kind `NotFound` means that the segment was removed: what named it when
    /// the caller looked is stale.
    pub fn read_data(&self, segment: u64, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let read = self.segment_file(segment).and_then(|file| match file.read_at(buffer, offset)? {
            read if read == buffer.len() => Ok(()),
            // Whatever is named was written whole: the file was cut short since.
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        });
        read.map_err(|error| {
            wrap_io_error("read", self.folder.describe_file(&format_segment_name(segment)))(error)
        })
    }

    fn segment_file(&self, segment: u64) -> io::Result<Arc<dyn EngineFile>> {
        self.files.get_or_insert_with(&segment, || self.folder.open_file(&format_segment_name(segment)))
    }

    /// Closes the current segment: later data goes to a new one, so that this one can be removed when nothing refers to
    /// it.
    pub fn rotate_segment(&self) {
        self.state.lock().close_segment();
    }

    /// The segments that could be removed if nothing names them. To be asked before looking at what is named: first
    /// this, then a moment without transactions ([`crate::tree::LiveMap::change_head`] is one), then the look, then
    /// the wait until all that is durable, then [`Self::remove_unnamed`].
    #[must_use]
    pub fn sealed_segments(&self) -> SealedSegments {
        let mut state = self.state.lock();
        state.generation += 1;
        let current = state.current.as_ref().map(|open| open.segment.number);
        let idle = |segment: &&Arc<LogSegment>| {
            Some(segment.number) != current && segment.pins.load(Ordering::Acquire) == 0
        };
        let segments = state.segments.values().filter(idle).map(|segment| segment.number).collect();
        SealedSegments { segments, generation: state.generation }
    }

    /// Removes those of the sealed segments that are not in `named`.
    pub fn remove_unnamed(&self, sealed: &SealedSegments, named: &BTreeSet<u64>) -> Result<()> {
        for number in sealed.segments.iter().filter(|number| !named.contains(number)) {
            let removed = {
                let mut state = self.state.lock();
                let stale =
                    |segment: &Arc<LogSegment>| segment.named.load(Ordering::Acquire) < sealed.generation;
                // Named again since it was asked which segments are sealed: a transaction that copies extents names
                // data that was there before.
                if !state.segments.get(number).is_some_and(stale) {
                    continue;
                }
                // What nothing names need not be flushed.
                state.full.retain(|open| open.segment.number != *number);
                state.segments.remove(number)
            };
            let Some(segment) = removed else { continue };
            // Readers that have the file open go on. Later ones get `NotFound`, look up the extents again, and find
            // the content elsewhere.
            self.files.remove(number);
            let name = format_segment_name(*number);
            self.folder
                .remove_file(&name)
                .map_err(wrap_io_error("remove", self.folder.describe_file(&name)))?;
            // Last: a writer that this wakes has to find the space free.
            self.room.return_bytes(segment.len.load(Ordering::Acquire));
        }
        Ok(())
    }

    /// Notes that data which is there already is being named once more, within a transaction.
    pub(crate) fn record_reuse(&self, segment: u64) {
        let state = self.state.lock();
        if let Some(segment) = state.segments.get(&segment) {
            segment.named.store(state.generation, Ordering::Release);
        }
    }

    /// How full it is.
    #[must_use]
    pub fn usage(&self) -> LogUsage {
        self.room.usage()
    }

    /// Whether an append of so many bytes may have to wait, beside others that have begun.
    #[must_use]
    pub fn is_nearly_full(&self, bytes: u64) -> bool {
        self.room.is_nearly_full(bytes)
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.room.usage().used
    }

    /// Sets the limit. Without one, whoever waits goes on.
    pub fn set_limit(&self, limit: u64) {
        self.room.set_limit(limit);
    }

    /// Sets what is called when writers begin to wait: it sees to it that segments are freed. Without it nobody
    /// waits.
    pub fn set_pressure_hook(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.room.set_pressure_hook(Box::new(hook));
    }

    /// Sets what is called when the log becomes four fifths full, and again only after it was half empty. It must not
    /// wait: a writer waits for it.
    pub fn set_fill_hook(&self, hook: impl Fn(LogUsage) + Send + Sync + 'static) {
        self.room.set_fill_hook(Box::new(hook));
    }

    /// Sets what tells how full the disk beneath is. Without it only writing finds that out.
    pub fn set_disk_probe(&self, probe: impl Fn() -> Option<LogDisk> + Send + Sync + 'static) {
        self.room.set_disk_probe(Box::new(probe));
    }

    /// Waits until the disk has room for so many bytes that do not go into the log; `ENOSPC` if none can be made.
    pub(crate) fn wait_for_disk_space(&self, bytes: u64) -> Result<()> {
        self.room.wait_for_disk_space(bytes)
    }

    /// To be told when publishing begins that was asked for because of pressure.
    pub fn begin_publish_attempt(&self) -> PublishAttempt {
        self.room.begin_publish_attempt()
    }

    /// To be told when it has ended. `is_full`: the store has no room.
    pub fn end_publish_attempt(&self, attempt: PublishAttempt, is_full: bool) {
        self.room.end_publish_attempt(attempt, is_full);
    }
}

impl WriteLogState {
    fn close_segment(&mut self) {
        self.full.extend(self.current.take());
    }
}

impl Drop for AppendedData {
    fn drop(&mut self) {
        self.pinned.pins.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests;
