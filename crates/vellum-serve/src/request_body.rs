//! The body of a request to a gateway, which must not fall silent.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

/// Time in which something of an upload has to arrive.
const UPLOAD_IDLE: Duration = Duration::from_secs(60);

/// The body of a request.
pub enum RequestBody {
    /// All of it, read before.
    Whole(Option<Bytes>),
    /// What arrives.
    Upload {
        /// The body.
        incoming: Incoming,
        /// Ends when nothing has arrived for too long.
        idle: Pin<Box<Sleep>>,
    },
}

impl RequestBody {
    /// An upload, which fails if its client falls silent.
    #[must_use]
    pub fn upload(incoming: Incoming) -> Self {
        Self::Upload { incoming, idle: Box::pin(sleep(UPLOAD_IDLE)) }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match &mut *self {
            Self::Whole(whole) => Poll::Ready(whole.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Upload { incoming, idle } => match Pin::new(incoming).poll_frame(context) {
                Poll::Ready(frame) => {
                    idle.as_mut().reset(Instant::now() + UPLOAD_IDLE);
                    Poll::Ready(frame.map(|frame| frame.map_err(io::Error::other)))
                }
                // Without an end, clients that stop in the middle would keep all places for requests.
                Poll::Pending => {
                    idle.as_mut().poll(context).map(|()| Some(Err(io::ErrorKind::TimedOut.into())))
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => whole.is_none(),
            Self::Upload { incoming, .. } => incoming.is_end_stream(),
        }
    }

    // Without a length, requests that have no body would be taken for ones whose length is unknown.
    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => SizeHint::with_exact(whole.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Upload { incoming, .. } => incoming.size_hint(),
        }
    }
}
