//! Where the bytes of extents come from: the write log, and chunks in the store.
//!
//! It owns the decoded chunks, and what is known of how files are read. Invariant: it knows no inode's attributes, and
//! changes nothing. Deliberately absent: inline content, which stands in the map.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use vellum_store::BlobStore;
use vellum_types::{BlobId, ExtentSource, Ino};
use vellum_volume::VolumeError;
use vellum_volume::tree::{ChunkCache, ChunkStatistics, PrefetchLimits, ReadStreams};

use super::ahead::FileSequence;
use super::extents::{PlacedExtent, clip_extent};
use crate::error::Result;
use crate::log::WriteLog;
use crate::tree::cache::CacheStatistics;

/// The bytes of extents.
pub(crate) struct ContentSource {
    log: Arc<WriteLog>,
    pub(super) chunks: ChunkCache,
    pub(super) streams: ReadStreams<Ino>,
    pub(super) sequence: Mutex<FileSequence>,
}

impl ContentSource {
    /// Reads from a write log and a store, and keeps up to `capacity` bytes of decoded chunks. Nothing is cached yet.
    pub fn new(log: Arc<WriteLog>, blobs: Arc<BlobStore>, capacity: u64, limits: PrefetchLimits) -> Self {
        let streams = ReadStreams::new(limits);
        Self { log, chunks: ChunkCache::new(blobs, capacity, limits), streams, sequence: Mutex::default() }
    }

    /// Returns whether a chunk is in memory, decoded.
    pub fn contains_chunk(&self, id: &BlobId) -> bool {
        self.chunks.contains_chunk(id)
    }

    /// Returns what the cache of chunks did and holds.
    pub fn chunk_statistics(&self) -> CacheStatistics {
        let ChunkStatistics { lookups, misses, entries, bytes, capacity } = self.chunks.statistics();
        CacheStatistics {
            hits: lookups.saturating_sub(misses),
            misses,
            // They are not counted.
            evictions: 0,
            entries,
            bytes,
            capacity,
        }
    }

    /// Puts what some extents hold into a buffer that stands for the file from `offset` on.
    pub fn fill_from_extents(
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
                // Callers give a buffer of zeros, and a hole reads as zeros.
                ExtentSource::Hole => {}
                ExtentSource::Chunk { id, skip } => wanted.push((id, skip, place)),
                ExtentSource::WriteLog { segment, offset } => {
                    self.log.read_data(segment, offset, buffer.get_mut(place).unwrap_or_default())?;
                }
            }
        }
        // All chunks of the batch are asked for at once: they are fetched and decoded side by side.
        let ids: Vec<BlobId> = wanted.iter().map(|(id, ..)| *id).collect();
        let chunks = self.chunks.get_chunks(&ids).map_err(|source| VolumeError::Content { ino, source })?;
        for ((id, skip, place), chunk) in wanted.into_iter().zip(chunks) {
            let bytes = vellum_volume::tree::slice_chunk(&chunk, id, skip, place.len() as u64)?;
            buffer.get_mut(place).unwrap_or_default().copy_from_slice(bytes);
        }
        Ok(())
    }
}
