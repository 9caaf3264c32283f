//! The names in a directory.

use std::os::fd::AsFd;

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

use super::BeneathError;
use super::dir::{HeldDir, system_error};

/// Buffer of one `getdents` call, bytes: about a thousand names, so that most directories take two calls.
const LISTING_BUFFER: usize = 64 << 10;

/// The names in one directory, without `.` and `..`, in the filesystem's order.
#[derive(Debug, Default)]
pub struct DirNames {
    bytes: Vec<u8>,
    spans: Vec<NameSpan>,
}

#[derive(Debug, Clone, Copy)]
struct NameSpan {
    // A span takes 8 bytes, since a directory may have millions of names.
    start: u32,
    len: u16,
    is_dir: Option<bool>,
}

/// One name, with its type as far as `getdents` returned it.
#[derive(Debug, Clone, Copy)]
pub struct ListedName<'a> {
    /// The name's bytes.
    pub name: &'a [u8],
    /// Whether it is a directory; None if the filesystem does not report types.
    pub is_dir: Option<bool>,
}

impl DirNames {
    /// The number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are no names.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// All names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = ListedName<'_>> {
        self.spans.iter().map(|span| ListedName { name: self.name_at(span), is_dir: span.is_dir })
    }

    /// Sorts them by their bytes.
    pub fn sort_names(&mut self) {
        let mut spans = std::mem::take(&mut self.spans);
        spans.sort_unstable_by(|a, b| self.name_at(a).cmp(self.name_at(b)));
        // A directory that changes while it is read may be listed with one name twice.
        spans.dedup_by(|a, b| self.name_at(a) == self.name_at(b));
        self.spans = spans;
    }

    fn name_at(&self, span: &NameSpan) -> &[u8] {
        let start = span.start as usize;
        self.bytes.get(start..start + usize::from(span.len)).unwrap_or_default()
    }

    fn push_name(&mut self, name: &[u8], is_dir: Option<bool>) -> Result<(), Errno> {
        // A directory of more than 4 GiB of names does not occur; one that seems so is refused.
        let start = u32::try_from(self.bytes.len()).map_err(|_| Errno::OVERFLOW)?;
        let len = u16::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)?;
        self.bytes.extend_from_slice(name);
        self.spans.push(NameSpan { start, len, is_dir });
        Ok(())
    }

    fn read_entries(&mut self, fd: impl AsFd) -> Result<(), Errno> {
        let mut buffer = Vec::with_capacity(LISTING_BUFFER);
        let mut listing = RawDir::new(fd, buffer.spare_capacity_mut());
        while let Some(entry) = listing.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                self.push_name(name, is_dir_type(entry.file_type()))?;
            }
        }
        Ok(())
    }
}

fn is_dir_type(kind: FileType) -> Option<bool> {
    match kind {
        FileType::Unknown => None,
        kind => Some(kind == FileType::Directory),
    }
}

impl HeldDir {
    /// Reads all names.
    pub fn read_names(&self) -> Result<DirNames, BeneathError> {
        let mut names = DirNames::default();
        names
            .read_entries(self.reopen_descriptor()?)
            .map_err(|errno| system_error("read the directory", b".", errno))?;
        Ok(names)
    }

    /// Reads all names through this descriptor, which was opened for reading and may be read only once.
    pub fn read_names_once(&self) -> Result<DirNames, BeneathError> {
        let mut names = DirNames::default();
        match names.read_entries(self) {
            Ok(()) => Ok(names),
            // The descriptor is O_PATH and cannot be read.
            Err(Errno::BADF) => self.read_names(),
            Err(errno) => Err(system_error("read the directory", b".", errno)),
        }
    }
}
