//! Requested content as it arrives, in streams with a limited credit each.
//!
//! Invariant: content that waits here was requested, and is within the credit: [`WINDOW`] for each open file, and
//! [`AHEAD_MAX`] for files that will be opened. A file is requested ahead only if all of it fits into the latter, so
//! that its sender never waits for a file that nobody has opened yet.

use std::collections::{HashMap, VecDeque};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::message::decode_error;
use crate::error::{Result, SyncError};
use crate::model::listing::ContentDigest;
use crate::remote::delta::{FileSignature, SignatureError, SignatureMatcher};
use crate::remote::wire::{FrameKind, WireError, WireFrame};

/// Credit of a stream, bytes: a connection of 100 MB/s and 50 ms holds 5 MB.
pub(super) const WINDOW: u64 = 4 << 20;
/// Longest file that is requested ahead, bytes.
const AHEAD_FILE_MAX: u64 = 1 << 20;
/// Most bytes that are requested ahead.
const AHEAD_MAX: u64 = 8 << 20;
/// Memory of a file apart from its content, bytes.
const FILE_COST: u64 = 256;
/// The cost of a piece without data, bytes.
const PIECE_COST: u64 = 32;
/// Longest error message, bytes.
const MESSAGE_MAX: usize = 4096;

/// A piece of a stream.
#[derive(Debug)]
pub(super) enum StreamItem {
    Data(Vec<u8>),
    Old { offset: u64, len: u64 },
    Hole(u64),
    End(Option<ContentDigest>),
    Fail(SyncError),
}

#[derive(Debug, Default)]
struct IncomingStream {
    items: VecDeque<StreamItem>,
    /// The remaining credit in bytes.
    allowed: u64,
    /// Bytes that were consumed since the last credit was sent.
    taken: u64,
    ended: bool,
    /// Its share of the bytes that are requested ahead.
    ahead: u64,
}

#[derive(Debug, Default)]
struct InboxState {
    streams: HashMap<u32, IncomingStream>,
    /// The streams of files that were requested ahead.
    requested: HashMap<u32, u32>,
    /// Files that are to be requested: number and size.
    queue: VecDeque<(u32, u64)>,
    ahead: u64,
    next: u32,
    lost: bool,
}

/// All streams of a side.
#[derive(Debug, Default)]
pub(super) struct StreamInbox {
    state: Mutex<InboxState>,
    wake: Condvar,
}

/// An old version of a file, as it is sent to the side that has the new one.
pub(super) struct WireOldVersion {
    /// Its signature, encoded.
    pub signature: Vec<u8>,
    /// The new version is written over it in place.
    pub is_overwritten: bool,
}

impl WireOldVersion {
    /// Builds the matcher that finds its blocks in the new version.
    pub fn build_matcher(&self) -> Result<SignatureMatcher, SignatureError> {
        let signature = FileSignature::decode(&self.signature)?;
        Ok(if self.is_overwritten {
            SignatureMatcher::new_in_place(signature)
        } else {
            SignatureMatcher::new(signature)
        })
    }
}

impl StreamInbox {
    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock()
    }

    /// Sets the files that will be opened, in this order; returns the frame to be sent.
    pub fn announce_files(&self, files: impl Iterator<Item = (u32, u64)>) -> Option<WireFrame> {
        let mut state = self.lock();
        // Longer files are not asked for ahead: one of them would use most of the allowance while the
        // receiver is busy with others.
        state.queue = files.filter(|(_, size)| *size <= AHEAD_FILE_MAX).collect();
        state.request_ahead()
    }

    /// Opens a file; returns the number of its stream, and the frames to be sent.
    pub fn open_stream(&self, file: u32, old: Option<WireOldVersion>) -> (u32, Vec<WireFrame>) {
        let mut state = self.lock();
        // A file that was asked for ahead is on its way whole. If it is opened with an old version after all,
        // it gets a second stream, and what arrives on the first one is never taken.
        if old.is_none()
            && let Some(stream) = state.requested.remove(&file)
        {
            return (stream, Vec::new());
        }
        let number = state.begin_stream(0);
        let frame = match old {
            None => WireFrame::new(FrameKind::Open, number, file.to_le_bytes().to_vec()),
            Some(old) => {
                let kind = if old.is_overwritten { FrameKind::OpenInPlace } else { FrameKind::OpenDelta };
                WireFrame::new(kind, number, [&file.to_le_bytes()[..], &old.signature].concat())
            }
        };
        (number, vec![frame])
    }

    /// The next piece of a stream, and the frame to be sent.
    pub fn next_item(&self, number: u32) -> Result<(StreamItem, Option<WireFrame>)> {
        let mut state = self.lock();
        loop {
            let Some(stream) = state.streams.get_mut(&number) else { return Err(SyncError::Lost) };
            if let Some(item) = stream.items.pop_front() {
                stream.taken += item_cost(&item);
                // Credit is given in large steps: one frame for each half of the window instead of one for
                // each piece.
                let more = if stream.taken >= WINDOW / 2 && !stream.ended {
                    let bytes = std::mem::take(&mut stream.taken);
                    stream.allowed += bytes;
                    Some(WireFrame::new(FrameKind::Credit, number, bytes.to_le_bytes().to_vec()))
                } else {
                    None
                };
                return Ok((item, more));
            }
            // What arrived before the connection was lost has been handed out by now.
            if state.lost {
                return Err(SyncError::Lost);
            }
            self.wake.wait(&mut state);
        }
    }

    /// Closes a stream; returns the frames to be sent.
    pub fn close_stream(&self, number: u32) -> Vec<WireFrame> {
        let mut state = self.lock();
        let Some(stream) = state.streams.remove(&number) else { return Vec::new() };
        state.ahead = state.ahead.saturating_sub(stream.ahead);
        // A stream that has ended needs no message; the sender has forgotten it.
        let cancel = (!stream.ended).then(|| WireFrame::new(FrameKind::Cancel, number, Vec::new()));
        // Asking again at half keeps the number of frames low and the line busy.
        let more = if state.ahead <= AHEAD_MAX / 2 { state.request_ahead() } else { None };
        cancel.into_iter().chain(more).collect()
    }

    /// Handles a frame that was received.
    pub fn accept_frame(&self, frame: WireFrame) -> Result<(), WireError> {
        let mut state = self.lock();
        let next = state.next;
        // A cancelled stream is forgotten at once, but its frames keep arriving for up to a round trip.
        // Numbers are never used twice, so these cannot be taken for frames of another stream.
        let Some(stream) = state.streams.get_mut(&frame.number) else {
            // It was sent before the sender learned that the stream was closed.
            return if frame.number < next { Ok(()) } else { Err(WireError::Unasked("a stream")) };
        };
        if stream.ended {
            return Err(WireError::Unasked("more of a stream that had ended"));
        }
        let whole = frame.kind == FrameKind::Whole;
        let item = decode_item(frame)?;
        let counted = item_cost(&item);
        stream.ended = whole || matches!(item, StreamItem::End(_) | StreamItem::Fail(_));
        // A frame beyond the allowance is a violation of the protocol and ends the connection. Only the
        // frames that end a stream cost nothing and may come without any allowance left.
        stream.allowed = match (stream.allowed.checked_sub(counted), stream.ended) {
            (Some(rest), _) => rest,
            (None, true) if !whole => 0,
            (None, _) => return Err(WireError::TooMuch("bytes of a stream")),
        };
        stream.items.push_back(item);
        // A whole file ends its stream by itself. There is no hash: it was checked for changes before it was
        // sent.
        if whole {
            stream.items.push_back(StreamItem::End(None));
        }
        self.wake.notify_all();
        Ok(())
    }

    /// Ends all waits, as the connection is lost.
    pub fn mark_lost(&self) {
        self.lock().lost = true;
        self.wake.notify_all();
    }
}

impl InboxState {
    fn begin_stream(&mut self, ahead: u64) -> u32 {
        let number = self.next;
        self.next += 1;
        self.streams.insert(number, IncomingStream { allowed: WINDOW, ahead, ..IncomingStream::default() });
        self.ahead += ahead;
        number
    }

    /// Requests as many of the next files as fit.
    fn request_ahead(&mut self) -> Option<WireFrame> {
        let first = self.next;
        let mut files = Vec::new();
        // All files of one request get consecutive stream numbers and go out in one frame.
        while self.ahead < AHEAD_MAX
            && let Some((file, size)) = self.queue.pop_front()
        {
            let number = self.begin_stream(size + FILE_COST);
            self.requested.insert(file, number);
            files.extend(file.to_le_bytes());
        }
        (!files.is_empty()).then(|| WireFrame::new(FrameKind::Open, first, files))
    }
}

fn item_cost(item: &StreamItem) -> u64 {
    match item {
        StreamItem::Data(bytes) => bytes.len() as u64 + PIECE_COST,
        StreamItem::Old { .. } | StreamItem::Hole(_) => PIECE_COST,
        StreamItem::End(_) | StreamItem::Fail(_) => 0,
    }
}

/// The cost of a piece, which the sending side computes in the same way.
pub(super) fn data_cost(len: usize) -> u64 {
    len as u64 + PIECE_COST
}

fn decode_item(frame: WireFrame) -> Result<StreamItem, WireError> {
    let mut bytes = vellum_types::FieldReader::new(&frame.payload);
    let item = match frame.kind {
        FrameKind::Data | FrameKind::Whole => return Ok(StreamItem::Data(frame.payload)),
        FrameKind::Old => StreamItem::Old { offset: bytes.read_u64()?, len: bytes.read_u64()? },
        FrameKind::Hole => StreamItem::Hole(bytes.read_u64()?),
        FrameKind::End if bytes.remaining() == 0 => StreamItem::End(None),
        FrameKind::End => StreamItem::End(Some(bytes.read_array()?)),
        FrameKind::Fail if bytes.remaining() <= MESSAGE_MAX => {
            let kind = bytes.read_u8()?;
            let message = String::from_utf8_lossy(bytes.read_rest()).into_owned();
            StreamItem::Fail(decode_error(kind, message))
        }
        _ => return Err(WireError::Unasked("a frame that does not belong to a stream")),
    };
    bytes.expect_end()?;
    Ok(item)
}
