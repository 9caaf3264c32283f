//! File content: reading, writing, resizing, and the location of the bytes.
//!
//! A file's content is inline in its attributes, or in extents. Invariants: extents do not overlap, lie within the
//! size and are at most [`EXTENT_MAX`] long; a range that none covers reads as zeros; what an extent in the write
//! log names was written there before. Content of one file is changed by one transaction at a time, whole.

mod ahead;
mod copy;
mod durable;
pub(crate) mod extents;
pub(crate) mod memory;
mod open;
pub mod opened;
mod read;
mod released;
pub mod residence;
mod resize;
mod seek;
mod source;
mod stored;
mod write;

use rustix::io::Errno;
use vellum_types::limits::BLOB_MAX;
use vellum_types::{FileKind, Ino, InodeAttr, UnixTime};

use crate::attributes::clock::advance_change_time;
use crate::error::Result;
use crate::tree::MapReader;

pub(crate) use copy::EXTENTS_MAX;
pub(crate) use open::remove_inode;
pub(crate) use released::ReleasedOrphans;
pub use resize::AllocateMode;
pub(crate) use seek::seek_in_state;
pub(crate) use source::ContentSource;
pub(crate) use stored::StoredByteCounts;

/// Longest extent, bytes: as long as the longest chunk, so that what covers an offset is found by looking back no
/// further than this.
pub(crate) const EXTENT_MAX: u64 = BLOB_MAX as u64;

/// Set-user-id.
const SET_UID: u32 = 0o4000;
/// Set-group-id, which counts only on files that the group may execute.
pub(crate) const SET_GID: u32 = 0o2000;
const GROUP_EXEC: u32 = 0o010;

/// The attributes of an inode that must be a regular file.
fn read_file_attr<R: MapReader + ?Sized>(view: &R, ino: Ino) -> Result<InodeAttr> {
    let attr = view.expect_inode_attr(ino)?;
    match attr.kind {
        FileKind::File => Ok(attr),
        FileKind::Dir => Err(Errno::ISDIR.into()),
        FileKind::Symlink
        | FileKind::Fifo
        | FileKind::Socket
        | FileKind::CharDevice
        | FileKind::BlockDevice => Err(Errno::INVAL.into()),
    }
}

/// Notes that content was changed.
fn update_change_times(attr: &mut InodeAttr, now: UnixTime) {
    attr.mtime = now;
    advance_change_time(attr, now);
}

/// Takes away what lets a program run as somebody else.
pub(crate) fn clear_set_ids(attr: &mut InodeAttr) {
    attr.mode &= !SET_UID;
    if attr.mode & GROUP_EXEC != 0 {
        attr.mode &= !SET_GID;
    }
}

#[cfg(test)]
mod tests;
