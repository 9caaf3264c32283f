//! Frames that wait to be sent to a client, and the thread that sends them.
//!
//! Invariant: whoever adds a frame does not wait for the client. The frames are answers, of which the session limits how
//! many can wait, and at most one of each other kind.

use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

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
    answers: Vec<Arc<Vec<u8>>>,
    /// Answers that wait or are being sent: their number, and their bytes.
    unsent: UnsentAnswers,
    wants_pong: bool,
    /// The last frame; nothing follows it.
    goodbye: Option<Vec<u8>>,
    is_closed: bool,
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

    /// Adds an answer.
    pub fn add_answer(&self, frame: Arc<Vec<u8>>) {
        let mut state = self.state.lock();
        state.unsent.count += 1;
        state.unsent.bytes += frame.len();
        state.answers.push(frame);
        drop(state);
        self.changed.notify_one();
    }

    /// Has the client told that this process is there.
    pub fn request_pong(&self) {
        self.state.lock().wants_pong = true;
        self.changed.notify_one();
    }

    /// What the client has not read.
    pub fn unsent_answers(&self) -> UnsentAnswers {
        self.state.lock().unsent
    }

    /// Sends a last frame, and closes the connection.
    pub fn close_with(&self, goodbye: &ServerFrame<'_>) {
        self.state.lock().goodbye = Some(goodbye.encode());
        self.changed.notify_one();
    }

    /// Closes the connection.
    pub fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_one();
        // The peer may have closed it already.
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
            state.unsent.count -= batch.answers.len();
            state.unsent.bytes -= batch.answers.iter().map(|frame| frame.len()).sum::<usize>();
        }
        self.close();
    }

    fn wait_for_batch(&self) -> Option<OutboxBatch> {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| {
            let has_work = !state.answers.is_empty() || state.wants_pong || state.goodbye.is_some();
            !has_work && !state.is_closed
        });
        if state.is_closed {
            return None;
        }
        let answers = std::mem::take(&mut state.answers);
        let wants_pong = std::mem::take(&mut state.wants_pong);
        Some(OutboxBatch { answers, wants_pong, goodbye: state.goodbye.take() })
    }
}

/// What is sent in one go.
struct OutboxBatch {
    answers: Vec<Arc<Vec<u8>>>,
    wants_pong: bool,
    goodbye: Option<Vec<u8>>,
}

impl OutboxBatch {
    fn send(&self, writer: &mut FrameWriter) -> Result<()> {
        for answer in &self.answers {
            writer.write_frame(answer)?;
        }
        if self.wants_pong {
            writer.write_frame(&ServerFrame::Pong.encode())?;
        }
        if let Some(goodbye) = &self.goodbye {
            writer.write_frame(goodbye)?;
        }
        writer.flush()?;
        Ok(())
    }
}
