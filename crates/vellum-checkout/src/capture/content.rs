//! File content: read, split, identified, stored.
//!
//! Invariant: the recorded content is what was read. If the file's attributes differ before and after reading, it is
//! read again; a file that keeps changing is recorded as last read and reported. Memory: two segments.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rayon::prelude::*;
use vellum_chunker::{Chunker, HEAD_LEN, find_block_end, is_in_place_format};
use vellum_crypto::VolumeKeys;
use vellum_host::ProgressMeter;
use vellum_host::beneath::{OpenedFile, stat_file};
use vellum_host::clone::{DataSegment, iter_data_segments};
use vellum_host::metadata::FileStat;
use vellum_types::limits::INLINE_MAX;
use vellum_types::value::Extent;
use vellum_types::{BlobId, BlobKind, ChunkingMode, ExtentSource};
use vellum_volume::WriteSession;

use crate::error::{CheckoutError, Result};

/// Bytes of a large file that are read at once: all threads process its chunks while the next ones are read.
pub(super) const SEGMENT: usize = 2 << 20;

/// Files up to this many bytes are processed by one thread; other threads process other files.
const SMALL_FILE: u64 = 1 << 20;

/// How often a file that changes while it is read is read again.
const READINGS: usize = 3;

/// Separate changed runs of chunks in a file of unchanged size that show that it is overwritten in place: an edit of a
/// document changes one or two, a database changes pages everywhere.
const SCATTERED_RUNS: usize = 8;

/// The destination of chunks.
pub enum ChunkSink<'a> {
    /// They are stored.
    Store(&'a WriteSession),
    /// They are only identified, for a comparison.
    Identify(&'a VolumeKeys),
}

impl ChunkSink<'_> {
    /// Renews the session's claim on the store when it is due.
    pub(super) fn renew_session(&self) -> Result<()> {
        match self {
            Self::Store(session) => Ok(session.renew_if_due()?),
            Self::Identify(_) => Ok(()),
        }
    }

    fn put_chunk(&self, chunk: &[u8]) -> Result<BlobId> {
        match self {
            Self::Store(session) => Ok(session.put_blob(BlobKind::Chunk, chunk)?),
            Self::Identify(keys) => Ok(keys.compute_blob_id(BlobKind::Chunk, chunk)),
        }
    }
}

/// The content of a file as it is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedContent {
    /// The attributes at the time of reading.
    pub stat: FileStat,
    /// Its size, including holes.
    pub size: u64,
    /// The whole content, if it is small.
    pub inline: Option<Vec<u8>>,
    /// Its chunks by their offsets.
    pub extents: Vec<(u64, Extent)>,
    /// How it was split.
    pub chunking: ChunkingMode,
    /// It changed during each reading.
    pub unsteady: bool,
}

/// Reads files and splits them.
pub struct ContentReader<'a> {
    /// Finds chunk boundaries.
    pub chunker: &'a Chunker,
    /// The destination of chunks.
    pub sink: ChunkSink<'a>,
    /// Counts bytes, and carries the request to stop.
    pub meter: &'a ProgressMeter,
}

/// The previous record of a file, as far as it determines how the file is split now.
#[derive(Debug, Clone, Copy)]
pub struct PreviousContent<'a> {
    /// How it was split.
    pub chunking: ChunkingMode,
    /// Its extents.
    pub extents: &'a [(u64, Extent)],
}

impl ContentReader<'_> {
    /// Reads an open file. `before` is its record in the last snapshot.
    pub fn read_file(
        &self,
        opened: OpenedFile,
        before: Option<PreviousContent<'_>>,
    ) -> Result<RecordedContent> {
        let OpenedFile { file, mut stat } = opened;
        let mut chunking = before.map_or(ChunkingMode::Content, |before| before.chunking);
        for reading in 1..=READINGS {
            let mut content = self.read_once(&file, stat, chunking)?;
            // Only the first reading is judged: in a later one, the runs that differ from the last snapshot
            // may be the result of writes that happened while the file was read.
            if reading == 1 && is_rewritten_in_place(&content, before) {
                chunking = ChunkingMode::Fixed;
                content = self.read_once(&file, stat, chunking)?;
            }
            let after = stat_file(&file)?;
            // The change time cannot be set by programs. If it and the length are the same before and after,
            // no write came between, except one in the same tick of the clock; the stat cache treats
            // attributes that young as racy and reads the file again the next time.
            if after.is_same_state(&stat) && content.size == after.size {
                return Ok(content);
            }
            if reading == READINGS {
                // The file is recorded with its last content rather than left out: a log file that is written
                // all the time would never be in a snapshot.
                return Ok(RecordedContent { stat: after, unsteady: true, ..content });
            }
            // The next reading begins with the attributes after this one, so that a single change costs one
            // additional reading.
            stat = after;
        }
        // Never reached: the last reading returns in any case.
        Err(CheckoutError::path_error("read", b"")(std::io::ErrorKind::Other.into()))
    }

    fn read_once(&self, file: &File, stat: FileStat, chunking: ChunkingMode) -> Result<RecordedContent> {
        let mut content = RecordedContent {
            stat,
            size: stat.size,
            inline: None,
            extents: Vec::new(),
            chunking,
            unsteady: false,
        };
        // A small file with holes is read as extents: inline content cannot represent a hole.
        if stat.size <= INLINE_MAX as u64 && !stat.may_have_holes {
            content.inline = Some(self.read_small_file(file, stat.size)?);
            content.size = content.inline.as_ref().map_or(0, |bytes| bytes.len() as u64);
            return Ok(content);
        }
        for segment in iter_data_segments(file, &stat) {
            let segment = segment.map_err(read_error)?;
            let read = self.read_segment(file, segment, &mut content)?;
            if read < segment.len {
                // The file became shorter: the rest is recorded, and the comparison of attributes after
                // reading shows the change.
                content.size = segment.offset + read;
                break;
            }
        }
        Ok(content)
    }

    fn read_small_file(&self, file: &File, size: u64) -> Result<Vec<u8>> {
        // One byte more than expected shows growth without another call.
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(INLINE_MAX).min(INLINE_MAX) + 1];
        let read = read_full_at(file, &mut bytes, 0)?;
        bytes.truncate(read.min(INLINE_MAX));
        self.meter.add_progress(0, bytes.len() as u64);
        Ok(bytes)
    }

    /// Reads one data segment; returns its actual length.
    fn read_segment(&self, file: &File, segment: DataSegment, content: &mut RecordedContent) -> Result<u64> {
        // The beginning of the file decides how it is cut before the first chunk is made: a database is cut
        // into fixed blocks from its first snapshot on, because content-defined boundaries would move around
        // each page that is overwritten.
        if segment.offset == 0 && content.chunking == ChunkingMode::Content {
            let mut head = [0; HEAD_LEN];
            let read = read_full_at(file, &mut head, 0)?;
            if is_in_place_format(head.get(..read).unwrap_or_default()) {
                content.chunking = ChunkingMode::Fixed;
            }
        }
        let mut pieces = PieceReader::new(file, segment, content.stat.size.min(SEGMENT as u64));
        let mut current = pieces.next_piece(self, content.chunking)?;
        while let Some(piece) = current {
            // Files up to this size are read by several workers at once, so splitting one further only costs
            // scheduling. For a large file, reading its next segment runs at the same time as hashing and
            // sealing this one.
            let extents = if content.stat.size <= SMALL_FILE {
                let extents = self.store_piece(&piece)?;
                current = pieces.next_piece(self, content.chunking)?;
                extents
            } else {
                let (extents, next) = rayon::join(
                    || self.store_piece_parallel(&piece),
                    || pieces.next_piece(self, content.chunking),
                );
                current = next?;
                extents?
            };
            content.extents.extend(extents);
        }
        Ok(pieces.read)
    }

    fn store_piece(&self, piece: &ContentPiece) -> Result<Vec<(u64, Extent)>> {
        piece.split_chunks().map(|(offset, chunk)| self.store_chunk(offset, chunk)).collect()
    }

    pub(super) fn store_piece_parallel(&self, piece: &ContentPiece) -> Result<Vec<(u64, Extent)>> {
        let chunks: Vec<_> = piece.split_chunks().collect();
        chunks.into_par_iter().map(|(offset, chunk)| self.store_chunk(offset, chunk)).collect()
    }

    fn store_chunk(&self, offset: u64, chunk: &[u8]) -> Result<(u64, Extent)> {
        self.meter.check_stopped()?;
        let id = self.sink.put_chunk(chunk)?;
        self.meter.add_progress(0, chunk.len() as u64);
        Ok((offset, Extent { len: chunk.len() as u64, source: ExtentSource::Chunk { id, skip: 0 } }))
    }

    /// Splits bytes into chunks. Unless they end the content, the last chunk may be incomplete, and is none yet.
    pub(super) fn split_piece(
        &self,
        offset: u64,
        bytes: Vec<u8>,
        is_end: bool,
        chunking: ChunkingMode,
    ) -> ContentPiece {
        // As many as there are chunks, whose mean length is 64 KiB by default.
        let mut lengths = Vec::with_capacity(bytes.len() / (64 << 10) + 1);
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let Some(len) = self.find_chunk_end(rest, is_end, chunking) else { break };
            lengths.push(len);
            at += len;
        }
        ContentPiece { offset, bytes, lengths }
    }

    fn find_chunk_end(&self, data: &[u8], eof: bool, chunking: ChunkingMode) -> Option<usize> {
        match chunking {
            ChunkingMode::Content => self.chunker.find_chunk_end(data, eof),
            ChunkingMode::Fixed => find_block_end(data, eof),
        }
    }
}

/// Some megabytes of a file, split into whole chunks.
pub(super) struct ContentPiece {
    offset: u64,
    bytes: Vec<u8>,
    lengths: Vec<usize>,
}

impl ContentPiece {
    /// Bytes that are in its whole chunks.
    pub(super) fn chunked_len(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// What comes after its whole chunks.
    pub(super) fn incomplete_chunk(&self) -> &[u8] {
        self.bytes.get(self.chunked_len()..).unwrap_or_default()
    }

    fn split_chunks(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let mut rest = self.bytes.as_slice();
        let mut offset = self.offset;
        self.lengths.iter().map_while(move |len| {
            let (chunk, tail) = rest.split_at_checked(*len)?;
            let at = offset;
            rest = tail;
            offset += *len as u64;
            Some((at, chunk))
        })
    }
}

/// Reads a range of a file in pieces; an incomplete chunk is carried over to the next piece.
struct PieceReader<'a> {
    file: &'a File,
    segment: DataSegment,
    piece_len: usize,
    read: u64,
    carried: Vec<u8>,
    ended: bool,
}

impl<'a> PieceReader<'a> {
    fn new(file: &'a File, segment: DataSegment, piece_len: u64) -> Self {
        let piece_len = usize::try_from(piece_len.max(1)).unwrap_or(SEGMENT);
        Self { file, segment, piece_len, read: 0, carried: Vec::new(), ended: false }
    }

    fn next_piece(
        &mut self,
        reader: &ContentReader<'_>,
        chunking: ChunkingMode,
    ) -> Result<Option<ContentPiece>> {
        if self.ended {
            return Ok(None);
        }
        let carried = std::mem::take(&mut self.carried);
        let offset = self.segment.offset + self.read - carried.len() as u64;
        let left = usize::try_from(self.segment.len - self.read).unwrap_or(usize::MAX);
        let wanted = left.min(self.piece_len);
        let mut bytes = carried;
        let start = bytes.len();
        bytes.resize(start + wanted, 0);
        let tail = bytes.get_mut(start..).unwrap_or_default();
        let got = read_full_at(self.file, tail, self.segment.offset + self.read)?;
        bytes.truncate(start + got);
        self.read += got as u64;
        // A short read is the end of the file, which was truncated since `stat`. The chunker must know the
        // end, or it keeps the last bytes back to look for a boundary in what follows.
        self.ended = got < wanted || got == left;
        let piece = reader.split_piece(offset, bytes, self.ended, chunking);
        self.carried = piece.incomplete_chunk().to_vec();
        Ok(Some(piece))
    }
}

fn read_full_at(file: &File, buffer: &mut [u8], mut offset: u64) -> Result<usize> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset) {
            Ok(0) => break,
            Ok(count) => {
                done += count;
                offset += count as u64;
            }
            // A signal can interrupt a read on FUSE and network filesystems.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(read_error(error)),
        }
    }
    Ok(done)
}

fn read_error(source: std::io::Error) -> CheckoutError {
    CheckoutError::path_error("read", b"its content")(source)
}

/// Whether pages of a file seem to have been overwritten in various places.
fn is_rewritten_in_place(content: &RecordedContent, before: Option<PreviousContent<'_>>) -> bool {
    let Some(before) = before.filter(|before| before.chunking == ChunkingMode::Content) else { return false };
    let old_size = before.extents.last().map_or(0, |(offset, extent)| offset + extent.len);
    let new_size = content.extents.last().map_or(0, |(offset, extent)| offset + extent.len);
    // A file that grew or shrank was most likely written anew, and fixed blocks lose all matches behind an
    // insertion.
    if content.chunking == ChunkingMode::Fixed || old_size != new_size {
        return false;
    }
    let old: std::collections::HashSet<_> = before.extents.iter().map(|(_, extent)| extent.source).collect();
    let known: Vec<bool> = content.extents.iter().map(|(_, extent)| old.contains(&extent.source)).collect();
    // A run of changed chunks is counted where it begins, behind a chunk that was known.
    let runs = known.windows(2).filter(|pair| matches!(pair, [true, false])).count();
    runs >= SCATTERED_RUNS
}
