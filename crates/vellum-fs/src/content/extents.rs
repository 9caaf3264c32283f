//! The extents of one file: finding those that touch a range, and taking a range out of them.

use std::ops::{ControlFlow, Range};

use vellum_map::KeySpan;
use vellum_types::limits::EXTENT_MAX;
use vellum_types::{Extent, ExtentSource, FileKind, Ino, InodeAttr, MapKey, MapKeyRef};

use crate::error::{FsError, Result};
use crate::tree::{LiveTransaction, MapReader, wrap_decode_error};

/// An extent and where it begins in the file.
pub type PlacedExtent = (u64, Extent);

/// How far back the extent that covers an offset is looked for at first: four pages, what a file that is rewritten
/// here and there consists of. Then sixteen times as far, and so on.
const LOOK_BACK: u64 = 16 << 10;

/// Visits the extents that begin within a range, in order, until `visit` breaks off.
pub fn visit_extents<R: MapReader + ?Sized>(
    view: &R,
    ino: Ino,
    starts: Range<u64>,
    visit: &mut dyn FnMut(PlacedExtent) -> ControlFlow<()>,
) -> Result<()> {
    let span = KeySpan::from_bounds(
        MapKey::for_extent(ino, starts.start).as_bytes(),
        MapKey::for_extent(ino, starts.end).as_bytes(),
    );
    // The visitor of a scan cannot fail, so that the error is kept until the scan has ended.
    let mut failed = None;
    view.scan(span, &mut |key, value| match parse_extent(ino, key, value) {
        Ok(extent) => visit(extent),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    })?;
    failed.map_or(Ok(()), Err)
}

fn parse_extent(ino: Ino, key: &[u8], value: &[u8]) -> Result<PlacedExtent> {
    let parsed = MapKeyRef::parse(key).and_then(|key| Ok((key, Extent::decode(value)?)));
    let bad = || FsError::BadTree(format!("inode {ino} has an extent that is none"));
    match parsed.map_err(wrap_decode_error("an extent"))? {
        (MapKeyRef::Extent(_, offset), extent) => {
            offset.checked_add(extent.len).map(|_| (offset, extent)).ok_or_else(bad)
        }
        _ => Err(bad()),
    }
}

/// The extents that have bytes within a range, in order.
pub fn find_overlapping<R: MapReader + ?Sized>(
    view: &R,
    ino: Ino,
    range: Range<u64>,
) -> Result<Vec<PlacedExtent>> {
    find_first_overlapping(view, ino, range, usize::MAX)
}

/// The first of them, about as many as asked for.
pub fn find_first_overlapping<R: MapReader + ?Sized>(
    view: &R,
    ino: Ino,
    range: Range<u64>,
    count: usize,
) -> Result<Vec<PlacedExtent>> {
    let mut found = Vec::new();
    let mut back = LOOK_BACK;
    let mut from = range.start.saturating_sub(back);
    visit_extents(view, ino, from..range.end, &mut |extent| {
        found.push(extent);
        // Extents that begin before the range do not count: only the last of them can have bytes within it.
        let within = found.len() < count || extent.0 < range.start;
        if within { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    // Of those that begin before the range only the last can reach into it.
    while found.first().is_none_or(|(start, _)| *start > range.start) && from > 0 && back < EXTENT_MAX {
        back *= 16;
        let until = std::mem::replace(&mut from, range.start.saturating_sub(back));
        let mut last = None;
        visit_extents(view, ino, from..until, &mut |extent| {
            last = Some(extent);
            ControlFlow::Continue(())
        })?;
        if let Some(last) = last {
            found.insert(0, last);
            break;
        }
    }
    found.retain(|(start, extent)| start + extent.len > range.start);
    Ok(found)
}

/// The piece of an extent from its byte `skip` on.
pub fn slice_extent(extent: &Extent, skip: u64, len: u64) -> Result<Extent> {
    let bad = || FsError::BadTree("an extent reaches beyond what it can name".into());
    let source = match extent.source {
        ExtentSource::Hole => ExtentSource::Hole,
        ExtentSource::Chunk { id, skip: before } => {
            // The numbers may come from a hostile tree, so that the sum has to be checked.
            let skip = u64::from(before).checked_add(skip).and_then(|skip| u32::try_from(skip).ok());
            ExtentSource::Chunk { id, skip: skip.ok_or_else(bad)? }
        }
        ExtentSource::WriteLog { segment, offset } => {
            ExtentSource::WriteLog { segment, offset: offset.checked_add(skip).ok_or_else(bad)? }
        }
    };
    Ok(Extent { len, source })
}

/// What of an extent lies within a range.
pub fn clip_extent((start, extent): PlacedExtent, range: &Range<u64>) -> Result<Option<PlacedExtent>> {
    let from = start.max(range.start);
    let to = (start + extent.len).min(range.end);
    if from >= to {
        return Ok(None);
    }
    Ok(Some((from, slice_extent(&extent, from - start, to - from)?)))
}

/// Whether one extent covers a range, and nothing else: a page of a file that is written here and there again.
pub fn is_single_extent<R: MapReader + ?Sized>(view: &R, ino: Ino, range: &Range<u64>) -> Result<bool> {
    let key = MapKey::for_extent(ino, range.start);
    let Some(value) = view.get_value(&key)? else { return Ok(false) };
    let (start, extent) = parse_extent(ino, key.as_bytes(), &value)?;
    Ok(start + extent.len == range.end)
}

/// How many bytes of a range are stored, and are no hole. Of a file whose content is inline: all within its size.
pub fn stored_bytes_in_range<R: MapReader + ?Sized>(view: &R, ino: Ino, range: &Range<u64>) -> Result<u64> {
    let attr = super::read_file_attr(view, ino)?;
    let range = range.start.min(attr.size)..range.end.min(attr.size);
    if attr.inline.is_some() {
        return Ok(range.end - range.start);
    }
    let mut stored = 0;
    for placed in find_overlapping(view, ino, range.clone())? {
        if placed.1.source != ExtentSource::Hole {
            stored += clip_extent(placed, &range)?.map_or(0, |(_, extent)| extent.len);
        }
    }
    Ok(stored)
}

/// Extents that are counted to find out how much of a file is stored. Of one that has more, as much of the rest is taken to
/// be stored as of its beginning.
const COUNTED_MAX: usize = 1 << 14;

/// Stored bytes of a file, and what was counted to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountedBytes {
    /// Bytes that are no holes.
    pub stored: u64,
    /// Extents that were looked at.
    pub extents: usize,
}

/// How many bytes of a file are stored, and are no holes.
pub fn count_stored_bytes<R: MapReader + ?Sized>(
    view: &R,
    ino: Ino,
    attr: &InodeAttr,
) -> Result<CountedBytes> {
    if attr.kind != FileKind::File || attr.inline.is_some() || attr.size == 0 {
        return Ok(CountedBytes { stored: attr.size, extents: 0 });
    }
    // Most files are one extent, which a look-up finds sooner than a scan.
    if attr.size <= EXTENT_MAX
        && let Some(value) = view.get_value(&MapKey::for_extent(ino, 0))?
    {
        let extent = Extent::decode(&value).map_err(wrap_decode_error("an extent"))?;
        if extent.len >= attr.size {
            let stored = if extent.source == ExtentSource::Hole { 0 } else { extent.len };
            return Ok(CountedBytes { stored, extents: 1 });
        }
    }
    let mut stored = 0u64;
    let mut end = 0;
    let mut count = 0;
    visit_extents(view, ino, 0..attr.size, &mut |(start, extent)| {
        end = start + extent.len;
        count += 1;
        if extent.source != ExtentSource::Hole {
            stored += extent.len;
        }
        if count < COUNTED_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    if count < COUNTED_MAX {
        return Ok(CountedBytes { stored, extents: count });
    }
    // Only the beginning was counted. The product of two sizes may exceed 64 bits.
    let share = u128::from(stored) * u128::from(attr.size) / u128::from(end.max(1));
    let stored = u64::try_from(share).unwrap_or(attr.size).min(attr.size);
    Ok(CountedBytes { stored, extents: count })
}

/// Takes a range out of a file's extents.
pub fn clear_extents(txn: &mut LiveTransaction<'_>, ino: Ino, range: Range<u64>) -> Result<()> {
    for (start, extent) in find_overlapping(txn, ino, range.clone())? {
        let end = start + extent.len;
        // What is left in front keeps its key. What is left behind gets one of its own, since keys contain
        // the offset at which an extent begins.
        match clip_extent((start, extent), &(start..range.start))? {
            Some((_, before)) => txn.set_key(MapKey::for_extent(ino, start), &before.encode()),
            None => txn.delete_key(MapKey::for_extent(ino, start)),
        }
        if let Some((from, after)) = clip_extent((start, extent), &(range.end..end))? {
            txn.set_key(MapKey::for_extent(ino, from), &after.encode());
        }
    }
    Ok(())
}
