//! Frames that wait to be sent to a client, and the thread that sends them.
//!
//! Invariant: whoever adds a frame does not wait for the client. The frames are answers, of which the session limits how
//! many can wait; recalls, of which there is one for each change that waits; and at most one of each other kind. They are sent in
//! the order in which they were added.

use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::leases::FrameSink;
use crate::connection::FrameWriter;
use crate::error::Result;
use crate::protocol::frame::ServerFrame;

/// What is to be sent over one connection.
pub struct Outbox {
    state: Mutex<OutboxState>,
    changed: Condvar,
    stream: TcpStream,
}

#[derive(Default)]
struct OutboxState {
    frames: Vec<OutboxFrame>,
    /// Answers that wait or are being sent: their number, and their bytes.
    unsent: UnsentAnswers,
    /// The last ping that is not answered.
    pinged: Option<u64>,
    /// The last frame; nothing follows it.
    goodbye: Option<Vec<u8>>,
    is_closed: bool,
}

/// A frame that waits to be sent.
enum OutboxFrame {
    Answer(Arc<Vec<u8>>),
    Notice(Vec<u8>),
}

impl OutboxFrame {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Answer(bytes) => bytes,
            Self::Notice(bytes) => bytes,
        }
    }
}

/// Answers that are not sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct UnsentAnswers {
    pub count: usize,
    pub bytes: usize,
}

impl Outbox {
    /// An empty one for a connection.
    pub fn new(stream: TcpStream) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), stream }
    }

    /// Has the client told that this process is there, and has received its ping.
    pub fn request_pong(&self, number: u64) {
        let mut state = self.state.lock();
        // One place, not a queue: a client that sends pings and reads nothing must not make it grow. The highest number
        // confirms those before it, and a sign of life (0) must not take one away.
        state.pinged = state.pinged.max(Some(number));
        drop(state);
        self.changed.notify_one();
    }

    /// What the client has not read.
    pub fn unsent_answers(&self) -> UnsentAnswers {
        self.state.lock().unsent
    }

    /// Sends a last frame, and closes the connection.
    pub fn close_with(&self, goodbye: &ServerFrame<'_>) {
        // It is closed by the thread that sends, after what waits before this frame.
        self.state.lock().goodbye = Some(goodbye.encode());
        self.changed.notify_one();
    }

    /// Closes the connection.
    pub fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_one();
        // Both directions: the thread that reads from this client wakes, too, and ends the connection. The peer
        // may have closed it already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Sends until the connection is closed or breaks.
    pub fn send_frames(&self, mut writer: FrameWriter) {
        while let Some(batch) = self.wait_for_batch() {
            let is_last = batch.goodbye.is_some();
            if batch.send(&mut writer).is_err() || is_last {
                break;
            }
            let mut state = self.state.lock();
            // Only now: while the socket was full these took memory as much as those that wait, so a client that does not
            // read reaches its limit.
            state.unsent.count -= batch.answers().count();
            state.unsent.bytes -= batch.answers().map(|frame| frame.len()).sum::<usize>();
        }
        self.close();
    }

    fn wait_for_batch(&self) -> Option<OutboxBatch> {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| {
            let has_work = !state.frames.is_empty() || state.pinged.is_some() || state.goodbye.is_some();
            !has_work && !state.is_closed
        });
        if state.is_closed {
            return None;
        }
        // All at once, so that many small answers share records and one write.
        let frames = std::mem::take(&mut state.frames);
        Some(OutboxBatch { frames, pinged: state.pinged.take(), goodbye: state.goodbye.take() })
    }
}

/// What is sent in one go.
struct OutboxBatch {
    frames: Vec<OutboxFrame>,
    pinged: Option<u64>,
    goodbye: Option<Vec<u8>>,
}

impl FrameSink for Outbox {
    fn add_answer(&self, frame: Arc<Vec<u8>>) {
        let mut state = self.state.lock();
        state.unsent.count += 1;
        state.unsent.bytes += frame.len();
        state.frames.push(OutboxFrame::Answer(frame));
        drop(state);
        self.changed.notify_one();
    }

    fn add_notice(&self, frame: Vec<u8>) {
        self.state.lock().frames.push(OutboxFrame::Notice(frame));
        self.changed.notify_one();
    }
}

impl OutboxBatch {
    fn answers(&self) -> impl Iterator<Item = &Arc<Vec<u8>>> {
        self.frames.iter().filter_map(|frame| match frame {
            OutboxFrame::Answer(answer) => Some(answer),
            OutboxFrame::Notice(_) => None,
        })
    }

    fn send(&self, writer: &mut FrameWriter) -> Result<()> {
        for frame in &self.frames {
            writer.write_frame(frame.bytes())?;
        }
        // Behind all that was there before it: who has it has those.
        if let Some(number) = self.pinged {
            writer.write_frame(&ServerFrame::Pong { number }.encode())?;
        }
        if let Some(goodbye) = &self.goodbye {
            writer.write_frame(goodbye)?;
        }
        writer.flush()?;
        Ok(())
    }
}
