//! Content that was asked for and arrives: streams, each with so many bytes that may come.
//!
//! Invariant: what waits here was asked for, and is no more than was allowed: [`WINDOW`] for each file that is open,
//! and [`AHEAD_MAX`] for files that will be. A file is asked for ahead only if all of it fits, so that it never waits for
//! somebody to open it while others wait for it.

use std::collections::{HashMap, VecDeque};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::message::decode_error;
use crate::error::{Result, SyncError};
use crate::model::listing::ContentDigest;
use crate::remote::delta::{FileSignature, SignatureError, SignatureMatcher};
use crate::remote::wire::{FrameKind, WireError, WireFrame};

/// Bytes of a stream that may come before they are taken: a line of 100 MB/s and 50 ms holds 5 MB.
pub(super) const WINDOW: u64 = 4 << 20;
/// Longest file that is asked for ahead, bytes.
const AHEAD_FILE_MAX: u64 = 1 << 20;
/// Bytes that are asked for ahead.
const AHEAD_MAX: u64 = 8 << 20;
/// What a file costs beside its content, bytes.
const FILE_COST: u64 = 256;
/// What a piece without data counts for, bytes.
const PIECE_COST: u64 = 32;
/// Longest message of a failure, bytes.
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
    /// Bytes that may still come.
    allowed: u64,
    /// Bytes that were taken and not allowed anew.
    taken: u64,
    ended: bool,
    /// What it was counted with among those asked for ahead.
    ahead: u64,
}

#[derive(Debug, Default)]
struct InboxState {
    streams: HashMap<u32, IncomingStream>,
    /// Files that were asked for ahead, and their streams.
    requested: HashMap<u32, u32>,
    /// Files to ask for: number and size.
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

/// An old version of a file, as the side that has the new one is told of it.
pub(super) struct WireOldVersion {
    /// Its signature, encoded.
    pub signature: Vec<u8>,
    /// The new version is written over it.
    pub is_overwritten: bool,
}

impl WireOldVersion {
    /// What looks for its blocks in the new version.
    pub fn build_matcher(&self) -> std::result::Result<SignatureMatcher, SignatureError> {
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

    /// Says which files will be opened, in this order; what is to be sent about it.
    pub fn announce_files(&self, files: impl Iterator<Item = (u32, u64)>) -> Option<WireFrame> {
        let mut state = self.lock();
        // Longer files are not asked for ahead: one of them would use most of the allowance while the
        // receiver is busy with others.
        state.queue = files.filter(|(_, size)| *size <= AHEAD_FILE_MAX).collect();
        state.request_ahead()
    }

    /// Opens a file; the number of its stream, and what is to be sent about it.
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

    /// The next piece of a stream, and what is to be sent about it.
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

    /// No more of a stream is wanted; what is to be sent about it.
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

    /// Takes in a frame that arrived.
    pub fn accept_frame(&self, frame: WireFrame) -> std::result::Result<(), WireError> {
        let mut state = self.lock();
        let next = state.next;
        // A cancelled stream is forgotten at once, but its frames keep arriving for up to a round trip.
        // Numbers are never used twice, so these cannot be taken for frames of another stream.
        let Some(stream) = state.streams.get_mut(&frame.number) else {
            // What was under way when a stream was closed.
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

    /// The connection is gone: nobody waits any longer.
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

    /// Asks for as many of the next files as there is room for.
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

/// What a piece costs the side that sends it; the same.
pub(super) fn data_cost(len: usize) -> u64 {
    len as u64 + PIECE_COST
}

fn decode_item(frame: WireFrame) -> std::result::Result<StreamItem, WireError> {
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
        _ => return Err(WireError::Unasked("a frame that is none of a stream")),
    };
    bytes.expect_end()?;
    Ok(item)
}
