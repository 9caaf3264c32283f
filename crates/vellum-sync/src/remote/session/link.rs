//! Both directions of a connection, with one thread for each.
//!
//! Invariant: the thread that reads never waits for anything but bytes. What it hands over is bounded: content by its
//! credit, listings and plans by the requests, messages by [`MESSAGES_MAX`].

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use vellum_host::ProgressMeter;
use vellum_types::UnixTime;

use super::feed::StreamFeed;
use super::inbox::StreamInbox;
use super::message::{SessionMessage, decode_error};
use super::stream::{CountedWriter, TimedReader};
use crate::error::{Result, SyncError};
use crate::model::listing::{TimeGranularity, TreeListing};
use crate::plan::SyncStep;
use crate::remote::wire::{
    FRAME_MAX, FrameKind, Greeting, ListingDecoder, PlanDecoder, WireCodec, WireError, WireFrame, WireReader,
    WireWriter, encode_listing,
};

/// Frames that wait to be written: with the longest usual ones, 4 MiB.
const FRAMES_MAX: usize = 32;
/// Messages that wait to be handled.
const MESSAGES_MAX: usize = 4096;
/// Longest message, bytes: rules and lists of files.
const MESSAGE_MAX: usize = 256 << 20;
/// Most change stamps that are sent with a listing: more would not fit into a message; files are then identified by
/// size and time alone.
const STAMPS_MAX: usize = 8 << 20;
/// Longest time without a frame: then a keep-alive frame is sent.
const PING_MAX: Duration = Duration::from_secs(15);

/// The settings of a connection.
#[derive(Debug, Clone, Copy)]
pub struct LinkSettings {
    /// The compression of sent data.
    pub codec: WireCodec,
    /// After this many milliseconds without a byte the other side counts as gone; 0: never.
    pub timeout: u64,
}

/// A received item other than content.
#[derive(Debug)]
pub(super) enum IncomingMessage {
    Message(SessionMessage),
    Listing(Arc<TreeListing>),
    Steps(Vec<SyncStep>),
    Bulk(Vec<u8>),
}

#[derive(Default)]
struct LinkControl {
    queue: VecDeque<IncomingMessage>,
    /// The reason why the connection was lost.
    lost: Option<String>,
    /// How many listings may be received.
    listings: usize,
    /// The listing that received plans refer to.
    own: Option<Arc<TreeListing>>,
    /// How many bytes of numbers or hashes may be received.
    bulk: usize,
    /// The operation to stop if the other side requests it or the connection is lost.
    meter: Option<Arc<ProgressMeter>>,
}

/// A connection.
pub struct SessionLink {
    out: Mutex<Option<SyncSender<WireFrame>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    control: Mutex<LinkControl>,
    /// Held while the parts of a message are sent.
    messages: Mutex<()>,
    wake: Condvar,
    timeout: Arc<AtomicU64>,
    greeted: AtomicBool,
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    pub(super) inbox: StreamInbox,
    pub(super) feed: StreamFeed,
}

impl SessionLink {
    /// Sends the greeting, and starts the threads that read and write.
    pub fn start_link(read: OwnedFd, write: OwnedFd, settings: &LinkSettings) -> Arc<Self> {
        // The channel is bounded: a sender that is faster than the connection has to wait. The thread that
        // reads never sends, so it never waits here.
        let (out, frames) = sync_channel(FRAMES_MAX);
        let link = Arc::new(Self {
            out: Mutex::new(Some(out)),
            writer: Mutex::default(),
            control: Mutex::default(),
            messages: Mutex::default(),
            wake: Condvar::new(),
            timeout: Arc::new(AtomicU64::new(settings.timeout)),
            greeted: AtomicBool::new(false),
            sent: Arc::default(),
            received: Arc::default(),
            inbox: StreamInbox::default(),
            feed: StreamFeed::default(),
        });
        let codec = settings.codec;
        let sent = Arc::clone(&link.sent);
        let timeout = Arc::clone(&link.timeout);
        // The writing thread must not keep the link alive: it ends when the last sender is gone, and the link
        // owns a sender.
        let writer = Arc::downgrade(&link);
        let writing = std::thread::spawn(move || {
            let outcome = write_frames(CountedWriter::new(write, sent), codec, &frames, &timeout);
            if let (Err(error), Some(link)) = (outcome, writer.upgrade()) {
                link.mark_lost(&error);
            }
        });
        *link.writer.lock() = Some(writing);
        // The reading thread keeps the link until the other side closes the stream.
        let reader = Arc::clone(&link);
        let stream = TimedReader::new(read, Arc::clone(&link.timeout), Arc::clone(&link.received));
        std::thread::spawn(move || {
            let error = reader.read_frames(stream);
            reader.mark_lost(&error);
        });
        link
    }

    /// Bytes sent and received so far.
    pub fn traffic(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.received.load(Ordering::Relaxed))
    }

    /// Whether the other side ever answered.
    pub fn has_connected(&self) -> bool {
        self.greeted.load(Ordering::Relaxed)
    }

    /// The reason why the connection was lost, if it was.
    pub fn loss_reason(&self) -> Option<String> {
        self.control.lock().lost.clone()
    }

    /// Ends sending; the other side reads the end of the stream.
    pub fn close(&self) {
        self.out.lock().take();
    }

    /// Sends the frames that wait, and ends sending. After a loss they are dropped.
    pub fn finish_sending(&self) {
        self.close();
        let writing = self.writer.lock().take();
        // If the connection is lost, the writer may hang in a write that never returns.
        if let Some(writing) = writing.filter(|_| self.loss_reason().is_none()) {
            // The panic of a thread was already reported on standard error.
            let _ = writing.join();
        }
    }

    pub(super) fn set_timeout(&self, millis: u64) {
        self.timeout.store(millis, Ordering::Relaxed);
    }

    /// Allows one more listing to be received.
    pub(super) fn allow_listing(&self) {
        self.control.lock().listings += 1;
    }

    /// Sets the listing that received plans refer to.
    pub(super) fn set_own_listing(&self, own: Option<Arc<TreeListing>>) {
        self.control.lock().own = own;
    }

    /// Allows that many bytes of numbers or hashes to be received.
    pub(super) fn allow_bulk_bytes(&self, bytes: usize) {
        self.control.lock().bulk = bytes;
    }

    /// Sets the operation to stop if the other side requests it or the connection is lost.
    pub(super) fn set_stop_meter(&self, meter: Option<Arc<ProgressMeter>>) {
        let mut control = self.control.lock();
        // The connection may have been lost just before. Nothing else would stop the operation that begins
        // now.
        if let (Some(_), Some(meter)) = (&control.lost, &meter) {
            meter.request_stop();
        }
        control.meter = meter;
    }

    fn mark_lost(&self, error: &WireError) {
        let mut control = self.control.lock();
        // The first reason is the cause. The other thread fails later because of it.
        control.lost.get_or_insert_with(|| error.to_string());
        if let Some(meter) = &control.meter {
            meter.request_stop();
        }
        drop(control);
        // Everybody who waits is released, for whatever they wait: senders by the closed channel, receivers
        // of content by the inbox, senders of content by the feed, and receivers of messages by the
        // condition.
        self.close();
        self.inbox.mark_lost();
        self.feed.mark_lost();
        self.wake.notify_all();
    }

    /// Sends a frame; waits while the queue is full.
    pub(super) fn send_frame(&self, frame: WireFrame) -> Result<()> {
        // The lock is released before sending, which can block for long; closing the link must not wait for
        // it.
        let out = self.out.lock().clone();
        out.and_then(|out| out.send(frame).ok()).ok_or(SyncError::Lost)
    }

    pub(super) fn send_frames(&self, frames: impl IntoIterator<Item = WireFrame>) -> Result<()> {
        frames.into_iter().try_for_each(|frame| self.send_frame(frame))
    }

    /// Sends a message.
    pub(super) fn send_message(&self, message: &SessionMessage) -> Result<()> {
        let text =
            serde_json::to_vec(message).map_err(|error| SyncError::wrap_io_error("send")(error.into()))?;
        // The other side puts the parts of a message together as they come, so no other message, such as a request
        // to stop, may be sent between them.
        let _whole = self.messages.lock();
        let mut parts = text.chunks(FRAME_MAX as usize).peekable();
        while let Some(part) = parts.next() {
            let kind = if parts.peek().is_some() { FrameKind::Part } else { FrameKind::Message };
            self.send_frame(WireFrame::new(kind, 0, part.to_vec()))?;
        }
        Ok(())
    }

    /// Sends a listing and the message that belongs to it.
    pub(super) fn send_listing(&self, listing: &TreeListing) -> Result<()> {
        encode_listing(listing, &mut |payload| {
            self.send_frame(WireFrame::new(FrameKind::Listing, 0, payload))
        })?;
        self.send_message(&SessionMessage::Listed {
            unlisted: listing.unlisted.clone(),
            owners: listing.owners.clone(),
            leftovers: listing.leftovers.clone(),
            stamps: Some(listing.change_stamps())
                .filter(|all| all.len() <= STAMPS_MAX)
                .unwrap_or_default()
                .to_vec(),
            begun: listing.begun.map(|time| (time.secs, time.nanos)),
            granularity: listing.granularity.step_nanos(),
        })
    }

    /// The next received item; the other side's `Failed` is returned as an error.
    pub(super) fn receive_message(&self) -> Result<IncomingMessage> {
        let mut control = self.control.lock();
        loop {
            match control.queue.pop_front() {
                Some(IncomingMessage::Message(SessionMessage::Failed { kind, message })) => {
                    return Err(decode_error(kind, message));
                }
                Some(incoming) => return Ok(incoming),
                // Messages that arrived before the loss are handed out first: a report that was received
                // counts.
                None if control.lost.is_some() => return Err(SyncError::Lost),
                None => self.wake.wait(&mut control),
            }
        }
    }

    /// Reads until the connection ends; returns the reason.
    fn read_frames(&self, mut stream: TimedReader) -> WireError {
        let greeting = match Greeting::receive_from(&mut stream) {
            Ok(greeting) => greeting,
            Err(error) => return error,
        };
        // From here on the program on the other side is Vellum, so a loss is worth another attempt. A loss
        // before that is usually a wrong password or a missing program.
        self.greeted.store(true, Ordering::Relaxed);
        let mut frames = match WireReader::new(stream, greeting.codec) {
            Ok(frames) => frames,
            Err(error) => return error,
        };
        let mut partial = PartialMessages::default();
        loop {
            let outcome = frames.read_frame().and_then(|frame| self.dispatch_frame(frame, &mut partial));
            if let Err(error) = outcome {
                return error;
            }
        }
    }

    fn dispatch_frame(&self, frame: WireFrame, partial: &mut PartialMessages) -> Result<(), WireError> {
        match frame.kind {
            FrameKind::Ping => Ok(()),
            FrameKind::Part | FrameKind::Message => {
                // Parts are collected before they are parsed, so the sum is limited and not only each frame.
                if partial.message.len() + frame.payload.len() > MESSAGE_MAX {
                    return Err(WireError::TooMuch("a message"));
                }
                partial.message.extend_from_slice(&frame.payload);
                if frame.kind == FrameKind::Part {
                    return Ok(());
                }
                let text = std::mem::take(&mut partial.message);
                let message = serde_json::from_slice(&text);
                self.handle_message(
                    message.map_err(|_| WireError::Unasked("a message of an unknown form"))?,
                    partial,
                )
            }
            FrameKind::Listing => {
                // Listings take memory in proportion to their length. None is accepted that this side did not
                // ask for.
                if self.control.lock().listings == 0 || partial.listing.is_some() {
                    return Err(WireError::Unasked("a listing"));
                }
                partial.listing = partial.decoder.decode_payload(&frame.payload)?;
                Ok(())
            }
            FrameKind::Plan => {
                let own = self.control.lock().own.clone();
                // Steps are checked against both listings while they arrive, so a plan never refers to
                // entries that do not exist.
                let (Some(from), Some(to)) = (&partial.from, own) else {
                    return Err(WireError::Unasked("a plan"));
                };
                let steps = partial.plan.decode_payload(&frame.payload, from, &to)?;
                steps.map_or(Ok(()), |steps| self.enqueue_message(IncomingMessage::Steps(steps)))
            }
            FrameKind::Digests => {
                // What may come was set when the request was sent, or when the listing was.
                if partial.bulk.len() + frame.payload.len() > self.control.lock().bulk {
                    return Err(WireError::Unasked("hashes"));
                }
                partial.bulk.extend_from_slice(&frame.payload);
                Ok(())
            }
            FrameKind::Open
            | FrameKind::OpenDelta
            | FrameKind::OpenInPlace
            | FrameKind::Credit
            | FrameKind::Cancel => self.feed.accept_frame(frame),
            FrameKind::Data
            | FrameKind::Whole
            | FrameKind::Old
            | FrameKind::Hole
            | FrameKind::End
            | FrameKind::Fail => self.inbox.accept_frame(frame),
        }
    }

    fn handle_message(
        &self,
        message: SessionMessage,
        partial: &mut PartialMessages,
    ) -> Result<(), WireError> {
        match message {
            // This is handled here and not queued: the thread that takes messages is executing the operation
            // that has to stop.
            SessionMessage::Stop => {
                if let Some(meter) = &self.control.lock().meter {
                    meter.request_stop();
                }
                Ok(())
            }
            SessionMessage::Listed { unlisted, owners, leftovers, stamps, begun, granularity } => {
                let mut listing = partial.listing.take().ok_or(WireError::Unasked("the end of a listing"))?;
                listing.unlisted = unlisted;
                listing.owners = owners;
                listing.leftovers = leftovers;
                listing.set_change_stamps(stamps);
                listing.begun = begun.map(|(secs, nanos)| UnixTime { secs, nanos });
                listing.granularity = TimeGranularity::from_nanos(granularity);
                let listing = Arc::new(listing);
                // A plan that follows refers to this listing.
                partial.from = Some(Arc::clone(&listing));
                partial.decoder = ListingDecoder::default();
                let mut control = self.control.lock();
                control.listings = control.listings.saturating_sub(1);
                drop(control);
                self.enqueue_message(IncomingMessage::Listing(listing))
            }
            message @ (SessionMessage::Digest | SessionMessage::Digested | SessionMessage::Take) => {
                self.enqueue_message(IncomingMessage::Bulk(std::mem::take(&mut partial.bulk)))?;
                self.enqueue_message(IncomingMessage::Message(message))
            }
            message => self.enqueue_message(IncomingMessage::Message(message)),
        }
    }

    fn enqueue_message(&self, incoming: IncomingMessage) -> Result<(), WireError> {
        let mut control = self.control.lock();
        // The reading thread must not wait until messages are taken, so too many of them end the connection.
        if control.queue.len() >= MESSAGES_MAX {
            return Err(WireError::TooMuch("messages"));
        }
        control.queue.push_back(incoming);
        self.wake.notify_all();
        Ok(())
    }
}

/// Items that were received in part.
#[derive(Default)]
struct PartialMessages {
    message: Vec<u8>,
    decoder: ListingDecoder,
    listing: Option<TreeListing>,
    from: Option<Arc<TreeListing>>,
    plan: PlanDecoder,
    bulk: Vec<u8>,
}

/// Writes queued frames, as many as there are before each flush, and keep-alive frames.
fn write_frames(
    mut out: CountedWriter,
    codec: WireCodec,
    frames: &Receiver<WireFrame>,
    timeout: &AtomicU64,
) -> Result<(), WireError> {
    Greeting::new(codec).send_to(&mut out)?;
    let mut writer = WireWriter::new(out, codec)?;
    loop {
        let millis = timeout.load(Ordering::Relaxed);
        // A quarter of the time-out, so that several signs of life can be late before the other side gives
        // up.
        let patience = if millis == 0 { PING_MAX } else { Duration::from_millis(millis / 4).min(PING_MAX) };
        match frames.recv_timeout(patience) {
            Ok(frame) => writer.write_frame(&frame)?,
            Err(RecvTimeoutError::Timeout) => {
                writer.write_frame(&WireFrame::new(FrameKind::Ping, 0, Vec::new()))?
            }
            Err(RecvTimeoutError::Disconnected) => return writer.flush(),
        }
        // Everything that waits goes out before the flush, so that small frames share packets and blocks of
        // the compressor.
        while let Ok(frame) = frames.try_recv() {
            writer.write_frame(&frame)?;
        }
        writer.flush()?;
    }
}
