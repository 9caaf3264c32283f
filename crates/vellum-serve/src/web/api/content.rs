//! The content of files: whole or a part, read by a thread while it is sent.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bytes::Bytes;
use hyper::StatusCode;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use vellum_library::{File, FileKind, Tree as _};

use super::{ApiState, content_freshness};
use crate::web::answer::{ApiError, ContentPart, Freshness};
use crate::web::route::PathInSnapshot;

/// Bytes that are read at once.
const PART: usize = 256 << 10;
/// Parts that wait to be sent.
const WAITING: usize = 4;

/// A file that is open.
pub struct ContentReader {
    file: File,
    size: u64,
    /// How long what is read holds.
    pub freshness: Freshness,
}

/// A path as the library takes it.
pub fn os_path(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

/// Opens a file of a snapshot. No symlink is followed: who shows one shows where it leads.
pub fn open_content(state: &ApiState, place: &PathInSnapshot) -> Result<ContentReader, ApiError> {
    // This look-up fails for a path that leads through a symlink, and shows one at its end; `open` below would follow both.
    let found = state.volume.read_path(place.snapshot, &place.path)?;
    if found.inode.attr.kind != FileKind::File {
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "usage", "only files have content"));
    }
    // By its id, not by a tag: a tag may have been moved since the page showed it.
    let file = state.volume.open_snapshot(&place.snapshot.to_string())?.open(os_path(&place.path))?;
    Ok(ContentReader { file, size: found.inode.attr.size, freshness: content_freshness(found.content) })
}

impl ContentReader {
    /// Bytes of the file.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Where parts of it arrive, and how to read them: by a thread that may wait.
    pub fn into_parts(self, part: ContentPart) -> (Receiver<std::io::Result<Bytes>>, impl FnOnce() + Send) {
        // Bounded: a client that reads slowly holds up the thread, not the memory.
        let (sender, receiver) = channel(WAITING);
        (receiver, move || send_parts(&self.file, part, &sender))
    }
}

fn send_parts(file: &File, part: ContentPart, sender: &Sender<std::io::Result<Bytes>>) {
    let mut at = part.start;
    let mut left = part.len;
    while left > 0 {
        let want = usize::try_from(left).unwrap_or(usize::MAX).min(PART);
        // A new one for each part: the one before belongs to the connection until it is sent.
        let mut buffer = vec![0; want];
        let read = match file.read_at(&mut buffer, at) {
            // A snapshot does not become shorter: an answer that ends early must not look whole.
            Ok(0) => Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => Ok(count),
            Err(error) => Err(error.into()),
        };
        let count = match read {
            Ok(count) => count,
            Err(error) => {
                // Nobody may be there to hear it.
                let _ = sender.blocking_send(Err(error));
                return;
            }
        };
        buffer.truncate(count);
        at += count as u64;
        left -= count as u64;
        // The client went away.
        if sender.blocking_send(Ok(buffer.into())).is_err() {
            return;
        }
    }
}

/// The part that a `Range` asks for. A range of another unit, several ranges and nonsense count as none, as RFC 9110 has it.
/// Fails if the file has no such part.
pub fn parse_range(range: Option<&str>, total: u64) -> Result<ContentPart, ApiError> {
    let whole = ContentPart { start: 0, len: total, total, is_range: false };
    let Some((first, last)) = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) else {
        return Ok(whole);
    };
    let bounds = match (first.parse::<u64>(), last.parse::<u64>()) {
        // The last byte is included in HTTP, and may lie behind the end of the file.
        (Ok(start), Ok(last)) if start <= last => Some((start, last.saturating_add(1).min(total))),
        (Ok(start), Err(_)) if last.is_empty() => Some((start, total)),
        // "-N" asks for the last N bytes. More than there are stand for the whole file.
        (Err(_), Ok(suffix)) if first.is_empty() => Some((total.saturating_sub(suffix), total)),
        _ => None,
    };
    match bounds {
        None => Ok(whole),
        Some((start, end)) if start < end => {
            Ok(ContentPart { start, len: end - start, total, is_range: true })
        }
        // An empty file has no part at all: for one, the page takes this answer for success.
        Some(_) => Err(ApiError::new(StatusCode::RANGE_NOT_SATISFIABLE, "usage", "no such part")),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_http() {
        let range =
            |text: &str| parse_range(Some(text), 10).map(|part| (part.start, part.len, part.is_range));
        assert_eq!(range("bytes=0-3").unwrap(), (0, 4, true));
        assert_eq!(range("bytes=8-").unwrap(), (8, 2, true));
        assert_eq!(range("bytes=8-99").unwrap(), (8, 2, true));
        assert_eq!(range("bytes=-3").unwrap(), (7, 3, true));
        assert_eq!(range("bytes=-30").unwrap(), (0, 10, true));
        for none in ["bytes=3-1", "bytes=a-b", "lines=0-3", "bytes=0-1,3-4", "bytes=", "bytes=-", "0-3"] {
            assert_eq!(range(none).unwrap(), (0, 10, false), "{none}");
        }
        for beyond in ["bytes=10-", "bytes=10-12", "bytes=-0", "bytes=18446744073709551615-"] {
            assert_eq!(range(beyond).unwrap_err().status(), 416, "{beyond}");
        }
        assert!(!parse_range(None, 0).unwrap().is_range);
        assert!(parse_range(Some("bytes=0-"), 0).is_err());
    }
}
