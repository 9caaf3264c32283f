//! The stream of one listener, as the body of an answer.

use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::mpsc::Receiver;

/// Events in their form, until the server ends or the listener is dropped.
pub struct EventStream {
    events: Receiver<Bytes>,
}

impl EventStream {
    pub(super) fn new(events: Receiver<Bytes>) -> Self {
        Self { events }
    }

    /// The next event; None: the stream has ended.
    pub fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.events.poll_recv(context)
    }

    #[cfg(test)]
    pub(super) async fn read_all(&mut self) -> String {
        let mut text = String::new();
        while let Some(event) = self.events.recv().await {
            text.push_str(&String::from_utf8_lossy(&event));
        }
        text
    }
}
