//! Finding data and holes.

use std::ops::ControlFlow;

use rustix::io::Errno;
use vellum_types::{ExtentSource, Ino};
use vellum_volume::tree::SeekTarget;

use super::extents::{find_overlapping, visit_extents};
use super::read_file_attr;
use crate::error::Result;
use crate::tree::MapReader;

/// The first offset from `offset` on where there is what is looked for; `ENXIO` if there is none.
pub(crate) fn seek_in_state(view: &dyn MapReader, ino: Ino, offset: u64, seek: SeekTarget) -> Result<u64> {
    let attr = read_file_attr(view, ino)?;
    // `lseek(2)` fails so from the end on, also for holes.
    if offset >= attr.size {
        return Err(Errno::NXIO.into());
    }
    match (&attr.inline, seek) {
        (Some(_), SeekTarget::Data) => Ok(offset),
        // Every file has a hole at its end.
        (Some(_), SeekTarget::Hole) => Ok(attr.size),
        (None, SeekTarget::Data) => {
            find_next_data(view, ino, offset, attr.size)?.ok_or_else(|| Errno::NXIO.into())
        }
        (None, SeekTarget::Hole) => Ok(find_next_hole(view, ino, offset, attr.size)?.min(attr.size)),
    }
}

fn find_next_data(view: &dyn MapReader, ino: Ino, offset: u64, size: u64) -> Result<Option<u64>> {
    let is_data = |extent: &vellum_types::Extent| extent.source != ExtentSource::Hole;
    // An extent that begins before the offset may cover it. The visit below only meets extents that begin
    // from the offset on.
    if find_overlapping(view, ino, offset..offset + 1)?.iter().any(|(_, extent)| is_data(extent)) {
        return Ok(Some(offset));
    }
    let mut found = None;
    visit_extents(view, ino, offset..size, &mut |(start, extent)| {
        if !is_data(&extent) {
            return ControlFlow::Continue(());
        }
        found = Some(start);
        ControlFlow::Break(())
    })?;
    Ok(found)
}

fn find_next_hole(view: &dyn MapReader, ino: Ino, offset: u64, size: u64) -> Result<u64> {
    let mut at = offset;
    let mut step = |(start, extent): super::extents::PlacedExtent| {
        // A gap between two extents reads as zeros, just as a hole that is stored does.
        if start > at || extent.source == ExtentSource::Hole {
            return ControlFlow::Break(());
        }
        at = at.max(start + extent.len);
        ControlFlow::Continue(())
    };
    for extent in find_overlapping(view, ino, offset..offset + 1)? {
        if step(extent).is_break() {
            return Ok(offset);
        }
    }
    visit_extents(view, ino, offset..size, &mut step)?;
    Ok(at)
}
