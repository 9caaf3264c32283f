//! Content of a file of a published state, read once and in order.
//!
//! Invariant: the parts that are read, one after another, are the content from the beginning to the file's size, and each
//! was authenticated. Deliberately absent: caches, which `content` has for readers that come back.

use std::ops::Range;
use std::sync::Arc;

use vellum_store::{BlobStore, FetchedBlobs};
use vellum_types::BlobKind;

use super::{FilePiece, InodeRecord, collect_file_pieces, slice_chunk};
use crate::error::Result;
use crate::volume::Volume;

/// Pieces of a file in a directory store whose chunks are fetched together, 64 KiB each on average: each thread that
/// reads has so many in memory.
const BATCH: usize = 16;

/// The same of a file in a service: some MiB, one request if the chunks are neighbours in a pack.
const SERVICE_BATCH: usize = 64;

/// A part of a file's content.
#[derive(Debug, PartialEq, Eq)]
pub enum ContentPart<'a> {
    /// Bytes.
    Data(&'a [u8]),
    /// So many bytes that are zero and not stored.
    Hole(u64),
}

/// Reads the content of a file, or a range of it, in order.
pub struct FileReader {
    blobs: Arc<BlobStore>,
    /// Those of the whole file, and which of them are still to come.
    pieces: Arc<[FilePiece]>,
    left: Range<usize>,
    batch: Option<FetchedBatch>,
    /// Content that is inline, until it was read.
    inline: Option<Vec<u8>>,
    /// The chunk that the last part was cut from.
    current: Vec<u8>,
}

/// The chunks of some pieces in a row, and how many of them were opened.
struct FetchedBatch {
    chunks: FetchedBlobs,
    opened: usize,
    /// The place after that of the last piece.
    end: usize,
}

impl FileReader {
    /// Begins at the beginning of a file. Fails with
    /// [`VolumeError::BadTree`](crate::VolumeError::BadTree) if the record names content outside the store.
    pub fn new(volume: &Volume, inode: &InodeRecord) -> Result<Self> {
        let pieces: Arc<[FilePiece]> = collect_file_pieces(inode)?.into();
        let left = 0..pieces.len();
        let inline = inode.attr.inline.clone().filter(|content| !content.is_empty());
        Ok(Self { inline, ..Self::from_pieces(volume.blobs.clone(), pieces, left) })
    }

    fn from_pieces(blobs: Arc<BlobStore>, pieces: Arc<[FilePiece]>, left: Range<usize>) -> Self {
        Self { blobs, pieces, left, batch: None, inline: None, current: Vec::new() }
    }

    /// Reads the next part; None at the end. Fails if a chunk is missing, damaged or too short.
    pub fn next_part(&mut self) -> Result<Option<ContentPart<'_>>> {
        // A file has inline content or pieces, never both.
        if let Some(content) = self.inline.take() {
            self.current = content;
            return Ok(Some(ContentPart::Data(&self.current)));
        }
        let Some(place) = self.left.next() else { return Ok(None) };
        let Some(piece) = self.pieces.get(place).copied() else { return Ok(None) };
        let Some((id, skip)) = piece.chunk else { return Ok(Some(ContentPart::Hole(piece.len))) };
        // In batches: one request of a remote store brings the chunks that lie together.
        let mut batch = match self.batch.take().filter(|batch| place < batch.end) {
            Some(batch) => batch,
            None => self.fetch_batch(place)?,
        };
        self.current = batch.chunks.open_blob(batch.opened)?;
        batch.opened += 1;
        self.batch = Some(batch);
        Ok(Some(ContentPart::Data(slice_chunk(&self.current, id, skip, piece.len)?)))
    }

    fn fetch_batch(&self, start: usize) -> Result<FetchedBatch> {
        let len = if self.blobs.local_copies().is_some() { SERVICE_BATCH } else { BATCH };
        // Not beyond what this reader is to read: the rest is another thread's.
        let end = self.left.end.min(start + len);
        let pieces = self.pieces.get(start..end).unwrap_or_default();
        // Without the holes, so that `opened` counts chunks and not pieces.
        let wanted: Vec<_> =
            pieces.iter().filter_map(|piece| Some((BlobKind::Chunk, piece.chunk_id()?))).collect();
        Ok(FetchedBatch { chunks: self.blobs.fetch_blobs(&wanted)?, opened: 0, end })
    }

    /// Reads all that is left into memory, holes as zeros. The caller bounds the file's size.
    pub fn read_to_end(mut self) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        while let Some(part) = self.next_part()? {
            match part {
                ContentPart::Data(bytes) => content.extend_from_slice(bytes),
                ContentPart::Hole(len) => {
                    content.resize(content.len() + usize::try_from(len).unwrap_or(0), 0);
                }
            }
        }
        Ok(content)
    }

    /// The range of the file that is still to be read, bytes. Inline content is not counted.
    #[must_use]
    pub fn remaining_range(&self) -> Range<u64> {
        let pieces = self.pieces.get(self.left.clone()).unwrap_or_default();
        let start = pieces.first().map_or(0, |piece| piece.offset);
        start..pieces.last().map_or(start, |piece| piece.offset + piece.len)
    }

    /// Splits what is still to be read, for several threads: in order, each range at least `len_min` bytes but for the
    /// last.
    #[must_use]
    pub fn split_ranges(&self, len_min: u64) -> Vec<Self> {
        let mut parts = Vec::new();
        let mut part = self.left.start..self.left.start;
        let mut len = 0;
        for piece in self.pieces.get(self.left.clone()).unwrap_or_default() {
            part.end += 1;
            len += piece.len;
            // Between two pieces, so that no chunk is fetched and opened twice.
            if len >= len_min || part.end == self.left.end {
                parts.push(Self::from_pieces(self.blobs.clone(), self.pieces.clone(), part.clone()));
                part.start = part.end;
                len = 0;
            }
        }
        parts
    }
}
