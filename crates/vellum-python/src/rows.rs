//! Attributes and entries as values for Python.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use vellum_json::file_kind_name;
use vellum_library::Metadata;
use vellum_types::{FileKind, UnixTime};

/// The attributes of an entry, in the order of `vellum.rows.StatRow`.
#[derive(IntoPyObject)]
pub struct StatRow(&'static str, u32, u64, u32, u32, u32, u64, i64, i64, i64, i64);

impl StatRow {
    /// The attributes for Python.
    pub fn new(metadata: &Metadata) -> Self {
        let attr = metadata.attributes();
        Self(
            file_kind_name(metadata.kind()),
            // Kind and permissions in one number, from which `stat.S_ISREG` and its like tell the kind.
            format_bits(metadata.kind()) | metadata.mode(),
            metadata.ino(),
            metadata.links(),
            metadata.uid(),
            metadata.gid(),
            metadata.size(),
            nanoseconds(attr.atime),
            nanoseconds(attr.mtime),
            nanoseconds(attr.ctime),
            nanoseconds(attr.btime),
        )
    }
}

/// A name or a path with the attributes of what is there; symlinks are not followed.
#[derive(IntoPyObject)]
pub struct EntryRow<'py>(Bound<'py, PyBytes>, StatRow);

impl<'py> EntryRow<'py> {
    /// The row for Python.
    pub fn new(py: Python<'py>, name: &[u8], metadata: &Metadata) -> Self {
        Self(PyBytes::new(py, name), StatRow::new(metadata))
    }
}

/// Nanoseconds since 1970; the nearest of them that 64 bits can hold, which are the years 1677 to 2262.
pub fn nanoseconds(time: UnixTime) -> i64 {
    time.secs.saturating_mul(1_000_000_000).saturating_add(time.nanos.into())
}

/// The bits of `st_mode` that tell the kind.
fn format_bits(kind: FileKind) -> u32 {
    match kind {
        // The numbers of Python's module `stat`, to whose functions the mode is given.
        FileKind::File => 0o100_000,
        FileKind::Dir => 0o040_000,
        FileKind::Symlink => 0o120_000,
        FileKind::Fifo => 0o010_000,
        FileKind::Socket => 0o140_000,
        FileKind::CharDevice => 0o020_000,
        FileKind::BlockDevice => 0o060_000,
    }
}
