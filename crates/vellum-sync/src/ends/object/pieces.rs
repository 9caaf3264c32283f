//! The content of an object, read in ranges.
//!
//! Invariant: all ranges are of the listed version. Deliberately absent: continuing a file of an earlier run.

use std::ops::Range;
use std::sync::Arc;

use vellum_store::{ObjectTag, PlainObjects};

use super::map_object_error;
use crate::ends::{ContentPieces, FilePart, TransferPiece};
use crate::error::Result;
use crate::local::receive::RANGE;

/// Bytes that are fetched in one request: their transfer takes long compared with the latency of a request.
const REQUEST: u64 = 8 << 20;

/// An object or a range of it.
pub(super) struct ObjectPieces {
    objects: Arc<PlainObjects>,
    key: String,
    tag: ObjectTag,
    left: Range<u64>,
    current: Vec<u8>,
}

impl ObjectPieces {
    pub fn new(objects: &Arc<PlainObjects>, key: String, tag: ObjectTag, size: u64) -> Self {
        Self { objects: Arc::clone(objects), key, tag, left: 0..size, current: Vec::new() }
    }

    fn with_range(&self, left: Range<u64>) -> Self {
        Self {
            objects: Arc::clone(&self.objects),
            key: self.key.clone(),
            tag: self.tag.clone(),
            left,
            current: Vec::new(),
        }
    }
}

impl ContentPieces for ObjectPieces {
    fn next_piece(&mut self) -> Result<Option<TransferPiece<'_>>> {
        if self.left.is_empty() {
            return Ok(None);
        }
        let end = self.left.end.min(self.left.start + REQUEST);
        let range = self.left.start..end;
        self.current = self.objects.read_range(&self.key, &self.tag, range).map_err(map_object_error)?;
        self.left.start = end;
        Ok(Some(TransferPiece::Data(&self.current)))
    }

    fn split_parts(&self) -> Option<Vec<FilePart>> {
        if self.left.end <= RANGE {
            return None;
        }
        let mut parts = Vec::new();
        let mut start = self.left.start;
        while start < self.left.end {
            let end = self.left.end.min(start + RANGE);
            parts.push(FilePart { start, end, pieces: Box::new(self.with_range(start..end)) });
            start = end;
        }
        Some(parts)
    }
}
