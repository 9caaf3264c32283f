//! The data segments of a sparse file.

use std::fs::File;
use std::io;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::metadata::FileStat;

/// A range of data; the range between two segments is a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataSegment {
    /// Its offset.
    pub offset: u64,
    /// Its length in bytes; never 0.
    pub len: u64,
}

/// The data segments of `file`, in order, up to the size in `stat`. A file with all of its blocks takes no system call;
/// where the filesystem does not support the calls, the whole file is one segment. Moves the file's position.
pub fn iter_data_segments<'f>(
    file: &'f File,
    stat: &FileStat,
) -> impl Iterator<Item = io::Result<DataSegment>> + use<'f> {
    DataSegments { file, position: 0, size: stat.size, probe: stat.may_have_holes }
}

struct DataSegments<'f> {
    file: &'f File,
    position: u64,
    size: u64,
    probe: bool,
}

impl Iterator for DataSegments<'_> {
    type Item = io::Result<DataSegment>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.position >= self.size {
            return None;
        }
        if !self.probe {
            return self.take_remaining_segment();
        }
        match seek(self.file, SeekFrom::Data(self.position)) {
            // No data from here on; also when the file became shorter meanwhile.
            Err(Errno::NXIO) => {
                self.position = self.size;
                None
            }
            // The filesystem does not know SEEK_DATA; all of the file counts as data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => self.take_remaining_segment(),
            Err(errno) => {
                self.position = self.size;
                Some(Err(errno.into()))
            }
            // The file has grown since its attributes were read.
            Ok(start) if start >= self.size => None,
            Ok(start) => {
                // There is a hole at the end of every file, so this fails only if the file became shorter.
                let hole = seek(self.file, SeekFrom::Hole(start)).unwrap_or(self.size);
                // A hole at or before the data's start would be no progress: take all that is left then.
                let end = if hole > start { hole.min(self.size) } else { self.size };
                self.position = end;
                Some(Ok(DataSegment { offset: start, len: end - start }))
            }
        }
    }
}

impl DataSegments<'_> {
    fn take_remaining_segment(&mut self) -> Option<io::Result<DataSegment>> {
        let offset = std::mem::replace(&mut self.position, self.size);
        Some(Ok(DataSegment { offset, len: self.size - offset }))
    }
}
