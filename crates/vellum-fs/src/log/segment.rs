//! One file of the write log.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vellum_live::folder::{EngineFile, EngineFolder};

use super::frame::{ALIGN, PREAMBLE, encode_preamble, encode_seal, find_whole_frames, is_segment_sealed};
use crate::error::FsError;

/// What is known of a segment's bytes.
#[derive(Debug)]
enum SegmentIntegrity {
    /// All of it was written by this process, or was sealed.
    All,
    /// The data of the frames that were found whole.
    Frames(Vec<Range<u64>>),
}

/// A segment, of this run or an earlier one.
#[derive(Debug)]
pub struct LogSegment {
    pub number: u64,
    /// Bytes that it takes.
    pub len: AtomicU64,
    /// Frames that no transaction names yet, but may.
    pub pins: AtomicU64,
    /// When data of it was last named anew though it was there before: a generation of [`super::WriteLog::sealed_segments`].
    pub named: AtomicU64,
    intact: SegmentIntegrity,
}

/// A segment that is being written, or has not been sealed since.
pub struct OpenLogSegment {
    pub segment: Arc<LogSegment>,
    pub file: Arc<dyn EngineFile>,
    /// What messages call it.
    path: String,
    /// Frames whose place is taken and whose bytes are not written yet.
    pub writing: AtomicU64,
    /// The directory that lists it was flushed.
    pub listed: AtomicBool,
}

/// The name of a segment's file: its number in hexadecimal, so that names sort.
pub fn format_segment_name(number: u64) -> String {
    format!("{number:016x}.log")
}

/// The number in the name of a segment's file.
pub fn parse_segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".log").filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}

impl LogSegment {
    fn new(number: u64, len: u64, intact: SegmentIntegrity) -> Self {
        let len = AtomicU64::new(len);
        let pins = AtomicU64::new(0);
        let named = AtomicU64::new(0);
        Self { number, len, pins, named, intact }
    }

    /// Looks at what an earlier run left.
    pub fn recover_segment(folder: &dyn EngineFolder, number: u64) -> Result<Self, FsError> {
        let name = format_segment_name(number);
        let failed = wrap_io_error("read", folder.describe_file(&name));
        let file = folder.open_file(&name).map_err(&failed)?;
        let len = file.size().map_err(&failed)?;
        // A seal is as long as a preamble. A sealed segment need not be read.
        let mut tail = [0; PREAMBLE as usize];
        let sealed = match len.checked_sub(tail.len() as u64) {
            Some(position) if position >= PREAMBLE => {
                file.read_at(&mut tail, position).map_err(&failed)?;
                is_segment_sealed(number, position, &tail)
            }
            _ => false,
        };
        let intact = if sealed {
            SegmentIntegrity::All
        } else {
            // Read as a whole: segments are bounded, and only a few of them have no seal.
            let mut bytes = vec![0; len as usize];
            file.read_at(&mut bytes, 0).map_err(&failed)?;
            SegmentIntegrity::Frames(find_whole_frames(number, &bytes))
        };
        // A frame at the end is counted with what fills it up, as it was when it was written.
        Ok(Self::new(number, len.next_multiple_of(ALIGN), intact))
    }

    /// Whether this range was written and is as it was written.
    pub fn is_range_intact(&self, offset: u64, len: u64) -> bool {
        let Some(end) = offset.checked_add(len) else { return false };
        match &self.intact {
            SegmentIntegrity::All => offset >= PREAMBLE && end <= self.len.load(Ordering::Acquire),
            SegmentIntegrity::Frames(frames) => {
                // Frames do not overlap: the first one that ends behind the range is the only one that can hold it.
                let at = frames.partition_point(|frame| frame.end < end);
                frames.get(at).is_some_and(|frame| frame.start <= offset && end <= frame.end)
            }
        }
    }
}

impl OpenLogSegment {
    /// A new segment with nothing in it but its preamble.
    pub fn create(folder: &dyn EngineFolder, number: u64) -> Result<Self, FsError> {
        let name = format_segment_name(number);
        let path = folder.describe_file(&name);
        let failed = wrap_io_error("make", path.clone());
        let file = folder.create_file(&name).map_err(&failed)?;
        if let Err(error) = file.write_at(&encode_preamble(number), 0) {
            // Left behind, it would be taken for a segment that is damaged.
            let _ = folder.remove_file(&name);
            return Err(failed(error));
        }
        let segment = Arc::new(LogSegment::new(number, PREAMBLE, SegmentIntegrity::All));
        Ok(Self { segment, file, path, writing: AtomicU64::new(0), listed: AtomicBool::new(false) })
    }

    /// Writes a frame at its place.
    pub fn write_frame(&self, header: &[u8], data: &[u8], position: u64) -> Result<(), FsError> {
        self.file.write_both_at(header, data, position).map_err(self.wrap_io_error("write"))
    }

    /// Makes what was written durable.
    pub fn sync_segment(&self) -> Result<(), FsError> {
        self.file.sync_file().map_err(self.wrap_io_error("flush"))
    }

    /// Notes at its end that all of it is durable. Only saves reading it when the log is opened again.
    pub fn write_seal(&self) -> Result<(), FsError> {
        // The segment is full and nothing is being written to it: its length does not change any more.
        let end = self.segment.len.load(Ordering::Acquire);
        let sealed = self.file.write_at(&encode_seal(self.segment.number, end), end);
        sealed.map_err(self.wrap_io_error("seal"))
    }

    fn wrap_io_error(&self, action: &'static str) -> impl Fn(std::io::Error) -> FsError + use<> {
        wrap_io_error(action, self.path.clone())
    }
}

/// Says what failed with a file of the log.
pub fn wrap_io_error(action: &'static str, path: String) -> impl Fn(std::io::Error) -> FsError + use<> {
    move |source| FsError::Log { action, path: path.clone(), source }
}
