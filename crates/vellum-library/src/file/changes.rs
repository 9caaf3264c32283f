//! What a file can be given through the open file, also while it has no name: attributes, and content of another file.

use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use rustix::io::Errno;
use vellum_fs::{AttributeChanges, FsError, TimeChange, XattrFlags};

use super::File;
use crate::dir::caller;
use crate::error::Result;
use crate::metadata::from_system_time;
use crate::source::ReadSource;

impl File {
    /// Copies a range of another file of the same worktree to an offset. Content is shared, not copied. Returns the number of
    /// bytes, which is smaller than the range only if the other file ends before.
    pub fn copy_range(&self, from: &Self, range: Range<u64>, to: u64) -> Result<u64> {
        self.check_allowed(self.options.is_writable() && from.options.read)?;
        let is_same = match (&self.source, &from.source) {
            (ReadSource::Live(own), ReadSource::Live(other)) => Arc::ptr_eq(own, other),
            _ => false,
        };
        if !is_same {
            // Inode numbers mean nothing in another worktree.
            return Err(FsError::Posix(Errno::XDEV).into());
        }
        let mut done = 0;
        while done < range.end.saturating_sub(range.start) {
            let left = range.end - range.start - done;
            // One step copies a limited number of extents. Between two steps a restore may come in, which each step checks.
            let count = self.change_file(|fs| {
                from.check_epoch()?;
                fs.content().copy_range(from.ino, range.start + done, self.ino, to + done, left)
            })?;
            if count == 0 {
                break;
            }
            done += count;
        }
        Ok(done)
    }

    /// Sets the permission bits, the set-id bits and the sticky bit.
    pub fn set_mode(&self, mode: u32) -> Result<()> {
        self.set_attributes(&AttributeChanges { mode: Some(mode), ..AttributeChanges::default() })
    }

    /// Sets the time of the last change of content.
    pub fn set_modified(&self, modified: SystemTime) -> Result<()> {
        let mtime = Some(TimeChange::At(from_system_time(modified)));
        self.set_attributes(&AttributeChanges { mtime, ..AttributeChanges::default() })
    }

    /// Sets an extended attribute; its name begins with `user.`, `trusted.` or `security.`, as on Linux.
    pub fn set_xattr(&self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let set = XattrFlags::default();
        Ok(self.change_file(|fs| fs.attributes().setxattr(self.ino, name.as_ref(), value.as_ref(), set))?)
    }

    /// Returns the extended attributes whose names begin so, in order of their names.
    pub fn xattrs(&self, beginning: impl AsRef<[u8]>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        Ok(self.read_state(|state| {
            let mut names = state.listxattr(self.ino)?;
            names.retain(|name| name.starts_with(beginning.as_ref()));
            let values = names.into_iter().map(|name| {
                let value = state.getxattr(self.ino, &name)?.to_vec();
                Ok((name, value))
            });
            values.collect()
        })?)
    }

    fn set_attributes(&self, set: &AttributeChanges) -> Result<()> {
        Ok(self.change_file(|fs| fs.attributes().setattr(self.ino, set, caller()).map(drop))?)
    }
}
