//! Content that comes as a stream: read once, split and stored while it comes.
//!
//! Invariant: it is split as a file of the same content is. Memory: two segments, whatever its length.

use std::io::Read;

use vellum_chunker::{HEAD_LEN, is_in_place_format};
use vellum_host::parallel::run_parallel;
use vellum_types::ChunkingMode;
use vellum_types::limits::INLINE_MAX;
use vellum_types::value::Extent;

use super::content::{ContentReader, SEGMENT};
use crate::error::{CheckoutError, Result};

/// The content of a stream as it is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamedContent {
    /// Its length.
    pub size: u64,
    /// The whole content, if it is small.
    pub inline: Option<Vec<u8>>,
    /// Its chunks by their offsets.
    pub extents: Vec<(u64, Extent)>,
    /// How it was split.
    pub chunking: ChunkingMode,
}

impl ContentReader<'_> {
    /// Reads a stream to its end.
    pub(crate) fn read_stream(&self, source: &mut (dyn Read + Send)) -> Result<StreamedContent> {
        let mut bytes = self.read_stream_piece(source, Vec::new())?;
        let mut is_end = bytes.len() < SEGMENT;
        if is_end && bytes.len() <= INLINE_MAX {
            let size = bytes.len() as u64;
            let chunking = ChunkingMode::Content;
            return Ok(StreamedContent { size, inline: Some(bytes), extents: Vec::new(), chunking });
        }
        let head = bytes.get(..HEAD_LEN).unwrap_or(&bytes);
        let chunking = if is_in_place_format(head) { ChunkingMode::Fixed } else { ChunkingMode::Content };
        let mut content = StreamedContent { size: 0, inline: None, extents: Vec::new(), chunking };
        loop {
            // The collector takes a session that was not renewed for dead, and a stream may take days.
            self.sink.renew_session()?;
            let piece = self.split_piece(content.size, bytes, is_end, chunking);
            let carried = piece.incomplete_chunk().to_vec();
            let read_next = || -> Result<Option<(Vec<u8>, bool)>> {
                match is_end {
                    true => Ok(None),
                    false => {
                        let start = carried.len();
                        let next = self.read_stream_piece(source, carried)?;
                        let is_last = next.len() - start < SEGMENT;
                        Ok(Some((next, is_last)))
                    }
                }
            };
            let store = || self.store_piece_parallel(&piece);
            let (stored, next) = run_parallel(|| rayon::join(store, read_next));
            content.extents.extend(stored?);
            content.size += piece.chunked_len() as u64;
            let Some(next) = next? else { return Ok(content) };
            (bytes, is_end) = next;
        }
    }

    /// Adds a segment to the bytes that were carried over; less only at the end of the stream.
    fn read_stream_piece(&self, source: &mut (dyn Read + Send), mut bytes: Vec<u8>) -> Result<Vec<u8>> {
        let mut filled = bytes.len();
        bytes.resize(filled + SEGMENT, 0);
        loop {
            // After each read: a stop is often the end of the producer, too, and what came is not all.
            self.meter.check_stopped()?;
            let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) else {
                return Ok(bytes);
            };
            match source.read(rest) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(CheckoutError::Stream(error)),
            }
        }
        self.meter.check_stopped()?;
        bytes.truncate(filled);
        Ok(bytes)
    }
}
