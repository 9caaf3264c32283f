//! Reading: the extents of a range are looked up at one moment, their bytes are fetched after that.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vellum_types::{BlobId, ExtentSource, Ino};

use super::extents::{PlacedExtent, clip_extent, find_overlapping};
use super::read_file_attr;
use crate::error::{FsError, Result};
use crate::fs::LiveFilesystem;
use crate::head::LayeredState;
use crate::past::Epoch;
use crate::tree::MapReader;

/// How often a read begins anew because a segment that it was to read is gone: its data was published meanwhile.
const TRIES: usize = 8;
/// Chunks that are fetched and held at once: some MiB.
const BATCH: usize = 64;
/// What is fetched ahead of a reader at first, bytes.
const WINDOW_MIN: u64 = 512 << 10;
/// What is fetched ahead at most, bytes: enough for the time of a request to a store.
const WINDOW_MAX: u64 = 8 << 20;
/// A first read of so many bytes is taken for the beginning of all of the file: it is as much as the kernel asks for when
/// a program reads in large pieces.
const EAGER: u64 = 128 << 10;
/// How far a read may be from where the last one ended and still be in sequence: the kernel asks for several at once.
const SLACK: u64 = 1 << 20;

/// Files of which it is known how far they were read: those read lately, twice as many at most.
const STREAMS: usize = 256;

/// How far a file was read in sequence, and how far ahead it is being fetched: all who read it share that.
#[derive(Debug, Default)]
struct ReadStream {
    /// Where the last read ended.
    read_to: AtomicU64,
    /// Up to where chunks were asked for.
    fetched_to: AtomicU64,
    /// How much to ask for next, bytes.
    window: AtomicU64,
}

/// The streams of the files that were read lately.
#[derive(Debug, Default)]
pub(crate) struct ReadStreams(Mutex<StreamGenerations>);

#[derive(Debug, Default)]
struct StreamGenerations {
    young: HashMap<Ino, Arc<ReadStream>>,
    old: HashMap<Ino, Arc<ReadStream>>,
}

/// What a range of a file holds.
enum RangeContent {
    Inline(Vec<u8>),
    Extents(u64, Vec<PlacedExtent>),
}

impl LiveFilesystem {
    /// Reads; fewer bytes come only at the end of the file.
    pub fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.read_with_retries(
            ino,
            &|| self.tree.read_head_state(|view| read_range_content(view, ino, offset, len)),
            offset,
        )
    }

    /// Reads a file as a past state has it.
    pub fn read_past_content(&self, past: Epoch, ino: Ino, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.read_with_retries(
            ino,
            &|| self.read_past_state(past, |view| read_range_content(view, ino, offset, len)),
            offset,
        )
    }

    /// Reads a file as a sealed state has it, of which the layers stay.
    pub(crate) fn read_sealed_content(
        &self,
        state: &LayeredState,
        ino: Ino,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>> {
        self.read_with_retries(
            ino,
            &|| self.tree.read_sealed_state(state, |view| read_range_content(view, ino, offset, len)),
            offset,
        )
    }

    /// Whether what a read wants only has to be copied: it is inline, in the write log, or decoded already.
    pub fn is_content_cached(&self, ino: Ino, offset: u64, len: usize) -> bool {
        let is_near = |(_, extent): &PlacedExtent| match extent.source {
            ExtentSource::Hole | ExtentSource::WriteLog { .. } => true,
            ExtentSource::Chunk { id, .. } => self.chunks.contains_chunk(&id),
        };
        match self.tree.read_head_state(|view| read_range_content(view, ino, offset, len)) {
            Ok(RangeContent::Inline(_)) => true,
            Ok(RangeContent::Extents(_, extents)) => extents.iter().all(is_near),
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
                    let _ = self.record_access(ino);
                    return other;
                }
            }
        }
    }

    fn read_range_once(&self, ino: Ino, held: RangeContent, offset: u64) -> Result<Vec<u8>> {
        let (end, extents) = match held {
            RangeContent::Inline(content) => return Ok(content),
            RangeContent::Extents(end, extents) => (end, extents),
        };
        self.read_ahead(ino, offset..end)?;
        let mut content = vec![0; (end - offset) as usize];
        for batch in extents.chunks(BATCH) {
            self.fill_from_extents(ino, offset, &mut content, batch)?;
        }
        Ok(content)
    }

    /// Puts what some extents hold into a buffer that stands for the file from `offset` on.
    pub(crate) fn fill_from_extents(
        &self,
        ino: Ino,
        offset: u64,
        buffer: &mut [u8],
        extents: &[PlacedExtent],
    ) -> Result<()> {
        let range = offset..offset + buffer.len() as u64;
        let mut wanted: Vec<(BlobId, u32, Range<usize>)> = Vec::new();
        for extent in extents {
            let Some((start, extent)) = clip_extent(*extent, &range)? else { continue };
            let start = (start - offset) as usize;
            let place = start..start + extent.len as usize;
            match extent.source {
                ExtentSource::Hole => {}
                ExtentSource::Chunk { id, skip } => wanted.push((id, skip, place)),
                ExtentSource::WriteLog { segment, offset } => {
                    self.log.read_data(segment, offset, buffer.get_mut(place).unwrap_or_default())?;
                }
            }
        }
        let ids: Vec<BlobId> = wanted.iter().map(|(id, ..)| *id).collect();
        let chunks = self.chunks.get_chunks(&ids).map_err(|source| FsError::Content { ino, source })?;
        for ((id, skip, place), chunk) in wanted.into_iter().zip(chunks) {
            let bytes = vellum_volume::tree::slice_chunk(&chunk, id, skip, place.len() as u64)?;
            buffer.get_mut(place).unwrap_or_default().copy_from_slice(bytes);
        }
        Ok(())
    }

    /// Asks for the chunks that a reader who goes on in sequence will want next.
    fn read_ahead(&self, ino: Ino, range: Range<u64>) -> Result<()> {
        let stream = self.streams.get_stream(ino);
        let Some(ahead) = stream.next_prefetch_range(&range) else { return Ok(()) };
        let extents = self.tree.read_head_state(|view| find_overlapping(view, ino, ahead))?;
        let chunk = |(_, extent): &PlacedExtent| match extent.source {
            ExtentSource::Chunk { id, .. } => Some(id),
            ExtentSource::Hole | ExtentSource::WriteLog { .. } => None,
        };
        self.chunks.prefetch_chunks(extents.iter().filter_map(chunk));
        Ok(())
    }
}

/// What a file holds in a range.
fn read_range_content(view: &dyn MapReader, ino: Ino, offset: u64, len: usize) -> Result<RangeContent> {
    let attr = read_file_attr(view, ino)?;
    let end = offset.saturating_add(len as u64).min(attr.size);
    Ok(match attr.inline {
        _ if offset >= end => RangeContent::Inline(Vec::new()),
        Some(content) => {
            RangeContent::Inline(content.get(offset as usize..end as usize).unwrap_or_default().to_vec())
        }
        None => RangeContent::Extents(end, find_overlapping(view, ino, offset..end)?),
    })
}

impl ReadStreams {
    /// The stream of a file.
    fn get_stream(&self, ino: Ino) -> Arc<ReadStream> {
        let mut table = self.0.lock();
        if let Some(stream) = table.young.get(&ino) {
            return stream.clone();
        }
        let stream = table.old.remove(&ino).unwrap_or_default();
        if table.young.len() >= STREAMS {
            table.old = std::mem::take(&mut table.young);
        }
        table.young.insert(ino, stream.clone());
        stream
    }
}

impl ReadStream {
    /// Notes a read; gives the range to fetch ahead, if it is time to. Threads that race here fetch too much or too
    /// little, and nothing worse.
    fn next_prefetch_range(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let read_to = self.read_to.swap(range.end, Ordering::Relaxed);
        let is_first = range.start == 0 && read_to == 0;
        // Who begins with a large piece goes on; who wants a little may want no more than that.
        let is_hesitant = is_first && range.end < EAGER;
        if range.start.abs_diff(read_to) > SLACK || is_hesitant {
            self.window.store(0, Ordering::Relaxed);
            self.fetched_to.store(range.end, Ordering::Relaxed);
            return None;
        }
        let window = self.window.load(Ordering::Relaxed).max(WINDOW_MIN);
        let fetched_to = self.fetched_to.load(Ordering::Relaxed).max(range.end);
        if fetched_to - range.end > window / 2 {
            return None;
        }
        let ahead = fetched_to..range.end.saturating_add(window);
        self.fetched_to.store(ahead.end, Ordering::Relaxed);
        self.window.store((window * 2).min(WINDOW_MAX), Ordering::Relaxed);
        Some(ahead)
    }
}
