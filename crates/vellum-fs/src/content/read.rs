//! Reading: the extents of a range are looked up at one moment, their bytes are fetched after that.

use std::io;

use vellum_types::{ExtentSource, Ino};

use super::extents::{PlacedExtent, find_overlapping};
use super::{LiveContent, read_file_attr};
use crate::error::{FsError, Result};
use crate::tree::MapReader;
use crate::tree::head::LayeredState;

/// How often a read begins anew because a segment that it was to read is gone: its data was published meanwhile.
const TRIES: usize = 8;
/// Chunks that are fetched and held at once: some MiB.
const BATCH: usize = 64;

/// What a range of a file holds.
enum RangeContent {
    Inline(Vec<u8>),
    /// Up to an end, which may be that of the file.
    Extents {
        end: u64,
        is_file_end: bool,
        extents: Vec<PlacedExtent>,
    },
}

impl LiveContent {
    /// Reads the current state.
    pub(crate) fn read_live(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.read_with_retries(
            ino,
            &|| self.map.read_head_state(|view| read_range_content(view, ino, offset, len)),
            offset,
        )
    }

    /// Reads a file as a sealed state has it, of which the layers stay.
    pub(crate) fn read_sealed(
        &self,
        state: &LayeredState,
        ino: Ino,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>> {
        self.read_with_retries(
            ino,
            &|| self.map.read_sealed_state(state, |view| read_range_content(view, ino, offset, len)),
            offset,
        )
    }

    /// Returns whether a read would only copy bytes: the content is inline, in the write log, or in the chunk cache.
    pub fn is_content_cached(&self, ino: Ino, offset: u64, len: usize) -> bool {
        let is_near = |(_, extent): &PlacedExtent| match extent.source {
            ExtentSource::Hole | ExtentSource::WriteLog { .. } => true,
            ExtentSource::Chunk { id, .. } => self.source.contains_chunk(&id),
        };
        match self.map.read_head_state(|view| read_range_content(view, ino, offset, len)) {
            Ok(RangeContent::Inline(_)) => true,
            Ok(RangeContent::Extents { extents, .. }) => extents.iter().all(is_near),
            // Who reads learns what is the matter.
            Err(_) => false,
        }
    }

    fn read_with_retries(
        &self,
        ino: Ino,
        look: &dyn Fn() -> Result<RangeContent>,
        offset: u64,
    ) -> Result<Vec<u8>> {
        let mut tries = 0;
        loop {
            match self.read_range_once(ino, look()?, offset) {
                Err(FsError::Log { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && tries < TRIES =>
                {
                    tries += 1;
                }
                other => {
                    // What is gone by now was not read by anybody who asks.
                    let _ = self.map.record_access(ino);
                    return other;
                }
            }
        }
    }

    fn read_range_once(&self, ino: Ino, held: RangeContent, offset: u64) -> Result<Vec<u8>> {
        let (end, is_file_end, extents) = match held {
            RangeContent::Inline(content) => return Ok(content),
            RangeContent::Extents { end, is_file_end, extents } => (end, is_file_end, extents),
        };
        // Before this range is fetched, so that both are on their way together.
        self.source.prefetch_after(&self.map, ino, offset..end, is_file_end)?;
        // Zeros are what holes read as.
        let mut content = vec![0; (end - offset) as usize];
        for batch in extents.chunks(BATCH) {
            self.source.fill_from_extents(ino, offset, &mut content, batch)?;
        }
        Ok(content)
    }
}

/// What a file holds in a range.
fn read_range_content(view: &dyn MapReader, ino: Ino, offset: u64, len: usize) -> Result<RangeContent> {
    let attr = read_file_attr(view, ino)?;
    // As POSIX has it, a read that reaches beyond the end of the file gives fewer bytes.
    let end = offset.saturating_add(len as u64).min(attr.size);
    Ok(match attr.inline {
        _ if offset >= end => RangeContent::Inline(Vec::new()),
        Some(content) => {
            RangeContent::Inline(content.get(offset as usize..end as usize).unwrap_or_default().to_vec())
        }
        None => RangeContent::Extents {
            end,
            is_file_end: end == attr.size,
            extents: find_overlapping(view, ino, offset..end)?,
        },
    })
}
