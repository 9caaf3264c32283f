//! Content of files of published states, read at any offset: files and chunks that were read last are kept decoded, and
//! of a file that is read in sequence the next chunks are fetched ahead.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use vellum_store::BlobStore;
use vellum_types::{BlobId, Ino};

use super::chunks::ChunkCache;
use super::file_content::FileCache;
use super::read_streams::{PrefetchLimits, ReadStreams};
use super::{FilePiece, FsTree, slice_chunk};
use crate::error::{Result, VolumeError};

/// Decoded chunks that are kept for the next request at least, bytes: the kernel reads ahead by a megabyte, and several
/// files at once; what it has read, it keeps itself.
const CHUNKS_KEPT: u64 = 32 << 20;

/// Pieces whose chunks are fetched and held at once: some MiB.
const BATCH: usize = 64;

/// Decoded files and chunks, shared by all published states of a volume.
pub(crate) struct ContentCache {
    blobs: Arc<BlobStore>,
    limits: PrefetchLimits,
    /// Most commands read no content through it, so its tables are made when they are used.
    kept: OnceLock<KeptContent>,
}

struct KeptContent {
    chunks: ChunkCache,
    streams: ReadStreams<(BlobId, Ino)>,
    files: FileCache,
}

impl ContentCache {
    /// Reads chunks from `blobs`, and fetches ahead within limits.
    pub fn new(blobs: Arc<BlobStore>, limits: PrefetchLimits) -> Self {
        Self { blobs, limits, kept: OnceLock::new() }
    }

    /// The files that are kept.
    pub(super) fn files(&self) -> &FileCache {
        &self.kept().files
    }

    fn kept(&self) -> &KeptContent {
        self.kept.get_or_init(|| {
            // What is fetched ahead must still be there when it is read.
            let capacity = CHUNKS_KEPT.max(self.limits.window.saturating_mul(2));
            KeptContent {
                chunks: ChunkCache::new(self.blobs.clone(), capacity, self.limits),
                streams: ReadStreams::new(self.limits),
                files: FileCache::new(),
            }
        })
    }
}

impl FsTree {
    /// Reads content from `offset` on: `len` bytes, or fewer at the end; holes as zeros. Fails with [`VolumeError::Content`]
    /// if a chunk is missing or damaged.
    pub fn read_content(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<u8>> {
        let file = self.file_content(ino)?;
        let end = offset.saturating_add(len as u64).min(file.attr.size);
        let mut bytes = Vec::with_capacity(usize::try_from(end.saturating_sub(offset)).unwrap_or(0).min(len));
        if let Some(content) = &file.attr.inline {
            let range = usize::try_from(offset).ok().zip(usize::try_from(end).ok());
            bytes.extend_from_slice(range.and_then(|(from, to)| content.get(from..to)).unwrap_or_default());
            return Ok(bytes);
        }
        // A file is told from others by the tree's base alone: of states with layers a hint that concerns another file costs a
        // needless fetch at most.
        let kept = self.content.kept();
        // Before this range is fetched, so that both are on their way together.
        let is_file_end = end == file.attr.size;
        let noted = kept.streams.note_read((self.view.base.0, ino), &(offset..end), is_file_end);
        kept.chunks.note_file_read(noted.pattern);
        if let Some(ahead) = noted.ahead {
            let pieces = self.pieces_of_range(&file, ahead.start..ahead.end.min(file.attr.size))?;
            kept.chunks.prefetch_chunks(pieces.iter().filter_map(FilePiece::chunk_id));
        }
        let pieces = self.pieces_of_range(&file, offset..end)?;
        for batch in pieces.chunks(BATCH) {
            self.append_pieces(ino, batch, offset..end, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// Appends the bytes of pieces, as far as they lie in a range of the file.
    fn append_pieces(
        &self,
        ino: Ino,
        pieces: &[FilePiece],
        range: Range<u64>,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        let too_long = || VolumeError::BadTree(format!("inode {ino} has a piece that is too long"));
        let ids: Vec<BlobId> = pieces.iter().filter_map(FilePiece::chunk_id).collect();
        let chunks = self.content.kept().chunks.get_chunks(&ids);
        let mut chunks = chunks.map_err(|source| VolumeError::Content { ino, source })?.into_iter();
        for piece in pieces {
            // Pieces and range overlap, so that neither difference is below zero.
            let from = range.start.max(piece.offset);
            let len = range.end.min(piece.offset + piece.len) - from;
            match piece.chunk {
                None => bytes.resize(bytes.len() + usize::try_from(len).map_err(|_| too_long())?, 0),
                Some((id, at)) => {
                    let chunk = chunks.next().ok_or_else(too_long)?;
                    let at = u32::try_from(from - piece.offset).ok().and_then(|skip| at.checked_add(skip));
                    bytes.extend_from_slice(slice_chunk(&chunk, id, at.ok_or_else(too_long)?, len)?);
                }
            }
        }
        Ok(())
    }
}
