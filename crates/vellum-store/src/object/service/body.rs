//! The bytes of an answer, taken piece by piece.
//!
//! Invariant: what is kept is never more than was allowed, whatever length the service announced.

use std::future::poll_fn;
use std::pin::pin;

use futures_core::Stream;
use opendal::{Buffer, BytesRange, Metadata, Operator};

/// An object, or a range of it, with what the service says of it.
#[derive(Debug, Clone)]
pub(super) struct ReadObject {
    pub bytes: Vec<u8>,
    pub metadata: Metadata,
}

/// The bytes of a range of an object; `None` if there are more than `max`.
pub(super) async fn read_object_range(
    operator: &Operator,
    path: &str,
    range: impl Into<BytesRange>,
    max: u64,
) -> opendal::Result<Option<ReadObject>> {
    let mut stream = operator.reader(path).await?.into_stream(range).await?;
    let metadata = stream.metadata().await?;
    let bytes = collect_pieces(stream, max).await?;
    Ok(bytes.map(|bytes| ReadObject { bytes, metadata }))
}

/// All pieces as one; `None` as soon as they are more than `max` bytes.
async fn collect_pieces(
    pieces: impl Stream<Item = opendal::Result<Buffer>>,
    max: u64,
) -> opendal::Result<Option<Vec<u8>>> {
    let mut pieces = pin!(pieces);
    let mut bytes = Vec::new();
    while let Some(piece) = poll_fn(|context| pieces.as_mut().poll_next(context)).await {
        let piece = piece?;
        if bytes.len() as u64 + piece.len() as u64 > max {
            return Ok(None);
        }
        piece.for_each(|part| bytes.extend_from_slice(&part));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use super::*;

    /// A service that sends more than it announced, and does not stop.
    struct Endless {
        sent: u64,
    }

    impl Stream for Endless {
        type Item = opendal::Result<Buffer>;

        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            self.sent += 1;
            assert!(self.sent <= 11, "it is not cut off");
            Poll::Ready(Some(Ok(Buffer::from(vec![7; 100]))))
        }
    }

    #[test]
    fn an_answer_without_end_is_cut_off() -> Result<(), Box<dyn std::error::Error>> {
        let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
        assert_eq!(runtime.block_on(collect_pieces(Endless { sent: 0 }, 1000))?, None);
        Ok(())
    }
}
