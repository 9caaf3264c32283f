//! Writing: data is appended to the write log first, then one transaction refers to it. Small files stay inline.

use rustix::io::Errno;
use vellum_host::clock::current_time;
use vellum_types::limits::{FILE_SIZE_MAX, INLINE_MAX};
use vellum_types::{Extent, ExtentSource, Ino, InodeAttr, MapKey, UnixTime};

use super::extents::{clear_extents, is_single_extent};
use super::{LiveContent, clear_set_ids, read_file_attr, update_change_times};
use crate::attributes::xattr::remove_capability;
use crate::error::Result;
use crate::log::{AppendedData, FRAME_MAX};
use crate::tree::LiveTransaction;

/// Where a write goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum WritePosition {
    At(u64),
    End,
}

/// A write under way.
pub(super) struct PendingWrite {
    ino: Ino,
    place: WritePosition,
    /// Bytes to be written.
    len: usize,
    kill_suid: bool,
    /// When it happens; None: whoever writes keeps the file's times.
    now: Option<UnixTime>,
}

impl LiveContent {
    /// Writes at an offset; gives how many bytes were written, which is fewer only at the largest size.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8], kill_suid: bool) -> Result<usize> {
        let place = WritePosition::At(offset);
        self.execute_write(&PendingWrite::new(ino, place, data.len(), kill_suid), data)
    }

    /// Writes back what was written before, at a time that whoever kept it tells by itself ([`crate::AttributeChanges`]).
    pub fn write_back(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        let place = WritePosition::At(offset);
        let write = PendingWrite { now: None, ..PendingWrite::new(ino, place, data.len(), false) };
        self.execute_write(&write, data)
    }

    /// Writes at the end, wherever that is by then.
    pub fn append_to_file(&self, ino: Ino, data: &[u8], kill_suid: bool) -> Result<usize> {
        let place = WritePosition::End;
        self.execute_write(&PendingWrite::new(ino, place, data.len(), kill_suid), data)
    }

    fn execute_write(&self, write: &PendingWrite, data: &[u8]) -> Result<usize> {
        // A write of 0 bytes changes nothing, not even a time, but still has to fail for what is no file.
        if data.is_empty() {
            return self.map.read_head_state(|view| read_file_attr(view, write.ino)).map(|_| 0);
        }
        if data.len() <= INLINE_MAX && self.can_stay_inline(write)? {
            self.log.wait_for_disk_space(data.len() as u64)?;
            // It may not be inline any more by now. Then it is written as what does not fit.
            if let Some(written) = self.map.apply_change(|txn| write.write_inline(txn, data))? {
                return Ok(written);
            }
        }
        // Before the transaction, and without its lock: writing takes long, and a transaction only names what is
        // there. Held to the end, the frames keep their segments.
        let frames: Vec<AppendedData> =
            data.chunks(FRAME_MAX).map(|data| self.log.append_data(data)).collect::<Result<_>>()?;
        let extents: Vec<Extent> = frames.iter().map(frame_extent).collect();
        self.map.apply_change(|txn| write.write_extents(self, txn, &extents))
    }

    /// Looks before the data goes to the log, so that what is small does not.
    fn can_stay_inline(&self, write: &PendingWrite) -> Result<bool> {
        match write.place {
            WritePosition::At(offset) if offset.saturating_add(write.len as u64) > INLINE_MAX as u64 => {
                // What ends behind this is never inline, whatever the file holds.
                Ok(false)
            }
            WritePosition::At(_) | WritePosition::End => {
                let attr = self.map.read_head_state(|view| read_file_attr(view, write.ino))?;
                Ok(can_hold_inline(&attr) && write.end_offset(&attr)? <= INLINE_MAX as u64)
            }
        }
    }

    /// Moves inline content out into an extent, so that it can grow. Part of a transaction: should that not be
    /// committed, what went to the log is named by nothing.
    pub(super) fn spill_inline_content(
        &self,
        txn: &mut LiveTransaction<'_>,
        ino: Ino,
        attr: &mut InodeAttr,
    ) -> Result<()> {
        let Some(content) = attr.inline.take().filter(|content| !content.is_empty()) else { return Ok(()) };
        let frame = self.log.append_without_waiting(&content)?;
        name_extent(txn, ino, 0, frame_extent(&frame));
        Ok(())
    }
}

/// Whether a file has no extents and can have its content beside its attributes.
pub(super) fn can_hold_inline(attr: &InodeAttr) -> bool {
    attr.inline.is_some() || attr.size == 0
}

fn frame_extent(frame: &AppendedData) -> Extent {
    let source = ExtentSource::WriteLog { segment: frame.segment, offset: frame.offset };
    Extent { len: frame.len, source }
}

fn name_extent(txn: &mut LiveTransaction<'_>, ino: Ino, at: u64, extent: Extent) {
    txn.set_key(MapKey::for_extent(ino, at), &extent.encode());
}

impl PendingWrite {
    /// A write that happens now.
    pub fn new(ino: Ino, place: WritePosition, len: usize, kill_suid: bool) -> Self {
        Self { ino, place, len, kill_suid, now: Some(current_time()) }
    }

    fn start_offset(&self, attr: &InodeAttr) -> Result<u64> {
        let start = match self.place {
            WritePosition::At(offset) => offset,
            WritePosition::End => attr.size,
        };
        if start < FILE_SIZE_MAX { Ok(start) } else { Err(Errno::FBIG.into()) }
    }

    fn end_offset(&self, attr: &InodeAttr) -> Result<u64> {
        Ok(self.start_offset(attr)?.saturating_add(self.len as u64).min(FILE_SIZE_MAX))
    }

    /// Writes if the content is inline and stays so.
    fn write_inline(&self, txn: &mut LiveTransaction<'_>, data: &[u8]) -> Result<Option<usize>> {
        let mut attr = read_file_attr(txn, self.ino)?;
        let start = self.start_offset(&attr)?;
        let end = self.end_offset(&attr)?;
        if !can_hold_inline(&attr) || end > INLINE_MAX as u64 {
            return Ok(None);
        }
        let start = start as usize;
        let end = end as usize;
        let mut content = attr.inline.take().unwrap_or_default();
        content.resize(content.len().max(end), 0);
        if let Some(place) = content.get_mut(start..end) {
            place.copy_from_slice(data);
        }
        attr.size = content.len() as u64;
        attr.inline = Some(content);
        self.finish_write(txn, attr)?;
        Ok(Some(self.len))
    }

    /// Names what stands in the log, or in the store.
    pub fn write_extents(
        &self,
        content: &LiveContent,
        txn: &mut LiveTransaction<'_>,
        extents: &[Extent],
    ) -> Result<usize> {
        let mut attr = read_file_attr(txn, self.ino)?;
        let start = self.start_offset(&attr)?;
        let end = self.end_offset(&attr)?;
        // All of the old content is overwritten: it need not move to the log first.
        if start == 0 && end >= attr.size {
            attr.inline = None;
        }
        content.spill_inline_content(txn, self.ino, &mut attr)?;
        // Nothing lies beyond the size; and what has the place of a single extent is replaced by it.
        if start < attr.size && !(extents.len() == 1 && is_single_extent(txn, self.ino, &(start..end))?) {
            clear_extents(txn, self.ino, start..end)?;
        }
        let mut at = start;
        for extent in extents {
            // They may reach beyond the largest size. Those bytes are not named, and count as not written.
            let len = extent.len.min(end - at);
            if len > 0 {
                name_extent(txn, self.ino, at, Extent { len, source: extent.source });
            }
            at += len;
        }
        // Of what is large no newer or older state has the content inline: its extents alone need to be said.
        if self.now.is_some() || self.kill_suid || end > attr.size || attr.size <= INLINE_MAX as u64 {
            attr.size = attr.size.max(end);
            self.finish_write(txn, attr)?;
        }
        Ok((end - start) as usize)
    }

    fn finish_write(&self, txn: &mut LiveTransaction<'_>, mut attr: InodeAttr) -> Result<()> {
        if let Some(now) = self.now {
            update_change_times(&mut attr, now);
        }
        if self.kill_suid {
            // The kernel knows the privileges of the caller, and says with each write whether these have to
            // go.
            clear_set_ids(&mut attr);
            remove_capability(txn, self.ino)?;
        }
        txn.set_inode_attr(self.ino, &attr);
        Ok(())
    }
}
