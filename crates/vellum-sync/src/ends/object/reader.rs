//! Reading a file of the source in pieces of the length that an upload needs.
//!
//! Invariant: a file that was read to its end is the source's version, and stayed the same meanwhile.

use std::os::unix::fs::FileExt;

use vellum_host::beneath::OpenedFile;
use vellum_types::UnixTime;

use crate::ends::{ContentPieces, SourceContent, TransferPiece};
use crate::error::{Result, SyncError};
use crate::local::receive::{check_unchanged, map_short_read};
use crate::model::listing::ListingEntry;

/// A file that is being read.
pub(super) struct ObjectContentReader {
    /// Its length in bytes.
    pub size: u64,
    /// Its modification time.
    pub mtime: UnixTime,
    position: u64,
    content: OpenedContent,
}

enum OpenedContent {
    File(OpenedFile),
    Pieces(ArrivingContent),
}

/// Pieces as they arrive, with the rest of the last one.
struct ArrivingContent {
    pieces: Box<dyn ContentPieces>,
    rest: Vec<u8>,
    zeros: u64,
}

impl ObjectContentReader {
    /// Reads the opened content of a listed file.
    pub fn new(content: SourceContent, entry: &ListingEntry<'_>) -> Self {
        match content {
            SourceContent::File(opened) => Self {
                size: opened.stat.size,
                mtime: opened.stat.mtime,
                position: 0,
                content: OpenedContent::File(opened),
            },
            SourceContent::Pieces(pieces) => Self {
                size: entry.size(),
                mtime: entry.mtime(),
                position: 0,
                content: OpenedContent::Pieces(ArrivingContent { pieces, rest: Vec::new(), zeros: 0 }),
            },
        }
    }

    /// Reads the next bytes: that many, or all that are left.
    pub fn read_part(&mut self, len: u64) -> Result<Vec<u8>> {
        // The length is that at the time of opening. If the file grows, the check after the last part fails.
        let len = usize::try_from(len.min(self.size - self.position)).unwrap_or(usize::MAX);
        let mut part = vec![0; len];
        match &mut self.content {
            OpenedContent::File(opened) => {
                opened.file.read_exact_at(&mut part, self.position).map_err(map_short_read)?;
            }
            OpenedContent::Pieces(arriving) => arriving.fill_part(&mut part)?,
        }
        self.position += len as u64;
        Ok(part)
    }

    /// Whether all of it was read.
    pub fn is_at_end(&self) -> bool {
        self.position >= self.size
    }

    /// Fails if the file changed since it was opened.
    pub fn check_unchanged(&mut self) -> Result<()> {
        match &mut self.content {
            OpenedContent::File(opened) => check_unchanged(opened),
            OpenedContent::Pieces(arriving) => arriving.check_end(),
        }
    }
}

impl ArrivingContent {
    fn fill_part(&mut self, part: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < part.len() {
            let room = part.get_mut(filled..).unwrap_or_default();
            if self.zeros > 0 {
                // The part is made of zeros.
                let step = usize::try_from(self.zeros).unwrap_or(room.len()).min(room.len());
                self.zeros -= step as u64;
                filled += step;
                continue;
            }
            if !self.rest.is_empty() {
                let step = self.rest.len().min(room.len());
                let taken = self.rest.drain(..step);
                room.iter_mut().zip(taken).for_each(|(to, byte)| *to = byte);
                filled += step;
                continue;
            }
            match self.pieces.next_piece()? {
                Some(TransferPiece::Data(bytes)) => self.rest.extend_from_slice(bytes),
                Some(TransferPiece::Hole(len)) => self.zeros = len,
                Some(TransferPiece::Old { .. }) | None => return Err(SyncError::Unequal),
            }
        }
        Ok(())
    }

    fn check_end(&mut self) -> Result<()> {
        let is_used_up = self.zeros == 0 && self.rest.is_empty();
        // The source reports a change only with its last piece, so it is asked once more.
        match self.pieces.next_piece()? {
            None if is_used_up => Ok(()),
            Some(_) | None => Err(SyncError::Unequal),
        }
    }
}
