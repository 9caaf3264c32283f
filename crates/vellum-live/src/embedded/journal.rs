//! The journal: files to which transactions are appended, one frame each. Behind the last frame they may be filled up
//! with zeros: room that is reserved.
//!
//! Invariant: after a failed append the file ends with its last whole frame, or nothing is appended any more.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::folder::{File, Folder};
use super::frame::{self, BODY_MAX, FRAME_HEAD, HEADER_LEN, Header};

pub(crate) const MAGIC: [u8; 8] = *b"VLMLIVEJ";
const NAME: &str = "journal-";
/// Bytes of the buffer for records that is kept; larger transactions give it back.
const SCRATCH_MAX: usize = 1 << 20;
/// Bytes that are reserved at once. Where a file does not become longer, a sync is one write to the disk and no
/// transaction of the filesystem's: 70 us instead of 310 here.
const RESERVED: u64 = 1 << 20;

/// The name of a journal file.
pub(crate) fn name_of(number: u64) -> String {
    format!("{NAME}{number:016x}")
}

/// The number in the name of a journal file.
pub(crate) fn number_in(name: &str) -> Option<u64> {
    numbered(name, NAME)
}

/// The number in a name that begins with `kind`.
pub(crate) fn numbered(name: &str, kind: &str) -> Option<u64> {
    let number = u64::from_str_radix(name.strip_prefix(kind)?, 16).ok()?;
    (name == format!("{kind}{number:016x}")).then_some(number)
}

/// One file of the journal.
pub(crate) struct Segment {
    pub number: u64,
    pub salt: u64,
    pub file: Arc<dyn File>,
}

impl Segment {
    /// A new file without records. Durable once the folder is synced.
    pub(crate) fn create(folder: &dyn Folder, number: u64) -> io::Result<Self> {
        let header = Header::new(MAGIC, number)?;
        let file = folder.create(&name_of(number))?;
        file.write_at(&header.encode(), 0)?;
        file.sync()?;
        Ok(Self { number, salt: header.salt, file })
    }
}

/// Where the next record goes.
pub(crate) struct Journal {
    pub segment: Arc<Segment>,
    /// Bytes of the segment that are whole records.
    pub end: u64,
    /// Where the file ends.
    room: u64,
    /// Bytes in this file and those before it since the last checkpoint.
    pub len: u64,
    scratch: Vec<u8>,
}

/// Why an append failed.
pub(crate) struct Failure {
    pub error: io::Error,
    /// Whether the file is as it was before.
    pub undone: bool,
}

impl Journal {
    /// Goes on behind `end`.
    pub(crate) fn new(segment: Arc<Segment>, end: u64, len: u64) -> Self {
        Self { segment, end, room: end, len, scratch: Vec::new() }
    }

    /// Goes on in a new file.
    pub(crate) fn turn_to(&mut self, segment: Arc<Segment>) {
        self.segment = segment;
        self.end = HEADER_LEN as u64;
        self.room = self.end;
    }

    /// Appends a frame, in one write.
    pub(crate) fn append(&mut self, body: impl FnOnce(&mut Vec<u8>)) -> Result<(), Failure> {
        self.scratch.clear();
        self.scratch.shrink_to(SCRATCH_MAX);
        frame::append(&mut self.scratch, self.segment.salt, self.end, body);
        if self.scratch.len() > BODY_MAX + FRAME_HEAD {
            return Err(Failure { error: ErrorKind::FileTooLarge.into(), undone: true });
        }
        let len = self.scratch.len() as u64;
        if self.end + len > self.room {
            // Without room the file grows with each record: slower, no worse.
            self.room = self.segment.file.reserve(self.end + len + RESERVED).unwrap_or(self.end + len);
        }
        match self.segment.file.write_at(&self.scratch, self.end) {
            Ok(()) => {
                self.end += len;
                self.len += len;
                Ok(())
            }
            Err(error) => Err(self.undo(error)),
        }
    }

    /// Cuts off what a failed write left. Only a lack of space is known to leave all else as it was.
    fn undo(&mut self, error: io::Error) -> Failure {
        self.room = self.end;
        let is_full = matches!(
            error.kind(),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
        );
        let undone = is_full && self.segment.file.set_len(self.end).is_ok();
        Failure { error, undone }
    }
}
