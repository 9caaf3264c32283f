//! Copies ranges between files without copying bytes: both files then refer to the same data.

use std::ops::Range;

use rustix::io::Errno;
use vellum_host::clock::current_time;
use vellum_types::limits::{FILE_SIZE_MAX, INLINE_MAX};
use vellum_types::{Extent, ExtentSource, Ino, MapKey};

use super::extents::{PlacedExtent, clear_extents, clip_extent, find_first_overlapping};
use super::write::can_hold_inline;
use super::{LiveContent, read_file_attr, update_change_times};
use crate::error::Result;
use crate::tree::LiveTransaction;

/// Extents that one transaction copies at most; who asked goes on where it ended.
pub(crate) const EXTENTS_MAX: usize = 1024;

/// A range to be copied.
struct CopyRange {
    source: Ino,
    from: u64,
    target: Ino,
    to: u64,
    len: u64,
}

/// What there is to copy: the range, and its extents unless the content is inline.
struct CopySource {
    range: Range<u64>,
    extents: Option<Vec<PlacedExtent>>,
}

/// What came of a transaction.
enum CopyOutcome {
    /// So many bytes are copied.
    Shared(u64),
    /// So many bytes have to be read and written, since one of the files is inline.
    Write(usize),
}

impl LiveContent {
    /// Copies a range of one file over a range of another, or of the same one; gives how many bytes were copied.
    pub fn copy_range(&self, source: Ino, from: u64, target: Ino, to: u64, len: u64) -> Result<u64> {
        let copy = CopyRange { source, from, target, to, len };
        let now = current_time();
        let copied = self.map.apply_change(|txn| {
            let Some(CopySource { range, extents }) = copy.read_source(txn)? else {
                return Ok(CopyOutcome::Shared(0));
            };
            let mut attr = read_file_attr(txn, target)?;
            let count = range.end - range.start;
            // Small content stays inline, and inline content has no extents that could be shared: both cases
            // are read and written like any other bytes.
            let Some(extents) =
                extents.filter(|_| !(can_hold_inline(&attr) && to + count <= INLINE_MAX as u64))
            else {
                return Ok(CopyOutcome::Write(count.min(INLINE_MAX as u64) as usize));
            };
            self.spill_inline_content(txn, target, &mut attr)?;
            let placed: Vec<_> =
                extents.into_iter().map(|extent| clip_extent(extent, &range)).collect::<Result<Vec<_>>>()?;
            // Source and target may be one file, but the ranges do not overlap: this takes nothing away that
            // is being copied.
            clear_extents(txn, target, to..to + count)?;
            for (start, extent) in placed.into_iter().flatten() {
                self.share_extent(txn, target, to + (start - range.start), &extent);
            }
            attr.size = attr.size.max(to + count);
            update_change_times(&mut attr, now);
            txn.set_inode_attr(target, &attr);
            Ok(CopyOutcome::Shared(count))
        })?;
        match copied {
            CopyOutcome::Shared(count) => Ok(count),
            CopyOutcome::Write(count) => {
                // Outside of the transaction, since reading may have to wait for the store.
                let bytes = self.read_live(source, from, count)?;
                Ok(self.write(target, to, &bytes, false)? as u64)
            }
        }
    }

    /// Lets a file have an extent of another one at an offset. Part of a transaction.
    pub(crate) fn share_extent(&self, txn: &mut LiveTransaction<'_>, ino: Ino, at: u64, extent: &Extent) {
        // Before the transaction is committed: publishing must not remove a segment that is named again by then.
        if let ExtentSource::WriteLog { segment, .. } = extent.source {
            self.log.record_reuse(segment);
        }
        txn.set_key(MapKey::for_extent(ino, at), &extent.encode());
    }
}

impl CopyRange {
    /// The range of the source that is there, as much of it as one transaction takes, and what it holds.
    fn read_source(&self, txn: &LiveTransaction<'_>) -> Result<Option<CopySource>> {
        let attr = read_file_attr(txn, self.source)?;
        let room = FILE_SIZE_MAX.saturating_sub(self.to);
        let len = self.len.min(attr.size.saturating_sub(self.from)).min(room);
        if len == 0 {
            return if room == 0 && self.len > 0 { Err(Errno::FBIG.into()) } else { Ok(None) };
        }
        // `copy_file_range(2)` refuses ranges of one file that overlap.
        if self.source == self.target && self.from.abs_diff(self.to) < len {
            return Err(Errno::INVAL.into());
        }
        let mut range = self.from..self.from + len;
        if attr.inline.is_some() {
            return Ok(Some(CopySource { range, extents: None }));
        }
        // One more than is copied: where it begins is where the caller goes on.
        let mut extents = find_first_overlapping(txn, self.source, range.clone(), EXTENTS_MAX + 1)?;
        if let Some((start, _)) = extents.get(EXTENTS_MAX) {
            range.end = *start;
            extents.truncate(EXTENTS_MAX);
        }
        Ok(Some(CopySource { range, extents: Some(extents) }))
    }
}
