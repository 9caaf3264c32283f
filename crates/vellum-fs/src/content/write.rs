//! Writing: data goes to the write log first, then one transaction names it. Small files stay inline.

use rustix::io::Errno;
use vellum_types::limits::{FILE_SIZE_MAX, INLINE_MAX};
use vellum_types::{Extent, ExtentSource, Ino, InodeAttr, MapKey, UnixTime};

use super::extents::{clear, is_one};
use super::{drop_set_ids, file_attr, touch};
use crate::clock::now;
use crate::error::Result;
use crate::fs::LiveFilesystem;
use crate::log::{AppendedData, FRAME_MAX};
use crate::tree::{LiveTransaction, MapReader};

/// The extended attribute that gives a program privileges.
const CAPABILITY: &[u8] = b"security.capability";

/// Where a write goes.
#[derive(Debug, Clone, Copy)]
enum WritePosition {
    At(u64),
    End,
}

/// A write under way.
struct PendingWrite<'w> {
    ino: Ino,
    place: WritePosition,
    data: &'w [u8],
    kill_suid: bool,
    /// When it happens; None: whoever writes keeps the file's times.
    now: Option<UnixTime>,
}

impl LiveFilesystem {
    /// Writes at an offset; gives how many bytes were written, which is fewer only at the largest size.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8], kill_suid: bool) -> Result<usize> {
        self.put(&PendingWrite { ino, place: WritePosition::At(offset), data, kill_suid, now: Some(now()) })
    }

    /// Writes back what was written before, at a time that whoever kept it tells by itself ([`crate::AttributeChanges`]).
    pub fn write_back(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        self.put(&PendingWrite { ino, place: WritePosition::At(offset), data, kill_suid: false, now: None })
    }

    /// Writes at the end, wherever that is by then.
    pub fn append(&self, ino: Ino, data: &[u8]) -> Result<usize> {
        self.put(&PendingWrite { ino, place: WritePosition::End, data, kill_suid: false, now: Some(now()) })
    }

    fn put(&self, write: &PendingWrite<'_>) -> Result<usize> {
        if write.data.is_empty() {
            return self.tree.read(|view| file_attr(view, write.ino)).map(|_| 0);
        }
        if write.data.len() <= INLINE_MAX && self.may_stay_inline(write)? {
            self.log.wait_beside(write.data.len() as u64)?;
            if let Some(written) = self.change(|txn| write.inline(txn))? {
                return Ok(written);
            }
        }
        let frames: Vec<AppendedData> =
            write.data.chunks(FRAME_MAX).map(|data| self.log.append(data)).collect::<Result<_>>()?;
        self.change(|txn| write.logged(self, txn, &frames))
    }

    /// Looks before the data goes to the log, so that what is small does not.
    fn may_stay_inline(&self, write: &PendingWrite<'_>) -> Result<bool> {
        match write.place {
            WritePosition::At(offset)
                if offset.saturating_add(write.data.len() as u64) > INLINE_MAX as u64 =>
            {
                Ok(false)
            }
            WritePosition::At(_) | WritePosition::End => {
                let attr = self.tree.read(|view| file_attr(view, write.ino))?;
                Ok(is_inline(&attr) && write.end(&attr)? <= INLINE_MAX as u64)
            }
        }
    }

    /// Moves inline content out into an extent, so that it can grow. Part of a transaction: should that not be
    /// committed, what went to the log is named by nothing.
    pub(super) fn spill(&self, txn: &mut LiveTransaction<'_>, ino: Ino, attr: &mut InodeAttr) -> Result<()> {
        let Some(content) = attr.inline.take().filter(|content| !content.is_empty()) else { return Ok(()) };
        let frame = self.log.append_now(&content)?;
        put_frame(txn, ino, 0, (&frame, frame.len));
        Ok(())
    }
}

/// Whether a file has no extents and can have its content beside its attributes.
pub(super) fn is_inline(attr: &InodeAttr) -> bool {
    attr.inline.is_some() || attr.size == 0
}

/// Names the first bytes of a frame at an offset of a file.
fn put_frame(txn: &mut LiveTransaction<'_>, ino: Ino, at: u64, (frame, len): (&AppendedData, u64)) {
    let source = ExtentSource::WriteLog { segment: frame.segment, offset: frame.offset };
    txn.put(MapKey::extent(ino, at), &Extent { len, source }.encode());
}

impl PendingWrite<'_> {
    fn start(&self, attr: &InodeAttr) -> Result<u64> {
        let start = match self.place {
            WritePosition::At(offset) => offset,
            WritePosition::End => attr.size,
        };
        if start < FILE_SIZE_MAX { Ok(start) } else { Err(Errno::FBIG.into()) }
    }

    fn end(&self, attr: &InodeAttr) -> Result<u64> {
        Ok(self.start(attr)?.saturating_add(self.data.len() as u64).min(FILE_SIZE_MAX))
    }

    /// Writes if the content is inline and stays so.
    fn inline(&self, txn: &mut LiveTransaction<'_>) -> Result<Option<usize>> {
        let mut attr = file_attr(txn, self.ino)?;
        let (start, end) = (self.start(&attr)?, self.end(&attr)?);
        if !is_inline(&attr) || end > INLINE_MAX as u64 {
            return Ok(None);
        }
        let (start, end) = (start as usize, end as usize);
        let mut content = attr.inline.take().unwrap_or_default();
        content.resize(content.len().max(end), 0);
        if let Some(place) = content.get_mut(start..end) {
            place.copy_from_slice(self.data);
        }
        attr.size = content.len() as u64;
        attr.inline = Some(content);
        self.finish(txn, attr)?;
        Ok(Some(self.data.len()))
    }

    /// Names what stands in the log.
    fn logged(
        &self,
        fs: &LiveFilesystem,
        txn: &mut LiveTransaction<'_>,
        frames: &[AppendedData],
    ) -> Result<usize> {
        let mut attr = file_attr(txn, self.ino)?;
        let (start, end) = (self.start(&attr)?, self.end(&attr)?);
        if start == 0 && end >= attr.size {
            attr.inline = None;
        }
        fs.spill(txn, self.ino, &mut attr)?;
        // Nothing lies beyond the size; and what has the place of a single frame is replaced by it.
        if start < attr.size && !(frames.len() == 1 && is_one(txn, self.ino, &(start..end))?) {
            clear(txn, self.ino, start..end)?;
        }
        let mut at = start;
        for frame in frames {
            let len = frame.len.min(end - at);
            if len > 0 {
                put_frame(txn, self.ino, at, (frame, len));
            }
            at += len;
        }
        // Of what is large no newer or older state has the content inline: its extents alone need to be said.
        if self.now.is_some() || self.kill_suid || end > attr.size || attr.size <= INLINE_MAX as u64 {
            attr.size = attr.size.max(end);
            self.finish(txn, attr)?;
        }
        Ok((end - start) as usize)
    }

    fn finish(&self, txn: &mut LiveTransaction<'_>, mut attr: InodeAttr) -> Result<()> {
        if let Some(now) = self.now {
            touch(&mut attr, now);
        }
        if self.kill_suid {
            drop_set_ids(&mut attr);
            drop_capability(txn, self.ino)?;
        }
        txn.put_attr(self.ino, &attr);
        Ok(())
    }
}

/// Takes away the privileges that a program gets from its file.
pub(crate) fn drop_capability(txn: &mut LiveTransaction<'_>, ino: Ino) -> Result<()> {
    let key = MapKey::xattr(ino, CAPABILITY);
    if txn.value(&key)?.is_some() {
        txn.delete(key);
    }
    Ok(())
}
