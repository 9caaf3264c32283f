//! The content of a changed file: what lies in the write log is cut into chunks; what is in chunks stays, but for the
//! neighbours of a change.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::{ControlFlow, Range};

use rayon::prelude::*;
use vellum_chunker::{find_block_end, is_in_place_format};
use vellum_types::limits::INLINE_MAX;
use vellum_types::value::FIXED_BLOCK;
use vellum_types::{BlobId, BlobKind, ChunkingMode, Extent, ExtentSource, Ino, InodeAttr, MapKey};

use super::inode::Publication;
use crate::content::extents::visit_extents;
use crate::error::{FsError, Result};
use crate::tree::MapReader;

/// Bytes that are read at once at most, where a change goes on; their chunks are stored by all threads.
const WINDOW_MAX: u64 = 4 << 20;
/// Changes this many, each apart from the next, are what a database or a disk image looks like.
const SCATTERED: usize = 16;
/// Pieces that are read together.
const FILLED: usize = 64;
/// Bytes of a file's head by which it is told how to cut it.
const HEAD: usize = 4096;

/// A file's content as it is published.
pub(super) struct PublishedContent {
    pub inline: Option<Vec<u8>>,
    pub extents: BTreeMap<Vec<u8>, Vec<u8>>,
    pub chunking: ChunkingMode,
    /// Chunks that the file named before, and does not now.
    pub replaced_chunks: BTreeSet<BlobId>,
}

/// The content of a file whose extents changed.
pub(super) fn rechunk_file(
    publication: &Publication<'_>,
    view: &dyn MapReader,
    ino: Ino,
    attr: &InodeAttr,
) -> Result<PublishedContent> {
    let pieces = read_data_extents(view, ino, attr)?;
    let file = PublishedFile { publication, ino, pieces: &pieces };
    // As a checked-out file is recorded: inline if it is small, unless it has holes.
    // Inline content cannot tell a hole from zeros, and `SEEK_HOLE` would find none any more.
    let is_whole = pieces.iter().map(|(_, extent)| extent.len).sum::<u64>() == attr.size;
    if attr.size <= INLINE_MAX as u64 && is_whole {
        let inline = Some(file.read_bytes(0..attr.size)?);
        let replaced_chunks = pieces.iter().filter_map(|(_, extent)| extent_chunk(extent)).collect();
        return Ok(PublishedContent {
            inline,
            extents: BTreeMap::new(),
            chunking: attr.chunking,
            replaced_chunks,
        });
    }
    let chunking = file.choose_chunking(attr)?;
    let mut extents = BTreeMap::new();
    let mut kept_chunks = HashSet::new();
    for run in split_extent_runs(&pieces) {
        for (offset, extent) in file.rechunk_run(run, chunking)? {
            extents.insert(MapKey::for_extent(ino, offset).into_bytes(), extent.encode());
            kept_chunks.extend(extent_chunk(&extent));
        }
    }
    let named = pieces.iter().filter_map(|(_, extent)| extent_chunk(extent));
    let replaced_chunks = named.filter(|id| !kept_chunks.contains(id)).collect();
    Ok(PublishedContent { inline: None, extents, chunking, replaced_chunks })
}

/// Returns the chunk in which an extent is.
pub(crate) fn extent_chunk(extent: &Extent) -> Option<BlobId> {
    match extent.source {
        ExtentSource::Chunk { id, .. } => Some(id),
        ExtentSource::Hole | ExtentSource::WriteLog { .. } => None,
    }
}

/// Returns the chunks that an inode's extents name.
pub(super) fn read_named_chunks<R: MapReader + ?Sized>(view: &R, ino: Ino) -> Result<BTreeSet<BlobId>> {
    let mut chunks = BTreeSet::new();
    visit_extents(view, ino, 0..u64::MAX, &mut |(_, extent)| {
        chunks.extend(extent_chunk(&extent));
        ControlFlow::Continue(())
    })?;
    Ok(chunks)
}

/// The extents of a file that are no holes, within its size.
fn read_data_extents(view: &dyn MapReader, ino: Ino, attr: &InodeAttr) -> Result<Vec<(u64, Extent)>> {
    let mut pieces = Vec::new();
    // Not only up to the size: an extent beyond it has to be found below.
    visit_extents(view, ino, 0..u64::MAX, &mut |(offset, extent)| {
        if extent.source != ExtentSource::Hole {
            pieces.push((offset, extent));
        }
        ControlFlow::Continue(())
    })?;
    let mut end = 0;
    for (offset, extent) in &pieces {
        // Checked here, where the tree gets it: a mistake of ours must not become a tree that `verify` calls damaged.
        if *offset < end || offset.saturating_add(extent.len) > attr.size {
            return Err(FsError::BadTree(format!("the extents of inode {ino} overlap or exceed its size")));
        }
        end = offset + extent.len;
    }
    Ok(pieces)
}

/// Pieces without a gap between them.
fn split_extent_runs(pieces: &[(u64, Extent)]) -> Vec<&[(u64, Extent)]> {
    pieces.chunk_by(|(offset, extent), (next, _)| offset + extent.len == *next).collect()
}

fn is_dirty_extent(extent: &Extent) -> bool {
    matches!(extent.source, ExtentSource::WriteLog { .. })
}

struct PublishedFile<'a> {
    publication: &'a Publication<'a>,
    ino: Ino,
    pieces: &'a [(u64, Extent)],
}

/// Bytes of a run that were read together. Changes that lie near each other share them.
#[derive(Default)]
struct RunWindow {
    start: u64,
    bytes: Vec<u8>,
}

impl RunWindow {
    fn end_offset(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// The bytes from a position on: enough for one cut at least, or all up to the run's end.
    fn bytes_from(&mut self, file: &PublishedFile<'_>, position: u64, run_end: u64) -> Result<&[u8]> {
        let longest = file.publication.chunker.params().max_len().max(FIXED_BLOCK) as u64;
        let is_within = (self.start..self.end_offset()).contains(&position);
        if !(is_within && (self.end_offset() == run_end || self.end_offset() - position >= longest)) {
            // A change may be small and alone: little is read where it begins, more where it goes on.
            let goes_on = (self.start + 1..=self.end_offset()).contains(&position);
            let before = if goes_on { self.bytes.len() as u64 } else { longest };
            let size = (before * 2).min(WINDOW_MAX).max(longest);
            self.bytes = file.read_bytes(position..run_end.min(position + size))?;
            self.start = position;
        }
        Ok(self.bytes.get((position - self.start) as usize..).unwrap_or_default())
    }
}

impl PublishedFile<'_> {
    /// A file that has chunks keeps its way, unless it is overwritten here and there; a new one is looked at.
    fn choose_chunking(&self, attr: &InodeAttr) -> Result<ChunkingMode> {
        if attr.chunking == ChunkingMode::Fixed {
            return Ok(ChunkingMode::Fixed);
        }
        // Changes next to each other count once: a long write is several pieces.
        let islands = self.pieces.chunk_by(|(_, a), (_, b)| is_dirty_extent(a) == is_dirty_extent(b));
        if islands.filter(|island| island.first().is_some_and(|(_, e)| is_dirty_extent(e))).count()
            >= SCATTERED
        {
            return Ok(ChunkingMode::Fixed);
        }
        // Chunks that are cut in another way have no boundaries in common with the present ones, so that the
        // whole file would be stored again.
        if self.pieces.iter().any(|(_, extent)| !is_dirty_extent(extent)) {
            return Ok(attr.chunking);
        }
        let head = self.read_bytes(0..(HEAD as u64).min(attr.size))?;
        Ok(if is_in_place_format(&head) { ChunkingMode::Fixed } else { ChunkingMode::Content })
    }

    fn rechunk_run(&self, run: &[(u64, Extent)], chunking: ChunkingMode) -> Result<Vec<(u64, Extent)>> {
        let mut done = Vec::with_capacity(run.len());
        let mut window = RunWindow::default();
        let mut at = 0;
        while let Some(dirty) = run.get(at..).unwrap_or_default().iter().position(|(_, e)| is_dirty_extent(e))
        {
            // The chunk before a change may have ended there only because content did, or may have been cut short.
            let first = (at + dirty).saturating_sub(1).max(at);
            done.extend_from_slice(run.get(at..first).unwrap_or_default());
            let recut = RecutRange { file: self, run, first, chunking };
            at = recut.cut_until_clean(&mut window, &mut done)?;
        }
        done.extend_from_slice(run.get(at..).unwrap_or_default());
        Ok(done)
    }

    fn store_chunks(
        &self,
        position: u64,
        data: &[u8],
        cuts: &[Range<usize>],
        done: &mut Vec<(u64, Extent)>,
    ) -> Result<()> {
        let session = self.publication.session;
        // One file may take longer than a session lasts.
        session.renew_if_due()?;
        let stored: Vec<Result<(u64, Extent)>> = cuts
            .par_iter()
            .map(|cut| {
                let chunk = data.get(cut.clone()).unwrap_or_default();
                let id = session.put_blob(BlobKind::Chunk, chunk)?;
                let source = ExtentSource::Chunk { id, skip: 0 };
                Ok((position + cut.start as u64, Extent { len: chunk.len() as u64, source }))
            })
            .collect();
        for extent in stored {
            done.push(extent?);
        }
        Ok(())
    }

    /// Bytes of the file; holes read as zeros.
    fn read_bytes(&self, wanted: Range<u64>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; (wanted.end - wanted.start) as usize];
        let end_of = |(offset, extent): &(u64, Extent)| offset + extent.len;
        // Pieces are in order and do not overlap: that was checked when they were read.
        let first = self.pieces.partition_point(|piece| end_of(piece) <= wanted.start);
        let last = self.pieces.partition_point(|(offset, _)| *offset < wanted.end);
        for batch in self.pieces.get(first..last).unwrap_or_default().chunks(FILLED) {
            self.publication.source.fill_from_extents(self.ino, wanted.start, &mut bytes, batch)?;
        }
        Ok(bytes)
    }
}

/// A change and its surroundings, to be cut anew.
struct RecutRange<'a> {
    file: &'a PublishedFile<'a>,
    run: &'a [(u64, Extent)],
    /// The piece to begin with.
    first: usize,
    chunking: ChunkingMode,
}

impl RecutRange<'_> {
    /// Cuts until a boundary meets that of a clean piece behind the last dirty one in reach; gives that piece.
    fn cut_until_clean(&self, window: &mut RunWindow, done: &mut Vec<(u64, Extent)>) -> Result<usize> {
        let end = self.run.last().map_or(0, |(offset, extent)| offset + extent.len);
        let mut position = self.run.get(self.first).map_or(end, |(offset, _)| *offset);
        let mut next = self.first;
        let mut is_past_change = false;
        while position < end {
            let start = position;
            let data = window.bytes_from(self.file, position, end)?;
            let is_end = start + data.len() as u64 == end;
            let mut cuts = Vec::new();
            let mut met = false;
            while let Some(cut) = self.find_next_cut(data, start, position, is_end) {
                while let Some((_, passed)) = self.run.get(next).filter(|(offset, _)| *offset < position) {
                    is_past_change |= is_dirty_extent(passed);
                    next += 1;
                }
                // Where a chunk ends depends on its own bytes alone: from a boundary behind the change that was there
                // before, all further ones are the old ones.
                met = is_past_change && self.is_chunk_boundary(next, position);
                if met {
                    break;
                }
                let from = (position - start) as usize;
                cuts.push(from..from + cut);
                position += cut as u64;
            }
            self.file.store_chunks(start, data, &cuts, done)?;
            if met {
                return Ok(next);
            }
            // The window holds the longest chunk, so there is always a cut. Without this a mistake there would loop
            // for ever.
            if cuts.is_empty() {
                return Err(FsError::BadTree(format!("inode {} cannot be cut into chunks", self.file.ino)));
            }
        }
        Ok(self.run.len())
    }

    fn is_chunk_boundary(&self, piece: usize, position: u64) -> bool {
        self.run.get(piece).is_some_and(|(offset, extent)| {
            // A chunk that is used from its middle on begins here because something in front of it was
            // overwritten. That is no boundary of the content.
            *offset == position && matches!(extent.source, ExtentSource::Chunk { skip: 0, .. })
        })
    }

    /// Length of the chunk at a position, if the data in hand tell it.
    fn find_next_cut(&self, data: &[u8], start: u64, position: u64, is_end: bool) -> Option<usize> {
        let rest = data.get((position - start) as usize..).filter(|rest| !rest.is_empty())?;
        match self.chunking {
            ChunkingMode::Content => self.file.publication.chunker.find_chunk_end(rest, is_end),
            // Blocks are aligned in the file, wherever a run of pieces begins.
            ChunkingMode::Fixed => {
                let block = FIXED_BLOCK as u64;
                let aligned = block - position % block;
                find_block_end(rest, is_end).map(|cut| cut.min(aligned as usize))
            }
        }
    }
}
