//! Content of files of published states, read at any offset: files and chunks that were read last are kept decoded, and
//! of a file that is read in sequence the next chunks are fetched ahead.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use vellum_store::BlobStore;
use vellum_types::{BlobId, Ino};

use super::chunks::ChunkCache;
use super::read_streams::{PrefetchLimits, ReadStreams};
use super::{FilePiece, FsTree, InodeRecord, SeekTarget, collect_file_pieces, slice_chunk};
use crate::error::{Result, VolumeError};

/// Files whose attributes and pieces are kept decoded, of all states together, bytes: the kernel asks for a file several
/// times in a row, and for files of many snapshots over time.
const FILES_KEPT: u64 = 8 << 20;
/// Bytes that the cache itself takes for an entry, about.
const ENTRY: u64 = 64;

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
    /// By the root of the tree and the inode in it.
    files: Cache<(BlobId, Ino), Arc<FileContent>, FileWeighter>,
}

#[derive(Debug, Clone)]
struct FileWeighter;

impl Weighter<(BlobId, Ino), Arc<FileContent>> for FileWeighter {
    fn weight(&self, _: &(BlobId, Ino), file: &Arc<FileContent>) -> u64 {
        let FileContent { inode, pieces } = &**file;
        let xattrs: usize = inode.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        let inline = inode.attr.inline.as_ref().map_or(0, Vec::len) + inode.attr.target.len();
        let parts = size_of_val(&pieces[..]) + size_of_val(&inode.extents[..]);
        (size_of::<FileContent>() + parts + xattrs + inline) as u64 + ENTRY
    }
}

impl ContentCache {
    /// Reads chunks from `blobs`, and fetches ahead within limits.
    pub fn new(blobs: Arc<BlobStore>, limits: PrefetchLimits) -> Self {
        Self { blobs, limits, kept: OnceLock::new() }
    }

    fn kept(&self) -> &KeptContent {
        self.kept.get_or_init(|| {
            // What is fetched ahead must still be there when it is read.
            let capacity = CHUNKS_KEPT.max(self.limits.window.saturating_mul(2));
            let expected =
                usize::try_from(FILES_KEPT / size_of::<FileContent>() as u64).unwrap_or(usize::MAX);
            KeptContent {
                chunks: ChunkCache::new(self.blobs.clone(), capacity, self.limits),
                streams: ReadStreams::new(self.limits),
                files: Cache::with_weighter(expected, FILES_KEPT, FileWeighter),
            }
        })
    }
}

/// An inode with its content's pieces.
pub(super) struct FileContent {
    pub inode: InodeRecord,
    pieces: Vec<FilePiece>,
}

impl FileContent {
    /// Counts the bytes that are not in holes.
    pub fn count_stored_bytes(&self) -> u64 {
        self.pieces.iter().filter(|piece| piece.chunk.is_some()).map(|piece| piece.len).sum()
    }

    /// The pieces that have something of a range.
    fn pieces_within(&self, range: Range<u64>) -> impl Iterator<Item = &FilePiece> {
        // A search by halves: a fragmented file has many thousands of pieces, and each read would walk over them.
        let first = self.pieces.partition_point(|piece| piece.offset + piece.len <= range.start);
        self.pieces.iter().skip(first).take_while(move |piece| piece.offset < range.end)
    }

    /// Returns the next data or hole from `offset` on, if there is any.
    pub fn find_data_or_hole(&self, offset: u64, seek: SeekTarget) -> Option<u64> {
        let size = self.inode.attr.size;
        let is_data = seek == SeekTarget::Data;
        if offset >= size {
            return None;
        }
        // Inline content is stored whole: its only hole is the end.
        if self.inode.attr.inline.is_some() {
            return Some(if is_data { offset } else { size });
        }
        let mut rest = self.pieces.iter().filter(|piece| piece.offset + piece.len > offset);
        match rest.find(|piece| piece.chunk.is_some() == is_data) {
            Some(piece) => Some(piece.offset.max(offset)),
            None if is_data => None,
            // The end of a file counts as a hole (lseek(2)).
            None => Some(size),
        }
    }
}

impl FsTree {
    /// Reads everything of an inode, and its content's pieces; of a state without layers through the cache.
    pub(super) fn file_content(&self, ino: Ino) -> Result<Arc<FileContent>> {
        let load = || {
            let inode = self.read_inode(ino)?;
            let pieces = collect_file_pieces(&inode)?;
            Ok(Arc::new(FileContent { inode, pieces }))
        };
        // The root says what a state holds only if no layer lies over it.
        if !self.view.layers.is_empty() {
            return load();
        }
        self.content.kept().files.get_or_insert_with(&(self.view.base.0, ino), load)
    }

    /// Reads content from `offset` on: `len` bytes, or fewer at the end; holes as zeros. Fails with [`VolumeError::Content`]
    /// if a chunk is missing or damaged.
    pub fn read_content(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<u8>> {
        let file = self.file_content(ino)?;
        let end = offset.saturating_add(len as u64).min(file.inode.attr.size);
        let mut bytes = Vec::with_capacity(usize::try_from(end.saturating_sub(offset)).unwrap_or(0).min(len));
        if let Some(content) = &file.inode.attr.inline {
            let range = usize::try_from(offset).ok().zip(usize::try_from(end).ok());
            bytes.extend_from_slice(range.and_then(|(from, to)| content.get(from..to)).unwrap_or_default());
            return Ok(bytes);
        }
        // A file is told from others by the tree's base alone: of states with layers a hint that concerns another file costs a
        // needless fetch at most.
        let kept = self.content.kept();
        // Before this range is fetched, so that both are on their way together.
        if let Some(ahead) = kept.streams.note_read((self.view.base.0, ino), &(offset..end)) {
            kept.chunks.prefetch_chunks(file.pieces_within(ahead).filter_map(FilePiece::chunk_id));
        }
        let pieces: Vec<&FilePiece> = file.pieces_within(offset..end).collect();
        for batch in pieces.chunks(BATCH) {
            self.append_pieces(ino, batch, offset..end, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// Appends the bytes of pieces, as far as they lie in a range of the file.
    fn append_pieces(
        &self,
        ino: Ino,
        pieces: &[&FilePiece],
        range: Range<u64>,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        let too_long = || VolumeError::BadTree(format!("inode {ino} has a piece that is too long"));
        let ids: Vec<BlobId> = pieces.iter().filter_map(|piece| piece.chunk_id()).collect();
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

#[cfg(test)]
mod tests {
    use vellum_types::{FileKind, InodeAttr};

    use super::*;

    /// What a mount keeps of all snapshots that were ever looked at must not grow with their number.
    #[test]
    fn a_file_weighs_what_its_pieces_and_attributes_take() {
        let inode = InodeRecord {
            ino: Ino(7),
            attr: InodeAttr::new(FileKind::File, 0o644),
            entries: Vec::new(),
            xattrs: vec![(b"user.key".to_vec(), vec![0; 1000])],
            extents: Vec::new(),
        };
        let piece = FilePiece { offset: 0, len: 1, chunk: None };
        let weigh = |pieces: usize| {
            let file = FileContent { inode: inode.clone(), pieces: vec![piece; pieces] };
            FileWeighter.weight(&(BlobId([0; 32]), Ino(7)), &Arc::new(file))
        };
        assert!(weigh(0) > 1000 + size_of::<FileContent>() as u64);
        assert_eq!(weigh(5000) - weigh(0), 5000 * size_of::<FilePiece>() as u64);
    }
}
