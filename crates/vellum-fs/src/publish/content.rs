//! The content of a changed file: what lies in the write log is cut into chunks; what is in chunks stays, but for the
//! neighbours of a change.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

use rayon::prelude::*;
use vellum_chunker::{fixed_cut, looks_rewritten_in_place};
use vellum_types::limits::INLINE_MAX;
use vellum_types::value::FIXED_BLOCK;
use vellum_types::{Attr, BlobKind, Chunking, Extent, ExtentSource, Ino, Key, KeyRef};

use super::amend::extents_of;
use super::inode::Publication;
use crate::error::{FsError, Result};
use crate::tree::{Reading, damaged};

/// Bytes that are read and cut at once; their chunks are stored by all threads.
const WINDOW: usize = 4 << 20;
/// Pieces that are read together.
const FILLED: usize = 64;
/// Bytes of a file's head by which it is told how to cut it.
const HEAD: usize = 4096;

/// A file's content as it is published.
pub(super) struct Content {
    pub inline: Option<Vec<u8>>,
    pub extents: BTreeMap<Vec<u8>, Vec<u8>>,
    pub chunking: Chunking,
}

/// The content of a file whose extents changed.
pub(super) fn recut(
    publication: &Publication<'_>,
    view: &dyn Reading,
    ino: Ino,
    attr: &Attr,
) -> Result<Content> {
    let pieces = pieces(view, ino, attr)?;
    let file = File { publication, ino, pieces: &pieces };
    // As a checked-out file is recorded: inline if it is small, unless it has holes.
    let is_whole = pieces.iter().map(|(_, extent)| extent.len).sum::<u64>() == attr.size;
    if attr.size <= INLINE_MAX as u64 && is_whole {
        let inline = Some(file.read(0..attr.size)?);
        return Ok(Content { inline, extents: BTreeMap::new(), chunking: attr.chunking });
    }
    let chunking = file.chunking(attr)?;
    let mut extents = BTreeMap::new();
    for run in runs(&pieces) {
        for (offset, extent) in file.recut_run(run, chunking)? {
            extents.insert(Key::extent(ino, offset).into_bytes(), extent.encode());
        }
    }
    Ok(Content { inline: None, extents, chunking })
}

/// The extents of a file that are no holes, within its size.
fn pieces(view: &dyn Reading, ino: Ino, attr: &Attr) -> Result<Vec<(u64, Extent)>> {
    let (mut pieces, mut failed) = (Vec::new(), None);
    view.scan(extents_of(ino), &mut |key, value| {
        let read = KeyRef::parse(key).and_then(|key| Ok((key, Extent::decode(value)?)));
        match read {
            Ok((KeyRef::Extent(_, offset), extent)) if extent.source != ExtentSource::Hole => {
                pieces.push((offset, extent));
            }
            Ok(_) => {}
            Err(error) => {
                failed = Some(error);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    })?;
    if let Some(error) = failed {
        return Err(damaged("an extent")(error));
    }
    let mut end = 0;
    for (offset, extent) in &pieces {
        if *offset < end || offset.saturating_add(extent.len) > attr.size {
            return Err(FsError::BadTree(format!("the extents of inode {ino} overlap or exceed its size")));
        }
        end = offset + extent.len;
    }
    Ok(pieces)
}

/// Pieces without a gap between them.
fn runs(pieces: &[(u64, Extent)]) -> Vec<&[(u64, Extent)]> {
    pieces.chunk_by(|(offset, extent), (next, _)| offset + extent.len == *next).collect()
}

fn is_dirty(extent: &Extent) -> bool {
    matches!(extent.source, ExtentSource::WriteLog { .. })
}

struct File<'a> {
    publication: &'a Publication<'a>,
    ino: Ino,
    pieces: &'a [(u64, Extent)],
}

impl File<'_> {
    /// A file that has chunks keeps its way; a new one is looked at.
    fn chunking(&self, attr: &Attr) -> Result<Chunking> {
        let is_new = self.pieces.iter().all(|(_, extent)| is_dirty(extent));
        if attr.chunking == Chunking::Fixed || !is_new {
            return Ok(attr.chunking);
        }
        let head = self.read(0..(HEAD as u64).min(attr.size))?;
        Ok(if looks_rewritten_in_place(&head) { Chunking::Fixed } else { Chunking::Content })
    }

    fn recut_run(&self, run: &[(u64, Extent)], chunking: Chunking) -> Result<Vec<(u64, Extent)>> {
        let mut done = Vec::with_capacity(run.len());
        let mut at = 0;
        while let Some(dirty) = run.get(at..).unwrap_or_default().iter().position(|(_, e)| is_dirty(e)) {
            // The chunk before a change may have ended there only because content did, or may have been cut short.
            let first = (at + dirty).saturating_sub(1).max(at);
            done.extend_from_slice(run.get(at..first).unwrap_or_default());
            at = self.recut_from(run, first, chunking, &mut done)?;
        }
        done.extend_from_slice(run.get(at..).unwrap_or_default());
        Ok(done)
    }

    /// Cuts from a piece on, until a boundary meets that of a clean piece behind the last dirty one in reach; gives
    /// that piece.
    fn recut_from(
        &self,
        run: &[(u64, Extent)],
        first: usize,
        chunking: Chunking,
        done: &mut Vec<(u64, Extent)>,
    ) -> Result<usize> {
        let end = run.last().map_or(0, |(offset, extent)| offset + extent.len);
        let mut position = run.get(first).map_or(end, |(offset, _)| *offset);
        let mut next = first;
        while position < end {
            let window = position..end.min(position + WINDOW as u64);
            let data = self.read(window.clone())?;
            let cuts = self.cuts(&data, &window, end, chunking);
            let mut kept = None;
            let mut taken = Vec::new();
            for cut in cuts {
                let from = position + cut.start as u64;
                next += run.get(next..).unwrap_or_default().iter().take_while(|(o, _)| *o < from).count();
                let is_met = run.get(next).is_some_and(|(offset, extent)| {
                    *offset == from && matches!(extent.source, ExtentSource::Chunk { skip: 0, .. })
                });
                let passed =
                    run.get(first..next).is_some_and(|passed| passed.iter().any(|(_, e)| is_dirty(e)));
                if is_met && passed {
                    kept = Some(next);
                    break;
                }
                taken.push(cut);
            }
            self.store(position, &data, &taken, done)?;
            if let Some(next) = kept {
                return Ok(next);
            }
            position += taken.last().map_or(data.len(), |cut| cut.end) as u64;
        }
        Ok(run.len())
    }

    /// Where a window is cut: up to the last boundary that does not depend on what follows it.
    fn cuts(&self, data: &[u8], window: &Range<u64>, end: u64, chunking: Chunking) -> Vec<Range<usize>> {
        let eof = window.end == end;
        let (mut cuts, mut at) = (Vec::new(), 0);
        while let Some(rest) = data.get(at..).filter(|rest| !rest.is_empty()) {
            let cut = match chunking {
                Chunking::Content => self.publication.chunker.cut(rest, eof),
                // Blocks are aligned in the file, wherever a run of pieces begins.
                Chunking::Fixed => {
                    let block = FIXED_BLOCK as u64;
                    let aligned = block - (window.start + at as u64) % block;
                    fixed_cut(rest, eof).map(|cut| cut.min(aligned as usize))
                }
            };
            let Some(cut) = cut else { break };
            cuts.push(at..at + cut);
            at += cut;
        }
        cuts
    }

    fn store(
        &self,
        position: u64,
        data: &[u8],
        cuts: &[Range<usize>],
        done: &mut Vec<(u64, Extent)>,
    ) -> Result<()> {
        let session = self.publication.session;
        let stored: Vec<Result<(u64, Extent)>> = cuts
            .par_iter()
            .map(|cut| {
                let chunk = data.get(cut.clone()).unwrap_or_default();
                let id = session.put(BlobKind::Chunk, chunk)?;
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
    fn read(&self, wanted: Range<u64>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; (wanted.end - wanted.start) as usize];
        let end_of = |(offset, extent): &(u64, Extent)| offset + extent.len;
        let first = self.pieces.partition_point(|piece| end_of(piece) <= wanted.start);
        let last = self.pieces.partition_point(|(offset, _)| *offset < wanted.end);
        for batch in self.pieces.get(first..last).unwrap_or_default().chunks(FILLED) {
            self.publication.fs.fill(self.ino, wanted.start, &mut bytes, batch)?;
        }
        Ok(bytes)
    }
}
