//! What the page is told without asking: one stream of server-sent events for each tab that is seen.
//!
//! One watcher looks, for all listeners together and only while there is one, so that many tabs cost as much as one.
//! Each kind of event tells a whole state and no step: who comes later, or has missed some, needs the last one only.
//!
//! Invariant: a listener keeps at most [`QUEUE`] events in memory. One that takes none is dropped, with its connection.

mod stream;
mod watcher;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Sender, channel};

pub use self::stream::EventStream;
pub use self::watcher::watch_volume;
use crate::web::answer::ApiError;

/// Most listeners at once.
pub const LISTENERS_MAX: usize = 16;
/// Events that wait for a listener, beyond those that the kernel keeps for it.
const QUEUE: usize = 32;

/// Kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// How the store is: another value after each change.
    Changed,
    /// What agents ask for.
    Approvals,
    /// The verification of this process.
    Job,
    /// What mounts do; only for listeners that want it.
    Live,
}

impl EventKind {
    /// As streams have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Approvals => "approvals",
            Self::Job => "job",
            Self::Live => "live",
        }
    }
}

/// Ends a connection from outside.
#[derive(Clone, Default)]
pub struct ConnectionEnd(Arc<ConnectionEndState>);

#[derive(Default)]
struct ConnectionEndState {
    ended: Notify,
    /// Dropped with the connection, after everything was sent.
    held: Mutex<Option<Arc<()>>>,
}

impl ConnectionEnd {
    /// Ends it, also if nobody waits yet.
    pub fn end(&self) {
        self.0.ended.notify_one();
    }

    /// Waits until it is ended.
    pub async fn wait(&self) {
        self.0.ended.notified().await;
    }

    fn hold(&self, counted: Arc<()>) {
        *self.0.held.lock() = Some(counted);
    }
}

/// Who listens, and what was told last.
#[derive(Default)]
pub struct EventHub {
    inner: Mutex<HubState>,
    /// Wakes the watcher: somebody listens now.
    woken: Notify,
    /// Each connection with a stream holds a clone.
    streams: Arc<()>,
}

#[derive(Default)]
struct HubState {
    listeners: Vec<Listener>,
    /// The last event of each kind but figures, which are of one second.
    told: Vec<(EventKind, Bytes)>,
    is_closed: bool,
}

struct Listener {
    events: Sender<Bytes>,
    wants_figures: bool,
    connection: ConnectionEnd,
}

/// An event in the form of the stream. JSON has no line feeds in it, so that it is one line of data.
fn format_event(kind: EventKind, value: &Value) -> Bytes {
    format!("event: {}\ndata: {value}\n\n", kind.name()).into()
}

impl EventHub {
    /// Adds a listener, who is told the last event of each kind first.
    pub fn add_listener(
        &self,
        wants_figures: bool,
        connection: ConnectionEnd,
    ) -> Result<EventStream, ApiError> {
        let mut inner = self.inner.lock();
        // Those who have gone away count no more, although nothing was sent to them since.
        inner.listeners.retain(|listener| !listener.events.is_closed());
        if inner.is_closed || inner.listeners.len() >= LISTENERS_MAX {
            let message = format!("at most {LISTENERS_MAX} pages are told of changes at once");
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "conflict", message));
        }
        // While nobody listened, nobody looked.
        if inner.listeners.is_empty() {
            inner.told.clear();
        }
        let (events, stream) = channel(QUEUE);
        for (_, event) in &inner.told {
            // There are fewer kinds than QUEUE.
            let _ = events.try_send(event.clone());
        }
        connection.hold(self.streams.clone());
        inner.listeners.push(Listener { events, wants_figures, connection });
        drop(inner);
        self.woken.notify_waiters();
        Ok(EventStream::new(stream))
    }

    /// Tells all listeners, unless it is what they were told last.
    pub fn tell(&self, kind: EventKind, value: &Value) {
        let event = format_event(kind, value);
        let mut inner = self.inner.lock();
        if kind != EventKind::Live {
            if inner.told.iter().any(|told| *told == (kind, event.clone())) {
                return;
            }
            inner.told.retain(|(told, _)| *told != kind);
            inner.told.push((kind, event.clone()));
        }
        inner.send(&event, |listener| kind != EventKind::Live || listener.wants_figures);
    }

    /// Sends everybody a comment: a listener that has gone away without a word is noticed by that.
    fn send_sign_of_life(&self) {
        self.inner.lock().send(&Bytes::from_static(b": \n\n"), |_| true);
    }

    fn has_listeners(&self, wants_figures: bool) -> bool {
        let inner = self.inner.lock();
        inner.listeners.iter().any(|one| !one.events.is_closed() && (one.wants_figures || !wants_figures))
    }

    /// Waits for a while, or until somebody new listens.
    async fn pause(&self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.woken.notified() => {}
        }
    }

    /// Waits until somebody listens.
    async fn wait_for_listeners(&self, wants_figures: bool) {
        loop {
            let woken = self.woken.notified();
            tokio::pin!(woken);
            // Before the look: who comes between the look and the wait is not missed.
            woken.as_mut().enable();
            if self.has_listeners(wants_figures) {
                return;
            }
            woken.await;
        }
    }

    /// Ends all streams, and lets no more begin.
    pub fn close(&self) {
        let mut inner = self.inner.lock();
        inner.is_closed = true;
        // A stream without a sender ends in order.
        inner.listeners.clear();
    }

    /// Waits until the connections of all streams have ended.
    pub async fn wait_until_taken(&self) {
        while Arc::strong_count(&self.streams) > 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl HubState {
    fn send(&mut self, event: &Bytes, is_wanted: impl Fn(&Listener) -> bool) {
        self.listeners.retain(|listener| {
            if !is_wanted(listener) {
                return true;
            }
            match listener.events.try_send(event.clone()) {
                Ok(()) => true,
                Err(TrySendError::Closed(_)) => false,
                Err(TrySendError::Full(_)) => {
                    // The end of the stream would wait behind what is not taken: the connection goes instead.
                    listener.connection.end();
                    false
                }
            }
        });
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use serde_json::json;
    use tokio::time::timeout;

    use super::*;

    fn run<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
    }

    #[test]
    fn what_was_told_last_is_told_to_who_comes_later() {
        run(async {
            let hub = EventHub::default();
            let mut first = hub.add_listener(false, ConnectionEnd::default()).unwrap();
            hub.tell(EventKind::Changed, &json!(1));
            hub.tell(EventKind::Changed, &json!(2));
            hub.tell(EventKind::Changed, &json!(2));
            hub.tell(EventKind::Live, &json!("figures"));
            let mut second = hub.add_listener(true, ConnectionEnd::default()).unwrap();
            hub.tell(EventKind::Live, &json!("others"));
            hub.close();
            assert_eq!(first.read_all().await, "event: changed\ndata: 1\n\nevent: changed\ndata: 2\n\n");
            assert_eq!(
                second.read_all().await,
                "event: changed\ndata: 2\n\nevent: live\ndata: \"others\"\n\n"
            );
            assert!(hub.add_listener(false, ConnectionEnd::default()).is_err());
        });
    }

    #[test]
    fn a_state_that_was_told_to_nobody_is_not_told_later() {
        run(async {
            let hub = EventHub::default();
            drop(hub.add_listener(false, ConnectionEnd::default()).unwrap());
            hub.tell(EventKind::Changed, &json!(1));
            let mut later = hub.add_listener(false, ConnectionEnd::default()).unwrap();
            hub.close();
            assert_eq!(later.read_all().await, "");
        });
    }

    #[test]
    fn listeners_are_bounded_and_those_who_left_count_no_more() {
        run(async {
            let hub = EventHub::default();
            let add = || hub.add_listener(false, ConnectionEnd::default());
            let mut streams: Vec<_> = (0..LISTENERS_MAX).map(|_| add().unwrap()).collect();
            assert_eq!(add().err().unwrap().status().as_u16(), 503);
            streams.pop();
            assert!(add().is_ok());
        });
    }

    #[test]
    fn who_takes_nothing_is_dropped_with_the_connection() {
        run(async {
            let hub = EventHub::default();
            let slow = ConnectionEnd::default();
            let mut stream = hub.add_listener(false, slow.clone()).unwrap();
            (0..QUEUE).for_each(|number| hub.tell(EventKind::Changed, &json!(number)));
            assert!(timeout(Duration::from_millis(1), slow.wait()).await.is_err());
            assert!(hub.has_listeners(false));
            hub.tell(EventKind::Changed, &json!("one more"));
            slow.wait().await;
            assert!(!hub.has_listeners(false));
            assert_eq!(stream.read_all().await.matches("data: ").count(), QUEUE);
        });
    }

    #[test]
    fn text_of_others_stays_in_its_line() {
        let event = format_event(EventKind::Approvals, &json!({ "client": "a\n\nevent: changed\ndata: 1" }));
        assert_eq!(event.iter().filter(|byte| **byte == b'\n').count(), 3);
    }
}
