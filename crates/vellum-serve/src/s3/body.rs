//! The body of an answer, which is one of the requests under way until it is sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

/// A body that holds a permit.
pub struct PermitBody<B> {
    inner: B,
    _permit: Option<OwnedSemaphorePermit>,
}

impl<B> PermitBody<B> {
    /// Holds it until the body is dropped.
    #[must_use]
    pub fn new(inner: B, permit: Option<OwnedSemaphorePermit>) -> Self {
        Self { inner, _permit: permit }
    }
}

impl<B: Body + Unpin> Body for PermitBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
