//! The other side's files as a source.
//!
//! Invariant: the pieces of a file add up to the listed size, and those from the old file lie within it; otherwise the
//! file fails.

use std::sync::Arc;

use vellum_host::ProgressMeter;

use super::inbox::{StreamItem, WireOldVersion};
use super::link::SessionLink;
use crate::ends::{
    ContentPieces, ListingRequest, OldVersion, SourceContent, SourceEnd, SyncEnd, TransferPiece, WantedFile,
};
use crate::error::{Result, SyncError};
use crate::model::listing::{ContentDigest, ContentDigests, ListingEntry, ListingEntryId, TreeListing};
use crate::remote::delta::FileSignature;
use crate::remote::wire::WireError;

/// Files up to this length are sent whole, and requested ahead: a signature costs a round trip.
const DELTA_MIN: u64 = 32 << 10;

/// A source whose content comes over a link.
pub struct WireSource {
    link: Arc<SessionLink>,
}

impl WireSource {
    /// Makes the source of the other side of `link`.
    #[must_use]
    pub fn new(link: Arc<SessionLink>) -> Self {
        Self { link }
    }
}

impl SyncEnd for WireSource {
    fn list_entries(&self, _: &ListingRequest, _: &ProgressMeter) -> Result<TreeListing> {
        Err(SyncError::Wire(WireError::Unasked("a listing")))
    }

    fn hash_files(&self, _: &TreeListing, _: &[ListingEntryId], _: &ProgressMeter) -> Result<ContentDigests> {
        Err(SyncError::Wire(WireError::Unasked("hashes")))
    }
}

impl SourceEnd for WireSource {
    fn announce_files(&self, listing: &TreeListing, files: &[WantedFile]) {
        let files = files.iter().filter_map(|wanted| {
            let size = listing.get(wanted.id)?.size();
            // A file that will be opened with an old version cannot be requested before its signature exists.
            (!wanted.delta || size <= DELTA_MIN).then_some((wanted.id.as_u32(), size))
        });
        if let Some(frame) = self.link.inbox.announce_files(files) {
            // If the connection is lost, opening a file returns the error.
            let _ = self.link.send_frame(frame);
        }
    }

    fn open_content(&self, file: ListingEntry<'_>, old: Option<OldVersion<'_>>) -> Result<SourceContent> {
        let mut signature = None;
        let mut old_len = 0;
        let is_overwritten = old.is_some_and(|old| old.is_overwritten);
        if let Some(OldVersion { file: old, .. }) = old.filter(|_| file.size() > DELTA_MIN) {
            // The length at this moment is kept: pieces of the old file must lie within what the signature
            // covers.
            old_len = old.metadata().map_err(SyncError::wrap_io_error("read"))?.len();
            let made = if old_len > 0 { FileSignature::from_file(old, old_len) } else { Ok(None) };
            let made = made.map_err(SyncError::wrap_io_error("read"))?;
            signature = made.map(|made| WireOldVersion { signature: made.encode(), is_overwritten });
        }
        let (stream, frames) = self.link.inbox.open_stream(file.id().as_u32(), signature);
        let pieces = WirePieces {
            link: Arc::clone(&self.link),
            stream,
            data: Vec::new(),
            rest: file.size(),
            old_len,
            digest: None,
            ended: false,
        };
        self.link.send_frames(frames)?;
        Ok(SourceContent::Pieces(Box::new(pieces)))
    }
}

struct WirePieces {
    link: Arc<SessionLink>,
    stream: u32,
    data: Vec<u8>,
    /// Bytes that are still to come.
    rest: u64,
    old_len: u64,
    digest: Option<ContentDigest>,
    ended: bool,
}

impl WirePieces {
    fn consume_bytes(&mut self, len: u64) -> Result<()> {
        let rest = self.rest.checked_sub(len);
        self.rest = rest.ok_or(SyncError::Wire(WireError::TooMuch("bytes of a file")))?;
        Ok(())
    }
}

impl ContentPieces for WirePieces {
    fn next_piece(&mut self) -> Result<Option<TransferPiece<'_>>> {
        if self.ended {
            return Ok(None);
        }
        let (item, frame) = self.link.inbox.next_item(self.stream)?;
        // Credit is sent before the piece is used, so that the next bytes are on their way while this one is
        // written.
        self.link.send_frames(frame)?;
        match item {
            StreamItem::Data(bytes) => {
                self.consume_bytes(bytes.len() as u64)?;
                self.data = bytes;
                Ok(Some(TransferPiece::Data(&self.data)))
            }
            StreamItem::Hole(len) => {
                self.consume_bytes(len)?;
                Ok(Some(TransferPiece::Hole(len)))
            }
            StreamItem::Old { offset, len } => {
                self.consume_bytes(len)?;
                // The offset comes from the other side.
                if offset.checked_add(len).is_none_or(|end| end > self.old_len) {
                    return Err(SyncError::Wire(WireError::TooMuch("bytes of the old file")));
                }
                Ok(Some(TransferPiece::Old { offset, len }))
            }
            StreamItem::Fail(error) => {
                self.ended = true;
                Err(error)
            }
            // The file became shorter after it was listed. The run tries it again.
            StreamItem::End(_) if self.rest > 0 => Err(SyncError::Changed),
            StreamItem::End(digest) => {
                self.ended = true;
                self.digest = digest;
                Ok(None)
            }
        }
    }

    fn content_digest(&self) -> Option<ContentDigest> {
        self.digest
    }
}

impl Drop for WirePieces {
    fn drop(&mut self) {
        let frames = self.link.inbox.close_stream(self.stream);
        // If the connection is gone, there is nothing to take back.
        let _ = self.link.send_frames(frames);
    }
}
