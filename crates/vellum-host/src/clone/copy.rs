//! Copying content.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, copy_file_range, ftruncate, ioctl_ficlone};
use rustix::io::Errno;
use vellum_types::ErrorKind;

use super::{DataSegment, iter_data_segments};
use crate::metadata::FileStat;

/// Buffer of a copy by read and write, bytes: large enough to make system calls negligible, small enough for the cache.
const BUFFER: usize = 256 << 10;
/// Most bytes in one `copy_file_range`, so that a stop request is noticed in time.
const KERNEL_STEP: usize = 64 << 20;

/// The method of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyStrategy {
    /// Blocks were shared; no data was copied.
    Reflink,
    /// Copied within the kernel.
    InKernel,
    /// Read and written.
    ByHand,
}

/// The result of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyReport {
    /// The method.
    pub strategy: CopyStrategy,
    /// Bytes of data that were copied or shared, without holes.
    pub data: u64,
}

/// Why a copy failed.
#[derive(Debug, thiserror::Error)]
pub enum CloneError {
    /// A read or a write failed.
    #[error("cannot copy file content at offset {offset}")]
    Io {
        /// The operation.
        offset: u64,
        /// The error.
        source: io::Error,
    },
    /// The source became shorter during the copy.
    #[error("the file became shorter than {expected} bytes while it was being copied")]
    Shrunk {
        /// Its original size.
        expected: u64,
    },
}

impl CloneError {
    /// The error's kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { source, .. } => ErrorKind::from_io_error(source),
            Self::Shrunk { .. } => ErrorKind::Conflict,
        }
    }

    fn at_offset(offset: u64, source: impl Into<io::Error>) -> Self {
        Self::Io { offset, source: source.into() }
    }
}

/// Whether files in a directory can share blocks. Tried with files that never have a name.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "the directory is the caller's, and no name in it is looked up"
)]
pub fn can_share_blocks(directory: &Path) -> bool {
    let make = || {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR).map(File::from)
    };
    let (Ok(from), Ok(to)) = (make(), make()) else { return false };
    // To share the blocks of an empty file would prove nothing.
    from.write_all_at(&[1; 4096], 0).is_ok() && ioctl_ficlone(&to, &from).is_ok()
}

/// Makes `to`, an empty file, equal to `from`, whose attributes are `stat`.
pub fn clone_or_copy_content(from: &File, to: &File, stat: &FileStat) -> Result<CopyReport, CloneError> {
    // Every error leads to a copy: EXDEV and EOPNOTSUPP mean that blocks cannot be shared, and anything else
    // shows again when the bytes are copied.
    if ioctl_ficlone(to, from).is_ok() {
        // The clone took the source as it was at that moment, which may be longer than it was.
        ftruncate(to, stat.size).map_err(|errno| CloneError::at_offset(stat.size, errno))?;
        return Ok(CopyReport { strategy: CopyStrategy::Reflink, data: stat.size });
    }
    copy_data(from, to, stat)
}

/// Like [`clone_or_copy_content`], without sharing blocks.
pub fn copy_data(from: &File, to: &File, stat: &FileStat) -> Result<CopyReport, CloneError> {
    // The file gets its length first, so that holes are left out by not writing them.
    ftruncate(to, stat.size).map_err(|errno| CloneError::at_offset(stat.size, errno))?;
    let mut copied = CopyReport { strategy: CopyStrategy::InKernel, data: 0 };
    for segment in iter_data_segments(from, stat) {
        let segment = segment.map_err(|error| CloneError::at_offset(copied.data, error))?;
        copied.strategy = copy_segment(from, to, segment, copied.strategy)?;
        copied.data += segment.len;
    }
    Ok(copied)
}

fn copy_segment(
    from: &File,
    to: &File,
    segment: DataSegment,
    strategy: CopyStrategy,
) -> Result<CopyStrategy, CloneError> {
    let end = segment.offset + segment.len;
    let mut position = segment.offset;
    while strategy != CopyStrategy::ByHand && position < end {
        match copy_range_in_kernel(from, to, position, end) {
            // Some virtual files claim to be at their end here, and some pairs of files cannot be copied so:
            // reading decides.
            Ok(0) => break,
            Ok(count) => position += count,
            Err(Errno::INTR) => {}
            Err(full @ (Errno::NOSPC | Errno::DQUOT)) => return Err(CloneError::at_offset(position, full)),
            Err(_) => break,
        }
    }
    if position == end {
        return Ok(strategy);
    }
    // The ranges that were copied so far remain valid.
    copy_range_by_read(from, to, position, end)?;
    Ok(CopyStrategy::ByHand)
}

fn copy_range_in_kernel(from: &File, to: &File, position: u64, end: u64) -> rustix::io::Result<u64> {
    let mut read_at = position;
    let mut write_at = position;
    let step = usize::try_from(end - position).unwrap_or(KERNEL_STEP).min(KERNEL_STEP);
    copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), step).map(|count| count as u64)
}

fn copy_range_by_read(from: &File, to: &File, mut position: u64, end: u64) -> Result<(), CloneError> {
    let mut buffer = vec![0; BUFFER];
    while position < end {
        let step = usize::try_from(end - position).unwrap_or(BUFFER).min(BUFFER);
        let window = buffer.get_mut(..step).unwrap_or_default();
        match from.read_at(window, position) {
            // Without this, the rest of the copy would be zeros.
            Ok(0) => return Err(CloneError::Shrunk { expected: end }),
            Ok(count) => {
                let data = window.get(..count).unwrap_or_default();
                to.write_all_at(data, position).map_err(|error| CloneError::at_offset(position, error))?;
                position += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(CloneError::at_offset(position, error)),
        }
    }
    Ok(())
}
