//! One file of the write log.

use std::fs::File;
use std::io::IoSlice;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::Errno;

use super::frame::{ALIGN, PREAMBLE, is_sealed, preamble, seal, whole_frames};
use crate::error::FsError;

/// What is known of a segment's bytes.
#[derive(Debug)]
enum Intact {
    /// All of it was written by this process, or was sealed.
    All,
    /// The data of the frames that were found whole.
    Frames(Vec<Range<u64>>),
}

/// A segment, of this run or an earlier one.
#[derive(Debug)]
pub struct Segment {
    pub number: u64,
    pub path: PathBuf,
    /// Bytes that it takes.
    pub len: AtomicU64,
    /// Frames that no transaction names yet, but may.
    pub pins: AtomicU64,
    /// When data of it was last named anew though it was there before: a generation of [`super::WriteLog::sealed`].
    pub named: AtomicU64,
    intact: Intact,
}

/// A segment that is being written, or has not been sealed since.
#[derive(Debug)]
pub struct Open {
    pub segment: Arc<Segment>,
    pub file: Arc<File>,
    /// Frames whose place is taken and whose bytes are not written yet.
    pub writing: AtomicU64,
    /// The directory that lists it was flushed.
    pub listed: AtomicBool,
}

/// The path of a segment: its number in hexadecimal, so that names sort.
pub fn path_of(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016x}.log"))
}

/// The number in the name of a segment's file.
pub fn number_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".log").filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}

impl Segment {
    fn new(number: u64, path: PathBuf, len: u64, intact: Intact) -> Self {
        let (len, pins, named) = (AtomicU64::new(len), AtomicU64::new(0), AtomicU64::new(0));
        Self { number, path, len, pins, named, intact }
    }

    /// Looks at what an earlier run left.
    pub fn recover(dir: &Path, number: u64) -> Result<Self, FsError> {
        let path = path_of(dir, number);
        let failed = failed("read", &path);
        let file = File::open(&path).map_err(&failed)?;
        let len = file.metadata().map_err(&failed)?.len();
        let mut tail = [0; PREAMBLE as usize];
        let sealed = match len.checked_sub(tail.len() as u64) {
            Some(position) if position >= PREAMBLE => {
                file.read_exact_at(&mut tail, position).map_err(&failed)?;
                is_sealed(number, position, &tail)
            }
            _ => false,
        };
        let intact = if sealed {
            Intact::All
        } else {
            Intact::Frames(whole_frames(number, &std::fs::read(&path).map_err(&failed)?))
        };
        // A frame at the end is counted with what fills it up, as it was when it was written.
        Ok(Self::new(number, path, len.next_multiple_of(ALIGN), intact))
    }

    /// Whether this range was written and is as it was written.
    pub fn is_intact(&self, offset: u64, len: u64) -> bool {
        let Some(end) = offset.checked_add(len) else { return false };
        match &self.intact {
            Intact::All => offset >= PREAMBLE && end <= self.len.load(Ordering::Acquire),
            Intact::Frames(frames) => {
                let at = frames.partition_point(|frame| frame.end < end);
                frames.get(at).is_some_and(|frame| frame.start <= offset && end <= frame.end)
            }
        }
    }
}

impl Open {
    /// A new segment with nothing in it but its preamble.
    pub fn create(dir: &Path, number: u64) -> Result<Self, FsError> {
        let path = path_of(dir, number);
        let failed = failed("make", &path);
        let mut options = File::options();
        let file =
            options.read(true).write(true).create_new(true).mode(0o600).open(&path).map_err(&failed)?;
        if let Err(error) = file.write_all_at(&preamble(number), 0) {
            // Left behind, it would stand in the way of the next try.
            let _ = std::fs::remove_file(&path);
            return Err(failed(error));
        }
        let segment = Arc::new(Segment::new(number, path, PREAMBLE, Intact::All));
        Ok(Self { segment, file: Arc::new(file), writing: AtomicU64::new(0), listed: AtomicBool::new(false) })
    }

    /// Writes a frame at its place.
    pub fn write(&self, header: &[u8], data: &[u8], position: u64) -> Result<(), FsError> {
        let done = loop {
            match rustix::io::pwritev(&self.file, &[IoSlice::new(header), IoSlice::new(data)], position) {
                Ok(done) => break done,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed("write", &self.segment.path)(errno.into())),
            }
        };
        // A disk that is nearly full takes a part.
        let rest = |bytes: &'_ [u8], before: usize| bytes.get(done.saturating_sub(before)..).map(<[u8]>::len);
        let header_left = rest(header, 0).unwrap_or(0);
        let data_left = rest(data, header.len()).unwrap_or(0);
        if header_left + data_left == 0 {
            return Ok(());
        }
        let again = |bytes: &[u8], left: usize, end: u64| {
            self.file.write_all_at(bytes.get(bytes.len() - left..).unwrap_or_default(), end - left as u64)
        };
        let header_end = position + header.len() as u64;
        again(header, header_left, header_end)
            .and_then(|()| again(data, data_left, header_end + data.len() as u64))
            .map_err(failed("write", &self.segment.path))
    }

    /// Makes what was written durable.
    pub fn sync(&self) -> Result<(), FsError> {
        let synced = rustix::fs::fdatasync(&self.file);
        synced.map_err(|errno| failed("flush", &self.segment.path)(errno.into()))
    }

    /// Notes at its end that all of it is durable. Only saves reading it when the log is opened again.
    pub fn seal(&self) -> Result<(), FsError> {
        let end = self.segment.len.load(Ordering::Acquire);
        let sealed = self.file.write_all_at(&seal(self.segment.number, end), end);
        sealed.map_err(failed("seal", &self.segment.path))
    }
}

/// Says what failed with a file of the log.
pub fn failed(action: &'static str, path: &Path) -> impl Fn(std::io::Error) -> FsError + use<> {
    let path = path.display().to_string();
    move |source| FsError::Log { action, path: path.clone(), source }
}
