//! Growing and shrinking files, and punching holes.

use std::ops::Range;

use rustix::io::Errno;
use vellum_host::clock::current_time;
use vellum_types::limits::{FILE_SIZE_MAX, INLINE_MAX};
use vellum_types::{Ino, InodeAttr};

use super::extents::{clear_extents, stored_bytes_in_range};
use super::{LiveContent, SET_GID, clear_set_ids, read_file_attr, update_change_times};
use crate::error::{FsError, Result};
use crate::fs::RequestCaller;
use crate::tree::LiveTransaction;

/// What `fallocate` is to do. All false: the file is at least so long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AllocateMode {
    /// The size stays as it is.
    pub keep_size: bool,
    /// The range becomes a hole.
    pub punch_hole: bool,
    /// The range reads as zeros.
    pub zero_range: bool,
    /// The range is taken out; not supported.
    pub collapse_range: bool,
    /// A range is pushed in; not supported.
    pub insert_range: bool,
    /// Clears set-id bits as a write by this caller would; None for root.
    pub drops_set_ids_for: Option<RequestCaller>,
}

impl LiveContent {
    /// Sets a file's size.
    pub fn truncate(&self, ino: Ino, size: u64) -> Result<()> {
        let now = current_time();
        self.map.apply_change(|txn| {
            let mut attr = read_file_attr(txn, ino)?;
            self.truncate_in_transaction(txn, ino, &mut attr, size)?;
            update_change_times(&mut attr, now);
            txn.set_inode_attr(ino, &attr);
            Ok(())
        })?;
        self.forget_count(ino);
        Ok(())
    }

    /// The same as a part of a transaction. The caller sees to the times, to what else changes, and puts the
    /// attributes.
    pub(crate) fn truncate_in_transaction(
        &self,
        txn: &mut LiveTransaction<'_>,
        ino: Ino,
        attr: &mut InodeAttr,
        size: u64,
    ) -> Result<()> {
        if size > FILE_SIZE_MAX {
            return Err(Errno::FBIG.into());
        }
        // An empty file counts as inline, so that the next small write can stay beside the attributes.
        if size == 0 {
            if attr.inline.is_none() && attr.size > 0 {
                clear_extents(txn, ino, 0..attr.size)?;
            }
            attr.inline = Some(Vec::new());
        } else if size < attr.size {
            match &mut attr.inline {
                Some(content) => content.truncate(size as usize),
                None => clear_extents(txn, ino, size..attr.size)?,
            }
        } else if size > attr.size {
            self.extend_file(txn, ino, attr, size)?;
        }
        attr.size = size;
        Ok(())
    }

    /// What comes new is a hole, unless the content is inline and can stay so. An empty file gets nothing but a hole.
    fn extend_file(
        &self,
        txn: &mut LiveTransaction<'_>,
        ino: Ino,
        attr: &mut InodeAttr,
        size: u64,
    ) -> Result<()> {
        match &mut attr.inline {
            Some(content) if !content.is_empty() && size <= INLINE_MAX as u64 => {
                content.resize(size as usize, 0);
                Ok(())
            }
            _ => self.spill_inline_content(txn, ino, attr),
        }
    }

    /// Allocates or deallocates a range, as `fallocate(2)`. No space is reserved, so a later write can still fail; but
    /// an allocation that exceeds the free space fails with `ENOSPC`.
    pub fn fallocate(&self, ino: Ino, mode: AllocateMode, offset: u64, len: u64) -> Result<()> {
        let AllocateMode { keep_size, punch_hole, zero_range, collapse_range, insert_range, .. } = mode;
        // A hole is punched within the size or not at all, and one thing is done at a time.
        if collapse_range || insert_range || punch_hole && (zero_range || !keep_size) {
            return Err(Errno::OPNOTSUPP.into());
        }
        if len == 0 {
            return Err(Errno::INVAL.into());
        }
        let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Errno::FBIG)?;
        // Only a plain allocation says that there will be room. The other modes leave holes, which take none.
        if !punch_hole && !zero_range {
            self.check_space(ino, &(offset..end))?;
        }
        let now = current_time();
        self.map.apply_change(|txn| {
            let mut attr = read_file_attr(txn, ino)?;
            let mode_before = attr.mode;
            let size = attr.size;
            if punch_hole || zero_range {
                // Beyond the size nothing is stored: a range that begins there is empty.
                zero_file_range(txn, ino, &mut attr, offset..end.min(size))?;
            }
            if end > size && !keep_size {
                self.truncate_in_transaction(txn, ino, &mut attr, end)?;
            }
            if let Some(caller) = mode.drops_set_ids_for {
                clear_set_ids_for(&mut attr, caller);
            }
            // An allocation within the size stores nothing, and leaves the times as they are.
            if punch_hole || zero_range || attr.size != size || attr.mode != mode_before {
                update_change_times(&mut attr, now);
                txn.set_inode_attr(ino, &attr);
            }
            Ok(())
        })?;
        self.forget_count(ino);
        Ok(())
    }

    /// Fails if there is not room for what of a range has no content yet. A quota is held to by the transaction.
    fn check_space(&self, ino: Ino, range: &Range<u64>) -> Result<()> {
        let disk = rustix::fs::statvfs(self.volume.state.path()).map_err(FsError::Posix)?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if range.end - range.start <= free {
            return Ok(());
        }
        // Counted only if the disk has no room for the whole range, since it costs a scan: the file may have
        // most of it already.
        let held = self.map.read_head_state(|view| stored_bytes_in_range(view, ino, range))?;
        if range.end - range.start - held <= free { Ok(()) } else { Err(Errno::NOSPC.into()) }
    }
}

/// Takes away what lets a program run as somebody else, as Linux does when this caller changes the content: a set-group-id
/// bit also where the group may not execute, if the caller is not of it.
fn clear_set_ids_for(attr: &mut InodeAttr, caller: RequestCaller) {
    clear_set_ids(attr);
    if caller.gid != attr.gid {
        attr.mode &= !SET_GID;
    }
}

/// Lets a range within the size read as zeros.
fn zero_file_range(
    txn: &mut LiveTransaction<'_>,
    ino: Ino,
    attr: &mut InodeAttr,
    range: Range<u64>,
) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    match &mut attr.inline {
        Some(content) => {
            if let Some(zeroed) = content.get_mut(range.start as usize..range.end as usize) {
                zeroed.fill(0);
            }
            Ok(())
        }
        None => clear_extents(txn, ino, range),
    }
}
