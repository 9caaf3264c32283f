//! The bytes of an answer, taken piece by piece.
//!
//! Invariant: what is kept is never more than was allowed, whatever length the service announced.

use std::future::poll_fn;
use std::pin::pin;
use std::time::{Duration, SystemTime};

use futures_core::Stream;
use opendal::raw::Timestamp;
use opendal::{Buffer, BytesRange, Metadata, Operator};

use super::exchange::current_exchange;
use super::plain::VersionMatch;
use crate::object::{ObjectVersion, VersionedObject};

/// How long after a modification nothing modified later can look the same: times in HTTP are whole seconds.
const SURE_AFTER: Duration = Duration::from_secs(2);

/// Most room that is made for an answer before its bytes are there: a service may announce any length.
const ROOM_MAX: u64 = 16 << 20;

/// An object, or a range of it, with what the service returns about it.
#[derive(Debug, Clone)]
pub(super) struct ReadObject {
    pub bytes: Vec<u8>,
    pub metadata: Metadata,
}

/// The bytes of a range of an object, or those before the object's end; `None` if there are more than `max`.
pub(super) async fn read_object_range(
    operator: &Operator,
    path: &str,
    range: impl Into<BytesRange>,
    max: u64,
) -> opendal::Result<Option<ReadObject>> {
    read_version_range(operator, path, None, range, max).await
}

/// The same of one version, if one is named; of another it is a failed condition.
pub(super) async fn read_version_range(
    operator: &Operator,
    path: &str,
    version: Option<VersionMatch>,
    range: impl Into<BytesRange>,
    max: u64,
) -> opendal::Result<Option<ReadObject>> {
    let range = range.into();
    let offset = range.offset();
    let reading = operator.reader_with(path);
    let reader = match version {
        None => reading.await?,
        Some(VersionMatch::Etag(etag)) => reading.if_match(&etag).await?,
        Some(VersionMatch::Version(version)) => reading.if_version_match(&version).await?,
    };
    let mut stream = reader.into_stream(range).await?;
    // Of the answer that the bytes come from: asked for by itself, it could be that of another version.
    let metadata = stream.metadata().await?;
    let mut bytes = make_room(&metadata, max);
    match collect_pieces(stream, max, &mut bytes).await {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        // OpenDAL reports an error if the object ends before the range does.
        Err(_) if ends_object(offset, &bytes) => {}
        Err(error) => return Err(error),
    }
    Ok(Some(ReadObject { bytes, metadata }))
}

/// An object, unless it still is the version `known`, which is a failed condition; `None` if it has more than `max` bytes.
pub(super) async fn read_changed_object(
    operator: &Operator,
    path: &str,
    known: Option<ObjectVersion>,
    max: u64,
) -> opendal::Result<Option<VersionedObject>> {
    let reading = operator.reader_with(path);
    let reader = match known {
        None => reading.await?,
        Some(ObjectVersion::Tag(tag)) => reading.if_none_match(&tag).await?,
        Some(ObjectVersion::Modified(time)) => reading.if_modified_since(Timestamp::try_from(time)?).await?,
    };
    let mut stream = reader.into_stream(..).await?;
    let metadata = stream.metadata().await?;
    let mut bytes = Vec::new();
    if !collect_pieces(stream, max, &mut bytes).await? {
        return Ok(None);
    }
    let answered = current_exchange().and_then(|exchange| exchange.lock().date);
    Ok(Some(VersionedObject { bytes, version: find_sure_version(&metadata, answered) }))
}

/// The version of an object in an answer of this time. Web servers make tags of the second of the modification: if that is
/// not over, another version may get the same one.
fn find_sure_version(metadata: &Metadata, answered: Option<SystemTime>) -> Option<ObjectVersion> {
    let modified = metadata.last_modified().map(SystemTime::from);
    let is_over = match (modified, answered) {
        (Some(modified), Some(answered)) => {
            Some(answered.duration_since(modified).is_ok_and(|age| age >= SURE_AFTER))
        }
        (None, _) | (_, None) => None,
    };
    match metadata.etag() {
        Some(tag) if is_over != Some(false) => Some(ObjectVersion::Tag(tag.to_owned())),
        None if is_over == Some(true) => modified.map(ObjectVersion::Modified),
        Some(_) | None => None,
    }
}

/// Whether the service said that the object ends behind these bytes.
fn ends_object(offset: u64, bytes: &[u8]) -> bool {
    let end = current_exchange().and_then(|exchange| exchange.lock().end_of_object);
    end.is_some_and(|end| offset.checked_add(bytes.len() as u64) == Some(end))
}

/// Room for an answer, at once: a buffer that grows copies what it has, again and again.
fn make_room(metadata: &Metadata, max: u64) -> Vec<u8> {
    let room = metadata.content_length().min(max).min(ROOM_MAX);
    Vec::with_capacity(usize::try_from(room).unwrap_or_default())
}

/// Collects all pieces; false as soon as they are more than `max` bytes.
async fn collect_pieces(
    pieces: impl Stream<Item = opendal::Result<Buffer>>,
    max: u64,
    bytes: &mut Vec<u8>,
) -> opendal::Result<bool> {
    let mut pieces = pin!(pieces);
    while let Some(piece) = poll_fn(|context| pieces.as_mut().poll_next(context)).await {
        let piece = piece?;
        // Before the piece is kept, whatever length was announced.
        if bytes.len() as u64 + piece.len() as u64 > max {
            return Ok(false);
        }
        piece.for_each(|part| bytes.extend_from_slice(&part));
    }
    Ok(true)
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
        let mut bytes = Vec::new();
        assert!(!runtime.block_on(collect_pieces(Endless { sent: 0 }, 1000, &mut bytes))?);
        assert!(bytes.len() <= 1000);
        Ok(())
    }
}
