//! Content that the other side requests: read here, and sent as fast as its credit allows.
//!
//! Invariant: only regular files of the listing that the other side holds are opened, by their numbers; the other side
//! sends no paths. Data that waits to be sent is bounded by the credit of each stream.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use parking_lot::{Condvar, Mutex, MutexGuard};
use vellum_host::beneath::OpenedFile;
use vellum_host::clone::iter_data_segments;

use super::inbox::{WINDOW, WireOldVersion, data_cost};
use super::link::SessionLink;
use super::message::encode_error;
use crate::ends::{ContentPieces, SourceContent, SourceEnd, TransferPiece};
use crate::error::{Result, SyncError};
use crate::local::receive::{PositionedReader, check_unchanged, map_short_read};
use crate::model::listing::{ListingEntry, ListingEntryId, TreeListing};
use crate::remote::delta::{DeltaOperation, ENCODED_MAX, SignatureMatcher};
use crate::remote::wire::{FrameKind, WireError, WireFrame};

/// Threads that read: enough to keep a disk busy while others hash and compress.
pub(super) const THREADS: usize = 4;
/// Longest piece of data, bytes; a file as long goes in one frame.
const DATA_LEN: usize = 128 << 10;
/// Most files that may be requested at a time: as many as fit into an inbox, with a margin.
const WAITING_MAX: usize = 1 << 18;
/// Most bytes of signatures that may wait: a few of the longest.
const SIGNATURES_MAX: usize = 16 * ENCODED_MAX;

struct StreamRequest {
    stream: u32,
    file: u32,
    old: Option<WireOldVersion>,
}

impl StreamRequest {
    /// Bytes of the signature.
    fn signature_len(&self) -> usize {
        self.old.as_ref().map_or(0, |old| old.signature.len())
    }
}

#[derive(Default)]
struct FeedState {
    waiting: VecDeque<StreamRequest>,
    signatures: usize,
    /// The credit of each stream that is being sent, in bytes.
    allowed: HashMap<u32, u64>,
    ended: bool,
    /// The connection is lost: no further run uses the feed.
    lost: bool,
}

/// A request of the other side for a file.
#[derive(Default)]
pub(super) struct StreamFeed {
    state: Mutex<FeedState>,
    wake: Condvar,
}

impl StreamFeed {
    fn lock(&self) -> MutexGuard<'_, FeedState> {
        self.state.lock()
    }

    /// Handles a frame that was received.
    pub fn accept_frame(&self, frame: WireFrame) -> Result<(), WireError> {
        let mut state = self.lock();
        // This runs on the thread that reads from the connection. It only takes a lock that is never held
        // during I/O.
        let mut bytes = vellum_types::FieldReader::new(&frame.payload);
        match frame.kind {
            FrameKind::Open => {
                // One frame opens many streams with consecutive numbers: small files are asked for in the
                // hundreds.
                let mut stream = frame.number;
                loop {
                    state.enqueue_request(StreamRequest { stream, file: bytes.read_u32()?, old: None })?;
                    if bytes.remaining() == 0 {
                        break;
                    }
                    stream = stream.checked_add(1).ok_or(WireError::TooMuch("numbers of streams"))?;
                }
            }
            FrameKind::OpenDelta | FrameKind::OpenInPlace => {
                let file = bytes.read_u32()?;
                let signature = bytes.read_rest().to_vec();
                let is_overwritten = frame.kind == FrameKind::OpenInPlace;
                let old = Some(WireOldVersion { signature, is_overwritten });
                state.enqueue_request(StreamRequest { stream: frame.number, file, old })?;
            }
            FrameKind::Credit => {
                let more = bytes.read_u64()?;
                // Credit for an unknown stream is no error: the stream may have ended while the frame was on
                // its way.
                if let Some(allowed) = state.allowed.get_mut(&frame.number) {
                    *allowed = allowed.saturating_add(more);
                }
            }
            FrameKind::Cancel => {
                // A request that is removed here does not reach `next_request`, which counts signatures off.
                let cancelled = state.waiting.iter().filter(|request| request.stream == frame.number);
                let signatures: usize = cancelled.map(StreamRequest::signature_len).sum();
                state.signatures -= signatures;
                state.waiting.retain(|request| request.stream != frame.number);
                // A sender that waits for credit finds its stream missing and stops. The receiver ignores
                // what was sent before.
                state.allowed.remove(&frame.number);
            }
            _ => return Err(WireError::Unasked("a frame that is not a request")),
        }
        self.wake.notify_all();
        Ok(())
    }

    /// Ends the feed: no further request is served.
    pub fn end_requests(&self) {
        self.lock().ended = true;
        self.wake.notify_all();
    }

    /// Ends the feed for all runs, as the connection is lost.
    pub fn mark_lost(&self) {
        self.lock().lost = true;
        self.end_requests();
    }

    /// Makes the feed ready for the next run.
    pub fn reset_requests(&self) {
        let mut state = self.lock();
        // The connection can be lost while a run begins. Its threads would wait for ever.
        let lost = state.lost;
        *state = FeedState { ended: lost, lost, ..FeedState::default() };
    }

    fn next_request(&self) -> Option<StreamRequest> {
        let mut state = self.lock();
        loop {
            if state.ended {
                return None;
            }
            if let Some(request) = state.waiting.pop_front() {
                state.signatures -= request.signature_len();
                // Both sides know the first allowance, so the first bytes of a stream need no round trip.
                state.allowed.insert(request.stream, WINDOW);
                return Some(request);
            }
            self.wake.wait(&mut state);
        }
    }

    /// Waits until that many bytes of a stream may be sent; false if the stream was cancelled or the feed ends.
    fn acquire_credit(&self, stream: u32, bytes: u64) -> bool {
        let mut state = self.lock();
        loop {
            if state.ended {
                return false;
            }
            match state.allowed.get_mut(&stream) {
                None => return false,
                Some(allowed) if *allowed >= bytes => {
                    *allowed -= bytes;
                    return true;
                }
                // All threads share one condition. There are few of them, and a wake-up for another stream
                // only costs a look at the map.
                Some(_) => self.wake.wait(&mut state),
            }
        }
    }

    fn close_stream(&self, stream: u32) {
        self.lock().allowed.remove(&stream);
    }
}

impl FeedState {
    fn enqueue_request(&mut self, request: StreamRequest) -> Result<(), WireError> {
        self.signatures += request.signature_len();
        // An honest receiver is far below both limits. Without them, a peer could fill the memory of this
        // side with requests.
        if self.waiting.len() >= WAITING_MAX || self.signatures > SIGNATURES_MAX {
            return Err(WireError::TooMuch("files at a time"));
        }
        self.waiting.push_back(request);
        Ok(())
    }
}

/// Sends the requested content from `source`, until the link's feed ends.
pub(super) fn serve_requests(link: &SessionLink, source: &dyn SourceEnd, listing: &TreeListing) {
    while let Some(request) = link.feed.next_request() {
        let mut sender = StreamSender { link, stream: request.stream };
        let outcome = sender.send_file(source, listing, &request);
        link.feed.close_stream(request.stream);
        let failed = match outcome {
            // `Stopped` means that the receiver cancelled the stream or that the feed ends. The receiver
            // expects no message then.
            Ok(()) | Err(SyncError::Stopped) => continue,
            Err(SyncError::Lost) => return,
            Err(error) => error,
        };
        // The failure concerns this file only. The receiver reports it and goes on with others.
        let (kind, message) = encode_error(&failed);
        // The receiver refuses longer messages. The cut must not split a character.
        let cut = message.char_indices().map(|(at, _)| at).take_while(|at| *at < 4000).last().unwrap_or(0);
        let message = if message.len() > 4000 { message.get(..cut).unwrap_or_default() } else { &message };
        let payload = [&[kind], message.as_bytes()].concat();
        if link.send_frame(WireFrame::new(FrameKind::Fail, request.stream, payload)).is_err() {
            return;
        }
    }
}

/// Sends one stream.
struct StreamSender<'l> {
    link: &'l SessionLink,
    stream: u32,
}

impl StreamSender<'_> {
    fn send_file(
        &mut self,
        source: &dyn SourceEnd,
        listing: &TreeListing,
        request: &StreamRequest,
    ) -> Result<()> {
        // The number comes from the other side. It selects an entry of the listing that this side made, and
        // nothing but a regular file of it.
        let entry = ListingEntryId::from_u32(request.file)
            .and_then(|id| listing.get(id))
            .filter(ListingEntry::is_file);
        let entry =
            entry.ok_or(SyncError::Wire(WireError::Unasked("the content of an entry that is not a file")))?;
        let matcher = request.old.as_ref().map(WireOldVersion::build_matcher).transpose();
        let matcher = matcher.map_err(|error| SyncError::Remote {
            kind: vellum_types::ErrorKind::Corrupt,
            message: error.to_string(),
        })?;
        match (source.open_content(entry, None)?, matcher) {
            // The receiver expects as many bytes as the listing says and would fail at the end. Failing now
            // saves the transfer.
            (SourceContent::File(file), _) if file.stat.size != entry.size() => Err(SyncError::Changed),
            (SourceContent::File(file), None) => self.send_whole_file(&file),
            (SourceContent::File(file), Some(matcher)) => self.send_delta(&file, &matcher),
            (SourceContent::Pieces(mut pieces), _) => self.send_pieces(&mut *pieces),
        }
    }

    fn send_frame(&self, kind: FrameKind, payload: Vec<u8>, cost: u64) -> Result<()> {
        // This waits until the receiver has taken enough, so a slow disk there bounds what is in memory on
        // both sides.
        if !self.link.feed.acquire_credit(self.stream, cost) {
            return Err(SyncError::Stopped);
        }
        self.link.send_frame(WireFrame::new(kind, self.stream, payload))
    }

    fn send_data(&self, bytes: Vec<u8>) -> Result<()> {
        let cost = data_cost(bytes.len());
        self.send_frame(FrameKind::Data, bytes, cost)
    }

    fn send_hole(&self, len: u64) -> Result<()> {
        self.send_frame(FrameKind::Hole, len.to_le_bytes().to_vec(), data_cost(0))
    }

    fn send_whole_file(&self, file: &OpenedFile) -> Result<()> {
        let size = file.stat.size;
        if size <= DATA_LEN as u64 {
            let mut bytes = vec![0; size as usize];
            file.file.read_exact_at(&mut bytes, 0).map_err(map_short_read)?;
            // The file is sent only after this check. Of a longer file, parts are sent before, and the end
            // frame is held back instead.
            check_unchanged(file)?;
            let cost = data_cost(bytes.len());
            return self.send_frame(FrameKind::Whole, bytes, cost);
        }
        let mut position = 0;
        for segment in iter_data_segments(&file.file, &file.stat) {
            let segment = segment.map_err(SyncError::wrap_io_error("read"))?;
            // Holes are sent as lengths, and the receiver leaves holes there.
            if segment.offset > position {
                self.send_hole(segment.offset - position)?;
            }
            position = segment.offset;
            while position < segment.offset + segment.len {
                let step = (segment.offset + segment.len - position).min(DATA_LEN as u64);
                let mut bytes = vec![0; step as usize];
                file.file.read_exact_at(&mut bytes, position).map_err(map_short_read)?;
                self.send_data(bytes)?;
                position += step;
            }
        }
        if position < size {
            self.send_hole(size - position)?;
        }
        check_unchanged(file)?;
        self.send_frame(FrameKind::End, Vec::new(), 0)
    }

    fn send_delta(&self, file: &OpenedFile, matcher: &SignatureMatcher) -> Result<()> {
        let mut reader =
            HashedReader { file: PositionedReader::new(&file.file), hasher: blake3::Hasher::new() };
        // The scan knows only I/O errors. The real error is kept aside and returned after the scan.
        let mut failed = None;
        let outcome = matcher.scan_file(&mut reader, file.stat.size, &mut |op| {
            let sent = match op {
                DeltaOperation::Data(bytes) => {
                    bytes.chunks(DATA_LEN).try_for_each(|piece| self.send_data(piece.to_vec()))
                }
                DeltaOperation::Copy { offset, len } => {
                    let payload = [offset.to_le_bytes(), len.to_le_bytes()].concat();
                    self.send_frame(FrameKind::Old, payload, data_cost(0))
                }
            };
            sent.map_err(|error| {
                failed = Some(error);
                io::ErrorKind::Other.into()
            })
        });
        match (outcome, failed) {
            (_, Some(error)) => return Err(error),
            (Err(error), None) => return Err(SyncError::wrap_io_error("read")(error)),
            (Ok(()), None) => {}
        }
        check_unchanged(file)?;
        // The matches were found by 8 bytes of a hash and may be wrong. The hash of the whole file lets the
        // receiver notice that.
        self.send_frame(FrameKind::End, reader.hasher.finalize().as_bytes().to_vec(), 0)
    }

    fn send_pieces(&self, pieces: &mut dyn ContentPieces) -> Result<()> {
        while let Some(piece) = pieces.next_piece()? {
            match piece {
                TransferPiece::Data(bytes) => {
                    bytes.chunks(DATA_LEN).try_for_each(|piece| self.send_data(piece.to_vec()))?
                }
                TransferPiece::Hole(len) => self.send_hole(len)?,
                // A source was opened without an old version, so it cannot refer to one.
                TransferPiece::Old { .. } => return Err(SyncError::Unequal),
            }
        }
        let digest = pieces.content_digest().map_or(Vec::new(), |digest| digest.to_vec());
        self.send_frame(FrameKind::End, digest, 0)
    }
}

/// Reads a file from its start and hashes it.
struct HashedReader<'f> {
    file: PositionedReader<'f>,
    hasher: blake3::Hasher,
}

impl Read for HashedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.hasher.update(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_of_a_lost_connection_stays_at_its_end() {
        let feed = StreamFeed::default();
        feed.end_requests();
        feed.reset_requests();
        assert!(!feed.lock().ended);
        feed.mark_lost();
        feed.reset_requests();
        assert!(feed.lock().ended);
    }

    /// The thread that reads from the connection panicked.
    #[test]
    fn streams_beyond_the_highest_number_are_refused() {
        let open =
            |files: usize| WireFrame::new(FrameKind::Open, u32::MAX, vec![0; files * size_of::<u32>()]);
        assert!(StreamFeed::default().accept_frame(open(1)).is_ok());
        let refused = StreamFeed::default().accept_frame(open(2));
        assert!(matches!(refused, Err(WireError::TooMuch(_))), "{refused:?}");
    }

    #[test]
    fn signatures_of_cancelled_requests_do_not_count() {
        let feed = StreamFeed::default();
        // Together they are longer than the signatures that may wait.
        for stream in 0..20 {
            let open = WireFrame::new(FrameKind::OpenDelta, stream, vec![0; 4 + ENCODED_MAX]);
            assert!(feed.accept_frame(open).is_ok(), "{stream}");
            let cancel = WireFrame::new(FrameKind::Cancel, stream, Vec::new());
            assert!(feed.accept_frame(cancel).is_ok(), "{stream}");
        }
    }
}
