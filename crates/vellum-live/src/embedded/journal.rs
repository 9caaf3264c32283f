//! The journal: files to which transactions are appended, one frame each. Behind the last frame they may be filled up
//! with zeros: room that is reserved.
//!
//! Invariant: after a failed append the file ends with its last complete frame, or nothing is appended any more.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::folder::{EngineFile, EngineFolder};
use super::frame::{self, BODY_MAX, FRAME_HEAD, FileHeader, HEADER_LEN};

pub(crate) const MAGIC: [u8; 8] = *b"VLMLIVEJ";
const NAME: &str = "journal-";
/// Bytes of the buffer for records that is kept; larger transactions give it back.
const SCRATCH_MAX: usize = 1 << 20;
/// Bytes that are reserved at once. Where a file does not become longer, a sync is one write to the disk and no
/// transaction of the filesystem's: 70 us instead of 310 here.
const RESERVED: u64 = 1 << 20;
/// After this many syncs since room was last reserved, the next room is filled with zeros. Else a sync whose records
/// reach a block that was never written is a transaction of the filesystem's, too: 160 us instead of 95 here. To write
/// the room twice is not worth that for fewer. In tests one sync is enough, so that the crashes that they make meet
/// such room.
const SYNCS_MIN: u32 = if cfg!(test) { 1 } else { 16 };

/// The name of a journal file.
pub(crate) fn format_journal_name(number: u64) -> String {
    format!("{NAME}{number:016x}")
}

/// The number in the name of a journal file.
pub(crate) fn parse_journal_number(name: &str) -> Option<u64> {
    parse_numbered_name(name, NAME)
}

/// The number in a name that begins with `kind`.
pub(crate) fn parse_numbered_name(name: &str, kind: &str) -> Option<u64> {
    let number = u64::from_str_radix(name.strip_prefix(kind)?, 16).ok()?;
    (name == format!("{kind}{number:016x}")).then_some(number)
}

/// One file of the journal.
pub(crate) struct JournalSegment {
    pub number: u64,
    pub salt: u64,
    pub file: Arc<dyn EngineFile>,
}

impl JournalSegment {
    /// A new file without records. Durable once the folder is synced.
    pub(crate) fn create_segment(folder: &dyn EngineFolder, number: u64) -> io::Result<Self> {
        let header = FileHeader::new(MAGIC, number)?;
        let file = folder.create_file(&format_journal_name(number))?;
        file.write_at(&header.encode(), 0)?;
        // The header is durable before there is a record: replay takes a torn header as a sign that nothing was ever
        // written behind it.
        file.sync_file()?;
        // The caller syncs the folder, which makes the name durable.
        Ok(Self { number, salt: header.salt, file })
    }
}

/// Where the next record goes.
pub(crate) struct Journal {
    pub segment: Arc<JournalSegment>,
    /// Bytes of the segment that are whole records.
    pub end: u64,
    /// Where the file ends.
    room: u64,
    /// Syncs since room was reserved.
    syncs: u32,
    /// Bytes in this file and those before it since the last checkpoint.
    pub len: u64,
    scratch: Vec<u8>,
}

/// Why an append failed.
pub(crate) struct AppendFailure {
    pub error: io::Error,
    /// Whether the file is as it was before.
    pub undone: bool,
}

impl Journal {
    /// Goes on behind `end`.
    pub(crate) fn new(segment: Arc<JournalSegment>, end: u64, len: u64) -> Self {
        Self { segment, end, room: end, syncs: 0, len, scratch: Vec::new() }
    }

    /// Goes on in a new file.
    pub(crate) fn switch_segment(&mut self, segment: Arc<JournalSegment>) {
        self.segment = segment;
        self.end = HEADER_LEN as u64;
        self.room = self.end;
    }

    /// Appends a frame, in one write.
    pub(crate) fn append_frame(&mut self, body: impl FnOnce(&mut Vec<u8>)) -> Result<(), AppendFailure> {
        self.scratch.clear();
        // One large transaction must not keep its memory for good.
        // Memory of one large transaction would otherwise stay with the journal.
        self.scratch.shrink_to(SCRATCH_MAX);
        frame::append_frame(&mut self.scratch, self.segment.salt, self.end, body);
        // A reader refuses such a frame, so it must never be written: nothing was changed yet, and the journal goes
        // on.
        if self.scratch.len() > BODY_MAX + FRAME_HEAD {
            return Err(AppendFailure { error: ErrorKind::FileTooLarge.into(), undone: true });
        }
        let len = self.scratch.len() as u64;
        // Before the write: a record that made the file longer would make its sync a transaction of the filesystem.
        if self.end + len > self.room {
            self.reserve_space(self.end + len);
        }
        match self.segment.file.write_at(&self.scratch, self.end) {
            Ok(()) => {
                self.end += len;
                self.len += len;
                Ok(())
            }
            Err(error) => Err(self.undo_append(error)),
        }
    }

    /// What was appended so far was made durable.
    pub(crate) fn record_sync(&mut self) {
        self.syncs = self.syncs.saturating_add(1);
    }

    /// Lengthens the file beyond `needed`.
    fn reserve_space(&mut self, needed: u64) {
        let is_synced_often = std::mem::take(&mut self.syncs) >= SYNCS_MIN;
        // Without room the file grows with each record: slower, no worse.
        // The room grows by a fixed amount beyond what is needed, so most appends find room.
        self.room = self.segment.file.reserve_len(needed + RESERVED).unwrap_or(needed);
        if is_synced_often && self.room > needed {
            let len = (self.room - needed).min(RESERVED) as usize;
            // It reads as zeros already: what fails here changes nothing, and fails again when it matters.
            let _ = self.segment.file.write_at(&vec![0; len], needed);
        }
    }

    /// Cuts off what a failed write left. Only a lack of space is known to leave all else as it was.
    fn undo_append(&mut self, error: io::Error) -> AppendFailure {
        // If the file can be cut, it ends here, and room is reserved anew.
        self.room = self.end;
        let is_full = matches!(
            error.kind(),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
        );
        // After any other failure it is unknown which bytes are on the disk, and a later record behind half of this
        // one would never be read.
        let undone = is_full && self.segment.file.set_len(self.end).is_ok();
        AppendFailure { error, undone }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::embedded::folder::LocalFolder;

    /// Bytes of a journal file up to the first that was never written, and all of them.
    fn written(dir: &std::path::Path) -> (u64, u64) {
        let file = std::fs::File::open(dir.join(format_journal_name(1))).unwrap();
        let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap();
        (hole, file.metadata().unwrap().len())
    }

    #[test]
    fn room_is_written_before_it_is_needed_where_syncs_are_frequent() {
        let dir = tempfile::tempdir().unwrap();
        let folder = LocalFolder::open_locked(dir.path()).unwrap().unwrap();
        let segment = Arc::new(JournalSegment::create_segment(&folder, 1).unwrap());
        let mut journal = Journal::new(segment, HEADER_LEN as u64, 0);
        let mut append = |len: usize, syncs: u32| {
            (0..syncs).for_each(|_| journal.record_sync());
            assert!(journal.append_frame(|out| out.resize(out.len() + len, 7)).is_ok());
            journal.segment.file.sync_file().unwrap();
        };
        append(100, 0);
        let (hole, len) = written(dir.path());
        assert!(hole < RESERVED && len > RESERVED, "nobody has synced: {hole} of {len}");
        append(RESERVED as usize, SYNCS_MIN);
        let (hole, len) = written(dir.path());
        assert!(hole == len && len > 2 * RESERVED, "{hole} of {len}");
        append(RESERVED as usize, 0);
        let (hole, len) = written(dir.path());
        assert!(hole < len && len > 3 * RESERVED, "nobody has synced since: {hole} of {len}");
    }
}
