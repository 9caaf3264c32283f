//! The body of an answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::OwnedSemaphorePermit;

/// The body of an answer.
pub struct AnswerBody {
    inner: dav_server::body::Body,
    /// Set when a part of a listing could not be read.
    has_failed: Arc<AtomicBool>,
    /// One of the requests that are under way, until all of it is sent.
    _permit: Option<OwnedSemaphorePermit>,
}

impl AnswerBody {
    /// What `dav-server` answers.
    #[must_use]
    pub fn new(
        inner: dav_server::body::Body,
        has_failed: Arc<AtomicBool>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self { inner, has_failed, _permit: Some(permit) }
    }

    /// A text for people.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self { inner: format!("{text}\n").into(), has_failed: Arc::default(), _permit: None }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(context);
        // `dav-server` passes over what it cannot list. A client that mirrors would delete what is missing: the answer is cut
        // off, so that it is not taken for whole.
        if frame.is_ready() && self.has_failed.load(Ordering::Acquire) {
            return Poll::Ready(Some(Err(io::Error::other("the directory could not be listed"))));
        }
        frame
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use http_body_util::BodyExt as _;
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn a_listing_that_failed_does_not_look_whole() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let collect = |has_failed| {
            let has_failed = Arc::new(AtomicBool::new(has_failed));
            let body = AnswerBody { inner: "listing".into(), has_failed, _permit: None };
            runtime.block_on(body.collect()).map(|collected| collected.to_bytes())
        };
        assert_eq!(collect(false).unwrap(), "listing");
        assert!(collect(true).is_err());
    }
}
